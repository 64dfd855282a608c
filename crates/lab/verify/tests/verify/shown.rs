//! What reports and inspections show of whole images.

use std::collections::BTreeSet;

use forebay_format::record::ExtentKind;
use forebay_verify::{InspectOptions, SegmentUse, Severity, check, constants, inspect};
use serde_json::Value;

use super::writer::{self, Writer};

const DATA: ExtentKind = ExtentKind::Data;

/// What each kind of extent does to a block, before and after a clean stop.
fn every_kind() -> Writer {
    let mut w = Writer::new(512, 6);
    w.record(&[(1, 4, DATA)]);
    w.record(&[(10, 2, DATA), (20, 1, ExtentKind::Clean)]);
    w.clean_upto = 1;
    w.record(&[(11, 1, ExtentKind::Zero), (10, 1, ExtentKind::Clean)]);
    w.record(&[(30, 5, ExtentKind::Supersede), (40, 1, ExtentKind::Poison)]);
    w
}

#[test]
fn counts_are_what_recovery_would_see() {
    let mut w = every_kind();
    let report = check(&w.bytes).unwrap();
    assert_eq!(report.verdict, Severity::Ok);
    let b = report.blocks;
    assert_eq!((b.dirty, b.zero, b.poison, b.superseded, b.clean), (1, 1, 1, 5, 0));
    assert_eq!(report.dirty_bytes, 4096);
    assert_eq!(report.oldest_dirty_ns, Some(1_700_000_000_002_000_000));
    let log = report.log;
    assert_eq!((log.records, log.first_seq, log.last_seq), (4, 1, 4));
    assert_eq!((log.clean_upto, log.durable_upto, log.data_blocks), (1, 3, 8));
    assert_eq!((log.segments_live, log.segments_free, log.tail), (1, 5, 1));
    w.stop();
    let report = check(&w.bytes).unwrap();
    // After a clean stop, the blocks of the destaged record and the clean copy are believed.
    assert_eq!((report.blocks.dirty, report.blocks.clean), (1, 5));
    assert!(report.clean_stop);
}

#[test]
fn a_cache_that_was_never_used_is_fine() {
    let mut w = Writer::new(4096, 6);
    w.superblock.layout.generation = 0;
    w.superblock.clean_stop = true;
    w.write_superblocks();
    let report = check(&w.bytes).unwrap();
    assert_eq!(report.verdict, Severity::Ok);
    assert_eq!((report.log.records, report.generation), (0, 0));
    assert!(report.to_string().contains("never run"));
    let shown = inspect(&w.bytes, &InspectOptions::default()).unwrap();
    assert!(shown.segments.iter().all(|s| s.segment_use == SegmentUse::Empty));
}

fn keys(v: &Value) -> BTreeSet<&str> {
    v.as_object().unwrap().keys().map(String::as_str).collect()
}

/// Scripts rely on these names.
#[test]
fn json_of_a_report() {
    let mut w = writer::dirty(512);
    w.bytes[(1 << 20) + 1030] ^= 1;
    let json = serde_json::to_value(check(&w.bytes).unwrap()).unwrap();
    let expected = [
        "verdict",
        "identity",
        "geometry",
        "state",
        "clean_stop",
        "generation",
        "log",
        "blocks",
        "dirty_bytes",
        "oldest_dirty_ns",
        "bytes_read",
        "findings",
        "findings_left_out",
    ];
    assert_eq!(keys(&json), expected.into());
    let finding = &json["findings"][0];
    let expected = ["severity", "kind", "offset", "segment", "seq", "block", "message"];
    assert_eq!(keys(finding), expected.into());
    assert_eq!(finding["kind"], "data_damaged");
    assert_eq!(json["state"], "paired");
    assert_eq!(keys(&json["blocks"]), ["dirty", "zero", "poison", "superseded", "clean"].into());
}

#[test]
fn text_of_a_report_tells_place_and_verdict() {
    let mut w = every_kind();
    w.bytes[(1 << 20) + 1024 + 4096 * 4 + 600] ^= 1;
    let text = check(&w.bytes).unwrap().to_string();
    assert!(text.contains("corruption: the data of block 10 in record 2"), "{text}");
    assert!(text.contains("(segment 0, offset 17920)"), "{text}");
    assert!(text.contains("1 dirty") && text.contains("verdict    corruption"), "{text}");
}

#[test]
fn inspection_of_a_wrapped_image() {
    let w = writer::wrapped(512);
    let shown = inspect(&w.bytes, &InspectOptions { block: None, records_max: 5 }).unwrap();
    let live: Vec<u64> =
        shown.segments.iter().filter(|s| s.segment_use == SegmentUse::Live).map(|s| s.segment_seq).collect();
    assert_eq!(live.len(), w.live.len());
    assert!(live.contains(&w.tail()));
    assert!(shown.segments.iter().any(|s| s.segment_use == SegmentUse::Free && s.segment_seq < w.tail()));
    let seqs: Vec<u64> = shown.records.iter().map(|r| r.seq).collect();
    assert_eq!(seqs, (w.last_seq() - 4..=w.last_seq()).collect::<Vec<_>>());
    assert_eq!(shown.records_left_out, check(&w.bytes).unwrap().log.records - 5);
    assert_eq!(shown.constants, constants());
    let text = shown.to_string();
    assert!(text.contains("SEGMENTS_OFFSET      1048576"), "{text}");
    assert!(text.contains("live") && text.contains("free"), "{text}");
}

#[test]
fn history_of_a_block() {
    let mut w = Writer::new(512, 6);
    w.record(&[(7, 1, DATA)]);
    while w.live.len() < 2 {
        w.record(&[(100, 4, DATA)]);
    }
    w.record(&[(6, 3, DATA)]);
    w.destage(1);
    w.record(&[(7, 1, ExtentKind::Supersede)]);
    let last = w.record(&[(0, 3, DATA), (5, 4, DATA)]);
    let s = w.live.back().unwrap();
    let data = w.at(s, *s.records.last().unwrap()) + 512 + 5 * 4096;
    let ask = |w: &Writer, block| {
        let options = InspectOptions { block: Some(block), ..InspectOptions::default() };
        inspect(&w.bytes, &options).unwrap().history.unwrap()
    };
    let history = ask(&w, 7);
    let told: Vec<(&str, bool, bool)> =
        history.mentions.iter().map(|m| (m.kind, m.in_log, m.current)).collect();
    let expected =
        [("data", false, false), ("data", true, false), ("supersede", true, false), ("data", true, true)];
    assert_eq!(told, expected);
    assert_eq!(history.state, "dirty");
    let current = history.mentions.last().unwrap();
    assert_eq!((current.seq, current.data_offset), (last, Some(data as u64)));
    assert_eq!(current.checksum_ok, Some(true));
    assert_eq!(ask(&w, 100).state, "backing");
    assert_eq!(ask(&w, 999).mentions.len(), 0);
    // With the newest record proven, its damage is told, and it stays the current one.
    w.record(&[]);
    w.bytes[data + 9] ^= 1;
    let history = ask(&w, 7);
    assert_eq!(history.mentions.last().unwrap().checksum_ok, Some(false));
    assert!(history.mentions.last().unwrap().current);
    let text = history.to_string();
    assert!(text.contains("checksum WRONG <- current") && text.contains("(not part of the log)"), "{text}");
}

/// The constants that `forebay inspect` prints are those of the specification.
#[test]
fn constants_are_those_of_the_specification() {
    let spec = include_str!("../../../../core/format/SPEC.md");
    for c in constants() {
        assert!(spec.contains(&format!("| `{}` | {} |", c.name, c.value)), "{}", c.name);
    }
}

/// Every key of a JSON value, at any depth.
fn all_keys(v: &Value, into: &mut BTreeSet<String>) {
    match v {
        Value::Object(map) => map.iter().for_each(|(key, v)| {
            into.insert(key.clone());
            all_keys(v, into);
        }),
        Value::Array(list) => list.iter().for_each(|v| all_keys(v, into)),
        _ => {}
    }
}

/// `docs/reference/check.md` names every key and every kind of finding.
#[test]
fn everything_in_the_json_is_documented() {
    let doc = include_str!("../../../../../docs/reference/check.md");
    let mut w = writer::stopped(512);
    w.bytes[(1 << 20) + 1030] ^= 1;
    w.bytes[524_288 + 20] ^= 1;
    let mut keys = BTreeSet::new();
    all_keys(&serde_json::to_value(check(&w.bytes).unwrap()).unwrap(), &mut keys);
    let shown = inspect(&w.bytes, &InspectOptions { block: Some(7), ..InspectOptions::default() }).unwrap();
    all_keys(&serde_json::to_value(&shown).unwrap(), &mut keys);
    keys.remove("history");
    assert!(keys.len() > 60);
    for key in keys {
        assert!(doc.contains(&format!("`{key}`")), "check.md does not name '{key}'");
    }
    let code = include_str!("../../src/finding.rs");
    let kinds = code.split_once("pub enum FindingKind {").unwrap().1.split_once('}').unwrap().0;
    let kinds = kinds.lines().filter_map(|l| l.trim().strip_suffix(',')).filter(|l| !l.starts_with("///"));
    let mut count = 0;
    for kind in kinds {
        let mut snake = String::new();
        for c in kind.chars() {
            if c.is_uppercase() && !snake.is_empty() {
                snake.push('_');
            }
            snake.push(c.to_ascii_lowercase());
        }
        assert!(doc.contains(&format!("| `{snake}` |")), "check.md does not tell of '{snake}'");
        count += 1;
    }
    assert_eq!(count, 15);
}
