//! What was done and what was found.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;

use crate::expectation::Wrong;
use crate::target::{Failure, errno_name, errno_of};

/// Wrong sectors that are described one by one; more are only counted.
const WRONG_TOLD_MAX: usize = 10;

/// An error that a test expects: `OPERATION:ERROR`, where the operation is `read`, `write`, `zero`, `flush` or `any`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    operation: String,
    errno: i32,
}

impl FromStr for Allowed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (operation, error) = text.split_once(':').ok_or("an error is OPERATION:ERROR")?;
        if !["read", "write", "zero", "flush", "any"].contains(&operation) {
            return Err("operations are read, write, zero, flush and any".into());
        }
        Ok(Self {
            operation: operation.to_owned(),
            errno: errno_of(error).ok_or("errors are eio, enospc, einval and so on")?,
        })
    }
}

/// Outcome of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Which run of the writer on this volume, from 1; for a verification, the last one.
    pub round: u32,
    /// Reads that were answered.
    pub reads: u64,
    /// Writes that were acknowledged.
    pub writes: u64,
    /// Discards and write-zeroes that were acknowledged.
    pub zeroes: u64,
    /// Flushes that were acknowledged.
    pub flushes: u64,
    /// Bytes of those writes.
    pub bytes_written: u64,
    /// Sectors that were read and compared.
    pub sectors_compared: u64,
    /// Sectors that held what they may not.
    pub sectors_wrong: u64,
    /// Errors that were expected, by operation and kind.
    pub errors_allowed: BTreeMap<String, u64>,
    /// Errors that were not.
    pub errors_unexpected: BTreeMap<String, u64>,
    /// Longest time that a request took, in milliseconds.
    pub request_ms_max: u64,
    /// The volume went away.
    pub lost: bool,
    /// What is wrong, in words.
    #[serde(skip)]
    pub told: Vec<String>,
}

impl Report {
    /// Nothing was found that may not be; the volume may have gone away.
    pub fn is_right(&self) -> bool {
        self.sectors_wrong == 0 && self.errors_unexpected.is_empty()
    }

    pub(crate) fn took(&mut self, time: Duration) {
        self.request_ms_max = self.request_ms_max.max(time.as_millis() as u64);
    }

    pub(crate) fn wrong(&mut self, wrong: &Wrong, when: &str) {
        self.sectors_wrong += 1;
        self.tell(format!("{wrong} ({when})"));
    }

    pub(crate) fn failed(&mut self, operation: &str, at: u64, failure: &Failure, allowed: &[Allowed]) {
        match failure {
            Failure::Lost(e) => {
                self.lost = true;
                // Silence is not an end: somebody is there and does not answer.
                if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) {
                    self.unexpected(format!("{operation}:no-answer"), at);
                }
            }
            Failure::Refused(errno) => {
                let name = format!("{operation}:{}", errno_name(*errno));
                let fits =
                    |a: &Allowed| a.errno == *errno && (a.operation == "any" || a.operation == operation);
                if allowed.iter().any(fits) {
                    *self.errors_allowed.entry(name).or_default() += 1;
                } else {
                    self.unexpected(name, at);
                }
            }
        }
    }

    fn unexpected(&mut self, name: String, at: u64) {
        self.tell(format!("sector {at}: unexpected {name}"));
        *self.errors_unexpected.entry(name).or_default() += 1;
    }

    fn tell(&mut self, what: String) {
        if self.told.len() < WRONG_TOLD_MAX {
            self.told.push(what);
        }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.zeroes += other.zeroes;
        self.flushes += other.flushes;
        self.bytes_written += other.bytes_written;
        self.sectors_compared += other.sectors_compared;
        self.sectors_wrong += other.sectors_wrong;
        for (name, count) in other.errors_allowed {
            *self.errors_allowed.entry(name).or_default() += count;
        }
        for (name, count) in other.errors_unexpected {
            *self.errors_unexpected.entry(name).or_default() += count;
        }
        self.request_ms_max = self.request_ms_max.max(other.request_ms_max);
        self.lost |= other.lost;
        other.told.into_iter().for_each(|t| self.tell(t));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_errors_that_a_test_names_are_expected() {
        let allowed: Vec<Allowed> = ["read:eio", "any:enospc"].iter().map(|a| a.parse().unwrap()).collect();
        let mut report = Report::default();
        report.failed("read", 1, &Failure::Refused(5), &allowed);
        report.failed("flush", 1, &Failure::Refused(28), &allowed);
        assert!(report.is_right());
        report.failed("write", 1, &Failure::Refused(5), &allowed);
        assert!(!report.is_right());
        assert_eq!(report.errors_unexpected["write:eio"], 1);
        assert_eq!(report.told, ["sector 1: unexpected write:eio"]);
        assert!("read".parse::<Allowed>().is_err() && "jump:eio".parse::<Allowed>().is_err());
    }

    #[test]
    fn an_end_is_no_mistake_but_silence_is() {
        let mut report = Report::default();
        report.failed("read", 1, &Failure::Lost(std::io::ErrorKind::UnexpectedEof.into()), &[]);
        assert!(report.lost && report.is_right());
        report.failed("read", 1, &Failure::Lost(std::io::ErrorKind::WouldBlock.into()), &[]);
        assert!(!report.is_right());
    }
}
