//! One example of each structure, in which every field has a value of its own.

use forebay_block::{BlockNo, Seq};
use forebay_format::Layout;
use forebay_format::checksum::block_checksum;
use forebay_format::journal::{Group, GroupEntry, Head, Moment};
use forebay_format::label::{Label, LabelState, Phase};
use forebay_format::record::{Consistent, Extent, ExtentKind, RecordHeader};
use forebay_format::segment::SegmentHeader;
use forebay_format::shared_point::Common;
use forebay_format::summary::{SummaryBuilder, Trailer};
use forebay_format::superblock::{CacheState, Superblock};

fn id(first: u8) -> [u8; 16] {
    std::array::from_fn(|i| first + i as u8)
}

pub fn layout(align: u32) -> Layout {
    Layout {
        cache_id: id(0xC0),
        generation: 0x0706_0504_0302_0101,
        align,
        segment_bytes: 0x0030_0000,
        segment_count: 0x0203,
    }
}

pub fn superblock() -> Superblock {
    Superblock {
        update: 0x1716_1514_1312_1110,
        layout: layout(512),
        backing_id: id(0xB0),
        volume_bytes: 0x0004_5566_7788_9A00,
        logical_block: 512,
        state: CacheState::Retired,
        clean_stop: true,
        has_label: true,
        created_ns: 0x1800_0000_0000_0001,
        backing_name: "/srv/vm/database disk.img".into(),
        fingerprint: "first-MiB:5f3a".into(),
    }
}

pub fn label() -> Label {
    Label {
        update: 0x2726_2524_2322_2120,
        backing_id: id(0xB0),
        cache_id: id(0xC0),
        generation: 0x0706_0504_0302_0101,
        phase: Phase::Committed,
        state: LabelState::Released,
        in_use: true,
        volume_bytes: 0x0004_5566_7788_9A00,
        logical_block: 512,
        time_ns: 0x1800_0000_0000_0002,
        host_id: id(0xA0),
        host_name: "höst-1".into(),
        cache_name: "/dev/disk/by-id/nvme-1".into(),
        journal_run: 0x0706_0504_0302_0100,
    }
}

/// As [`superblock`], of a volume with logical blocks of 4096 bytes.
pub fn superblock_4096() -> Superblock {
    Superblock { logical_block: 4096, volume_bytes: 0x0004_5566_7788_9000, ..superblock() }
}

/// As [`label`], of a volume with logical blocks of 4096 bytes.
pub fn label_4096() -> Label {
    Label { logical_block: 4096, volume_bytes: 0x0004_5566_7788_9000, ..label() }
}

pub fn moment(group: u64) -> Moment {
    Moment {
        group,
        seq: Seq(group + 0x100),
        time_ns: 0x1800_0000_0000_0003,
        point: 7,
        label: "before upgrade".into(),
    }
}

pub fn journal_head() -> Head {
    Head {
        update: 0x5756_5554_5352_5150,
        backing_id: id(0xB0),
        cache_id: id(0xC0),
        generation: 0x0706_0504_0302_0101,
        consistent: true,
        volume_bytes: 0x0004_5566_7788_9A00,
        ring_bytes: 0x0800_0000,
        tail: 0x0000_6162_6364_6000,
        head: 0x0000_6162_6365_6000,
        applied: moment(0x71),
        committed: moment(0x72),
        prepared: 0x0000_6162_6365_6000,
        common: Common::default(),
    }
}

/// As [`journal_head`], of a member of a consistency group with a prepared group.
pub fn journal_head_common() -> Head {
    Head {
        prepared: 0x0000_6162_6366_6000,
        common: Common {
            decided: 0x31,
            prepared: 0x32,
            set: id(0xD0),
            member: 1,
            names: "shop data log".to_owned(),
        },
        ..journal_head()
    }
}

/// A group of two blocks, of which the second is zero.
pub fn group() -> Group {
    let data = block(0x42);
    let (first, seq) = (BlockNo(0x0102), Seq(0x0171));
    Group {
        cache_id: id(0xC0),
        generation: 0x0706_0504_0302_0101,
        position: 0x0000_6162_6364_6000,
        moment: moment(0x72),
        entries: vec![
            GroupEntry { block: first, seq, checksum: block_checksum(first, seq, &data), zero: false },
            GroupEntry { block: BlockNo(0x0103), seq: Seq(0x0172), checksum: 0, zero: true },
        ],
    }
}

pub fn segment_header() -> SegmentHeader {
    SegmentHeader {
        generation: 0x0706_0504_0302_0100,
        segment_seq: 0x3736_3534_3332_3130,
        first_seq: Seq(0x4746_4544_4342_4140),
        index: 0x0000_0202,
    }
}

/// A block of zeroes but for a few bytes, so that golden files stay small.
pub fn block(fill: u8) -> Vec<u8> {
    let mut data = vec![0; 4096];
    data[0] = fill;
    data[1000..1010].fill(fill);
    data[4095] = fill;
    data
}

const fn extent(block: u64, count: u32, kind: ExtentKind) -> Extent {
    Extent { block: BlockNo(block), count, kind }
}

/// A record with every kind of extent, and its three data blocks.
pub fn record(offset: u32) -> (RecordHeader, Vec<u8>) {
    let seq = Seq(0x4746_4544_4342_4140);
    let data = [block(0x11), block(0x22), block(0x33)];
    let numbers = [0x00A1_A2A3_A4A5u64, 0x00A1_A2A3_A4A6, 7];
    let checksums = numbers.iter().zip(&data);
    let header = RecordHeader {
        generation: 0x0706_0504_0302_0100,
        segment_seq: 0x3736_3534_3332_3130,
        seq,
        offset,
        durable_upto: Seq(0x4746_4544_4342_4130),
        clean_upto: Seq(0x4746_4544_4342_4120),
        tail: 0x3736_3534_3332_3030,
        time_ns: 0x1800_0000_0000_0003,
        clean_stop: true,
        ordered: Consistent::Completion,
        distance: 0x5453,
        extents: vec![
            extent(0x00A1_A2A3_A4A5, 2, ExtentKind::Data),
            extent(7, 1, ExtentKind::Clean),
            extent(0x00FF_0000_0000, 0xFFFF_FFFF, ExtentKind::Zero),
            extent(9, 3, ExtentKind::Supersede),
            extent(1, 1, ExtentKind::Poison),
        ],
        checksums: checksums.map(|(b, d)| block_checksum(BlockNo(*b), seq, d)).collect(),
    };
    (header, data.concat())
}

pub fn record_bytes(align: u32) -> Vec<u8> {
    let (header, data) = record(align);
    let mut bytes = vec![0; header.header_bytes(align)];
    header.encode(&layout(align), &mut bytes);
    bytes.extend_from_slice(&data);
    bytes
}

pub fn segment_header_bytes(align: u32) -> Vec<u8> {
    let mut bytes = vec![0xEE; align as usize];
    segment_header().encode(&layout(align), &mut bytes);
    bytes
}

/// The trailer that is handed to the builder, which fills in the last three fields.
pub fn trailer() -> Trailer {
    Trailer {
        generation: 0x0706_0504_0302_0100,
        segment_seq: 0x3736_3534_3332_3130,
        first_seq: Seq(0x4746_4544_4342_4140),
        last_seq: Seq(0x4746_4544_4342_4141),
        clean_upto: Seq(0x4746_4544_4342_4120),
        tail: 0x3736_3534_3332_3030,
        time_first_ns: 0x1800_0000_0000_0003,
        time_last_ns: 0x1800_0000_0000_0004,
        body_bytes: 0,
        body_crc: 0,
        records: 0,
        ordered: Consistent::Completion,
    }
}

/// The summary of a segment with two records, as it is written at the segment's end.
pub fn summary_bytes(align: u32) -> Vec<u8> {
    let (first, _) = record(align);
    let mut second = first.clone();
    second.offset = align + first.record_bytes(align) as u32;
    second.extents.truncate(1);
    second.checksums.truncate(2);
    let mut builder = SummaryBuilder::default();
    builder.push(&first, align);
    builder.push(&second, align);
    builder.finish(&layout(align), trailer())
}
