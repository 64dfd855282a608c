//! Listening sockets: opening, accepting, and giving up a unix socket's path.

use std::fs::{self, File, TryLockError};
use std::io;
use std::net::{TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};

use crate::address::Address;
use crate::server::ServerError;
use crate::socket::Socket;

/// How long another program may hold the lock of a socket's directory.
const LOCK_WAIT: Duration = Duration::from_secs(2);

/// A socket that clients connect to.
pub(crate) enum Listener {
    Unix {
        socket: UnixListener,
        path: PathBuf,
        /// Device and inode of the path, to know it again: it may be another server's by the time of closing.
        identity: Option<(u64, u64)>,
    },
    Tcp(TcpListener),
}

impl Listener {
    /// Opens the sockets of an address: one for a unix socket, one for each address of a TCP host.
    pub(crate) fn open(address: &Address) -> Result<Vec<Self>, ServerError> {
        match address {
            Address::Unix(path) => open_unix(address, path).map(|l| vec![l]),
            Address::Tcp { host, port } => open_tcp(address, host, *port),
        }
    }

    /// Where it listens, with the port that the kernel chose.
    pub(crate) fn address(&self) -> Option<Address> {
        match self {
            Self::Unix { path, .. } => Some(Address::Unix(path.clone())),
            Self::Tcp(socket) => {
                let bound = socket.local_addr().ok()?;
                Some(Address::Tcp { host: bound.ip().to_string(), port: bound.port() })
            }
        }
    }

    /// From now on [`Listener::accept`] does not wait.
    pub(crate) fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Self::Unix { socket, .. } => socket.set_nonblocking(true),
            Self::Tcp(socket) => socket.set_nonblocking(true),
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix { socket, .. } => socket.as_fd(),
            Self::Tcp(socket) => socket.as_fd(),
        }
    }

    pub(crate) fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Unix { socket, .. } => socket.accept().map(|(stream, _)| Socket::unix(stream)),
            Self::Tcp(socket) => socket.accept().and_then(|(stream, _)| Socket::tcp(stream)),
        }
    }

    /// Stops listening and wakes the thread that accepts; gives up a unix socket's path if it is still ours.
    pub(crate) fn close(&self) {
        let _ = rustix::net::shutdown(self.fd(), Shutdown::Both);
        if let Self::Unix { path, identity: Some(identity), .. } = self
            && identity_of(path) == Some(*identity)
        {
            let _ = fs::remove_file(path);
        }
    }
}

fn identity_of(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|m| (m.dev(), m.ino()))
}

fn open_tcp(address: &Address, host: &str, port: u16) -> Result<Vec<Listener>, ServerError> {
    let failed = |source| ServerError::Bind { address: address.clone(), source };
    let mut opened = Vec::new();
    let mut missing = None;
    for resolved in (host, port).to_socket_addrs().map_err(failed)? {
        match TcpListener::bind(resolved) {
            Ok(socket) => opened.push(Listener::Tcp(socket)),
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
                return Err(ServerError::InUse { address: address.clone() });
            }
            // A name may resolve to a protocol that this machine lacks; one address that works is enough.
            Err(e) => missing = Some(e),
        }
    }
    match missing {
        Some(error) if opened.is_empty() => Err(failed(error)),
        _ if opened.is_empty() => Err(failed(io::ErrorKind::AddrNotAvailable.into())),
        _ => Ok(opened),
    }
}

/// Binds a unix socket. A path that a dead server left behind is replaced; the directory is locked meanwhile, so that
/// of two servers that find the same dead one, the second does not remove the first one's socket.
fn open_unix(address: &Address, path: &Path) -> Result<Listener, ServerError> {
    let failed = |source| ServerError::Bind { address: address.clone(), source };
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let lock = File::open(directory).map_err(failed)?;
    lock_within(&lock, LOCK_WAIT).map_err(failed)?;
    let socket = match UnixListener::bind(path) {
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
            let is_socket = fs::symlink_metadata(path).map_err(failed)?.file_type().is_socket();
            if !is_socket {
                return Err(ServerError::NotASocket { path: path.to_owned() });
            }
            if is_live(path).map_err(failed)? {
                return Err(ServerError::InUse { address: address.clone() });
            }
            fs::remove_file(path).map_err(failed)?;
            UnixListener::bind(path).map_err(failed)?
        }
        other => other.map_err(failed)?,
    };
    Ok(Listener::Unix { socket, path: path.to_owned(), identity: identity_of(path) })
}

fn lock_within(file: &File, wait: Duration) -> io::Result<()> {
    let deadline = Instant::now() + wait;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(10))
            }
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "another program keeps the directory locked",
                ));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// Whether a server listens on the socket at `path`; one whose queue of connections is full does.
fn is_live(path: &Path) -> io::Result<bool> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&probe, &SocketAddrUnix::new(path)?) {
        Ok(()) | Err(Errno::AGAIN) => Ok(true),
        Err(Errno::CONNREFUSED) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
