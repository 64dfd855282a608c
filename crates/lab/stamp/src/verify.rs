//! Reads the whole volume and compares every sector with what it may hold.

use std::io;
use std::time::{Duration, Instant};

use crate::report::{Allowed, Report};
use crate::stamp::SECTOR_BYTES;
use crate::state::State;
use crate::target::{Failure, TargetSpec};

/// Sectors that are read at a time.
const CHUNK_SECTORS: u64 = 512;

/// What a verification does.
#[derive(Clone, Debug)]
pub struct VerifyOptions {
    /// The volume.
    pub target: TargetSpec,
    /// Errors that are expected; what cannot be read whole is read sector by sector.
    pub allowed: Vec<Allowed>,
    /// Nothing is under way, as after a restart: what is read now is there for good.
    pub quiet: bool,
    /// No answer within this time is an error.
    pub patience: Duration,
}

/// Reads and compares everything; what was read is remembered in `state`.
///
/// # Errors
/// The volume cannot be opened, or has another size than the state knows.
pub fn verify(options: &VerifyOptions, state: &mut State) -> io::Result<Report> {
    let mut target = options.target.open(options.patience)?;
    let sectors = state.expectation.sectors();
    if target.size_bytes() / (SECTOR_BYTES as u64) < sectors {
        return Err(io::Error::other("the volume is smaller than its state"));
    }
    let mut report = Report { round: state.round, ..Report::default() };
    let mut bytes = vec![0; CHUNK_SECTORS as usize * SECTOR_BYTES];
    let chunks = (0..sectors).step_by(CHUNK_SECTORS as usize);
    let mut pieces: Vec<(u64, u64)> =
        chunks.map(|first| (first, CHUNK_SECTORS.min(sectors - first))).collect();
    pieces.reverse();
    while let Some((first, count)) = pieces.pop() {
        let bytes = &mut bytes[..count as usize * SECTOR_BYTES];
        let began = Instant::now();
        let result = target.read(first * SECTOR_BYTES as u64, bytes);
        report.took(began.elapsed());
        match result {
            Ok(()) => {
                report.reads += 1;
                compare(options, state, &mut report, first, bytes);
            }
            Err(Failure::Refused(_)) if count > 1 => {
                pieces.extend((first..first + count).rev().map(|sector| (sector, 1)));
            }
            Err(e) => {
                report.failed("read", first, &e, &options.allowed);
                if report.lost {
                    break;
                }
            }
        }
    }
    Ok(report)
}

fn compare(options: &VerifyOptions, state: &mut State, report: &mut Report, first: u64, bytes: &[u8]) {
    for (sector, bytes) in (first..).zip(bytes.chunks_exact(SECTOR_BYTES)) {
        report.sectors_compared += 1;
        if let Err(wrong) = state.expectation.read(sector, bytes, state.volume, options.quiet) {
            report.wrong(&wrong, "verifying");
        }
    }
}
