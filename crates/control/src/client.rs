//! The command line's end of the control socket.

use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

use crate::protocol::{Answer, ControlError, FailureKind, Line, Progress, Request, parse_line};

/// Why no daemon could be reached.
#[derive(Debug, Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error("no daemon answers on {}; start it with `forebay serve`, or name its socket with --control", .0.display())]
    NotRunning(PathBuf),
    /// The socket belongs to somebody else.
    #[error("not allowed to use the control socket {}; run this as the user that runs the daemon", .0.display())]
    Denied(PathBuf),
    /// Anything else.
    #[error("cannot use the control socket {}: {source}", .path.display())]
    Io {
        /// Which socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl From<ClientError> for ControlError {
    fn from(e: ClientError) -> Self {
        Self::new(FailureKind::Failed, e.to_string())
    }
}

/// A connection to a daemon.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    reader: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the control socket at `path`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        match UnixStream::connect(path) {
            Ok(stream) => Ok(Self { path: path.to_owned(), reader: BufReader::new(stream) }),
            Err(e) => Err(match e.kind() {
                ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                    ClientError::NotRunning(path.to_owned())
                }
                ErrorKind::PermissionDenied => ClientError::Denied(path.to_owned()),
                _ => ClientError::Io { path: path.to_owned(), source: e },
            }),
        }
    }

    /// From here on a daemon that says nothing for so long is given up.
    pub fn limit(&mut self, silence: Duration) {
        // No time of zero is asked for, and nothing else can fail.
        let _ = self.reader.get_ref().set_read_timeout(Some(silence));
        let _ = self.reader.get_ref().set_write_timeout(Some(silence));
    }

    /// Sends a command and waits for its end, however long it takes; `progress` sees each step of a long one.
    ///
    /// # Errors
    /// What the daemon says, or that it went away before it answered.
    pub fn call(
        &mut self,
        request: &Request,
        mut progress: impl FnMut(Progress),
    ) -> Result<Answer, ControlError> {
        let lost = |why: String| {
            ControlError::new(
                FailureKind::Failed,
                format!(
                    "the daemon on {} went away before it answered ({why}); its log says why",
                    self.path.display()
                ),
            )
        };
        let mut text = serde_json::to_vec(request).map_err(|e| lost(e.to_string()))?;
        text.push(b'\n');
        // A daemon that is full or stopping may close before it reads, with its reason already on the way: read it.
        let sent = self.reader.get_mut().write_all(&text);
        loop {
            let mut line = Vec::new();
            match self.reader.read_until(b'\n', &mut line) {
                Ok(n) if n > 0 => {}
                Ok(_) => return Err(lost(sent.err().map_or("end of stream".into(), |e| e.to_string()))),
                Err(e) => return Err(lost(e.to_string())),
            }
            match parse_line(&line)? {
                Line::Progress(p) => progress(p),
                Line::Result(answer) => return Ok(answer),
                Line::Error(e) => return Err(e),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_daemon_is_named_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db.sock");
        let e = Client::connect(&path).unwrap_err();
        assert!(matches!(e, ClientError::NotRunning(_)));
        let text = e.to_string();
        assert!(text.contains("db.sock") && text.contains("forebay serve"), "{text}");
        drop(crate::bind(&path).unwrap());
        assert!(matches!(Client::connect(&path), Err(ClientError::NotRunning(_))));
    }
}
