//! Where a log ends, and whether it ended there before: an object that is missing is told from one that never was.
//!
//! - G1: an object of the log says how many objects before it existed for certain when it was sent. A fence lies where the log ended. So
//!   both are witnesses that what was before them existed.
//! - G2: a witness may have come after the gap was read. So the gap is read again: if the object is there now, the log has grown meanwhile.
//! - G3: a newer checkpoint may do without the object. So the checkpoints are listed again before a loss is told.
//! - G4: claims are never deleted: whoever has a log, or has made a fence, has one.

use super::{Open, Progress, get, list};
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

impl Gap {
    const fn position(&self, seq: u64) -> Position {
        Position { epoch: self.at.epoch, seq }
    }
}

/// A loss, as far as is known: it is told if the checkpoints are still the same.
pub(super) fn missing(name: String, witness: &str) -> OpenError {
    OpenError::Corrupt { name, what: format!("it is missing, and {witness} shows that it was there") }
}

impl Open {
    /// The log seems to end here.
    pub(super) fn look_behind(&mut self, calls: &mut Calls<Job>, at: Position) {
        self.gap = Some(Gap { at, behind: Vec::new(), under_way: 0, later: None });
        list(calls, Step::Behind, names::LOG.to_owned(), names::log(at));
    }

    /// Takes names behind the gap.
    pub(super) fn behind(&mut self, calls: &mut Calls<Job>, time_ns: u64, outcome: Outcome) -> Progress {
        let (Some(gap), Outcome::Page { names, more }) = (&mut self.gap, outcome) else { return Ok(false) };
        for at in names.iter().filter_map(|name| names::log_of(name)) {
            if at.epoch == gap.at.epoch {
                gap.behind.push(at.seq);
            } else {
                gap.later = Some(gap.later.map_or(at.epoch, |later| later.min(at.epoch)));
            }
        }
        match names.into_iter().next_back() {
            Some(last) if more && gap.later.is_none() => {
                list(calls, Step::Behind, names::LOG.to_owned(), last);
                Ok(false)
            }
            _ => self.next_witness(calls, time_ns),
        }
    }

    fn next_witness(&mut self, calls: &mut Calls<Job>, time_ns: u64) -> Progress {
        let Some(gap) = &mut self.gap else { return Ok(false) };
        while gap.under_way < WITNESSES_MAX
            && let Some(seq) = gap.behind.pop()
        {
            gap.under_way += 1;
            let at = gap.position(seq);
            get(calls, Step::Witness(at), names::log(at));
        }
        if gap.under_way > 0 {
            return Ok(false);
        }
        match gap.later.filter(|later| *later > self.newest) {
            Some(later) => self.look_for_claim(calls, time_ns, later),
            None => self.pass(calls, time_ns),
        }
    }

    /// Takes the head of an object behind the gap. One that is damaged is no witness.
    pub(super) fn witness(
        &mut self,
        calls: &mut Calls<Job>,
        time_ns: u64,
        at: Position,
        outcome: Outcome,
    ) -> Progress {
        let identity = Identity { volume: self.state.volume, at };
        let Some(gap) = &mut self.gap else { return Ok(false) };
        let found = match outcome {
            Outcome::Object { bytes, size } => read_head(&bytes, size, &identity).ok(),
            _ => None,
        };
        if let Some(Err(len)) = found {
            let request = Request::Get { name: names::log(at), from: 0, len };
            calls.start(Job::Open(Step::Witness(at)), request);
            return Ok(false);
        }
        gap.under_way -= 1;
        let is_witness = match found {
            Some(Ok(Found::Log(head, _))) => head.known > gap.at.seq,
            Some(Ok(Found::Fence(_))) => true,
            _ => false,
        };
        if is_witness {
            let gap = gap.at;
            calls.drop_where(|job| matches!(job, Job::Open(Step::Witness(_))));
            get(calls, Step::Gap(at), names::log(gap));
            return Ok(false);
        }
        self.next_witness(calls, time_ns)
    }

    /// Takes what lies in the gap, now that there is a witness.
    pub(super) fn gap_again(
        &mut self,
        calls: &mut Calls<Job>,
        time_ns: u64,
        witness: Position,
        outcome: Outcome,
    ) -> Progress {
        match (&self.gap, outcome) {
            (Some(gap), Outcome::Missing) => {
                let lost = missing(names::log(gap.at), &names::log(witness));
                self.accuse(calls, lost);
                Ok(false)
            }
            _ => self.pass(calls, time_ns),
        }
    }

    /// Looks whether an owner has a claim that must have one.
    pub(super) fn look_for_claim(&mut self, calls: &mut Calls<Job>, time_ns: u64, epoch: u64) -> Progress {
        if self.claim.as_ref().is_some_and(|claim| claim.epoch == epoch) {
            return self.pass(calls, time_ns);
        }
        get(calls, Step::Later(epoch), names::claim(epoch));
        Ok(false)
    }

    /// Takes the claim of an owner that has come after the newest one that is known.
    pub(super) fn later(
        &mut self,
        calls: &mut Calls<Job>,
        time_ns: u64,
        epoch: u64,
        outcome: Outcome,
    ) -> Progress {
        if let Outcome::Missing = outcome {
            return Err(missing(names::claim(epoch), "what this owner has made"));
        }
        self.pass(calls, time_ns)
    }

    /// The log ends where it seems to.
    fn pass(&mut self, calls: &mut Calls<Job>, time_ns: u64) -> Progress {
        self.gap = None;
        if let Some(walk) = &mut self.walk {
            walk.pass();
        }
        self.go_on(calls, time_ns)
    }

    /// An object is lost unless a newer checkpoint does without it.
    pub(super) fn accuse(&mut self, calls: &mut Calls<Job>, lost: OpenError) {
        calls.drop_all();
        self.lost = Some(lost);
        self.list_checkpoints(calls);
    }

    /// The first object of an owner names another end of the log before than was found. That may be as this log went on meanwhile; a second
    /// time it is not.
    pub(super) fn disagree(&mut self, calls: &mut Calls<Job>, at: Position, said: Position) -> Progress {
        let end = self.walk.as_ref().map_or(Position::default(), |walk| walk.begun());
        if self.disagreed.replace((end, at, said)) != Some((end, at, said)) {
            return self.anew(calls);
        }
        let (first, witness) = (Position { epoch: said.epoch, seq: 0 }, names::log(at));
        let lost = if said.epoch > end.epoch {
            missing(names::log(first), &witness)
        } else if said.epoch == end.epoch && said.seq > end.seq {
            missing(names::log(end), &witness)
        } else {
            let what = "it does not go on where the log before it ends".to_owned();
            OpenError::Corrupt { name: witness, what }
        };
        self.accuse(calls, lost);
        Ok(false)
    }
}
