//! Listening sockets: opening, accepting, and giving up a unix socket's path.

use std::io;
use std::net::{TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use forebay_guard::{BindError, Bound, SocketRights, bind};
use rustix::net::Shutdown;

use crate::address::Address;
use crate::server::ServerError;
use crate::socket::Socket;

/// A socket that clients connect to.
pub(crate) enum Listener {
    Unix(Bound),
    Tcp(TcpListener),
}

impl Listener {
    /// Opens the sockets of an address: one for a unix socket, one for each address of a TCP host.
    pub(crate) fn open(address: &Address, rights: SocketRights) -> Result<Vec<Self>, ServerError> {
        match address {
            Address::Unix(path) => open_unix(address, path, rights).map(|l| vec![l]),
            Address::Tcp { host, port } => open_tcp(address, host, *port),
        }
    }

    /// Where it listens, with the port that the kernel chose.
    pub(crate) fn address(&self) -> Option<Address> {
        match self {
            Self::Unix(bound) => Some(Address::Unix(bound.path().to_owned())),
            Self::Tcp(socket) => {
                let bound = socket.local_addr().ok()?;
                Some(Address::Tcp { host: bound.ip().to_string(), port: bound.port() })
            }
        }
    }

    /// From now on [`Listener::accept`] does not wait.
    pub(crate) fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Self::Unix(bound) => bound.listener().set_nonblocking(true),
            Self::Tcp(socket) => socket.set_nonblocking(true),
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(bound) => bound.listener().as_fd(),
            Self::Tcp(socket) => socket.as_fd(),
        }
    }

    pub(crate) fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Unix(bound) => bound.listener().accept().map(|(stream, _)| Socket::unix(stream)),
            // What is wrong with one that has come is its own: it has gone again.
            Self::Tcp(socket) => socket.accept().and_then(|(stream, peer)| {
                Socket::tcp(stream, peer).map_err(|_| io::ErrorKind::ConnectionAborted.into())
            }),
        }
    }

    /// Stops listening and wakes the thread that accepts; gives up a unix socket's path if it is still ours.
    pub(crate) fn close(&self) {
        let _ = rustix::net::shutdown(self.fd(), Shutdown::Both);
        if let Self::Unix(bound) = self {
            bound.remove();
        }
    }
}

fn open_tcp(address: &Address, host: &str, port: u16) -> Result<Vec<Listener>, ServerError> {
    let failed = |source| ServerError::Bind { address: address.clone(), source };
    let mut opened = Vec::new();
    let mut missing = None;
    for resolved in (host, port).to_socket_addrs().map_err(failed)? {
        match TcpListener::bind(resolved) {
            Ok(socket) => opened.push(Listener::Tcp(socket)),
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
                return Err(ServerError::InUse {
                    address: address.clone(),
                    holder: "another server".to_owned(),
                });
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

/// Binds a unix socket for those who have these rights; see [`bind`].
fn open_unix(address: &Address, path: &Path, rights: SocketRights) -> Result<Listener, ServerError> {
    let failed = |source| ServerError::Bind { address: address.clone(), source };
    bind(path, rights).map(Listener::Unix).map_err(|e| match e {
        BindError::InUse { holder, .. } => ServerError::InUse { address: address.clone(), holder },
        BindError::NotASocket { path } => ServerError::NotASocket { path },
        BindError::Io { source, .. } => failed(source),
        kept @ (BindError::Turn(_) | BindError::Unsafe { .. }) => {
            ServerError::Kept { reason: kept.to_string() }
        }
    })
}
