//! A connected stream socket: blocking reads, writes that block or not as the caller chooses.

use std::io::{self, IoSlice};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, sockopt};

use crate::places::Source;

/// The socket of a connection. It stays in blocking mode; a write that must not block says so each time, so that
/// reads need no poll in front of them.
pub(crate) struct Socket {
    fd: OwnedFd,
    peer: String,
    peer_pid: u32,
    source: Source,
}

impl Socket {
    /// Takes over a unix socket; its peer's process is known.
    pub(crate) fn unix(stream: UnixStream) -> Self {
        let fd = OwnedFd::from(stream);
        // A peer of which nothing is known shares with others of its kind.
        let (peer_pid, user) = sockopt::socket_peercred(&fd)
            .map_or((0, u32::MAX), |c| (c.pid.as_raw_nonzero().get().cast_unsigned(), c.uid.as_raw()));
        Self { fd, peer: format!("unix client (pid {peer_pid})"), peer_pid, source: Source::User(user) }
    }

    /// Takes over a TCP socket. Replies are sent whole, so that waiting to fill a segment (Nagle) would only delay
    /// them; keep-alive finds clients whose machine is gone.
    pub(crate) fn tcp(stream: TcpStream, peer: SocketAddr) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let fd = OwnedFd::from(stream);
        sockopt::set_socket_keepalive(&fd, true)?;
        Ok(Self { fd, peer: peer.to_string(), peer_pid: 0, source: Source::from(peer.ip()) })
    }

    /// The peer, for a person.
    pub(crate) fn peer(&self) -> &str {
        &self.peer
    }

    /// Where it comes from, as far as shares go.
    pub(crate) const fn source(&self) -> Source {
        self.source
    }

    /// Process at the other end of a unix socket; 0 if unknown.
    pub(crate) const fn peer_pid(&self) -> u32 {
        self.peer_pid
    }

    /// For who waits until there is something to read.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// As [`Socket::receive`]; [`io::ErrorKind::WouldBlock`] if there is nothing now.
    pub(crate) fn receive_now(&self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            match rustix::net::recv(&self.fd, &mut *buf, RecvFlags::DONTWAIT) {
                Err(Errno::INTR) => {}
                other => return other.map(|(n, _)| n).map_err(io::Error::from),
            }
        }
    }

    /// Reads what there is, at least one byte; 0 at the end of the stream.
    pub(crate) fn receive(&self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            match rustix::io::read(&self.fd, &mut *buf) {
                Err(Errno::INTR) => {}
                other => return other.map_err(io::Error::from),
            }
        }
    }

    /// Sends a part of `slices`, at least one byte. Without `wait`, [`io::ErrorKind::WouldBlock`] if the socket can take nothing now.
    pub(crate) fn send(&self, slices: &[IoSlice<'_>], wait: bool) -> io::Result<usize> {
        let mut flags = SendFlags::NOSIGNAL;
        if !wait {
            flags |= SendFlags::DONTWAIT;
        }
        loop {
            match rustix::net::sendmsg(&self.fd, slices, &mut SendAncillaryBuffer::default(), flags) {
                Err(Errno::INTR) => {}
                other => return other.map_err(io::Error::from),
            }
        }
    }

    /// Sends all of `slices`, waiting as long as it takes (or as [`Socket::limit_waits`] says).
    pub(crate) fn send_all(&self, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        IoSlice::advance_slices(&mut slices, 0);
        while !slices.is_empty() {
            let sent = self.send(slices, true)?;
            IoSlice::advance_slices(&mut slices, sent);
        }
        Ok(())
    }

    /// Makes each following read and write fail with [`io::ErrorKind::WouldBlock`] when `deadline` has come.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] if the deadline has passed.
    pub(crate) fn limit_waits(&self, deadline: Instant) -> io::Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        // The kernel takes a zero timeout for "for ever", and cuts off what is below a microsecond.
        if left < Duration::from_micros(1) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.limit_each_wait(left)
    }

    /// Makes each following read and write fail with [`io::ErrorKind::WouldBlock`] when it has waited for so long without a byte.
    pub(crate) fn limit_each_wait(&self, wait: Duration) -> io::Result<()> {
        sockopt::set_socket_timeout(&self.fd, sockopt::Timeout::Recv, Some(wait))?;
        sockopt::set_socket_timeout(&self.fd, sockopt::Timeout::Send, Some(wait))?;
        Ok(())
    }

    /// Ends reading: a blocked read returns the end of the stream. The peer may have gone already.
    pub(crate) fn shut_reading(&self) {
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Read);
    }

    /// Ends reading and writing, waking every thread that waits in either.
    pub(crate) fn shut(&self) {
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Both);
    }
}
