//! How the bytes of a request are cut into parts.
//!
//! ```text
//!   a write:        |---------------- one part, of data -----------------|
//!   zeroes:         |-- data --|------- whole blocks of zeroes -------|--|   edges are written as data that is zero
//!   blocks:    |         |         |         |         |         |         |
//! ```

use forebay_block::{BLOCK_BYTES, Buf, blocks_of};

use crate::client::parts::Payload;
use crate::locks::BlockRange;

/// Zeroes of more blocks than this (1 MiB) go to the backing directly: in the log they would cost a slot a block.
pub(crate) const ZERO_BLOCKS_LOGGED_MAX: u64 = 256;

/// The parts of a request.
pub(crate) struct Cut {
    /// Byte offset and length of the whole request.
    pub(crate) bytes: (u64, u64),
    /// What each part does to which blocks, in the order in which they arrive.
    pub(crate) parts: Vec<(BlockRange, Payload)>,
    /// Blocks of it that would enter the log.
    pub(crate) entering: u64,
    /// Bytes of data that the client has sent.
    pub(crate) data_bytes: u64,
    /// One of the parts is of zeroes that are too many for the log.
    pub(crate) is_long: bool,
}

/// Data, at a byte offset of the volume.
fn data_part(offset: u64, data: Buf) -> (BlockRange, Payload) {
    let (first, count) = blocks_of(offset, data.len() as u64);
    (BlockRange::new(first, count), Payload::Data { offset, data })
}

impl Cut {
    /// A write of data, which is not empty.
    pub(crate) fn write(offset: u64, data: Buf) -> Self {
        let len = data.len() as u64;
        let entering = blocks_of(offset, len).1;
        let parts = vec![data_part(offset, data)];
        Self { bytes: (offset, len), parts, entering, data_bytes: len, is_long: false }
    }

    /// Zeroes, at least one: up to three parts. In the middle whole blocks, and at the ends parts of blocks, which are writes of zeroes.
    pub(crate) fn zero(offset: u64, len: u64, unmap: bool, volume_bytes: u64) -> Self {
        let end = offset + len;
        let first = offset.next_multiple_of(BLOCK_BYTES).min(end);
        let whole_end = if end == volume_bytes { end } else { end - end % BLOCK_BYTES };
        let last = whole_end.max(first);
        let (block, blocks) = blocks_of(first, last - first);
        let is_long = last > first && blocks > ZERO_BLOCKS_LOGGED_MAX;
        let edges = [(offset, first - offset), (last, end - last)];
        let entering = if is_long { edges.len() as u64 } else { blocks_of(offset, len).1 };
        let mut parts: Vec<_> = edges
            .iter()
            .filter(|(_, n)| *n > 0)
            .map(|(at, n)| data_part(*at, Buf::zeroed(*n as usize)))
            .collect();
        if last > first {
            parts.push((BlockRange::new(block, blocks), Payload::Zero { unmap }));
        }
        // A zero carries no data: counted, it would hide what the cache writes for each byte of a client.
        Self { bytes: (offset, len), parts, entering, data_bytes: 0, is_long }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Each byte of the request lies in exactly one part, and a part of zeroes has nothing but whole blocks, or the volume's end.
        #[test]
        fn parts_are_the_request(
            volume in 1u64..4000,
            (from, count) in (0u64..4000, 1u64..4000),
            is_zero in any::<bool>(),
        ) {
            let volume_bytes = volume * 512;
            let offset = from.min(volume - 1) * 512;
            let len = (count * 512).min(volume_bytes - offset);
            let cut = match is_zero {
                true => Cut::zero(offset, len, true, volume_bytes),
                false => Cut::write(offset, Buf::zeroed(len as usize)),
            };
            let mut covered = Vec::new();
            for (range, payload) in &cut.parts {
                let (from, to) = (range.first.offset(), (range.end() * BLOCK_BYTES).min(volume_bytes));
                let bytes = match payload {
                    Payload::Data { offset, data } => (*offset, *offset + data.len() as u64),
                    Payload::Zero { .. } => (from, to),
                };
                prop_assert!(from <= bytes.0 && bytes.1 <= to && bytes.0 < bytes.1, "{range:?} has {bytes:?}");
                prop_assert!(bytes.0 - from < BLOCK_BYTES && to - bytes.1 < BLOCK_BYTES, "no block too many");
                covered.push(bytes);
                let many = matches!(payload, Payload::Zero { .. }) && range.count > ZERO_BLOCKS_LOGGED_MAX;
                prop_assert!(!many || cut.is_long);
            }
            covered.sort_unstable();
            prop_assert_eq!((covered[0].0, covered[covered.len() - 1].1), (offset, offset + len));
            prop_assert!(covered.windows(2).all(|two| two[0].1 == two[1].0));
            let blocks: u64 = cut.parts.iter().map(|(range, _)| range.count).sum();
            prop_assert!(cut.is_long || cut.entering == blocks);
        }
    }
}
