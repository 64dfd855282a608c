//! The report of a check, and its text.

use std::fmt;

use forebay_block::{BLOCK_BYTES, size};
use forebay_format::logical_block::LOGICAL_BLOCK_MIN;
use forebay_format::superblock::{CacheState, FORMAT_VERSION, FORMAT_VERSION_LOGICAL_BLOCK, Superblock};
use serde::Serialize;

use crate::finding::{Finding, Severity};

/// What a cache is to its volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UseState {
    /// Paired with its backing.
    Paired,
    /// Removed for good from its volume.
    Released,
    /// Failed a write; its log is void.
    Retired,
}

/// Whose the cache is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Identity {
    /// Random identity of the cache, in hexadecimal.
    pub cache_id: String,
    /// Random identity of the backing, in hexadecimal.
    pub backing_id: String,
    /// Path or URL of the backing when they were paired.
    pub backing_name: String,
    /// The backing carries a label; if not, `fingerprint` identifies it.
    pub has_label: bool,
    /// What identifies a backing without a label; empty otherwise.
    pub fingerprint: String,
    /// Size of the volume in bytes.
    pub volume_bytes: u64,
    /// Logical block of the volume in bytes, as its clients are told.
    pub logical_block_bytes: u32,
    /// Time of `forebay format`, nanoseconds since 1970.
    pub created_ns: u64,
}

/// Where things lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Geometry {
    /// Version of the format.
    pub format_version: u32,
    /// Size of the image in bytes.
    pub image_bytes: u64,
    /// Bytes that the cache uses.
    pub cache_bytes: u64,
    /// Alignment in the log in bytes.
    pub align: u32,
    /// Size of a segment in bytes.
    pub segment_bytes: u32,
    /// Number of segments.
    pub segment_count: u32,
}

/// Figures of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LogFigures {
    /// Number of the log's oldest segment, in the order of the log; 0 if the log is empty.
    pub tail: u64,
    /// Segments of which the log consists.
    pub segments_live: u64,
    /// Segments of the log with a valid summary.
    pub segments_sealed: u64,
    /// Segments that are not part of the log.
    pub segments_free: u64,
    /// Records in the log.
    pub records: u64,
    /// Sequence number of the log's first record; 0 if it is empty.
    pub first_seq: u64,
    /// Sequence number of the log's last record; 0 if it is empty.
    pub last_seq: u64,
    /// All records up to this one are proven to have been durable.
    pub durable_upto: u64,
    /// What records up to this one say is on the backing.
    pub clean_upto: u64,
    /// Whole records behind the end of the log, left over from writes that were torn.
    pub records_torn: u64,
    /// Data blocks whose checksums were computed.
    pub data_blocks: u64,
    /// Time of the last record, nanoseconds since 1970; 0 if the log is empty.
    pub time_last_ns: u64,
}

/// Blocks of the volume by what the log says of them, as recovery would see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BlockCounts {
    /// Data that the backing may lack.
    pub dirty: u64,
    /// Zeroes that the backing may lack.
    pub zero: u64,
    /// Lost to a damaged medium: reading them is an error.
    pub poison: u64,
    /// Older records of them are void; the backing has newer data.
    pub superseded: u64,
    /// Copies of what the backing has; counted only after a clean stop, else not believed.
    pub clean: u64,
}

/// Outcome of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The worst of the findings.
    pub verdict: Severity,
    /// Whose the cache is.
    pub identity: Identity,
    /// Where things lie.
    pub geometry: Geometry,
    /// What the cache is to its volume.
    pub state: UseState,
    /// The latest run stopped cleanly.
    pub clean_stop: bool,
    /// Number of the latest run; 0 if there was none.
    pub generation: u64,
    /// Figures of the log.
    pub log: LogFigures,
    /// Blocks by what the log says of them.
    pub blocks: BlockCounts,
    /// Bytes of data that the backing may lack; zeroes are not counted.
    pub dirty_bytes: u64,
    /// Time of the oldest record whose data or zeroes the backing may lack, nanoseconds since 1970.
    pub oldest_dirty_ns: Option<u64>,
    /// Bytes read for the check.
    pub bytes_read: u64,
    /// What was found, at most [`crate::FINDINGS_MAX`].
    pub findings: Vec<Finding>,
    /// Findings that are not listed because there are too many.
    pub findings_left_out: u64,
}

pub(crate) fn hex(id: &[u8]) -> String {
    id.iter().map(|b| format!("{b:02x}")).collect()
}

impl Identity {
    pub(crate) fn of(sb: &Superblock) -> Self {
        Self {
            cache_id: hex(&sb.layout.cache_id),
            backing_id: hex(&sb.backing_id),
            backing_name: sb.backing_name.clone(),
            has_label: sb.has_label,
            fingerprint: sb.fingerprint.clone(),
            volume_bytes: sb.volume_bytes,
            logical_block_bytes: sb.logical_block,
            created_ns: sb.created_ns,
        }
    }
}

impl Geometry {
    pub(crate) fn of(sb: &Superblock, image_bytes: u64) -> Self {
        Self {
            format_version: match sb.logical_block {
                LOGICAL_BLOCK_MIN => FORMAT_VERSION,
                _ => FORMAT_VERSION_LOGICAL_BLOCK,
            },
            image_bytes,
            cache_bytes: sb.layout.cache_bytes(),
            align: sb.layout.align,
            segment_bytes: sb.layout.segment_bytes,
            segment_count: sb.layout.segment_count,
        }
    }
}

impl UseState {
    pub(crate) const fn of(state: CacheState) -> Self {
        match state {
            CacheState::Paired => Self::Paired,
            CacheState::Released => Self::Released,
            CacheState::Retired => Self::Retired,
        }
    }

    pub(crate) const fn describe(self) -> &'static str {
        match self {
            Self::Paired => "paired with its backing",
            Self::Released => "removed from its volume for good",
            Self::Retired => "retired after a failed write",
        }
    }
}

impl Report {
    /// The exit code of `forebay check`: 4 if anything is damaged, whether or not it can be recovered; else 0.
    pub const fn exit_code(&self) -> u8 {
        match self.verdict {
            Severity::Ok | Severity::Note => 0,
            Severity::Recoverable | Severity::Corruption => 4,
        }
    }
}

/// Nanoseconds since 1970 as a date and time in UTC.
pub(crate) fn utc(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    let (days, rest) = ((seconds / 86400) as i64, seconds % 86400);
    // Civil date from days, with years that begin in March so that the leap day is the last.
    let z = days + 719_468;
    let era = z / 146_097;
    let day_of_era = z % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (h, m, s) = (rest / 3600, rest / 60 % 60, rest % 60);
    let ms = ns / 1_000_000 % 1000;
    format!("{year:04}-{month:02}-{day:02} {h:02}:{m:02}:{s:02}.{ms:03} UTC")
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, geo, log, blocks) = (&self.identity, &self.geometry, &self.log, &self.blocks);
        writeln!(f, "cache      {}", id.cache_id)?;
        writeln!(f, "backing    {} (id {})", id.backing_name, id.backing_id)?;
        writeln!(
            f,
            "volume     {}, logical blocks of {} bytes",
            size::show(id.volume_bytes),
            id.logical_block_bytes
        )?;
        writeln!(
            f,
            "geometry   {} segments of {}, aligned to {} bytes, format version {}",
            geo.segment_count,
            size::show(geo.segment_bytes.into()),
            geo.align,
            geo.format_version
        )?;
        let stop = match (self.generation, self.clean_stop) {
            (0, _) => "never run",
            (_, true) => "stopped cleanly",
            (_, false) => "running, or not stopped cleanly",
        };
        writeln!(f, "state      {}; run {}, {stop}", self.state.describe(), self.generation)?;
        writeln!(
            f,
            "log        {} segments ({} with summary), {} free; {} records, {} to {}, proven durable up to {}",
            log.segments_live,
            log.segments_sealed,
            log.segments_free,
            log.records,
            log.first_seq,
            log.last_seq,
            log.durable_upto
        )?;
        writeln!(
            f,
            "blocks     {} dirty, {} zero, {} poisoned, {} superseded, {} clean; {} data blocks checked",
            blocks.dirty, blocks.zero, blocks.poison, blocks.superseded, blocks.clean, log.data_blocks
        )?;
        write!(f, "backing lacks {}", size::show(self.dirty_bytes))?;
        if let Some(ns) = self.oldest_dirty_ns {
            write!(f, ", the oldest since {}", utc(ns))?;
        }
        writeln!(f)?;
        for finding in &self.findings {
            writeln!(f, "{}: {} (at byte {})", finding.severity.word(), finding.message, finding.offset)?;
        }
        if self.findings_left_out > 0 {
            writeln!(f, "and {} further findings", self.findings_left_out)?;
        }
        let verdict = match self.verdict {
            Severity::Ok => "no damage was found",
            Severity::Note => {
                "no damage was found; the notes say what a power cut or a killed process left behind"
            }
            Severity::Recoverable => "something is damaged, but no data is lost",
            Severity::Corruption => "corruption was found: acknowledged data is damaged or missing",
        };
        writeln!(f, "verdict    {}: {verdict}", self.verdict.word())
    }
}

/// Bytes in `blocks` blocks.
pub(crate) const fn block_bytes(blocks: u64) -> u64 {
    blocks.saturating_mul(BLOCK_BYTES)
}

#[cfg(test)]
mod tests {
    use super::utc;

    #[test]
    fn times_are_shown_in_utc() {
        assert_eq!(utc(0), "1970-01-01 00:00:00.000 UTC");
        assert_eq!(utc(951_782_400_000_000_000), "2000-02-29 00:00:00.000 UTC");
        assert_eq!(utc(1_700_000_000_123_000_000), "2023-11-14 22:13:20.123 UTC");
    }
}
