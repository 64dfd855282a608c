//! Judging the summary of a segment against its records.

use std::ops::Range;

use forebay_format::Layout;
use forebay_format::summary::{SummaryBuilder, Trailer};

use crate::finding::{Finding, FindingKind, Severity};
use crate::identity::trailer_of_any_lap;
use crate::records::{SegmentRecords, SummaryView};
use crate::survey::SegmentInfo;

/// What a device writes whole, in bytes.
const SECTOR: usize = 512;
/// Bits by which a sector may differ from what was written there to be called damaged. With more it holds something else: the
/// write of the summary, which nobody waits for, did not reach it before a power cut.
const DAMAGED_BITS_MAX: u32 = 8;
/// Parts of a trailer that do not follow from the records: checksum, run, times.
const TRAILER_UNKNOWN: [Range<usize>; 3] = [8..12, 32..40, 80..96];

/// What is wrong with the summary, if anything: all records of the segment are at hand.
pub(crate) fn judge(
    layout: &Layout,
    segment: &SegmentInfo,
    view: &SegmentRecords,
    bytes: &[u8],
) -> Option<Finding> {
    let expected = expected_bytes(layout, view)?;
    let at = bytes.len().checked_sub(expected.len())?;
    if at < view.end as usize {
        // There is no room for a summary: the segment was never full.
        return None;
    }
    let offset = layout.segment_offset(segment.index) + at as u64;
    let index = segment.index;
    if let SummaryView::Valid(trailer) = &view.summary {
        return (!agrees(trailer, view)).then(|| {
            Finding::new(
                Severity::Corruption,
                FindingKind::SummaryDisagrees,
                offset,
                format!("the summary of segment {index} says something else than its records"),
            )
            .in_segment(index)
        });
    }
    let trailer_valid = matches!(view.summary, SummaryView::BodyDamaged);
    let actual = bytes.get(at..)?;
    // A whole trailer of an earlier lap is what was there before: the summary was not written, however similar it is.
    let trailer = actual.get(actual.len().checked_sub(layout.align as usize)?..)?;
    let earlier_lap = !trailer_valid && trailer_of_any_lap(layout, trailer).is_some();
    if !earlier_lap && damaged(&expected, actual, layout.align as usize, trailer_valid) {
        return Some(
            Finding::new(
                Severity::Recoverable,
                FindingKind::SummaryDamaged,
                offset,
                format!("the summary of segment {index} is damaged; all its records are whole, recovery reads them instead"),
            )
            .in_segment(index),
        );
    }
    Some(
        Finding::new(
            Severity::Note,
            FindingKind::SummaryMissing,
            offset,
            format!(
                "segment {index} has no whole summary, as after a power cut; recovery reads its records instead"
            ),
        )
        .in_segment(index),
    )
}

/// The summary that the segment's records would have; `None` if it has none, or a record is known from the
/// summary only.
fn expected_bytes(layout: &Layout, view: &SegmentRecords) -> Option<Vec<u8>> {
    let (first, last) = (view.records.first()?, view.records.last()?);
    if let SummaryView::Valid(t) = &view.summary {
        return Some(vec![0; t.bytes(layout.align)]);
    }
    let mut builder = SummaryBuilder::default();
    for record in &view.records {
        builder.push(&record.header, layout.align);
    }
    let trailer = Trailer {
        generation: last.header.generation,
        segment_seq: last.header.segment_seq,
        first_seq: first.header.seq,
        last_seq: last.header.seq,
        clean_upto: last.header.clean_upto,
        tail: last.header.tail,
        time_first_ns: first.header.time_ns,
        time_last_ns: last.header.time_ns,
        body_bytes: 0,
        body_crc: 0,
        records: 0,
        ordered: last.header.ordered,
    };
    Some(builder.finish(layout, trailer))
}

fn agrees(t: &Trailer, view: &SegmentRecords) -> bool {
    let (Some(first), Some(last)) = (view.records.first(), view.records.last()) else {
        return false;
    };
    let l = &last.header;
    let said = l.generation <= t.generation && (l.clean_upto, l.tail) == (t.clean_upto, t.tail);
    first.header.seq == t.first_seq && l.seq == t.last_seq && (said || last.damage.is_some())
}

/// Whether `actual` is `expected` with a few bits wrong, rather than something that was there before.
fn damaged(expected: &[u8], actual: &[u8], align: usize, trailer_valid: bool) -> bool {
    let trailer_at = expected.len().saturating_sub(align);
    let mut written = false;
    let mut wrong = false;
    for (i, (e, a)) in expected.chunks(SECTOR).zip(actual.chunks(SECTOR)).enumerate() {
        let is_trailer = i * SECTOR == trailer_at;
        let counts = |at: usize| !is_trailer || !TRAILER_UNKNOWN.iter().any(|r| r.contains(&at));
        let bits = e.iter().zip(a).enumerate().filter(|(at, _)| counts(*at));
        let bits: u32 = bits.map(|(_, (e, a))| (e ^ a).count_ones()).sum();
        let (e_empty, a_empty) = (e.iter().all(|b| *b == 0), a.iter().all(|b| *b == 0));
        // If nothing of the summary arrived, whatever looks like a part of it was there before.
        written |= !e_empty && bits <= DAMAGED_BITS_MAX && !a_empty;
        wrong |=
            bits <= DAMAGED_BITS_MAX && (bits > 0 || is_trailer && !trailer_valid) && (!a_empty || e_empty);
    }
    written && wrong
}
