//! Runs: neighbouring blocks on their way to the backing together, and how what fails is tried again.
//!
//! ```text
//!   begun: blocks locked on the backing, DESTAGING, segments pinned
//!     │ read from the log, checked                       ┌──────────── a flush failed since ────────────┐
//!     ▼                                                  │                                              ▼
//!   written to the backing ──► written: awaits a flush ──┴─► flushing ──no flush failed since──► told: clean   undone:
//!     │      └─ durably by itself ───────────────────────────────────────────────────────────►    │      dirty as before
//!     └── not written, or not readable ─────────────────────────────────────────────────────────  │ ──────────►  │
//!                                                                                                  ▼              ▼
//!                                                                                            segments unpinned, once
//! ```
//!
//! Invariants:
//! 1. Each member is in exactly one place: a run under way, `written`, `flushing`, or `ended`. Its segment is pinned as long as it is in
//!    one of them, so that its slot cannot be used anew.
//! 2. A member is told as clean only if its write was durable, or a flush began after it and no flush has failed since the write.
//! 3. A failure leaves everything dirty and slows the next try down (P9). What fails while others fail is one failure with them.

use std::collections::{BTreeMap, VecDeque};

use forebay_block::{BlockNo, Nanos, Seq};

use crate::interface::RunKey;
use crate::locks::BlockRange;
use crate::map::Map;
use crate::map::segments::{DIRTY, SlotRef};
use crate::pause::Pause;

/// A version on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    slot: SlotRef,
    seq: Seq,
    /// Something else was written over it on the backing before the flush: it does not count.
    void: bool,
}

impl Member {
    pub(super) fn new(slot: SlotRef, map: &Map) -> Self {
        Self { slot, seq: map.segments().seq(slot), void: false }
    }
}

/// Blocks that go together: one member for each block of the range.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) range: BlockRange,
    /// They are zeroes: nothing is read from the log.
    pub(super) zero: bool,
    /// It needs no flush.
    pub(super) durable: bool,
    pub(super) members: Vec<Member>,
}

impl Run {
    /// The version of each block.
    pub(super) fn slots(&self) -> Vec<SlotRef> {
        self.members.iter().map(|member| member.slot).collect()
    }
}

/// How the write of a run, or the flush for several, has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// On the backing, durably: [`next_told`](crate::backing::destage::Destage::next_told) has something to say.
    Durable,
    /// It awaits a flush.
    Written,
    /// Dirty as before; the backing is left alone for a while.
    Failed,
}

/// The next thing to be told of runs that ended well.
enum Ended {
    Member(BlockNo, Member),
    /// That was all of a run.
    Run,
}

/// Runs on their way, and those that await a flush.
#[derive(Default)]
pub(super) struct Runs {
    under_way: BTreeMap<RunKey, Run>,
    last: RunKey,
    /// Runs on the backing that await its flush.
    written: Vec<Run>,
    written_blocks: usize,
    /// Runs that the flush under way covers, and how many flushes of the backing had failed when it began.
    flushing: Option<(u64, Vec<Run>)>,
    /// What has ended well and is not told yet.
    ended: VecDeque<Ended>,
    pause: Pause,
}

impl Runs {
    /// Runs on their way to the backing.
    pub(super) fn len(&self) -> usize {
        self.under_way.len()
    }

    /// Blocks on their way.
    pub(super) fn blocks(&self) -> usize {
        self.under_way.values().map(|run| run.members.len()).sum()
    }

    /// Blocks on their way, written or being flushed.
    pub(super) fn blocks_coming(&self) -> usize {
        let flushing = self.flushing.iter().flat_map(|(_, runs)| runs);
        self.blocks() + self.written_blocks + flushing.map(|run| run.members.len()).sum::<usize>()
    }

    /// Blocks that await a flush.
    pub(super) fn written_blocks(&self) -> usize {
        self.written_blocks
    }

    /// Whether any run awaits a flush.
    pub(super) fn awaits_flush(&self) -> bool {
        !self.written.is_empty()
    }

    pub(super) fn is_flushing(&self) -> bool {
        self.flushing.is_some()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.under_way.is_empty() && self.written.is_empty() && self.flushing.is_none()
    }

    /// The newest run so far.
    pub(super) fn last(&self) -> RunKey {
        self.last
    }

    /// Whether runs up to this one have blocks of the segment under way.
    pub(super) fn has_of(&self, segment: u32, upto: RunKey) -> bool {
        let older = self.under_way.range(..=upto);
        older.flat_map(|(_, run)| &run.members).any(|member| member.slot.segment() == segment)
    }

    /// Blocks of the segment that are dirty, and written: they lack nothing but the flush.
    pub(super) fn written_of(&self, segment: u32, map: &Map) -> usize {
        let of_it = |m: &&Member| m.slot.segment() == segment && map.segments().slot(m.slot).has(DIRTY);
        self.written.iter().flat_map(|run| &run.members).filter(of_it).count()
    }

    /// Its blocks are locked on the backing.
    pub(super) fn begin(&mut self, run: Run, map: &mut Map) -> RunKey {
        self.last.0 += 1;
        for m in &run.members {
            map.destage_begins(m.slot);
            map.segments_mut().pin(m.slot.segment());
        }
        self.under_way.insert(self.last, run);
        self.last
    }

    pub(super) fn get(&self, key: RunKey) -> Option<&Run> {
        self.under_way.get(&key)
    }

    /// Some of the run could not be read: none of it goes to the backing. Its blocks, for their locks to be given back.
    pub(super) fn give_up(&mut self, key: RunKey, map: &mut Map) -> Option<BlockRange> {
        let run = self.under_way.remove(&key)?;
        Self::undo(run.members, map);
        Some(run.range)
    }

    /// The write has ended. Its blocks, for their locks to be given back, and how it went. `believed`: a failed write is taken for
    /// one that awaits its flush.
    pub(super) fn written(
        &mut self,
        key: RunKey,
        well: bool,
        believed: bool,
        now: Nanos,
        map: &mut Map,
    ) -> Option<(BlockRange, Outcome)> {
        let run = self.under_way.remove(&key)?;
        let range = run.range;
        let outcome = match (well, run.durable) {
            (true, true) => {
                self.pause.worked();
                self.end(run);
                Outcome::Durable
            }
            (true, false) => {
                self.written_blocks += run.members.len();
                self.written.push(run);
                Outcome::Written
            }
            (false, _) if believed => {
                self.written.push(run);
                Outcome::Written
            }
            (false, _) => {
                Self::undo(run.members, map);
                self.pause.failed(now);
                Outcome::Failed
            }
        };
        Some((range, outcome))
    }

    /// A flush of the backing failed: what is written there and not flushed has to be written again. Whether there was any.
    pub(super) fn write_again(&mut self, map: &mut Map) -> bool {
        let any = self.awaits_flush();
        for run in std::mem::take(&mut self.written) {
            Self::undo(run.members, map);
        }
        self.written_blocks = 0;
        any
    }

    /// Begins a flush for what is written; `losses`: flushes of the backing that have failed until now.
    pub(super) fn begin_flush(&mut self, losses: u64) {
        debug_assert!(self.flushing.is_none(), "one flush at a time");
        self.flushing = Some((losses, std::mem::take(&mut self.written)));
        self.written_blocks = 0;
    }

    /// The flush has ended; `losses`: flushes of the backing that have failed until now, this one included.
    pub(super) fn flushed(&mut self, losses: u64, now: Nanos, map: &mut Map) -> Option<Outcome> {
        let (since, covered) = self.flushing.take()?;
        if since != losses {
            // What the backing kept of the writes is unknown: all of them go again.
            covered.into_iter().for_each(|run| Self::undo(run.members, map));
            self.pause.failed(now);
            return Some(Outcome::Failed);
        }
        self.pause.worked();
        covered.into_iter().for_each(|run| self.end(run));
        Some(Outcome::Durable)
    }

    /// What lies in `range` and awaits a flush does not count any more: the backing may hold something else there.
    pub(super) fn void(&mut self, range: BlockRange, map: &mut Map) {
        let flushing = self.flushing.iter_mut().flat_map(|(_, runs)| runs);
        for run in self.written.iter_mut().chain(flushing) {
            for (_, member) in
                run.range.iter().zip(&mut run.members).filter(|(b, m)| range.contains(*b) && !m.void)
            {
                member.void = true;
                // An order at the backing may ask for a version that was overwritten meanwhile, too.
                if map.segments().holds(member.slot) {
                    map.destage_fails(member.slot);
                }
            }
        }
    }

    /// The run is on the backing, durably.
    fn end(&mut self, run: Run) {
        let members = run.range.iter().zip(run.members);
        self.ended.extend(members.map(|(block, member)| Ended::Member(block, member)));
        self.ended.push_back(Ended::Run);
    }

    /// Of the runs that ended well the next version that the backing has, or `Some(None)` at the end of a run. Its segment is not
    /// pinned any more.
    pub(super) fn next_durable(&mut self, map: &mut Map) -> Option<Option<(BlockNo, SlotRef, Seq)>> {
        while let Ended::Member(block, Member { slot, seq, void }) = self.ended.pop_front()? {
            map.segments_mut().unpin(slot.segment());
            if !void {
                return Some(Some((block, slot, seq)));
            }
        }
        Some(None)
    }

    /// The blocks are dirty as before; those overwritten meanwhile are nobody's concern any more. Until here the
    /// segments are pinned: a slot of a segment that was used anew could be taken for the one that was destaged.
    fn undo(members: Vec<Member>, map: &mut Map) {
        for Member { slot, void, .. } in members {
            if !void && map.segments().holds(slot) {
                map.destage_fails(slot);
            }
            map.segments_mut().unpin(slot.segment());
        }
    }

    /// Attempts in a row that the backing has failed, with a pause after each.
    pub(super) fn failures(&self) -> u32 {
        self.pause.failures()
    }

    pub(super) fn paused_until(&self) -> Option<Nanos> {
        self.pause.until()
    }

    /// Ends the pause that is over.
    pub(super) fn wait_until(&mut self, now: Nanos) {
        self.pause.is_under_way(now);
    }

    /// However often the backing has failed before: somebody asks for it.
    pub(super) fn try_again(&mut self) {
        self.pause.try_again();
    }
}
