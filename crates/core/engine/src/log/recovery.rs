//! Recovery: from the medium to a map and a log. `docs/design/recovery.md` has the case table and its invariants.
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
//! [`Recovery`] owns what it has read and what it builds. Whoever drives it asks for the [`Next`] thing to do and reports each read; at the
//! end it gets a map and a log, or an error, and until then nothing that it has changed.
//!
//! 1. Recovery writes nothing, so that a crash in it is just another crash. What it leaves torn behind the log's end the run's first record
//!    makes void ([`Log::begin_after_crash`]).
//! 2. A record that was durable is in the log that it returns, or it ends with an error (P1).
//! 3. What is whole and says what no run of a volume writes ends it with an error. No torn write does that (P5).

use std::collections::{BTreeMap, VecDeque};

use forebay_block::{Buf, DeviceOp, DeviceResult, IoError, Seq};
use forebay_format::record::Consistent;
use forebay_format::rules::{Impossible, Rules};
use forebay_format::summary::{SummaryBuilder, SummaryEntry, Trailer};
use forebay_format::{FormatError, Layout};

use crate::interface::{Class, RecoveryError, RecoveryReport};
use crate::log::{Ask, Io, Log, Resume, Resumed};
use crate::map::Map;
use crate::mutation::{Mutation, Planted};

use self::build::Build;
use self::judge::{Candidate, Candidates, Found};
use self::scan::{
    HEAD_BYTES, HEAD_BYTES_MAX, Proof, TRAILER_BYTES, scan_segment, segment_header, segment_trailer, sweep,
};

mod build;
mod judge;
mod scan;
#[cfg(test)]
mod tests;

/// Reads under way at once.
const READS_MAX: usize = 32;
/// Summaries that may be read ahead of the one that is applied.
const BODIES_AHEAD_MAX: usize = 8;

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

/// What recovery has found.
pub(crate) struct Recovered {
    pub(crate) map: Map,
    pub(crate) log: Log,
    pub(crate) report: RecoveryReport,
    /// Everything in records up to this one is clean.
    pub(crate) clean_upto: Seq,
    /// How consistent the backing was when the last record was written.
    pub(crate) consistent: Consistent,
    /// The last run stopped cleanly, and the log says so: its clean copies are believed.
    pub(crate) trusts_clean: bool,
    /// A mark of a lost block was replaced where an order is kept.
    pub(crate) is_broken: bool,
    /// Versions that were overwritten are dirty: the policy kept an order when they were met.
    pub(crate) has_versions: bool,
}

/// What recovery wants to happen next.
pub(crate) enum Next {
    /// This operation of the cache.
    Ask(Ask),
    /// The end of one that is under way.
    Wait,
    /// Nothing more: what it has built is whole ([`Recovery::finish`]).
    Built,
    /// Nothing more: it has failed.
    Failed(RecoveryError),
}

/// State of recovery.
pub(crate) struct Recovery {
    layout: Layout,
    volume_bytes: u64,
    planted: Planted,
    /// The last run stopped cleanly, as far as is known.
    trusts_clean: bool,
    phase: Phase,
    todo: VecDeque<Step>,
    outstanding: usize,
    candidates: Candidates,
    /// Physical numbers of the log's segments in its order, of which nothing is applied yet.
    chain: VecDeque<u32>,
    bodies: BTreeMap<u32, Vec<SummaryEntry>>,
    build: Build,
    /// Where the log goes on, if it has a record.
    resume: Option<Resume>,
    /// What records say that lie where the log would have gone on.
    beyond: Proof,
    error: Option<RecoveryError>,
    report: RecoveryReport,
}

impl Recovery {
    /// Recovery of a volume whose last run stopped cleanly, or may not have.
    pub(crate) fn new(layout: Layout, volume_bytes: u64, clean_stop: bool, planted: Planted) -> Self {
        Self {
            layout,
            volume_bytes,
            planted,
            trusts_clean: clean_stop,
            phase: Phase::Headers,
            todo: (0..layout.segment_count).map(Step::Header).collect(),
            outstanding: 0,
            candidates: Candidates::default(),
            chain: VecDeque::new(),
            bodies: BTreeMap::new(),
            build: Build::new(&layout, clean_stop, Seq(0), planted),
            resume: None,
            beyond: Proof::default(),
            error: None,
            report: RecoveryReport::default(),
        }
    }

    /// What may be done now; when a phase has ended, the next one begins. `keeps_versions` where the policy keeps an order.
    pub(crate) fn next(&mut self, keeps_versions: bool) -> Next {
        loop {
            if let Some(ask) = self.next_ask() {
                return Next::Ask(ask);
            }
            if self.outstanding > 0 {
                return Next::Wait;
            }
            if let Some(error) = self.error.take() {
                return Next::Failed(error);
            }
            if self.todo.is_empty() {
                match self.next_phase(keeps_versions) {
                    Ok(false) => {}
                    Ok(true) => return Next::Built,
                    Err(error) => return Next::Failed(error),
                }
            }
        }
    }

    fn next_ask(&mut self) -> Option<Ask> {
        if self.outstanding >= READS_MAX || self.error.is_some() {
            return None;
        }
        let ahead = self.bodies.len() + self.outstanding;
        match self.todo.front() {
            Some(Step::Body(_)) if ahead >= BODIES_AHEAD_MAX => return None,
            // A whole segment in memory is enough at a time.
            Some(Step::Scan(_) | Step::Beyond(_)) if self.outstanding > 0 => return None,
            _ => {}
        }
        let step = self.todo.pop_front()?;
        self.outstanding += 1;
        let op = match self.place_of(step) {
            Some((index, at, len)) => {
                DeviceOp::Read { offset: self.layout.segment_offset(index) + at as u64, len }
            }
            None => DeviceOp::Flush,
        };
        Some(Ask { op, class: Class::Foreground, owner: Io::Recovery(step) })
    }

    /// Segment, byte offset there, and length of what a step reads.
    fn place_of(&self, step: Step) -> Option<(u32, usize, usize)> {
        let bytes = self.layout.segment_bytes as usize;
        Some(match step {
            Step::Header(i) => (i, 0, HEAD_BYTES),
            Step::LongHeader(i) => (i, 0, HEAD_BYTES_MAX),
            Step::Trailer(i) => (i, bytes - TRAILER_BYTES, TRAILER_BYTES),
            Step::Scan(i) | Step::Beyond(i) => (i, 0, bytes),
            Step::Body(i) => {
                let len = self.candidates.0.get(&i).and_then(|c| c.trailer);
                let len = len.map_or(0, |t| t.bytes(self.layout.align)).next_multiple_of(TRAILER_BYTES);
                (i, bytes - len, len)
            }
            Step::Flush => return None,
        })
    }

    /// What was asked for has ended.
    pub(crate) fn done(&mut self, step: Step, result: DeviceResult, keeps_versions: bool) {
        self.outstanding -= 1;
        match result {
            Ok(data) => self.read(step, data.unwrap_or_else(|| Buf::zeroed(0))),
            Err(error) => return self.failed(step, error),
        }
        if self.phase == Phase::Bodies {
            self.apply_ready(keeps_versions);
        }
    }

    fn read(&mut self, step: Step, data: Buf) {
        match step {
            Step::Header(index) | Step::LongHeader(index) => {
                match segment_header(&self.layout, index, &data) {
                    Ok(header) => {
                        self.candidates.0.insert(index, Candidate::new(index, header));
                    }
                    Err(FormatError::Truncated) if step == Step::Header(index) => {
                        self.todo.push_front(Step::LongHeader(index));
                    }
                    Err(error) => self.believes(index, 0, Impossible::of(&error).map_or(Ok(()), Err)),
                }
            }
            Step::Trailer(index) => {
                if let Some(c) = self.candidates.0.get_mut(&index) {
                    let (trailer, held) = segment_trailer(&self.layout, &c.header, &data);
                    c.trailer = trailer;
                    self.believes(index, self.layout.segment_bytes - self.layout.align, held);
                }
            }
            Step::Scan(index) => self.scanned(index, &data),
            Step::Beyond(index) => self.read_beyond(index, &data),
            Step::Body(index) => self.read_body(index, &data),
            Step::Flush => {}
        }
    }

    /// A segment has been read through.
    fn scanned(&mut self, index: u32, data: &[u8]) {
        let Some(c) = self.candidates.0.get_mut(&index) else { return };
        let rules = Rules::new(self.volume_bytes);
        let mut scan = scan_segment(&self.layout, rules, &c.header, data, self.planted);
        // If only its summary is damaged, the trailer proves all of the records. One that could not be read alone
        // counts, too: no record may be written behind it.
        let (trailer, held) = segment_trailer(&self.layout, &c.header, data);
        c.trailer = c.trailer.or(trailer);
        scan.accept_proven(c.trailer.map_or(Seq(0), |t| t.last_seq));
        let needed = c.trailer.is_none() || self.phase == Phase::Bodies;
        let (at, impossible) = scan.swept.impossible.unzip();
        c.scan = Some(scan).filter(|_| needed);
        self.report.segments_scanned += 1;
        self.believes(index, at.unwrap_or_default(), impossible.map_or(Ok(()), Err));
        self.believes(index, self.layout.segment_bytes - self.layout.align, held);
    }

    /// A rule was held against what is whole at byte `at` of a segment: that it is broken ends recovery.
    fn believes(&mut self, segment: u32, at: u32, held: Result<(), Impossible>) {
        if let Err(what) = held
            && !self.planted.is(Mutation::BelievesRecords)
        {
            let offset = self.layout.segment_offset(segment) + u64::from(at);
            self.error.get_or_insert(RecoveryError::Impossible { segment, offset, what });
        }
    }

    /// Holds the rules against the log that was put together; what its summaries say record by record follows with their bodies.
    fn hold_rules(&mut self) {
        let mut rules = Rules::new(self.volume_bytes);
        let mut broken = Vec::new();
        for index in &self.chain {
            let Some(c) = self.candidates.0.get(index) else { continue };
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
            self.believes(segment, at, held);
        }
    }

    /// In place of a trailer or summary that cannot be read its segment is read through, which must go well: a trailer is met
    /// there after all, or is known not to be there.
    fn failed(&mut self, step: Step, error: IoError) {
        match step {
            Step::Trailer(_) => {}
            Step::Body(index) => self.read_body(index, &[]),
            Step::Header(_) | Step::LongHeader(_) | Step::Scan(_) | Step::Beyond(_) | Step::Flush => {
                self.error.get_or_insert(RecoveryError::Io(error));
            }
        }
    }

    /// The write that opened the next segment may be lost although records behind it are there, or have gone to the
    /// segment before it and have destroyed that one, too. The log would seem to end before; its records say better.
    fn read_beyond(&mut self, index: u32, data: &[u8]) {
        let ahead = self.build.map.segments().next_free().take_while(|i| *i != index).count() as u64;
        let segment_seq = self.next_segment_seq() + ahead;
        let proof = sweep(&self.layout, Rules::new(self.volume_bytes), segment_seq, data).proof;
        let trailer = &data[data.len().saturating_sub(self.layout.align as usize)..];
        let sealed = Trailer::decode(&self.layout, segment_seq, trailer).map(|t| (t.generation, t.last_seq));
        self.beyond = self.beyond.max(proof).max(sealed.unwrap_or_default());
    }

    /// Number of the segment that would follow the log's last one.
    fn next_segment_seq(&self) -> u64 {
        self.build.map.segments().newest_place().map_or(1, |newest| newest + 1)
    }

    /// A summary has been read. If it is damaged, its segment is read through instead.
    fn read_body(&mut self, index: u32, data: &[u8]) {
        let Some(trailer) = self.candidates.0.get(&index).and_then(|c| c.trailer) else { return };
        let at = data.len().saturating_sub(trailer.bytes(self.layout.align));
        match trailer.entries(&self.layout, &data[at..]) {
            Ok(entries) => {
                self.bodies.insert(index, entries);
            }
            Err(error) => {
                let at = self.layout.segment_bytes - trailer.bytes(self.layout.align) as u32;
                self.believes(index, at, Impossible::of(&error).map_or(Ok(()), Err));
                self.todo.push_front(Step::Scan(index));
            }
        }
    }

    /// Begins the next phase; true if there is none.
    fn next_phase(&mut self, keeps_versions: bool) -> Result<bool, RecoveryError> {
        match self.phase {
            Phase::Headers => {
                self.candidates.drop_doubles();
                self.phase = Phase::Trailers;
                self.todo = self.candidates.0.keys().map(|i| Step::Trailer(*i)).collect();
            }
            Phase::Trailers => {
                self.phase = Phase::Scans;
                let unsealed = self.candidates.0.values().filter(|c| c.trailer.is_none());
                self.todo = unsealed.map(|c| Step::Scan(c.index)).collect();
            }
            Phase::Scans => self.find_log()?,
            Phase::Beyond if self.proof() > self.report.last_seq => self.judge_again()?,
            Phase::Beyond => {
                self.phase = Phase::Bodies;
                let sealed = |i: &&u32| self.candidates.0.get(i).is_some_and(|c| c.trailer.is_some());
                self.todo = self.chain.iter().filter(sealed).map(|i| Step::Body(*i)).collect();
                self.apply_ready(keeps_versions);
            }
            Phase::Bodies => {
                self.phase = Phase::Flush;
                if !self.planted.is(Mutation::RecoversVolatile) {
                    self.todo = VecDeque::from([Step::Flush]);
                }
            }
            Phase::Flush => return Ok(true),
        }
        Ok(false)
    }

    /// Records up to this one were durable once.
    fn proof(&self) -> Seq {
        self.candidates.proof(self.trusts_clean, self.beyond, self.planted)
    }

    /// Puts the log together, or finds that it cannot be done.
    fn find_log(&mut self) -> Result<(), RecoveryError> {
        if let Some(found) = self.candidates.judge(self.proof(), self.planted)? {
            self.resume_at(found);
        }
        self.hold_rules();
        self.phase = Phase::Beyond;
        self.build.map.segments_mut().order_free();
        let (last, from) = (self.chain.back().copied(), self.next_segment_seq());
        let beyond = self.candidates.beyond(from, self.build.map.segments().next_free(), last, self.planted);
        self.todo = beyond.into_iter().map(Step::Beyond).collect();
        Ok(())
    }

    /// There is proof behind the log's end of more than the log has. What was doubtful there is damage then, and the log
    /// goes on behind it; if that is not enough, something is lost.
    fn judge_again(&mut self) -> Result<(), RecoveryError> {
        let last = self.report.last_seq;
        self.report.records_torn = 0;
        self.find_log()?;
        if self.report.last_seq <= last {
            let segment = self.chain.back().copied().unwrap_or_default();
            return Err(RecoveryError::LostRecord { seq: last.0 + 1, segment });
        }
        Ok(())
    }

    /// The log is known: opens its segments and places its head.
    fn resume_at(&mut self, found: Found) {
        let Found { reach, chain } = found;
        self.trusts_clean &= reach.clean_stop;
        self.build = Build::new(&self.layout, self.trusts_clean, reach.clean_upto, self.planted);
        self.build.open(&chain, &self.candidates);
        let last = chain.back().and_then(|i| self.candidates.0.get(i));
        let mut head = None;
        // Behind a trailer no record may be written: it would not know of it.
        if let Some(Candidate { index, trailer: None, scan: Some(scan), .. }) = last {
            let mut summary = SummaryBuilder::default();
            scan.entries.iter().for_each(|(h, _)| summary.push(h, self.layout.align));
            head = Some(Resumed { index: *index, offset: scan.end, summary });
            self.report.records_torn += u64::from(scan.torn);
        }
        self.report.last_seq = reach.last_seq;
        self.report.segments_live = chain.len() as u64;
        self.resume = Some(Resume {
            last: reach.last_seq,
            next_segment_seq: last.map_or(1, |c| c.header.segment_seq + 1),
            tail: reach.tail,
            clean_upto: reach.clean_upto,
            consistent: reach.ordered,
            head,
        });
        self.chain = chain;
    }

    /// Applies, in order, the segments whose entries are at hand.
    fn apply_ready(&mut self, keeps_versions: bool) {
        while let Some(index) = self.chain.front().copied() {
            let Some(c) = self.candidates.0.get_mut(&index) else { return };
            let entries = match (self.bodies.remove(&index), c.scan.take()) {
                (Some(entries), _) => entries,
                (None, Some(scan)) => scan.entries.into_iter().map(|(_, e)| e).collect(),
                (None, None) => return,
            };
            let first = c.header.first_seq;
            let complete = Seq(first.0 + entries.len() as u64) == c.next_seq();
            if !complete && c.trailer.is_some() {
                let seq = first.0 + entries.len() as u64;
                self.error.get_or_insert(RecoveryError::LostRecord { seq, segment: index });
                return;
            }
            let mut rules = Rules::new(self.volume_bytes);
            for entry in &entries {
                self.believes(index, entry.offset, rules.extents(&entry.extents));
            }
            if self.error.is_some() {
                return;
            }
            self.chain.pop_front();
            self.build.apply(index, first, &entries, keeps_versions);
        }
    }

    /// Hands over what was built.
    pub(crate) fn finish(self) -> Recovered {
        let (blocks_dirty, blocks_clean) = self.build.counts();
        let report = RecoveryReport { blocks_dirty, blocks_clean, ..self.report };
        let (clean_upto, consistent) =
            self.resume.as_ref().map_or((Seq(0), Consistent::No), |r| (r.clean_upto, r.consistent));
        let mut log = match self.resume {
            Some(resume) => Log::resumed(self.layout, self.planted, resume),
            None => Log::new(self.layout, self.planted),
        };
        if !self.trusts_clean {
            log.begin_after_crash();
        }
        let Build { map, is_broken, has_versions, .. } = self.build;
        let trusts_clean = self.trusts_clean;
        Recovered { map, log, report, clean_upto, consistent, trusts_clean, is_broken, has_versions }
    }
}
