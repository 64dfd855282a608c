//! The header of a segment. It is written together with the segment's first record.

use forebay_block::Seq;

use crate::checksum::{crc_but_padding, crc_with_hole};
use crate::cursor::{Reader, Writer, counter};
use crate::{FormatError, Layout};

const MAGIC: &[u8; 8] = b"FBSEGMNT";
const CRC_AT: usize = 8;
/// Without padding.
const USED_BYTES: usize = 64;

/// First `align` bytes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Run that opened the segment.
    pub generation: u64,
    /// Number of the segment in the order of the log; starts at 1, never reused.
    pub segment_seq: u64,
    /// Sequence number of the first record in the segment.
    pub first_seq: Seq,
    /// Physical number of the segment.
    pub index: u32,
}

impl SegmentHeader {
    /// Writes the header into the first `layout.align` bytes of `out`.
    ///
    /// # Panics
    /// If `out` is shorter than `layout.align`.
    pub fn encode(&self, layout: &Layout, out: &mut [u8]) {
        let out = &mut out[..layout.align as usize];
        out.fill(0);
        let mut w = Writer::new(out);
        w.bytes(MAGIC);
        w.skip(4);
        w.u32(layout.align);
        w.bytes(&layout.cache_id);
        w.u64(self.generation);
        w.u64(self.segment_seq);
        w.u64(self.first_seq.0);
        w.u32(self.index);
        w.u32(layout.segment_bytes);
        let crc = crc_with_hole(out, CRC_AT);
        out[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    }

    /// Reads the header of the segment with physical number `index`.
    ///
    /// # Errors
    /// [`FormatError::Foreign`] if it belongs to another cache, to a later run than `layout.generation`, or to
    /// another place; [`FormatError::Field`] if it is whole and makes no sense; other [`FormatError`]s if it is no header.
    pub fn decode(layout: &Layout, index: u32, bytes: &[u8]) -> Result<Self, FormatError> {
        let bytes = bytes.get(..layout.align as usize).ok_or(FormatError::Truncated)?;
        let mut r = Reader::new(bytes);
        if r.bytes(8)? != MAGIC {
            return Err(FormatError::Magic);
        }
        if r.u32()? != crc_but_padding(bytes, USED_BYTES, CRC_AT) {
            return Err(FormatError::Checksum);
        }
        let align = r.u32()?;
        let cache_id: [u8; 16] = r.array()?;
        let (generation, segment_seq, first_seq) = (r.u64()?, r.u64()?, r.u64()?);
        let place = r.u32()?;
        let segment_bytes = r.u32()?;
        // Whose it is comes first: what others have written here may mean anything.
        if cache_id != layout.cache_id
            || place != index
            || align != layout.align
            || segment_bytes != layout.segment_bytes
            || generation > layout.generation
        {
            return Err(FormatError::Foreign);
        }
        let header = Self {
            generation: counter(generation, "generation")?,
            segment_seq: counter(segment_seq, "segment_seq")?,
            first_seq: Seq(counter(first_seq, "first_seq")?),
            index,
        };
        if header.segment_seq == 0 || header.first_seq.0 == 0 {
            return Err(FormatError::Field("segment_seq"));
        }
        Ok(header)
    }
}
