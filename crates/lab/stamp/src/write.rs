//! A run of the writer: several workers at the same time, each on a part of its own.

use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::{Duration, Instant};

use crate::acks::AckLog;
use crate::expectation::Expectation;
use crate::random::{Random, mix};
use crate::report::{Allowed, Report};
use crate::stamp::SECTOR_BYTES;
use crate::state::State;
use crate::target::TargetSpec;
use crate::worker::{Shared, Worker};

/// Shares of the kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    pub(crate) write: u64,
    pub(crate) read: u64,
    pub(crate) zero: u64,
    pub(crate) flush: u64,
}

impl Mix {
    pub(crate) fn total(&self) -> u64 {
        self.write + self.read + self.zero + self.flush
    }
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Their sum fits 64 bits.
        let shares: Result<Vec<u64>, _> =
            text.split(',').map(|share| share.parse::<u32>().map(u64::from)).collect();
        match shares.as_deref() {
            Ok([write, read, zero, flush]) if write + read + zero + flush > 0 => {
                Ok(Self { write: *write, read: *read, zero: *zero, flush: *flush })
            }
            _ => Err("a mix is WRITE,READ,ZERO,FLUSH: four shares".into()),
        }
    }
}

/// What a run does.
#[derive(Clone, Debug)]
pub struct WriteOptions {
    /// The volume.
    pub target: TargetSpec,
    /// Ends after this time.
    pub time: Duration,
    /// Ends after this many requests.
    pub operations: u64,
    /// Workers: each has one request under way.
    pub threads: u64,
    /// Longest request in bytes.
    pub largest_bytes: u64,
    /// Shares of the kinds of requests.
    pub mix: Mix,
    /// Start of the pseudo-random sequence.
    pub seed: u64,
    /// Errors that are expected.
    pub allowed: Vec<Allowed>,
    /// The first error ends the run.
    pub stop_on_error: bool,
    /// No answer within this time is an error.
    pub patience: Duration,
    /// A file in which all acknowledgements are noted with their times.
    pub acks: Option<PathBuf>,
}

/// Writes, and keeps `state` true.
///
/// # Errors
/// The volume cannot be opened, or has another size than the state knows.
pub fn write(options: &WriteOptions, state: &mut State) -> io::Result<Report> {
    let mut targets = Vec::new();
    for _ in 0..options.threads {
        targets.push(options.target.open(options.patience)?);
    }
    let sectors = state.expectation.sectors();
    if targets.iter().any(|t| t.size_bytes() / SECTOR_BYTES as u64 != sectors) {
        return Err(io::Error::other("the volume has another size than its state"));
    }
    state.round += 1;
    let shared = Shared {
        options,
        volume: state.volume,
        round: state.round,
        seq: AtomicU64::new(state.seq),
        end: Instant::now() + options.time,
        acks: match &options.acks {
            Some(path) => Some(AckLog::create(path, state.volume, sectors)?),
            None => None,
        },
    };
    let parts = cut(&mut state.expectation, options.threads, options.seed);
    let mut report = Report { round: state.round, ..Report::default() };
    thread::scope(|scope| {
        let workers: Vec<_> = parts
            .into_iter()
            .zip(targets)
            .zip(1u64..)
            .map(|((part, target), i)| {
                let worker = Worker::new(&shared, target, part, mix(options.seed ^ mix(i)));
                scope.spawn(move || worker.run())
            })
            .collect();
        for worker in workers {
            match worker.join() {
                Ok((part, done)) => {
                    state.expectation.append(part);
                    report.add(done);
                }
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    state.seq = shared.seq.into_inner();
    shared.acks.map_or(Ok(()), AckLog::finish)?;
    Ok(report)
}

/// Takes `whole` apart at places that are no multiples of anything, so that neighbours write into the same blocks.
fn cut(whole: &mut Expectation, count: u64, seed: u64) -> Vec<Expectation> {
    let mut random = Random::new(mix(seed));
    let (first, width) = (whole.first(), whole.sectors() / count);
    let mut parts: Vec<Expectation> =
        (1..count).rev().map(|i| whole.split_off(first + i * width + random.below(width / 2))).collect();
    parts.push(whole.split_off(first));
    parts.reverse();
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_are_the_whole() {
        let mut whole = Expectation::blank(0, 1000);
        let before = whole.clone();
        let parts = cut(&mut whole, 7, 3);
        assert_eq!(parts.len(), 7);
        assert!(parts.iter().all(|p| p.sectors() > 0));
        assert_eq!(whole.sectors(), 0);
        parts.into_iter().for_each(|p| whole.append(p));
        assert_eq!(whole, before);
    }

    #[test]
    fn a_mix_has_four_shares() {
        assert_eq!("1,2,3,4".parse::<Mix>().unwrap().total(), 10);
        assert!("1,2,3".parse::<Mix>().is_err() && "0,0,0,0".parse::<Mix>().is_err());
    }
}
