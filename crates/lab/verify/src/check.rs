//! `forebay check`: the whole image is read, every checksum computed, every rule of the log held against it.

use std::io;

use forebay_block::words_of;
use forebay_format::superblock::{CacheState, Superblock};
use thiserror::Error;

use crate::chain::{Visitor, follow};
use crate::contents::{BlockState, Contents};
use crate::finding::{Finding, FindingKind, Findings, Severity};
use crate::image::Image;
use crate::records::{BadBlock, RecordView, SegmentRecords, SummaryView};
use crate::report::{BlockCounts, Geometry, Identity, LogFigures, Report, UseState, block_bytes};
use crate::superblocks::Copies;
use crate::survey::{SegmentInfo, Survey};
use crate::{Source, finding};

/// Why there is nothing to check.
#[derive(Debug, Error)]
pub enum CheckError {
    /// Neither superblock was ever written: something else, or nothing.
    #[error("this is no Forebay cache: it has no superblock; make one with `forebay format`")]
    NoCache,
    /// Written by a release whose format this one does not know.
    #[error(
        "this cache has format version {0}, which this release does not know; use the release that made it"
    )]
    UnknownVersion(u32),
    /// It was a cache, but neither superblock can be believed.
    #[error("both copies of the superblock are damaged: where the log lies and whose it is cannot be known")]
    SuperblocksDamaged,
    /// The volume has no such block.
    #[error("block {block} lies behind the end of the volume, which has the blocks 0 to {last}")]
    NoBlock {
        /// The one that was asked for.
        block: u64,
        /// The last one.
        last: u64,
    },
    /// The image cannot be read.
    #[error("the image cannot be read: {}", words_of(.0))]
    Io(#[from] io::Error),
}

impl CheckError {
    /// The exit code of the command: 3 refused, 4 corruption, 1 failed.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::NoCache | Self::UnknownVersion(_) => 3,
            Self::NoBlock { .. } => 2,
            Self::SuperblocksDamaged => 4,
            Self::Io(_) => 1,
        }
    }
}

/// A data block that does not match, and whose it is; judged when it is known what is current.
struct BadData {
    segment: u32,
    seq: u64,
    bad: BadBlock,
}

struct Checker<'a> {
    superblock: &'a Superblock,
    contents: Contents,
    findings: Findings,
    bad: Vec<BadData>,
    figures: LogFigures,
}

impl Visitor for Checker<'_> {
    fn segment(&mut self, _: &SegmentInfo, records: &SegmentRecords) {
        self.figures.segments_live += 1;
        self.figures.segments_sealed += u64::from(matches!(records.summary, SummaryView::Valid(_)));
    }

    fn record(&mut self, segment: &SegmentInfo, record: &RecordView) {
        let h = &record.header;
        if self.figures.records == 0 {
            self.figures.first_seq = h.seq.0;
        }
        self.figures.records += 1;
        self.figures.last_seq = h.seq.0;
        self.figures.time_last_ns = h.time_ns;
        self.figures.data_blocks += h.checksums.len() as u64;
        self.contents.apply(h);
        self.bad.extend(record.bad.iter().map(|bad| BadData {
            segment: segment.index,
            seq: h.seq.0,
            bad: *bad,
        }));
    }

    fn finding(&mut self, finding: Finding) {
        self.findings.push(finding);
    }
}

impl Checker<'_> {
    /// Says of each damaged data block whether anything is lost by it.
    fn judge_bad_data(&mut self) {
        for BadData { segment, seq, bad } in std::mem::take(&mut self.bad) {
            let current = self.contents.get(bad.block.0);
            let (severity, consequence) = match current {
                Some(run) if run.seq.0 == seq && run.state == BlockState::Dirty => (
                    Severity::Corruption,
                    "it is the newest version and the backing lacks it: reading the block is an I/O error"
                        .to_owned(),
                ),
                Some(run) if run.seq.0 > seq => {
                    (Severity::Recoverable, format!("record {} has a newer version", run.seq))
                }
                _ => (Severity::Recoverable, "the backing has it".to_owned()),
            };
            let at = self.superblock.layout.segment_offset(segment) + u64::from(bad.offset);
            let message = format!(
                "the data of block {} in record {seq} does not match its checksum (segment {segment}, offset {}); {consequence}",
                bad.block, bad.offset
            );
            self.findings.push(
                Finding::new(severity, FindingKind::DataDamaged, at, message)
                    .in_segment(segment)
                    .of_record(seq)
                    .of_block(bad.block.0),
            );
        }
    }
}

/// Checks the cache image in `source`.
///
/// # Errors
/// [`CheckError`] if there is no cache that could be checked; damage of a cache is in the report.
pub fn check(source: &dyn Source) -> Result<Report, CheckError> {
    let mut image = Image::new(source)?;
    let copies = Copies::read(&mut image)?;
    let superblock = copies.newest()?;
    let mut findings = Findings::default();
    copies.judge(&mut findings);
    judge_size(&image, &superblock, &mut findings);
    let mut report = if superblock.state == CacheState::Paired {
        check_log(&mut image, &superblock, findings)?
    } else {
        findings.push(Finding::new(
            Severity::Note,
            FindingKind::LogVoid,
            0,
            format!(
                "this cache was {}: its log means nothing any more and was not checked",
                UseState::of(superblock.state).describe()
            ),
        ));
        assemble(&image, &superblock, findings, LogFigures::default(), None)
    };
    for (offset, len) in image.unreadable_ranges() {
        report.findings.push(Finding::new(
            Severity::Note,
            FindingKind::Unreadable,
            offset,
            format!("{len} bytes cannot be read; they were taken for zeroes"),
        ));
        report.verdict = report.verdict.max(Severity::Note);
    }
    Ok(report)
}

fn judge_size(image: &Image<'_>, superblock: &Superblock, findings: &mut Findings) {
    let expected = superblock.layout.cache_bytes();
    if image.size < expected {
        findings.push(Finding::new(
            Severity::Corruption,
            FindingKind::ImageTruncated,
            image.size,
            format!(
                "the image ends after {} bytes, but the cache has {expected}: it is cut short",
                image.size
            ),
        ));
    }
}

fn check_log(image: &mut Image<'_>, superblock: &Superblock, mut findings: Findings) -> io::Result<Report> {
    let survey = Survey::take(image, superblock, &mut findings)?;
    let mut checker = Checker {
        superblock,
        contents: Contents::new(survey.clean_upto),
        findings,
        bad: Vec::new(),
        figures: LogFigures {
            tail: survey.tail,
            durable_upto: survey.proven.0,
            clean_upto: survey.clean_upto.0,
            ..LogFigures::default()
        },
    };
    let end = follow(image, superblock, &survey, &mut checker)?;
    checker.judge_bad_data();
    checker.figures.records_torn = end.records_torn;
    if checker.figures.records == 0 {
        checker.figures.tail = 0;
    }
    Ok(assemble(
        image,
        superblock,
        checker.findings,
        checker.figures,
        Some((&checker.contents, superblock.clean_stop && end.clean_stop())),
    ))
}

fn assemble(
    image: &Image<'_>,
    superblock: &Superblock,
    findings: Findings,
    mut log: LogFigures,
    contents: Option<(&Contents, bool)>,
) -> Report {
    let blocks = contents.map_or_else(BlockCounts::default, |(c, clean_believed)| c.counts(clean_believed));
    log.segments_free = u64::from(superblock.layout.segment_count).saturating_sub(log.segments_live);
    let finding::Findings { list, left_out, worst } = findings;
    Report {
        verdict: worst,
        identity: Identity::of(superblock),
        geometry: Geometry::of(superblock, image.size),
        state: UseState::of(superblock.state),
        clean_stop: superblock.clean_stop,
        generation: superblock.layout.generation,
        log,
        blocks,
        dirty_bytes: block_bytes(blocks.dirty),
        oldest_dirty_ns: contents.and_then(|(c, _)| c.oldest_dirty_ns()),
        bytes_read: image.bytes_read,
        findings: list,
        findings_left_out: left_out,
    }
}
