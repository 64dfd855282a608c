//! Binding the control socket: private, never in the way of a daemon that lives.

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_block::words_of;
use rustix::fs::Mode;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use thiserror::Error;

use crate::{ControlError, FailureKind};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 16;

/// A socket on which nobody takes a connection for so long belongs to a daemon that hangs, but has it.
const TAKEN_AFTER: Duration = Duration::from_secs(1);

/// Why there is no control socket.
#[derive(Debug, Error)]
pub enum BindError {
    /// A daemon answers on it.
    #[error("the control socket {} is in use by a running daemon; stop that one first or choose another with --control", .0.display())]
    InUse(PathBuf),
    /// Something that is not a socket lies at its path.
    #[error("{} exists and is not a socket; remove it or choose another path with --control", .0.display())]
    NotASocket(PathBuf),
    /// The system refused.
    #[error("cannot make the control socket {}: {}", .path.display(), words_of(.source))]
    Io {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl From<BindError> for ControlError {
    fn from(e: BindError) -> Self {
        let kind = match e {
            BindError::InUse(_) | BindError::NotASocket(_) => FailureKind::Refused,
            BindError::Io { .. } => FailureKind::Failed,
        };
        Self::new(kind, e.to_string())
    }
}

/// Makes and listens on the control socket at `path`, readable and writable for its owner alone from its first
/// moment. A missing last directory is made, with mode 0700. The socket of a daemon that died is replaced; one that
/// somebody listens on is not.
///
/// # Errors
/// [`BindError`], also if the path is longer than the 107 bytes that the system allows.
pub fn bind(path: &Path) -> Result<UnixListener, BindError> {
    let io = |source: io::Error| BindError::Io { path: path.to_owned(), source };
    let directory = match path.parent() {
        Some(p) if p != Path::new("") => p,
        _ => Path::new("."),
    };
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(io(e)),
        _ => {}
    }
    // Two daemons that start at once must not both find the dead socket and remove each other's new one.
    let turn = File::open(directory).map_err(io)?;
    turn.lock().map_err(io)?;
    remove_dead(path)?;
    listen(path).map_err(io)
}

/// Whether the control socket could be made now, which leaves none.
///
/// # Errors
/// As [`bind`].
pub fn can_bind(path: &Path) -> Result<(), BindError> {
    drop(bind(path)?);
    fs::remove_file(path).map_err(|source| BindError::Io { path: path.to_owned(), source })
}

fn remove_dead(path: &Path) -> Result<(), BindError> {
    let io = |source: io::Error| BindError::Io { path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(io(e)),
        Ok(found) if !found.file_type().is_socket() => return Err(BindError::NotASocket(path.to_owned())),
        Ok(_) => {}
    }
    match connect(path, TAKEN_AFTER) {
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path).map_err(io),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        // Connected, or full, or not allowed to ask: somebody may live there.
        _ => Err(BindError::InUse(path.to_owned())),
    }
}

/// Connects within a time: a daemon that takes no connections any more would let others wait for ever once its backlog is
/// full. [`ErrorKind::WouldBlock`] then.
pub(crate) fn connect(path: &Path, limit: Duration) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(limit))?;
    rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &address))?;
    Ok(UnixStream::from(socket))
}

fn listen(path: &Path) -> io::Result<UnixListener> {
    let address = SocketAddrUnix::new(path)?;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The file takes over the mode that the socket has when it is bound, so it is never open to others.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &address)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_socket_is_replaced_and_a_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run").join("db.sock");
        let first = bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(matches!(bind(&path), Err(BindError::InUse(_))));
        drop(first);
        assert!(path.exists(), "a dead socket stays behind");
        let _second = bind(&path).unwrap();
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn the_mode_is_set_before_anyone_can_connect() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn what_is_no_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notes.txt");
        fs::write(&path, "mine").unwrap();
        let e = bind(&path).unwrap_err();
        assert!(matches!(e, BindError::NotASocket(_)));
        assert_eq!(ControlError::from(e).kind, FailureKind::Refused);
        assert_eq!(fs::read(&path).unwrap(), b"mine");
    }

    #[test]
    fn a_path_that_is_too_long_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(bind(&dir.path().join("x".repeat(120))), Err(BindError::Io { .. })));
    }
}
