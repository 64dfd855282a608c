//! What a check finds.

use serde::Serialize;

/// Most findings that a report lists; further ones are counted and judged, not described.
pub const FINDINGS_MAX: usize = 1000;

/// How bad a finding is; the worst one is the verdict of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Nothing was found.
    #[default]
    Ok,
    /// What a power cut or a killed process leaves behind; nothing that was acknowledged is concerned.
    Note,
    /// Something is damaged, but everything that it said is known from elsewhere: no data is lost.
    Recoverable,
    /// Acknowledged data is damaged or missing, or cannot be told apart from such.
    Corruption,
}

impl Severity {
    /// The word used in texts and in JSON.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Recoverable => "recoverable",
            Self::Corruption => "corruption",
        }
    }
}

/// What kind of thing was found; the names are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// A copy of the superblock is damaged.
    SuperblockDamaged,
    /// The copies of the superblock are not the same, or older than the log.
    SuperblockDisagrees,
    /// The image is shorter than its superblock says.
    ImageTruncated,
    /// The medium could not be read at a place.
    Unreadable,
    /// The cache was released or retired: its log means nothing any more.
    LogVoid,
    /// A segment's header is damaged, or lies in the wrong segment.
    SegmentHeaderDamaged,
    /// A segment of the log is missing.
    SegmentMissing,
    /// A record that was durable is damaged or missing.
    RecordDamaged,
    /// A data block does not match its checksum.
    DataDamaged,
    /// A segment's summary is damaged.
    SummaryDamaged,
    /// A segment's summary was not written, or only in part.
    SummaryMissing,
    /// A segment's summary says something else than its records.
    SummaryDisagrees,
    /// The last writes of the log are torn; they were never acknowledged.
    TornTail,
    /// The cache was stopped cleanly, but the log does not end so.
    CleanStopBroken,
    /// A record says something that cannot be, although its checksum matches.
    ImpossibleValue,
}

/// One thing that a check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What kind of thing it is.
    pub kind: FindingKind,
    /// Byte offset in the image.
    pub offset: u64,
    /// Physical number of the segment, if it lies in one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub segment: Option<u32>,
    /// Sequence number of the record, if it concerns one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// First block of the volume that is concerned, if it is about data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block: Option<u64>,
    /// One sentence for a person.
    pub message: String,
}

impl Finding {
    /// A finding at byte `offset` of the image.
    pub(crate) fn new(
        severity: Severity,
        kind: FindingKind,
        offset: u64,
        message: impl Into<String>,
    ) -> Self {
        Self { severity, kind, offset, segment: None, seq: None, block: None, message: message.into() }
    }

    pub(crate) fn in_segment(mut self, index: u32) -> Self {
        self.segment = Some(index);
        self
    }

    pub(crate) fn of_record(mut self, seq: u64) -> Self {
        self.seq = Some(seq);
        self
    }

    pub(crate) fn of_block(mut self, block: u64) -> Self {
        self.block = Some(block);
        self
    }
}

/// Findings in the order in which they were made, at most [`FINDINGS_MAX`] of them.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) list: Vec<Finding>,
    pub(crate) left_out: u64,
    pub(crate) worst: Severity,
}

impl Findings {
    /// Adds one; what says what cannot be is met by the survey and along the chain, and counts once.
    pub(crate) fn push(&mut self, finding: Finding) {
        let known = |f: &Finding| (f.kind, f.offset) == (FindingKind::ImpossibleValue, finding.offset);
        if finding.kind == FindingKind::ImpossibleValue && self.list.iter().any(known) {
            return;
        }
        self.worst = self.worst.max(finding.severity);
        if self.list.len() < FINDINGS_MAX {
            self.list.push(finding);
        } else {
            self.left_out += 1;
        }
    }
}
