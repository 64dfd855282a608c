//! Whether two addresses offer the same export, as far as reading can tell.

use std::io;

use crate::nbd::handshake::{Stream, Terms, read_alone};

/// So many bytes are compared at the beginning and at the end, where a backing's label lies.
const EDGE_BYTES: u32 = 64 << 10;
/// And so many in places between them.
const SAMPLE_BYTES: u32 = 4096;
/// As many as these, at equal distances.
const SAMPLES: u64 = 30;

/// Whether connections that nothing else uses yet show the same in all places that are looked at. Nobody must write meanwhile.
///
/// # Errors
/// If one of them cannot be read.
pub(crate) fn show_the_same(streams: &[Stream], terms: &Terms) -> io::Result<bool> {
    let [first, others @ ..] = streams else { return Ok(true) };
    for stream in others {
        for (offset, len) in places(terms.size_bytes) {
            if read_alone(first, terms, offset, len)? != read_alone(stream, terms, offset, len)? {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Offset and length of each place, in whole pages.
fn places(size_bytes: u64) -> Vec<(u64, u32)> {
    let pages = size_bytes / 4096;
    let edge = (u64::from(EDGE_BYTES) / 4096).min(pages);
    let edges = [0, pages - edge].map(|page| (page * 4096, edge as u32 * 4096));
    let between = (1..=SAMPLES).map(|n| (pages / (SAMPLES + 1) * n * 4096, SAMPLE_BYTES));
    if pages <= 2 * edge { vec![edges[0], edges[1]] } else { edges.into_iter().chain(between).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_lie_within_the_export_and_cover_its_end() {
        for size_bytes in [4096, 8192, 65536, 100_000, 1 << 20, (1 << 30) + 512, 1 << 50] {
            let all = places(size_bytes);
            let whole = size_bytes / 4096 * 4096;
            assert!(
                all.iter().all(|(offset, len)| *len > 0 && offset + u64::from(*len) <= whole),
                "{size_bytes}"
            );
            assert_eq!(all[1].0 + u64::from(all[1].1), whole);
        }
        assert_eq!(places(1 << 30).len(), 32);
        assert!(places(512).iter().all(|(_, len)| *len == 0));
    }
}
