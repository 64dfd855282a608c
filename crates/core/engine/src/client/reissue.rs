//! Reissue (I/O inheritance; ATC'15, section 4.3): an outstanding bypass that somebody comes to wait for is appended to
//! the log and acknowledged from there.
//!
//! ```text
//!  waiting for locks, its turn, or the backing ──► goes to the log instead
//!  being written to the backing ──┬► the part: appended to the log, acknowledged when it is there
//!                                 └► its backing write: *lands* alone, its outcome counts for nothing any more;
//!                                    if the log fails the part, its error is answered after that
//! ```
//!
//! Never two backing writes of one block in flight (hazard 4): what lands holds its blocks on the backing until it has,
//! so a destage of the version in the log, or a newer bypass, waits for it and is not overwritten by it. What lands durably
//! after the log has it need not be destaged again: that version is clean, if no policy keeps an order. Otherwise the log's version is
//! dirty whatever became of the landing write.

use forebay_block::{BLOCK_BYTES, Seq};
use forebay_policy::AdmissionReason;

use crate::client::cut::ZERO_BLOCKS_LOGGED_MAX;
use crate::client::parts::{PartState, Path, Payload};
use crate::client::requests::{Answered, Requests};
use crate::interface::PartKey;
use crate::locks::{BlockRange, Hold, Locks};
use crate::map::segments::SlotRef;
use crate::mutation::Mutation;

/// Most writes that may land at a time; further bypasses are not reissued (P7).
const LANDINGS_MAX: usize = 256;

/// The backing write of a part that goes to the log.
pub(crate) struct Landing {
    pub(crate) range: BlockRange,
    /// It is durable when it ends.
    pub(crate) durable: bool,
    /// Versions that the log has of it, with their records.
    pub(crate) logged: Vec<(SlotRef, Seq)>,
}

/// A bypass that may be reissued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reissuable {
    pub(crate) blocks: u64,
    /// Its issuer waits for it.
    pub(crate) sync: bool,
    /// It is being written to the backing, or waits for that there.
    pub(crate) is_at_backing: bool,
}

/// What is to be done for a part that was reissued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reissued {
    /// It waits as before, and may start now.
    Waits,
    /// Once its base is read it goes on to the log.
    ReadsBase,
    /// It goes to the log now.
    GoesOn,
    /// It goes to the log now, and its backing write lands apart.
    Lands,
}

impl Requests {
    /// Somebody waits for what touches these bytes, whichever way it goes. The bypasses among it.
    pub(crate) fn promote(&mut self, offset: u64, len: u64) -> Vec<PartKey> {
        let end = offset.saturating_add(len);
        let touched = |range: BlockRange| {
            range.first.offset() < end && range.end().saturating_mul(BLOCK_BYTES) > offset
        };
        let touched = self.parts.iter().filter(|(_, part)| touched(part.range));
        let mut keys: Vec<PartKey> = touched.map(|(key, _)| *key).collect();
        self.are_awaited(&keys);
        keys.retain(|key| self.parts.get(key).is_some_and(|part| part.path == Path::Bypass));
        keys
    }

    /// How the bypass can be reissued; `None` if it cannot.
    pub(crate) fn reissuable(&self, key: PartKey) -> Option<Reissuable> {
        let part = self.parts.get(&key)?;
        let long = part.range.count > ZERO_BLOCKS_LOGGED_MAX;
        if !part.reissuable || long && matches!(part.payload, Payload::Zero { .. }) {
            return None;
        }
        let is_at_backing = part.state == PartState::BypassWriting;
        Some(Reissuable { blocks: part.range.count, sync: part.issuer.sync, is_at_backing })
    }

    /// The bypass goes to the log; `withdrawn` says that its write to the backing had not begun and will not. `None` if it stays a
    /// bypass: it is on the backing, or nearly.
    pub(crate) fn reissue(&mut self, key: PartKey, withdrawn: bool, locks: &mut Locks) -> Option<Reissued> {
        let planted = self.planted;
        let may_land = self.landings.len() < LANDINGS_MAX;
        let part = self.parts.get_mut(&key)?;
        if planted.is(Mutation::ReissueForgetsDependence) {
            part.after = Seq(0);
        }
        let reissued = match part.state {
            PartState::Waiting => Reissued::Waits,
            // Once its base is read it goes on to the log, which takes its locks as they are.
            PartState::ReadingBase { .. } => Reissued::ReadsBase,
            PartState::BypassWriting if withdrawn => Reissued::GoesOn,
            PartState::BypassWriting if may_land => {
                // The backing write keeps the blocks on the backing; the part itself writes them to the log.
                locks.release(part.range, part.hold);
                if !planted.is(Mutation::ReissueUnlocksBacking) {
                    let kept = locks.try_take(part.range, Hold::Backing);
                    assert!(kept, "what was held alone can be held in part");
                }
                assert!(locks.try_take(part.range, Hold::LogWrite), "what was held alone can be shared");
                part.hold = Hold::LogWrite;
                let durable = part.written_durably && matches!(part.payload, Payload::Data { .. });
                self.landings.insert(key, Landing { range: part.range, durable, logged: Vec::new() });
                Reissued::Lands
            }
            _ => return None,
        };
        // Its record in the log is that of a write.
        part.supersedes = false;
        self.turn(key, Path::Log, AdmissionReason::Reissued);
        Some(reissued)
    }

    /// The part's backing write lands apart from it.
    pub(super) fn is_landing(&self, key: PartKey) -> bool {
        self.landings.contains_key(&key)
    }

    /// The log has a piece of the part, in these slots of a record.
    pub(crate) fn landing_is_logged(&mut self, key: PartKey, seq: Seq, (first, count): (SlotRef, u32)) {
        if let Some(landing) = self.landings.get_mut(&key) {
            landing.logged.extend((0..count).map(|n| (SlotRef(first.0 + n), seq)));
        }
    }

    /// The backing write of a reissued part has ended; `None` if the write is none of these.
    pub(crate) fn landed(&mut self, key: PartKey) -> Option<Landing> {
        self.landings.remove(&key)
    }

    /// The write to the backing has landed: a failed part that was waiting for it ends.
    pub(crate) fn ends_landed(&mut self, key: PartKey) -> Option<Answered> {
        let part = self.parts.get_mut(&key).filter(|part| part.state == PartState::Landing)?;
        let error = part.error.take();
        self.end(key, error)
    }
}
