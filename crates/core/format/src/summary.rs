//! The summary of a full segment, at its end: what all its records say, so that recovery reads no data.
//!
//! It is written only when every record of the segment is durable: a summary never speaks of a record that a
//! power cut may have taken. A lost or damaged summary costs time only: the segment is then read through.

use forebay_block::Seq;

use crate::checksum::{crc_but_padding, crc_with_hole, crc32c};
use crate::cursor::{Reader, Writer, counter};
use crate::record::{
    Consistent, EXTENT_BYTES, Extent, ExtentKind, RecordHeader, header_bytes as header_bytes_of,
    read_extents, write_extent,
};
use crate::{FormatError, Layout};

const MAGIC: &[u8; 8] = b"FBSUMMRY";
const CRC_AT: usize = 8;
/// Of the trailer, without padding.
const USED_BYTES: usize = 108;
const ENTRY_BYTES: usize = 16;

/// What a summary says of one record; its sequence number follows from its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SummaryEntry {
    /// Byte offset of the record's header in the segment.
    pub offset: u32,
    /// Length of the record's header in bytes; the data follows it.
    pub header_bytes: u32,
    /// As in the record.
    pub distance: u16,
    /// As in the record.
    pub extents: Vec<Extent>,
    /// As in the record.
    pub checksums: Vec<u32>,
}

/// Collects the summary of a segment while it fills.
#[derive(Clone, Debug, Default)]
pub struct SummaryBuilder {
    body: Vec<u8>,
    records: u32,
    blocks: usize,
}

/// Bytes that a record with so many extents and data blocks adds to a summary's body.
pub const fn entry_bytes(extents: usize, data_blocks: usize) -> usize {
    ENTRY_BYTES + extents * EXTENT_BYTES + data_blocks * 4
}

/// The trailer in the last `align` bytes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// Run that wrote the summary: that of the segment's last record or a later one.
    pub generation: u64,
    /// As in the segment's header.
    pub segment_seq: u64,
    /// First record of the segment.
    pub first_seq: Seq,
    /// Last record of the segment; all of them were durable when the summary was written.
    pub last_seq: Seq,
    /// As of the segment's last record ([`RecordHeader::clean_upto`]).
    pub clean_upto: Seq,
    /// As of the segment's last record ([`RecordHeader::tail`]).
    pub tail: u64,
    /// Time of the segment's first record, nanoseconds since 1970.
    pub time_first_ns: u64,
    /// Time of the segment's last record or later, nanoseconds since 1970.
    pub time_last_ns: u64,
    /// Bytes of the body before padding.
    pub body_bytes: u32,
    /// CRC-32C of the body and its padding.
    pub body_crc: u32,
    /// Records in the segment.
    pub records: u32,
    /// As of the segment's last record ([`RecordHeader::ordered`]).
    pub ordered: Consistent,
}

impl SummaryBuilder {
    /// Adds the next record of the segment.
    pub fn push(&mut self, header: &RecordHeader, align: u32) {
        let at = self.body.len();
        self.body.resize(at + entry_bytes(header.extents.len(), header.checksums.len()), 0);
        let mut w = Writer::new(&mut self.body[at..]);
        w.u32(header.offset);
        w.u32(header.header_bytes(align) as u32);
        w.u16(header.extents.len() as u16);
        w.u16(header.distance);
        w.u32(header.checksums.len() as u32);
        for e in &header.extents {
            write_extent(&mut w, e);
        }
        for c in &header.checksums {
            w.u32(*c);
        }
        self.records += 1;
        let counted = header.extents.iter().filter(|e| e.kind != ExtentKind::Supersede);
        self.blocks += counted.map(|e| e.count as usize).sum::<usize>();
    }

    /// Blocks that the records so far speak of, those of supersede extents not counted ([`SEGMENT_BLOCKS_MAX`](crate::rules::SEGMENT_BLOCKS_MAX)).
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Bytes of the body so far, without padding.
    pub fn body_bytes(&self) -> usize {
        self.body.len()
    }

    /// Bytes that body and trailer take at the end of a segment if `more` bytes are added to the body.
    pub fn bytes_with(&self, more: usize, align: u32) -> usize {
        (self.body.len() + more).next_multiple_of(align as usize) + align as usize
    }

    /// Completes `trailer` and returns the bytes to be written so that they end at the segment's end.
    pub fn finish(self, layout: &Layout, mut trailer: Trailer) -> Vec<u8> {
        let align = layout.align as usize;
        trailer.body_bytes = self.body.len() as u32;
        trailer.records = self.records;
        let mut out = self.body;
        out.resize(out.len().next_multiple_of(align), 0);
        trailer.body_crc = crc32c(&out);
        out.resize(out.len() + align, 0);
        let at = out.len() - align;
        trailer.encode(layout, &mut out[at..]);
        out
    }
}

impl Trailer {
    fn encode(&self, layout: &Layout, out: &mut [u8]) {
        let mut w = Writer::new(out);
        w.bytes(MAGIC);
        w.skip(4);
        w.u32(self.body_bytes);
        w.bytes(&layout.cache_id);
        w.u64(self.generation);
        w.u64(self.segment_seq);
        w.u64(self.first_seq.0);
        w.u64(self.last_seq.0);
        w.u64(self.clean_upto.0);
        w.u64(self.tail);
        w.u64(self.time_first_ns);
        w.u64(self.time_last_ns);
        w.u32(self.body_crc);
        w.u32(self.records);
        w.u32(self.ordered.bits());
        let crc = crc_with_hole(out, CRC_AT);
        out[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    }

    /// Reads the trailer of the segment with sequence number `segment_seq` from the segment's last `align` bytes.
    ///
    /// # Errors
    /// [`FormatError::Foreign`] if it belongs to another cache, lap or later run; [`FormatError::Field`] if it is whole and makes no
    /// sense; other [`FormatError`]s if it is none.
    pub fn decode(layout: &Layout, segment_seq: u64, bytes: &[u8]) -> Result<Self, FormatError> {
        let bytes = bytes.get(..layout.align as usize).ok_or(FormatError::Truncated)?;
        let mut r = Reader::new(bytes);
        if r.bytes(8)? != MAGIC {
            return Err(FormatError::Magic);
        }
        if r.u32()? != crc_but_padding(bytes, USED_BYTES, CRC_AT) {
            return Err(FormatError::Checksum);
        }
        let body_bytes = r.u32()?;
        let cache_id: [u8; 16] = r.array()?;
        let (generation, segment) = (r.u64()?, r.u64()?);
        // Whose it is comes first: what others have written here may mean anything.
        if cache_id != layout.cache_id || segment != segment_seq || generation > layout.generation {
            return Err(FormatError::Foreign);
        }
        let t = Self {
            body_bytes,
            generation: counter(generation, "generation")?,
            segment_seq: counter(segment, "segment_seq")?,
            first_seq: Seq(r.counter("first_seq")?),
            last_seq: Seq(r.counter("last_seq")?),
            clean_upto: Seq(r.counter("clean_upto")?),
            tail: r.counter("tail")?,
            time_first_ns: r.u64()?,
            time_last_ns: r.u64()?,
            body_crc: r.u32()?,
            records: r.u32()?,
            ordered: Consistent::from_bits(r.u32()?),
        };
        if t.bytes(layout.align) > layout.segment_bytes as usize {
            return Err(FormatError::Field("body length"));
        }
        if t.last_seq.0.checked_sub(t.first_seq.0) != u64::from(t.records).checked_sub(1) {
            return Err(FormatError::Field("records"));
        }
        Ok(t)
    }

    /// Bytes that body and trailer take at the segment's end.
    pub fn bytes(&self, align: u32) -> usize {
        (self.body_bytes as usize).next_multiple_of(align as usize) + align as usize
    }

    /// Reads the entries from `body`, which begins where the body begins and may be longer.
    ///
    /// # Errors
    /// [`FormatError::Field`] if the body is whole and speaks of what cannot be in a segment; others if it is damaged.
    pub fn entries(&self, layout: &Layout, body: &[u8]) -> Result<Vec<SummaryEntry>, FormatError> {
        let padded = (self.body_bytes as usize).next_multiple_of(layout.align as usize);
        let body = body.get(..padded).ok_or(FormatError::Truncated)?;
        if crc32c(body) != self.body_crc {
            return Err(FormatError::Checksum);
        }
        // What is whole is not cut short: it was never longer.
        self.read_entries(layout, body).map_err(|e| match e {
            FormatError::Truncated => FormatError::Field("body length"),
            e => e,
        })
    }

    fn read_entries(&self, layout: &Layout, body: &[u8]) -> Result<Vec<SummaryEntry>, FormatError> {
        let mut r = Reader::new(body);
        let mut entries = Vec::with_capacity((self.records as usize).min(body.len() / ENTRY_BYTES));
        let mut at = u64::from(layout.align);
        for _ in 0..self.records {
            let (offset, header_bytes) = (r.u32()?, r.u32()?);
            let (extents, distance, blocks) = (r.u16()?, r.u16()?, r.u32()?);
            let extents = read_extents(&mut r, u32::from(extents), blocks)?;
            if header_bytes as usize != header_bytes_of(layout.align, extents.len(), blocks as usize) {
                return Err(FormatError::Field("header length"));
            }
            let checksums = (0..blocks).map(|_| r.u32()).collect::<Result<Vec<_>, _>>()?;
            if u64::from(offset) != at {
                return Err(FormatError::Field("record offset"));
            }
            at += u64::from(header_bytes) + u64::from(blocks) * forebay_block::BLOCK_BYTES;
            entries.push(SummaryEntry { offset, header_bytes, distance, extents, checksums });
        }
        if at + self.bytes(layout.align) as u64 > u64::from(layout.segment_bytes) {
            return Err(FormatError::Field("record length"));
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::sample as record;
    use crate::superblock::tests::sample as superblock;

    #[test]
    fn round_trip_and_every_flipped_bit_is_found_but_for_padding() {
        let layout = superblock().layout;
        let mut b = SummaryBuilder::default();
        let mut h = record();
        h.offset = 512;
        b.push(&h, 512);
        let second = 512 + h.record_bytes(512) as u32;
        h.offset = second;
        b.push(&h, 512);
        let trailer = Trailer {
            generation: 4,
            segment_seq: 17,
            first_seq: Seq(1000),
            last_seq: Seq(1001),
            clean_upto: Seq(3),
            tail: 2,
            time_first_ns: 5,
            time_last_ns: 6,
            body_bytes: 0,
            body_crc: 0,
            records: 0,
            ordered: Consistent::Barriers,
        };
        let predicted = b.bytes_with(0, 512);
        let out = b.finish(&layout, trailer);
        assert_eq!(out.len(), predicted);
        let read = |out: &[u8]| -> Result<Vec<SummaryEntry>, FormatError> {
            let t = Trailer::decode(&layout, 17, &out[out.len() - 512..])?;
            t.entries(
                &layout,
                out.get(out.len().saturating_sub(t.bytes(512))..).ok_or(FormatError::Truncated)?,
            )
        };
        let entries = read(&out).unwrap();
        assert_eq!(entries[1].offset, second);
        assert_eq!(entries[0].extents, h.extents);
        for at in 0..out.len() {
            let mut bad = out.clone();
            bad[at] ^= 0x80;
            assert_eq!(read(&bad).is_ok(), at >= out.len() - 512 + USED_BYTES, "flip at {at}");
        }
    }
}
