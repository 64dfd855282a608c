//! Bypass: the way of a part that goes to the backing without entering the log.
//!
//! Order of steps, and why (`docs/design/promises.md`, Admission; hazards 1 and 4):
//!
//! 1. The part holds its blocks exclusively, on the backing too: no destage of them is in flight, none starts.
//! 2. The backing is written. Until the bypass is acknowledged, reads find the older version in the log, if there is
//!    one, and so does recovery: a crash here leaves the older version as a whole, whatever is torn on the backing.
//! 3. Where recovery would take an older record of a block for newer than the backing, the backing write is durable
//!    first, then a *supersede* record is made durable in the log. Only then is the write acknowledged (P3).
//! 4. The index forgets the blocks; reads go to the backing.
//!
//! Recovery ignores records up to the durable clean mark after anything but a clean stop. A block whose newest record
//! lies below the mark therefore needs no supersede record; that its clean copy is not true any more is remembered in
//! memory and written down by a clean stop.

use forebay_block::{BLOCK_BYTES, DeviceOp, Seq};
use forebay_format::record::{Extent, ExtentKind};

use crate::client::parts::{Next, PartState, Payload, pieces};
use crate::client::requests::{Answered, Requests};
use crate::interface::{Class, PartKey};
use crate::locks::{BlockRange, Locks};
use crate::log::{Append, AppendOwner};
use crate::mutation::Mutation;

/// Longest clean copy of a bypassed write.
const CLEAN_COPY_BLOCKS_MAX: u64 = 256;

/// A clean copy that is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copied {
    pub(crate) range: BlockRange,
    /// The backing may have lost meanwhile what it is a copy of.
    pub(crate) is_untrue: bool,
}

impl Requests {
    /// Whether the part's write to the backing must be durable when it ends, whatever else asks for it.
    pub(crate) fn wants_durable(&self, key: PartKey) -> bool {
        self.parts.get(&key).is_some_and(|part| {
            // Nobody waits for such a write, but whoever flushes would wait for the flush of the backing that it needed.
            let unawaited = part.class() == Class::Background && matches!(part.payload, Payload::Data { .. });
            part.durable || unawaited || self.backing_forgets
        })
    }

    /// The part is written to the backing.
    pub(crate) fn write(&mut self, key: PartKey, durable: bool) -> Next {
        let (planted, volume_bytes) = (self.planted, self.volume_bytes);
        let Some(part) = self.parts.get_mut(&key) else {
            return Next::Nothing;
        };
        part.written_durably = durable;
        part.state = PartState::BypassWriting;
        let offset = part.range.first.offset();
        let len = (part.range.count * BLOCK_BYTES).min(volume_bytes - offset);
        let op = match (&part.payload, &part.blocks) {
            (Payload::Zero { unmap }, _) => DeviceOp::Zero { offset, len, unmap: *unmap },
            (Payload::Data { .. }, Some(blocks)) => DeviceOp::Write {
                offset,
                bufs: vec![blocks.slice(0, len as usize)],
                durable: durable && (part.durable || !planted.is(Mutation::BypassesVolatile)),
            },
            (Payload::Data { .. }, None) => return Next::Nothing,
        };
        Next::Write(op, part.class())
    }

    /// The write to the backing has succeeded; `losses` flushes of the backing have failed until now.
    pub(crate) fn written(&mut self, key: PartKey, losses: u64) -> Next {
        let planted = self.planted;
        let Some(part) = self.parts.get_mut(&key) else {
            return Next::Nothing;
        };
        part.losses = losses;
        let flush = !planted.is(Mutation::ZeroesVolatile);
        if matches!(part.payload, Payload::Zero { .. }) && part.written_durably && flush {
            part.state = PartState::BypassFlushing { losses };
            return Next::Flush(part.class());
        }
        let volatile = !part.written_durably && !planted.is(Mutation::ForgetsUnflushedBypass);
        let request = part.request;
        if volatile {
            self.bypassed(request);
        }
        Next::OnBacking { volatile }
    }

    /// Whether a flush that has succeeded covers the part: none has failed since it was written, when `losses` had.
    pub(crate) fn is_flushing_since(&self, key: PartKey, losses: u64) -> bool {
        self.parts.get(&key).is_some_and(|part| part.state == PartState::BypassFlushing { losses })
    }

    /// The part's supersede record is to be written.
    ///
    /// # Panics
    /// If the backing may still lose what the record speaks of.
    pub(crate) fn supersede(&mut self, key: PartKey) -> Option<Append> {
        let durable = !self.planted.is(Mutation::SupersedesVolatile);
        let part = self.parts.get_mut(&key)?;
        assert!(part.written_durably, "superseded only by what is durable on the backing");
        part.state = PartState::Superseding;
        let count = part.range.count.min(u64::from(u32::MAX)) as u32;
        let extent = Some(Extent { block: part.range.first, count, kind: ExtentKind::Supersede });
        Some(Append { extent, data: None, owner: AppendOwner::Supersede(key), durable, after: Seq(0) })
    }

    /// The part waits until the log is void. Its blocks.
    pub(crate) fn await_retirement(&mut self, key: PartKey) -> Option<BlockRange> {
        let part = self.parts.get_mut(&key)?;
        part.state = PartState::AwaitingRetirement;
        Some(part.range)
    }

    /// The parts that wait until the log is void.
    pub(crate) fn awaiting_retirement(&self) -> Vec<PartKey> {
        let awaiting = self.parts.iter().filter(|(_, part)| part.state == PartState::AwaitingRetirement);
        awaiting.map(|(key, _)| *key).collect()
    }

    /// Whether a clean copy of the part may be kept.
    pub(crate) fn is_copyable(&self, key: PartKey) -> bool {
        let part = self.parts.get(&key);
        part.is_some_and(|part| part.blocks.is_some() && part.range.count <= CLEAN_COPY_BLOCKS_MAX)
    }

    /// The part counts as done; its locks stay until a clean copy is in the log, so that no newer write comes between.
    pub(crate) fn copy(&mut self, key: PartKey, piece_blocks_max: u32) -> (Option<Answered>, Vec<Append>) {
        let Some(part) = self.parts.get_mut(&key) else {
            return (None, Vec::new());
        };
        let owner = AppendOwner::CleanCopy(key);
        let like = Append { extent: None, data: None, owner, durable: false, after: Seq(0) };
        let appends = pieces(part.range, ExtentKind::Clean, part.blocks.as_ref(), piece_blocks_max, &like);
        part.state = PartState::CopyingClean { pieces: appends.len() as u32 };
        let request = part.request;
        (self.count(request, None), appends)
    }

    /// The log has a piece of the clean copy; all of it with the last. `losses` flushes of the backing have failed until now.
    pub(crate) fn copied(&mut self, key: PartKey, losses: u64, locks: &mut Locks) -> Option<Copied> {
        let PartState::CopyingClean { pieces } = &mut self.parts.get_mut(&key)?.state else {
            return None;
        };
        *pieces -= 1;
        if *pieces > 0 {
            return None;
        }
        let part = self.parts.remove(&key)?;
        locks.release(part.range, part.hold);
        Some(Copied { range: part.range, is_untrue: !part.written_durably && part.losses != losses })
    }

    /// The clean copy will never be in the log.
    pub(crate) fn copy_refused(&mut self, key: PartKey, locks: &mut Locks) {
        if let Some(part) = self.parts.remove(&key) {
            locks.release(part.range, part.hold);
        }
    }

    /// The log is kept from moving on by the part's write to the backing: its blocks are not destaged before.
    pub(crate) fn keeps_log(&self, key: PartKey) -> bool {
        self.is_landing(key) || self.parts.get(&key).is_some_and(|part| part.supersedes)
    }
}
