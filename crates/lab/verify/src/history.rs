//! The history of one block: each record that mentions it.

use forebay_format::Layout;
use forebay_format::record::RecordHeader;
use serde::Serialize;

use crate::contents::{BlockState, Contents};
use crate::inspect::kind_name;
use crate::records::{RecordView, SegmentRecords};
use crate::survey::SegmentInfo;

/// Most mentions of a block that are listed.
pub const MENTIONS_MAX: usize = 10_000;

/// A record's word on a block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mention {
    /// Sequence number of the record.
    pub seq: u64,
    /// Run that wrote it.
    pub generation: u64,
    /// Physical segment.
    pub segment: u32,
    /// Byte offset of the record's header in the image.
    pub offset: u64,
    /// What it says: `data`, `clean`, `zero`, `supersede` or `poison`.
    pub kind: &'static str,
    /// Time, nanoseconds since 1970.
    pub time_ns: u64,
    /// Byte offset of the data in the image, if it carries any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_offset: Option<u64>,
    /// Whether the data matches its checksum, if it carries any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checksum_ok: Option<bool>,
    /// The record is part of the log; else it lies in a free segment or behind the log's end.
    pub in_log: bool,
    /// This is what a read of the block is answered from.
    pub current: bool,
}

/// All that the image says of a block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BlockHistory {
    /// The block of the volume.
    pub block: u64,
    /// What is current: `dirty`, `zero`, `poison`, `superseded`, `clean`, or `backing` if the cache has nothing of it.
    pub state: &'static str,
    /// Each record that mentions it, oldest first.
    pub mentions: Vec<Mention>,
    /// Mentions that are not listed because there are too many.
    pub mentions_left_out: u64,
}

pub(crate) struct HistoryBuilder {
    block: u64,
    contents: Contents,
    mentions: Vec<Mention>,
    left_out: u64,
}

impl HistoryBuilder {
    /// A history of `block`; `contents` is empty and knows what is destaged.
    pub(crate) fn new(block: u64, contents: Contents) -> Self {
        Self { block, contents, mentions: Vec::new(), left_out: 0 }
    }

    /// Notes what any record in a segment says of the block; none is part of the log yet.
    pub(crate) fn segment(&mut self, layout: &Layout, segment: &SegmentInfo, records: &SegmentRecords) {
        let base = layout.segment_offset(segment.index);
        for view in &records.records {
            let h = &view.header;
            let mut data = view.data_blocks();
            for e in &h.extents {
                let mut place = None;
                if e.kind.has_data() {
                    for (block, _, at, _) in data.by_ref().take(e.count as usize) {
                        if block.0 == self.block {
                            place = Some(at);
                        }
                    }
                }
                if !self.concerns(e.block.0, e.count) {
                    continue;
                }
                if self.mentions.len() >= MENTIONS_MAX {
                    self.left_out += 1;
                    continue;
                }
                self.mentions.push(Mention {
                    seq: h.seq.0,
                    generation: h.generation,
                    segment: segment.index,
                    offset: base + u64::from(h.offset),
                    kind: kind_name(e.kind),
                    time_ns: h.time_ns,
                    data_offset: place.map(|at| base + at),
                    checksum_ok: place.map(|at| !view.bad.iter().any(|b| u64::from(b.offset) == at)),
                    in_log: false,
                    current: false,
                });
            }
        }
    }

    /// A record of the log, whose segment was noted before.
    pub(crate) fn record(&mut self, segment: &SegmentInfo, view: &RecordView) {
        let h = &view.header;
        let extents = h.extents.iter().filter(|e| self.concerns(e.block.0, e.count));
        let concerned =
            RecordHeader { extents: extents.copied().collect(), checksums: Vec::new(), ..h.clone() };
        if concerned.extents.is_empty() {
            return;
        }
        self.contents.apply(&concerned);
        let mentions = self.mentions.iter_mut().rev();
        for mention in mentions.filter(|m| m.seq == h.seq.0 && m.segment == segment.index) {
            mention.in_log = true;
        }
    }

    fn concerns(&self, block: u64, count: u32) -> bool {
        (block..block + u64::from(count)).contains(&self.block)
    }

    /// The history; a clean copy is current only if such are believed.
    pub(crate) fn finish(mut self, clean_believed: bool) -> BlockHistory {
        let run = self.contents.get(self.block);
        let run = run.filter(|r| clean_believed || r.state != BlockState::Clean);
        if let Some(run) = run {
            let mut of_run = self.mentions.iter_mut().rev().filter(|m| m.in_log);
            if let Some(mention) = of_run.find(|m| m.seq == run.seq.0) {
                mention.current = run.state != BlockState::Superseded;
            }
        }
        let state = match run.map(|r| r.state) {
            None => "backing",
            Some(BlockState::Dirty) => "dirty",
            Some(BlockState::Zero) => "zero",
            Some(BlockState::Poison) => "poison",
            Some(BlockState::Superseded) => "superseded",
            Some(BlockState::Clean) => "clean",
        };
        self.mentions.sort_by_key(|m| (m.seq, m.generation));
        BlockHistory { block: self.block, state, mentions: self.mentions, mentions_left_out: self.left_out }
    }
}
