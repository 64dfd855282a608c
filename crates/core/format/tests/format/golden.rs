//! Each structure, encoded, is byte for byte what its golden file says; decoded, it is what it was.
//!
//! Golden files are hexadecimal text: the length, then lines of 16 bytes with their offset; lines of zeroes are left
//! out. `FOREBAY_GOLDEN=write` writes those that are missing; it never overwrites one.

use std::fmt::Write as _;
use std::path::PathBuf;

use forebay_block::BlockNo;
use forebay_format::checksum::block_checksum;
use forebay_format::journal::{Group, Head};
use forebay_format::label::Label;
use forebay_format::record::RecordHeader;
use forebay_format::segment::SegmentHeader;
use forebay_format::summary::Trailer;
use forebay_format::superblock::Superblock;

use super::samples;

fn to_text(bytes: &[u8]) -> String {
    let mut text = format!("{} bytes\n", bytes.len());
    for (i, line) in bytes.chunks(16).enumerate() {
        if line.iter().any(|b| *b != 0) {
            let hex: Vec<String> = line.iter().map(|b| format!("{b:02x}")).collect();
            writeln!(text, "{:06x}  {}", i * 16, hex.join(" ")).unwrap();
        }
    }
    text
}

fn from_text(text: &str) -> Vec<u8> {
    let mut lines = text.lines();
    let len: usize = lines.next().unwrap().strip_suffix(" bytes").unwrap().parse().unwrap();
    let mut bytes = vec![0; len];
    for line in lines {
        let (at, hex) = line.split_once("  ").unwrap();
        let at = usize::from_str_radix(at, 16).unwrap();
        for (i, byte) in hex.split(' ').enumerate() {
            bytes[at + i] = u8::from_str_radix(byte, 16).unwrap();
        }
    }
    bytes
}

/// The bytes of golden file `name`, after `encoded` was found equal to them.
fn golden(name: &str, encoded: &[u8]) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden").join(format!("{name}.hex"));
    if !path.exists() && std::env::var_os("FOREBAY_GOLDEN").is_some_and(|v| v == "write") {
        std::fs::write(&path, to_text(encoded)).unwrap();
    }
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let bytes = from_text(&text);
    assert_eq!(to_text(encoded), text, "{name}: the code writes other bytes than format version 1");
    assert_eq!(encoded, bytes, "{name}");
    bytes
}

#[test]
fn superblock() {
    let bytes = golden("superblock", &samples::superblock().encode());
    assert_eq!(Superblock::decode(&bytes), Ok(samples::superblock()));
    let bytes = golden("superblock-logical-4096", &samples::superblock_4096().encode());
    assert_eq!(Superblock::decode(&bytes), Ok(samples::superblock_4096()));
}

#[test]
fn label() {
    let bytes = golden("label", &samples::label().encode());
    assert_eq!(Label::decode(&bytes), Ok(samples::label()));
    let bytes = golden("label-logical-4096", &samples::label_4096().encode());
    assert_eq!(Label::decode(&bytes), Ok(samples::label_4096()));
}

#[test]
fn journal() {
    let bytes = golden("journal-head", &samples::journal_head().encode());
    assert_eq!(Head::decode(&bytes), Ok(samples::journal_head()));
    let bytes = golden("journal-head-common", &samples::journal_head_common().encode());
    assert_eq!(Head::decode(&bytes), Ok(samples::journal_head_common()));
    let bytes = golden("journal-group", &samples::group().encode());
    assert_eq!(Group::decode(&bytes), Ok(samples::group()));
}

#[test]
fn segment_header() {
    for align in [512, 4096] {
        let bytes = golden(&format!("segment-header-{align}"), &samples::segment_header_bytes(align));
        let index = samples::segment_header().index;
        assert_eq!(
            SegmentHeader::decode(&samples::layout(align), index, &bytes),
            Ok(samples::segment_header())
        );
    }
}

#[test]
fn record() {
    for align in [512, 4096] {
        let bytes = golden(&format!("record-{align}"), &samples::record_bytes(align));
        let (header, data) = samples::record(align);
        let decoded =
            RecordHeader::decode(&samples::layout(align), header.segment_seq, header.offset, &bytes).unwrap();
        assert_eq!(decoded, header);
        let data_at = decoded.header_bytes(align);
        assert_eq!(bytes[data_at..], data);
        let blocks = decoded.extents.iter().filter(|e| e.kind.has_data());
        let numbers = blocks.flat_map(|e| (0..u64::from(e.count)).map(|i| e.block.plus(i)));
        let numbers: Vec<BlockNo> = numbers.collect();
        assert_eq!(numbers.len(), 3);
        for (i, block) in numbers.into_iter().enumerate() {
            let data = &bytes[data_at + i * 4096..][..4096];
            assert_eq!(block_checksum(block, decoded.seq, data), decoded.checksums[i]);
        }
    }
}

#[test]
fn summary() {
    for align in [512u32, 4096] {
        let bytes = golden(&format!("summary-{align}"), &samples::summary_bytes(align));
        let layout = samples::layout(align);
        let at = bytes.len() - align as usize;
        let trailer = Trailer::decode(&layout, samples::trailer().segment_seq, &bytes[at..]).unwrap();
        assert_eq!(trailer.records, 2);
        assert_eq!(trailer.last_seq, samples::trailer().last_seq);
        assert_eq!(trailer.bytes(align), bytes.len());
        let entries = trailer.entries(&layout, &bytes).unwrap();
        let (first, _) = samples::record(align);
        assert_eq!(entries.len(), 2);
        assert_eq!(entries[0].extents, first.extents);
        assert_eq!(entries[1].checksums, first.checksums[..2]);
    }
}
