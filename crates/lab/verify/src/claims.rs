//! What records and trailers say about the log as a whole, and which of it counts.
//!
//! A record behind the end of the log, torn off by a power cut or left over from an earlier run, proves what had been
//! durable when it was written. What it says of tail and destaging is not what recovery goes by.

use std::collections::BTreeMap;

use forebay_block::Seq;
use forebay_format::record::RecordHeader;
use forebay_format::segment::SegmentHeader;
use forebay_format::summary::Trailer;

/// What one record says; or a trailer, of its segment's last record.
#[derive(Clone, Copy, Debug)]
struct Claim {
    seq: Seq,
    generation: u64,
    tail: u64,
    clean_upto: Seq,
    /// Header and data are as they were written.
    whole: bool,
}

/// Everything that was said.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    claims: Vec<Claim>,
    /// The first record known of each run.
    runs: BTreeMap<u64, Seq>,
    /// A run, and up to which record it knew the log to be durable. The later run's word counts: it has used the numbers behind anew.
    proven: (u64, Seq),
    /// First records of segments whose own header is not there, so that recovery does not find them, and their runs.
    headless: Vec<(Seq, u64)>,
}

/// What counts: as of the last record of the log.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Settled {
    pub(crate) tail: u64,
    pub(crate) clean_upto: Seq,
}

impl Claims {
    pub(crate) fn learn_header(&mut self, h: &SegmentHeader) {
        self.run(h.generation, h.first_seq);
    }

    pub(crate) fn learn_trailer(&mut self, t: &Trailer) {
        self.run(t.generation, t.last_seq);
        self.proven = self.proven.max((t.generation, t.last_seq));
        self.claims.push(Claim {
            seq: t.last_seq,
            generation: t.generation,
            tail: t.tail,
            clean_upto: t.clean_upto,
            whole: true,
        });
    }

    pub(crate) fn learn_record(&mut self, h: &RecordHeader, whole: bool) {
        self.run(h.generation, h.seq);
        self.proven = self.proven.max((h.generation, h.durable_upto));
        self.claims.push(Claim {
            seq: h.seq,
            generation: h.generation,
            tail: h.tail,
            clean_upto: h.clean_upto,
            whole,
        });
    }

    pub(crate) fn learn_headless(&mut self, h: &SegmentHeader) {
        self.headless.push((h.first_seq, h.generation));
    }

    fn run(&mut self, generation: u64, seq: Seq) {
        let first = self.runs.entry(generation).or_insert(seq);
        *first = seq.min(*first);
    }

    /// The newest tail that anything speaks of.
    pub(crate) fn tail_max(&self) -> u64 {
        self.claims.iter().map(|c| c.tail).max().unwrap_or(0)
    }

    /// The last run stopped cleanly: everything that it wrote was durable then.
    pub(crate) fn all_durable(&mut self) {
        let newest = self.claims.iter().filter(|c| !self.void(c)).map(|c| (c.generation, c.seq)).max();
        self.proven = self.proven.max(newest.unwrap_or_default());
    }

    /// All records up to this one were durable once.
    pub(crate) fn proven(&self) -> Seq {
        self.proven.1
    }

    /// A later run wrote this record's number, or one before it: this one is a leftover.
    fn void(&self, c: &Claim) -> bool {
        self.is_leftover(c.seq, c.generation)
    }

    fn is_leftover(&self, seq: Seq, generation: u64) -> bool {
        let later = self.runs.range(generation.saturating_add(1)..);
        later.map(|(_, first)| *first).min().is_some_and(|first| first <= seq)
    }

    /// What is said by records up to the end of the log: all that are proven, and those that follow without a gap, up
    /// to a segment of which recovery does not know.
    pub(crate) fn settle(&self) -> Settled {
        let mut claims: Vec<&Claim> = self.claims.iter().filter(|c| !self.void(c)).collect();
        claims.sort_unstable_by_key(|c| (c.seq, c.generation));
        let mut settled = Settled::default();
        if self.proven() == Seq(0) {
            // Nothing was ever durable: a log of which nothing was freed, or what a torn beginning has left behind.
            settled.tail = 1;
        }
        let mut end = self.proven();
        let lost = |(seq, generation): &&(Seq, u64)| *seq > end && !self.is_leftover(*seq, *generation);
        let limit = self.headless.iter().filter(lost).map(|(seq, _)| *seq).min();
        for c in claims {
            if limit.is_some_and(|limit| c.seq >= limit) {
                break;
            }
            if c.seq > end.next() || c.seq == end.next() && !c.whole {
                break;
            }
            end = end.max(c.seq);
            settled.tail = settled.tail.max(c.tail);
            settled.clean_upto = settled.clean_upto.max(c.clean_upto);
        }
        settled
    }
}

#[cfg(test)]
mod tests {
    use forebay_format::record::Consistent;

    use super::*;

    fn record(seq: u64, generation: u64, tail: u64) -> RecordHeader {
        RecordHeader {
            generation,
            segment_seq: 9,
            seq: Seq(seq),
            offset: 512,
            durable_upto: Seq(seq.saturating_sub(3)),
            clean_upto: Seq(tail * 10),
            tail,
            time_ns: 0,
            clean_stop: false,
            ordered: Consistent::No,
            distance: 0,
            extents: Vec::new(),
            checksums: Vec::new(),
        }
    }

    #[test]
    fn records_behind_a_gap_prove_but_do_not_count() {
        let mut c = Claims::default();
        c.learn_record(&record(100, 1, 2), true);
        c.learn_record(&record(101, 1, 3), true);
        c.learn_record(&record(103, 1, 5), true);
        assert_eq!(c.proven(), Seq(100));
        let s = c.settle();
        assert_eq!((s.tail, s.clean_upto), (3, Seq(30)));
        assert_eq!(c.tail_max(), 5);
        c.learn_record(&record(102, 1, 4), false);
        assert_eq!(c.settle().tail, 3, "torn data ends the log");
        c.learn_record(&record(106, 1, 5), true);
        assert_eq!(c.settle().tail, 5, "what is proven is no tear");
    }

    #[test]
    fn a_clean_stop_proves_all_of_its_run() {
        let mut c = Claims::default();
        c.learn_record(&record(100, 1, 2), true);
        c.learn_record(&record(109, 1, 2), true);
        c.learn_record(&record(101, 2, 3), false);
        c.learn_record(&record(103, 2, 3), true);
        c.all_durable();
        assert_eq!(c.proven(), Seq(103), "run 1 proved more, of numbers that run 2 has used anew");
        let mut c = Claims::default();
        c.learn_record(&record(101, 2, 3), false);
        c.learn_record(&record(103, 2, 4), true);
        c.all_durable();
        assert_eq!((c.proven(), c.settle().tail), (Seq(103), 4));
    }

    #[test]
    fn leftovers_of_an_earlier_run_are_void() {
        let mut c = Claims::default();
        c.learn_record(&record(100, 1, 2), true);
        c.learn_record(&record(102, 1, 7), true);
        c.learn_record(&record(101, 2, 3), true);
        c.learn_record(&record(102, 2, 3), true);
        assert_eq!(c.settle().tail, 3);
    }
}
