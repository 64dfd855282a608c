//! Where a log ends, and whether it ended there before: an object that is missing is told from one that never was.
//!
//! - G1: an object of the log says how many objects before it existed for certain when it was sent. A fence lies where the log ended. So
//!   both are witnesses that what was before them existed.
//! - G2: a witness may have come after the gap was read. So the gap is read again: if the object is there now, the log has grown meanwhile.
//! - G3: a newer checkpoint may do without the object. So the checkpoints are listed again before a loss is told.
//! - G4: claims are never deleted: whoever has a log, or has made a fence, has one.

use super::ask::{get, list};
use crate::calls::{Calls, Outcome};
use crate::codec::Identity;
use crate::face::{OpenError, Position};
use crate::jobs::{Job, Step};
use crate::names;
use crate::store::Request;
use crate::walk::{Found, read_head};

/// Witnesses that are heard at a time.
const WITNESSES_MAX: usize = 32;

/// A gap that is being looked into.
#[derive(Clone, Debug)]
pub(super) struct Gap {
    at: Position,
    /// Objects of this log behind it that are still to be read; the last one is read first, as it knows most.
    behind: Vec<u64>,
    under_way: usize,
    /// The first later owner that has a log.
    later: Option<u64>,
}

/// A loss, as far as is known: it is told if the checkpoints are still the same.
pub(super) fn missing(name: String, witness: &str) -> OpenError {
    OpenError::Corrupt { name, what: format!("it is missing, and {witness} shows that it was there") }
}

/// What is known of the gap.
pub(super) enum Said {
    /// The store is asked.
    Wait,
    /// The log ends there.
    Ends,
    /// An object is lost, unless a newer checkpoint does without it.
    Lost(OpenError),
    /// This owner has a log: it must have a claim.
    HasLog(u64),
}

impl Gap {
    /// Asks what lies behind.
    pub(super) fn look(calls: &mut Calls<Job>, at: Position) -> Self {
        list(calls, Step::Behind, names::LOG.to_owned(), names::log(at));
        Self { at, behind: Vec::new(), under_way: 0, later: None }
    }

    const fn position(&self, seq: u64) -> Position {
        Position { epoch: self.at.epoch, seq }
    }

    /// Takes names behind the gap.
    pub(super) fn behind(&mut self, calls: &mut Calls<Job>, newest: u64, outcome: Outcome) -> Said {
        let Outcome::Page { names, more } = outcome else { return Said::Wait };
        for at in names.iter().filter_map(|name| names::log_of(name)) {
            if at.epoch == self.at.epoch {
                self.behind.push(at.seq);
            } else {
                self.later = Some(self.later.map_or(at.epoch, |later| later.min(at.epoch)));
            }
        }
        match names.into_iter().next_back() {
            Some(last) if more && self.later.is_none() => {
                list(calls, Step::Behind, names::LOG.to_owned(), last);
                Said::Wait
            }
            _ => self.next_witness(calls, newest),
        }
    }

    fn next_witness(&mut self, calls: &mut Calls<Job>, newest: u64) -> Said {
        while self.under_way < WITNESSES_MAX
            && let Some(seq) = self.behind.pop()
        {
            self.under_way += 1;
            let at = self.position(seq);
            get(calls, Step::Witness(at), names::log(at));
        }
        if self.under_way > 0 {
            return Said::Wait;
        }
        self.later.filter(|later| *later > newest).map_or(Said::Ends, Said::HasLog)
    }

    /// Takes the head of an object behind the gap. One that is damaged is no witness.
    pub(super) fn witness(
        &mut self,
        calls: &mut Calls<Job>,
        (volume, newest): ([u8; 16], u64),
        at: Position,
        outcome: Outcome,
    ) -> Said {
        let found = match outcome {
            Outcome::Object { bytes, size } => read_head(&bytes, size, &Identity { volume, at }).ok(),
            _ => None,
        };
        if let Some(Err(len)) = found {
            let request = Request::Get { name: names::log(at), from: 0, len };
            calls.start(Job::Open(Step::Witness(at)), request);
            return Said::Wait;
        }
        self.under_way -= 1;
        let is_witness = match found {
            Some(Ok(Found::Log(head, _))) => head.known > self.at.seq,
            Some(Ok(Found::Fence(_))) => true,
            _ => false,
        };
        if is_witness {
            calls.drop_where(|job| matches!(job, Job::Open(Step::Witness(_))));
            get(calls, Step::Gap(at), names::log(self.at));
            return Said::Wait;
        }
        self.next_witness(calls, newest)
    }

    /// Takes what lies in the gap, now that there is a witness.
    pub(super) fn again(&self, witness: Position, outcome: Outcome) -> Said {
        match outcome {
            Outcome::Missing => Said::Lost(missing(names::log(self.at), &names::log(witness))),
            _ => Said::Ends,
        }
    }
}
