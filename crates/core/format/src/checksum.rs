//! CRC-32C (Castagnoli) of structures and of data blocks.

use crc_fast::{CrcAlgorithm, Digest, checksum};
use forebay_block::{BlockNo, Seq};

/// CRC-32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Checksum of a data block in the log: CRC-32C over its address in the volume, the sequence number of its record
/// and its data. A block that was misdirected, or is a leftover of an earlier record at the same place, does not
/// match even if its data is whole (P5).
pub fn block_checksum(block: BlockNo, seq: Seq, data: &[u8]) -> u32 {
    let mut seed = [0; 16];
    seed[..8].copy_from_slice(&block.0.to_le_bytes());
    seed[8..].copy_from_slice(&seq.0.to_le_bytes());
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&seed);
    digest.update(data);
    digest.finalize() as u32
}

/// CRC-32C of a structure in which the four bytes at `at` are the checksum itself and count as zero.
pub(crate) fn crc_with_hole(bytes: &[u8], at: usize) -> u32 {
    crc_but_padding(bytes, bytes.len(), at)
}

/// The same of a structure of which the first `used` bytes say something. The padding behind them counts as the zeroes that were written,
/// whatever is there: a power cut may have taken some of it away, and what is written there next would bring it back.
pub(crate) fn crc_but_padding(bytes: &[u8], used: usize, at: usize) -> u32 {
    const ZEROES: [u8; 4096] = [0; 4096];
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&bytes[..at]);
    digest.update(&[0; 4]);
    digest.update(&bytes[at + 4..used]);
    digest.update(&ZEROES[..bytes.len() - used]);
    digest.finalize() as u32
}

/// Whether this machine computes CRC-32C right; to be asked once at start, before anything is written or believed.
pub fn self_test() -> bool {
    crc32c(b"123456789") == 0xE306_9283 && crc32c(&[0; 4096]) == 0x98F9_4189
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_vectors_hold() {
        assert!(self_test());
    }

    #[test]
    fn a_block_checksum_covers_address_sequence_and_data() {
        let data = [7u8; 4096];
        let base = block_checksum(BlockNo(1), Seq(1), &data);
        assert_ne!(base, block_checksum(BlockNo(2), Seq(1), &data));
        assert_ne!(base, block_checksum(BlockNo(1), Seq(2), &data));
        let mut other = data;
        other[4095] ^= 1;
        assert_ne!(base, block_checksum(BlockNo(1), Seq(1), &other));
    }
}
