//! An NBD server that does nothing with what it gets: what is measured of it is the round trip alone.

use std::io::{self, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use forebay_nbd::codec::{
    ClientFlags, ExportReply, Greeting, NbdError, OptionHeader, Request, SimpleReply, command, export_flag,
    handshake_flag, option,
};

use crate::BenchError;

/// Size of its export.
const EXPORT_BYTES: u64 = 1 << 30;

/// The server, on a thread of its own. It serves one connection, and ends with it.
pub(crate) struct Hollow {
    pub(crate) socket: PathBuf,
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// What is done about a request before it is answered: how it went.
pub(crate) type Answer = dyn FnMut(&Request) -> NbdError + Send;

impl Hollow {
    /// Listens at `socket`; each request goes well.
    pub(crate) fn start(socket: &Path) -> Result<Self, BenchError> {
        Self::answering(socket, Box::new(|_| NbdError::OK))
    }

    /// The same with another answer.
    pub(crate) fn answering(socket: &Path, mut answer: Box<Answer>) -> Result<Self, BenchError> {
        let listener = UnixListener::bind(socket)
            .map_err(|e| BenchError::system(format!("listen at {}", socket.display()), e))?;
        let thread = thread::spawn(move || serve(listener.accept()?.0, &mut answer));
        Ok(Self { socket: socket.to_owned(), thread: Some(thread) })
    }

    /// Waits until its connection has ended.
    ///
    /// # Errors
    /// What went wrong with it.
    pub(crate) fn end(mut self) -> Result<(), BenchError> {
        let ended = self.thread.take().map(JoinHandle::join);
        match ended {
            None | Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(e))) => Err(BenchError::system("answer over NBD", e)),
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }
}

fn protocol(why: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the client breaks the protocol: {why}"))
}

/// Answers each request as soon as it is there, until the connection ends.
fn serve(mut stream: UnixStream, answer: &mut Answer) -> io::Result<()> {
    negotiate(&mut stream)?;
    let mut requests = BufReader::with_capacity(1 << 16, stream.try_clone()?);
    let mut head = [0; Request::BYTES];
    let (mut data, mut answers) = (Vec::new(), Vec::new());
    loop {
        match requests.read_exact(&mut head) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        let request = Request::decode(&head).map_err(protocol)?;
        data.resize(request.len as usize, 0);
        if request.command == command::WRITE {
            requests.read_exact(&mut data)?;
        }
        let error = answer(&request);
        SimpleReply { error, cookie: request.cookie }.encode(&mut answers);
        if request.command == command::READ && error == NbdError::OK {
            answers.extend_from_slice(&data);
        }
        // What has come together is answered together.
        if requests.buffer().len() < Request::BYTES {
            stream.write_all(&answers)?;
            answers.clear();
        }
    }
}

/// Offers its export to who asks for the default one.
fn negotiate(stream: &mut UnixStream) -> io::Result<()> {
    let mut out = Vec::new();
    Greeting { flags: handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES }.encode(&mut out);
    stream.write_all(&out)?;
    let mut flags = [0; ClientFlags::BYTES];
    stream.read_exact(&mut flags)?;
    ClientFlags::decode(&flags).map_err(protocol)?;
    let mut asked = [0; OptionHeader::BYTES];
    stream.read_exact(&mut asked)?;
    let asked = OptionHeader::decode(&asked).map_err(protocol)?;
    if (asked.option, asked.len) != (option::EXPORT_NAME, 0) {
        return Err(protocol("it asks for something else than the default export"));
    }
    out.clear();
    ExportReply { size: EXPORT_BYTES, flags: export_flag::HAS_FLAGS }.encode(true, &mut out);
    stream.write_all(&out)
}
