//! Where a connection's thread leaves its reader with the volume's thread, and gets it back.
//!
//! ```text
//!  connection's thread:  run ─► lend ······ sleeps ······ ─► run
//!                                │                         ▲ leaves, volume ends, stop, nothing more comes of a request
//!  volume's thread:              └─► fetch, fetch, fetch ──┘
//! ```

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use forebay_block::{Feed, Fetched};

use crate::lock::hold;
use crate::reader::Reader;
use crate::socket::Socket;

#[derive(Default)]
enum Holder {
    /// The connection's thread has it.
    #[default]
    Thread,
    /// The volume's thread takes requests.
    Volume(Box<Reader>),
    /// It has left the volume's thread.
    Back(Box<Reader>),
    /// The volume's thread has panicked in it.
    Lost,
}

#[derive(Default)]
struct State {
    holder: Holder,
    /// How often it was lent: an earlier feed has nothing to do with it any more.
    lent: u64,
    /// The connection ends: it is not lent any more.
    recalled: bool,
}

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Desk {
    state: Mutex<State>,
    changed: Condvar,
}

impl Desk {
    /// Leaves the reader with the volume, and sleeps until it is back; `None` if the volume's thread has panicked in it. One that stops
    /// within a request for a quarter of `patience` comes back as well: its own thread then waits for the rest, for as long as
    /// the client may take.
    pub(crate) fn lend(self: &Arc<Self>, reader: Box<Reader>, patience: Duration) -> Option<Box<Reader>> {
        let service = Arc::clone(reader.service());
        let mut state = hold(&self.state);
        if state.recalled {
            return Some(reader);
        }
        state.lent += 1;
        let feed =
            LentReader { desk: Arc::clone(self), socket: Arc::clone(reader.socket()), number: state.lent };
        state.holder = Holder::Volume(reader);
        drop(state);
        // One that is not adopted comes back as it is dropped.
        drop(service.adopt(Box::new(feed)));
        let mut state = hold(&self.state);
        let mut stopped_at = None;
        loop {
            match std::mem::take(&mut state.holder) {
                Holder::Back(reader) => return Some(reader),
                Holder::Volume(reader) if state.recalled => return Some(reader),
                Holder::Volume(reader) => state.holder = Holder::Volume(reader),
                Holder::Thread | Holder::Lost => return None,
            }
            let waited = self.changed.wait_timeout(state, patience / 4);
            let (woken, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = woken;
            if let Holder::Volume(reader) = &state.holder
                && timeout.timed_out()
            {
                let stops_at = reader.stops_within_request();
                if stops_at.is_some() && stops_at == stopped_at {
                    state.take_back();
                }
                stopped_at = stops_at;
            }
        }
    }

    /// The connection ends: its thread is to go on now, whatever the volume's thread does.
    pub(crate) fn recall(&self) {
        hold(&self.state).recalled = true;
        self.changed.notify_all();
    }
}

impl State {
    /// The volume's thread has it no more.
    fn take_back(&mut self) {
        self.holder = match std::mem::take(&mut self.holder) {
            Holder::Volume(reader) => Holder::Back(reader),
            other => other,
        };
    }
}

/// A reader as the volume's thread has it.
struct LentReader {
    desk: Arc<Desk>,
    socket: Arc<Socket>,
    number: u64,
}

impl Feed for LentReader {
    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.fd()
    }

    fn fetch(&mut self) -> Fetched {
        let mut state = hold(&self.desk.state);
        let current = state.lent == self.number;
        match &mut state.holder {
            Holder::Volume(reader) if current => reader.fetch(),
            _ => Fetched::Leaves,
        }
    }
}

impl Drop for LentReader {
    fn drop(&mut self) {
        let panicked = self.desk.state.is_poisoned();
        let mut state = hold(&self.desk.state);
        if state.lent != self.number {
            return;
        }
        match &state.holder {
            Holder::Volume(_) if panicked => state.holder = Holder::Lost,
            _ => state.take_back(),
        }
        drop(state);
        self.desk.changed.notify_all();
    }
}
