//! The survey: which segments the log may consist of, and what any record in them proves.
//!
//! It reads the headers and trailers of all segments, and sweeps those without a trailer of their lap at every
//! `align` step, the free ones too: a header that was lost or damaged leaves its records behind.

use std::cmp::Reverse;
use std::io;

use forebay_block::Seq;
use forebay_format::record::{HEADER_BYTES_MAX, RecordHeader};
use forebay_format::rules::{Impossible, Rules};
use forebay_format::segment::SegmentHeader;
use forebay_format::summary::Trailer;
use forebay_format::superblock::Superblock;
use forebay_format::{FormatError, Layout};

use crate::claims::Claims;
use crate::finding::{Finding, FindingKind, Findings, Severity};
use crate::identity::{header_of_any_place, record_of_any_lap, segment_seq, trailer_of_any_lap};
use crate::image::Image;
use crate::records::RecordView;

/// Where what is known of a segment's header comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum HeaderOrigin {
    /// It cannot be known to recovery: it was made up from what else lies in the segment.
    Lost,
    /// It is damaged; the segment's first record says the same.
    FirstRecord,
    /// It is on the medium.
    Medium,
}

/// A segment that may be part of the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentInfo {
    /// Physical number.
    pub(crate) index: u32,
    /// As on the medium, or made up from the records that lie in the segment.
    pub(crate) header: SegmentHeader,
    /// Where the header comes from.
    pub(crate) origin: HeaderOrigin,
    /// The trailer of this lap, if it is whole.
    pub(crate) trailer: Option<Trailer>,
}

/// What the survey found.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// Segments from `tail` on, in the order of the log, one for each segment number.
    pub(crate) log: Vec<SegmentInfo>,
    /// All other segments that have a valid header: of an earlier lap, or a twin of one in `log`.
    pub(crate) others: Vec<SegmentInfo>,
    /// As the last record of the log says; 0 if there is no record.
    pub(crate) tail: u64,
    /// As the last record of the log says.
    pub(crate) clean_upto: Seq,
    /// All records up to this one were durable once.
    pub(crate) proven: Seq,
}

/// The newest lap in a segment, as a sweep found it.
#[derive(Clone, Copy)]
struct Lap {
    segment_seq: u64,
    /// Of its first record.
    first_seq: Seq,
    /// Of its first record.
    generation: u64,
    /// Byte offset of its first record.
    offset: u32,
}

impl Lap {
    /// The segment as this lap tells it; `damaged` if there is no valid header in its place, else one of an earlier lap.
    fn segment(self, layout: &Layout, index: u32, damaged: bool) -> SegmentInfo {
        let in_place = damaged && self.offset == layout.align;
        SegmentInfo {
            index,
            header: SegmentHeader {
                generation: self.generation,
                segment_seq: self.segment_seq,
                first_seq: self.first_seq,
                index,
            },
            origin: if in_place { HeaderOrigin::FirstRecord } else { HeaderOrigin::Lost },
            trailer: None,
        }
    }
}

impl Survey {
    pub(crate) fn take(
        image: &mut Image<'_>,
        superblock: &Superblock,
        findings: &mut Findings,
    ) -> io::Result<Self> {
        let layout = &superblock.layout;
        let mut claims = Claims::default();
        let mut found = Vec::new();
        let mut misplaced = Vec::new();
        let mut bytes = Vec::new();
        for index in 0..layout.segment_count {
            if layout.segment_offset(index) >= image.size {
                // A truncated image; or a superblock that was made up to keep a reader busy.
                break;
            }
            let (header, leftover) = read_header(image, layout, index, &mut misplaced, findings)?;
            header.iter().for_each(|h| claims.learn_header(h));
            let own_lap = header.map_or(0, |h| h.segment_seq);
            let trailer = read_trailer(image, layout, index, own_lap, findings)?;
            let opened = header.map_or(0, |h| h.generation);
            let begins = header.map_or(Seq(0), |h| h.first_seq);
            let own = |t: &Trailer| {
                own_lap == 0 || (t.segment_seq, t.first_seq) == (own_lap, begins) && t.generation >= opened
            };
            if let Some(trailer) = trailer.filter(own) {
                claims.learn_trailer(&trailer);
                found.push(with_trailer(image, layout, index, header, trailer)?);
                continue;
            }
            image.read_segment(layout, index, &mut bytes)?;
            judge_records(superblock, index, own_lap, &bytes, findings);
            let newest = sweep(layout, own_lap, &bytes, &mut claims).filter(|l| l.segment_seq > own_lap);
            if leftover {
                continue;
            }
            let own = header.map(|header| SegmentInfo {
                index,
                header,
                origin: HeaderOrigin::Medium,
                trailer: None,
            });
            found.extend(newest.map(|l| l.segment(layout, index, header.is_none())).or(own));
        }
        // A free segment's trailer of an earlier lap stays until the last write of the next: look behind it.
        let tail = claims.tail_max();
        for s in found.iter_mut().filter(|s| s.trailer.is_some() && s.header.segment_seq < tail) {
            image.read_segment(layout, s.index, &mut bytes)?;
            if let Some(lap) = sweep(layout, s.header.segment_seq + 1, &bytes, &mut claims) {
                *s = lap.segment(layout, s.index, s.origin != HeaderOrigin::Medium);
            }
        }
        if superblock.clean_stop {
            claims.all_durable();
        }
        found
            .iter()
            .filter(|s| s.origin == HeaderOrigin::Lost)
            .for_each(|s| claims.learn_headless(&s.header));
        let settled = claims.settle();
        let mut survey = Self {
            tail: settled.tail,
            clean_upto: settled.clean_upto,
            proven: claims.proven(),
            ..Self::default()
        };
        survey.arrange(found);
        survey.judge_misplaced(layout, &misplaced, findings);
        Ok(survey)
    }

    /// Sorts the segments; of those with one number the one of the highest generation is of the log, and a header
    /// on the medium counts more than a made-up one.
    fn arrange(&mut self, mut found: Vec<SegmentInfo>) {
        found.sort_by_key(|s| (s.header.segment_seq, Reverse((s.header.generation, s.origin))));
        for s in found {
            let twin = self.log.last().is_some_and(|l| l.header.segment_seq == s.header.segment_seq);
            if s.header.segment_seq >= self.tail && !twin {
                self.log.push(s);
            } else if s.origin == HeaderOrigin::Medium {
                self.others.push(s);
            }
        }
    }

    /// Reports headers that lie in the wrong segment or are of a run that the superblock does not know, unless they
    /// are leftovers of an earlier lap.
    fn judge_misplaced(&self, layout: &Layout, misplaced: &[(u32, SegmentHeader)], findings: &mut Findings) {
        for (index, h) in misplaced.iter().filter(|(_, h)| h.segment_seq >= self.tail) {
            let message = if h.index != *index {
                format!(
                    "segment {index} begins with the header of segment {}: a write was misdirected",
                    h.index
                )
            } else {
                format!(
                    "segment {index} was written by run {}, but the superblock knows only {} runs: it is an older copy",
                    h.generation, layout.generation
                )
            };
            findings.push(
                Finding::new(
                    Severity::Corruption,
                    FindingKind::SegmentHeaderDamaged,
                    layout.segment_offset(*index),
                    message,
                )
                .in_segment(*index),
            );
        }
    }
}

/// Learns from every record in a segment, of lap `lap_min` or a later one, and tells which lap is the newest.
fn sweep(layout: &Layout, lap_min: u64, bytes: &[u8], claims: &mut Claims) -> Option<Lap> {
    let mut newest: Option<Lap> = None;
    for at in (0..bytes.len()).step_by(layout.align as usize) {
        let rest = bytes.get(at..).unwrap_or_default();
        if !RecordHeader::may_start(rest) || segment_seq(rest).is_none_or(|s| s < lap_min) {
            continue;
        }
        let Some(h) = record_of_any_lap(layout, at as u32, rest) else {
            continue;
        };
        let lap =
            Lap { segment_seq: h.segment_seq, first_seq: h.seq, generation: h.generation, offset: at as u32 };
        // Whether data is torn matters only where nothing proves that it was durable.
        let proven = h.seq <= claims.proven();
        let view = RecordView::new(layout, h);
        claims.learn_record(&view.header, proven || view.is_whole(bytes));
        newest = match newest {
            Some(n) if n.segment_seq > lap.segment_seq => Some(n),
            Some(n) if n.segment_seq == lap.segment_seq => {
                Some(Lap { first_seq: n.first_seq.min(lap.first_seq), ..n })
            }
            _ => Some(lap),
        };
    }
    newest
}

/// The valid header of segment `index`; headers of this cache that belong elsewhere go to `misplaced`. True if there is one of
/// another cache, which was here before: what is torn over that was never acknowledged, and is not part of the log.
fn read_header(
    image: &mut Image<'_>,
    layout: &Layout,
    index: u32,
    misplaced: &mut Vec<(u32, SegmentHeader)>,
    findings: &mut Findings,
) -> io::Result<(Option<SegmentHeader>, bool)> {
    let mut bytes = vec![0; layout.align as usize];
    image.read(layout.segment_offset(index), &mut bytes)?;
    match SegmentHeader::decode(layout, index, &bytes) {
        Ok(header) => Ok((Some(header), false)),
        Err(error) => {
            judge_whole(layout, index, 0, Impossible::of(&error), findings);
            let of_this_cache = header_of_any_place(layout, &bytes);
            misplaced.extend(of_this_cache.map(|h| (index, h)));
            Ok((None, error == FormatError::Foreign && of_this_cache.is_none()))
        }
    }
}

/// The same of what its records say of themselves, wherever they stand; without a header the first one names the lap.
fn judge_records(superblock: &Superblock, index: u32, own_lap: u64, bytes: &[u8], findings: &mut Findings) {
    let (layout, rules) = (&superblock.layout, Rules::new(superblock.volume_bytes));
    let align = layout.align as usize;
    let first = bytes.get(align..).filter(|first| RecordHeader::may_start(first)).and_then(segment_seq);
    let lap = if own_lap > 0 { own_lap } else { first.unwrap_or_default() };
    for at in (align..bytes.len()).step_by(align) {
        let rest = bytes.get(at..).unwrap_or_default();
        if RecordHeader::may_start(rest) && segment_seq(rest) == Some(lap) {
            let broken = match RecordHeader::decode(layout, lap, at as u32, rest) {
                Ok(header) => rules.record_alone(&header).err(),
                Err(error) => Impossible::of(&error),
            };
            judge_whole(layout, index, at as u32, broken, findings);
        }
    }
}

/// What a segment's header or trailer says that cannot be, although it is whole and of this cache.
fn judge_whole(layout: &Layout, index: u32, at: u32, broken: Option<Impossible>, findings: &mut Findings) {
    let Some(what) = broken else { return };
    let offset = layout.segment_offset(index) + u64::from(at);
    let message = format!("what is whole says what cannot be: {what} (segment {index}, offset {at})");
    let finding = Finding::new(Severity::Corruption, FindingKind::ImpossibleValue, offset, message);
    findings.push(finding.in_segment(index));
}

/// The trailer of a segment whose header says that it is of lap `own_lap`, or of any if there is none.
fn read_trailer(
    image: &mut Image<'_>,
    layout: &Layout,
    index: u32,
    own_lap: u64,
    findings: &mut Findings,
) -> io::Result<Option<Trailer>> {
    let mut bytes = vec![0; layout.align as usize];
    let at = layout.segment_bytes - layout.align;
    image.read(layout.segment_offset(index) + u64::from(at), &mut bytes)?;
    let broken = match Trailer::decode(layout, own_lap, &bytes) {
        Ok(trailer) => Rules::trailer_alone(&trailer).err(),
        Err(error) => Impossible::of(&error),
    };
    judge_whole(layout, index, at, broken, findings);
    Ok(trailer_of_any_lap(layout, &bytes))
}

/// A segment with a trailer of the lap of its header, if it has one.
fn with_trailer(
    image: &mut Image<'_>,
    layout: &Layout,
    index: u32,
    header: Option<SegmentHeader>,
    trailer: Trailer,
) -> io::Result<SegmentInfo> {
    let (header, origin) = match header {
        Some(header) => (header, HeaderOrigin::Medium),
        None => {
            let mut bytes = vec![0; HEADER_BYTES_MAX];
            image.read(layout.segment_offset(index) + u64::from(layout.align), &mut bytes)?;
            let first = RecordHeader::decode(layout, trailer.segment_seq, layout.align, &bytes);
            let made_up = SegmentHeader {
                generation: first.as_ref().map_or(trailer.generation, |h| h.generation),
                segment_seq: trailer.segment_seq,
                first_seq: trailer.first_seq,
                index,
            };
            (made_up, if first.is_ok() { HeaderOrigin::FirstRecord } else { HeaderOrigin::Lost })
        }
    };
    Ok(SegmentInfo { index, header, origin, trailer: Some(trailer) })
}
