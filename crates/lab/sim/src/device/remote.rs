//! What a store behind a network adds: writes of unknown outcome, and an owner that is fenced.
//!
//! A write that has ended because no answer came in time may be carried out later, while reads and flushes of the raw store go on. What
//! stands between the store and the engine promises more (`docs/design/takeover.md`):
//!
//! - a later write of the same block comes after it, or it never comes;
//! - who reads the block waits until its outcome is known, or gets an error;
//! - no flush succeeds before that;
//! - when the session ends, with the process or because another host has taken over, it has been carried out, or never is.

use forebay_block::{BLOCK_BYTES, Buf, DeviceOp, DeviceResult, ErrorKind, IoError};

use super::{Device, Harm};
use crate::media::Data;

/// Of a hundred operations that end, so many let a write of unknown outcome come to pass.
const LANDS_PERCENT: u64 = 15;

/// What is promised; the simulator's tests plant bugs in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// A later write of the same block is later.
    pub orders: bool,
    /// Nobody reads what may still change.
    pub waits: bool,
    /// Flushes fail while an outcome is unknown. Else one that succeeds is taken for the end of all of them.
    pub flushes: bool,
    /// Nothing comes to pass after the end of its session.
    pub ends: bool,
}

impl Default for Promise {
    fn default() -> Self {
        Self { orders: true, waits: true, flushes: true, ends: true }
    }
}

/// A block whose write may still come to pass.
#[derive(Clone)]
pub(super) struct Unknown {
    offset: u64,
    data: Data,
    /// The device has taken it for over.
    is_forgotten: bool,
}

impl Unknown {
    fn touches(&self, offset: u64, len: usize) -> bool {
        !self.is_forgotten
            && self.offset < offset + len as u64
            && offset < self.offset + self.data.len() as u64
    }
}

/// See the module's documentation.
#[derive(Clone, Default)]
pub(super) struct Remote {
    promise: Promise,
    /// Oldest first.
    unknown: Vec<Unknown>,
    is_fenced: bool,
}

impl Remote {
    /// The device is a new one, of the same kind.
    pub(super) fn reset(&mut self) {
        *self = Self { promise: self.promise, ..Self::default() };
    }
}

fn refused() -> (DeviceResult, Harm) {
    (Err(IoError::new(ErrorKind::Fenced, "simulated store of another host")), Harm::default())
}

impl Device {
    /// From now on it promises this.
    pub fn promises(&mut self, promise: Promise) {
        self.remote.promise = promise;
    }

    /// Whether another host has taken it over, and not begun.
    pub fn is_fenced(&self) -> bool {
        self.remote.is_fenced
    }

    /// A write has ended, and may come to pass later, each of its blocks by itself.
    pub(super) fn forget_outcome(&mut self, offset: u64, data: &Data) {
        self.supersede_unknown(offset, data.len());
        let flat = data.flat();
        for (at, block) in (offset..).step_by(BLOCK_BYTES as usize).zip(flat.chunks(BLOCK_BYTES as usize)) {
            let data = Data::Bufs(vec![Buf::copy_of(block)]);
            self.remote.unknown.push(Unknown { offset: at, data, is_forgotten: false });
        }
    }

    fn land(&mut self, unknown: Unknown) {
        self.media.write(unknown.offset, unknown.data, false);
    }

    /// Now or never, each by itself.
    fn settle(&mut self, unknown: Vec<Unknown>) {
        for unknown in unknown {
            if self.random.percent(50) {
                self.land(unknown);
            }
        }
    }

    /// Something else ends: what is still unknown may have come to pass before.
    pub(super) fn let_unknown_land(&mut self) {
        if self.remote.unknown.is_empty() || self.remote.is_fenced {
            return;
        }
        let random = &mut self.random;
        let lands: Vec<Unknown> =
            self.remote.unknown.extract_if(.., |_| random.percent(LANDS_PERCENT)).collect();
        lands.into_iter().for_each(|unknown| self.land(unknown));
    }

    /// Whether the outcome of a write of these bytes is unknown, and known to be.
    pub fn is_unknown(&self, offset: u64, len: usize) -> bool {
        self.remote.promise.waits && self.remote.unknown.iter().any(|unknown| unknown.touches(offset, len))
    }

    fn await_outcome(&mut self, offset: u64, len: usize) {
        let older: Vec<Unknown> =
            self.remote.unknown.extract_if(.., |unknown| unknown.touches(offset, len)).collect();
        self.settle(older);
    }

    /// These bytes are written anew.
    pub(super) fn supersede_unknown(&mut self, offset: u64, len: usize) {
        if self.remote.promise.orders {
            self.await_outcome(offset, len);
        }
    }

    /// Whether a read fails because what it reads may still change. If not, it does not change any more.
    pub(super) fn keeps_read_from_guessing(&mut self, offset: u64, len: usize) -> bool {
        if !self.is_unknown(offset, len) {
            return false;
        }
        let fails = self.random.percent(30);
        if !fails {
            self.await_outcome(offset, len);
        }
        fails
    }

    /// Whether a flush fails because an outcome is unknown. Then the session may be ended for the sake of the next one.
    pub(super) fn keeps_flush_from_lying(&mut self) -> bool {
        if self.remote.promise.flushes {
            let fails = !self.remote.unknown.is_empty();
            if fails && self.random.percent(50) {
                self.end_session();
            }
            return fails;
        }
        self.remote.unknown.iter_mut().for_each(|unknown| unknown.is_forgotten = true);
        false
    }

    /// The session is ended, and another one begins.
    pub fn end_session(&mut self) {
        let unknown = std::mem::take(&mut self.remote.unknown);
        self.settle(unknown);
    }

    /// The process dies, and its session with it: what may still come to pass, as what is in flight.
    pub(super) fn unknown_at_death(&mut self) -> Vec<(u64, Data)> {
        if !self.remote.promise.ends {
            return Vec::new();
        }
        let unknown = std::mem::take(&mut self.remote.unknown);
        unknown.into_iter().map(|unknown| (unknown.offset, unknown.data)).collect()
    }

    /// The answer to what is asked of it now, if another host has taken it over.
    pub(super) fn refusal(&self) -> Option<(DeviceResult, Harm)> {
        self.remote.is_fenced.then(refused)
    }

    /// Another host takes it over: what is under way is carried out now or never, and its answer may be lost.
    pub fn fence(&mut self) {
        if self.remote.is_fenced {
            return;
        }
        for mut io in std::mem::take(&mut self.in_flight) {
            let carried_out = self.random.percent(50).then(|| self.outcome(io.clone()));
            io.fenced = match (carried_out, &io.op) {
                (Some(outcome), _) if self.random.percent(50) => Some(outcome),
                (None, DeviceOp::Write { offset, bufs, .. }) if !self.remote.promise.ends => {
                    self.forget_outcome(*offset, &Data::Bufs(bufs.clone()));
                    Some(refused())
                }
                _ => Some(refused()),
            };
            self.in_flight.push(io);
        }
        self.remote.is_fenced = true;
        if self.remote.promise.ends {
            self.end_session();
        }
    }

    /// The other host begins.
    pub fn begin_anew(&mut self) {
        self.remote.is_fenced = false;
        self.media.forgive();
        self.media.flush(self.media.flush_mark());
    }
}
