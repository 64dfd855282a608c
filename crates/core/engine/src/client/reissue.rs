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

use forebay_block::{BLOCK_BYTES, DeviceResult, Seq};
use forebay_policy::{AdmissionReason, WritePolicy};

use crate::client::requests::{PartState, Path, Payload, ZERO_BLOCKS_LOGGED_MAX};
use crate::engine::Engine;
use crate::interface::PartKey;
use crate::locks::{BlockRange, Hold};
use crate::map::segments::SlotRef;
use crate::mutation::Mutation;
use crate::wakes::Change;

/// The backing write of a part that goes to the log.
pub(crate) struct Landing {
    range: BlockRange,
    /// It is durable when it ends.
    durable: bool,
    /// Versions that the log has of it, with their records.
    logged: Vec<(SlotRef, Seq)>,
}

/// Most writes that may land at a time; further bypasses are not reissued (P7).
const LANDINGS_MAX: usize = 256;

impl Engine {
    /// Somebody waits for outstanding bypasses of these bytes: each of them that can goes to the log. A hint (P8): it may
    /// come at any time, for any bytes, and changes no data.
    pub(crate) fn promote(&mut self, offset: u64, len: u64) {
        if len == 0 {
            return;
        }
        let end = offset.saturating_add(len);
        let touched = |range: BlockRange| {
            range.first.offset() < end && range.end().saturating_mul(BLOCK_BYTES) > offset
        };
        let bypasses = self.requests.parts.iter().filter(|(_, p)| p.path == Path::Bypass && touched(p.range));
        let mut keys: Vec<PartKey> = bypasses.map(|(key, _)| *key).collect();
        self.requests.are_awaited(&keys);
        let wanted = !keys.is_empty()
            && self.settings.admission.reissues()
            && self.settings.write_policy != WritePolicy::WriteThrough
            && !self.failure.latched();
        if wanted {
            let mut spare = [false, true].map(|sync| self.reissue_spare(sync));
            keys.retain(|key| {
                let Some((blocks, sync)) = self.requests.parts.get(key).map(|p| (p.range.count, p.sync))
                else {
                    return false;
                };
                let reissued = blocks <= spare[usize::from(sync)] && self.reissue(*key);
                if reissued {
                    spare = spare.map(|left| left.saturating_sub(blocks));
                }
                !reissued
            });
        }
        // What has gone to the log is waited for there, whatever of it is still at the backing.
        self.backing_promote(&keys);
    }

    /// Blocks that the log takes of what is only awaited, issued synchronously or not. Writes that are waited for in their own right will
    /// want as much as they took lately. What was issued synchronously is one of them; the rest leaves them that in all of what the log has to spare. Where
    /// an order is kept a bypass has all before it to wait for, and others for it, so that no more is held back from it than from those.
    pub(crate) fn reissue_spare(&self, sync: bool) -> u64 {
        if !self.log_has_room() {
            return 0;
        }
        let lately = self.demand.lately(self.now.0);
        let held_back = if sync || self.order.keeps_versions() { 0 } else { lately };
        self.destage_pressure().blocks_to_spare(lately).saturating_sub(self.log.entering() + held_back)
    }

    /// False if it stays a bypass.
    fn reissue(&mut self, key: PartKey) -> bool {
        let Some(part) = self.requests.parts.get_mut(&key) else {
            return false;
        };
        let request = part.request;
        let long = part.range.count > ZERO_BLOCKS_LOGGED_MAX;
        if !part.reissuable || long && matches!(part.payload, Payload::Zero { .. }) {
            return false;
        }
        if self.planted.is(Mutation::ReissueForgetsDependence) {
            part.after = Seq(0);
        }
        let state = part.state;
        let withdrawn = state == PartState::BypassWriting && self.backing_withdraw(key);
        let Some(part) = self.requests.parts.get_mut(&key) else {
            return false;
        };
        match state {
            PartState::Waiting => {
                part.path = Path::Log;
                self.wakes.raise(Change::Turned);
            }
            // Once its base is read it goes on to the log, which takes its locks as they are.
            PartState::ReadingBase { .. } => part.path = Path::Log,
            PartState::BypassWriting if withdrawn => {
                part.path = Path::Log;
                self.part_append(key);
            }
            PartState::BypassWriting if self.requests.landings.len() < LANDINGS_MAX => {
                part.path = Path::Log;
                let (range, hold) = (part.range, part.hold);
                let durable = part.written_durably && matches!(part.payload, Payload::Data { .. });
                self.land_apart(key, range, hold);
                self.requests.landings.insert(key, Landing { range, durable, logged: Vec::new() });
                if self.mutant(Mutation::ReissueSkipsLog) {
                    self.part_finish(key, None);
                } else {
                    self.part_append(key);
                }
            }
            // It is on the backing, or nearly.
            _ => return false,
        }
        if let Some(part) = self.requests.parts.get_mut(&key) {
            // Its record in the log is that of a write.
            part.supersedes = false;
        }
        self.request_turned(request, AdmissionReason::Reissued);
        true
    }

    /// The part's backing write keeps its blocks on the backing; the part itself writes them to the log.
    fn land_apart(&mut self, key: PartKey, range: BlockRange, hold: Hold) {
        self.release(range, hold);
        if !self.mutant(Mutation::ReissueUnlocksBacking) {
            assert!(self.locks.try_take(range, Hold::Backing), "what was held alone can be held in part");
        }
        assert!(self.locks.try_take(range, Hold::LogWrite), "what was held alone can be shared");
        if let Some(part) = self.requests.parts.get_mut(&key) {
            part.hold = Hold::LogWrite;
        }
    }

    /// The log has a piece of the part, in these slots of a record.
    pub(crate) fn landing_is_logged(&mut self, key: PartKey, seq: Seq, (first, count): (SlotRef, u32)) {
        if let Some(landing) = self.requests.landings.get_mut(&key) {
            landing.logged.extend((0..count).map(|n| (SlotRef(first.0 + n), seq)));
        }
    }

    /// The backing write of a reissued part has ended; false if the write is none of these.
    pub(crate) fn landed(&mut self, key: PartKey, result: &DeviceResult) -> bool {
        let Some(Landing { range, durable, logged }) = self.requests.landings.remove(&key) else {
            return false;
        };
        self.figures.backing_errors += u64::from(result.is_err());
        // Where the log has no version of it yet, a clean copy of an older one is not what the backing holds.
        self.forget_clean(range);
        self.destage_void(range);
        if !self.mutant(Mutation::ReissueUnlocksBacking) {
            self.release(range, Hold::Backing);
        }
        if result.is_ok() && durable && !self.order.keeps_versions() {
            let logged = match self.mutant(Mutation::LandingCleansNewer) {
                true => self.current_in(range).map(|slot| (slot, self.map.segments.seq(slot))).collect(),
                false => logged,
            };
            logged.into_iter().for_each(|(slot, seq)| self.destage_landed(slot, seq));
        }
        self.part_landed(key);
        true
    }
}
