//! The tables of `SPEC.md` and `SPEC-BACKING.md` say what the code does: constants by value, fields by place and bytes.

use std::collections::BTreeMap;

use forebay_format::journal::{self, GROUP_ENTRY_BYTES, GROUP_FIXED_BYTES, Moment};
use forebay_format::label::{self, LABEL_VERSION, LABEL_VERSION_LOGICAL_BLOCK};
use forebay_format::logical_block;
use forebay_format::record::{self, ExtentKind};
use forebay_format::superblock::{self, FORMAT_VERSION, FORMAT_VERSION_LOGICAL_BLOCK};
use forebay_format::{COUNTER_MAX, Layout};

use super::samples;

const SPEC: &str = concat!(include_str!("../../SPEC.md"), "\n", include_str!("../../SPEC-BACKING.md"));

/// The cells of the first table whose first column is `column`, behind the line that starts with `heading`.
fn table(heading: &str, column: &str) -> Vec<Vec<&'static str>> {
    let mut rows = Vec::new();
    let mut lines = SPEC.lines().skip_while(|l| !l.starts_with(heading));
    assert!(lines.next().is_some(), "the specification has no '{heading}'");
    let start = format!("| {column} |");
    for line in lines.skip_while(|l| !l.starts_with(&start)).skip(2) {
        let Some(row) = line.strip_prefix("| ").and_then(|l| l.strip_suffix(" |")) else {
            break;
        };
        rows.push(row.split(" | ").collect());
    }
    assert!(!rows.is_empty(), "'{heading}' has no table");
    rows
}

#[test]
fn constants() {
    let code: BTreeMap<&str, u64> = [
        ("SUPERBLOCK_BYTES", superblock::SUPERBLOCK_BYTES as u64),
        ("SUPERBLOCK_OFFSET_A", superblock::SUPERBLOCK_OFFSETS[0]),
        ("SUPERBLOCK_OFFSET_B", superblock::SUPERBLOCK_OFFSETS[1]),
        ("FORMAT_VERSION", FORMAT_VERSION.into()),
        ("FORMAT_VERSION_LOGICAL_BLOCK", FORMAT_VERSION_LOGICAL_BLOCK.into()),
        ("LOGICAL_BLOCK_MIN", logical_block::LOGICAL_BLOCK_MIN.into()),
        ("LOGICAL_BLOCK_MAX", logical_block::LOGICAL_BLOCK_MAX.into()),
        ("SEGMENTS_OFFSET", Layout::SEGMENTS_OFFSET),
        ("SEGMENT_BYTES_MIN", Layout::SEGMENT_BYTES_MIN.into()),
        ("SEGMENT_BYTES_MAX", Layout::SEGMENT_BYTES_MAX.into()),
        ("SEGMENT_COUNT_MIN", Layout::SEGMENT_COUNT_MIN.into()),
        ("SEGMENT_COUNT_MAX", Layout::SEGMENT_COUNT_MAX.into()),
        ("FIXED_BYTES", record::FIXED_BYTES as u64),
        ("EXTENT_BYTES", record::EXTENT_BYTES as u64),
        ("RECORD_BLOCKS_MAX", record::RECORD_BLOCKS_MAX.into()),
        ("RECORD_EXTENTS_MAX", record::RECORD_EXTENTS_MAX.into()),
        ("HEADER_BYTES_MAX", record::HEADER_BYTES_MAX as u64),
        ("SEGMENT_BLOCKS_MAX", forebay_format::rules::SEGMENT_BLOCKS_MAX),
        ("BLOCKS_MAX", record::BLOCKS_MAX),
        ("COUNTER_MAX", COUNTER_MAX),
        ("LABEL_VERSION", LABEL_VERSION.into()),
        ("LABEL_VERSION_LOGICAL_BLOCK", LABEL_VERSION_LOGICAL_BLOCK.into()),
        ("LABEL_COPY_BYTES", label::LABEL_COPY_BYTES as u64),
        ("LABEL_BYTES", label::LABEL_BYTES as u64),
        ("JOURNAL_VERSION", journal::JOURNAL_VERSION.into()),
        ("JOURNAL_VERSION_COMMON", journal::JOURNAL_VERSION_COMMON.into()),
        ("COMMON_NAMES_BYTES", forebay_format::shared_point::COMMON_NAMES_BYTES as u64),
        ("JOURNAL_HEAD_BYTES", journal::JOURNAL_HEAD_BYTES),
        ("JOURNAL_RING_OFFSET", journal::JOURNAL_RING_OFFSET),
        ("GROUP_FIXED_BYTES", journal::GROUP_FIXED_BYTES as u64),
        ("GROUP_ENTRY_BYTES", journal::GROUP_ENTRY_BYTES as u64),
        ("GROUP_ENTRIES_MAX", journal::GROUP_ENTRIES_MAX as u64),
    ]
    .into();
    let spec = table("## Constants", "name");
    let spec: BTreeMap<&str, u64> =
        spec.iter().map(|r| (r[0].trim_matches('`'), r[1].parse().unwrap())).collect();
    assert_eq!(spec, code);
}

#[test]
fn extent_kinds() {
    let rows = table("**Extent**", "kind");
    let kinds =
        [ExtentKind::Data, ExtentKind::Clean, ExtentKind::Zero, ExtentKind::Supersede, ExtentKind::Poison];
    assert_eq!(rows.len(), kinds.len());
    for (row, kind) in rows.iter().zip(kinds) {
        assert_eq!(row[0], (kind as u32).to_string());
        assert_eq!(row[1], format!("{kind:?}"));
        assert_eq!(row[2], if kind.has_data() { "yes" } else { "no" });
    }
}

/// Holds the table behind `heading` to `bytes`: rows without gaps, each with the bytes that `fields` gives it.
/// Returns the end of the last row.
fn check_fields(heading: &str, bytes: &[u8], fields: &[(&str, Vec<u8>)]) -> usize {
    let mut end = 0;
    let rows = table(heading, "offset");
    for row in &rows {
        let (offset, size): (usize, usize) = (row[0].parse().unwrap(), row[1].parse().unwrap());
        assert_eq!(offset, end, "{heading}: '{}' leaves a gap", row[2]);
        end = offset + size;
        let actual = &bytes[offset..end];
        if row[2].starts_with("reserved") {
            assert_eq!(row[2], format!("reserved_{offset}"), "{heading}");
            assert!(actual.iter().all(|b| *b == 0), "{heading}: '{}' is not zero", row[2]);
            continue;
        }
        let field = fields.iter().find(|(name, _)| *name == row[2]);
        let (name, expected) = field.unwrap_or_else(|| panic!("{heading}: '{}' is not a field", row[2]));
        assert_eq!(expected.len(), size, "{heading}: size of '{name}'");
        assert_eq!(actual, expected, "{heading}: '{name}'");
    }
    let named = rows.iter().filter(|r| !r[2].starts_with("reserved")).count();
    assert_eq!(named, fields.len(), "{heading}: a field is missing or named twice");
    end
}

fn le16(v: u16) -> Vec<u8> {
    v.to_le_bytes().to_vec()
}

fn le32(v: u32) -> Vec<u8> {
    v.to_le_bytes().to_vec()
}

fn le64(v: u64) -> Vec<u8> {
    v.to_le_bytes().to_vec()
}

fn text(v: &str, size: usize) -> Vec<u8> {
    let mut field = v.as_bytes().to_vec();
    field.resize(size, 0);
    field
}

/// CRC-32C, bit by bit, of `bytes` with the four at `hole` as zeroes: an independent reading of the spec.
fn crc(bytes: &[u8], hole: usize) -> Vec<u8> {
    let mut crc = !0u32;
    for (i, byte) in bytes.iter().enumerate() {
        crc ^= u32::from(if (hole..hole + 4).contains(&i) { 0 } else { *byte });
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0x82F6_3B78 & (crc & 1).wrapping_neg());
        }
    }
    le32(!crc)
}

#[test]
fn superblock_fields() {
    let volumes = [(samples::superblock(), 1, 0), (samples::superblock_4096(), 2, 4096)];
    for (sb, version, logical_block) in volumes {
        let bytes = sb.encode();
        let fields = [
            ("magic", b"FOREBAY\0".to_vec()),
            ("version", le32(version)),
            ("crc", crc(&bytes, 12)),
            ("cache_id", sb.layout.cache_id.to_vec()),
            ("backing_id", sb.backing_id.to_vec()),
            ("update", le64(sb.update)),
            ("generation", le64(sb.layout.generation)),
            ("volume_bytes", le64(sb.volume_bytes)),
            ("align", le32(512)),
            ("segment_bytes", le32(sb.layout.segment_bytes)),
            ("segment_count", le32(sb.layout.segment_count)),
            ("state", le32(3)),
            ("flags", le32(3)),
            ("logical_block", le32(logical_block)),
            ("created_ns", le64(sb.created_ns)),
            ("backing_name", text(&sb.backing_name, 512)),
            ("fingerprint", text(&sb.fingerprint, 256)),
        ];
        assert_eq!(check_fields("### Superblock", &bytes, &fields), bytes.len());
    }
}

#[test]
fn label_fields() {
    let volumes = [(samples::label(), 1, 0), (samples::label_4096(), 2, 4096)];
    for (l, version, logical_block) in volumes {
        let bytes = l.encode();
        let fields = [
            ("magic", b"FBLABEL\0".to_vec()),
            ("version", le32(version)),
            ("crc", crc(&bytes, 12)),
            ("update", le64(l.update)),
            ("backing_id", l.backing_id.to_vec()),
            ("cache_id", l.cache_id.to_vec()),
            ("generation", le64(l.generation)),
            ("phase", le32(2)),
            ("state", le32(2)),
            ("flags", le32(1)),
            ("logical_block", le32(logical_block)),
            ("volume_bytes", le64(l.volume_bytes)),
            ("time_ns", le64(l.time_ns)),
            ("host_id", l.host_id.to_vec()),
            ("host_name", text(&l.host_name, 64)),
            ("cache_name", text(&l.cache_name, 512)),
            ("journal_run", le64(l.journal_run)),
        ];
        assert_eq!(check_fields("## Label", &bytes, &fields), bytes.len());
    }
}

fn moment(m: &Moment) -> Vec<u8> {
    [le64(m.group), le64(m.seq.0), le64(m.time_ns), le64(m.point), text(&m.label, 64)].concat()
}

#[test]
fn moment_fields() {
    let m = samples::moment(3);
    let fields = [
        ("group", le64(3)),
        ("seq", le64(m.seq.0)),
        ("time_ns", le64(m.time_ns)),
        ("point", le64(7)),
        ("point_label", text(&m.label, 64)),
    ];
    let bytes = moment(&m);
    assert_eq!(check_fields("**Moment**", &bytes, &fields), bytes.len());
}

#[test]
fn journal_head_fields() {
    assert_eq!(samples::journal_head().encode()[8..12], le32(1), "no consistency group: version 1");
    let h = samples::journal_head_common();
    let bytes = h.encode();
    let fields = [
        ("magic", b"FBJOURN\0".to_vec()),
        ("version", le32(2)),
        ("crc", crc(&bytes, 12)),
        ("update", le64(h.update)),
        ("backing_id", h.backing_id.to_vec()),
        ("cache_id", h.cache_id.to_vec()),
        ("generation", le64(h.generation)),
        ("flags", le32(1)),
        ("volume_bytes", le64(h.volume_bytes)),
        ("ring_bytes", le64(h.ring_bytes)),
        ("tail", le64(h.tail)),
        ("head", le64(h.head)),
        ("applied", moment(&h.applied)),
        ("committed", moment(&h.committed)),
        ("prepared", le64(h.prepared)),
        ("common_decided", le64(h.common.decided)),
        ("common_prepared", le64(h.common.prepared)),
        ("common_set", h.common.set.to_vec()),
        ("common_member", le32(h.common.member)),
        ("common_names", text(&h.common.names, 168)),
    ];
    assert_eq!(check_fields("### Journal head", &bytes, &fields), bytes.len());
}

#[test]
fn group_fields() {
    let g = samples::group();
    let bytes = g.encode();
    let fields = [
        ("magic", b"FBGROUP\0".to_vec()),
        ("version", le32(1)),
        ("crc", crc(&bytes, 12)),
        ("cache_id", g.cache_id.to_vec()),
        ("generation", le64(g.generation)),
        ("position", le64(g.position)),
        ("bytes", le64(g.bytes())),
        ("entries", le32(2)),
        ("moment", moment(&g.moment)),
    ];
    assert_eq!(check_fields("### Group", &bytes, &fields), GROUP_FIXED_BYTES);
    let entry = &bytes[GROUP_FIXED_BYTES..][..GROUP_ENTRY_BYTES];
    let e = g.entries[0];
    let fields = [
        ("block", le64(e.block.0)),
        ("seq", le64(e.seq.0)),
        ("checksum", le32(e.checksum)),
        ("kind", le32(0)),
    ];
    assert_eq!(check_fields("**Entry**", entry, &fields), GROUP_ENTRY_BYTES);
}

#[test]
fn segment_header_fields() {
    for align in [512, 4096] {
        let h = samples::segment_header();
        let bytes = samples::segment_header_bytes(align);
        let fields = [
            ("magic", b"FBSEGMNT".to_vec()),
            ("crc", crc(&bytes, 8)),
            ("align", le32(align)),
            ("cache_id", samples::layout(align).cache_id.to_vec()),
            ("generation", le64(h.generation)),
            ("segment_seq", le64(h.segment_seq)),
            ("first_seq", le64(h.first_seq.0)),
            ("index", le32(h.index)),
            ("segment_bytes", le32(samples::layout(align).segment_bytes)),
        ];
        let end = check_fields("### Segment header", &bytes, &fields);
        assert!(bytes[end..].iter().all(|b| *b == 0));
    }
}

#[test]
fn record_fields() {
    for align in [512, 4096] {
        let (h, _) = samples::record(align);
        let bytes = samples::record_bytes(align);
        let header = &bytes[..h.header_bytes(align)];
        let fields = [
            ("magic", b"FBRECORD".to_vec()),
            ("crc", crc(header, 8)),
            ("header_bytes", le32(header.len() as u32)),
            ("cache_id", samples::layout(align).cache_id.to_vec()),
            ("generation", le64(h.generation)),
            ("segment_seq", le64(h.segment_seq)),
            ("seq", le64(h.seq.0)),
            ("durable_upto", le64(h.durable_upto.0)),
            ("clean_upto", le64(h.clean_upto.0)),
            ("tail", le64(h.tail)),
            ("time_ns", le64(h.time_ns)),
            ("offset", le32(h.offset)),
            ("data_blocks", le32(3)),
            ("extent_count", le32(5)),
            ("flags", le32(3)),
            ("distance", le16(h.distance)),
        ];
        let mut at = check_fields("### Record header", header, &fields);
        assert_eq!(at, record::FIXED_BYTES);
        for e in &h.extents {
            let fields =
                [("block", le64(e.block.0)), ("count", le32(e.count)), ("kind", le32(e.kind as u32))];
            at += check_fields("**Extent**", &header[at..], &fields);
        }
        for c in &h.checksums {
            assert_eq!(header[at..at + 4], le32(*c));
            at += 4;
        }
        assert!(header[at..].iter().all(|b| *b == 0));
        let mut first = le64(h.extents[0].block.0);
        first.extend(le64(h.seq.0));
        first.extend(&bytes[header.len()..][..4096]);
        assert_eq!(le32(h.checksums[0]), crc(&first, usize::MAX - 4));
    }
}

#[test]
fn summary_fields() {
    for align in [512u32, 4096] {
        let (t, (first, _)) = (samples::trailer(), samples::record(align));
        let bytes = samples::summary_bytes(align);
        let (body, trailer) = bytes.split_at(bytes.len() - align as usize);
        let body_bytes = u32::from_le_bytes(trailer[12..16].try_into().unwrap());
        let fields = [
            ("magic", b"FBSUMMRY".to_vec()),
            ("crc", crc(trailer, 8)),
            ("body_bytes", le32(body_bytes)),
            ("cache_id", samples::layout(align).cache_id.to_vec()),
            ("generation", le64(t.generation)),
            ("segment_seq", le64(t.segment_seq)),
            ("first_seq", le64(t.first_seq.0)),
            ("last_seq", le64(t.last_seq.0)),
            ("clean_upto", le64(t.clean_upto.0)),
            ("tail", le64(t.tail)),
            ("time_first_ns", le64(t.time_first_ns)),
            ("time_last_ns", le64(t.time_last_ns)),
            ("body_crc", crc(body, usize::MAX - 4)),
            ("records", le32(2)),
            ("flags", le32(1)),
        ];
        let end = check_fields("**Trailer**", trailer, &fields);
        assert!(trailer[end..].iter().all(|b| *b == 0));
        let entry = [
            ("offset", le32(align)),
            ("header_bytes", le32(first.header_bytes(align) as u32)),
            ("extent_count", le16(5)),
            ("distance", le16(first.distance)),
            ("data_blocks", le32(3)),
        ];
        let end = check_fields("**Summary entry**", body, &entry);
        let record = samples::record_bytes(align);
        let list = 5 * record::EXTENT_BYTES + 3 * 4;
        assert_eq!(body[end..end + list], record[record::FIXED_BYTES..][..list]);
        assert!(body[body_bytes as usize..].iter().all(|b| *b == 0));
        assert_eq!(body_bytes as usize, (end + list) + 16 + 16 + 2 * 4);
    }
}
