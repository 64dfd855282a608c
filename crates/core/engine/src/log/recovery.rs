//! Recovery: from the medium to the index. `docs/design/recovery.md` has the case table and its invariants.
//!
//! ```text
//!  Headers: read every segment's header
//!     ▼
//!  Trailers: of segments with a valid header, read the trailer
//!     ▼
//!  Scans: segments without a valid summary are read through, record by record, data checked
//!     ▼
//!  judge (no I/O): which segments form the log, where does it end, is something missing that was durable?
//!     ▼
//!  Beyond: read through the segments that would have been opened next, for proof that more was durable
//!     ▼
//!  Bodies: read the summaries of the log's segments in order, and apply what their records say
//!     ▼
//!  Flush of the cache: what recovery saw must not be lost later; then the volume serves
//! ```
//!
//! Recovery writes nothing, so that a crash in it is just another crash. What it leaves torn behind the log's end the run's first record
//! makes void ([`Engine::log_begin_after_crash`]).

use std::collections::{BTreeMap, VecDeque};

use forebay_block::{Buf, DeviceOp, DeviceResult, IoError, Seq};
use forebay_format::checksum::block_checksum;
use forebay_format::record::{Consistent, Extent, ExtentKind, HEADER_BYTES_MAX, RecordHeader};
use forebay_format::rules::{Impossible, Rules};
use forebay_format::segment::SegmentHeader;
use forebay_format::summary::{SummaryBuilder, SummaryEntry, Trailer};
use forebay_format::{FormatError, Layout};

use crate::engine::{Engine, IoOwner, Life};
use crate::interface::{Class, Effect, RecoveryError, RecoveryReport, Role};
use crate::locks::BlockRange;
use crate::map::segments::{DIRTY, SegmentState, Slot, SlotKind};
use crate::mutation::{Mutation, Planted};

/// Reads under way at once.
const READS_MAX: usize = 32;
/// Summaries that may be read ahead of the one that is applied.
const BODIES_AHEAD_MAX: usize = 8;
/// Bytes read of a segment's beginning: its header, and that of its first record unless it is a long one.
const HEAD_BYTES: usize = 8192;
/// As much as it takes, for a segment whose header is damaged and whose first record has a long one.
const HEAD_BYTES_MAX: usize = HEADER_BYTES_MAX + 4096;
/// Segments behind the last known one that are read through: a single write that went astray can hide two.
const BEYOND_SEGMENTS: usize = 2;
/// Bytes read of a segment's end: its trailer, in either alignment.
const TRAILER_BYTES: usize = 4096;

/// What a read during recovery is for; the number is a physical segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Header(u32),
    LongHeader(u32),
    Trailer(u32),
    Scan(u32),
    Beyond(u32),
    Body(u32),
    Flush,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Headers,
    Trailers,
    Scans,
    Beyond,
    Bodies,
    Flush,
}

/// What reading a segment through has found.
struct Scan {
    entries: Vec<(RecordHeader, SummaryEntry)>,
    /// Byte offset behind the last record that counts.
    end: u32,
    /// Whether something that looks like the next record is there, torn.
    torn: bool,
    /// The first record whose data does not match, and all that follow it.
    doubtful: VecDeque<Doubt>,
    /// A doubtful record has been accepted.
    accepted: bool,
    swept: Swept,
}

/// What all records of a segment say, wherever they stand.
#[derive(Clone, Copy, Default)]
struct Swept {
    /// What the last run's records say.
    proof: Proof,
    /// Run and number of the newest record.
    newest: (u64, Seq),
    /// The first one that says of itself what cannot be, and its byte offset.
    impossible: Option<(u32, Impossible)>,
}

/// A run, and up to which record it knew the log to be durable. The later run's word counts: it has seen where the log ended, and has used
/// the numbers behind anew.
type Proof = (u64, Seq);

/// A record at or behind one whose data does not match: torn, and so the log's end, or damaged later.
struct Doubt {
    header: RecordHeader,
    entry: SummaryEntry,
    /// Byte offset behind it.
    end: u32,
    matches: bool,
}

/// A segment with a valid header.
struct Candidate {
    index: u32,
    header: SegmentHeader,
    trailer: Option<Trailer>,
    scan: Option<Scan>,
}

/// The part of the log that a segment holds.
#[derive(Clone, Copy, Debug)]
struct Reach {
    last_seq: Seq,
    generation: u64,
    tail: u64,
    clean_upto: Seq,
    clean_stop: bool,
    ordered: Consistent,
}

/// State of recovery.
pub(crate) struct Recovery {
    trust_clean: bool,
    phase: Phase,
    todo: VecDeque<Step>,
    outstanding: usize,
    candidates: BTreeMap<u32, Candidate>,
    /// Physical numbers of the log's segments in its order.
    chain: VecDeque<u32>,
    bodies: BTreeMap<u32, Vec<SummaryEntry>>,
    clean_upto: Seq,
    /// What records say that lie where the log would have gone on.
    beyond: Proof,
    /// How consistent the backing was when the last record was written.
    ordered: Consistent,
    error: Option<RecoveryError>,
    report: RecoveryReport,
}

impl Recovery {
    pub(crate) fn new(clean_stop: bool) -> Self {
        Self {
            trust_clean: clean_stop,
            phase: Phase::Headers,
            todo: VecDeque::new(),
            outstanding: 0,
            candidates: BTreeMap::new(),
            chain: VecDeque::new(),
            bodies: BTreeMap::new(),
            clean_upto: Seq(0),
            beyond: Proof::default(),
            ordered: Consistent::No,
            error: None,
            report: RecoveryReport::default(),
        }
    }
}

impl Candidate {
    /// The last run that is known to have written here.
    fn generation(&self) -> u64 {
        self.trailer.map_or(self.header.generation, |t| t.generation)
    }

    /// Sequence number that the record after this segment's last must have.
    fn next_seq(&self) -> Seq {
        match (&self.trailer, &self.scan) {
            (Some(t), _) => t.last_seq.next(),
            (None, Some(s)) => Seq(self.header.first_seq.0 + s.entries.len() as u64),
            (None, None) => self.header.first_seq,
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

impl Engine {
    pub(crate) fn recovery_begin(&mut self) {
        self.life = Life::Recovering;
        self.recovery.todo = (0..self.layout.segment_count).map(Step::Header).collect();
        self.recovery_step();
    }

    /// Starts what may be read now; when a phase has ended, the next one.
    pub(crate) fn recovery_step(&mut self) {
        while self.life == Life::Recovering {
            self.recovery_issue();
            if self.recovery.outstanding > 0 {
                return;
            }
            if let Some(error) = self.recovery.error.take() {
                self.recovery_end(Err(error));
                return;
            }
            if self.recovery.todo.is_empty() {
                self.recovery_next_phase();
            }
        }
    }

    fn recovery_issue(&mut self) {
        while self.recovery.outstanding < READS_MAX && self.recovery.error.is_none() {
            let ahead = self.recovery.bodies.len() + self.recovery.outstanding;
            match self.recovery.todo.front() {
                Some(Step::Body(_)) if ahead >= BODIES_AHEAD_MAX => return,
                // A whole segment in memory is enough at a time.
                Some(Step::Scan(_) | Step::Beyond(_)) if self.recovery.outstanding > 0 => return,
                _ => {}
            }
            let Some(step) = self.recovery.todo.pop_front() else {
                return;
            };
            let bytes = self.layout.segment_bytes as usize;
            let (index, at, len) = match step {
                Step::Header(i) => (i, 0, HEAD_BYTES),
                Step::LongHeader(i) => (i, 0, HEAD_BYTES_MAX),
                Step::Trailer(i) => (i, bytes - TRAILER_BYTES, TRAILER_BYTES),
                Step::Scan(i) | Step::Beyond(i) => (i, 0, bytes),
                Step::Body(i) => {
                    let len = self.recovery.candidates.get(&i).and_then(|c| c.trailer);
                    let len = len.map_or(0, |t| t.bytes(self.layout.align)).next_multiple_of(TRAILER_BYTES);
                    (i, bytes - len, len)
                }
                Step::Flush => {
                    self.recovery.outstanding += 1;
                    self.io(Role::Cache, DeviceOp::Flush, Class::Foreground, IoOwner::Recovery(step));
                    continue;
                }
            };
            self.recovery.outstanding += 1;
            let op = DeviceOp::Read { offset: self.layout.segment_offset(index) + at as u64, len };
            self.io(Role::Cache, op, Class::Foreground, IoOwner::Recovery(step));
        }
    }

    pub(crate) fn recovery_read_done(&mut self, step: Step, result: DeviceResult) {
        self.recovery.outstanding -= 1;
        let data = match result {
            Ok(data) => data.unwrap_or_else(|| Buf::zeroed(0)),
            Err(error) => {
                self.recovery_read_failed(step, error);
                return;
            }
        };
        match step {
            Step::Header(index) | Step::LongHeader(index) => {
                match segment_header(&self.layout, index, &data) {
                    Ok(header) => {
                        let c = Candidate { index, header, trailer: None, scan: None };
                        self.recovery.candidates.insert(index, c);
                    }
                    Err(FormatError::Truncated) if step == Step::Header(index) => {
                        self.recovery.todo.push_front(Step::LongHeader(index));
                    }
                    Err(error) => {
                        self.recovery_believes(index, 0, Impossible::of(&error).map_or(Ok(()), Err))
                    }
                }
            }
            Step::Trailer(index) => {
                if let Some(c) = self.recovery.candidates.get_mut(&index) {
                    let (trailer, held) = segment_trailer(&self.layout, &c.header, &data);
                    c.trailer = trailer;
                    self.recovery_believes(index, self.layout.segment_bytes - self.layout.align, held);
                }
            }
            Step::Scan(index) => {
                if let Some(c) = self.recovery.candidates.get_mut(&index) {
                    let rules = Rules::new(self.volume_bytes);
                    let mut scan = scan_segment(&self.layout, rules, &c.header, &data, self.planted);
                    // If only its summary is damaged, the trailer proves all of the records. One that could not be read alone
                    // counts, too: no record may be written behind it.
                    let (trailer, held) = segment_trailer(&self.layout, &c.header, &data);
                    c.trailer = c.trailer.or(trailer);
                    scan.accept_proven(c.trailer.map_or(Seq(0), |t| t.last_seq));
                    let needed = c.trailer.is_none() || self.recovery.phase == Phase::Bodies;
                    let (at, impossible) = scan.swept.impossible.unzip();
                    c.scan = Some(scan).filter(|_| needed);
                    self.recovery.report.segments_scanned += 1;
                    self.recovery_believes(index, at.unwrap_or_default(), impossible.map_or(Ok(()), Err));
                    self.recovery_believes(index, self.layout.segment_bytes - self.layout.align, held);
                }
            }
            Step::Beyond(index) => self.recovery_beyond(index, &data),
            Step::Body(index) => self.recovery_body(index, &data),
            Step::Flush => {}
        }
        if self.recovery.phase == Phase::Bodies {
            self.recovery_apply_ready();
        }
    }

    /// A rule was held against what is whole at byte `at` of a segment: that it is broken ends recovery. No torn write does that (P5).
    fn recovery_believes(&mut self, segment: u32, at: u32, held: Result<(), Impossible>) {
        if let Err(what) = held
            && !self.mutant(Mutation::BelievesRecords)
        {
            let offset = self.layout.segment_offset(segment) + u64::from(at);
            self.recovery.error.get_or_insert(RecoveryError::Impossible { segment, offset, what });
        }
    }

    /// Holds the rules against the log that was put together; what its summaries say record by record follows with their bodies.
    fn recovery_hold_rules(&mut self) {
        let mut rules = Rules::new(self.volume_bytes);
        let mut broken = Vec::new();
        for index in &self.recovery.chain {
            let Some(c) = self.recovery.candidates.get(index) else { continue };
            rules.next_segment();
            let at_end = self.layout.segment_bytes - self.layout.align;
            match (&c.trailer, &c.scan) {
                (Some(trailer), _) => broken.push((*index, at_end, rules.trailer(trailer))),
                (None, Some(scan)) => {
                    broken.extend(scan.entries.iter().map(|(h, e)| (*index, e.offset, rules.record(h))));
                }
                (None, None) => {}
            }
        }
        let first = broken.into_iter().find(|(_, _, held)| held.is_err());
        if let Some((segment, at, held)) = first {
            self.recovery_believes(segment, at, held);
        }
    }

    /// In place of a trailer or summary that cannot be read its segment is read through, which must go well: a trailer is met
    /// there after all, or is known not to be there.
    fn recovery_read_failed(&mut self, step: Step, error: IoError) {
        self.figures.cache_errors += 1;
        match step {
            Step::Trailer(_) => {}
            Step::Body(index) => self.recovery_body(index, &[]),
            Step::Header(_) | Step::LongHeader(_) | Step::Scan(_) | Step::Beyond(_) | Step::Flush => {
                self.recovery.error.get_or_insert(RecoveryError::Io(error));
            }
        }
    }

    /// The write that opened the next segment may be lost although records behind it are there, or have gone to the
    /// segment before it and have destroyed that one, too. The log would seem to end before; its records say better.
    fn recovery_beyond(&mut self, index: u32, data: &[u8]) {
        let ahead = self.map.segments.next_free().take_while(|i| *i != index).count() as u64;
        let segment_seq = self.recovery_next_segment_seq() + ahead;
        let proof = sweep(&self.layout, Rules::new(self.volume_bytes), segment_seq, data).proof;
        let trailer = &data[data.len().saturating_sub(self.layout.align as usize)..];
        let sealed = Trailer::decode(&self.layout, segment_seq, trailer).map(|t| (t.generation, t.last_seq));
        self.recovery.beyond = self.recovery.beyond.max(proof).max(sealed.unwrap_or_default());
    }

    /// Number of the segment that would follow the log's last one.
    fn recovery_next_segment_seq(&self) -> u64 {
        self.map.segments.newest_place().map_or(1, |newest| newest + 1)
    }

    /// The segments that would have been opened next. If some that the log's last run opened there are known, it got at least as far.
    fn recovery_steps_beyond(&self) -> VecDeque<Step> {
        let (next, candidates) = (self.recovery_next_segment_seq(), &self.recovery.candidates);
        let last = self.recovery.chain.back().and_then(|i| candidates.get(i));
        let run = last.and_then(Candidate::reach).map_or(0, |r| r.generation);
        let known = candidates.values().filter(|c| c.header.generation >= run).map(|c| c.header.segment_seq);
        let far = !self.mutant(Mutation::LooksTooNear);
        let known = known.max().filter(|_| far).map_or(0, |seq| (seq + 1).saturating_sub(next));
        let places = (next..).zip(self.map.segments.next_free().take(known as usize + BEYOND_SEGMENTS));
        // What those say that are what they should be has been heard.
        let heard = |(seq, i): &(u64, u32)| candidates.get(i).is_some_and(|c| c.header.segment_seq == *seq);
        places.filter(|place| !heard(place)).map(|(_, i)| Step::Beyond(i)).collect()
    }

    /// Puts the log together, or finds that it cannot be done.
    fn recovery_find_log(&mut self) {
        if let Err(error) = self.recovery_judge() {
            self.recovery_end(Err(error));
            return;
        }
        self.recovery_hold_rules();
        self.recovery.phase = Phase::Beyond;
        self.map.segments.order_free();
        self.recovery.todo = self.recovery_steps_beyond();
    }

    /// There is proof behind the log's end of more than the log has. What was doubtful there is damage then, and the log
    /// goes on behind it; if that is not enough, something is lost.
    fn recovery_judge_again(&mut self) {
        let last = self.recovery.report.last_seq;
        self.map.segments.forget_all();
        self.recovery.report.records_torn = 0;
        self.recovery_find_log();
        if self.life == Life::Recovering && self.recovery.report.last_seq <= last {
            let segment = self.recovery.chain.back().copied().unwrap_or_default();
            self.recovery_end(Err(RecoveryError::LostRecord { seq: last.0 + 1, segment }));
        }
    }

    /// A summary has been read. If it is damaged, its segment is read through instead.
    fn recovery_body(&mut self, index: u32, data: &[u8]) {
        let Some(c) = self.recovery.candidates.get_mut(&index) else {
            return;
        };
        let Some(trailer) = c.trailer else { return };
        let at = data.len().saturating_sub(trailer.bytes(self.layout.align));
        match trailer.entries(&self.layout, &data[at..]) {
            Ok(entries) => {
                self.recovery.bodies.insert(index, entries);
            }
            Err(error) => {
                let at = self.layout.segment_bytes - trailer.bytes(self.layout.align) as u32;
                self.recovery_believes(index, at, Impossible::of(&error).map_or(Ok(()), Err));
                self.recovery.todo.push_front(Step::Scan(index));
            }
        }
    }

    fn recovery_next_phase(&mut self) {
        match self.recovery.phase {
            Phase::Headers => {
                self.recovery_drop_doubles();
                self.recovery.phase = Phase::Trailers;
                self.recovery.todo = self.recovery.candidates.keys().map(|i| Step::Trailer(*i)).collect();
            }
            Phase::Trailers => {
                self.recovery.phase = Phase::Scans;
                let unsealed = self.recovery.candidates.values().filter(|c| c.trailer.is_none());
                self.recovery.todo = unsealed.map(|c| Step::Scan(c.index)).collect();
            }
            Phase::Scans => self.recovery_find_log(),
            Phase::Beyond if self.recovery_proof() > self.recovery.report.last_seq => {
                self.recovery_judge_again();
            }
            Phase::Beyond => {
                self.recovery.phase = Phase::Bodies;
                let sealed = |i: &&u32| self.recovery.candidates.get(i).is_some_and(|c| c.trailer.is_some());
                self.recovery.todo =
                    self.recovery.chain.iter().filter(sealed).map(|i| Step::Body(*i)).collect();
                self.recovery_apply_ready();
            }
            Phase::Bodies => {
                self.recovery.phase = Phase::Flush;
                if !self.mutant(Mutation::RecoversVolatile) {
                    self.recovery.todo = VecDeque::from([Step::Flush]);
                }
            }
            Phase::Flush => {
                let report = self.recovery.report;
                self.recovery_end(Ok(report));
            }
        }
    }

    /// Of two segments with the same place in the log, the later run's counts: the other is a leftover of records
    /// that were never acknowledged.
    fn recovery_drop_doubles(&mut self) {
        let mut best: BTreeMap<u64, (u64, u32)> = BTreeMap::new();
        for c in self.recovery.candidates.values() {
            let entry = best.entry(c.header.segment_seq).or_insert((c.header.generation, c.index));
            *entry = (*entry).max((c.header.generation, c.index));
        }
        self.recovery.candidates.retain(|i, c| best.get(&c.header.segment_seq).is_some_and(|b| b.1 == *i));
    }

    /// Records up to this one were durable once. After a clean stop these are all that its run wrote, whose mark lies in
    /// a segment without a summary: what does not match there is damaged, not torn.
    fn recovery_proof(&self) -> Seq {
        if self.mutant(Mutation::IgnoresProof) {
            return Seq(0);
        }
        let Recovery { candidates, trust_clean, beyond, .. } = &self.recovery;
        let last_run = candidates.values().map(Candidate::generation).max().unwrap_or_default();
        let scans = candidates.values().filter_map(|c| c.scan.as_ref());
        let newest = scans.map(|s| s.swept.newest).max().filter(|n| *trust_clean && n.0 >= last_run);
        candidates.values().map(Candidate::proof).chain([*beyond]).chain(newest).max().unwrap_or_default().1
    }

    /// Finds the segments that form the log. See the case table.
    fn recovery_judge(&mut self) -> Result<(), RecoveryError> {
        let proof = self.recovery_proof();
        let starts: BTreeMap<u64, SegmentHeader> =
            self.recovery.candidates.values().map(|c| (c.header.segment_seq, c.header)).collect();
        for c in self.recovery.candidates.values_mut() {
            if let Some(scan) = &mut c.scan {
                if let Some(next) = starts.get(&(c.header.segment_seq + 1)) {
                    scan.end_before(next);
                }
                scan.accept_proven(proof);
            }
        }
        let mut order: Vec<&Candidate> = self.recovery.candidates.values().collect();
        order.sort_unstable_by_key(|c| c.header.segment_seq);
        let linked = |a: &Candidate, b: &Candidate| {
            a.header.segment_seq + 1 == b.header.segment_seq
                && a.next_seq() == b.header.first_seq
                && a.reach().is_some_and(|r| r.generation <= b.header.generation)
        };
        // Runs of linked segments, newest first: the log is the newest run that reaches back to its own tail.
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
                    let any = self.mutant(Mutation::IgnoresTail);
                    let live = |c: &&&Candidate| c.header.segment_seq >= reach.tail || any;
                    let chain: VecDeque<u32> =
                        run.iter().filter(live).filter(with_records).map(|c| c.index).collect();
                    self.recovery.chain = chain;
                    self.recovery_resume(reach);
                    return Ok(());
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
        if proof > Seq(0) {
            return Err(missing.unwrap_or(RecoveryError::LostSegment { segment_seq: 1 }));
        }
        Ok(())
    }

    /// The log is known: opens its segments and places its head.
    fn recovery_resume(&mut self, reach: Reach) {
        let chain = self.recovery.chain.clone();
        self.recovery.clean_upto = reach.clean_upto;
        self.recovery.ordered = reach.ordered;
        self.recovery.trust_clean &= reach.clean_stop;
        let mut head = None;
        let mut next_segment_seq = 1;
        for (n, index) in chain.iter().enumerate() {
            let Some(c) = self.recovery.candidates.get(index) else {
                continue;
            };
            let time = match (&c.trailer, &c.scan) {
                (Some(t), _) => t.time_first_ns,
                (None, scan) => scan.as_ref().and_then(|s| s.entries.first()).map_or(0, |(h, _)| h.time_ns),
            };
            let h = c.header;
            self.map.segments.open(*index, h.segment_seq, h.first_seq, time, h.generation);
            let segment = self.map.segments.get_mut(*index);
            segment.state = SegmentState::Sealed;
            segment.last_seq = Seq(c.next_seq().0 - 1);
            next_segment_seq = h.segment_seq + 1;
            // Behind a trailer no record may be written: it would not know of it.
            if let (true, None, Some(scan)) = (n + 1 == chain.len(), &c.trailer, &c.scan) {
                let mut summary = SummaryBuilder::default();
                scan.entries.iter().for_each(|(h, _)| summary.push(h, self.layout.align));
                head = Some((*index, scan.end, summary));
                segment.state = SegmentState::Open;
                self.recovery.report.records_torn += u64::from(scan.torn);
            }
        }
        self.recovery.report.last_seq = reach.last_seq;
        self.recovery.report.segments_live = chain.len() as u64;
        self.log.resume(reach.last_seq, next_segment_seq, reach.tail, reach.clean_upto, reach.ordered, head);
    }

    /// Applies, in order, the segments whose entries are at hand.
    fn recovery_apply_ready(&mut self) {
        while let Some(index) = self.recovery.chain.front().copied() {
            let Some(c) = self.recovery.candidates.get_mut(&index) else {
                return;
            };
            let entries = match (self.recovery.bodies.remove(&index), c.scan.take()) {
                (Some(entries), _) => entries,
                (None, Some(scan)) => scan.entries.into_iter().map(|(_, e)| e).collect(),
                (None, None) => return,
            };
            let complete = Seq(c.header.first_seq.0 + entries.len() as u64) == c.next_seq();
            if !complete && c.trailer.is_some() {
                let seq = c.header.first_seq.0 + entries.len() as u64;
                self.recovery.error.get_or_insert(RecoveryError::LostRecord { seq, segment: index });
                return;
            }
            let mut seq = c.header.first_seq;
            let mut rules = Rules::new(self.volume_bytes);
            for entry in &entries {
                self.recovery_believes(index, entry.offset, rules.extents(&entry.extents));
            }
            if self.recovery.error.is_some() {
                return;
            }
            self.recovery.chain.pop_front();
            for entry in entries {
                self.recovery_apply(index, seq, &entry);
                seq = seq.next();
            }
            if self.map.segments.get(index).state == SegmentState::Sealed {
                self.map.segments.shrink(index);
            }
        }
    }

    /// What one record says becomes what the index says.
    fn recovery_apply(&mut self, index: u32, seq: Seq, entry: &SummaryEntry) {
        let first_seq = self.map.segments.get(index).first_seq;
        self.map.segments.push_record(index, entry.distance);
        let mut at = entry.offset + entry.header_bytes;
        let mut checksums = entry.checksums.iter();
        for extent in &entry.extents {
            let kind = match extent.kind {
                ExtentKind::Supersede if self.mutant(Mutation::IgnoresSupersede) => continue,
                ExtentKind::Zero if self.mutant(Mutation::IgnoresZeroes) => continue,
                ExtentKind::Supersede => {
                    self.forget(BlockRange::new(extent.block, u64::from(extent.count)), false);
                    continue;
                }
                ExtentKind::Data | ExtentKind::Clean => SlotKind::Data,
                ExtentKind::Zero => SlotKind::Zero,
                ExtentKind::Poison => SlotKind::Poison,
            };
            let clean = seq <= self.recovery.clean_upto && !self.mutant(Mutation::IgnoresCleanMark);
            let dirty = extent.kind != ExtentKind::Clean && !clean;
            for n in 0..u64::from(extent.count) {
                let data = extent.kind.has_data();
                let checksum = if data { checksums.next().copied().unwrap_or_default() } else { 0 };
                let offset = if data { at } else { 0 };
                if data {
                    at += forebay_block::BLOCK_BYTES as u32;
                }
                // Hazard 1: after anything but a clean stop the backing may be newer than a clean copy.
                if dirty || self.recovery.trust_clean || self.mutant(Mutation::TrustsCleanAfterCrash) {
                    let block = extent.block.plus(n);
                    let slot = Slot::new(block, offset, checksum, kind, seq, first_seq);
                    let slot = self.map.segments.push(index, slot);
                    self.make_current(block, slot, dirty);
                    self.track(slot);
                }
            }
        }
    }

    fn recovery_end(&mut self, result: Result<RecoveryReport, RecoveryError>) {
        let result = result.and_then(|report| match self.journal.found_prepared() {
            // Only what was durable in the log has come there.
            Some(found) if found > report.last_seq => {
                Err(RecoveryError::BehindBacking { last_seq: report.last_seq.0, backing_seq: found.0 })
            }
            _ => Ok(report),
        });
        let dirty =
            self.map.index.slots().filter(|slot| self.map.segments.slot(*slot).has(DIRTY)).count() as u64;
        let blocks_clean = self.map.index.len() as u64 - dirty;
        let result = result.map(|report| RecoveryReport { blocks_dirty: dirty, blocks_clean, ..report });
        if let Ok(report) = &result
            && !self.recovery.trust_clean
        {
            self.drops.distrust(report.last_seq);
        }
        if result.is_ok() && !self.recovery.trust_clean {
            self.log_begin_after_crash();
        }
        self.life = if result.is_ok() { Life::Running } else { Life::RecoveryFailed };
        let (clean_upto, ordered) = (self.recovery.clean_upto, self.recovery.ordered);
        self.recovery = Recovery::new(false);
        self.order_begin(clean_upto, ordered);
        self.effects.push(Effect::Recovered(result));
    }
}

impl Scan {
    /// A later run has found the log's end before these doubtful records, opened the next segment and used their
    /// numbers again: they were torn, whatever is proven of the numbers.
    fn end_before(&mut self, next: &SegmentHeader) {
        let over = |d: &Doubt| d.header.seq >= next.first_seq && d.header.generation < next.generation;
        if let Some(n) = self.doubtful.iter().position(over) {
            self.doubtful.truncate(n);
        }
    }

    /// Takes doubtful records after all, as far as they were durable according to `proof`: a data block that does not
    /// match is damage then, which reads will find, and not the end of the log. What follows such a record whole
    /// counts too, as it would behind a good one.
    fn accept_proven(&mut self, proof: Seq) {
        while self.doubtful.front().is_some_and(|d| d.header.seq <= proof || (d.matches && self.accepted)) {
            if let Some(doubt) = self.doubtful.pop_front() {
                self.accepted = true;
                self.end = doubt.end;
                self.entries.push((doubt.header, doubt.entry));
            }
        }
        self.torn &= !(self.accepted && self.doubtful.is_empty());
    }
}

/// The header of a segment. If it is damaged, what it says follows from the segment's first record. A whole header of
/// another place came here with its records by a misdirected write: they are of no use. One that says what cannot be is no damage that
/// anything makes good.
///
/// # Errors
/// [`FormatError::Truncated`] if `data` has too little of the first record; others if the segment is of no use.
fn segment_header(layout: &Layout, index: u32, data: &[u8]) -> Result<SegmentHeader, FormatError> {
    match SegmentHeader::decode(layout, index, data) {
        Err(error @ (FormatError::Foreign | FormatError::Field(_))) => return Err(error),
        Ok(header) => return Ok(header),
        Err(_) => {}
    }
    let rest = data.get(layout.align as usize..).ok_or(FormatError::Truncated)?;
    let segment_seq = RecordHeader::segment_seq_of(rest).ok_or(FormatError::Magic)?;
    let first = RecordHeader::decode(layout, segment_seq, layout.align, rest)?;
    Ok(SegmentHeader { generation: first.generation, segment_seq, first_seq: first.seq, index })
}

/// The trailer of a segment, which `data` ends with; not that of an earlier run whose segment of this number was lost. And whether it says
/// what can be.
fn segment_trailer(
    layout: &Layout,
    segment: &SegmentHeader,
    data: &[u8],
) -> (Option<Trailer>, Result<(), Impossible>) {
    let at = data.len().saturating_sub(layout.align as usize);
    match Trailer::decode(layout, segment.segment_seq, &data[at..]) {
        Ok(t) if t.first_seq == segment.first_seq && t.generation >= segment.generation => {
            (Some(t), Rules::trailer_alone(&t))
        }
        Ok(_) => (None, Ok(())),
        Err(error) => (None, Impossible::of(&error).map_or(Ok(()), Err)),
    }
}

/// Reads a segment through. The records that count are those that follow each other without a gap, in place,
/// number and run, and whose data is as it was written.
fn scan_segment(
    layout: &Layout,
    rules: Rules,
    segment: &SegmentHeader,
    data: &[u8],
    planted: Planted,
) -> Scan {
    let mut scan = Scan {
        entries: Vec::new(),
        end: layout.align,
        torn: false,
        doubtful: VecDeque::new(),
        accepted: false,
        swept: sweep(layout, rules, segment.segment_seq, data),
    };
    let (mut at, mut seq, mut generation) = (layout.align, segment.first_seq, segment.generation);
    let mut in_doubt = false;
    while let Some(rest) = data.get(at as usize..) {
        let any_lap = planted.is(Mutation::AcceptsEarlierLap);
        let lap = RecordHeader::segment_seq_of(rest).filter(|_| any_lap).unwrap_or(segment.segment_seq);
        let Ok(header) = RecordHeader::decode(layout, lap, at, rest) else {
            scan.torn |= RecordHeader::may_start(rest);
            break;
        };
        let end = at as usize + header.record_bytes(layout.align);
        let earlier_run = header.generation < generation && !planted.is(Mutation::AcceptsEarlierRun);
        if (header.seq != seq || earlier_run) && !any_lap || end > data.len() {
            break;
        }
        let header_bytes = header.header_bytes(layout.align) as u32;
        let matches = data_matches(&header, &data[(at + header_bytes) as usize..end]);
        let matches = matches || planted.is(Mutation::AcceptsTorn);
        in_doubt |= !matches;
        let entry = SummaryEntry {
            offset: at,
            header_bytes,
            distance: header.distance,
            extents: header.extents.clone(),
            checksums: header.checksums.clone(),
        };
        generation = header.generation;
        at = end as u32;
        seq = seq.next();
        if in_doubt {
            scan.torn = true;
            scan.doubtful.push_back(Doubt { header, entry, end: at, matches });
        } else {
            scan.end = at;
            scan.entries.push((header, entry));
        }
    }
    if planted.is(Mutation::IgnoresLastRecord)
        && let Some((_, last)) = scan.entries.pop()
    {
        scan.end = last.offset;
    }
    scan
}

/// What the records of the segment say, whether or not the log reaches them.
fn sweep(layout: &Layout, rules: Rules, segment_seq: u64, data: &[u8]) -> Swept {
    let mut swept = Swept::default();
    let align = layout.align as usize;
    for at in (align..data.len()).step_by(align) {
        let broken = match RecordHeader::decode(layout, segment_seq, at as u32, &data[at..]) {
            Ok(h) => {
                swept.proof = swept.proof.max((h.generation, h.durable_upto));
                swept.newest = swept.newest.max((h.generation, h.seq));
                rules.record_alone(&h).err()
            }
            Err(error) => Impossible::of(&error),
        };
        swept.impossible = swept.impossible.or(broken.map(|what| (at as u32, what)));
    }
    swept
}

fn data_matches(header: &RecordHeader, data: &[u8]) -> bool {
    let blocks = header
        .extents
        .iter()
        .filter(|e: &&Extent| e.kind.has_data())
        .flat_map(|e| (0..u64::from(e.count)).map(|n| e.block.plus(n)));
    blocks
        .zip(data.chunks_exact(4096))
        .zip(&header.checksums)
        .all(|((block, data), sum)| block_checksum(block, header.seq, data) == *sum)
}

#[cfg(test)]
mod tests {
    use forebay_block::BlockNo;

    use super::*;

    #[test]
    fn a_damaged_segment_header_follows_from_a_first_record_however_long() {
        let layout =
            Layout { cache_id: [7; 16], generation: 3, align: 512, segment_bytes: 8 << 20, segment_count: 8 };
        for blocks in [1u32, 500] {
            let record = RecordHeader {
                generation: 2,
                segment_seq: 17,
                seq: Seq(400),
                offset: 512,
                durable_upto: Seq(0),
                clean_upto: Seq(0),
                tail: 1,
                time_ns: 0,
                clean_stop: false,
                ordered: Consistent::No,
                distance: 0,
                extents: (0..blocks)
                    .map(|n| Extent { block: BlockNo(u64::from(n) * 2), count: 1, kind: ExtentKind::Data })
                    .collect(),
                checksums: vec![0; blocks as usize],
            };
            let mut data = vec![0; HEAD_BYTES_MAX];
            let len = record.header_bytes(512);
            record.encode(&layout, &mut data[512..512 + len]);
            let short = segment_header(&layout, 4, &data[..HEAD_BYTES]).map(|h| h.first_seq);
            assert_eq!(short, if blocks == 1 { Ok(Seq(400)) } else { Err(FormatError::Truncated) });
            let mut forged = data.clone();
            RecordHeader { seq: Seq(0), ..record }.encode(&layout, &mut forged[512..512 + len]);
            assert_eq!(segment_header(&layout, 4, &forged), Err(FormatError::Field("seq")));
            let header = SegmentHeader { generation: 2, segment_seq: 17, first_seq: Seq(400), index: 4 };
            assert_eq!(segment_header(&layout, 4, &data), Ok(header));
            let elsewhere = SegmentHeader { index: 5, ..header };
            elsewhere.encode(&layout, &mut data);
            assert_eq!(segment_header(&layout, 4, &data), Err(FormatError::Foreign), "it went astray");
        }
    }
}
