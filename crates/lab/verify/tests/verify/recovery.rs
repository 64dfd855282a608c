//! Recovery of logs that say what cannot be, although every checksum is right: the fuzz target `recovery`, which `fuzz/` includes, and what
//! the tests of single rules use.
//!
//! The engine's recovery runs against an image in memory; if it goes well, everything is destaged. It never panics, changes nothing before
//! it has gone well, and never writes behind the volume's end. And it agrees with the verifier, by the same rules.

use forebay_block::{BlockNo, Buf, BufMut, DeviceOp, Nanos, Seq};
use forebay_engine::{
    Command, Effect, Engine, Event, Params, RecoveryError, RecoveryReport, RequestId, Role,
};
use forebay_format::Layout;
use forebay_format::checksum::{block_checksum, crc32c};
use forebay_format::record::{ExtentKind, RecordHeader};
use forebay_format::segment::SegmentHeader;
use forebay_format::summary::Trailer;
use forebay_format::superblock::{CacheState, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock};
use forebay_policy::Settings;
use forebay_verify::{FindingKind, check};

use super::targets::{Base, CHANGES_MAX, apply, bases, mend, u32_at, u64_at};

/// Operations after which destaging an image is given up: each of its blocks takes a few.
const OPERATIONS_MAX: usize = 20_000;

/// Recovers the cache image and destages what it holds. `None` if the host would not let it come that far.
pub fn recover(image: &[u8]) -> Option<Result<RecoveryReport, RecoveryError>> {
    let copy = |at: u64| image.get(at as usize..).and_then(|b| b.get(..SUPERBLOCK_BYTES)).unwrap_or_default();
    let superblock = Superblock::newest(copy(SUPERBLOCK_OFFSETS[0]), copy(SUPERBLOCK_OFFSETS[1])).ok()?;
    if superblock.state != CacheState::Paired || superblock.layout.cache_bytes() > image.len() as u64 {
        return None;
    }
    let mut engine = Engine::new(Params {
        layout: Layout { generation: superblock.layout.generation.checked_add(1)?, ..superblock.layout },
        volume_bytes: superblock.volume_bytes,
        settings: Settings::default(),
        wall_offset_ns: 1_700_000_100_000_000_000,
        clean_stop: superblock.clean_stop,
        journal: None,
        prepared: None,
        commits_in_place: false,
        journal_left: false,
        backing_depth: 256,
        backing_unit_bytes: None,
        backing_forgets: false,
        read_only: false,
    });
    let mut cache = image.to_vec();
    let (mut now, mut recovered, mut under_way) = (Nanos(0), None, Vec::new());
    for _ in 0..OPERATIONS_MAX {
        let mut effects = Vec::new();
        engine.poll(now, &mut effects);
        for effect in effects {
            match effect {
                Effect::Io { id, role, op, .. } => under_way.push((id, role, op)),
                Effect::Recovered(result) => {
                    assert!(result.is_err() || under_way.is_empty());
                    if result.is_ok() {
                        engine.handle(Event::Command { id: RequestId(1), command: Command::Destage }, now);
                    }
                    recovered = Some(result);
                }
                Effect::CommandDone { .. } => return recovered,
                _ => {}
            }
        }
        if matches!(recovered, Some(Err(_))) {
            return recovered;
        }
        match under_way.is_empty() {
            true => now = engine.next_wake().unwrap_or(now).max(now.plus_ms(1)),
            false => {
                let (id, role, op) = under_way.remove(0);
                let changes = op.changes();
                assert!(recovered.is_some() || !changes, "recovery changes nothing: {op:?}");
                let data = match role {
                    Role::Cache => perform(&mut cache, &op),
                    _ => at_backing(superblock.volume_bytes, &op),
                };
                now = Nanos(now.0 + 10_000);
                engine.handle(Event::Io { id, result: Ok(data) }, now);
            }
        }
    }
    panic!("an image that recovery takes is destaged in the end");
}

fn perform(device: &mut [u8], op: &DeviceOp) -> Option<Buf> {
    match op {
        DeviceOp::Read { offset, len } => return Some(Buf::copy_of(&device[*offset as usize..][..*len])),
        DeviceOp::Write { offset, bufs, .. } => {
            let mut at = *offset as usize;
            for buf in bufs {
                device[at..at + buf.len()].copy_from_slice(buf);
                at += buf.len();
            }
        }
        DeviceOp::Zero { offset, len, .. } => device[*offset as usize..][..*len as usize].fill(0),
        DeviceOp::Flush | DeviceOp::Commit(_) => {}
    }
    None
}

/// A backing that only minds what is its own.
fn at_backing(volume_bytes: u64, op: &DeviceOp) -> Option<Buf> {
    let (offset, len) = match op {
        DeviceOp::Read { offset, len } => (*offset, *len as u64),
        DeviceOp::Write { offset, .. } => (*offset, op.write_bytes()),
        DeviceOp::Zero { offset, len, .. } => (*offset, *len),
        DeviceOp::Flush | DeviceOp::Commit(_) => return None,
    };
    assert!(offset + len <= volume_bytes, "{op:?} goes behind the volume's end");
    matches!(op, DeviceOp::Read { .. }).then(|| BufMut::zeroed(len as usize).freeze())
}

/// Rewrites the record whose header lies at byte `at` of the image, its length being kept, with right checksums of header and data.
pub fn forge_record(bytes: &mut [u8], layout: &Layout, at: usize, forge: impl FnOnce(&mut RecordHeader)) {
    let rest = &bytes[at..];
    let Ok(mut h) = RecordHeader::decode(layout, u64_at(rest, 40), u32_at(rest, 88), rest) else { return };
    let (len, extents, checksums) = (h.header_bytes(layout.align), h.extents.len(), h.checksums.len());
    let data_bytes = h.record_bytes(layout.align) - len;
    forge(&mut h);
    h.extents.truncate(extents);
    let blocks = h.extents.iter().filter(|e| e.kind.has_data()).flat_map(|e| {
        let count = u64::from(e.count).min(checksums as u64);
        (0..count).map(|n| BlockNo(e.block.0.wrapping_add(n)))
    });
    let data = bytes[at + len..at + len + data_bytes].chunks_exact(4096);
    let sums: Vec<u32> = blocks.zip(data).map(|(block, data)| block_checksum(block, h.seq, data)).collect();
    h.checksums[..sums.len()].copy_from_slice(&sums);
    h.encode(layout, &mut bytes[at..at + len]);
}

/// Rewrites the trailer at byte `at` of the image; `body` may change the summary's body, whose checksum is made right, too.
pub fn forge_trailer(bytes: &mut [u8], layout: &Layout, at: usize, forge: impl FnOnce(&mut [u8], &mut [u8])) {
    let align = layout.align as usize;
    let Ok(t) = Trailer::decode(layout, u64_at(bytes, at + 40), &bytes[at..]) else { return };
    let body_at = at + align - t.bytes(layout.align);
    let (body, trailer) = bytes[body_at..at + align].split_at_mut(at - body_at);
    forge(body, trailer);
    trailer[96..100].copy_from_slice(&crc32c(body).to_le_bytes());
    mend(trailer, 8, align);
}

/// One of the values that a field is forged to.
fn value(pick: u8, old: u64, near: u64) -> u64 {
    match pick % 8 {
        0 => 0,
        1 => old.wrapping_add(1),
        2 => old.wrapping_sub(1),
        3 => near,
        4 => old.wrapping_add(near),
        5 => u64::MAX >> 1,
        6 => u64::MAX,
        _ => 1 << (near % 64),
    }
}

/// A change to an image by eight bytes: the plain ones of the target `image`, and forgeries of single fields.
fn change(base: &Base, bytes: &mut Vec<u8>, layout: &Layout, change: &[u8]) {
    let near = u64::from(u32_at(change, 3) >> 8);
    let (pick, which) = (change[7], change[6]);
    let (at, len, _) = base.structures[usize::from(change[1]) % base.structures.len()];
    if bytes.get(at..at + len).is_none() {
        return;
    }
    let magic: [u8; 8] = bytes[at..at + 8].try_into().unwrap();
    match (change[0] % 4, &magic) {
        (0, _) => apply(base, bytes, change),
        (_, b"FBRECORD") => forge_record(bytes, layout, at, |h| forge(h, change[2], pick, which, near)),
        (_, b"FBSUMMRY") => forge_trailer(bytes, layout, at, |body, trailer| {
            // The fields from the run on; or one of the body's, each of which is four or eight bytes long.
            let (part, at) = match change[2] % 2 {
                0 => (trailer, 32 + usize::from(which) % 10 * 8),
                _ => {
                    let words = (body.len() / 4).max(2);
                    (body, near as usize % (words - 1) * 4)
                }
            };
            let old = u64_at(part, at);
            part[at..at + 8].copy_from_slice(&value(pick, old, near % 64).to_le_bytes());
        }),
        (_, b"FBSEGMNT") => {
            let field = at + 32 + usize::from(which) % 3 * 8;
            let old = u64_at(bytes, field);
            bytes[field..field + 8].copy_from_slice(&value(pick, old, near).to_le_bytes());
            mend(&mut bytes[at..], 8, len);
        }
        _ => apply(base, bytes, change),
    }
}

fn forge(h: &mut RecordHeader, field: u8, pick: u8, which: u8, near: u64) {
    let extent = usize::from(which) % h.extents.len().max(1);
    match (field % 10, h.extents.get_mut(extent)) {
        (0, _) => h.seq = Seq(value(pick, h.seq.0, near)),
        (1, _) => h.durable_upto = Seq(value(pick, h.durable_upto.0, near)),
        (2, _) => h.clean_upto = Seq(value(pick, h.clean_upto.0, near)),
        (3, _) => h.tail = value(pick, h.tail, near),
        (4, _) => h.time_ns = value(pick, h.time_ns, near),
        (5, _) => (h.distance, h.clean_stop) = (value(pick, h.distance.into(), near) as u16, pick > 127),
        (6, Some(e)) => e.block = BlockNo(value(pick, e.block.0, near)),
        (7 | 8, Some(e)) => {
            // A whole volume, time and again, is more than a segment holds.
            let kinds = [ExtentKind::Zero, ExtentKind::Poison, ExtentKind::Supersede];
            e.count = value(pick, e.count.into(), near) as u32;
            if !e.kind.has_data() {
                e.kind = kinds[usize::from(which) % 3];
            }
        }
        _ => h.generation = value(pick, h.generation, near),
    }
}

/// The first byte chooses an image, each eight that follow make a change to it.
pub fn recovery(data: &[u8]) {
    let Some((first, changes)) = data.split_first() else { return };
    let base = &bases()[usize::from(*first) % bases().len()];
    let layout = Superblock::decode(&base.bytes).unwrap().layout;
    let mut bytes = base.bytes.clone();
    for eight in changes.chunks_exact(8).take(CHANGES_MAX) {
        change(base, &mut bytes, &layout, eight);
    }
    let Some(recovered) = recover(&bytes) else { return };
    let report = check(&bytes).unwrap();
    match &recovered {
        // Why something is missing the two may see differently; what cannot be they both see.
        Err(RecoveryError::Impossible { .. }) => assert_eq!(report.exit_code(), 4, "{recovered:?}\n{report}"),
        Err(_) => {}
        Ok(_) => {
            let kinds = [FindingKind::ImpossibleValue, FindingKind::SummaryDisagrees];
            let said = || report.findings.iter().filter(|f| kinds.contains(&f.kind));
            // Of a segment with a summary recovery reads no record.
            if !said().any(|f| f.segment.is_some_and(|s| has_summary(&bytes, s))) {
                assert_eq!(said().count(), 0, "recovery takes what check refuses\n{report}");
            }
        }
    }
}

/// Whether the segment has a whole summary of its lap.
fn has_summary(bytes: &[u8], segment: u32) -> bool {
    let copies = SUPERBLOCK_OFFSETS.map(|at| &bytes[at as usize..][..SUPERBLOCK_BYTES]);
    let Ok(superblock) = Superblock::newest(copies[0], copies[1]) else { return false };
    let layout = superblock.layout;
    let at = layout.segment_offset(segment) as usize;
    let whole = &bytes[at..at + layout.segment_bytes as usize];
    let end = whole.len() - layout.align as usize;
    // Recovery knows the lap from the first record where the segment's header is damaged.
    let header = SegmentHeader::decode(&layout, segment, whole).ok().map(|header| header.segment_seq);
    let lap = header.or_else(|| RecordHeader::segment_seq_of(&whole[layout.align as usize..]));
    lap.and_then(|lap| Trailer::decode(&layout, lap, &whole[end..]).ok())
        .is_some_and(|t| t.entries(&layout, &whole[whole.len() - t.bytes(layout.align)..]).is_ok())
}
