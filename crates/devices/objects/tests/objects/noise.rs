//! The fuzz target, run over its seeds and over mutations of them.

use std::fs;
use std::path::Path;

use forebay_objects::fuzzing::object;
use proptest::prelude::*;

fn seeds() -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/object");
    let mut files: Vec<_> = fs::read_dir(directory).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

#[test]
fn seeds_are_read() {
    let seeds = seeds();
    assert!(seeds.len() >= 8);
    seeds.iter().for_each(|seed| object(seed));
}

proptest! {
    #[test]
    fn whatever_lies_in_a_store_is_read(
        seed in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut all = seeds();
        let mut bytes = all.swap_remove(seed.index(all.len()));
        for (at, value) in changes {
            // Most of what is worth changing stands at the front.
            let front = bytes.len().min(300);
            bytes[at.index(front)] = value;
        }
        object(&bytes);
        bytes.truncate(cut.index(bytes.len() + 1));
        object(&bytes);
    }

    #[test]
    fn so_is_noise(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        object(&bytes);
    }
}
