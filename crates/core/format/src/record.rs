//! Log records: a header with extents and checksums, then the data blocks.

use forebay_block::{BLOCK_BYTES, BlockNo, Seq};

use crate::checksum::{crc_but_padding, crc_with_hole};
use crate::cursor::{Reader, Writer, counter};
use crate::{FormatError, Layout};

const MAGIC: &[u8; 8] = b"FBRECORD";
const CRC_AT: usize = 8;
/// Numbers of data blocks and of extents.
const COUNTS_AT: usize = 92;
/// Bytes of the header before the extents.
pub const FIXED_BYTES: usize = 112;
/// Bytes of one extent in a header or summary.
pub const EXTENT_BYTES: usize = 16;
/// Most data blocks of one record (2 MiB of data).
pub const RECORD_BLOCKS_MAX: u32 = 512;
/// Most extents of one record.
pub const RECORD_EXTENTS_MAX: u32 = 1024;
/// Longest header in bytes.
pub const HEADER_BYTES_MAX: usize = 32 << 10;
/// Largest block number plus one.
pub const BLOCKS_MAX: u64 = 1 << 40;

/// What an extent says of its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ExtentKind {
    /// Acknowledged data that the backing may lack; one data block in the record for each block.
    Data = 1,
    /// A copy of what the backing has, kept as read cache; one data block for each block. Believed only after a
    /// clean stop (hazard 1), and never hides an older record.
    Clean = 2,
    /// The blocks read as zeroes; the backing may still lack that. No data.
    Zero = 3,
    /// Whatever older records say of the blocks is void: the backing has newer data (P3). No data.
    Supersede = 4,
    /// The newest data of the blocks is lost to a damaged medium: reading them is an I/O error (P5). No data.
    Poison = 5,
}

impl ExtentKind {
    /// Whether the record carries a data block for each block of the extent.
    pub const fn has_data(self) -> bool {
        matches!(self, Self::Data | Self::Clean)
    }

    fn from_u32(v: u32) -> Result<Self, FormatError> {
        Ok(match v {
            1 => Self::Data,
            2 => Self::Clean,
            3 => Self::Zero,
            4 => Self::Supersede,
            5 => Self::Poison,
            _ => return Err(FormatError::Field("extent kind")),
        })
    }
}

/// In which order of writes the backing alone is consistent (P4). The later ones hold whatever the earlier ones do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Consistent {
    /// In none.
    #[default]
    No,
    /// A write comes after those only that a flush or forced write covers which was acknowledged before.
    Barriers,
    /// A write comes after all that were acknowledged before it was issued.
    Completion,
}

impl Consistent {
    /// Two bits: the lower one for completion, which is all that the first releases knew.
    pub(crate) const fn bits(self) -> u32 {
        match self {
            Self::No => 0,
            Self::Barriers => 2,
            Self::Completion => 1,
        }
    }

    /// Both bits together are not written, and count as the weaker one.
    pub(crate) const fn from_bits(bits: u32) -> Self {
        match bits & 3 {
            0 => Self::No,
            1 => Self::Completion,
            _ => Self::Barriers,
        }
    }
}

/// Consecutive blocks of the volume of which a record says one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First block.
    pub block: BlockNo,
    /// Number of blocks, at least 1.
    pub count: u32,
    /// What is said of them.
    pub kind: ExtentKind,
}

/// The header of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Run that wrote the record.
    pub generation: u64,
    /// Segment in which it lies, in the order of the log.
    pub segment_seq: u64,
    /// Its place in the order of the log.
    pub seq: Seq,
    /// Byte offset of the header in its segment.
    pub offset: u32,
    /// All records up to this one were durable when this one was written.
    pub durable_upto: Seq,
    /// Everything that records up to this one say is on the backing, durably, or superseded.
    pub clean_upto: Seq,
    /// Sequence number of the oldest segment that is part of the log; older ones are free.
    pub tail: u64,
    /// Wall-clock time of the record, nanoseconds since 1970.
    pub time_ns: u64,
    /// The volume stopped cleanly with this record, and the clean copies before it are true.
    pub clean_stop: bool,
    /// How consistent the backing alone was when the record was written, and may be kept by later records.
    pub ordered: Consistent,
    /// How many records back the newest one lies that a write of this record depends on (P4); `u16::MAX` for that many
    /// or more. 0, as older releases wrote it, counts as 1: everything before.
    pub distance: u16,
    /// What the record says, in order; a later extent of the same block counts.
    pub extents: Vec<Extent>,
    /// Checksums of the data blocks, in the order of the extents ([`crate::checksum::block_checksum`]).
    pub checksums: Vec<u32>,
}

/// Header length in bytes of a record with so many extents and data blocks.
pub const fn header_bytes(align: u32, extents: usize, data_blocks: usize) -> usize {
    used_bytes(extents, data_blocks).next_multiple_of(align as usize)
}

/// The same without padding.
const fn used_bytes(extents: usize, data_blocks: usize) -> usize {
    FIXED_BYTES + extents * EXTENT_BYTES + data_blocks * 4
}

impl RecordHeader {
    /// Length of the header in bytes, a multiple of `align`.
    pub fn header_bytes(&self, align: u32) -> usize {
        header_bytes(align, self.extents.len(), self.checksums.len())
    }

    /// Length of header and data in bytes.
    pub fn record_bytes(&self, align: u32) -> usize {
        self.header_bytes(align) + self.checksums.len() * BLOCK_BYTES as usize
    }

    /// Writes the header into `out`, whose length must be [`RecordHeader::header_bytes`].
    ///
    /// # Panics
    /// If `out` has another length.
    pub fn encode(&self, layout: &Layout, out: &mut [u8]) {
        assert_eq!(out.len(), self.header_bytes(layout.align));
        out.fill(0);
        let len = out.len() as u32;
        let mut w = Writer::new(out);
        w.bytes(MAGIC);
        w.skip(4);
        w.u32(len);
        w.bytes(&layout.cache_id);
        w.u64(self.generation);
        w.u64(self.segment_seq);
        w.u64(self.seq.0);
        w.u64(self.durable_upto.0);
        w.u64(self.clean_upto.0);
        w.u64(self.tail);
        w.u64(self.time_ns);
        w.u32(self.offset);
        w.u32(self.checksums.len() as u32);
        w.u32(self.extents.len() as u32);
        w.u32(u32::from(self.clean_stop) | self.ordered.bits() << 1);
        w.u16(self.distance);
        w.skip(6);
        for e in &self.extents {
            write_extent(&mut w, e);
        }
        for c in &self.checksums {
            w.u32(*c);
        }
        let crc = crc_with_hole(out, CRC_AT);
        out[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    }

    /// Whether a record's header may begin here; cheap, to be asked before [`RecordHeader::decode`] in a sweep.
    pub fn may_start(bytes: &[u8]) -> bool {
        bytes.starts_with(MAGIC)
    }

    /// The segment (in the order of the log) that a record's header claims to lie in, unchecked.
    pub fn segment_seq_of(bytes: &[u8]) -> Option<u64> {
        let field = bytes.get(40..48).filter(|_| Self::may_start(bytes))?;
        field.try_into().ok().map(u64::from_le_bytes)
    }

    /// Reads the header of the record at byte `offset` of a segment; `bytes` begins there and may be longer.
    ///
    /// # Errors
    /// [`FormatError::Foreign`] if it belongs to another cache, another segment or lap (`segment_seq`), another
    /// place, or a later run than `layout.generation`; [`FormatError::Field`] if it is whole and makes no sense; other [`FormatError`]s
    /// if it is no header.
    pub fn decode(layout: &Layout, segment_seq: u64, offset: u32, bytes: &[u8]) -> Result<Self, FormatError> {
        let mut r = Reader::new(bytes);
        if r.bytes(8)? != MAGIC {
            return Err(FormatError::Magic);
        }
        let crc = r.u32()?;
        let len = r.u32()? as usize;
        // Nothing is known to be whole before the checksum is computed, and that needs a length.
        if !(FIXED_BYTES..=HEADER_BYTES_MAX).contains(&len) || !len.is_multiple_of(layout.align as usize) {
            return Err(FormatError::Checksum);
        }
        let header = bytes.get(..len).ok_or(FormatError::Truncated)?;
        let mut counts = Reader::new(&header[COUNTS_AT..]);
        let (data_blocks, extents) = (counts.u32()?, counts.u32()?);
        if header_bytes(layout.align, extents as usize, data_blocks as usize) != len {
            return Err(FormatError::Checksum);
        }
        if crc != crc_but_padding(header, used_bytes(extents as usize, data_blocks as usize), CRC_AT) {
            return Err(FormatError::Checksum);
        }
        let mut r = Reader::new(header);
        r.bytes(16)?;
        let cache_id: [u8; 16] = r.array()?;
        let (generation, segment, seq) = (r.u64()?, r.u64()?, r.u64()?);
        let (durable_upto, clean_upto, tail) = (r.u64()?, r.u64()?, r.u64()?);
        let (time_ns, place) = (r.u64()?, r.u32()?);
        // Whose it is comes first: what others have written here may mean anything.
        if cache_id != layout.cache_id
            || generation > layout.generation
            || segment != segment_seq
            || place != offset
        {
            return Err(FormatError::Foreign);
        }
        let mut h = Self {
            generation: counter(generation, "generation")?,
            segment_seq: counter(segment, "segment_seq")?,
            seq: Seq(counter(seq, "seq")?),
            offset,
            durable_upto: Seq(counter(durable_upto, "durable_upto")?),
            clean_upto: Seq(counter(clean_upto, "clean_upto")?),
            tail: counter(tail, "tail")?,
            time_ns,
            clean_stop: false,
            ordered: Consistent::No,
            distance: 0,
            extents: Vec::new(),
            checksums: Vec::new(),
        };
        r.bytes(8)?;
        let flags = r.u32()?;
        (h.clean_stop, h.ordered) = (flags & 1 != 0, Consistent::from_bits(flags >> 1));
        h.distance = r.u16()?;
        r.bytes(6)?;
        h.extents = read_extents(&mut r, extents, data_blocks)?;
        h.checksums = (0..data_blocks).map(|_| r.u32()).collect::<Result<_, _>>()?;
        if h.seq == Seq(0) || h.segment_seq == 0 {
            return Err(FormatError::Field("seq"));
        }
        if u64::from(offset) + h.record_bytes(layout.align) as u64 > u64::from(layout.segment_bytes) {
            return Err(FormatError::Field("record length"));
        }
        Ok(h)
    }
}

pub(crate) fn write_extent(w: &mut Writer<'_>, e: &Extent) {
    w.u64(e.block.0);
    w.u32(e.count);
    w.u32(e.kind as u32);
}

/// Reads `count` extents, which must ask for exactly `data_blocks` data blocks.
pub(crate) fn read_extents(
    r: &mut Reader<'_>,
    count: u32,
    data_blocks: u32,
) -> Result<Vec<Extent>, FormatError> {
    if count > RECORD_EXTENTS_MAX || data_blocks > RECORD_BLOCKS_MAX {
        return Err(FormatError::Field("extent count"));
    }
    let mut extents = Vec::with_capacity(count as usize);
    let mut data = 0u64;
    for _ in 0..count {
        let e = Extent { block: BlockNo(r.u64()?), count: r.u32()?, kind: ExtentKind::from_u32(r.u32()?)? };
        if e.count == 0 || e.block.0 >= BLOCKS_MAX || e.block.0 + u64::from(e.count) > BLOCKS_MAX {
            return Err(FormatError::Field("extent"));
        }
        if e.kind.has_data() {
            data += u64::from(e.count);
        }
        extents.push(e);
    }
    if data != u64::from(data_blocks) {
        return Err(FormatError::Field("data blocks"));
    }
    Ok(extents)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::superblock::tests::sample as superblock;

    pub(crate) fn sample() -> RecordHeader {
        RecordHeader {
            generation: 4,
            segment_seq: 17,
            seq: Seq(1000),
            offset: 512,
            durable_upto: Seq(998),
            clean_upto: Seq(400),
            tail: 11,
            time_ns: 1_700_000_000_000_000_001,
            clean_stop: false,
            ordered: Consistent::Completion,
            distance: 7,
            extents: vec![
                Extent { block: BlockNo(5), count: 2, kind: ExtentKind::Data },
                Extent { block: BlockNo(900), count: 70_000, kind: ExtentKind::Zero },
                Extent { block: BlockNo(77), count: 1, kind: ExtentKind::Supersede },
            ],
            checksums: vec![0x1111_1111, 0x2222_2222],
        }
    }

    #[test]
    fn round_trip_in_both_alignments() {
        for align in [512, 4096] {
            let layout = Layout { align, ..superblock().layout };
            let h = sample();
            let mut bytes = vec![0; h.header_bytes(align)];
            h.encode(&layout, &mut bytes);
            assert_eq!(RecordHeader::decode(&layout, 17, 512, &bytes), Ok(h.clone()));
            assert_eq!(RecordHeader::decode(&layout, 18, 512, &bytes), Err(FormatError::Foreign));
            assert_eq!(RecordHeader::decode(&layout, 17, 1024, &bytes), Err(FormatError::Foreign));
            let earlier_run = Layout { generation: 3, ..layout };
            assert_eq!(RecordHeader::decode(&earlier_run, 17, 512, &bytes), Err(FormatError::Foreign));
            assert_eq!(RecordHeader::decode(&layout, 17, 512, &bytes[..300]), Err(FormatError::Truncated));
        }
    }

    /// Of the padding a power cut may have taken away a part: it says nothing.
    #[test]
    fn every_flipped_bit_is_found_but_for_padding() {
        let layout = superblock().layout;
        let h = sample();
        let mut good = vec![0; h.header_bytes(layout.align)];
        h.encode(&layout, &mut good);
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x01;
            let padding = at >= used_bytes(h.extents.len(), h.checksums.len());
            assert_eq!(RecordHeader::decode(&layout, 17, 512, &bad).is_ok(), padding, "flip at {at}");
        }
    }

    #[test]
    fn what_the_backing_keeps_is_two_bits() {
        use Consistent::{Barriers, Completion, No};
        assert_eq!(
            [0, 1, 2, 3, 4, 5, 6].map(Consistent::from_bits),
            [No, Completion, Barriers, Barriers, No, Completion, Barriers]
        );
        assert_eq!([No, Completion, Barriers].map(Consistent::bits), [0, 1, 2]);
    }

    fn read(extents: &[(u64, u32, u32)], data_blocks: u32) -> Result<usize, FormatError> {
        let bytes: Vec<u8> = extents
            .iter()
            .flat_map(|(block, count, kind)| {
                [&block.to_le_bytes()[..], &count.to_le_bytes(), &kind.to_le_bytes()].concat()
            })
            .collect();
        let read = read_extents(&mut Reader::new(&bytes), extents.len() as u32, data_blocks)?;
        assert!(read.iter().zip(extents).all(|(e, of)| (e.block.0, e.count, e.kind as u32) == *of));
        Ok(read.len())
    }

    #[test]
    fn extents_have_their_limits() {
        let last = BLOCKS_MAX - 1;
        for (extents, data_blocks) in [
            (vec![(0, 1, 1), (last, 1, 2)], 2),
            (vec![(last - 8, 9, 3), (1, 1, 4), (2, 1, 5)], 0),
            (vec![(7, 512, 1)], 512),
            (vec![(7, 1, 3); 1024], 0),
        ] {
            assert_eq!(read(&extents, data_blocks), Ok(extents.len()));
        }
        for (extents, data_blocks, field) in [
            (vec![(7, 1, 3); 1025], 0, "extent count"),
            (vec![(7, 513, 1)], 513, "extent count"),
            (vec![(7, 0, 3)], 0, "extent"),
            (vec![(last, 2, 3)], 0, "extent"),
            (vec![(BLOCKS_MAX, 1, 3)], 0, "extent"),
            (vec![(u64::MAX, 1, 3)], 0, "extent"),
            (vec![(7, 1, 0)], 0, "extent kind"),
            (vec![(7, 1, 6)], 0, "extent kind"),
            (vec![(7, 2, 1)], 1, "data blocks"),
            (vec![(7, 2, 2), (9, 1, 4)], 3, "data blocks"),
        ] {
            assert_eq!(read(&extents, data_blocks), Err(FormatError::Field(field)), "{:?}", extents[0]);
        }
        assert_eq!(read_extents(&mut Reader::new(&[0; 15]), 1, 0), Err(FormatError::Truncated));
    }

    #[test]
    fn a_header_is_known_by_its_first_bytes() {
        let layout = superblock().layout;
        let mut bytes = vec![0; sample().header_bytes(layout.align)];
        sample().encode(&layout, &mut bytes);
        assert_eq!((RecordHeader::may_start(&bytes), RecordHeader::segment_seq_of(&bytes)), (true, Some(17)));
        assert_eq!(
            (RecordHeader::segment_seq_of(&bytes[..48]), RecordHeader::segment_seq_of(&bytes[..47])),
            (Some(17), None)
        );
        bytes[7] ^= 1;
        assert_eq!((RecordHeader::may_start(&bytes), RecordHeader::segment_seq_of(&bytes)), (false, None));
        assert_eq!(RecordHeader::decode(&layout, 17, 512, &bytes), Err(FormatError::Magic));
        assert_eq!(sample().record_bytes(4096), sample().header_bytes(4096) + 2 * 4096);
    }
}
