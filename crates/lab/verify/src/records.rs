//! The records of one segment, as read.

use forebay_block::{BLOCK_BYTES, BlockNo};
use forebay_format::checksum::block_checksum;
use forebay_format::record::{Consistent, ExtentKind, RecordHeader};
use forebay_format::rules::Impossible;
use forebay_format::summary::{SummaryEntry, Trailer};
use forebay_format::{FormatError, Layout};

use crate::identity::{impossible_record, record_of_any_lap, resembles_record};
use crate::survey::{HeaderOrigin, SegmentInfo};

/// A data block of a record that does not match its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadBlock {
    pub(crate) block: BlockNo,
    /// Byte offset of the data in the segment.
    pub(crate) offset: u32,
    pub(crate) kind: ExtentKind,
}

/// A record and what is wrong with it.
#[derive(Clone, Debug)]
pub(crate) struct RecordView {
    /// As in the record or, where that is damaged, as in the segment's summary.
    pub(crate) header: RecordHeader,
    /// Bytes of the header.
    pub(crate) header_bytes: u32,
    /// Why the header in the record was not accepted; `header` is then from the summary, and knows neither times
    /// nor what was durable.
    pub(crate) damage: Option<FormatError>,
    /// The summary says something else of this record.
    pub(crate) disagrees: bool,
    /// Data blocks that do not match.
    pub(crate) bad: Vec<BadBlock>,
}

impl RecordView {
    /// A record whose header decoded; its data is not checked yet.
    pub(crate) fn new(layout: &Layout, header: RecordHeader) -> Self {
        Self {
            header_bytes: header.header_bytes(layout.align) as u32,
            header,
            damage: None,
            disagrees: false,
            bad: Vec::new(),
        }
    }

    /// Byte offset behind the record in its segment.
    pub(crate) fn end(&self) -> u64 {
        u64::from(self.header.offset)
            + u64::from(self.header_bytes)
            + self.header.checksums.len() as u64 * BLOCK_BYTES
    }

    /// The data blocks: number, kind, byte offset in the segment, checksum.
    pub(crate) fn data_blocks(&self) -> impl Iterator<Item = (BlockNo, ExtentKind, u64, u32)> + '_ {
        let data_at = u64::from(self.header.offset) + u64::from(self.header_bytes);
        let extents = self.header.extents.iter().filter(|e| e.kind.has_data());
        let blocks = extents.flat_map(|e| (0..u64::from(e.count)).map(|i| (e.block.plus(i), e.kind)));
        let checksums = self.header.checksums.iter();
        blocks
            .zip(checksums)
            .enumerate()
            .map(move |(i, ((block, kind), crc))| (block, kind, data_at + i as u64 * BLOCK_BYTES, *crc))
    }

    /// Whether the data block at byte `at` of the segment matches.
    fn matches(&self, segment: &[u8], block: BlockNo, at: u64, checksum: u32) -> bool {
        let data = segment.get(at as usize..).and_then(|d| d.get(..BLOCK_BYTES as usize));
        data.is_some_and(|d| block_checksum(block, self.header.seq, d) == checksum)
    }

    /// Whether all data blocks match; `segment` holds the bytes of the segment.
    pub(crate) fn is_whole(&self, segment: &[u8]) -> bool {
        self.data_blocks().all(|(block, _, at, crc)| self.matches(segment, block, at, crc))
    }

    /// Checks the data blocks; `segment` holds the bytes of the segment.
    fn check_data(mut self, segment: &[u8]) -> Self {
        self.bad = self
            .data_blocks()
            .filter(|(block, _, at, crc)| !self.matches(segment, *block, *at, *crc))
            .map(|(block, kind, at, _)| BadBlock { block, offset: at as u32, kind })
            .collect();
        self
    }
}

/// The summary at a segment's end.
#[derive(Clone, Debug)]
pub(crate) enum SummaryView {
    /// Whole.
    Valid(Trailer),
    /// The trailer is whole, its body is not.
    BodyDamaged,
    /// There is no valid trailer of this lap.
    None,
}

/// The records of a segment.
#[derive(Clone, Debug)]
pub(crate) struct SegmentRecords {
    pub(crate) summary: SummaryView,
    /// The records in the order of their places. Without a valid summary there may be gaps, behind which a sweep
    /// found more records.
    pub(crate) records: Vec<RecordView>,
    /// Byte offset at which the records that follow each other without a gap end.
    pub(crate) end: u32,
    /// How many records lie before `end`.
    pub(crate) contiguous: usize,
    /// At `end` lies a damaged or torn header of a record of this segment.
    pub(crate) torn_header: bool,
    /// Byte offset of what is whole and says what cannot be, so that it is no record or summary.
    pub(crate) impossible: Option<(u32, Impossible)>,
}

impl SegmentRecords {
    /// Reads the records of a segment from its bytes.
    pub(crate) fn read(layout: &Layout, segment: &SegmentInfo, bytes: &[u8]) -> Self {
        let Some(trailer) = &segment.trailer else {
            return Self::scan(layout, segment, SummaryView::None, bytes);
        };
        let body_at = bytes.len().saturating_sub(trailer.bytes(layout.align));
        let body = bytes.get(body_at..).unwrap_or_default();
        match trailer.entries(layout, body) {
            Ok(entries) => Self::from_summary(layout, trailer, entries, bytes),
            Err(error) => {
                let view = Self::scan(layout, segment, SummaryView::BodyDamaged, bytes);
                let body = Impossible::of(&error).map(|what| (body_at as u32, what));
                Self { impossible: view.impossible.or(body), ..view }
            }
        }
    }

    fn from_summary(layout: &Layout, trailer: &Trailer, entries: Vec<SummaryEntry>, bytes: &[u8]) -> Self {
        let mut seq = trailer.first_seq;
        let mut records = Vec::with_capacity(entries.len());
        for entry in entries {
            let at = bytes.get(entry.offset as usize..).unwrap_or_default();
            let decoded = RecordHeader::decode(layout, trailer.segment_seq, entry.offset, at)
                .and_then(|h| if h.seq == seq { Ok(h) } else { Err(FormatError::Foreign) });
            let view = match decoded {
                Ok(header) => RecordView {
                    disagrees: header.extents != entry.extents
                        || header.checksums != entry.checksums
                        || header.header_bytes(layout.align) != entry.header_bytes as usize,
                    header_bytes: header.header_bytes(layout.align) as u32,
                    header,
                    damage: None,
                    bad: Vec::new(),
                },
                Err(e) => RecordView {
                    header: RecordHeader {
                        generation: trailer.generation,
                        segment_seq: trailer.segment_seq,
                        seq,
                        offset: entry.offset,
                        durable_upto: forebay_block::Seq(0),
                        clean_upto: forebay_block::Seq(0),
                        tail: 0,
                        time_ns: trailer.time_last_ns,
                        clean_stop: false,
                        ordered: Consistent::No,
                        distance: 0,
                        extents: entry.extents,
                        checksums: entry.checksums,
                    },
                    header_bytes: entry.header_bytes,
                    damage: Some(e),
                    disagrees: false,
                    bad: Vec::new(),
                },
            };
            records.push(view.check_data(bytes));
            seq = seq.next();
        }
        Self {
            end: records.last().map_or(layout.align, |r| r.end() as u32),
            contiguous: records.len(),
            summary: SummaryView::Valid(*trailer),
            records,
            torn_header: false,
            impossible: None,
        }
    }

    /// Reads the segment from its first record on, and sweeps what lies behind the first gap.
    fn scan(layout: &Layout, segment: &SegmentInfo, summary: SummaryView, bytes: &[u8]) -> Self {
        let header = &segment.header;
        let mut records: Vec<RecordView> = Vec::new();
        let (mut at, mut seq, mut generation) = (layout.align, header.first_seq, header.generation);
        while let Some(view) = record_at(layout, header.segment_seq, at, bytes) {
            if view.header.seq != seq || view.header.generation < generation {
                break;
            }
            (at, seq, generation) = (view.end() as u32, seq.next(), view.header.generation);
            records.push(view);
        }
        let (end, contiguous) = (at, records.len());
        let rest = bytes.get(end as usize..).unwrap_or_default();
        let torn_header = resembles_record(layout, header.segment_seq, end, rest);
        let impossible = impossible_record(layout, header.segment_seq, end, rest).map(|what| (end, what));
        // What is found behind the gap is newer than what should lie there. (A made-up header names as its first
        // record the first that was found.)
        if segment.origin != HeaderOrigin::Lost || contiguous > 0 {
            seq = seq.next();
        }
        while (at as usize) < bytes.len() {
            match record_at(layout, header.segment_seq, at, bytes) {
                Some(view) if view.header.seq >= seq && view.header.generation >= generation => {
                    // Whole data cannot hide another record of this segment; torn data can.
                    at = if view.bad.is_empty() { view.end() as u32 } else { at + layout.align };
                    (seq, generation) = (view.header.seq.next(), view.header.generation);
                    records.push(view);
                }
                _ => at += layout.align,
            }
        }
        Self { summary, records, end, contiguous, torn_header, impossible }
    }
}

/// The record of segment `segment_seq` at byte `at`, with its data checked, if one is there and fits.
fn record_at(layout: &Layout, segment_seq: u64, at: u32, bytes: &[u8]) -> Option<RecordView> {
    let rest = bytes.get(at as usize..)?;
    if !RecordHeader::may_start(rest) {
        return None;
    }
    let header = record_of_any_lap(layout, at, rest).filter(|h| h.segment_seq == segment_seq)?;
    let view = RecordView::new(layout, header);
    (view.end() <= bytes.len() as u64).then(|| view.check_data(bytes))
}
