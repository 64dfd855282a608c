//! Records in flight: acknowledged strictly in their order (hazard 7), and durable in it.
//!
//! ```text
//!  in flight:  ▣ 7   ▢ 8   ▣ 9   ▣ 10       ▣ its write has completed
//!              └► told: written up to 7     (9 and 10 wait for 8)
//!                        │ durable by itself, or by a flush of the cache that began later
//!                        ▼
//!                   durable up to …         owners that asked for that are told
//! ```
//!
//! 1. `written_upto` grows by one record at a time, and only over records whose writes have completed.
//! 2. `durable_upto <= written_upto`. A record that was written without durability of its own, and all behind it, count as
//!    durable only when a flush that began after they were written has ended.
//! 3. Owners are told one at a time: what one of them brings about happens before the next one is told.

use std::collections::VecDeque;

use forebay_block::{BlockNo, Seq};
use forebay_format::record::Extent;

use crate::log::queue::AppendOwner;
use crate::map::segments::SlotRef;
use crate::mutation::{Mutation, Planted};

/// Most batches in flight at once.
pub(super) const BATCHES_IN_FLIGHT_MAX: usize = 8;

/// What a record holds of one append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) extent: Option<Extent>,
    /// Its first slot, and how many follow each other.
    pub(super) slots: Option<(SlotRef, u32)>,
    pub(super) owner: AppendOwner,
    pub(super) durable: bool,
}

/// A piece of a record that is written, as all records before it are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) seq: Seq,
    pub(crate) extent: Option<Extent>,
    /// Its first slot, and how many follow each other.
    pub(crate) slots: Option<(SlotRef, u32)>,
    pub(crate) owner: AppendOwner,
    /// The owner waits for nothing more; else it hears again when the record is durable.
    pub(crate) ends: bool,
}

struct Batch {
    seq: Seq,
    pieces: Vec<Piece>,
    done: bool,
}

/// Records in flight, and what is known of those before.
#[derive(Default)]
pub(super) struct Batches {
    in_flight: VecDeque<Batch>,
    /// Pieces of the record `written_upto` whose owners have not been told.
    telling: VecDeque<Piece>,
    written_upto: Seq,
    durable_upto: Seq,
    /// Newest record that was written without durability of its own.
    undurable: Seq,
    flush_under_way: bool,
    flush_wanted: Seq,
    waiting_durable: VecDeque<(Seq, AppendOwner)>,
    planted: Planted,
}

impl Batches {
    /// Goes on behind record `last`, which is durable.
    pub(super) fn new(last: Seq, planted: Planted) -> Self {
        Self { written_upto: last, durable_upto: last, planted, ..Self::default() }
    }

    /// All records up to this one are written.
    pub(super) fn written_upto(&self) -> Seq {
        self.written_upto
    }

    /// All records up to this one survive a power cut.
    pub(super) fn durable_upto(&self) -> Seq {
        self.durable_upto
    }

    /// Whether one more record may be in flight.
    pub(super) fn has_room(&self) -> bool {
        self.in_flight.len() < BATCHES_IN_FLIGHT_MAX
    }

    /// Every record is written.
    pub(super) fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Nothing is in flight, and nobody waits for durability.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && self.waiting_durable.is_empty() && !self.flush_under_way
    }

    /// What the records in flight speak of.
    fn extents(&self) -> impl Iterator<Item = &Extent> {
        self.in_flight.iter().flat_map(|b| &b.pieces).filter_map(|p| p.extent.as_ref())
    }

    /// Blocks of the records in flight.
    pub(super) fn blocks(&self) -> u64 {
        self.extents().map(|e| u64::from(e.count)).sum()
    }

    /// Whether a record in flight speaks of `block`.
    pub(super) fn speaks_of(&self, block: BlockNo) -> bool {
        self.extents().any(|e| e.block <= block && block.0 < e.block.0 + u64::from(e.count))
    }

    /// The next record is on its way; `durable` if its write is durable by itself.
    pub(super) fn start(&mut self, seq: Seq, pieces: Vec<Piece>, durable: bool) {
        if !durable {
            self.undurable = seq;
        }
        let done = self.planted.is(Mutation::AcknowledgesBeforeWrite);
        self.in_flight.push_back(Batch { seq, pieces, done });
    }

    /// The pieces of the record that was started last.
    pub(super) fn newest(&self) -> Vec<Written> {
        let newest = self.in_flight.back();
        newest.map_or(Vec::new(), |b| b.pieces.iter().map(|p| p.written(b.seq, true)).collect())
    }

    /// The write of this record has completed.
    pub(super) fn done(&mut self, seq: Seq) {
        let Some(batch) = self.in_flight.iter_mut().find(|b| b.seq == seq) else { return };
        batch.done = true;
        if self.planted.is(Mutation::AcknowledgesOutOfOrder) {
            let parts = batch.pieces.iter().map(|p| p.owner).filter(|o| matches!(o, AppendOwner::Part(_)));
            parts.for_each(|owner| self.waiting_durable.push_front((Seq(0), owner)));
        }
    }

    /// The next piece that is written, in the order of the log.
    pub(super) fn next_written(&mut self) -> Option<Written> {
        while self.telling.is_empty() {
            let batch = self.in_flight.pop_front_if(|b| b.done)?;
            assert_eq!(batch.seq, self.written_upto.next(), "acknowledged in order (hazard 7)");
            self.written_upto = batch.seq;
            self.work_out_durable();
            self.telling = batch.pieces.into();
        }
        let (piece, seq) = (self.telling.pop_front()?, self.written_upto);
        let ends = !piece.durable || seq <= self.durable_upto;
        if !ends {
            self.want_durable(seq);
            self.waiting_durable.push_back((seq, piece.owner));
        }
        Some(piece.written(seq, ends))
    }

    /// The next owner whose record is durable now.
    pub(super) fn next_durable(&mut self) -> Option<AppendOwner> {
        let durable = self.durable_upto;
        self.waiting_durable.pop_front_if(|(seq, _)| *seq <= durable).map(|(_, owner)| owner)
    }

    /// Makes records up to `seq` survive a power cut, by a flush if need be.
    pub(super) fn want_durable(&mut self, seq: Seq) {
        self.flush_wanted = self.flush_wanted.max(seq);
    }

    fn work_out_durable(&mut self) {
        if self.undurable <= self.durable_upto || self.planted.is(Mutation::SkipsCacheFlush) {
            self.durable_upto = self.written_upto;
        }
    }

    /// The cache is to be flushed if somebody waits for durability that no write brings by itself: up to which record the flush covers the log.
    pub(super) fn flush_if_wanted(&mut self) -> Option<Seq> {
        let wanted = self.flush_wanted > self.durable_upto && self.undurable > self.durable_upto;
        let possible = self.written_upto > self.durable_upto && !self.flush_under_way;
        self.flush_under_way |= wanted && possible;
        (wanted && possible).then_some(self.written_upto)
    }

    /// The flush has ended; well if it `covers` records up to some one.
    pub(super) fn flushed(&mut self, covers: Option<Seq>) {
        self.flush_under_way = false;
        if let Some(covers) = covers {
            let late = self.planted.is(Mutation::FlushCoversTooMuch);
            let covers = if late { self.written_upto } else { covers };
            self.durable_upto = self.durable_upto.max(covers);
            self.work_out_durable();
        }
    }

    /// Gives up what is in flight: pieces of records that will never be acknowledged, in their order.
    pub(super) fn abandon(&mut self) -> impl Iterator<Item = Piece> + use<> {
        std::mem::take(&mut self.in_flight).into_iter().flat_map(|b| b.pieces)
    }

    /// Gives up those who wait for durability.
    pub(super) fn abandon_durable(&mut self) -> impl Iterator<Item = AppendOwner> + '_ {
        self.waiting_durable.drain(..).map(|(_, owner)| owner)
    }
}

impl Piece {
    fn written(self, seq: Seq, ends: bool) -> Written {
        let Self { extent, slots, owner, .. } = self;
        Written { seq, extent, slots, owner, ends }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::interface::PartKey;

    fn piece(n: u64, durable: bool) -> Piece {
        Piece { extent: None, slots: None, owner: AppendOwner::Part(PartKey(n)), durable }
    }

    /// All orders of the numbers below `n`.
    fn orders(n: usize) -> impl Iterator<Item = Vec<usize>> {
        let digits = move |code: usize| (0..n).scan(code, move |left, _| Some((*left % n, *left /= n).0));
        let all = (0..n.pow(n as u32)).map(move |code| digits(code).collect::<Vec<_>>());
        all.filter(move |order| (0..n).all(|k| order.contains(&k)))
    }

    #[test]
    fn in_whatever_order_writes_end_records_are_told_in_theirs() {
        let mut cases = 0;
        for order in orders(5) {
            let mut batches = Batches::new(Seq(10), Planted::default());
            for n in 0..5 {
                batches.start(Seq(11 + n), vec![piece(2 * n, false), piece(2 * n + 1, false)], true);
            }
            let (mut told, mut ended) = (Vec::new(), [false; 5]);
            for n in order {
                batches.done(Seq(11 + n as u64));
                ended[n] = true;
                while let Some(written) = batches.next_written() {
                    assert!(written.ends);
                    told.push((written.seq, written.owner));
                }
                let written = ended.iter().take_while(|ended| **ended).count() as u64;
                let expected = (0..2 * written).map(|n| (Seq(11 + n / 2), AppendOwner::Part(PartKey(n))));
                assert_eq!(told, expected.collect::<Vec<_>>());
                assert_eq!(batches.written_upto(), Seq(10 + written));
                assert_eq!(batches.durable_upto(), Seq(10 + written), "each is durable by itself");
            }
            assert!(batches.is_idle() && told.len() == 10);
            cases += 1;
        }
        assert_eq!(cases, 120);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Start { durable: bool, asks: bool },
        Done(prop::sample::Index),
        Flush,
        Flushed { well: bool },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (any::<bool>(), any::<bool>()).prop_map(|(durable, asks)| Step::Start { durable, asks }),
            3 => any::<prop::sample::Index>().prop_map(Step::Done),
            1 => Just(Step::Flush),
            2 => any::<bool>().prop_map(|well| Step::Flushed { well }),
        ]
    }

    /// What survives a power cut, told record by record.
    #[derive(Default)]
    struct Medium {
        /// Whether its write is durable by itself, whether that has ended, and whether a flush has covered it.
        records: Vec<(bool, bool, bool)>,
        /// What the flush under way covers.
        flushing: Option<usize>,
    }

    impl Medium {
        fn written(&self) -> usize {
            self.records.iter().take_while(|(_, ended, _)| *ended).count()
        }

        fn durable(&self) -> usize {
            self.records.iter().take_while(|(own, ended, flushed)| *ended && (*own || *flushed)).count()
        }
    }

    proptest! {
        /// Whoever asked for durability hears of it once, in order, and not before it is there; whoever did not, as soon as all is written.
        #[test]
        fn durable_is_told_of_what_a_power_cut_leaves(steps in prop::collection::vec(step(), 1..120)) {
            let mut batches = Batches::new(Seq(0), Planted::default());
            let mut medium = Medium::default();
            let (mut asked, mut heard) = (Vec::new(), Vec::new());
            let ending = [Step::Flushed { well: true }, Step::Flush, Step::Flushed { well: true }];
            let mut steps: VecDeque<Step> = steps.into();
            loop {
                // At the end all writes end, and a flush that goes well covers them.
                let left = medium.records.iter().position(|(_, ended, _)| !ended);
                match (steps.pop_front(), left) {
                    (Some(Step::Start { durable, asks }), _) if batches.has_room() => {
                        medium.records.push((durable, false, false));
                        let seq = medium.records.len() as u64;
                        if asks {
                            asked.push(seq);
                        }
                        batches.start(Seq(seq), vec![piece(seq, asks)], durable);
                    }
                    (Some(Step::Done(which)), Some(_)) => {
                        let open = medium.records.iter().enumerate().filter(|(_, (_, ended, _))| !ended);
                        let open: Vec<usize> = open.map(|(n, _)| n).collect();
                        let n = open[which.index(open.len())];
                        medium.records[n].1 = true;
                        batches.done(Seq(n as u64 + 1));
                    }
                    (Some(Step::Flush), _) => {
                        if let Some(covers) = batches.flush_if_wanted() {
                            prop_assert!(medium.flushing.is_none());
                            prop_assert_eq!(covers.0 as usize, medium.written());
                            medium.flushing = Some(medium.written());
                        }
                    }
                    (Some(Step::Flushed { well }), _) => {
                        if let Some(covers) = medium.flushing.take() {
                            batches.flushed(Some(Seq(covers as u64)).filter(|_| well));
                            medium.records[..covers].iter_mut().for_each(|record| record.2 |= well);
                        }
                    }
                    (None, Some(n)) => {
                        medium.records[n].1 = true;
                        batches.done(Seq(n as u64 + 1));
                        if n + 1 == medium.records.len() {
                            steps.extend(ending.iter().cloned());
                        }
                    }
                    (None, None) => break,
                    _ => {}
                }
                while let Some(written) = batches.next_written() {
                    if written.ends && asked.contains(&written.seq.0) {
                        heard.push(written.seq.0);
                    }
                    prop_assert!(written.ends || asked.contains(&written.seq.0));
                }
                while let Some(AppendOwner::Part(PartKey(seq))) = batches.next_durable() {
                    heard.push(seq);
                }
                prop_assert_eq!(batches.written_upto().0 as usize, medium.written());
                prop_assert!(batches.durable_upto().0 as usize <= medium.durable());
                prop_assert!(heard.iter().all(|seq| *seq as usize <= medium.durable()));
                prop_assert_eq!(&heard[..], &asked[..heard.len()]);
            }
            let all_ended = ending.len() == 3 && !medium.records.is_empty() && steps.is_empty();
            if all_ended && medium.durable() == medium.records.len() {
                prop_assert_eq!(heard.len(), asked.len());
            }
        }
    }
}
