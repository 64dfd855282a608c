//! One entry point for each parser of outside bytes, for fuzzers and the tests below. Each must return: no panic, no
//! overflow, no memory that a damaged field asks for.

use crate::acks::Acks;
use crate::expectation::Expectation;
use crate::history::{History, Promise};
use crate::report::Allowed;
use crate::state::State;
use crate::target::TargetSpec;
use crate::write::Mix;

/// A fuzz target: its name, which is that of its corpus, and its entry point.
pub type Target = (&'static str, fn(&[u8]));

/// The fuzz targets.
pub const TARGETS: [Target; 3] = [("acks", acks), ("state", state), ("stamp_words", words)];

/// Sectors of volumes of which a history is made; of larger ones it takes memory, as it should.
const SECTORS_MAX: u64 = 4096;

/// A list of acknowledgements, and what it says of the volume from beginning to end.
pub fn acks(bytes: &[u8]) {
    let Some(acks) = Acks::parse(bytes) else { return };
    if acks.sectors > SECTORS_MAX {
        return;
    }
    for promise in [Promise::Write, Promise::Flush] {
        let before = Expectation::blank(0, acks.sectors);
        let mut history = History::new(promise, before, acks.requests.clone());
        history.go_to(u64::MAX);
        assert_eq!(history.after_kill().sectors(), history.after_power_cut().sectors());
    }
}

/// What is known of a volume; what is read is written as it was read.
pub fn state(bytes: &[u8]) {
    if let Some(state) = State::parse(bytes) {
        assert_eq!(State::parse(&state.to_bytes()), Some(state));
    }
}

/// Words of the command line.
pub fn words(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(mix) = text.parse::<Mix>() {
        assert!(mix.total() > 0);
    }
    let _ = text.parse::<Allowed>();
    let _ = text.parse::<TargetSpec>();
    let _ = text.parse::<Promise>();
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;
    use crate::acks::AckLog;
    use crate::acks::Asked::{Change, Flush};
    use crate::stamp::Version;

    /// What the program writes, to start fuzzing from.
    fn seeds(target: &str) -> Vec<Vec<u8>> {
        match target {
            "acks" => {
                let dir = tempfile::tempdir().unwrap();
                let path = dir.path().join("acks");
                let log = AckLog::create(&path, 7, 64).unwrap();
                for seq in 1..6 {
                    let version = if seq == 3 { Version::zeroed(seq) } else { Version::stamped(seq) };
                    log.answered(
                        seq,
                        Change { first: seq * 8, sectors: 8, version, fua: seq == 2 },
                        seq != 4,
                    );
                }
                log.answered(9, Flush, true);
                log.finish().unwrap();
                vec![fs::read(&path).unwrap()]
            }
            "state" => {
                let mut state = State::blank(7, 64);
                (state.round, state.seq) = (2, 9);
                state.expectation.acknowledged(3, 4, Version::stamped(7));
                state.expectation.unknown(5, 2, Version::zeroed(8));
                vec![State::blank(7, 16).to_bytes(), state.to_bytes()]
            }
            _ => ["62,20,10,8", "write:enospc", "nbd:unix:/s:db", "file:/dev/loop1", "flush"]
                .map(|text| text.as_bytes().to_vec())
                .to_vec(),
        }
    }

    /// `FOREBAY_FUZZ_SEEDS=write` writes missing seeds; it never overwrites one.
    fn corpus(target: &str) -> Vec<Vec<u8>> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus").join(target);
        if std::env::var_os("FOREBAY_FUZZ_SEEDS").is_some_and(|v| v == "write") {
            fs::create_dir_all(&dir).unwrap();
            for (i, seed) in seeds(target).iter().enumerate() {
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

    #[test]
    fn seeds_and_their_mutations_are_borne() {
        for (target, entry) in TARGETS {
            let corpus = corpus(target);
            corpus.iter().for_each(|seed| entry(seed));
            let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) };
            let change = (any::<Index>(), any::<u8>());
            proptest!(config, |(seed in any::<Index>(), changes in vec(change, 0..5), cut in any::<Option<Index>>())| {
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
    }
}
