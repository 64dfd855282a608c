//! The data of an object of the log: pieces of up to eight sectors, each with a checksum behind it. The checksum covers the object's identity
//! and the piece's number, too: whoever reads a range knows that it is what was written there.

use crc_fast::{CrcAlgorithm, Digest};

use super::header::Identity;

/// Sectors of a piece; the last piece may be shorter.
pub(crate) const PIECE_SECTORS: u32 = 8;
const DATA_BYTES: usize = PIECE_SECTORS as usize * 512;
const CRC_BYTES: usize = 4;

/// Bytes of a payload of so many sectors.
pub(crate) const fn payload_bytes(sectors: u32) -> u64 {
    sectors as u64 * 512 + sectors.div_ceil(PIECE_SECTORS) as u64 * CRC_BYTES as u64
}

/// Appends the pieces of this data, and gives the CRC-32C of their checksums.
pub(crate) fn write_pieces(identity: &Identity, data: &[u8], out: &mut Vec<u8>) -> u32 {
    let seed = seed(identity);
    let mut all = Digest::new(CrcAlgorithm::Crc32Iscsi);
    for (number, piece) in data.chunks(DATA_BYTES).enumerate() {
        let crc = crc_of(&seed, number as u32, piece);
        all.update(&crc);
        out.extend_from_slice(piece);
        out.extend_from_slice(&crc);
    }
    all.finalize() as u32
}

/// The pieces that hold some sectors of a payload: what must be read to read these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// First piece.
    pub(crate) first: u32,
    /// Sectors from the first piece's beginning to the last piece's end.
    pub(crate) sectors: u32,
}

impl Span {
    /// Of a payload of `all` sectors, those from `pos` on.
    pub(crate) fn of(all: u32, pos: u32, sectors: u32) -> Self {
        let first = pos / PIECE_SECTORS;
        let end = (pos + sectors).next_multiple_of(PIECE_SECTORS).min(all);
        Self { first, sectors: end - first * PIECE_SECTORS }
    }

    /// Byte offset in the payload.
    pub(crate) fn from(self) -> u64 {
        u64::from(self.first) * (DATA_BYTES + CRC_BYTES) as u64
    }

    /// Where in the data of the span a sector of the payload begins, in bytes.
    pub(crate) const fn offset_of(self, pos: u32) -> usize {
        (pos - self.first * PIECE_SECTORS) as usize * 512
    }

    /// Length in bytes.
    pub(crate) fn len(self) -> u64 {
        payload_bytes(self.sectors)
    }
}

/// The data of the pieces of a span as they were read, if they are whole; else the number of the first damaged one.
pub(crate) fn read_pieces(identity: &Identity, span: Span, bytes: &[u8]) -> Result<Vec<u8>, u32> {
    let seed = seed(identity);
    let mut data = Vec::with_capacity(span.sectors as usize * 512);
    let mut rest = bytes;
    for number in span.first.. {
        let left = span.sectors as usize * 512 - data.len();
        if left == 0 {
            break;
        }
        let (piece, behind) = rest.split_at_checked(left.min(DATA_BYTES)).ok_or(number)?;
        let (crc, behind) = behind.split_first_chunk::<CRC_BYTES>().ok_or(number)?;
        if *crc != crc_of(&seed, number, piece) {
            return Err(number);
        }
        data.extend_from_slice(piece);
        rest = behind;
    }
    Ok(data)
}

fn seed(identity: &Identity) -> Digest {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&identity.volume);
    digest.update(&identity.at.epoch.to_le_bytes());
    digest.update(&identity.at.seq.to_le_bytes());
    digest
}

fn crc_of(seed: &Digest, number: u32, piece: &[u8]) -> [u8; CRC_BYTES] {
    let mut digest = *seed;
    digest.update(&number.to_le_bytes());
    digest.update(piece);
    (digest.finalize() as u32).to_le_bytes()
}
