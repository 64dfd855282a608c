//! An NBD client: fixed newstyle handshake, simple replies, one request at a time.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::target::{Failure, Target};

const OPT_EXPORT_NAME: u32 = 1;
const CLIENT_FIXED_NO_ZEROES: u32 = 3;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;

const CMD_READ: u16 = 0;
const CMD_WRITE: u16 = 1;
const CMD_FLUSH: u16 = 3;
const CMD_TRIM: u16 = 4;
const CMD_WRITE_ZEROES: u16 = 6;

const FLAG_FUA: u16 = 1;
const FLAG_NO_HOLE: u16 = 2;

/// A server that shuts down says so with this error; to a client it is gone.
const ESHUTDOWN: u32 = 108;

/// What is asked of a server.
struct Request<'a> {
    command: u16,
    flags: u16,
    offset: u64,
    len: u64,
    /// What a write writes.
    data: &'a [u8],
}

impl Request<'_> {
    const fn of(command: u16, flags: u16) -> Self {
        Self { command, flags, offset: 0, len: 0, data: &[] }
    }
}

/// A connection to one export.
pub(crate) struct NbdConnection {
    stream: UnixStream,
    size_bytes: u64,
    cookie: u64,
    /// Why nothing can be asked any more.
    lost: Option<io::ErrorKind>,
}

fn take<const N: usize>(stream: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

impl NbdConnection {
    pub(crate) fn open(socket: &Path, export: &str, patience: Duration) -> io::Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        let greeting: [u8; 18] = take(&mut stream)?;
        if !greeting.starts_with(b"NBDMAGICIHAVEOPT") {
            return Err(io::Error::other("this is no NBD server of the newstyle"));
        }
        let mut hello = CLIENT_FIXED_NO_ZEROES.to_be_bytes().to_vec();
        hello.extend(b"IHAVEOPT");
        hello.extend(OPT_EXPORT_NAME.to_be_bytes());
        hello.extend((export.len() as u32).to_be_bytes());
        hello.extend(export.as_bytes());
        stream.write_all(&hello)?;
        let size_bytes = u64::from_be_bytes(take(&mut stream)?);
        let _transmission_flags: [u8; 2] = take(&mut stream)?;
        Ok(Self { stream, size_bytes, cookie: 0, lost: None })
    }

    /// Makes a request and takes the answer, into `answer` if it is a read.
    fn request(&mut self, request: &Request<'_>, answer: &mut [u8]) -> Result<(), Failure> {
        if let Some(kind) = self.lost {
            return Err(Failure::Lost(kind.into()));
        }
        match self.exchange(request, answer) {
            Ok(0) => Ok(()),
            Ok(ESHUTDOWN) => Err(self.lose(io::ErrorKind::ConnectionAborted.into())),
            Ok(errno) => Err(Failure::Refused(errno as i32)),
            Err(e) => Err(self.lose(e)),
        }
    }

    fn lose(&mut self, e: io::Error) -> Failure {
        self.lost = Some(e.kind());
        Failure::Lost(e)
    }

    /// The server's error number, 0 if there is none.
    fn exchange(&mut self, request: &Request<'_>, answer: &mut [u8]) -> io::Result<u32> {
        self.cookie += 1;
        let len = u32::try_from(request.len).map_err(io::Error::other)?;
        let mut message = Vec::with_capacity(28 + request.data.len());
        message.extend(REQUEST_MAGIC.to_be_bytes());
        message.extend(request.flags.to_be_bytes());
        message.extend(request.command.to_be_bytes());
        message.extend(self.cookie.to_be_bytes());
        message.extend(request.offset.to_be_bytes());
        message.extend(len.to_be_bytes());
        message.extend(request.data);
        self.stream.write_all(&message)?;
        let magic = u32::from_be_bytes(take(&mut self.stream)?);
        let errno = u32::from_be_bytes(take(&mut self.stream)?);
        let cookie = u64::from_be_bytes(take(&mut self.stream)?);
        if (magic, cookie) != (REPLY_MAGIC, self.cookie) {
            return Err(io::Error::other(format!(
                "reply {magic:#x} to request {cookie}, not to {}",
                self.cookie
            )));
        }
        if errno == 0 {
            self.stream.read_exact(answer)?;
        }
        Ok(errno)
    }
}

impl Target for NbdConnection {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> Result<(), Failure> {
        let request = Request { offset, len: bytes.len() as u64, ..Request::of(CMD_READ, 0) };
        self.request(&request, bytes)
    }

    fn write(&mut self, offset: u64, data: &[u8], fua: bool) -> Result<(), Failure> {
        let flags = if fua { FLAG_FUA } else { 0 };
        let len = data.len() as u64;
        self.request(&Request { offset, len, data, ..Request::of(CMD_WRITE, flags) }, &mut [])
    }

    fn zero(&mut self, offset: u64, len: u64, unmap: bool) -> Result<(), Failure> {
        let (command, flags) = if unmap { (CMD_TRIM, 0) } else { (CMD_WRITE_ZEROES, FLAG_NO_HOLE) };
        self.request(&Request { offset, len, ..Request::of(command, flags) }, &mut [])
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.request(&Request::of(CMD_FLUSH, 0), &mut [])
    }
}
