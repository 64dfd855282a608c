//! A connection to an NBD server, up to where requests may be sent.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use forebay_nbd::codec::{
    BlockSizes, ClientFlags, DecodeError, ExportReply, ExportRequest, Greeting, Info, OptionHeader,
    OptionReplyHeader, ReplyHeader, Request, SimpleReply, command, export_flag, handshake_flag, info, option,
    option_reply,
};

use crate::nbd::uri::{NbdSpec, Server};
use crate::open::Access;

/// How long a server may take for the connection and for each message until it is ready.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(5);
/// Longest answer to an option that is taken; a description may be as long as a string of the protocol.
const ANSWER_BYTES_MAX: u32 = 8192;
/// Most answers to one option.
const ANSWERS_MAX: usize = 64;
/// A TCP connection whose peer acknowledges nothing for so long is given up, in milliseconds.
const TCP_SILENCE_MAX_MS: u32 = 30_000;

/// A stream socket of either kind.
#[derive(Debug)]
pub(crate) enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    fn connect(server: &Server) -> io::Result<Self> {
        match server {
            Server::Unix(path) => UnixStream::connect(path).map(Self::Unix),
            Server::Tcp(host, port) => {
                let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
                for address in (host.as_str(), *port).to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, HANDSHAKE_PATIENCE) {
                        Ok(stream) => return Self::of_tcp(stream),
                        Err(e) => last = e,
                    }
                }
                Err(last)
            }
        }
    }

    /// Requests go out at once, and a peer that is gone without a word is noticed.
    fn of_tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
        rustix::net::sockopt::set_tcp_keepidle(&stream, Duration::from_secs(10))?;
        rustix::net::sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(5))?;
        rustix::net::sockopt::set_tcp_user_timeout(&stream, TCP_SILENCE_MAX_MS)?;
        Ok(Self::Tcp(stream))
    }

    fn set_patience(&self, patience: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(s) => s.set_read_timeout(patience).and_then(|()| s.set_write_timeout(patience)),
            Self::Tcp(s) => s.set_read_timeout(patience).and_then(|()| s.set_write_timeout(patience)),
        }
    }

    /// Ends both directions: whoever reads or writes in another thread comes back.
    pub(crate) fn shut_down(&self) {
        // What fails here is a connection that has ended already.
        let _ = match self {
            Self::Unix(s) => s.shutdown(Shutdown::Both),
            Self::Tcp(s) => s.shutdown(Shutdown::Both),
        };
    }

    /// Sends all of these, none of which is empty.
    pub(crate) fn send(&self, mut parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        /// As many as the kernel takes at once.
        const PARTS_MAX: usize = 1024;
        while !parts.is_empty() {
            let some = &parts[..parts.len().min(PARTS_MAX)];
            let sent = match self {
                Self::Unix(s) => (&mut &*s).write_vectored(some),
                Self::Tcp(s) => (&mut &*s).write_vectored(some),
            };
            match sent {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => IoSlice::advance_slices(&mut parts, n),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    pub(crate) fn receive(&self, bytes: &mut [u8]) -> io::Result<()> {
        match self {
            Self::Unix(s) => (&mut &*s).read_exact(bytes),
            Self::Tcp(s) => (&mut &*s).read_exact(bytes),
        }
    }

    fn take<const N: usize>(&self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.receive(&mut bytes)?;
        Ok(bytes)
    }
}

/// What a server offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// The export's size in bytes.
    pub(crate) size_bytes: u64,
    /// Bits of [`export_flag`].
    flags: u16,
    /// What requests it takes.
    pub(crate) sizes: BlockSizes,
}

impl Terms {
    /// What every server without a word about it takes, by the protocol.
    const SIZES: BlockSizes = BlockSizes { minimum: 512, preferred: 4096, maximum: 32 << 20 };

    #[cfg(test)]
    pub(crate) const fn new(size_bytes: u64, flags: u16, sizes: BlockSizes) -> Self {
        Self { size_bytes, flags, sizes }
    }

    pub(crate) const fn offers(&self, flag: u16) -> bool {
        self.flags & flag == flag
    }

    /// Whether a device can be made of it.
    ///
    /// # Errors
    /// What it lacks.
    pub(crate) fn check(&self, access: Access) -> io::Result<()> {
        let unfit = |why: &str| Err(io::Error::new(io::ErrorKind::Unsupported, why.to_owned()));
        let BlockSizes { minimum, preferred, maximum } = self.sizes;
        match () {
            () if access == Access::ReadWrite
                && !self.offers(export_flag::HAS_FLAGS | export_flag::SEND_FLUSH) =>
            {
                unfit("the export takes no flush, so that nothing written to it would be known to be durable")
            }
            () if !minimum.is_power_of_two() || !preferred.is_power_of_two() || minimum > 4096 => {
                unfit("the export takes only requests of unusual sizes")
            }
            () if maximum < 4096 || maximum < preferred => unfit("the export takes no request of 4096 bytes"),
            () => Ok(()),
        }
    }
}

fn broken(error: DecodeError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the server does not speak NBD: {error}"))
}

/// Connects to an export.
///
/// # Errors
/// If it cannot be reached. Whether a device can be made of it is for [`Terms::check`] to say.
pub(crate) fn connect(spec: &NbdSpec) -> io::Result<(Stream, Terms)> {
    let stream = Stream::connect(&spec.server)?;
    stream.set_patience(Some(HANDSHAKE_PATIENCE))?;
    let terms = negotiate(&stream, &spec.export).map_err(|e| match e.kind() {
        io::ErrorKind::UnexpectedEof => io::Error::new(e.kind(), "the server ended the connection"),
        io::ErrorKind::WouldBlock => io::Error::new(
            io::ErrorKind::TimedOut,
            "the server does not answer (one that takes one client at a time may be serving another)",
        ),
        _ => e,
    })?;
    stream.set_patience(None)?;
    Ok((stream, terms))
}

/// Reads from an export over a connection that nothing else uses yet.
///
/// # Errors
/// If the server refuses, does not answer in time, or answers something else.
pub(crate) fn read_alone(stream: &Stream, terms: &Terms, offset: u64, len: u32) -> io::Result<Vec<u8>> {
    stream.set_patience(Some(HANDSHAKE_PATIENCE))?;
    let mut bytes = vec![0; len as usize];
    let mut at = offset;
    for part in bytes.chunks_mut(terms.sizes.maximum as usize / 4096 * 4096) {
        let mut asked = Vec::new();
        let len = part.len() as u32;
        Request { flags: 0, command: command::READ, cookie: at, offset: at, len }.encode(&mut asked);
        stream.send(&mut [IoSlice::new(&asked)])?;
        match ReplyHeader::decode(&stream.take::<{ SimpleReply::BYTES }>()?).map_err(broken)? {
            ReplyHeader::Simple(SimpleReply { error, cookie }) if cookie == at => match error.kind() {
                None => stream.receive(part)?,
                Some(kind) => return Err(io::Error::from_raw_os_error(kind.errno())),
            },
            // Structured replies were not asked for.
            _ => return Err(broken(DecodeError::UnknownValue(command::READ.into()))),
        }
        at += u64::from(len);
    }
    stream.set_patience(None)?;
    Ok(bytes)
}

fn negotiate(stream: &Stream, export: &str) -> io::Result<Terms> {
    let greeting = Greeting::decode(&stream.take::<{ Greeting::BYTES }>()?).map_err(broken)?;
    let no_zeroes = greeting.flags & handshake_flag::NO_ZEROES;
    let mut hello = Vec::new();
    ClientFlags(handshake_flag::FIXED_NEWSTYLE & greeting.flags | no_zeroes).encode(&mut hello);
    if greeting.flags & handshake_flag::FIXED_NEWSTYLE != 0 {
        let mut asked = Vec::new();
        ExportRequest::encode(export, &[info::BLOCK_SIZE], &mut asked);
        put_option(option::GO, &asked, &mut hello);
        stream.send(&mut [IoSlice::new(&hello)])?;
        if let Some(terms) = answers_to_go(stream)? {
            return Ok(terms);
        }
        hello.clear();
    }
    // The old way to choose an export, which has no way to say no but to hang up.
    put_option(option::EXPORT_NAME, export.as_bytes(), &mut hello);
    stream.send(&mut [IoSlice::new(&hello)])?;
    let reply = ExportReply::decode(&stream.take::<{ ExportReply::BYTES }>()?).map_err(broken)?;
    if no_zeroes == 0 {
        stream.take::<{ ExportReply::ZEROES }>()?;
    }
    Ok(Terms { size_bytes: reply.size, flags: reply.flags, sizes: Terms::SIZES })
}

fn put_option(option: u32, data: &[u8], out: &mut Vec<u8>) {
    // Data is an export's name and little more.
    OptionHeader { option, len: data.len() as u32 }.encode(out);
    out.extend_from_slice(data);
}

/// What the server says of the export; `None` if it does not know the option.
fn answers_to_go(stream: &Stream) -> io::Result<Option<Terms>> {
    let mut export = None;
    let mut sizes = Terms::SIZES;
    for _ in 0..ANSWERS_MAX {
        let header = OptionReplyHeader::decode(&stream.take::<{ OptionReplyHeader::BYTES }>()?);
        let header = header.map_err(broken)?;
        if header.option != option::GO || header.len > ANSWER_BYTES_MAX {
            return Err(broken(DecodeError::UnknownValue(header.option)));
        }
        let mut payload = vec![0; header.len as usize];
        stream.receive(&mut payload)?;
        match header.kind {
            option_reply::ERR_UNSUP => return Ok(None),
            option_reply::ACK => {
                let (size_bytes, flags) = export.ok_or_else(|| broken(DecodeError::Truncated))?;
                return Ok(Some(Terms { size_bytes, flags, sizes }));
            }
            option_reply::INFO => match Info::decode(&payload).map_err(broken)? {
                Some(Info::Export { size, flags }) => export = Some((size, flags)),
                // Less than a sector is never asked for.
                Some(Info::BlockSize(told)) => sizes = BlockSizes { minimum: told.minimum.max(512), ..told },
                _ => {}
            },
            _ if header.is_error() => return Err(refusal(header.kind, &payload)),
            other => return Err(broken(DecodeError::UnknownValue(other))),
        }
    }
    Err(broken(DecodeError::Trailing))
}

fn refusal(kind: u32, message: &[u8]) -> io::Error {
    let why = match kind {
        option_reply::ERR_UNKNOWN => "the server has no such export",
        option_reply::ERR_TLS_REQD => "the server demands TLS, which Forebay does not speak to a backing",
        option_reply::ERR_POLICY => "the server's settings forbid it",
        option_reply::ERR_SHUTDOWN => "the server is stopping",
        _ => "the server refuses",
    };
    let said: String = String::from_utf8_lossy(message).chars().filter(|c| !c.is_control()).collect();
    let said = if said.is_empty() { said } else { format!(" ('{said}')") };
    io::Error::new(io::ErrorKind::ConnectionRefused, format!("{why}{said}"))
}
