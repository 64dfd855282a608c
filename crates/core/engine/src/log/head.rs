//! A segment that takes records: where the next one goes, and the summary that its end gets.
//!
//! ```text
//!  ┌────────────────┬────────┬───────────┬────────┬──────┬─ ─ ─ ─ ─ ─ ─ ─ ─┬─────────┬─────────┐
//!  │ segment header │ header │ data      │ header │ data │ ◄─ offset        │ summary │ trailer │
//!  └────────────────┴────────┴───────────┴────────┴──────┴─ ─ ─ ─ ─ ─ ─ ─ ─┴─────────┴─────────┘
//!                     one record           the next                           room for it is kept
//! ```
//!
//! 1. Whatever is put into a segment, its summary has room behind it.
//! 2. The segment's header goes out with its first record, in one write.

use forebay_block::{BLOCK_BYTES, Buf, BufMut, DeviceOp, Seq};
use forebay_format::Layout;
use forebay_format::checksum::block_checksum;
use forebay_format::record::{
    Consistent, Extent, ExtentKind, RECORD_BLOCKS_MAX, RECORD_EXTENTS_MAX, RecordHeader, header_bytes,
};
use forebay_format::segment::SegmentHeader;
use forebay_format::summary::{SummaryBuilder, Trailer, entry_bytes};

use crate::log::batches::Piece;
use crate::log::queue::Append;
use crate::map::Map;
use crate::map::segments::{SEGMENT_SLOTS_MAX, Segment, Slot, SlotKind, SlotRef};

/// How much a record holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) extents: usize,
    /// Blocks of data.
    pub(super) blocks: u32,
    /// Blocks of which the map gets a slot.
    pub(super) slots: usize,
}

impl Size {
    /// What `extent` adds.
    pub(super) fn of(extent: Option<&Extent>) -> Self {
        extent.map_or(Self::default(), |e| Self {
            extents: 1,
            blocks: if e.kind.has_data() { e.count } else { 0 },
            slots: if e.kind == ExtentKind::Supersede { 0 } else { e.count as usize },
        })
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            extents: self.extents + other.extents,
            blocks: self.blocks + other.blocks,
            slots: self.slots + other.slots,
        }
    }
}

/// A segment that takes records, or has taken its last and waits for its summary.
pub(super) struct Head {
    pub(super) index: u32,
    /// Where the next record goes.
    offset: u32,
    header_written: bool,
    summary: SummaryBuilder,
    /// As its last record says.
    tail: u64,
    clean_upto: Seq,
    ordered: Consistent,
}

/// A segment that recovery found open.
pub(crate) struct Resumed {
    /// Physical number.
    pub(crate) index: u32,
    /// Byte offset behind its last record.
    pub(crate) offset: u32,
    /// Of its records so far.
    pub(crate) summary: SummaryBuilder,
}

impl Head {
    /// A segment without records.
    pub(super) fn new(index: u32, layout: &Layout) -> Self {
        Self {
            index,
            offset: layout.align,
            header_written: false,
            summary: SummaryBuilder::default(),
            tail: 0,
            clean_upto: Seq(0),
            ordered: Consistent::No,
        }
    }

    /// A segment whose last record says this.
    pub(super) fn resumed(from: Resumed, tail: u64, clean_upto: Seq, ordered: Consistent) -> Self {
        let Resumed { index, offset, summary } = from;
        Self { index, offset, header_written: true, summary, tail, clean_upto, ordered }
    }

    /// Where the next record goes.
    pub(super) fn offset(&self) -> u32 {
        self.offset
    }

    /// Whether a record of this size finds room here, and the summary behind it. Slots count of all runs that wrote to the segment:
    /// recovery holds the log to that, whatever was clean by then.
    pub(super) fn fits(&self, layout: &Layout, size: Size) -> bool {
        let Size { extents, blocks, slots } = size;
        let record = header_bytes(layout.align, extents, blocks as usize) + blocks as usize * 4096;
        let summary = self.summary.bytes_with(entry_bytes(extents, blocks as usize), layout.align);
        self.offset as usize + record + summary <= layout.segment_bytes as usize
            && blocks <= RECORD_BLOCKS_MAX
            && extents <= RECORD_EXTENTS_MAX as usize
            && self.summary.blocks() + slots < SEGMENT_SLOTS_MAX
    }

    /// Encodes the record's header, and before the first record of a segment the segment's header, in front of the
    /// data; returns the byte offset in the segment where the write begins.
    pub(super) fn frame(
        &mut self,
        layout: &Layout,
        segment: &Segment,
        record: &RecordHeader,
        bufs: &mut Vec<Buf>,
    ) -> u32 {
        let align = layout.align as usize;
        let len = record.header_bytes(layout.align);
        let lead = if self.header_written { 0 } else { align };
        let mut frame = BufMut::zeroed(lead + len);
        if !self.header_written {
            let header = SegmentHeader {
                generation: segment.generation,
                segment_seq: segment.seq,
                first_seq: segment.first_seq,
                index: self.index,
            };
            header.encode(layout, &mut frame);
            self.header_written = true;
        }
        record.encode(layout, &mut frame[lead..]);
        bufs.insert(0, frame.freeze());
        record.offset - lead as u32
    }

    /// The record has its place: the next one goes behind it.
    pub(super) fn take(&mut self, layout: &Layout, record: &RecordHeader) {
        self.summary.push(record, layout.align);
        self.offset += record.record_bytes(layout.align) as u32;
        self.tail = record.tail;
        self.clean_upto = record.clean_upto;
        self.ordered = record.ordered;
    }

    /// The write of the segment's summary; all its records are durable. `wall_ns` is the time of its last record or later.
    pub(super) fn summary(self, layout: &Layout, segment: &Segment, wall_ns: u64) -> DeviceOp {
        let trailer = Trailer {
            generation: layout.generation,
            segment_seq: segment.seq,
            first_seq: segment.first_seq,
            last_seq: segment.last_seq,
            clean_upto: self.clean_upto,
            tail: self.tail,
            time_first_ns: segment.time_first_ns,
            time_last_ns: wall_ns,
            body_bytes: 0,
            body_crc: 0,
            records: 0,
            ordered: self.ordered,
        };
        let bytes = self.summary.finish(layout, trailer);
        let end = layout.segment_offset(self.index) + u64::from(layout.segment_bytes);
        DeviceOp::Write { offset: end - bytes.len() as u64, bufs: vec![Buf::copy_of(&bytes)], durable: false }
    }
}

/// The checksums of the record's data blocks, in its order.
pub(super) fn checksums(taken: &[Append], seq: Seq) -> Vec<u32> {
    let mut checksums = Vec::new();
    for a in taken {
        if let (Some(e), Some(data)) = (a.extent, &a.data) {
            for n in 0..u64::from(e.count) {
                let at = (n * BLOCK_BYTES) as usize;
                checksums.push(block_checksum(e.block.plus(n), seq, &data[at..at + 4096]));
            }
        }
    }
    checksums
}

/// Gives each block of the record its slot in segment `index`, and collects the data in the record's order.
pub(super) fn lay_out(
    layout: &Layout,
    record: &RecordHeader,
    taken: Vec<Append>,
    index: u32,
    map: &mut Map,
    bufs: &mut Vec<Buf>,
) -> Vec<Piece> {
    let first_seq = map.segments().get(index).first_seq;
    let mut data_at = record.offset + record.header_bytes(layout.align) as u32;
    let mut checksums = record.checksums.iter();
    let mut pieces = Vec::with_capacity(taken.len());
    for a in taken {
        let mut slots: Option<(SlotRef, u32)> = None;
        if let Some((e, kind)) = a.extent.and_then(|e| Some((e, slot_kind(e.kind)?))) {
            for n in 0..u64::from(e.count) {
                let (offset, sum) = match kind {
                    SlotKind::Data => (data_at, checksums.next().copied().unwrap_or_default()),
                    SlotKind::Zero | SlotKind::Poison => (0, 0),
                };
                let slot = Slot::new(e.block.plus(n), offset, sum, kind, record.seq, first_seq);
                let slot = map.segments_mut().push(index, slot);
                slots.get_or_insert((slot, e.count));
                if kind == SlotKind::Data {
                    data_at += BLOCK_BYTES as u32;
                }
            }
        }
        bufs.extend(a.data);
        pieces.push(Piece { extent: a.extent, slots, owner: a.owner, durable: a.durable });
    }
    pieces
}

/// What the map holds of a block of such an extent; `None` if nothing.
pub(super) fn slot_kind(kind: ExtentKind) -> Option<SlotKind> {
    match kind {
        ExtentKind::Data | ExtentKind::Clean => Some(SlotKind::Data),
        ExtentKind::Zero => Some(SlotKind::Zero),
        ExtentKind::Poison => Some(SlotKind::Poison),
        ExtentKind::Supersede => None,
    }
}
