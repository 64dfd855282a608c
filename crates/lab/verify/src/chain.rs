//! Following the chain of records from the log's tail to its end.
//!
//! ```text
//!  each segment in order:  continues the chain? ──no──► proven durable? ──no──► end: torn, or left over
//!          │ yes                                            │ yes
//!          ▼                                                ▼
//!  each record: next in order, data whole? ──no──► proven durable? ──no──► end: torn
//!          │ yes                                            │ yes
//!          ▼                                                ▼
//!       visitor                              corruption; go on behind the gap
//! ```

use std::fmt::Display;
use std::io;

use forebay_block::Seq;
use forebay_format::Layout;
use forebay_format::rules::Rules;
use forebay_format::segment::SegmentHeader;
use forebay_format::superblock::Superblock;

use crate::finding::{Finding, FindingKind, Severity};
use crate::image::Image;
use crate::records::{RecordView, SegmentRecords, SummaryView};
use crate::summaries;
use crate::survey::{HeaderOrigin, SegmentInfo, Survey};

/// Takes what is found along the chain.
pub(crate) trait Visitor {
    /// A segment of the log, before its records.
    fn segment(&mut self, segment: &SegmentInfo, records: &SegmentRecords);
    /// A record of the log.
    fn record(&mut self, segment: &SegmentInfo, record: &RecordView);
    /// Something was found.
    fn finding(&mut self, finding: Finding);
}

/// The last record of the log.
#[derive(Clone, Copy, Debug)]
struct LastRecord {
    clean_stop: bool,
    /// It carries nothing: only such a record can be the last one after a clean stop.
    empty: bool,
    generation: u64,
}

/// How the chain ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ChainEnd {
    last: Option<LastRecord>,
    /// Whole records behind the end, of the run that was torn.
    pub(crate) records_torn: u64,
}

/// Where the next record should be.
#[derive(Clone, Copy)]
struct Place {
    index: u32,
    offset: u32,
    /// A damaged header of a record lies there.
    torn_header: bool,
}

struct Follower<'a, V> {
    layout: &'a Layout,
    superblock: &'a Superblock,
    proven: Seq,
    visitor: &'a mut V,
    rules: Rules,
    /// The next record; `None` before the first segment.
    expected: Option<Seq>,
    segment_seq: u64,
    generation: u64,
    place: Place,
    /// A summary is missing; so said only if the chain goes on behind its segment, which was full then.
    summary_missing: Option<Finding>,
    /// The chain has ended in a tear: nothing that follows is part of the log.
    torn: bool,
    end: ChainEnd,
}

/// Follows the chain through the segments of `survey`.
pub(crate) fn follow(
    image: &mut Image<'_>,
    superblock: &Superblock,
    survey: &Survey,
    visitor: &mut impl Visitor,
) -> io::Result<ChainEnd> {
    let layout = &superblock.layout;
    let mut follower = Follower {
        layout,
        superblock,
        proven: survey.proven,
        visitor,
        rules: Rules::new(superblock.volume_bytes),
        expected: None,
        segment_seq: survey.tail.max(1) - 1,
        generation: 0,
        place: Place { index: survey.log.first().map_or(0, |s| s.index), offset: 0, torn_header: false },
        summary_missing: None,
        torn: false,
        end: ChainEnd::default(),
    };
    let mut bytes = Vec::new();
    for (i, segment) in survey.log.iter().enumerate() {
        if !follower.torn && follower.enters(segment, survey.tail) {
            image.read_segment(layout, segment.index, &mut bytes)?;
            let records = SegmentRecords::read(layout, segment, &bytes);
            let follows = |s: &&SegmentInfo| s.header.segment_seq == segment.header.segment_seq + 1;
            let next = survey.log[i + 1..].iter().find(follows).map(|s| s.header);
            follower.segment(segment, &records, &bytes, next);
        }
    }
    follower.finish();
    Ok(follower.end)
}

impl ChainEnd {
    /// The log ends with the mark of a clean stop which says that clean copies are true.
    pub(crate) fn clean_stop(&self) -> bool {
        self.last.is_some_and(|l| l.clean_stop)
    }
}

impl<V: Visitor> Follower<'_, V> {
    /// Whether the chain goes on into `segment`; if it must but does not without a gap, that is corruption.
    fn enters(&mut self, segment: &SegmentInfo, tail: u64) -> bool {
        let h = &segment.header;
        // Before the first record of the log, the record right before this segment stands for those that are missing.
        let expected = self.expected.unwrap_or(if tail == 0 || h.segment_seq == tail {
            h.first_seq
        } else {
            Seq(h.first_seq.0.saturating_sub(1))
        });
        let continues = expected == h.first_seq
            && h.generation >= self.generation
            && (h.segment_seq == self.segment_seq + 1 || tail == 0);
        let summary_missing = self.summary_missing.take();
        if continues {
            if let Some(finding) = summary_missing {
                self.visitor.finding(finding);
            }
        } else {
            let leftover = h.first_seq < expected || h.generation < self.generation;
            if leftover {
                return false;
            }
            if self.proven < expected {
                self.torn = true;
                return false;
            }
            self.report_missing_before(segment, expected);
        }
        if !self.judge_header(segment) {
            self.torn = true;
            return false;
        }
        self.expected = Some(h.first_seq);
        self.segment_seq = h.segment_seq;
        self.generation = self.generation.max(h.generation);
        true
    }

    /// Reports a segment's header that is not as written; whether recovery, too, goes on into the segment.
    fn judge_header(&mut self, segment: &SegmentInfo) -> bool {
        let SegmentInfo { index, header, origin, .. } = segment;
        let proven = self.proven >= header.first_seq;
        let (severity, kind, message) = match origin {
            HeaderOrigin::Medium => return true,
            HeaderOrigin::Lost if !proven => return false,
            HeaderOrigin::Lost => (
                Severity::Corruption,
                FindingKind::SegmentHeaderDamaged,
                "is damaged or was never written, although the records in it were durable",
            ),
            HeaderOrigin::FirstRecord if proven => (
                Severity::Recoverable,
                FindingKind::SegmentHeaderDamaged,
                "is damaged; its first record says the same",
            ),
            HeaderOrigin::FirstRecord => (
                Severity::Note,
                FindingKind::TornTail,
                "is torn; its first record, which was never acknowledged, says the same",
            ),
        };
        let seq = header.segment_seq;
        let message = format!("the header of segment {index} {message} (segment {seq} of the log)");
        let finding = Finding::new(severity, kind, self.layout.segment_offset(*index), message);
        self.visitor.finding(finding.in_segment(*index));
        true
    }

    fn report_missing_before(&mut self, segment: &SegmentInfo, expected: Seq) {
        let (first, next) = (self.segment_seq + 1, segment.header.segment_seq);
        if first >= next {
            self.report_lost(expected, segment.header.first_seq);
            return;
        }
        let which = if first + 1 == next {
            format!("segment {first} of the log is missing")
        } else {
            format!("segments {first} to {} of the log are missing", next - 1)
        };
        let offset = self.layout.segment_offset(self.place.index) + u64::from(self.place.offset);
        self.visitor.finding(
            Finding::new(
                Severity::Corruption,
                FindingKind::SegmentMissing,
                offset,
                format!("{which}: no physical segment has a header or records of them"),
            )
            .of_record(expected.0),
        );
    }

    /// Records from `first` to the one before `next` were durable and are not there.
    fn report_lost(&mut self, first: Seq, next: Seq) {
        let Place { index, offset, torn_header } = self.place;
        let which = if first.next() == next {
            format!("record {first} was durable and is")
        } else {
            format!("records {first} to {} were durable and are", next.0.saturating_sub(1))
        };
        let how = if torn_header { "damaged" } else { "missing" };
        let at = self.layout.segment_offset(index) + u64::from(offset);
        let finding = Finding::new(
            Severity::Corruption,
            FindingKind::RecordDamaged,
            at,
            format!("{which} {how} (segment {index}, offset {offset})"),
        );
        self.visitor.finding(finding.in_segment(index).of_record(first.0));
    }

    fn segment(
        &mut self,
        segment: &SegmentInfo,
        view: &SegmentRecords,
        bytes: &[u8],
        next: Option<SegmentHeader>,
    ) {
        self.visitor.segment(segment, view);
        self.rules.next_segment();
        let sealed = matches!(view.summary, SummaryView::Valid(_));
        let mut whole = true;
        self.place = Place { index: segment.index, offset: view.end, torn_header: view.torn_header };
        for (i, record) in view.records.iter().enumerate() {
            let expected = self.expected.unwrap_or(record.header.seq);
            if record.header.seq < expected {
                continue;
            }
            let h = &record.header;
            if !sealed && next.is_some_and(|n| h.seq >= n.first_seq && h.generation < n.generation) {
                // Torn: a later run went on in the next segment, with the same numbers.
                self.end.records_torn += (view.records.len() - i) as u64;
                return;
            }
            if record.header.seq > expected {
                if self.proven < expected {
                    self.tear((view.records.len() - i) as u64);
                    return;
                }
                self.report_lost(expected, record.header.seq);
                whole = false;
            }
            if !record.bad.is_empty() && !sealed && self.proven < record.header.seq {
                if let Err(what) = self.rules.record_alone(&record.header) {
                    // Its data is torn, but its header is whole.
                    self.report_impossible(segment, record.header.offset, Some(record.header.seq), &what);
                }
                self.place.offset = record.header.offset;
                self.tear((view.records.len() - i - 1) as u64);
                return;
            }
            self.record(segment, record);
            if i >= view.contiguous {
                self.place = Place { index: segment.index, offset: record.end() as u32, torn_header: false };
            }
        }
        if let Some((at, what)) = view.impossible {
            self.report_impossible(segment, at, None, &what);
        } else if whole && let Some(finding) = summaries::judge(self.layout, segment, view, bytes) {
            match finding.kind {
                FindingKind::SummaryMissing => self.summary_missing = Some(finding),
                _ => self.visitor.finding(finding),
            }
        }
    }

    fn tear(&mut self, records_torn: u64) {
        self.torn = true;
        self.end.records_torn += records_torn;
    }

    fn record(&mut self, segment: &SegmentInfo, record: &RecordView) {
        let h = &record.header;
        let at = self.layout.segment_offset(segment.index) + u64::from(h.offset);
        if let Some(e) = record.damage {
            let message = format!(
                "the header of record {} is damaged ({e}); the segment's summary knows what it said (segment {}, offset {})",
                h.seq, segment.index, h.offset
            );
            let finding = Finding::new(Severity::Recoverable, FindingKind::RecordDamaged, at, message);
            self.visitor.finding(finding.in_segment(segment.index).of_record(h.seq.0));
            if let Err(what) = self.rules.extents(&h.extents) {
                self.report_impossible(segment, h.offset, Some(h.seq), &what);
            }
        } else {
            if let Err(what) = self.rules.record(h) {
                self.report_impossible(segment, h.offset, Some(h.seq), &what);
            } else if record.disagrees {
                let message = format!(
                    "the summary of segment {} says something else of record {} than that itself (offset {})",
                    segment.index, h.seq, h.offset
                );
                let finding = Finding::new(Severity::Corruption, FindingKind::SummaryDisagrees, at, message);
                self.visitor.finding(finding.in_segment(segment.index).of_record(h.seq.0));
            }
            self.generation = self.generation.max(h.generation);
        }
        self.end.last = Some(LastRecord {
            clean_stop: h.clean_stop,
            empty: h.extents.is_empty(),
            generation: h.generation,
        });
        self.visitor.record(segment, record);
        self.expected = Some(h.seq.next());
    }

    /// Something in a segment, at byte `at` of it, says what no run of a volume writes.
    fn report_impossible(&mut self, segment: &SegmentInfo, at: u32, seq: Option<Seq>, what: &dyn Display) {
        let which = seq.map_or_else(|| "what is whole".to_owned(), |seq| format!("record {seq}"));
        let message = format!("{which} says what cannot be: {what} (segment {}, offset {at})", segment.index);
        let offset = self.layout.segment_offset(segment.index) + u64::from(at);
        let finding = Finding::new(Severity::Corruption, FindingKind::ImpossibleValue, offset, message);
        let finding = finding.in_segment(segment.index);
        self.visitor.finding(match seq {
            Some(seq) => finding.of_record(seq.0),
            None => finding,
        });
    }

    fn finish(&mut self) {
        if self.end.last.is_none() && self.proven > Seq(0) {
            // Whatever says where the log begins, that record was in it.
            self.report_lost(self.proven, self.proven.next());
            return;
        }
        let Some(expected) = self.expected else {
            if self.torn {
                self.report_torn(Seq(0));
            }
            return;
        };
        if !self.torn && self.proven >= expected {
            self.report_lost(expected, self.proven.next());
            return;
        }
        let last = self.end.last;
        // A stop that does not vouch for clean copies ends with a record that says nothing.
        let stopped = |l: &LastRecord| l.clean_stop || l.empty && self.superblock.clean_stop;
        let complete = |l: &LastRecord| stopped(l) && l.generation == self.superblock.layout.generation;
        if last.as_ref().is_some_and(complete) {
            // What lies behind the last record of the last run is left over from an earlier one.
            return;
        }
        if self.torn || self.place.torn_header {
            self.report_torn(expected);
        } else if self.superblock.clean_stop && !last.is_some_and(|l| l.clean_stop || l.empty) {
            let Place { index, offset, .. } = self.place;
            let finding = Finding::new(
                Severity::Corruption,
                FindingKind::CleanStopBroken,
                self.layout.segment_offset(index) + u64::from(offset),
                format!(
                    "the superblock says that the volume stopped cleanly, but the log does not end with a record that says so: \
                     record {expected} should be in segment {index} at offset {offset}"
                ),
            );
            self.visitor.finding(finding.in_segment(index).of_record(expected.0));
        }
    }

    /// The log ends in a tear, where record `expected` should be.
    fn report_torn(&mut self, expected: Seq) {
        let Place { index, offset, .. } = self.place;
        let at = self.layout.segment_offset(index) + u64::from(offset);
        let finding = if self.superblock.clean_stop {
            Finding::new(
                Severity::Corruption,
                FindingKind::CleanStopBroken,
                at,
                format!(
                    "the volume stopped cleanly, but record {expected} is damaged (segment {index}, offset {offset})"
                ),
            )
        } else {
            Finding::new(
                Severity::Note,
                FindingKind::TornTail,
                at,
                format!(
                    "the log ends before record {expected}, whose write was torn; it was never acknowledged \
                     (segment {index}, offset {offset})"
                ),
            )
        };
        self.visitor.finding(finding.in_segment(index).of_record(expected.0));
    }
}
