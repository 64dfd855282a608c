//! A flipped bit anywhere in a used part of the image is found; in a free part, or in padding, it is not called corruption.

use std::ops::Range;

use forebay_verify::{Severity, check};

use super::writer::{self, Writer};

/// Every cell of so many bytes gets a flipped bit.
const CELL: usize = 64;

fn flip_everywhere(name: &str, w: &Writer, unproven: Range<usize>) {
    let base = check(&w.bytes).unwrap();
    assert!(base.verdict <= Severity::Note, "{name}: {base}");
    let (used, padding) = (w.used(), w.padding());
    let mut image = w.bytes.clone();
    let mut flipped = [0u64; 2];
    for at in (0..image.len()).step_by(CELL).map(|cell| cell + cell / CELL % CELL) {
        let within = |ranges: &[Range<usize>]| ranges.iter().any(|r| r.contains(&at));
        let is_used = within(&used) && !within(&padding);
        // Free space is large and all alike: a sample of it will do.
        if !is_used && !(at / CELL).is_multiple_of(61) {
            continue;
        }
        flipped[usize::from(is_used)] += 1;
        let bit = 1 << (at / CELL % 8);
        image[at] ^= bit;
        let report = check(&image).unwrap();
        image[at] ^= bit;
        if is_used {
            assert!(!report.findings.is_empty(), "{name}: a flip at {at} was not found");
            let wanted = if unproven.contains(&at) { Severity::Note } else { Severity::Recoverable };
            assert!(report.verdict >= wanted, "{name}: flip at {at}: {report}");
        } else {
            assert!(report.verdict <= Severity::Note, "{name}: flip in free space at {at}: {report}");
        }
    }
    eprintln!("{name}: {} flips in used parts found, {} in free parts ignored", flipped[1], flipped[0]);
    assert!(flipped[0] > 50 && flipped[1] > 1500);
}

/// Where the newest record lies, which nothing proves to have been durable.
fn newest_record(w: &Writer) -> Range<usize> {
    let s = w.live.back().unwrap();
    w.at(s, *s.records.last().unwrap())..w.at(s, s.end)
}

#[test]
fn in_a_dirty_image() {
    for align in [512, 4096] {
        let w = writer::dirty(align);
        flip_everywhere("dirty", &w, newest_record(&w));
        let w = writer::wrapped(align);
        flip_everywhere("dirty and wrapped", &w, newest_record(&w));
    }
}

#[test]
fn in_a_cleanly_stopped_image() {
    for align in [512, 4096] {
        flip_everywhere("stopped", &writer::stopped(align), 0..0);
    }
}

#[test]
fn in_an_image_with_leftovers_of_an_earlier_lap() {
    for align in [512, 4096] {
        let mut w = writer::wrapped(align);
        w.stop();
        flip_everywhere("wrapped", &w, 0..0);
    }
}

/// A power cut took the summary of the oldest segment, which is then read through.
#[test]
fn in_an_image_with_a_missing_summary() {
    for align in [512, 4096] {
        let mut w = writer::stopped(align);
        let s = w.live[0].clone();
        let end = w.at(&s, writer::SEGMENT_BYTES);
        w.bytes[end - s.summary_bytes..end].fill(0);
        w.live[0].summary_bytes = 0;
        flip_everywhere("missing summary", &w, 0..0);
    }
}
