//! Reading a segment: its header, its trailer, and all of its records.
//!
//! ```text
//!  records in place, number and run:   ▣ ▣ ▣ │ ▢ ▣ ▣ │ · · ·
//!                                      entries │ doubtful│ nothing that follows
//! ```
//!
//! 1. A record counts if it follows the one before in place, number and run, and its data is as it was written.
//! 2. The first whose data does not match, and all behind it, are *doubtful*: torn, and so the log's end, or damaged later. Which of the
//!    two it is, others prove ([`Scan::accept_proven`], [`Scan::end_before`]).

use std::collections::VecDeque;

use forebay_block::Seq;
use forebay_format::checksum::block_checksum;
use forebay_format::record::{Extent, HEADER_BYTES_MAX, RecordHeader};
use forebay_format::rules::{Impossible, Rules};
use forebay_format::segment::SegmentHeader;
use forebay_format::summary::{SummaryEntry, Trailer};
use forebay_format::{FormatError, Layout};

use crate::mutation::{Mutation, Planted};

/// Bytes read of a segment's beginning: its header, and that of its first record unless it is a long one.
pub(super) const HEAD_BYTES: usize = 8192;
/// As much as it takes, for a segment whose header is damaged and whose first record has a long one.
pub(super) const HEAD_BYTES_MAX: usize = HEADER_BYTES_MAX + 4096;
/// Bytes read of a segment's end: its trailer, in either alignment.
pub(super) const TRAILER_BYTES: usize = 4096;

/// What reading a segment through has found.
pub(super) struct Scan {
    pub(super) entries: Vec<(RecordHeader, SummaryEntry)>,
    /// Byte offset behind the last record that counts.
    pub(super) end: u32,
    /// Whether something that looks like the next record is there, torn.
    pub(super) torn: bool,
    /// The first record whose data does not match, and all that follow it.
    doubtful: VecDeque<Doubt>,
    /// A doubtful record has been accepted.
    accepted: bool,
    pub(super) swept: Swept,
}

/// What all records of a segment say, wherever they stand.
#[derive(Clone, Copy, Default)]
pub(super) struct Swept {
    /// What the last run's records say.
    pub(super) proof: Proof,
    /// Run and number of the newest record.
    pub(super) newest: (u64, Seq),
    /// The first one that says of itself what cannot be, and its byte offset.
    pub(super) impossible: Option<(u32, Impossible)>,
}

/// A run, and up to which record it knew the log to be durable. The later run's word counts: it has seen where the log ended, and has used
/// the numbers behind anew.
pub(super) type Proof = (u64, Seq);

/// A record at or behind one whose data does not match: torn, and so the log's end, or damaged later.
struct Doubt {
    header: RecordHeader,
    entry: SummaryEntry,
    /// Byte offset behind it.
    end: u32,
    matches: bool,
}

impl Scan {
    /// A later run has found the log's end before these doubtful records, opened the next segment and used their
    /// numbers again: they were torn, whatever is proven of the numbers.
    pub(super) fn end_before(&mut self, next: &SegmentHeader) {
        let over = |d: &Doubt| d.header.seq >= next.first_seq && d.header.generation < next.generation;
        if let Some(n) = self.doubtful.iter().position(over) {
            self.doubtful.truncate(n);
        }
    }

    /// Takes doubtful records after all, as far as they were durable according to `proof`: a data block that does not
    /// match is damage then, which reads will find, and not the end of the log. What follows such a record whole
    /// counts too, as it would behind a good one.
    pub(super) fn accept_proven(&mut self, proof: Seq) {
        while self.doubtful.front().is_some_and(|d| d.header.seq <= proof || (d.matches && self.accepted)) {
            if let Some(doubt) = self.doubtful.pop_front() {
                self.accepted = true;
                self.end = doubt.end;
                self.entries.push((doubt.header, doubt.entry));
            }
        }
        self.torn &= !(self.accepted && self.doubtful.is_empty());
    }
}

/// The header of a segment. If it is damaged, what it says follows from the segment's first record. A whole header of
/// another place came here with its records by a misdirected write: they are of no use. One that says what cannot be is no damage that
/// anything makes good.
///
/// # Errors
/// [`FormatError::Truncated`] if `data` has too little of the first record; others if the segment is of no use.
pub(super) fn segment_header(layout: &Layout, index: u32, data: &[u8]) -> Result<SegmentHeader, FormatError> {
    match SegmentHeader::decode(layout, index, data) {
        Err(error @ (FormatError::Foreign | FormatError::Field(_))) => return Err(error),
        Ok(header) => return Ok(header),
        Err(_) => {}
    }
    let rest = data.get(layout.align as usize..).ok_or(FormatError::Truncated)?;
    let segment_seq = RecordHeader::segment_seq_of(rest).ok_or(FormatError::Magic)?;
    let first = RecordHeader::decode(layout, segment_seq, layout.align, rest)?;
    Ok(SegmentHeader { generation: first.generation, segment_seq, first_seq: first.seq, index })
}

/// The trailer of a segment, which `data` ends with; not that of an earlier run whose segment of this number was lost. And whether it says
/// what can be.
pub(super) fn segment_trailer(
    layout: &Layout,
    segment: &SegmentHeader,
    data: &[u8],
) -> (Option<Trailer>, Result<(), Impossible>) {
    let at = data.len().saturating_sub(layout.align as usize);
    match Trailer::decode(layout, segment.segment_seq, &data[at..]) {
        Ok(t) if t.first_seq == segment.first_seq && t.generation >= segment.generation => {
            (Some(t), Rules::trailer_alone(&t))
        }
        Ok(_) => (None, Ok(())),
        Err(error) => (None, Impossible::of(&error).map_or(Ok(()), Err)),
    }
}

/// Reads a segment through. The records that count are those that follow each other without a gap, in place,
/// number and run, and whose data is as it was written.
pub(super) fn scan_segment(
    layout: &Layout,
    rules: Rules,
    segment: &SegmentHeader,
    data: &[u8],
    planted: Planted,
) -> Scan {
    let mut scan = Scan {
        entries: Vec::new(),
        end: layout.align,
        torn: false,
        doubtful: VecDeque::new(),
        accepted: false,
        swept: sweep(layout, rules, segment.segment_seq, data),
    };
    let (mut at, mut seq, mut generation) = (layout.align, segment.first_seq, segment.generation);
    let mut in_doubt = false;
    while let Some(rest) = data.get(at as usize..) {
        let any_lap = planted.is(Mutation::AcceptsEarlierLap);
        let lap = RecordHeader::segment_seq_of(rest).filter(|_| any_lap).unwrap_or(segment.segment_seq);
        let Ok(header) = RecordHeader::decode(layout, lap, at, rest) else {
            scan.torn |= RecordHeader::may_start(rest);
            break;
        };
        let end = at as usize + header.record_bytes(layout.align);
        let earlier_run = header.generation < generation && !planted.is(Mutation::AcceptsEarlierRun);
        if (header.seq != seq || earlier_run) && !any_lap || end > data.len() {
            break;
        }
        let header_bytes = header.header_bytes(layout.align) as u32;
        let matches = data_matches(&header, &data[(at + header_bytes) as usize..end]);
        let matches = matches || planted.is(Mutation::AcceptsTorn);
        in_doubt |= !matches;
        let entry = SummaryEntry {
            offset: at,
            header_bytes,
            distance: header.distance,
            extents: header.extents.clone(),
            checksums: header.checksums.clone(),
        };
        generation = header.generation;
        at = end as u32;
        seq = seq.next();
        if in_doubt {
            scan.torn = true;
            scan.doubtful.push_back(Doubt { header, entry, end: at, matches });
        } else {
            scan.end = at;
            scan.entries.push((header, entry));
        }
    }
    if planted.is(Mutation::IgnoresLastRecord)
        && let Some((_, last)) = scan.entries.pop()
    {
        scan.end = last.offset;
    }
    scan
}

/// What the records of the segment say, whether or not the log reaches them.
pub(super) fn sweep(layout: &Layout, rules: Rules, segment_seq: u64, data: &[u8]) -> Swept {
    let mut swept = Swept::default();
    let align = layout.align as usize;
    for at in (align..data.len()).step_by(align) {
        let broken = match RecordHeader::decode(layout, segment_seq, at as u32, &data[at..]) {
            Ok(h) => {
                swept.proof = swept.proof.max((h.generation, h.durable_upto));
                swept.newest = swept.newest.max((h.generation, h.seq));
                rules.record_alone(&h).err()
            }
            Err(error) => Impossible::of(&error),
        };
        swept.impossible = swept.impossible.or(broken.map(|what| (at as u32, what)));
    }
    swept
}

fn data_matches(header: &RecordHeader, data: &[u8]) -> bool {
    let blocks = header
        .extents
        .iter()
        .filter(|e: &&Extent| e.kind.has_data())
        .flat_map(|e| (0..u64::from(e.count)).map(|n| e.block.plus(n)));
    blocks
        .zip(data.chunks_exact(4096))
        .zip(&header.checksums)
        .all(|((block, data), sum)| block_checksum(block, header.seq, data) == *sum)
}

#[cfg(test)]
mod tests {
    use forebay_block::BlockNo;
    use forebay_format::record::{Consistent, ExtentKind};

    use super::*;

    #[test]
    fn a_damaged_segment_header_follows_from_a_first_record_however_long() {
        let layout =
            Layout { cache_id: [7; 16], generation: 3, align: 512, segment_bytes: 8 << 20, segment_count: 8 };
        for blocks in [1u32, 500] {
            let record = RecordHeader {
                generation: 2,
                segment_seq: 17,
                seq: Seq(400),
                offset: 512,
                durable_upto: Seq(0),
                clean_upto: Seq(0),
                tail: 1,
                time_ns: 0,
                clean_stop: false,
                ordered: Consistent::No,
                distance: 0,
                extents: (0..blocks)
                    .map(|n| Extent { block: BlockNo(u64::from(n) * 2), count: 1, kind: ExtentKind::Data })
                    .collect(),
                checksums: vec![0; blocks as usize],
            };
            let mut data = vec![0; HEAD_BYTES_MAX];
            let len = record.header_bytes(512);
            record.encode(&layout, &mut data[512..512 + len]);
            let short = segment_header(&layout, 4, &data[..HEAD_BYTES]).map(|h| h.first_seq);
            assert_eq!(short, if blocks == 1 { Ok(Seq(400)) } else { Err(FormatError::Truncated) });
            let mut forged = data.clone();
            RecordHeader { seq: Seq(0), ..record }.encode(&layout, &mut forged[512..512 + len]);
            assert_eq!(segment_header(&layout, 4, &forged), Err(FormatError::Field("seq")));
            let header = SegmentHeader { generation: 2, segment_seq: 17, first_seq: Seq(400), index: 4 };
            assert_eq!(segment_header(&layout, 4, &data), Ok(header));
            let elsewhere = SegmentHeader { index: 5, ..header };
            elsewhere.encode(&layout, &mut data);
            assert_eq!(segment_header(&layout, 4, &data), Err(FormatError::Foreign), "it went astray");
        }
    }
}
