//! What records say of the log as a whole, and from when on it counts.
//!
//! Each record claims where the log begins (its *tail*), up to which record everything is on the backing or superseded (the
//! *clean mark*), and how consistent the backing is. Recovery believes the newest record that it finds. So a claim is true for
//! good, whatever instant a crash picks, only once its record is durable.
//!
//! 1. Claims become durable in the order of their records, each once.
//! 2. `durable_clean_upto` is the largest clean mark among durable claims; it never falls.

use std::collections::VecDeque;

use forebay_block::Seq;
use forebay_format::record::Consistent;

use crate::map::Map;
use crate::map::segments::SegmentState;
use crate::mutation::{Mutation, Planted};

/// What a record in flight says about the log as a whole; true once the record is durable.
struct Claim {
    seq: Seq,
    tail: u64,
    clean_upto: Seq,
}

/// The claims of records that are not durable yet, and what the durable ones say.
pub(super) struct Claims {
    in_flight: VecDeque<Claim>,
    /// The tail that the newest record carries, durable or not.
    tail: u64,
    durable_clean_upto: Seq,
    /// The last record that says that the backing is consistent, by barriers at least.
    barriers_upto: Seq,
    /// The last record that says that it is so by completion.
    completion_upto: Seq,
}

impl Claims {
    /// Goes on behind record `last`, which is durable and claims this.
    pub(super) fn new(last: Seq, tail: u64, clean_upto: Seq, consistent: Consistent) -> Self {
        let mut claims = Self {
            in_flight: VecDeque::new(),
            tail,
            durable_clean_upto: clean_upto,
            barriers_upto: Seq(0),
            completion_upto: Seq(0),
        };
        claims.note_consistent(last, consistent);
        claims
    }

    /// A record is formed that says this.
    pub(super) fn made(&mut self, seq: Seq, tail: u64, clean_upto: Seq, consistent: Consistent) {
        self.in_flight.push_back(Claim { seq, tail, clean_upto });
        self.tail = tail;
        self.note_consistent(seq, consistent);
    }

    fn note_consistent(&mut self, seq: Seq, consistent: Consistent) {
        if consistent >= Consistent::Barriers {
            self.barriers_upto = seq;
        }
        if consistent >= Consistent::Completion {
            self.completion_upto = seq;
        }
    }

    /// The next claim of which the record is durable, if records up to `durable_upto` are: the tail that counts from now on.
    pub(super) fn next_durable(&mut self, durable_upto: Seq) -> Option<u64> {
        let claim = self.in_flight.pop_front_if(|c| c.seq <= durable_upto)?;
        self.durable_clean_upto = self.durable_clean_upto.max(claim.clean_upto);
        Some(claim.tail)
    }

    /// The tail that the newest record carries.
    pub(super) fn tail(&self) -> u64 {
        self.tail
    }

    /// Recovery takes records up to this one for clean, whatever instant a crash picks.
    pub(super) fn durable_clean_upto(&self) -> Seq {
        self.durable_clean_upto
    }

    /// The first record on its way that says that everything up to `seq` is clean.
    pub(super) fn of_clean(&self, seq: Seq) -> Option<Seq> {
        self.in_flight.iter().find(|c| c.clean_upto >= seq).map(|c| c.seq)
    }

    /// The last record that says that the backing is more consistent than that.
    pub(super) fn said_more_than(&self, consistent: Consistent) -> Seq {
        match consistent {
            Consistent::No => self.barriers_upto,
            Consistent::Barriers => self.completion_upto,
            Consistent::Completion => Seq(0),
        }
    }
}

/// Up to which record everything is on the backing or superseded: what the next record says of that.
pub(super) struct CleanMark {
    upto: Seq,
    /// Segment (in the order of the log) up to which that has been worked out.
    segment: u64,
    planted: Planted,
}

impl CleanMark {
    pub(super) fn new(upto: Seq, planted: Planted) -> Self {
        Self { upto, segment: 0, planted }
    }

    pub(super) fn upto(&self) -> Seq {
        self.upto
    }

    /// Moves the mark over segments without dirty blocks, oldest first; where records are destaged in an order, to its `progress`.
    pub(super) fn work_out(&mut self, progress: Option<Seq>, written_upto: Seq, map: &Map) {
        if let Some(progress) = progress {
            self.upto = self.upto.max(progress);
            return;
        }
        for s in map.segments().live_from(self.segment) {
            if s.dirty > 0 && !self.planted.is(Mutation::CleanMarkTooEarly) {
                break;
            }
            if s.state == SegmentState::Open || s.last_seq > written_upto {
                self.upto = self.upto.max(written_upto.min(s.last_seq));
                break;
            }
            self.upto = self.upto.max(s.last_seq);
            self.segment = s.seq + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record, the tail and the clean mark that it claims.
    const RECORDS: [(u64, u64, u64); 5] = [(11, 3, 4), (12, 3, 9), (13, 5, 9), (14, 5, 7), (15, 6, 12)];

    fn claims() -> Claims {
        let mut claims = Claims::new(Seq(10), 2, Seq(4), Consistent::No);
        for (seq, tail, clean_upto) in RECORDS {
            claims.made(Seq(seq), tail, Seq(clean_upto), Consistent::No);
        }
        claims
    }

    #[test]
    fn a_claim_counts_when_its_record_is_durable() {
        // Up to which record the log is durable, which tails count then, and which clean mark.
        for (durable, tails, clean) in [
            (10, vec![], 4),
            (11, vec![3], 4),
            (12, vec![3, 3], 9),
            (13, vec![3, 3, 5], 9),
            (14, vec![3, 3, 5, 5], 9),
            (15, vec![3, 3, 5, 5, 6], 12),
            (99, vec![3, 3, 5, 5, 6], 12),
        ] {
            let mut claims = claims();
            assert_eq!(claims.tail(), 6, "that of the newest record, durable or not");
            let mut counted = Vec::new();
            while let Some(tail) = claims.next_durable(Seq(durable)) {
                counted.push(tail);
            }
            assert_eq!(
                (counted, claims.durable_clean_upto()),
                (tails, Seq(clean)),
                "durable up to {durable}"
            );
            assert_eq!(claims.next_durable(Seq(durable)), None, "each counts once");
        }
    }

    #[test]
    fn the_first_record_that_says_so_is_waited_for() {
        // Up to which record all is to be clean, and the record in flight that claims it; of all, and once record 12 is durable.
        for (clean, of_all, left) in [
            (4, Some(11), Some(13)),
            (5, Some(12), Some(13)),
            (9, Some(12), Some(13)),
            (10, Some(15), Some(15)),
            (12, Some(15), Some(15)),
            (13, None, None),
        ] {
            let mut claims = claims();
            assert_eq!(claims.of_clean(Seq(clean)).map(|seq| seq.0), of_all, "{clean}");
            while claims.next_durable(Seq(12)).is_some() {}
            assert_eq!(claims.of_clean(Seq(clean)).map(|seq| seq.0), left, "{clean}, 12 is durable");
        }
    }

    #[test]
    fn what_was_said_of_the_backing_is_known_by_record() {
        let mut claims = Claims::new(Seq(10), 2, Seq(4), Consistent::Completion);
        let said = |claims: &Claims| {
            [Consistent::No, Consistent::Barriers, Consistent::Completion]
                .map(|than| claims.said_more_than(than).0)
        };
        assert_eq!(said(&claims), [10, 10, 0]);
        for (seq, consistent, expected) in [
            (11, Consistent::Barriers, [11, 10, 0]),
            (12, Consistent::No, [11, 10, 0]),
            (13, Consistent::Completion, [13, 13, 0]),
            (14, Consistent::Barriers, [14, 13, 0]),
        ] {
            claims.made(Seq(seq), 2, Seq(4), consistent);
            assert_eq!(said(&claims), expected, "record {seq}");
        }
    }
}
