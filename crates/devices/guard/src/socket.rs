//! Unix sockets: private from their first moment, never in the way of one that lives, removed only while they are one's own, and
//! believed only by who answers.

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_block::words_of;
use rustix::fs::{AtFlags, Gid, Mode, OFlags};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use thiserror::Error;

use crate::turn::{Turn, TurnError};
use crate::who::{Who, user_name};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// A socket on which nobody takes a connection for so long belongs to a daemon that hangs, but has it.
const TAKEN_AFTER: Duration = Duration::from_secs(1);

/// The directory of root's control sockets. Only root can make it, so whom it belongs to was chosen by root (`User=` of a unit).
pub const ROOT_DIRECTORY: &str = "/run/forebay";

/// Who may connect to a socket, besides root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketRights {
    /// Mode of the socket's file.
    pub mode: u32,
    /// Its group, if not that of the process.
    pub group: Option<u32>,
}

impl Default for SocketRights {
    /// The user of the process alone.
    fn default() -> Self {
        Self { mode: 0o600, group: None }
    }
}

/// Why a socket could not be made.
#[derive(Debug, Error)]
pub enum BindError {
    /// Somebody listens on it.
    #[error("{} is in use by {holder}", .path.display())]
    InUse {
        /// The socket.
        path: PathBuf,
        /// Who, as far as is known.
        holder: String,
    },
    /// Something that is not a socket lies at its path.
    #[error("{} exists and is not a socket", .path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// Others could put another socket in its place.
    #[error("{} {why}, who could put another socket in the place of one there", .directory.display())]
    Unsafe {
        /// The directory.
        directory: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Another process is about to do the same.
    #[error(transparent)]
    Turn(TurnError),
    /// The system refused.
    #[error("cannot make the socket {}: {}", .path.display(), words_of(.source))]
    Io {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A listening socket and its file, which goes with it.
#[derive(Debug)]
pub struct Bound {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file: at its path there may be a successor's by the time of closing.
    identity: Option<(u64, u64)>,
}

impl Bound {
    /// What connections are accepted from.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file if it is still this socket's. The number of its inode is not used again as long as the socket is open.
    pub fn remove(&self) {
        if self.identity.is_none() || identity_of(&self.path) != self.identity {
            return;
        }
        // Without a turn a successor could bind between look and removal; a turn that is not to be had is no reason to leave it.
        let _turn = Turn::at(&self.path);
        if identity_of(&self.path) == self.identity {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.remove();
    }
}

fn identity_of(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// Makes and listens on a socket at `path`. Nobody can connect before it has the rights given. The socket of a process that died is replaced; one that somebody listens on is not.
///
/// # Errors
/// [`BindError`], also if the path is longer than the 107 bytes that the system allows.
pub fn bind(path: &Path, rights: SocketRights) -> Result<Bound, BindError> {
    let io = |source: io::Error| BindError::Io { path: path.to_owned(), source };
    // Two that start at once must not both find the dead socket and remove each other's new one.
    let _turn = Turn::at(path).map_err(|e| match e {
        TurnError::Io(e) => io(e),
        other => BindError::Turn(other),
    })?;
    remove_dead(path)?;
    let socket = private(path, rights).map_err(io)?;
    let bound =
        Bound { listener: UnixListener::from(socket), path: path.to_owned(), identity: identity_of(path) };
    rustix::net::listen(&bound.listener, BACKLOG).map_err(|e| io(e.into()))?;
    Ok(bound)
}

/// Whether a socket could be made at `path` now, which leaves none.
///
/// # Errors
/// As [`bind`].
pub fn can_bind(path: &Path) -> Result<(), BindError> {
    bind(path, SocketRights::default()).map(drop)
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."))
}

/// Makes the last directory on the way to a socket, with mode 0700, or refuses one in which users other than root and ourselves can
/// remove what is not theirs.
///
/// # Errors
/// [`BindError::Unsafe`], or of the system.
pub fn prepare_directory(path: &Path) -> Result<(), BindError> {
    const STICKY: u32 = 0o1000;
    let directory = directory_of(path);
    let io = |source: io::Error| BindError::Io { path: path.to_owned(), source };
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(io(e)),
        _ => {}
    }
    let meta = fs::metadata(directory).map_err(io)?;
    let refuse = |why| Err(BindError::Unsafe { directory: directory.to_owned(), why });
    match meta.mode() {
        _ if !is_trusted(meta.uid(), path) => refuse(format!("belongs to user {}", user_name(meta.uid()))),
        mode if mode & 0o002 != 0 && mode & STICKY == 0 => {
            refuse("can be written to by all users".to_owned())
        }
        _ => Ok(()),
    }
}

fn remove_dead(path: &Path) -> Result<(), BindError> {
    let io = |source: io::Error| BindError::Io { path: path.to_owned(), source };
    let owner = match fs::symlink_metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(io(e)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(BindError::NotASocket { path: path.to_owned() });
        }
        Ok(found) => user_name(found.uid()),
    };
    let holder = match connect(path, TAKEN_AFTER) {
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => return fs::remove_file(path).map_err(io),
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Ok(stream) => peer(&stream).ok().map(|who| who.to_string()),
        // Full, or not allowed to ask: somebody may live there.
        Err(_) => None,
    };
    let holder = holder.unwrap_or_else(|| format!("a process of user {owner}"));
    Err(BindError::InUse { path: path.to_owned(), holder })
}

/// A bound socket with these rights, on which nobody listens yet: who connects is refused.
fn private(path: &Path, rights: SocketRights) -> io::Result<std::os::fd::OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The file takes over the mode that the socket has when it is bound, so it is never open to others.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &address)?;
    // What lies there now, whatever becomes of the path.
    let flags = OFlags::PATH | OFlags::NOFOLLOW;
    let file = File::options().read(true).custom_flags(flags.bits() as i32).open(path)?;
    let meta = file.metadata()?;
    if !meta.file_type().is_socket() || meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("another user has put something else in its place"));
    }
    if let Some(group) = rights.group.filter(|group| *group != meta.gid()) {
        rustix::fs::chownat(&file, c"", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH)?;
    }
    if meta.mode() & 0o777 != rights.mode {
        let named = format!("/proc/self/fd/{}", file.as_raw_fd());
        fs::set_permissions(named, Permissions::from_mode(rights.mode))?;
    }
    Ok(socket)
}

/// Connects within a time: a daemon that takes no connections any more would let others wait for ever once its backlog is
/// full. [`ErrorKind::WouldBlock`] then.
///
/// # Errors
/// Of the system.
pub fn connect(path: &Path, limit: Duration) -> io::Result<UnixStream> {
    connect_to(&SocketAddrUnix::new(path)?, limit)
}

/// Who listens on the abstract socket of this name, if anybody does.
pub fn abstract_holder(name: &str) -> Option<Who> {
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).ok()?;
    peer(&connect_to(&address, TAKEN_AFTER).ok()?).ok()
}

fn connect_to(address: &SocketAddrUnix, limit: Duration) -> io::Result<UnixStream> {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(limit))?;
    rustix::io::retry_on_intr(|| rustix::net::connect(&socket, address))?;
    Ok(UnixStream::from(socket))
}

/// Who listened on, or connected to, the other end.
///
/// # Errors
/// Of the system.
pub fn peer(stream: &UnixStream) -> io::Result<Who> {
    let credentials = socket_peercred(stream)?;
    Ok(Who { pid: credentials.pid.as_raw_nonzero().get() as u32, uid: Some(credentials.uid.as_raw()) })
}

/// Whether a process of this user may be believed that answers on the socket at `path`: root's, our own, and in
/// [`ROOT_DIRECTORY`] that of the directory's owner.
pub fn is_trusted(uid: u32, path: &Path) -> bool {
    let appointed = || {
        let directory = Path::new(ROOT_DIRECTORY);
        path.parent() == Some(directory)
            && fs::symlink_metadata(directory).is_ok_and(|meta| meta.uid() == uid)
    };
    uid == 0 || uid == rustix::process::geteuid().as_raw() || appointed()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: u32 = 65534;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn is_root() -> bool {
        let root = rustix::process::geteuid().is_root();
        if !root {
            assert!(std::env::var_os("CI").is_none(), "these tests need root");
            eprintln!("SKIP: needs root");
        }
        root
    }

    #[test]
    fn a_dead_socket_is_replaced_and_a_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run").join("db.sock");
        prepare_directory(&path).unwrap();
        let first = bind(&path, SocketRights::default()).unwrap();
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        let e = bind(&path, SocketRights::default()).unwrap_err().to_string();
        assert!(e.contains(&format!("in use by pid {}", std::process::id())), "{e}");
        // Its process has been killed.
        let dead = dir.path().join("run").join("dead.sock");
        drop(UnixListener::bind(&dead).unwrap());
        let _second = bind(&dead, SocketRights::default()).unwrap();
        UnixStream::connect(&dead).unwrap();
        drop(first);
        assert!(!path.exists());
    }

    #[test]
    fn the_rights_are_set_before_anyone_can_connect() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        for (rights, expected) in [
            (SocketRights::default(), 0o600),
            (SocketRights { mode: 0o666, group: None }, 0o666),
            (SocketRights { mode: 0o660, group: Some(rustix::process::getegid().as_raw()) }, 0o660),
        ] {
            let _socket = private(&path, rights).unwrap();
            assert_eq!(mode(&path), expected);
            assert_eq!(UnixStream::connect(&path).unwrap_err().kind(), ErrorKind::ConnectionRefused);
            fs::remove_file(&path).unwrap();
        }
        if is_root() {
            let rights = SocketRights { mode: 0o660, group: Some(NOBODY) };
            let _bound = bind(&path, rights).unwrap();
            assert_eq!((mode(&path), fs::metadata(&path).unwrap().gid()), (0o660, NOBODY));
        }
    }

    #[test]
    fn a_successors_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let first = bind(&path, SocketRights::default()).unwrap();
        fs::remove_file(&path).unwrap();
        let _second = bind(&path, SocketRights::default()).unwrap();
        drop(first);
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn what_is_no_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notes.txt");
        fs::write(&path, "mine").unwrap();
        assert!(matches!(bind(&path, SocketRights::default()), Err(BindError::NotASocket { .. })));
        assert_eq!(fs::read(&path).unwrap(), b"mine");
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), dir.path().join("link")).unwrap();
        let linked = bind(&dir.path().join("link"), SocketRights::default());
        assert!(matches!(linked, Err(BindError::NotASocket { .. })));
        assert!(!dir.path().join("elsewhere").exists());
    }

    #[test]
    fn a_path_that_is_too_long_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let bound = bind(&dir.path().join("x".repeat(120)), SocketRights::default());
        assert!(matches!(bound, Err(BindError::Io { .. })));
    }

    #[test]
    fn a_directory_in_which_others_replace_sockets_has_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let chmod = |mode| fs::set_permissions(dir.path(), Permissions::from_mode(mode)).unwrap();
        chmod(0o777);
        let e = prepare_directory(&path).unwrap_err();
        assert!(matches!(e, BindError::Unsafe { .. }) && e.to_string().contains("all users"), "{e}");
        for fine in [0o1777, 0o755] {
            chmod(fine);
            prepare_directory(&path).unwrap();
        }
        if is_root() {
            std::os::unix::fs::chown(dir.path(), Some(NOBODY), None).unwrap();
            let e = prepare_directory(&path).unwrap_err();
            assert!(matches!(e, BindError::Unsafe { .. }) && e.to_string().contains("nobody"), "{e}");
        }
    }

    #[test]
    fn who_answers_is_believed_as_root_or_as_ourselves() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let _bound = bind(&path, SocketRights::default()).unwrap();
        let who = peer(&connect(&path, TAKEN_AFTER).unwrap()).unwrap();
        let me = rustix::process::geteuid().as_raw();
        assert_eq!(who, Who { pid: std::process::id(), uid: Some(me) });
        assert!(is_trusted(0, &path) && is_trusted(me, &path) && !is_trusted(NOBODY, &path));
    }
}
