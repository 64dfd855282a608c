//! Entry point of the fuzz target `trace`. It must return, and whatever is taken for a trace must fit a volume.

use crate::request_log::{Kind, Request};
use crate::trace::{Step, Trace};

/// A log of requests.
pub fn trace(data: &[u8]) {
    let Ok(trace) = Trace::parse(&String::from_utf8_lossy(data)) else { return };
    for (at, step) in trace.steps.iter().enumerate() {
        match step {
            Step::Request(Request { kind: Kind::Flush, .. }) | Step::Settle | Step::Promote { .. } => {}
            Step::Request(Request { offset, len, .. }) => {
                assert!(*len > 0 && offset + len <= trace.volume_bytes);
            }
            Step::Answered(earlier) => assert!(*earlier < at && trace.steps[*earlier].request().is_some()),
        }
    }
    let whole = trace.volume_bytes;
    assert!((1..=whole.next_multiple_of(4096)).contains(&Trace::working_set(&[trace])));
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;

    fn corpus() -> Vec<Vec<u8>> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/trace");
        let files = fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        let seeds: Vec<_> = files.map(|file| fs::read(file.unwrap().path()).unwrap()).collect();
        assert!(!seeds.is_empty());
        seeds
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

        /// The seeds, and what comes of changing a few of their bytes.
        #[test]
        fn whatever_a_log_says_is_borne(
            seed in any::<prop::sample::Index>(),
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        ) {
            let seeds = corpus();
            let mut bytes = seed.get(&seeds).clone();
            for (at, value) in &changes {
                let at = at.index(bytes.len());
                bytes[at] = *value;
            }
            trace(&bytes);
        }
    }
}
