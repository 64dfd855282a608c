//! What a client sends, read in the sizes that the protocol's messages have.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_block::words_of;
use thiserror::Error;

use crate::socket::Socket;
use crate::tls::TlsInput;
use crate::transport::Transport;

/// Bytes that are read ahead on the volume's thread. A small write arrives with its header, and with others, in one system call and is
/// copied out of the window, which costs less than a second call.
const WINDOW_BYTES: usize = 64 * 1024;

/// Bytes that the connection's own thread reads ahead: of a large write, at most this much is copied. The window has no more room
/// until the volume's thread reads, which it does for few.
const OWN_WINDOW_BYTES: usize = 16 * 1024;

/// Longest data of a write that the volume's thread reads. To copy more of it takes longer than to hand it over, and another thread does
/// that beside the volume's.
const QUICK_BYTES_MAX: u32 = 8 * 1024;

/// Why a message could not be read.
#[derive(Debug, Error)]
pub(crate) enum InputError {
    /// The client closed its side between two messages.
    #[error("end of stream")]
    Closed,
    /// The client closed its side within a message.
    #[error("connection closed within a message")]
    Truncated,
    /// The handshake's time is over.
    #[error("handshake took too long")]
    TimedOut,
    /// The client has begun a request and does not go on with it.
    #[error("nothing more came of a request for too long")]
    Stalled,
    /// The socket failed.
    #[error("{}", words_of(.0))]
    Io(io::Error),
}

impl From<io::Error> for InputError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // The kernel reports a timeout of the socket as "would block".
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::TimedOut,
            io::ErrorKind::UnexpectedEof => Self::Truncated,
            _ => Self::Io(error),
        }
    }
}

enum Source {
    Plain(Transport),
    Tls(Box<TlsInput>),
}

/// The reading side of a connection.
pub(crate) struct Input {
    source: Source,
    window: Box<[u8]>,
    start: usize,
    end: usize,
    /// Bytes that have come so far.
    received: u64,
    /// What went wrong when nobody waited.
    failed: Option<io::Error>,
    deadline: Option<Instant>,
}

impl Input {
    /// Reads from `transport`; until [`Input::without_deadline`], only until `deadline`.
    pub(crate) fn new(transport: Transport, deadline: Instant) -> Self {
        let source = match transport {
            Transport::Tls(session) => Source::Tls(Box::new(TlsInput::new(session))),
            plain @ Transport::Plain(_) => Source::Plain(plain),
        };
        let window = vec![0; OWN_WINDOW_BYTES].into_boxed_slice();
        Self { source, window, start: 0, end: 0, received: 0, failed: None, deadline: Some(deadline) }
    }

    /// From now on a client may be idle as long as it likes, but a read or write that it keeps waiting in between ends after
    /// `wait` without a byte.
    pub(crate) fn without_deadline(&mut self, wait: Duration) -> Result<(), InputError> {
        self.deadline = None;
        Ok(self.socket().limit_each_wait(wait)?)
    }

    pub(crate) fn socket(&self) -> &Arc<Socket> {
        match &self.source {
            Source::Plain(transport) => transport.socket(),
            Source::Tls(input) => input.socket(),
        }
    }

    /// Reads at least one byte into `dst`, or says that the stream ended with 0.
    fn receive(source: &mut Source, dst: &mut [u8]) -> Result<usize, InputError> {
        Ok(match source {
            Source::Plain(transport) => transport.socket().receive(dst)?,
            Source::Tls(input) => input.receive(dst)?,
        })
    }

    /// Fills `dst` and reads nothing beyond it.
    pub(crate) fn exact(&mut self, dst: &mut [u8]) -> Result<(), InputError> {
        let buffered = dst.len().min(self.end - self.start);
        dst[..buffered].copy_from_slice(&self.window[self.start..self.start + buffered]);
        self.start += buffered;
        let mut filled = buffered;
        while filled < dst.len() {
            if let Some(deadline) = self.deadline {
                self.socket().limit_waits(deadline)?;
            }
            match Self::receive(&mut self.source, &mut dst[filled..]).map_err(|e| self.stalled(e))? {
                0 if filled == 0 => return Err(InputError::Closed),
                0 => return Err(InputError::Truncated),
                n => filled += n,
            }
        }
        Ok(())
    }

    /// During the handshake a wait ends because that took too long, and afterwards because a client does not go on.
    fn stalled(&self, error: InputError) -> InputError {
        match error {
            InputError::TimedOut if self.deadline.is_none() => InputError::Stalled,
            error => error,
        }
    }

    /// The next `N` bytes; what has arrived behind them is read as well and kept.
    pub(crate) fn header<const N: usize>(&mut self) -> Result<[u8; N], InputError> {
        while self.end - self.start < N {
            if self.start == self.end {
                (self.start, self.end) = (0, 0);
            } else if self.window.len() - self.start < N {
                self.window.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
            }
            if let Some(error) = self.failed.take() {
                return Err(error.into());
            }
            let end = self.window.len().min(self.start + OWN_WINDOW_BYTES).max(self.end + 1);
            match Self::receive(&mut self.source, &mut self.window[self.end..end]) {
                // It is idle.
                Err(InputError::TimedOut) if self.start == self.end => {}
                Err(error) => return Err(self.stalled(error)),
                Ok(0) if self.start == self.end => return Err(InputError::Closed),
                Ok(0) => return Err(InputError::Truncated),
                Ok(n) => self.end += n,
            }
        }
        let mut header = [0; N];
        header.copy_from_slice(&self.window[self.start..self.start + N]);
        self.start += N;
        Ok(header)
    }

    /// Whether it can be known that something has come without waiting for it.
    pub(crate) const fn can_be_polled(&self) -> bool {
        matches!(self.source, Source::Plain(_))
    }

    /// Whether data of this length may be read ahead as a whole.
    pub(crate) const fn reads_ahead(len: u32) -> bool {
        len <= QUICK_BYTES_MAX
    }

    /// What has been read ahead.
    pub(crate) fn ahead(&self) -> &[u8] {
        &self.window[self.start..self.end]
    }

    /// Takes `len` bytes of what has been read ahead.
    pub(crate) fn consume(&mut self, len: usize) {
        self.start += len;
    }

    /// Whether a message has been read in part.
    pub(crate) const fn has_part(&self) -> bool {
        self.start < self.end
    }

    /// Bytes that have come so far by [`Input::read_now`].
    pub(crate) const fn received(&self) -> u64 {
        self.received
    }

    /// Reads ahead what there is, without waiting; says whether there may be more than the window takes. An error, or the end of the stream, is
    /// found by who reads next.
    pub(crate) fn read_now(&mut self) -> Result<bool, ()> {
        if self.window.len() < WINDOW_BYTES {
            let mut wider = vec![0; WINDOW_BYTES].into_boxed_slice();
            wider[self.start..self.end].copy_from_slice(&self.window[self.start..self.end]);
            self.window = wider;
        }
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > self.window.len() / 2 {
            self.window.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        match self.socket().clone().receive_now(&mut self.window[self.end..]) {
            Ok(0) => Err(()),
            Ok(n) => {
                self.end += n;
                self.received += n as u64;
                Ok(self.end == self.window.len())
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(e) => {
                self.failed = Some(e);
                Err(())
            }
        }
    }

    /// Reads `len` bytes and forgets them.
    pub(crate) fn skip(&mut self, mut len: usize) -> Result<(), InputError> {
        let mut scratch = [0; 4096];
        while len > 0 {
            let part = len.min(scratch.len());
            self.exact(&mut scratch[..part])?;
            len -= part;
        }
        Ok(())
    }
}
