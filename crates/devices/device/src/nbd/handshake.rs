//! A connection to an NBD server, up to where requests may be sent.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_nbd::codec::{
    BlockSizes, ClientFlags, DecodeError, ExportReply, ExportRequest, Greeting, Info, OptionHeader,
    OptionReplyHeader, ReplyHeader, Request, SimpleReply, command, export_flag, handshake_flag, info, option,
    option_reply,
};

use crate::access::Access;
use crate::nbd::uri::{NbdSpec, Server};

/// How long a server may take for the connection, or as long as the export's `timeout` says, if that is shorter.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// The same for all from there until requests may be sent, in whatever way it is slow; and for the answers by which it is recognized.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Longest answer to an option that is taken; a description may be as long as a string of the protocol.
const ANSWER_BYTES_MAX: u32 = 8192;
/// Most answers to one option.
const ANSWERS_MAX: usize = 64;
/// Whoever waits for the server looks this often, at least, whether it has waited long enough.
const TICK_MAX: Duration = Duration::from_secs(1);

#[derive(Debug)]
enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// A connection, and when anything last moved on it.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: Socket,
    /// For so long the server is waited for where nothing else is under way.
    patience: Duration,
    begun: Instant,
    /// When the server last sent something, or took something that it had no room for before; in nanoseconds after `begun`.
    moved_ns: AtomicU64,
}

/// Asked again and again while the server sends or takes nothing: whether to wait on.
pub(crate) type WaitsOn<'a> = &'a dyn Fn() -> bool;

impl Stream {
    fn connect(spec: &NbdSpec, server: &Server) -> io::Result<Self> {
        let (connecting, patience) = (CONNECT_MAX.min(spec.timeout), HANDSHAKE_MAX.min(spec.timeout));
        let socket = match server {
            Server::Unix(path) => Socket::Unix(connect_unix(path, connecting)?),
            Server::Tcp(host, port) => Socket::Tcp(connect_tcp(host, *port, connecting, spec.timeout)?),
        };
        let tick = Some((spec.timeout / 8).min(TICK_MAX));
        match &socket {
            Socket::Unix(s) => s.set_read_timeout(tick).and_then(|()| s.set_write_timeout(tick))?,
            Socket::Tcp(s) => s.set_read_timeout(tick).and_then(|()| s.set_write_timeout(tick))?,
        }
        Ok(Self { socket, patience, begun: Instant::now(), moved_ns: AtomicU64::new(0) })
    }

    fn shut(&self, how: Shutdown) {
        // What fails here is a connection that has ended already.
        let _ = match &self.socket {
            Socket::Unix(s) => s.shutdown(how),
            Socket::Tcp(s) => s.shutdown(how),
        };
    }

    /// Ends both directions: whoever reads or writes in another thread comes back.
    pub(crate) fn shut_down(&self) {
        self.shut(Shutdown::Both);
    }

    /// Sends nothing more; what the server still answers can be received.
    pub(crate) fn end_sending(&self) {
        self.shut(Shutdown::Write);
    }

    fn moved(&self) {
        let ns = u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.moved_ns.store(ns, Ordering::Relaxed);
    }

    /// For how long the server has sent nothing, and taken nothing that it had no room for.
    pub(crate) fn still_for(&self) -> Duration {
        let moved = Duration::from_nanos(self.moved_ns.load(Ordering::Relaxed));
        self.begun.elapsed().saturating_sub(moved)
    }

    /// Sends all of these, none of which is empty.
    pub(crate) fn send(&self, mut parts: &mut [IoSlice<'_>], waits_on: WaitsOn<'_>) -> io::Result<()> {
        /// As many as the kernel takes at once.
        const PARTS_MAX: usize = 1024;
        loop {
            let some = &parts[..parts.len().min(PARTS_MAX)];
            let sent = match &self.socket {
                Socket::Unix(s) => (&mut &*s).write_vectored(some),
                Socket::Tcp(s) => (&mut &*s).write_vectored(some),
            };
            let moved = sent.is_ok();
            match sent {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => IoSlice::advance_slices(&mut parts, n),
                Err(e) if is_passing(&e) => {}
                Err(e) => return Err(e),
            }
            if parts.is_empty() {
                return Ok(());
            }
            if moved {
                self.moved();
            }
            if !waits_on() {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }

    pub(crate) fn receive(&self, mut bytes: &mut [u8], waits_on: WaitsOn<'_>) -> io::Result<()> {
        while !bytes.is_empty() {
            let read = match &self.socket {
                Socket::Unix(s) => (&mut &*s).read(bytes),
                Socket::Tcp(s) => (&mut &*s).read(bytes),
            };
            match read {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    bytes = &mut bytes[n..];
                    self.moved();
                }
                Err(e) if is_passing(&e) => {}
                Err(e) => return Err(e),
            }
            if !bytes.is_empty() && !waits_on() {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        Ok(())
    }
}

/// Whether nothing has gone wrong but that nothing moved for a tick.
fn is_passing(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

/// The limit of sending is that of connecting, too: a server whose queue of connections is full would be waited for without end.
fn connect_unix(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    use rustix::net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt,
    };
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(patience))?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

fn connect_tcp(host: &str, port: u16, patience: Duration, timeout: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, patience) {
            Ok(stream) => return of_tcp(stream, timeout),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// Requests go out at once, and a peer that is gone without a word is noticed.
fn of_tcp(stream: TcpStream, timeout: Duration) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
    rustix::net::sockopt::set_tcp_keepidle(&stream, Duration::from_secs(10))?;
    rustix::net::sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(5))?;
    // A shorter one would end the connection to a server that takes nothing for a while, and yet is to be waited for.
    let ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
    rustix::net::sockopt::set_tcp_user_timeout(&stream, ms)?;
    Ok(stream)
}

/// A connection that nothing else uses yet, and until when its server is waited for.
struct Alone<'a> {
    stream: &'a Stream,
    until: Instant,
}

impl<'a> Alone<'a> {
    fn new(stream: &'a Stream) -> Self {
        Self { stream, until: Instant::now() + stream.patience }
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        self.stream.send(&mut [IoSlice::new(bytes)], &|| Instant::now() < self.until)
    }

    fn receive(&self, bytes: &mut [u8]) -> io::Result<()> {
        self.stream.receive(bytes, &|| Instant::now() < self.until)
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
            () if access.writes() && !self.offers(export_flag::HAS_FLAGS | export_flag::SEND_FLUSH) => {
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

/// Connects to an export at one of its addresses.
///
/// # Errors
/// If it cannot be reached. Whether a device can be made of it is for [`Terms::check`] to say.
pub(crate) fn connect(spec: &NbdSpec, server: &Server) -> io::Result<(Stream, Terms)> {
    let told = |e: io::Error| match e.kind() {
        io::ErrorKind::UnexpectedEof => io::Error::new(e.kind(), "the server ended the connection"),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => io::Error::new(
            io::ErrorKind::TimedOut,
            "the server does not answer (one that takes one client at a time may be serving another)",
        ),
        _ => e,
    };
    let stream = Stream::connect(spec, server).map_err(told)?;
    let terms = negotiate(&Alone::new(&stream), &spec.export).map_err(told)?;
    Ok((stream, terms))
}

/// Reads from an export over a connection that nothing else uses yet.
///
/// # Errors
/// If the server refuses, does not answer in time, or answers something else.
pub(crate) fn read_alone(stream: &Stream, terms: &Terms, offset: u64, len: u32) -> io::Result<Vec<u8>> {
    let stream = Alone::new(stream);
    let mut bytes = vec![0; len as usize];
    let mut at = offset;
    for part in bytes.chunks_mut(terms.sizes.maximum as usize / 4096 * 4096) {
        let mut asked = Vec::new();
        let len = part.len() as u32;
        Request { flags: 0, command: command::READ, cookie: at, offset: at, len }.encode(&mut asked);
        stream.send(&asked)?;
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
    Ok(bytes)
}

fn negotiate(stream: &Alone<'_>, export: &str) -> io::Result<Terms> {
    let greeting = Greeting::decode(&stream.take::<{ Greeting::BYTES }>()?).map_err(broken)?;
    let no_zeroes = greeting.flags & handshake_flag::NO_ZEROES;
    let mut hello = Vec::new();
    ClientFlags(handshake_flag::FIXED_NEWSTYLE & greeting.flags | no_zeroes).encode(&mut hello);
    if greeting.flags & handshake_flag::FIXED_NEWSTYLE != 0 {
        let mut asked = Vec::new();
        ExportRequest::encode(export, &[info::BLOCK_SIZE], &mut asked);
        put_option(option::GO, &asked, &mut hello);
        stream.send(&hello)?;
        if let Some(terms) = answers_to_go(stream)? {
            return Ok(terms);
        }
        hello.clear();
    }
    // The old way to choose an export, which has no way to say no but to hang up.
    put_option(option::EXPORT_NAME, export.as_bytes(), &mut hello);
    stream.send(&hello)?;
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
fn answers_to_go(stream: &Alone<'_>) -> io::Result<Option<Terms>> {
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
