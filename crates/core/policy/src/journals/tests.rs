use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;

/// Writes in a circle, as a file system's journal does: commits of some blocks, each where the last one ended.
struct Circle {
    first: u64,
    end: u64,
    at: u64,
}

impl Circle {
    fn commit(&mut self, journals: &mut Journals, blocks: u64) -> bool {
        let mut is_found = false;
        let mut left = blocks;
        while left > 0 {
            let now = left.min(self.end - self.at);
            is_found = journals.write(self.at * BLOCK_BYTES, now * BLOCK_BYTES);
            self.at += now;
            left -= now;
            if self.at == self.end {
                self.at = self.first;
            }
        }
        is_found
    }
}

/// Numbers that look as if they were drawn.
fn drawn(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed | 1;
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    }
}

fn found(journals: &Journals) -> Vec<(u64, u64)> {
    journals.found().collect()
}

#[test]
fn a_circular_journal_is_found_in_its_second_round_wherever_the_first_one_began() {
    for begins_at in [1000, 1500, 1999] {
        let (mut journals, mut draw) = (Journals::default(), drawn(begins_at));
        let mut circle = Circle { first: 1000, end: 3048, at: begins_at };
        let mut written = 0;
        while found(&journals).is_empty() {
            let blocks = 2 + draw(12);
            circle.commit(&mut journals, blocks);
            written += blocks;
            // Ten random writes for each commit, and a file that grows.
            for _ in 0..10 {
                journals.write((100_000 + draw(500_000)) * BLOCK_BYTES, BLOCK_BYTES);
            }
            assert!(written < 3 * 2048, "it is not found after three rounds");
        }
        assert!(written <= 2048 + 300, "it takes {written} blocks to find one of 2048");
        // What is known of it grows to all that it is.
        (0..500).for_each(|_| _ = circle.commit(&mut journals, 8));
        assert_eq!(found(&journals), [(1000 * BLOCK_BYTES, 3048 * BLOCK_BYTES)], "from {begins_at}");
        assert!(circle.commit(&mut journals, 3));
        assert!(journals.contain(1000 * BLOCK_BYTES) && !journals.contain(999 * BLOCK_BYTES));
        assert!(!journals.contain(3048 * BLOCK_BYTES));
    }
}

/// Where a file system is mounted anew, its journal begins where it ended: what was found of it from there on grows to all of it.
#[test]
fn parts_of_a_journal_become_one() {
    let mut journals = Journals::default();
    let mut circle = Circle { first: 1000, end: 3048, at: 1600 };
    for _ in 0..3 {
        (0..130).for_each(|_| _ = circle.commit(&mut journals, 8));
        // A pause in which so much else comes that the flow is forgotten.
        for n in 0..200 {
            (0..4).for_each(|m| _ = journals.write((100_000 + 50 * n + m) * BLOCK_BYTES, BLOCK_BYTES));
        }
    }
    (0..600).for_each(|_| _ = circle.commit(&mut journals, 8));
    assert_eq!(found(&journals), [(1000 * BLOCK_BYTES, 3048 * BLOCK_BYTES)]);
}

/// What was found first is a part of it, as the file system was mounted anew meanwhile: the end is found with the next rounds.
#[test]
fn the_end_of_a_journal_is_found_after_its_beginning() {
    let mut journals = Journals::default();
    let mut part = Circle { first: 1000, end: 1600, at: 1000 };
    (0..300).for_each(|_| _ = part.commit(&mut journals, 4));
    assert_eq!(found(&journals), [(1000 * BLOCK_BYTES, 1600 * BLOCK_BYTES)]);
    let mut whole = Circle { first: 1000, end: 3048, at: 1000 };
    (0..1300).for_each(|_| _ = whole.commit(&mut journals, 4));
    assert_eq!(found(&journals), [(1000 * BLOCK_BYTES, 3048 * BLOCK_BYTES)]);
}

#[test]
fn files_of_a_log_that_are_used_again_are_found_each() {
    let (mut journals, mut draw) = (Journals::default(), drawn(5));
    let files = [40 * MIB, 900 * MIB, 200 * MIB];
    let mut last = false;
    for _ in 0..2 {
        for file in files {
            // A page of 8 KiB is written again until it is full.
            let mut page = 0;
            while page < 2048 {
                last = journals.write(file + page * 8192, 8192);
                page += draw(2);
                journals.write((2000 + draw(3000)) * MIB, 8192);
            }
        }
    }
    assert!(last);
    let expected = [40, 200, 900].map(|at| (at * MIB, (at + 16) * MIB));
    assert_eq!(found(&journals), expected);
}

/// With blocks of 1 KiB a journal's superblock lies in the first block of its circle. That is written now and then, and is no round.
#[test]
fn a_superblock_at_its_beginning_is_no_round() {
    let mut journals = Journals::default();
    let mut circle = Circle { first: 1000, end: 2024, at: 1000 };
    for n in 0..230 {
        circle.commit(&mut journals, 4);
        if n % 2 == 0 {
            journals.write(1000 * BLOCK_BYTES, 1024);
        }
    }
    assert_eq!(found(&journals), [], "it has not come to its end");
    (0..80).for_each(|_| _ = circle.commit(&mut journals, 4));
    assert_eq!(found(&journals), [(1000 * BLOCK_BYTES, 2024 * BLOCK_BYTES)]);
}

#[test]
fn sectors_of_a_redo_log_are_found() {
    let mut journals = Journals::default();
    for _ in 0..2 {
        let mut at = 2048;
        while at < 4 * MIB {
            // The last sector is written again, with what came to it.
            journals.write(64 * MIB + at - 512, 1536);
            at += 1024;
        }
    }
    let found = found(&journals);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].0 <= 64 * MIB + 2048 && found[0].1 >= 68 * MIB - 4096, "{found:?}");
}

#[test]
fn nothing_else_is_taken_for_one() {
    let (mut journals, mut draw) = (Journals::default(), drawn(9));
    // Random writes; files that are copied over themselves, in large pieces; files that grow; one small file over and over.
    for round in 0..4u64 {
        for _ in 0..5000 {
            journals.write(draw(100_000) * BLOCK_BYTES, BLOCK_BYTES * (1 + draw(4)));
        }
        (0..64).for_each(|n| _ = journals.write((1000 + n) * MIB, MIB));
        (0..2000).for_each(|n| _ = journals.write((2000 + round * 8) * MIB + n * 4096, 4096));
        (0..100).for_each(|n| _ = journals.write(3000 * MIB + n * 4096, 4096));
    }
    assert_eq!(found(&journals), []);
}

#[test]
fn what_comes_to_be_written_at_random_is_forgotten() {
    let (mut journals, mut draw) = (Journals::default(), drawn(3));
    let mut circle = Circle { first: 0, end: 1024, at: 0 };
    (0..300).for_each(|_| _ = circle.commit(&mut journals, 8));
    assert_eq!(found(&journals), [(0, 4 * MIB)]);
    // A superblock among it, now and then, is no matter.
    for n in 0..300 {
        circle.commit(&mut journals, 8);
        if n % 10 == 0 {
            journals.write(0, BLOCK_BYTES);
        }
    }
    assert_eq!(found(&journals), [(0, 4 * MIB)]);
    (0..200).for_each(|_| _ = journals.write(draw(1024) * BLOCK_BYTES, BLOCK_BYTES));
    assert_eq!(found(&journals), []);
}

proptest! {
    /// Whatever is written: memory is bounded, tracks are disjoint, and what is found has been written.
    #[test]
    fn all_is_bounded(writes in proptest::collection::vec((0u64..64, 0u64..2000, 1u64..40), 1..400), repeat in 1usize..6) {
        let mut journals = Journals::default();
        let mut written = std::collections::BTreeSet::new();
        for _ in 0..repeat {
            for (run, at, len) in &writes {
                for step in 0..*run {
                    let first = at + step * len;
                    let told = journals.write(first * BLOCK_BYTES, len * BLOCK_BYTES);
                    prop_assert_eq!(told, journals.contain(first * BLOCK_BYTES));
                    written.extend(first..first + len);
                }
            }
        }
        prop_assert!(journals.tracks.len() <= TRACKS_MAX);
        let mut before = 0;
        for (first, end) in journals.found() {
            prop_assert!(first >= before && first < end);
            before = end;
            for block in first / BLOCK_BYTES..end / BLOCK_BYTES {
                prop_assert!(written.contains(&block), "block {} was never written", block);
            }
        }
    }

    /// At the ends of what numbers can say nothing breaks.
    #[test]
    fn no_number_is_too_large(offset: u64, len: u64) {
        let mut journals = Journals::default();
        (0..3).for_each(|_| _ = journals.write(offset, len));
    }
}
