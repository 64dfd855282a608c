//! How the bytes of a connection travel: in the clear, or under TLS.

use std::io::{self, IoSlice};
use std::sync::Arc;

use crate::socket::Socket;
use crate::tls::TlsSession;

/// One connection's way to its client, shared by its reader and its writer.
#[derive(Clone)]
pub(crate) enum Transport {
    /// In the clear.
    Plain(Arc<Socket>),
    /// Under TLS.
    Tls(Arc<TlsSession>),
}

impl Transport {
    pub(crate) fn socket(&self) -> &Arc<Socket> {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(session) => session.socket(),
        }
    }

    pub(crate) const fn is_secure(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Sends all of `slices`, waiting until the socket has taken them. Not for two threads at a time.
    pub(crate) fn send_all(&self, slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.send_all(slices),
            Self::Tls(session) => session.send_all(slices),
        }
    }

    /// Says goodbye where the transport knows how to; the client may be gone already.
    pub(crate) fn say_goodbye(&self) {
        if let Self::Tls(session) = self {
            session.send_close_notify();
        }
    }
}
