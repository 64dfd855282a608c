//! The command line's end of the control socket.

use std::io::{self, BufReader, ErrorKind, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_block::words_of;
use forebay_guard::{Who, connect, is_trusted, peer, user_name};
use thiserror::Error;

use crate::lines::{LineLimits, NoLine, read_line};
use crate::protocol::{Answer, ControlError, FailureKind, Line, Progress, Request, parse_line};

/// A daemon that does not take a connection for so long does not answer: its threads do nothing else than to take them.
pub const CONNECT_MAX: Duration = Duration::from_secs(5);

/// Longest line of a daemon that is read, in bytes: the figures of many volumes, or a long account.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum ClientError {
    /// There is no socket.
    #[error("no daemon answers on {}; start it with `forebay serve`, or name its socket with --control", .0.display())]
    NotRunning(PathBuf),
    /// There is a socket, and nobody listens on it.
    #[error("the daemon of {} is gone: it was killed, or ended without removing its socket; start it again with \
             `forebay serve`, which takes the socket over", .0.display())]
    Gone(PathBuf),
    /// Something else lies there.
    #[error("{} is not a socket; name the daemon's control socket with --control", .0.display())]
    NotASocket(PathBuf),
    /// The socket belongs to somebody else.
    #[error("not allowed to use the control socket {}; run this as the user that runs the daemon", .0.display())]
    Denied(PathBuf),
    /// Whoever answers may be anybody.
    #[error("{} is answered by a process of another user ({who}), so nothing was asked: only root and {} are believed there. If you mean \
             that daemon, run this as its user", .path.display(), user_name(*.me))]
    Untrusted {
        /// Which socket.
        path: PathBuf,
        /// Who listens on it.
        who: Who,
        /// Who asks.
        me: u32,
    },
    /// Somebody listens and says nothing.
    #[error("the daemon on {} does not answer: nothing has come for {} s. It is stopped or hangs; its log says more. \
             What was asked may still be done if it goes on", .path.display(), .silence.as_secs())]
    Silent {
        /// Which socket.
        path: PathBuf,
        /// How long nothing came.
        silence: Duration,
    },
    /// It went away, or says what is no answer.
    #[error("the daemon on {} went away before it answered ({why}); its log says why", .path.display())]
    Lost {
        /// Which socket.
        path: PathBuf,
        /// In what way.
        why: String,
    },
    /// Anything else.
    #[error("cannot use the control socket {}: {}", .path.display(), words_of(.source))]
    Io {
        /// Which socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What the daemon says.
    #[error(transparent)]
    Said(#[from] ControlError),
}

impl From<ClientError> for ControlError {
    fn from(e: ClientError) -> Self {
        match e {
            ClientError::Said(said) => said,
            untrusted @ ClientError::Untrusted { .. } => {
                Self::new(FailureKind::Refused, untrusted.to_string())
            }
            other => Self::new(FailureKind::Failed, other.to_string()),
        }
    }
}

/// A connection to a daemon.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    reader: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the control socket at `path`, wherever that lies: what counts is who listens on it ([`is_trusted`]).
    ///
    /// # Errors
    /// [`ClientError`], after at most [`CONNECT_MAX`].
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        let failed = |e: io::Error| match e.kind() {
            ErrorKind::NotFound => ClientError::NotRunning(path.to_owned()),
            ErrorKind::ConnectionRefused if is_something_else(path) => {
                ClientError::NotASocket(absolute(path))
            }
            ErrorKind::ConnectionRefused => ClientError::Gone(path.to_owned()),
            ErrorKind::PermissionDenied => ClientError::Denied(path.to_owned()),
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                ClientError::Silent { path: path.to_owned(), silence: CONNECT_MAX }
            }
            _ => ClientError::Io { path: path.to_owned(), source: e },
        };
        let stream = connect(path, CONNECT_MAX).map_err(failed)?;
        let who = peer(&stream).map_err(failed)?;
        if !who.uid.is_some_and(|uid| is_trusted(uid, path)) {
            let me = rustix::process::geteuid().as_raw();
            return Err(ClientError::Untrusted { path: path.to_owned(), who, me });
        }
        Ok(Self { path: path.to_owned(), reader: BufReader::new(stream) })
    }

    /// Sends a command and waits for its end: as long as it takes if lines keep coming, but no longer than
    /// [`Request::silence_max`] for the next one. `progress` sees each step of a long one.
    ///
    /// # Errors
    /// What the daemon says, that it went away before it answered, or that it does not answer.
    pub fn call(
        &mut self,
        request: &Request,
        mut progress: impl FnMut(Progress),
    ) -> Result<Answer, ClientError> {
        let path = self.path.clone();
        let lost = |why: String| ClientError::Lost { path: path.clone(), why };
        let silence = request.silence_max();
        let mut text = serde_json::to_vec(request).map_err(|e| lost(e.to_string()))?;
        text.push(b'\n');
        self.reader.get_ref().set_write_timeout(Some(silence)).map_err(|e| lost(e.to_string()))?;
        // A daemon that is full or stopping may close before it reads, with its reason already on the way: read it.
        let sent = self.reader.get_mut().write_all(&text);
        let limits = LineLimits { first: silence, whole: silence, bytes: ANSWER_BYTES_MAX };
        loop {
            let line = read_line(&mut self.reader, limits).map_err(|e| match e {
                NoLine::Silent => ClientError::Silent { path: path.clone(), silence },
                NoLine::Ended => {
                    lost(sent.as_ref().err().map_or("end of stream".into(), ToString::to_string))
                }
                NoLine::TooLong => lost(format!("a line of more than {ANSWER_BYTES_MAX} bytes")),
                NoLine::Io(e) => lost(e.to_string()),
            })?;
            match parse_line(&line)? {
                Line::Progress(p) => progress(p),
                Line::Result(answer) => return Ok(answer),
                Line::Error(e) => return Err(e.into()),
            }
        }
    }
}

/// Whether what lies at this path is no socket.
fn is_something_else(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|there| !there.file_type().is_socket())
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;
    use std::time::Instant;

    use super::*;

    /// Far longer than any limit here, and no more than a guard against a hang.
    const HANG: Duration = Duration::from_secs(60);

    #[test]
    fn a_missing_daemon_is_named_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db.sock");
        let e = Client::connect(&path).unwrap_err();
        assert!(matches!(e, ClientError::NotRunning(_)));
        let text = e.to_string();
        assert!(text.contains("db.sock") && text.contains("forebay serve"), "{text}");
        drop(UnixListener::bind(&path).unwrap());
        let e = Client::connect(&path).unwrap_err();
        assert!(matches!(e, ClientError::Gone(_)), "a socket without a listener is left by a dead daemon");
        assert!(e.to_string().contains("forebay serve"), "{e}");
        let file = dir.path().join("x.img");
        for path in [&file, &dir.path().to_owned()] {
            std::fs::write(&file, "").unwrap();
            let e = Client::connect(path).unwrap_err();
            assert!(matches!(e, ClientError::NotASocket(_)), "{e}");
            assert!(e.to_string().starts_with(&format!("{} is not a socket", path.display())), "{e}");
        }
    }

    #[test]
    fn whoever_answers_as_another_user_is_asked_nothing() {
        if !rustix::process::geteuid().is_root() {
            assert!(std::env::var_os("CI").is_none(), "this test needs root");
            eprintln!("SKIP: needs root");
            return;
        }
        let nobody = rustix::process::Uid::from_raw(65534);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db.sock");
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        // The user of this thread alone is changed.
        let listens = || {
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            UnixListener::bind(&path).unwrap()
        };
        let listener = std::thread::scope(|scope| scope.spawn(listens).join().unwrap());
        let e = Client::connect(&path).unwrap_err();
        assert!(matches!(e, ClientError::Untrusted { who, me: 0, .. } if who.uid == Some(65534)), "{e}");
        let e = ControlError::from(e);
        assert!(e.kind == FailureKind::Refused && e.message.contains("user nobody"), "{e}");
        let (mut asked, _) = listener.accept().unwrap();
        assert_eq!(asked.read(&mut [0; 8]).unwrap(), 0);
    }

    #[test]
    fn who_accepts_and_says_nothing_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let began = Instant::now();
        let mut client = Client::connect(&path).unwrap();
        let e = client.call(&Request::Status { volume: None }, |_| {}).unwrap_err();
        assert!(matches!(e, ClientError::Silent { .. }) && began.elapsed() < HANG, "{e}");
        assert!(e.to_string().contains("does not answer"), "{e}");
        drop(listener);
    }

    #[test]
    fn who_accepts_nothing_any_more_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db.sock");
        let _listener = UnixListener::bind(&path).unwrap();
        let mut taken = Vec::new();
        let began = Instant::now();
        let e = loop {
            match Client::connect(&path) {
                Ok(client) => taken.push(client),
                Err(e) => break e,
            }
        };
        assert!(matches!(e, ClientError::Silent { .. }) && began.elapsed() < HANG, "{e}");
        assert!(
            matches!(crate::can_bind(&path), Err(crate::BindError::InUse { .. })),
            "nor does it stop a start for ever"
        );
    }

    #[test]
    fn a_long_command_lives_as_long_as_it_tells_of_itself() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let (wait, step) = (Request::Status { volume: None }.silence_max(), Duration::from_millis(1500));
        let daemon = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let began = Instant::now();
            while began.elapsed() < wait + step {
                std::thread::sleep(step);
                stream.write_all(b"{\"progress\":{\"remaining_bytes\":1,\"total_bytes\":1}}\n").unwrap();
            }
            stream.write_all(b"{\"result\":\"done\"}\n").unwrap();
        });
        let mut steps = 0;
        let mut client = Client::connect(&path).unwrap();
        let answer = client.call(&Request::Status { volume: None }, |_| steps += 1).unwrap();
        assert!(answer == Answer::Done && steps > 1, "{steps}");
        daemon.join().unwrap();
    }
}
