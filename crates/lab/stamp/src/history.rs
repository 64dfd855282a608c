//! What each sector may hold, as of any instant of a run.

use std::collections::VecDeque;
use std::str::FromStr;

use crate::acks::{Asked, Request};
use crate::expectation::Expectation;
use crate::stamp::Version;

/// What an acknowledgement is worth in a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// It holds: `--durability write`.
    Write,
    /// It holds once a flush that was issued later is acknowledged, or if the write was one with FUA: `--durability
    /// flush`.
    Flush,
}

impl FromStr for Promise {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "write" => Ok(Self::Write),
            "flush" => Ok(Self::Flush),
            _ => Err("durability is write or flush".into()),
        }
    }
}

enum Event {
    Issued(Request),
    Acknowledged(Request),
}

/// Walks through the requests of a run in the order of time.
pub(crate) struct History {
    promise: Promise,
    events: VecDeque<(u64, Event)>,
    /// What was acknowledged: a kill must leave it.
    acknowledged: Expectation,
    /// What was promised: a power cut must leave it.
    durable: Expectation,
    /// Acknowledged changes that no flush covers, with the time of their acknowledgement.
    uncovered: Vec<(u64, u64, u64, Version)>,
}

impl History {
    /// The volume was as `before` when the first request was issued.
    pub(crate) fn new(promise: Promise, before: Expectation, requests: Vec<Request>) -> Self {
        let issued = requests.iter().map(|r| (r.issued_ns, Event::Issued(*r)));
        let acknowledged =
            requests.iter().filter_map(|r| r.acknowledged_ns.map(|at| (at, Event::Acknowledged(*r))));
        let mut events: Vec<(u64, Event)> = issued.chain(acknowledged).collect();
        events.sort_by_key(|(at, event)| (*at, matches!(event, Event::Acknowledged(_))));
        Self {
            promise,
            events: events.into(),
            acknowledged: before.clone(),
            durable: before,
            uncovered: Vec::new(),
        }
    }

    /// Goes on to an instant before which everything counts that happened earlier than `time_ns`.
    pub(crate) fn go_to(&mut self, time_ns: u64) {
        while let Some((_, event)) = self.events.pop_front_if(|(at, _)| *at < time_ns) {
            match event {
                Event::Issued(Request { asked: Asked::Change { first, sectors, version, .. }, .. }) => {
                    self.acknowledged.unknown(first, sectors, version);
                    self.durable.unknown(first, sectors, version);
                }
                Event::Issued(_) => {}
                Event::Acknowledged(request) => self.take_acknowledgement(request),
            }
        }
    }

    fn take_acknowledgement(&mut self, request: Request) {
        match request.asked {
            Asked::Change { first, sectors, version, fua } => {
                self.acknowledged.no_older(first, sectors, version);
                if fua || self.promise == Promise::Write {
                    self.durable.no_older(first, sectors, version);
                } else if let Some(at) = request.acknowledged_ns {
                    self.uncovered.push((at, first, sectors, version));
                }
            }
            Asked::Flush => {
                let durable = &mut self.durable;
                self.uncovered.retain(|(at, first, sectors, version)| {
                    let covered = *at < request.issued_ns;
                    if covered {
                        durable.no_older(*first, *sectors, *version);
                    }
                    !covered
                });
            }
        }
    }

    /// What the sectors may hold after a kill now.
    pub(crate) fn after_kill(&self) -> &Expectation {
        &self.acknowledged
    }

    /// What the sectors may hold after a power cut now.
    pub(crate) fn after_power_cut(&self) -> &Expectation {
        &self.durable
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stamp::{SECTOR_BYTES, Stamp};

    const VOLUME: u64 = 5;

    fn change(issued_ns: u64, acknowledged_ns: u64, seq: u64, fua: bool) -> Request {
        let asked = Asked::Change { first: 4, sectors: 2, version: Version::stamped(seq), fua };
        Request { issued_ns, acknowledged_ns: Some(acknowledged_ns).filter(|at| *at > 0), asked }
    }

    fn flush(issued_ns: u64, acknowledged_ns: u64) -> Request {
        Request { issued_ns, acknowledged_ns: Some(acknowledged_ns), asked: Asked::Flush }
    }

    /// The sequence numbers that sector 5 may hold at a time, 0 for blank: after a kill, and after a power cut.
    fn allowed(promise: Promise, requests: &[Request], time_ns: u64) -> (Vec<u64>, Vec<u64>) {
        let mut history = History::new(promise, Expectation::blank(0, 8), requests.to_vec());
        history.go_to(time_ns);
        let of = |expectation: &Expectation| {
            let may = |seq: &u64| {
                let mut bytes = [0; SECTOR_BYTES];
                if *seq > 0 {
                    Stamp { volume: VOLUME, round: 1, sector: 5, seq: *seq }.put(&mut bytes);
                }
                expectation.clone().read(5, &bytes, VOLUME, true).is_ok()
            };
            (0..10).filter(may).collect()
        };
        (of(history.after_kill()), of(history.after_power_cut()))
    }

    #[test]
    fn an_acknowledged_write_counts_from_its_acknowledgement_on() {
        let requests = [change(10, 20, 1, false)];
        for promise in [Promise::Write, Promise::Flush] {
            assert_eq!(allowed(promise, &requests, 10), (vec![0], vec![0]), "not issued yet");
            assert_eq!(allowed(promise, &requests, 20), (vec![0, 1], vec![0, 1]), "under way");
        }
        assert_eq!(allowed(Promise::Write, &requests, 21), (vec![1], vec![1]));
        assert_eq!(allowed(Promise::Flush, &requests, 21), (vec![1], vec![0, 1]));
    }

    #[test]
    fn a_flush_covers_what_was_acknowledged_before_it_was_issued() {
        let requests = [change(10, 20, 1, false), change(30, 50, 2, false), flush(40, 60)];
        assert_eq!(allowed(Promise::Flush, &requests, 60), (vec![2], vec![0, 1, 2]));
        assert_eq!(allowed(Promise::Flush, &requests, 61), (vec![2], vec![1, 2]));
        let late = [change(10, 20, 1, false), flush(20, 60)];
        assert_eq!(allowed(Promise::Flush, &late, 70), (vec![1], vec![0, 1]), "not surely before");
    }

    #[test]
    fn a_write_with_fua_needs_no_flush() {
        let requests = [change(10, 20, 1, false), change(30, 40, 2, true), change(50, 60, 3, false)];
        assert_eq!(allowed(Promise::Flush, &requests, 41), (vec![2], vec![2]));
        assert_eq!(allowed(Promise::Flush, &requests, 61), (vec![3], vec![2, 3]));
    }

    #[test]
    fn what_was_never_acknowledged_stays_open() {
        let requests = [change(10, 0, 1, false)];
        assert_eq!(allowed(Promise::Write, &requests, 1000), (vec![0, 1], vec![0, 1]));
    }
}
