//! Images of each released format, kept for good: `fixtures/NAME.img.gz`, and beside it `NAME.json`, what a check of it
//! must report, or `NAME.refused`, the words of the refusal. A later release must read the same from them, or refuse
//! them with a clear message.
//!
//! `FOREBAY_FIXTURES=write` writes those that are missing; it never overwrites one.

use std::io::{Read, Write};
use std::path::PathBuf;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use forebay_format::checksum::crc32c;
use forebay_format::record::ExtentKind;
use forebay_format::superblock::{CacheState, SUPERBLOCK_OFFSETS};
use forebay_verify::{InspectOptions, check, inspect};
use serde_json::Value;

use super::writer::{self, Writer};

type Maker = fn() -> Vec<u8>;

/// All fixtures, and how each was made when its format was released.
const FIXTURES: [(&str, Maker); 12] = [
    ("v1-new", || {
        let mut w = Writer::new(512, 6);
        w.superblock.layout.generation = 0;
        w.superblock.clean_stop = true;
        w.write_superblocks();
        w.bytes
    }),
    ("v1-dirty-512", || writer::dirty(512).bytes),
    ("v1-dirty-4096", || writer::dirty(4096).bytes),
    ("v1-stopped", || writer::stopped(512).bytes),
    ("v1-wrapped", || writer::wrapped(512).bytes),
    ("v1-torn", torn),
    ("v1-corrupt", corrupt),
    ("v1-retired", || {
        let mut w = writer::dirty(512);
        w.superblock.state = CacheState::Retired;
        w.write_superblocks();
        w.bytes
    }),
    ("v1-truncated", || {
        let mut bytes = writer::dirty(512).bytes;
        bytes.truncate((1 << 20) + 100_000);
        bytes
    }),
    ("v2-dirty", || {
        let mut w = writer::dirty(4096);
        w.superblock.logical_block = 4096;
        w.write_superblocks();
        w.bytes
    }),
    ("v3", version_3),
    ("foreign", || {
        let mut bytes = vec![0; 2 << 20];
        // The magic number of an ext4 file system, in its place.
        bytes[1080..1082].copy_from_slice(&[0x53, 0xEF]);
        bytes
    }),
];

/// Caches that a daemon of the format's release left behind: killed; then stopped cleanly with dirty data; then killed
/// again after several laps round the cache. Nothing makes them again.
const SERVED: [&str; 3] = ["v1-served-killed", "v1-served-stopped", "v1-served-laps"];

/// A power cut tore the last two records and the summary of the oldest segment.
fn torn() -> Vec<u8> {
    let mut w = writer::dirty(512);
    w.in_flight = 3;
    w.record(&[(600, 3, ExtentKind::Data)]);
    w.record(&[(603, 3, ExtentKind::Data)]);
    let s = w.live.back().unwrap().clone();
    let n = s.records.len();
    let (from, to) = (w.at(&s, s.records[n - 2]) + 2000, w.at(&s, s.records[n - 1]));
    w.bytes[from..to].fill(0);
    let oldest = w.live[0].clone();
    let end = w.at(&oldest, writer::SEGMENT_BYTES);
    w.bytes[end - oldest.summary_bytes..end].fill(0);
    w.bytes
}

/// A damaged record that was durable, damaged data, a damaged copy of the superblock.
fn corrupt() -> Vec<u8> {
    let mut w = writer::stopped(512);
    let s = w.live.back().unwrap().clone();
    let (record, data) = (w.at(&s, s.records[1]), w.at(&s, s.records[2]) + 512 + 77);
    w.bytes[record + 70] ^= 4;
    w.bytes[data] ^= 4;
    w.bytes[SUPERBLOCK_OFFSETS[1] as usize + 50] ^= 4;
    w.bytes
}

/// A cache of a format that does not exist yet.
fn version_3() -> Vec<u8> {
    let w = writer::dirty(512);
    let mut copy = w.superblock.encode();
    copy[8..12].copy_from_slice(&3u32.to_le_bytes());
    copy[12..16].fill(0);
    let crc = crc32c(&copy);
    copy[12..16].copy_from_slice(&crc.to_le_bytes());
    let mut bytes = w.bytes;
    for at in SUPERBLOCK_OFFSETS {
        bytes[at as usize..][..4096].copy_from_slice(&copy);
    }
    bytes
}

fn path(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(file)
}

fn read_image(name: &str) -> Vec<u8> {
    let file = path(&format!("{name}.img.gz"));
    let packed = std::fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let mut image = Vec::new();
    GzDecoder::new(packed.as_slice()).read_to_end(&mut image).unwrap();
    image
}

/// The report as JSON, without what may change from release to release.
fn report_of(image: &[u8]) -> Result<Value, String> {
    let mut json = serde_json::to_value(check(&image).map_err(|e| e.to_string())?).unwrap();
    let report = json.as_object_mut().unwrap();
    report.remove("bytes_read");
    for finding in report["findings"].as_array_mut().unwrap() {
        finding.as_object_mut().unwrap().remove("message");
    }
    Ok(json)
}

fn write_missing_image(name: &str, make: Maker) {
    let file = path(&format!("{name}.img.gz"));
    if !file.exists() {
        let mut packed = GzEncoder::new(Vec::new(), Compression::best());
        packed.write_all(&make()).unwrap();
        std::fs::write(file, packed.finish().unwrap()).unwrap();
    }
}

fn write_missing_outcome(name: &str) {
    let (report, refusal) = (path(&format!("{name}.json")), path(&format!("{name}.refused")));
    if report.exists() || refusal.exists() {
        return;
    }
    match report_of(&read_image(name)) {
        Ok(json) => std::fs::write(report, serde_json::to_string_pretty(&json).unwrap() + "\n").unwrap(),
        Err(words) => std::fs::write(refusal, words + "\n").unwrap(),
    }
}

/// Every field that the fixture's release reported has the same value now; there may be more fields.
fn assert_covers(name: &str, now: &Value, then: &Value) {
    match (now, then) {
        (Value::Object(now), Value::Object(then)) => {
            for (key, value) in then {
                let field = format!("{name}.{key}");
                assert_covers(&field, now.get(key).unwrap_or(&Value::Null), value);
            }
        }
        (Value::Array(now), Value::Array(then)) => {
            assert_eq!(now.len(), then.len(), "{name}");
            for (i, (now, then)) in now.iter().zip(then).enumerate() {
                assert_covers(&format!("{name}[{i}]"), now, then);
            }
        }
        _ => assert_eq!(now, then, "{name}"),
    }
}

fn names() -> impl Iterator<Item = &'static str> {
    FIXTURES.into_iter().map(|(name, _)| name).chain(SERVED)
}

#[test]
fn each_fixture_is_read_or_refused_as_when_it_was_released() {
    if std::env::var_os("FOREBAY_FIXTURES").is_some_and(|v| v == "write") {
        FIXTURES.into_iter().for_each(|(name, make)| write_missing_image(name, make));
        names().for_each(write_missing_outcome);
    }
    for name in names() {
        let image = read_image(name);
        match report_of(&image) {
            Ok(report) => {
                let then = std::fs::read_to_string(path(&format!("{name}.json"))).unwrap();
                assert_covers(name, &report, &serde_json::from_str(&then).unwrap());
                inspect(&image, &InspectOptions { block: Some(7), records_max: 9 }).unwrap();
            }
            Err(words) => {
                let then = std::fs::read_to_string(path(&format!("{name}.refused"))).unwrap();
                assert_eq!(words, then.trim_end(), "{name}");
            }
        }
    }
}

/// The writer of this release makes the very bytes of the fixtures of its own format.
#[test]
fn fixtures_of_this_format_are_still_written_so() {
    for (name, make) in
        FIXTURES.into_iter().filter(|(name, _)| name.starts_with("v1") || name.starts_with("v2"))
    {
        assert!(make() == read_image(name), "{name}: this release writes other bytes");
    }
}
