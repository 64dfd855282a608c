//! Which segments form the log, and where it ends. `docs/design/recovery.md` has the case table.
//!
//! ```text
//!  place in the order of the log:   … 4  5 │ 7  8  9 │ 11
//!                                    run   │  run    │ leftovers behind the log's end
//! ```
//!
//! Segments are *linked* where the numbers of their records go on without a gap. The log is the newest run of linked segments that reaches
//! back to its own tail.
//!
//! 1. What any record proves to have been durable is in the log, or recovery ends with an error (P1).
//! 2. Nothing here reads a device or changes anything but doubts about records.

use std::collections::{BTreeMap, VecDeque};

use forebay_block::Seq;
use forebay_format::record::Consistent;
use forebay_format::segment::SegmentHeader;
use forebay_format::summary::Trailer;

use crate::interface::RecoveryError;
use crate::log::recovery::scan::{Proof, Scan};
use crate::mutation::{Mutation, Planted};

/// Segments behind the last known one that are read through: a single write that went astray can hide two.
const BEYOND_SEGMENTS: usize = 2;

/// A segment with a valid header.
pub(super) struct Candidate {
    pub(super) index: u32,
    pub(super) header: SegmentHeader,
    pub(super) trailer: Option<Trailer>,
    pub(super) scan: Option<Scan>,
}

/// The part of the log that a segment holds, as its last record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reach {
    pub(super) last_seq: Seq,
    pub(super) generation: u64,
    pub(super) tail: u64,
    pub(super) clean_upto: Seq,
    pub(super) clean_stop: bool,
    pub(super) ordered: Consistent,
}

/// The log that was found.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) reach: Reach,
    /// Physical numbers of its segments, in its order.
    pub(super) chain: VecDeque<u32>,
}

impl Candidate {
    /// A segment of which only the header has been read.
    pub(super) fn new(index: u32, header: SegmentHeader) -> Self {
        Self { index, header, trailer: None, scan: None }
    }

    /// The last run that is known to have written here.
    fn generation(&self) -> u64 {
        self.trailer.map_or(self.header.generation, |t| t.generation)
    }

    /// Sequence number that the record after this segment's last must have.
    pub(super) fn next_seq(&self) -> Seq {
        match (&self.trailer, &self.scan) {
            (Some(t), _) => t.last_seq.next(),
            (None, Some(s)) => Seq(self.header.first_seq.0 + s.entries.len() as u64),
            (None, None) => self.header.first_seq,
        }
    }

    /// When its first record was made, nanoseconds since 1970.
    pub(super) fn time_first_ns(&self) -> u64 {
        match (&self.trailer, &self.scan) {
            (Some(t), _) => t.time_first_ns,
            (None, scan) => scan.as_ref().and_then(|s| s.entries.first()).map_or(0, |(h, _)| h.time_ns),
        }
    }

    fn reach(&self) -> Option<Reach> {
        if let Some(t) = &self.trailer {
            let (tail, clean_upto) = (t.tail, t.clean_upto);
            let (last_seq, generation) = (t.last_seq, t.generation);
            let (clean_stop, ordered) = (false, t.ordered);
            return Some(Reach { last_seq, generation, tail, clean_upto, clean_stop, ordered });
        }
        let (h, _) = self.scan.as_ref()?.entries.last()?;
        let (tail, clean_upto, clean_stop, ordered) = (h.tail, h.clean_upto, h.clean_stop, h.ordered);
        Some(Reach { last_seq: h.seq, generation: h.generation, tail, clean_upto, clean_stop, ordered })
    }

    /// Records up to this one were durable once, whatever can be read now.
    fn proof(&self) -> Proof {
        let scanned = self.scan.as_ref().map_or(Proof::default(), |s| s.swept.proof);
        self.trailer.map_or(scanned, |t| (t.generation, t.last_seq))
    }
}

/// The segments with valid headers, by their physical numbers.
#[derive(Default)]
pub(super) struct Candidates(pub(super) BTreeMap<u32, Candidate>);

impl Candidates {
    /// Of two segments with the same place in the log, the later run's counts: the other is a leftover of records
    /// that were never acknowledged.
    pub(super) fn drop_doubles(&mut self) {
        let mut best: BTreeMap<u64, (u64, u32)> = BTreeMap::new();
        for c in self.0.values() {
            let entry = best.entry(c.header.segment_seq).or_insert((c.header.generation, c.index));
            *entry = (*entry).max((c.header.generation, c.index));
        }
        self.0.retain(|i, c| best.get(&c.header.segment_seq).is_some_and(|b| b.1 == *i));
    }

    /// Records up to this one were durable once, given what lies `beyond` the log's end. After a clean stop these are all that its run
    /// wrote, whose mark lies in a segment without a summary: what does not match there is damaged, not torn.
    pub(super) fn proof(&self, clean_stop: bool, beyond: Proof, planted: Planted) -> Seq {
        if planted.is(Mutation::IgnoresProof) {
            return Seq(0);
        }
        let last_run = self.0.values().map(Candidate::generation).max().unwrap_or_default();
        let scans = self.0.values().filter_map(|c| c.scan.as_ref());
        let newest = scans.map(|s| s.swept.newest).max().filter(|n| clean_stop && n.0 >= last_run);
        self.0.values().map(Candidate::proof).chain([beyond]).chain(newest).max().unwrap_or_default().1
    }

    /// Finds the log, `None` if there has never been a record.
    ///
    /// # Errors
    /// If a record is missing that `proof` says was durable.
    pub(super) fn judge(&mut self, proof: Seq, planted: Planted) -> Result<Option<Found>, RecoveryError> {
        let starts: BTreeMap<u64, SegmentHeader> =
            self.0.values().map(|c| (c.header.segment_seq, c.header)).collect();
        for c in self.0.values_mut() {
            if let Some(scan) = &mut c.scan {
                if let Some(next) = starts.get(&(c.header.segment_seq + 1)) {
                    scan.end_before(next);
                }
                scan.accept_proven(proof);
            }
        }
        let mut order: Vec<&Candidate> = self.0.values().collect();
        order.sort_unstable_by_key(|c| c.header.segment_seq);
        let linked = |a: &Candidate, b: &Candidate| {
            a.header.segment_seq + 1 == b.header.segment_seq
                && a.next_seq() == b.header.first_seq
                && a.reach().is_some_and(|r| r.generation <= b.header.generation)
        };
        // Runs of linked segments, newest first.
        let mut end = order.len();
        let mut missing = None;
        while end > 0 {
            let mut start = end - 1;
            while start > 0 && linked(order[start - 1], order[start]) {
                start -= 1;
            }
            let run = &order[start..end];
            let reach = run.iter().rev().find_map(|c| c.reach());
            let first = run[0].header.segment_seq;
            match reach {
                Some(reach) if first <= reach.tail => {
                    if proof > reach.last_seq {
                        let lost = RecoveryError::LostRecord {
                            seq: reach.last_seq.0 + 1,
                            segment: run[run.len() - 1].index,
                        };
                        return Err(missing.unwrap_or(lost));
                    }
                    let with_records = |c: &&&Candidate| c.reach().is_some();
                    let any = planted.is(Mutation::IgnoresTail);
                    let live = |c: &&&Candidate| c.header.segment_seq >= reach.tail || any;
                    let chain = run.iter().filter(live).filter(with_records).map(|c| c.index).collect();
                    return Ok(Some(Found { reach, chain }));
                }
                // Leftovers behind an earlier end of the log, if the log proves to be whole without them; a later
                // run may have gone on in the segment before and used their numbers again.
                _ => {
                    if proof >= run[0].header.first_seq {
                        let segment_seq = first.saturating_sub(1);
                        missing.get_or_insert(RecoveryError::LostSegment { segment_seq });
                    }
                    end = start;
                }
            }
        }
        match proof > Seq(0) {
            true => Err(missing.unwrap_or(RecoveryError::LostSegment { segment_seq: 1 })),
            false => Ok(None),
        }
    }

    /// Which of the segments that would have been opened `next` (in that order, the first of them as place `from` in the log) have to
    /// be read through. If some that the log's last run opened there are known, it got at least as far.
    pub(super) fn beyond(
        &self,
        from: u64,
        next: impl Iterator<Item = u32>,
        last: Option<u32>,
        planted: Planted,
    ) -> Vec<u32> {
        let last = last.and_then(|i| self.0.get(&i));
        let run = last.and_then(Candidate::reach).map_or(0, |r| r.generation);
        let known = self.0.values().filter(|c| c.header.generation >= run).map(|c| c.header.segment_seq);
        let far = !planted.is(Mutation::LooksTooNear);
        let known = known.max().filter(|_| far).map_or(0, |seq| (seq + 1).saturating_sub(from));
        let places = (from..).zip(next.take(known as usize + BEYOND_SEGMENTS));
        // What those say that are what they should be has been heard.
        let heard = |(seq, i): &(u64, u32)| self.0.get(i).is_some_and(|c| c.header.segment_seq == *seq);
        places.filter(|place| !heard(place)).map(|(_, i)| i).collect()
    }
}
