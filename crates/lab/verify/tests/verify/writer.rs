//! A small writer of cache images: just enough of the rules of the log to make valid ones, and nothing of the engine.

use std::collections::VecDeque;
use std::ops::Range;

use forebay_block::{BlockNo, Seq};
use forebay_format::Layout;
use forebay_format::checksum::block_checksum;
use forebay_format::record::{Consistent, EXTENT_BYTES, Extent, ExtentKind, FIXED_BYTES, RecordHeader};
use forebay_format::segment::SegmentHeader;
use forebay_format::summary::{SummaryBuilder, Trailer, entry_bytes};
use forebay_format::superblock::{CacheState, SUPERBLOCK_OFFSETS, Superblock};

pub const SEGMENT_BYTES: u32 = 64 << 10;
pub const VOLUME_BLOCKS: u64 = 1000;

/// A segment of the log as written.
#[derive(Clone)]
pub struct Segment {
    pub index: u32,
    pub segment_seq: u64,
    pub first_seq: u64,
    /// Byte offsets of its records in the segment.
    pub records: Vec<u32>,
    /// Byte offset behind the last record.
    pub end: u32,
    summary: SummaryBuilder,
    last: Option<RecordHeader>,
    /// Bytes of the summary at the segment's end, if it was written.
    pub summary_bytes: usize,
}

#[derive(Clone)]
pub struct Writer {
    pub superblock: Superblock,
    pub bytes: Vec<u8>,
    /// The log's segments, oldest first.
    pub live: VecDeque<Segment>,
    free: VecDeque<u32>,
    next_seq: u64,
    next_segment_seq: u64,
    pub clean_upto: u64,
    /// Records behind the newest that are proven durable by it.
    pub in_flight: u64,
}

/// The data of a block in a record: both numbers, over and over.
pub fn pattern(block: u64, seq: u64) -> Vec<u8> {
    [block.to_le_bytes(), seq.to_le_bytes()].concat().repeat(256)
}

pub fn layout(align: u32, segment_count: u32) -> Layout {
    Layout {
        cache_id: *b"cache-id-0123456",
        generation: 1,
        align,
        segment_bytes: SEGMENT_BYTES,
        segment_count,
    }
}

impl Writer {
    pub fn new(align: u32, segment_count: u32) -> Self {
        let layout = layout(align, segment_count);
        let superblock = Superblock {
            update: 1,
            layout,
            backing_id: *b"backing-id-01234",
            volume_bytes: VOLUME_BLOCKS * 4096,
            logical_block: 512,
            state: CacheState::Paired,
            clean_stop: false,
            has_label: true,
            created_ns: 1_700_000_000_000_000_000,
            backing_name: "/srv/disk.img".into(),
            fingerprint: String::new(),
        };
        let mut writer = Self {
            bytes: vec![0; layout.cache_bytes() as usize],
            superblock,
            live: VecDeque::new(),
            free: (0..segment_count).collect(),
            next_seq: 1,
            next_segment_seq: 1,
            clean_upto: 0,
            in_flight: 1,
        };
        writer.write_superblocks();
        writer
    }

    pub fn layout(&self) -> Layout {
        self.superblock.layout
    }

    pub fn write_superblocks(&mut self) {
        for at in SUPERBLOCK_OFFSETS {
            self.bytes[at as usize..][..4096].copy_from_slice(&self.superblock.encode());
        }
    }

    pub fn tail(&self) -> u64 {
        self.live.front().map_or(self.next_segment_seq, |s| s.segment_seq)
    }

    pub fn last_seq(&self) -> u64 {
        self.next_seq - 1
    }

    fn open(&mut self) {
        let index = self.free.pop_front().expect("a free segment");
        let (segment_seq, first_seq) = (self.next_segment_seq, self.next_seq);
        self.next_segment_seq += 1;
        let header = SegmentHeader {
            generation: self.layout().generation,
            segment_seq,
            first_seq: Seq(first_seq),
            index,
        };
        let layout = self.layout();
        header.encode(&layout, &mut self.bytes[layout.segment_offset(index) as usize..]);
        self.live.push_back(Segment {
            index,
            segment_seq,
            first_seq,
            records: Vec::new(),
            end: layout.align,
            summary: SummaryBuilder::default(),
            last: None,
            summary_bytes: 0,
        });
    }

    /// Appends a record; seals the segment and opens the next one if it does not fit.
    pub fn record(&mut self, extents: &[(u64, u32, ExtentKind)]) -> u64 {
        self.record_with(extents, false)
    }

    fn record_with(&mut self, extents: &[(u64, u32, ExtentKind)], clean_stop: bool) -> u64 {
        let align = self.layout().align;
        let blocks: usize = extents.iter().filter(|e| e.2.has_data()).map(|e| e.1 as usize).sum();
        let fits = self.live.back().is_some_and(|s| {
            let record = forebay_format::record::header_bytes(align, extents.len(), blocks) + blocks * 4096;
            let more = entry_bytes(extents.len(), blocks);
            s.summary_bytes == 0
                && s.end as usize + record + s.summary.bytes_with(more, align) <= SEGMENT_BYTES as usize
        });
        if !fits {
            self.seal();
            self.open();
        }
        let seq = self.next_seq;
        self.next_seq += 1;
        let (layout, tail) = (self.layout(), self.tail());
        let segment = self.live.back_mut().expect("an open segment");
        let mut header = RecordHeader {
            generation: layout.generation,
            segment_seq: segment.segment_seq,
            seq: Seq(seq),
            offset: segment.end,
            durable_upto: Seq(seq.saturating_sub(self.in_flight)),
            clean_upto: Seq(self.clean_upto),
            tail,
            time_ns: 1_700_000_000_000_000_000 + seq * 1_000_000,
            clean_stop,
            ordered: Consistent::No,
            distance: 0,
            extents: Vec::new(),
            checksums: Vec::new(),
        };
        let mut data = Vec::new();
        for (block, count, kind) in extents {
            header.extents.push(Extent { block: BlockNo(*block), count: *count, kind: *kind });
            for b in (*block..block + u64::from(*count)).filter(|_| kind.has_data()) {
                let bytes = pattern(b, seq);
                header.checksums.push(block_checksum(BlockNo(b), Seq(seq), &bytes));
                data.extend(bytes);
            }
        }
        let at = layout.segment_offset(segment.index) as usize + segment.end as usize;
        let header_bytes = header.header_bytes(align);
        header.encode(&layout, &mut self.bytes[at..at + header_bytes]);
        self.bytes[at + header_bytes..][..data.len()].copy_from_slice(&data);
        segment.summary.push(&header, align);
        segment.records.push(segment.end);
        segment.end += header.record_bytes(align) as u32;
        segment.last = Some(header);
        seq
    }

    /// Writes the summary of the newest segment, as if everything in it were durable.
    pub fn seal(&mut self) {
        let layout = self.layout();
        let Some(segment) = self.live.back_mut().filter(|s| s.summary_bytes == 0) else {
            return;
        };
        let Some(last) = &segment.last else { return };
        let trailer = Trailer {
            generation: last.generation,
            segment_seq: segment.segment_seq,
            first_seq: Seq(segment.first_seq),
            last_seq: last.seq,
            clean_upto: last.clean_upto,
            tail: last.tail,
            time_first_ns: last.time_ns - 5,
            time_last_ns: last.time_ns + 7,
            body_bytes: 0,
            body_crc: 0,
            records: 0,
            ordered: last.ordered,
        };
        let bytes = segment.summary.clone().finish(&layout, trailer);
        let end = layout.segment_offset(segment.index + 1) as usize;
        self.bytes[end - bytes.len()..end].copy_from_slice(&bytes);
        segment.summary_bytes = bytes.len();
    }

    /// Takes everything up to the newest record for destaged and frees all segments but the newest `keep`.
    pub fn destage(&mut self, keep: usize) {
        self.clean_upto = self.last_seq();
        while self.live.len() > keep {
            let segment = self.live.pop_front().expect("a segment");
            self.free.push_back(segment.index);
        }
    }

    pub fn stop(&mut self) {
        self.record_with(&[], true);
        self.superblock.clean_stop = true;
        self.superblock.update += 1;
        self.write_superblocks();
    }

    /// Begins the next run, which goes on in the newest segment.
    pub fn start(&mut self) {
        self.superblock.clean_stop = false;
        self.superblock.update += 1;
        self.superblock.layout.generation += 1;
        self.write_superblocks();
    }

    /// Byte offset of a place in a segment.
    pub fn at(&self, segment: &Segment, offset: u32) -> usize {
        self.layout().segment_offset(segment.index) as usize + offset as usize
    }

    /// Every part of the image that means something.
    pub fn used(&self) -> Vec<Range<usize>> {
        let mut used: Vec<Range<usize>> =
            SUPERBLOCK_OFFSETS.iter().map(|at| *at as usize..*at as usize + 4096).collect();
        for s in &self.live {
            used.push(self.at(s, 0)..self.at(s, s.end));
            let end = self.at(s, SEGMENT_BYTES);
            if s.summary_bytes > 0 {
                used.push(end - s.summary_bytes..end);
            }
        }
        used
    }

    /// What lies behind headers and trailers up to the next unit: it says nothing.
    pub fn padding(&self) -> Vec<Range<usize>> {
        let layout = &self.superblock.layout;
        let align = layout.align as usize;
        let mut padding = Vec::new();
        for s in &self.live {
            padding.push(self.at(s, 64)..self.at(s, layout.align));
            for record in &s.records {
                let at = self.at(s, *record);
                let header = RecordHeader::decode(layout, s.segment_seq, *record, &self.bytes[at..]).unwrap();
                let used = FIXED_BYTES + header.extents.len() * EXTENT_BYTES + header.checksums.len() * 4;
                padding.push(at + used..at + header.header_bytes(layout.align));
            }
            if s.summary_bytes > 0 {
                let end = self.at(s, SEGMENT_BYTES);
                padding.push(end - align + 108..end);
            }
        }
        padding
    }
}

const DATA: ExtentKind = ExtentKind::Data;

fn fill(w: &mut Writer, records: u64) {
    for i in 0..records {
        w.record(&[(i * 7 % 90, 1 + (i % 3) as u32, DATA)]);
        if i % 5 == 0 {
            w.record(&[(200 + i, 2, ExtentKind::Zero), (i * 7 % 90, 1, ExtentKind::Supersede)]);
        }
        if i % 7 == 0 {
            w.record(&[(300 + i, 1, ExtentKind::Clean), (400 + i, 1, ExtentKind::Poison)]);
        }
    }
}

/// Killed while running: dirty data, two sealed segments and an open one, two runs.
pub fn dirty(align: u32) -> Writer {
    let mut w = Writer::new(align, 8);
    fill(&mut w, 10);
    w.start();
    fill(&mut w, 10);
    w
}

/// Stopped cleanly with dirty data.
pub fn stopped(align: u32) -> Writer {
    let mut w = dirty(align);
    w.stop();
    w
}

/// More than a lap round the segments, which leaves whole old segments and old records behind, in a third run.
pub fn wrapped(align: u32) -> Writer {
    let mut w = Writer::new(align, 6);
    while w.last_seq() < 90 {
        fill(&mut w, 4);
        if w.live.len() >= 4 {
            w.destage(1);
        }
    }
    w.start();
    w.start();
    fill(&mut w, 9);
    w
}
