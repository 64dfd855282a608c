//! Entry points of the fuzz targets `rules` and `probes`: what a person and what a program's file says. Each must return: no
//! panic, no overflow.

use crate::probes;
use crate::rules::{Rules, TaskFacts};

/// A file of rules.
pub fn rules(data: &[u8]) {
    if let Ok(rules) = Rules::parse(&String::from_utf8_lossy(data)) {
        let task = TaskFacts { title: "postgres: a b".into(), thread: "x".into(), ..TaskFacts::default() };
        let _ = (rules.of(&task), rules.ask_for_requests(), rules.ask_for_ports_of(&task));
    }
}

/// A program's file with static probes.
pub fn probes(data: &[u8]) {
    let _ = probes::parse(data);
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    fn corpus(target: &str) -> Vec<Vec<u8>> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus").join(target);
        let files = fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        let seeds: Vec<_> = files.map(|file| fs::read(file.unwrap().path()).unwrap()).collect();
        assert!(!seeds.is_empty());
        seeds
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1000) })]

        /// The seeds, and what comes of changing a few of their bytes.
        #[test]
        fn whatever_a_file_says_is_borne(
            seed in any::<prop::sample::Index>(),
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        ) {
            for (target, entry) in [("rules", rules as fn(&[u8])), ("probes", probes)] {
                let seeds = corpus(target);
                let mut bytes = seed.get(&seeds).clone();
                for (at, value) in &changes {
                    let at = at.index(bytes.len());
                    bytes[at] = *value;
                }
                entry(&bytes);
            }
        }
    }
}
