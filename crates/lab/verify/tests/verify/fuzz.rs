//! The fuzz targets, run over their seeds and over mutations of them, so that every run of the tests covers them.
//!
//! `FOREBAY_FUZZ_SEEDS=write` writes missing seeds; it never overwrites one.

use std::path::PathBuf;

use forebay_block::{BLOCK_BYTES, BlockNo, Seq};
use forebay_format::checksum::block_checksum;
use forebay_format::journal::{Group, GroupEntry, Head, JOURNAL_HEAD_BYTES, JOURNAL_RING_OFFSET, Moment};
use forebay_format::label::{Label, LabelState, Phase};
use proptest::collection::vec;
use proptest::prelude::*;

use super::targets::TARGETS;
use super::writer;

fn corpus(target: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus").join(target)
}

fn sample_label() -> Label {
    Label {
        update: 3,
        backing_id: [0xB2; 16],
        cache_id: [0xC1; 16],
        generation: 4,
        phase: Phase::Committed,
        state: LabelState::Paired,
        in_use: false,
        volume_bytes: 1 << 30,
        logical_block: 512,
        time_ns: 1_700_000_000_000_000_002,
        host_id: [0xA0; 16],
        host_name: "db1".into(),
        cache_name: "/cache/c.img".into(),
        journal_run: 0,
    }
}

/// A journal with two groups, of a block and zeroes, and of another block. Of the other one the head may know only that it is prepared,
/// and it may say of itself that it has so many entries.
fn sample_journal(prepared: bool, entries: Option<u32>) -> Vec<u8> {
    let (ring, volume) = (8 * BLOCK_BYTES, 10 * BLOCK_BYTES + 512);
    let mut head = Head::new([0xB2; 16], [0xC1; 16], volume, ring);
    (head.update, head.generation, head.consistent) = (3, 4, true);
    let mut bytes = vec![0; (JOURNAL_RING_OFFSET + ring) as usize];
    for (number, blocks) in [(1u64, &[2u64, 3][..]), (2, &[10])] {
        let data = vec![number as u8; BLOCK_BYTES as usize];
        let seq = Seq(number);
        let entry = |block: &u64| {
            let (block, zero) = (BlockNo(*block), *block == 3);
            let checksum = if zero { 0 } else { block_checksum(block, seq, &data) };
            GroupEntry { block, seq, checksum, zero }
        };
        let moment = Moment { group: number, seq, time_ns: number, ..Moment::default() };
        let group = Group {
            cache_id: head.cache_id,
            generation: 4,
            position: head.head,
            moment: moment.clone(),
            entries: blocks.iter().map(entry).collect(),
        };
        let (at, descriptor) = (head.offset_of(head.head) as usize, group.encode());
        bytes[at..at + descriptor.len()].copy_from_slice(&descriptor);
        bytes[at + descriptor.len()..][..data.len()].copy_from_slice(&data);
        if let Some(entries) = entries.filter(|_| number == 2) {
            bytes[at + 56..][..4].copy_from_slice(&entries.to_le_bytes());
        }
        head.prepared = head.head + group.bytes();
        if prepared && number == 2 {
            (head.common.decided, head.common.prepared) = (1, 2);
        } else {
            (head.head, head.committed) = (head.prepared, moment);
        }
    }
    let at = Head::copy_offset(head.update) as usize;
    bytes[at..at + JOURNAL_HEAD_BYTES as usize].copy_from_slice(&head.encode());
    bytes
}

/// Valid structures, and programs of changes to images.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    let images = [writer::dirty(512), writer::dirty(4096)];
    let of = |pick: &dyn Fn(&writer::Writer, &writer::Segment) -> std::ops::Range<usize>| {
        let picked = images.iter().map(|w| w.bytes[pick(w, &w.live[0])].to_vec());
        picked.collect::<Vec<_>>()
    };
    match target {
        "superblock" => vec![images[0].bytes[..4096].to_vec()],
        "journal" => vec![
            sample_journal(false, None),
            sample_journal(true, None),
            sample_journal(true, Some(1200)),
            sample_journal(false, Some(1200)),
        ],
        "label" => vec![sample_label().encode().repeat(2)],
        "segment_header" => of(&|w, s| w.at(s, 0)..w.at(s, w.layout().align)),
        "record" => of(&|w, s| w.at(s, s.records[1])..w.at(s, s.records[1] + w.layout().align)),
        "summary" => {
            of(&|w, s| w.at(s, writer::SEGMENT_BYTES) - s.summary_bytes..w.at(s, writer::SEGMENT_BYTES))
        }
        _ => (0..24u8)
            .map(|n| {
                let mut program = vec![n];
                for k in 0..=n / 6 {
                    let x = u32::from(n) * 7919 + u32::from(k) * 104_729;
                    program.push((n + k) % 6);
                    program.extend_from_slice(&x.to_le_bytes()[..3]);
                    program.extend_from_slice(&(x * 31).to_le_bytes()[..3]);
                    program.push([0, 0xFF, 1, 0x7F][n as usize % 4]);
                }
                program
            })
            .collect(),
    }
}

fn read_corpus(target: &str) -> Vec<Vec<u8>> {
    let dir = corpus(target);
    if std::env::var_os("FOREBAY_FUZZ_SEEDS").is_some_and(|v| v == "write") {
        std::fs::create_dir_all(&dir).unwrap();
        for (i, seed) in seeds(target).iter().enumerate() {
            let file = dir.join(format!("seed-{i:02}"));
            if !file.exists() {
                std::fs::write(file, seed).unwrap();
            }
        }
    }
    let files = std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut files: Vec<PathBuf> = files.map(|f| f.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    files.iter().map(|f| std::fs::read(f).unwrap()).collect()
}

fn run(target: &str, cases: u32) {
    let (_, entry) = TARGETS.iter().find(|(name, _)| *name == target).unwrap();
    let corpus = read_corpus(target);
    corpus.iter().for_each(|seed| entry(seed));
    let mutation = (any::<prop::sample::Index>(), vec((any::<prop::sample::Index>(), any::<u8>()), 0..6));
    let strategy = (mutation, any::<Option<prop::sample::Index>>());
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) };
    proptest!(config, |(((seed, changes), cut) in strategy)| {
        let mut bytes = seed.get(&corpus).clone();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut.filter(|_| bytes[0] % 4 == 0) {
            bytes.truncate(cut.index(bytes.len()) + 1);
        }
        entry(&bytes);
    });
}

#[test]
fn superblock() {
    run("superblock", 2000);
}

#[test]
fn label() {
    run("label", 2000);
}

#[test]
fn segment_header() {
    run("segment_header", 2000);
}

#[test]
fn record() {
    run("record", 2000);
}

#[test]
fn summary() {
    run("summary", 2000);
}

#[test]
fn journal() {
    run("journal", 2000);
}

#[test]
fn recovery() {
    run("recovery", 800);
}

#[test]
fn image() {
    run("image", 500);
}
