//! Entry points that take any bytes: the fuzz targets of `fuzz/`, which includes this file, and of the tests beside it.
//! Each must return: no panic, no overflow, no memory that a damaged field asks for.
//!
//! Random bytes never have a right checksum, so each parser is given the bytes as they are, and then with the
//! checksum made right.

use std::fmt::Debug;
use std::sync::OnceLock;

use forebay_block::{BufMut, DeviceOp};
use forebay_format::Layout;
use forebay_format::checksum::crc32c;
use forebay_format::journal::{Group, Head, JOURNAL_HEAD_BYTES, JOURNAL_RING_OFFSET};
use forebay_format::label::{LABEL_COPY_BYTES, Label};
use forebay_format::record::RecordHeader;
use forebay_format::replay::{Prepared, Replay, Step};
use forebay_format::segment::SegmentHeader;
use forebay_format::summary::Trailer;
use forebay_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock};
use forebay_verify::{InspectOptions, check, inspect};

use super::writer::{self, Writer};

type Entry = fn(&[u8]);

/// The targets: the name, which is that of its corpus, and the entry point of each.
pub const TARGETS: [(&str, Entry); 8] = [
    ("superblock", superblock),
    ("label", label),
    ("segment_header", segment_header),
    ("record", record),
    ("recovery", super::recovery::recovery),
    ("summary", summary),
    ("image", image),
    ("journal", journal),
];

fn layout(align: u32) -> Layout {
    Layout { generation: u64::MAX >> 1, ..writer::layout(align, 6) }
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_le_bytes(b.try_into().unwrap()))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |b| u64::from_le_bytes(b.try_into().unwrap()))
}

/// Makes the checksum at `at` of a structure of `len` bytes right, as far as the bytes reach.
pub(crate) fn mend(bytes: &mut [u8], at: usize, len: usize) {
    if let Some(structure) = bytes.get_mut(..len)
        && len >= at + 4
    {
        structure[at..at + 4].fill(0);
        let crc = crc32c(structure);
        structure[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    }
}

/// What was accepted, written again, must be read as the same.
fn same<T: Debug + PartialEq, E: Debug + PartialEq>(read: T, again: Result<T, E>) {
    assert_eq!(again, Ok(read));
}

pub fn superblock(data: &[u8]) {
    let mut bytes = data.to_vec();
    for _ in 0..2 {
        if let Ok(s) = Superblock::decode(&bytes) {
            s.layout.validate().unwrap();
            let s = Superblock::decode(&s.encode()).unwrap();
            same(s.clone(), Superblock::decode(&s.encode()));
        }
        mend(&mut bytes, 12, SUPERBLOCK_BYTES);
    }
    let half = bytes.len() / 2;
    let _ = Superblock::newest(&bytes[..half], &bytes[half..]);
}

pub fn label(data: &[u8]) {
    let mut bytes = data.to_vec();
    for _ in 0..2 {
        if let Ok(l) = Label::decode(&bytes) {
            let l = Label::decode(&l.encode()).unwrap();
            same(l.clone(), Label::decode(&l.encode()));
        }
        let _ = Label::newest(&bytes);
        mend(&mut bytes, 12, LABEL_COPY_BYTES);
    }
}

pub fn segment_header(data: &[u8]) {
    for align in [512u32, 4096] {
        let (layout, mut bytes) = (layout(align), data.to_vec());
        for _ in 0..2 {
            let index = u32_at(&bytes, 56);
            if let Ok(h) = SegmentHeader::decode(&layout, index, &bytes) {
                let mut out = vec![0; align as usize];
                h.encode(&layout, &mut out);
                same(h, SegmentHeader::decode(&layout, index, &out));
            }
            mend(&mut bytes, 8, align as usize);
        }
    }
}

pub fn record(data: &[u8]) {
    for align in [512u32, 4096] {
        let (layout, mut bytes) = (layout(align), data.to_vec());
        for _ in 0..2 {
            let (segment_seq, offset) = (u64_at(&bytes, 40), u32_at(&bytes, 88));
            if let Ok(h) = RecordHeader::decode(&layout, segment_seq, offset, &bytes) {
                let mut out = vec![0; h.header_bytes(align)];
                h.encode(&layout, &mut out);
                same(h, RecordHeader::decode(&layout, segment_seq, offset, &out));
            }
            let len = u32_at(&bytes, 12) as usize;
            mend(&mut bytes, 8, len);
        }
    }
}

/// The bytes are a journal: the copies of its head, then the ring with its groups.
pub fn journal(data: &[u8]) {
    let mut bytes = data.to_vec();
    for _ in 0..2 {
        if let Ok(head) = Head::newest(&bytes) {
            same(head.clone(), Head::decode(&head.encode()));
            let sizes = (head.ring_bytes, head.volume_bytes);
            let replays = [
                Replay::new(head.clone()),
                Replay::check_only(head.clone()),
                Replay::of_prepared(&head),
                Replay::deciding(head, Prepared::Applied),
            ];
            replays.into_iter().for_each(|r| replay(r, sizes, &bytes));
        }
        for copy in 0..2 {
            let at = copy * JOURNAL_HEAD_BYTES as usize;
            mend(bytes.get_mut(at..).unwrap_or_default(), 12, JOURNAL_HEAD_BYTES as usize);
        }
        if let Some(group) = bytes.get_mut(JOURNAL_RING_OFFSET as usize..) {
            let len = Group::descriptor_bytes_of(group).unwrap_or_default();
            mend(group, 12, len as usize);
        }
    }
}

/// Nothing is read outside the journal, nothing is written outside the volume, and nothing at all before damage is found.
fn replay(mut replay: Replay, (ring, volume): (u64, u64), journal: &[u8]) {
    let mut changed = false;
    loop {
        let read = match replay.step() {
            Step::End => return,
            Step::Journal(DeviceOp::Read { offset, len }) => {
                assert!(len > 0 && offset >= JOURNAL_RING_OFFSET);
                assert!(offset - JOURNAL_RING_OFFSET + len as u64 <= ring);
                let mut read = BufMut::zeroed(len);
                let there = usize::try_from(offset).ok().and_then(|at| journal.get(at..)).unwrap_or_default();
                let there = &there[..len.min(there.len())];
                read[..there.len()].copy_from_slice(there);
                Some(read.freeze())
            }
            Step::Backing(DeviceOp::Write { offset, bufs, .. }) => {
                let len: usize = bufs.iter().map(|b| b.len()).sum();
                assert!(offset.checked_add(len as u64).is_some_and(|end| end <= volume));
                changed = true;
                None
            }
            Step::Backing(DeviceOp::Zero { offset, len, .. }) => {
                assert!(offset.checked_add(len).is_some_and(|end| end <= volume));
                changed = true;
                None
            }
            Step::Journal(_) => {
                changed = true;
                None
            }
            Step::Backing(_) => None,
        };
        if replay.done(read.as_ref()).is_err() {
            assert!(!changed, "damage is found before anything is changed");
            return;
        }
    }
}

/// The bytes are the end of a segment: body, then trailer.
pub fn summary(data: &[u8]) {
    for align in [512u32, 4096] {
        let (layout, mut bytes) = (layout(align), data.to_vec());
        let Some(trailer_at) = bytes.len().checked_sub(align as usize) else { return };
        for _ in 0..2 {
            let (body, trailer) = bytes.split_at_mut(trailer_at);
            if let Ok(t) = Trailer::decode(&layout, u64_at(trailer, 40), trailer) {
                let at = bytes.len().saturating_sub(t.bytes(align));
                let entries = t.entries(&layout, &bytes[at..]).unwrap_or_default();
                let blocks: usize = entries.iter().map(|e| e.checksums.len()).sum();
                assert!(blocks * 4096 <= layout.segment_bytes as usize);
                continue;
            }
            let padded = (u32_at(trailer, 12) as usize).next_multiple_of(align as usize);
            let body = body.get(trailer_at.saturating_sub(padded)..).unwrap_or_default();
            trailer[96..100].copy_from_slice(&crc32c(body).to_le_bytes());
            mend(trailer, 8, align as usize);
        }
    }
}

/// An image to be damaged, and where its structures lie: offset, length, offset of the checksum.
pub(crate) struct Base {
    pub(crate) bytes: Vec<u8>,
    pub(crate) structures: Vec<(usize, usize, usize)>,
}

impl Base {
    fn new(w: &Writer) -> Self {
        let align = w.layout().align as usize;
        let mut structures: Vec<_> =
            SUPERBLOCK_OFFSETS.iter().map(|at| (*at as usize, SUPERBLOCK_BYTES, 12)).collect();
        for s in &w.live {
            structures.push((w.at(s, 0), align, 8));
            for offset in &s.records {
                let at = w.at(s, *offset);
                structures.push((at, u32_at(&w.bytes, at + 12) as usize, 8));
            }
            if s.summary_bytes > 0 {
                structures.push((w.at(s, writer::SEGMENT_BYTES) - align, align, 8));
            }
        }
        Self { bytes: w.bytes.clone(), structures }
    }
}

pub(crate) fn bases() -> &'static [Base] {
    static BASES: OnceLock<Vec<Base>> = OnceLock::new();
    BASES.get_or_init(|| {
        let images = [writer::dirty(512), writer::dirty(4096), writer::stopped(512), writer::wrapped(512)];
        images.iter().map(Base::new).collect()
    })
}

/// Most changes that one input makes to an image.
pub(crate) const CHANGES_MAX: usize = 16;

/// The first byte chooses an image, each eight that follow make a change to it.
pub fn image(data: &[u8]) {
    let Some((first, changes)) = data.split_first() else { return };
    let base = &bases()[*first as usize % bases().len()];
    let mut bytes = base.bytes.clone();
    for change in changes.chunks_exact(8).take(CHANGES_MAX) {
        apply(base, &mut bytes, change);
    }
    let block = changes.last().copied().map(u64::from);
    if let Ok(report) = check(&bytes) {
        let worst = report.findings.iter().map(|f| f.severity).max().unwrap_or_default();
        assert!(worst == report.verdict || report.findings_left_out > 0);
        assert!(!report.to_string().is_empty());
        let shown = inspect(&bytes, &InspectOptions { block, records_max: 3 }).unwrap();
        assert!(!shown.to_string().is_empty());
    }
}

pub(crate) fn apply(base: &Base, bytes: &mut Vec<u8>, change: &[u8]) {
    let a = u32_at(change, 0) as usize >> 8;
    let (b, value) = (u32_at(change, 3) as usize >> 8, change[7]);
    let len = bytes.len().max(1);
    let (at, len_of, crc_at) = base.structures[a % base.structures.len()];
    match change[0] % 6 {
        0 => bytes.iter_mut().skip(a % len).take(1).for_each(|v| *v ^= value),
        1 => {
            let (from, to) = (a * 512 % len, b * 512 % len);
            if from.max(to) + 512 <= bytes.len() {
                bytes.copy_within(from..from + 512, to);
            }
        }
        2 => bytes.iter_mut().skip(a * 512 % len).take(4096).for_each(|v| *v = 0),
        3 if at + len_of <= bytes.len() => {
            bytes[at + b % len_of] = value;
            mend(&mut bytes[at..], crc_at, len_of);
        }
        4 if at + len_of <= bytes.len() => {
            // A whole field of eight bytes.
            let field = at + b % len_of / 8 * 8;
            bytes[field..field + 8].fill(value);
            mend(&mut bytes[at..], crc_at, len_of);
        }
        5 => bytes.truncate(a % len),
        _ => {}
    }
}
