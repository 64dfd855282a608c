//! The fuzz targets, run over their seeds and over mutations of them, so that every run of the tests covers them.
//!
//! `FOREBAY_FUZZ_SEEDS=write` writes missing seeds; it never overwrites one.

use std::fs;
use std::path::{Path, PathBuf};

use forebay_record::{Recorder, Role};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

mod targets;

/// A record of what a volume does to its devices, and one that breaks off in an entry.
fn seeds() -> Vec<Vec<u8>> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("record");
    let recorder = Recorder::create(&path, u64::MAX).unwrap();
    recorder.open(Role::Cache, "cache", 64 << 10);
    recorder.open(Role::Backing, "backing", 64 << 10);
    for n in 0..6u8 {
        let (role, offset) = (if n % 3 == 2 { Role::Backing } else { Role::Cache }, u64::from(n) * 512);
        let write = recorder.write(role, offset, n == 4, &[&[n; 1024]]);
        let flush = (n % 2 == 1).then(|| recorder.flush(role));
        recorder.end(role, write, if n == 3 { 5 } else { 0 });
        if let Some(flush) = flush {
            recorder.end(role, flush, 0);
        }
    }
    let zero = recorder.zero(Role::Backing, 4096, 8192, true);
    recorder.end(Role::Backing, zero, 0);
    let flush = recorder.flush(Role::Backing);
    recorder.end(Role::Backing, flush, 5);
    recorder.write(Role::Label, 0, true, &[&[9; 512]]);
    let whole = fs::read(&path).unwrap();
    let broken = whole[..whole.len() - 100].to_vec();
    vec![whole, broken]
}

fn corpus() -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/recording");
    if std::env::var_os("FOREBAY_FUZZ_SEEDS").is_some_and(|v| v == "write") {
        fs::create_dir_all(&dir).unwrap();
        for (i, seed) in seeds().iter().enumerate() {
            let file = dir.join(format!("seed-{i:02}"));
            if !file.exists() {
                fs::write(file, seed).unwrap();
            }
        }
    }
    let files = fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut files: Vec<PathBuf> = files.map(|f| f.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    files.iter().map(|f| fs::read(f).unwrap()).collect()
}

/// Bytes of a head that say something: changing these gets further than changing data.
fn anywhere_or_in_a_head() -> impl Strategy<Value = (Option<u8>, Index, u8)> {
    (any::<Option<u8>>().prop_map(|at| at.map(|at| at % 60)), any::<Index>(), any::<u8>())
}

#[test]
fn records_that_anybody_could_have_written_are_borne() {
    let corpus = corpus();
    corpus.iter().for_each(|seed| targets::recording(seed));
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) };
    proptest!(config, |(seed in any::<Index>(), changes in vec(anywhere_or_in_a_head(), 0..5), cut in any::<Option<Index>>())| {
        let mut bytes = seed.get(&corpus).clone();
        let heads: Vec<usize> = (0..bytes.len() - 64).filter(|at| bytes[*at..].starts_with(b"FBre")).collect();
        for (in_head, at, value) in changes {
            let at = in_head.map_or_else(|| at.index(bytes.len()), |i| at.get(&heads) + usize::from(i));
            bytes[at] = value;
        }
        if let Some(cut) = cut.filter(|_| bytes[0] == b'F') {
            bytes.truncate(cut.index(bytes.len()) + 1);
        }
        targets::recording(&bytes);
    });
}
