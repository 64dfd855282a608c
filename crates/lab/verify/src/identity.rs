//! Whose a structure is, before it is known where it belongs.
//!
//! The decoders of the format ask for the place and lap that a structure must have. A verifier also wants to know
//! what lies in a wrong place: it reads the identity from its offset in the spec, then asks the decoder with that.

use forebay_format::Layout;
use forebay_format::record::RecordHeader;
use forebay_format::rules::Impossible;
use forebay_format::segment::SegmentHeader;
use forebay_format::summary::Trailer;

/// Offset of `segment_seq` in record headers and trailers.
const SEGMENT_SEQ_AT: usize = 40;
/// Offset of `offset` in record headers.
const RECORD_OFFSET_AT: usize = 88;
/// Offset of `index` in segment headers.
const SEGMENT_INDEX_AT: usize = 56;
/// Offset of `cache_id` in record headers.
const CACHE_ID_AT: usize = 16;

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_le_bytes(*b))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|b| u64::from_le_bytes(*b))
}

/// The `segment_seq` that a record header or trailer at the start of `bytes` would have.
pub(crate) fn segment_seq(bytes: &[u8]) -> Option<u64> {
    u64_at(bytes, SEGMENT_SEQ_AT)
}

/// The record of this cache whose header lies at `offset` of a segment and is in its place, whatever its lap.
pub(crate) fn record_of_any_lap(layout: &Layout, offset: u32, bytes: &[u8]) -> Option<RecordHeader> {
    RecordHeader::decode(layout, segment_seq(bytes)?, offset, bytes).ok()
}

/// Why what is whole at `offset` of segment `segment_seq` is no record; `None` if it is one, or is not whole, or belongs elsewhere.
pub(crate) fn impossible_record(
    layout: &Layout,
    segment_seq: u64,
    offset: u32,
    bytes: &[u8],
) -> Option<Impossible> {
    RecordHeader::decode(layout, segment_seq, offset, bytes).err().as_ref().and_then(Impossible::of)
}

/// The trailer of this cache at the start of `bytes`, whatever its lap.
pub(crate) fn trailer_of_any_lap(layout: &Layout, bytes: &[u8]) -> Option<Trailer> {
    Trailer::decode(layout, segment_seq(bytes)?, bytes).ok()
}

/// The segment header of this cache at the start of `bytes`, whatever segment and run it is of.
pub(crate) fn header_of_any_place(layout: &Layout, bytes: &[u8]) -> Option<SegmentHeader> {
    let any_run = Layout { generation: u64::MAX, ..*layout };
    SegmentHeader::decode(&any_run, u32_at(bytes, SEGMENT_INDEX_AT)?, bytes).ok()
}

/// Whether `bytes` begin with a damaged or torn header of the record that belongs at `offset` of segment
/// `segment_seq`: most of what identifies it is right, but it does not decode. A whole record of an earlier lap is none.
pub(crate) fn resembles_record(layout: &Layout, segment_seq: u64, offset: u32, bytes: &[u8]) -> bool {
    if record_of_any_lap(layout, offset, bytes).is_some() {
        return false;
    }
    let cache_id = bytes.get(CACHE_ID_AT..).is_some_and(|b| b.starts_with(&layout.cache_id));
    let marks = [
        RecordHeader::may_start(bytes),
        cache_id,
        u64_at(bytes, SEGMENT_SEQ_AT) == Some(segment_seq),
        u32_at(bytes, RECORD_OFFSET_AT) == Some(offset),
    ];
    marks.iter().filter(|m| **m).count() >= 3
}
