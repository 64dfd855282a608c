//! `forebay inspect`: what lies where in an image, and the history of a block.

use std::collections::{BTreeSet, VecDeque};
use std::io;

use forebay_block::BLOCK_BYTES;
use forebay_format::superblock::SUPERBLOCK_OFFSETS;
use forebay_format::{COUNTER_MAX, Layout, label, logical_block, record, superblock};
use serde::Serialize;

use crate::Source;
use crate::chain::{Visitor, follow};
use crate::check::CheckError;
use crate::contents::Contents;
use crate::finding::{Finding, Findings};
use crate::history::{BlockHistory, HistoryBuilder};
use crate::image::Image;
use crate::records::{RecordView, SegmentRecords};
use crate::report::{Geometry, Identity, UseState};
use crate::superblocks::Copies;
use crate::survey::{HeaderOrigin, SegmentInfo, Survey};

/// Records that an inspection shows unless told otherwise: the newest of the log.
pub const RECORDS_SHOWN: usize = 50;

/// What to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InspectOptions {
    /// Tell the history of this block of the volume.
    pub block: Option<u64>,
    /// Most records to list, the newest ones.
    pub records_max: usize,
}

impl Default for InspectOptions {
    fn default() -> Self {
        Self { block: None, records_max: RECORDS_SHOWN }
    }
}

/// A constant of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Constant {
    /// Its name, as in the specification.
    pub name: &'static str,
    /// Its value.
    pub value: u64,
}

/// A copy of the superblock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SuperblockRow {
    /// Byte offset in the image.
    pub offset: u64,
    /// Why it is not valid; absent if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Counts updates.
    pub update: u64,
    /// Number of the latest run.
    pub generation: u64,
    /// The latest run stopped cleanly.
    pub clean_stop: bool,
}

/// What a segment is to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SegmentUse {
    /// Part of the log.
    Live,
    /// Holds records that are no longer part of the log.
    Free,
    /// Behind the end of the log: left over from writes that were torn.
    Leftover,
    /// Never written, or nothing in it is known.
    Empty,
}

/// A physical segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SegmentRow {
    /// Physical number.
    pub index: u32,
    /// Byte offset in the image.
    pub offset: u64,
    /// What it is to the log.
    #[serde(rename = "use")]
    pub segment_use: SegmentUse,
    /// Its header is valid.
    pub header_valid: bool,
    /// Number in the order of the log; 0 if it has none.
    pub segment_seq: u64,
    /// Run that opened it.
    pub generation: u64,
    /// Sequence number of its first record; 0 if it has none.
    pub first_seq: u64,
    /// Number of its records, if it was read or has a trailer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub records: Option<u64>,
    /// It has a trailer.
    pub sealed: bool,
}

/// Consecutive blocks in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ExtentRow {
    /// First block.
    pub block: u64,
    /// Number of blocks.
    pub count: u32,
    /// What the record says of them.
    pub kind: &'static str,
}

/// A record of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecordRow {
    /// Sequence number.
    pub seq: u64,
    /// Run that wrote it.
    pub generation: u64,
    /// Physical segment.
    pub segment: u32,
    /// Byte offset of its header in the image.
    pub offset: u64,
    /// Bytes of header and data.
    pub bytes: u64,
    /// Time, nanoseconds since 1970.
    pub time_ns: u64,
    /// Records up to this one were durable when it was written.
    pub durable_upto: u64,
    /// What records up to this one say is on the backing.
    pub clean_upto: u64,
    /// Oldest segment of the log when it was written.
    pub tail: u64,
    /// The volume stopped cleanly with it.
    pub clean_stop: bool,
    /// Its header is damaged; what is shown comes from the segment's summary.
    pub damaged: bool,
    /// Data blocks that do not match their checksums.
    pub bad_blocks: u64,
    /// What it says.
    pub extents: Vec<ExtentRow>,
}

/// What lies where in an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Inspection {
    /// Constants of the format.
    pub constants: Vec<Constant>,
    /// The copies of the superblock.
    pub superblocks: Vec<SuperblockRow>,
    /// Whose the cache is.
    pub identity: Identity,
    /// Where things lie.
    pub geometry: Geometry,
    /// What the cache is to its volume.
    pub state: UseState,
    /// All segments by their place.
    pub segments: Vec<SegmentRow>,
    /// The newest records of the log, oldest first.
    pub records: Vec<RecordRow>,
    /// Older records of the log that are not listed.
    pub records_left_out: u64,
    /// The history of the block that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history: Option<BlockHistory>,
}

/// The constants of the format, as the specification names them.
pub fn constants() -> Vec<Constant> {
    let list = [
        ("SUPERBLOCK_BYTES", superblock::SUPERBLOCK_BYTES as u64),
        ("SUPERBLOCK_OFFSET_A", SUPERBLOCK_OFFSETS[0]),
        ("SUPERBLOCK_OFFSET_B", SUPERBLOCK_OFFSETS[1]),
        ("FORMAT_VERSION", superblock::FORMAT_VERSION.into()),
        ("FORMAT_VERSION_LOGICAL_BLOCK", superblock::FORMAT_VERSION_LOGICAL_BLOCK.into()),
        ("LOGICAL_BLOCK_MIN", logical_block::LOGICAL_BLOCK_MIN.into()),
        ("LOGICAL_BLOCK_MAX", logical_block::LOGICAL_BLOCK_MAX.into()),
        ("SEGMENTS_OFFSET", Layout::SEGMENTS_OFFSET),
        ("SEGMENT_BYTES_MIN", Layout::SEGMENT_BYTES_MIN.into()),
        ("SEGMENT_BYTES_MAX", Layout::SEGMENT_BYTES_MAX.into()),
        ("SEGMENT_COUNT_MIN", Layout::SEGMENT_COUNT_MIN.into()),
        ("SEGMENT_COUNT_MAX", Layout::SEGMENT_COUNT_MAX.into()),
        ("FIXED_BYTES", record::FIXED_BYTES as u64),
        ("EXTENT_BYTES", record::EXTENT_BYTES as u64),
        ("RECORD_BLOCKS_MAX", record::RECORD_BLOCKS_MAX.into()),
        ("RECORD_EXTENTS_MAX", record::RECORD_EXTENTS_MAX.into()),
        ("HEADER_BYTES_MAX", record::HEADER_BYTES_MAX as u64),
        ("SEGMENT_BLOCKS_MAX", forebay_format::rules::SEGMENT_BLOCKS_MAX),
        ("BLOCKS_MAX", record::BLOCKS_MAX),
        ("COUNTER_MAX", COUNTER_MAX),
        ("LABEL_VERSION", label::LABEL_VERSION.into()),
        ("LABEL_VERSION_LOGICAL_BLOCK", label::LABEL_VERSION_LOGICAL_BLOCK.into()),
        ("LABEL_COPY_BYTES", label::LABEL_COPY_BYTES as u64),
        ("LABEL_BYTES", label::LABEL_BYTES as u64),
    ];
    list.map(|(name, value)| Constant { name, value }).to_vec()
}

pub(crate) const fn kind_name(kind: record::ExtentKind) -> &'static str {
    match kind {
        record::ExtentKind::Data => "data",
        record::ExtentKind::Clean => "clean",
        record::ExtentKind::Zero => "zero",
        record::ExtentKind::Supersede => "supersede",
        record::ExtentKind::Poison => "poison",
    }
}

struct Inspector<'a> {
    layout: &'a Layout,
    records_max: usize,
    records: VecDeque<RecordRow>,
    left_out: u64,
    /// Segments of the log, and how many records they hold.
    live: Vec<(u32, u64)>,
    history: Option<HistoryBuilder>,
}

impl Visitor for Inspector<'_> {
    fn segment(&mut self, segment: &SegmentInfo, records: &SegmentRecords) {
        self.live.push((segment.index, records.records.len() as u64));
        if let Some(history) = &mut self.history {
            history.segment(self.layout, segment, records);
        }
    }

    fn record(&mut self, segment: &SegmentInfo, view: &RecordView) {
        if let Some(history) = &mut self.history {
            history.record(segment, view);
        }
        if self.records.len() >= self.records_max {
            self.records.pop_front();
            self.left_out += 1;
        }
        if self.records_max > 0 {
            self.records.push_back(row_of(self.layout, segment, view));
        }
    }

    fn finding(&mut self, _: Finding) {}
}

fn row_of(layout: &Layout, segment: &SegmentInfo, view: &RecordView) -> RecordRow {
    let h = &view.header;
    let extents =
        h.extents.iter().map(|e| ExtentRow { block: e.block.0, count: e.count, kind: kind_name(e.kind) });
    RecordRow {
        seq: h.seq.0,
        generation: h.generation,
        segment: segment.index,
        offset: layout.segment_offset(segment.index) + u64::from(h.offset),
        bytes: view.end() - u64::from(h.offset),
        time_ns: h.time_ns,
        durable_upto: h.durable_upto.0,
        clean_upto: h.clean_upto.0,
        tail: h.tail,
        clean_stop: h.clean_stop,
        damaged: view.damage.is_some(),
        bad_blocks: view.bad.len() as u64,
        extents: extents.collect(),
    }
}

/// Looks at the cache image in `source`.
///
/// # Errors
/// [`CheckError`] if there is no cache in it.
pub fn inspect(source: &dyn Source, options: &InspectOptions) -> Result<Inspection, CheckError> {
    let mut image = Image::new(source)?;
    let copies = Copies::read(&mut image)?;
    let superblock = copies.newest()?;
    let layout = &superblock.layout;
    let last = superblock.volume_bytes.div_ceil(BLOCK_BYTES).saturating_sub(1);
    if let Some(block) = options.block.filter(|block| *block > last) {
        return Err(CheckError::NoBlock { block, last });
    }
    let survey = Survey::take(&mut image, &superblock, &mut Findings::default())?;
    let contents = Contents::new(survey.clean_upto);
    let mut inspector = Inspector {
        layout,
        records_max: options.records_max,
        records: VecDeque::new(),
        left_out: 0,
        live: Vec::new(),
        history: options.block.map(|block| HistoryBuilder::new(block, contents)),
    };
    let end = follow(&mut image, &superblock, &survey, &mut inspector)?;
    let clean_believed = superblock.clean_stop && end.clean_stop();
    let segments = segment_rows(layout, &survey, &inspector.live);
    let history = match inspector.history {
        Some(builder) => {
            Some(complete(&mut image, layout, &survey, &segments, builder)?.finish(clean_believed))
        }
        None => None,
    };
    Ok(Inspection {
        constants: constants(),
        superblocks: superblock_rows(&copies),
        identity: Identity::of(&superblock),
        geometry: Geometry::of(&superblock, image.size),
        state: UseState::of(superblock.state),
        segments,
        records: inspector.records.into(),
        records_left_out: inspector.left_out,
        history,
    })
}

/// Adds what segments outside of the log say of the block.
fn complete(
    image: &mut Image<'_>,
    layout: &Layout,
    survey: &Survey,
    rows: &[SegmentRow],
    mut history: HistoryBuilder,
) -> io::Result<HistoryBuilder> {
    let live = rows.iter().filter(|r| r.segment_use == SegmentUse::Live);
    let live: BTreeSet<u32> = live.map(|r| r.index).collect();
    let mut bytes = Vec::new();
    for segment in survey.others.iter().chain(&survey.log).filter(|s| !live.contains(&s.index)) {
        image.read_segment(layout, segment.index, &mut bytes)?;
        let records = SegmentRecords::read(layout, segment, &bytes);
        history.segment(layout, segment, &records);
    }
    Ok(history)
}

fn superblock_rows(copies: &Copies) -> Vec<SuperblockRow> {
    let rows = copies.copies.iter().zip(SUPERBLOCK_OFFSETS);
    rows.map(|(copy, offset)| SuperblockRow {
        offset,
        error: copy.as_ref().err().map(ToString::to_string),
        update: copy.as_ref().map_or(0, |s| s.update),
        generation: copy.as_ref().map_or(0, |s| s.layout.generation),
        clean_stop: copy.as_ref().is_ok_and(|s| s.clean_stop),
    })
    .collect()
}

fn segment_rows(layout: &Layout, survey: &Survey, live: &[(u32, u64)]) -> Vec<SegmentRow> {
    let mut rows: Vec<SegmentRow> = (0..layout.segment_count)
        .map(|index| SegmentRow {
            index,
            offset: layout.segment_offset(index),
            segment_use: SegmentUse::Empty,
            header_valid: false,
            segment_seq: 0,
            generation: 0,
            first_seq: 0,
            records: None,
            sealed: false,
        })
        .collect();
    for (segment, not_live) in survey
        .log
        .iter()
        .map(|s| (s, SegmentUse::Leftover))
        .chain(survey.others.iter().map(|s| (s, SegmentUse::Free)))
    {
        let Some(row) = rows.get_mut(segment.index as usize) else {
            continue;
        };
        row.segment_use = not_live;
        row.header_valid = segment.origin == HeaderOrigin::Medium;
        row.segment_seq = segment.header.segment_seq;
        row.generation = segment.header.generation;
        row.first_seq = segment.header.first_seq.0;
        row.records = segment.trailer.map(|t| u64::from(t.records));
        row.sealed = segment.trailer.is_some();
    }
    for (index, records) in live {
        if let Some(row) = rows.get_mut(*index as usize) {
            row.segment_use = SegmentUse::Live;
            row.records = Some(*records);
        }
    }
    rows
}
