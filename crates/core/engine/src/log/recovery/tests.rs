//! Recovery of images that are built by hand, of what no run of the log here writes: the rows of the case table.

use forebay_block::BlockNo;
use forebay_format::checksum::block_checksum;
use forebay_format::record::{Extent, ExtentKind, RecordHeader};
use forebay_format::segment::SegmentHeader;
use forebay_format::summary::SummaryBuilder;

use super::*;
use crate::log::tests::{VOLUME_BYTES, layout, recover};
use crate::map::segments::{DIRTY, SlotRef};

/// A cache whose segments are written record by record.
struct Image {
    layout: Layout,
    bytes: Vec<u8>,
    /// The segment that is written: physical number, place in the log, where the next record goes, and its summary so far.
    index: u32,
    place: u64,
    at: u32,
    summary: SummaryBuilder,
    first: Seq,
    last: RecordHeader,
}

/// What the next record says.
fn says(extents: &[(u64, ExtentKind)]) -> RecordHeader {
    RecordHeader {
        generation: 1,
        segment_seq: 0,
        seq: Seq(1),
        offset: 0,
        durable_upto: Seq(0),
        clean_upto: Seq(0),
        tail: 1,
        time_ns: 1 << 60,
        clean_stop: false,
        ordered: Consistent::No,
        distance: 1,
        extents: extents
            .iter()
            .map(|(block, kind)| Extent { block: BlockNo(*block), count: 1, kind: *kind })
            .collect(),
        checksums: Vec::new(),
    }
}

fn data(block: u64) -> RecordHeader {
    says(&[(block, ExtentKind::Data)])
}

impl Image {
    fn new() -> Self {
        let layout = Layout { generation: 4, ..layout(512, 64 << 10, 8) };
        let bytes = layout.segment_offset(0) as usize + 8 * (64 << 10);
        Self {
            layout,
            bytes: vec![0; bytes],
            index: 0,
            place: 0,
            at: 0,
            summary: SummaryBuilder::default(),
            first: Seq(1),
            last: says(&[]),
        }
    }

    fn offset(&self, at: u32) -> usize {
        self.layout.segment_offset(self.index) as usize + at as usize
    }

    /// Opens physical segment `index` as the next in the log's order, for records from `first` on.
    fn open(&mut self, index: u32, first: u64, generation: u64) -> &mut Self {
        (self.index, self.place, self.at) = (index, self.place + 1, 512);
        (self.summary, self.first) = (SummaryBuilder::default(), Seq(first));
        let header = SegmentHeader { generation, segment_seq: self.place, first_seq: Seq(first), index };
        let at = self.offset(0);
        header.encode(&self.layout, &mut self.bytes[at..]);
        self
    }

    /// Appends a record of a run; its blocks are filled with its number.
    fn record(&mut self, seq: u64, generation: u64, says: RecordHeader) -> &mut Self {
        let data = vec![seq as u8; 4096];
        let with_data = says.extents.iter().filter(|e| e.kind.has_data());
        let checksums = with_data.map(|e| block_checksum(e.block, Seq(seq), &data)).collect();
        let (segment_seq, offset) = (self.place, self.at);
        let header = RecordHeader { generation, segment_seq, seq: Seq(seq), offset, checksums, ..says };
        let at = self.offset(self.at);
        let data_at = at + header.header_bytes(512);
        header.encode(&self.layout, &mut self.bytes[at..data_at]);
        let end = at + header.record_bytes(512);
        self.bytes[data_at..end].fill(seq as u8);
        self.summary.push(&header, 512);
        self.at += header.record_bytes(512) as u32;
        self.last = header;
        self
    }

    /// Ends the segment with its summary.
    fn seal(&mut self) -> &mut Self {
        let last = &self.last;
        let trailer = Trailer {
            generation: last.generation,
            segment_seq: self.place,
            first_seq: self.first,
            last_seq: last.seq,
            clean_upto: last.clean_upto,
            tail: last.tail,
            time_first_ns: last.time_ns,
            time_last_ns: last.time_ns,
            body_bytes: 0,
            body_crc: 0,
            records: 0,
            ordered: last.ordered,
        };
        let bytes = std::mem::take(&mut self.summary).finish(&self.layout, trailer);
        let end = self.offset(self.layout.segment_bytes);
        self.bytes[end - bytes.len()..end].copy_from_slice(&bytes);
        self
    }

    /// Makes a byte of the record that was written last another one: of its header (`at` below 512), or of its data.
    fn damage(&mut self, at: usize) -> &mut Self {
        let place = self.offset(self.last.offset) + at;
        self.bytes[place] ^= 0xFF;
        self
    }

    fn recover(&self) -> Result<Recovered, RecoveryError> {
        recover(self.layout, &self.bytes, false, false, 0..0)
    }
}

fn slot(found: &Recovered, block: u64) -> Option<SlotRef> {
    found.map.lookup(BlockNo(block))
}

/// Of each of these blocks the number of the record that has its newest version, 0 if none.
fn versions<const N: usize>(found: &Recovered, blocks: [u64; N]) -> [u64; N] {
    blocks.map(|block| slot(found, block).map_or(0, |slot| found.map.segments().seq(slot).0))
}

/// Two sealed segments with two records each, and an open one with one.
fn five_records() -> Image {
    let mut image = Image::new();
    image.open(2, 1, 1).record(1, 1, data(10)).record(2, 1, data(11)).seal();
    image
        .open(3, 3, 1)
        .record(3, 1, data(10))
        .record(4, 1, RecordHeader { durable_upto: Seq(2), ..data(12) })
        .seal();
    image.open(4, 5, 1).record(5, 1, RecordHeader { durable_upto: Seq(4), ..data(13) });
    image
}

#[test]
fn an_empty_cache_is_an_empty_log() {
    let found = Image::new().recover().unwrap();
    assert_eq!((found.report, found.clean_upto), (RecoveryReport::default(), Seq(0)));
    assert_eq!((found.log.last_seq(), found.map.len(), found.map.segments().free_count()), (Seq(0), 0, 8));
    assert!(!found.trusts_clean && !found.is_broken && !found.has_versions);
}

#[test]
fn a_log_of_three_segments_is_found_as_it_was() {
    let found = five_records().recover().unwrap();
    assert_eq!(versions(&found, [10, 11, 12, 13, 14]), [3, 2, 4, 5, 0]);
    let report = found.report;
    assert_eq!((report.last_seq, report.segments_live, report.segments_scanned), (Seq(5), 3, 1));
    assert_eq!((report.blocks_dirty, report.blocks_clean, report.records_torn), (4, 0, 0));
    assert_eq!(found.map.segments().next_free().collect::<Vec<_>>(), [5, 6, 7, 0, 1], "the log goes round");
}

#[test]
fn the_end_is_where_records_are_torn_or_do_not_follow() {
    // What stands behind record 5, and whether it looks like a record that was torn.
    let gap = |image: &mut Image| {
        image.record(7, 1, data(15));
    };
    let earlier_run = |image: &mut Image| {
        image.record(6, 0, data(15));
    };
    let torn_data = |image: &mut Image| {
        image.record(6, 1, data(15)).damage(1000);
    };
    let torn_header = |image: &mut Image| {
        image.record(6, 1, data(15)).damage(40);
    };
    let behind_torn = |image: &mut Image| {
        image.record(6, 1, data(15)).damage(1000).record(7, 1, data(16));
    };
    let cases: [(&str, &dyn Fn(&mut Image), u64); 5] = [
        ("a gap", &gap, 0),
        ("a record of an earlier run", &earlier_run, 0),
        ("torn data", &torn_data, 1),
        ("a torn header", &torn_header, 1),
        ("a whole record behind a torn one", &behind_torn, 1),
    ];
    for (name, change, torn) in cases {
        let mut image = five_records();
        change(&mut image);
        let found = image.recover().unwrap();
        assert_eq!((found.report.last_seq, found.report.records_torn), (Seq(5), torn), "{name}");
        assert_eq!(versions(&found, [13, 15, 16]), [5, 0, 0], "{name}");
    }
}

#[test]
fn a_damaged_record_that_was_durable_is_part_of_the_log() {
    let mut image = five_records();
    image.record(6, 1, data(15)).damage(1000);
    image.record(7, 1, RecordHeader { durable_upto: Seq(6), ..data(16) });
    let found = image.recover().unwrap();
    assert_eq!((found.report.last_seq, found.report.records_torn), (Seq(7), 0));
    assert_eq!(versions(&found, [15, 16]), [6, 7], "a read will find that 15 is damaged");
}

#[test]
fn a_missing_or_damaged_summary_costs_time_and_nothing_else() {
    let whole = five_records();
    let third = whole.layout.segment_offset(3) as usize;
    let end = third + whole.layout.segment_bytes as usize;
    // What is damaged at the end of the second segment: its trailer, or its body; or it cannot be read.
    let trailer = end - 500..end - 499;
    let body = end - 600..end - 599;
    for (name, place, reads) in [
        ("trailer", trailer.clone(), true),
        ("body", body, true),
        ("trailer that cannot be read", trailer, false),
    ] {
        let mut image = five_records();
        let bad = if reads { 0..0 } else { place.clone() };
        if reads {
            image.bytes[place].fill(0xA5);
        }
        let found = recover(image.layout, &image.bytes, false, false, bad);
        match reads {
            true => {
                let found = found.unwrap();
                assert_eq!((found.report.last_seq, found.report.segments_scanned), (Seq(5), 2), "{name}");
                assert_eq!(versions(&found, [10, 11, 12, 13]), [3, 2, 4, 5], "{name}");
            }
            // Then its segment must be read through, which fails, too.
            false => assert!(matches!(found, Err(RecoveryError::Io(_))), "{name}"),
        }
    }
}

#[test]
fn several_runs_in_one_segment_are_told_apart() {
    let mut image = Image::new();
    // The first run ends with a torn record 3; the second puts its own there, shorter, so that record 4 of the first is left behind.
    image.open(0, 1, 1).record(1, 1, data(10)).record(2, 1, data(11));
    let at = image.at;
    image.record(3, 1, says(&[(12, ExtentKind::Zero)])).record(4, 1, data(13));
    image.at = at;
    image.record(3, 2, says(&[(14, ExtentKind::Zero)]));
    let found = image.recover().unwrap();
    assert_eq!(versions(&found, [10, 11, 12, 13, 14]), [1, 2, 0, 0, 3]);
    assert_eq!(found.report.last_seq, Seq(3));
    // A third run goes on behind that.
    image.record(4, 3, data(15));
    let found = image.recover().unwrap();
    assert_eq!((versions(&found, [13, 15]), found.report.last_seq), ([0, 4], Seq(4)));
}

#[test]
fn what_was_durable_and_is_gone_ends_recovery() {
    // The second segment is gone; what follows it says that its records were durable, or that its own were.
    for (durable, error) in [
        (4, RecoveryError::LostRecord { seq: 3, segment: 2 }),
        (5, RecoveryError::LostSegment { segment_seq: 2 }),
    ] {
        let mut segment = five_records();
        segment.record(6, 1, RecordHeader { durable_upto: Seq(durable), ..data(15) });
        let second = segment.layout.segment_offset(3) as usize;
        segment.bytes[second..second + 65536].fill(0);
        assert_eq!(segment.recover().err(), Some(error));
    }
    let mut record = five_records();
    record.record(6, 1, data(15)).damage(40).record(7, 1, RecordHeader { durable_upto: Seq(6), ..data(16) });
    assert_eq!(record.recover().err(), Some(RecoveryError::LostRecord { seq: 6, segment: 4 }));
    // The write that opened the next segment is lost, and records behind it are there.
    let mut beyond = five_records();
    beyond.open(5, 6, 1).record(6, 1, data(15)).record(
        7,
        1,
        RecordHeader { durable_upto: Seq(6), ..data(16) },
    );
    let at = beyond.offset(0);
    beyond.bytes[at..at + 1024].fill(0);
    assert_eq!(beyond.recover().err(), Some(RecoveryError::LostRecord { seq: 6, segment: 4 }));
}

#[test]
fn what_no_run_writes_ends_recovery() {
    let mut image = five_records();
    image.record(6, 1, data(VOLUME_BYTES / 4096));
    assert!(matches!(image.recover(), Err(RecoveryError::Impossible { segment: 4, .. })));
    let mut later_tail = five_records();
    later_tail.record(6, 1, RecordHeader { clean_upto: Seq(9), ..data(15) });
    assert!(matches!(later_tail.recover(), Err(RecoveryError::Impossible { segment: 4, .. })));
}

#[test]
fn a_header_that_cannot_be_read_ends_recovery() {
    let image = five_records();
    let at = image.layout.segment_offset(6) as usize;
    let found = recover(image.layout, &image.bytes, false, false, at..at + 1);
    assert!(matches!(found, Err(RecoveryError::Io(_))));
}

#[test]
fn segments_before_the_tail_count_for_nothing() {
    let mut image = five_records();
    image.record(6, 1, RecordHeader { tail: 2, ..data(15) });
    let found = image.recover().unwrap();
    assert_eq!(versions(&found, [10, 11, 12, 13, 15]), [3, 0, 4, 5, 6]);
    assert_eq!(found.report.segments_live, 2);
}

#[test]
fn clean_copies_are_believed_after_a_clean_stop_alone() {
    // Whether the superblock says so, and whether the log does.
    for (told, marked) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut image = five_records();
        image.record(6, 1, says(&[(20, ExtentKind::Clean)]));
        image.record(7, 1, RecordHeader { clean_upto: Seq(3), clean_stop: marked, ..says(&[]) });
        let found = recover(image.layout, &image.bytes, told, false, 0..0).unwrap();
        let trusts = told && marked;
        assert_eq!(found.trusts_clean, trusts);
        // Up to the clean mark all is clean, too: the backing has it, but may have something newer.
        let expected = if trusts { [3, 2, 4, 6] } else { [0, 0, 4, 0] };
        assert_eq!(versions(&found, [10, 11, 12, 20]), expected, "told {told}, marked {marked}");
        let dirty =
            [10, 12].map(|b| slot(&found, b).is_some_and(|s| found.map.segments().slot(s).has(DIRTY)));
        assert_eq!(dirty, [false, true]);
        assert_eq!((found.report.blocks_dirty, found.report.blocks_clean), (2, if trusts { 3 } else { 0 }));
        assert_eq!(found.clean_upto, Seq(3));
    }
}

#[test]
fn a_bypass_makes_void_what_came_before_it() {
    let mut image = five_records();
    image.record(
        6,
        1,
        says(&[(10, ExtentKind::Supersede), (13, ExtentKind::Supersede), (11, ExtentKind::Poison)]),
    );
    image.record(7, 1, data(13));
    let found = image.recover().unwrap();
    assert_eq!(versions(&found, [10, 11, 12, 13]), [0, 6, 4, 7]);
    assert_eq!(found.map.segments().lost(), 1);
}

#[test]
fn overwritten_versions_stay_where_an_order_is_kept() {
    // Block 10 is overwritten; and the mark of a lost block is, in the second image.
    let plain = five_records();
    let mut lost = five_records();
    lost.record(6, 1, says(&[(30, ExtentKind::Poison)])).record(7, 1, data(30));
    for (image, keeps, dirty, versions, broken) in [
        (&plain, false, 4, false, false),
        (&plain, true, 5, true, false),
        (&lost, false, 5, false, false),
        (&lost, true, 6, true, true),
    ] {
        let found = recover(image.layout, &image.bytes, false, keeps, 0..0).unwrap();
        assert_eq!(found.map.segments().dirty(), dirty, "versions are kept: {keeps}");
        assert_eq!((found.has_versions, found.is_broken), (versions, broken));
    }
}
