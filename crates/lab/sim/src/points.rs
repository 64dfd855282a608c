//! Whether the backing alone is exactly at a consistency point when the journal says so (P4): everything acknowledged before the
//! point is there, and nothing that was issued later.

use std::collections::{BTreeMap, BTreeSet};

use forebay_format::journal::Moment;
use forebay_policy::{GroupEnds, Settings, WritePolicy};

use crate::consistency::Told;
use crate::media::View;
use crate::order::{self, Held, History, Misplaced};
use crate::violation::{Interrupt, broken};

/// The points that were asked for.
#[derive(Clone, Default)]
pub struct Points {
    /// When each was declared, by the number in its name.
    marks: Vec<u64>,
    /// When flushes were issued that were answered: each is a point, or none is.
    flushes: Vec<u64>,
    /// Which flush the point is that has this number.
    matched: Option<(u64, u64)>,
    /// Rounds of the consistency group so far.
    pub rounds: u64,
    /// Its points, by their numbers: what was acknowledged before the first time comes before, what was issued after the second
    /// later.
    common: BTreeMap<u64, (u64, u64)>,
    /// Those that all members have: whoever settles them may keep them.
    kept: BTreeSet<u64>,
    /// The point that is durably prepared and that nobody has settled, and the number of its group.
    rests: Option<(u64, u64)>,
    /// Images that were judged.
    pub judged: u64,
}

/// Name of a common point.
pub fn common_label(number: u64) -> String {
    format!("c{number}")
}

/// Name of the point that was declared as so manieth.
pub fn label(mark: usize) -> String {
    format!("m{mark}")
}

impl Points {
    /// A point is declared at this time; returns which one it is.
    pub fn mark(&mut self, issued: u64) -> usize {
        self.marks.push(issued);
        self.marks.len() - 1
    }

    /// The common point was cut between these times.
    pub fn cut(&mut self, number: u64, asked: u64, answered: u64) {
        self.common.insert(number, (asked, answered));
    }

    /// All members had cut at this time, while writers were held back.
    pub fn released(&mut self, number: u64, at: u64) {
        if let Some((before, _)) = self.common.get_mut(&number) {
            *before = at;
        }
    }

    /// The volume is told what becomes of the point.
    pub fn settling(&mut self, number: u64, keep: bool) {
        if keep {
            self.kept.insert(number);
        }
        self.rests.take_if(|(rests, _)| *rests == number);
    }

    /// The point is durably prepared, in the group with this number.
    pub fn prepared(&mut self, number: u64, group: u64) {
        self.rests = Some((number, group));
    }

    /// A new cache is paired with the backing, which has gone on without what was prepared.
    pub fn part(&mut self) {
        self.rests = None;
    }

    /// The volume has these settings from now on: it may be no member any more.
    pub fn follow(&mut self, settings: &Settings) {
        if settings.group_ends != GroupEnds::Common || settings.write_policy != WritePolicy::Journaled {
            self.rests = None;
        }
    }

    /// Judges what the journal says of the consistency group.
    ///
    /// # Errors
    /// A violation of P4.
    pub fn judge_common(&mut self, told: &Told, durable: bool) -> Result<(), Interrupt> {
        let decided = told.common.0;
        if !told.consistent {
            self.rests = None;
            return Ok(());
        }
        if decided > 0 && !self.kept.contains(&decided) {
            return Err(broken(
                "P4",
                format!("the backing is said to be at common point {decided}, which nobody decided"),
            ));
        }
        if decided > 0 && told.moment.label != common_label(decided) {
            let message = format!(
                "the backing is said to be at common point {decided}, and at '{}'",
                told.moment.label
            );
            return Err(broken("P4", message));
        }
        match self.rests {
            Some((point, group)) if durable && told.common.1 != point && told.moment.group < group => {
                Err(broken("P4", format!("common point {point} was prepared, and is not any more")))
            }
            _ => Ok(()),
        }
    }

    /// A flush was answered.
    pub fn flushed(&mut self, issued: u64) {
        self.flushes.push(issued);
    }

    /// Judges an image of the volume of which the journal says that it is at this point.
    ///
    /// # Errors
    /// A violation of P4.
    pub fn judge(
        &mut self,
        moment: &Moment,
        history: &History,
        held: &[Held],
        view: View,
    ) -> Result<(), Interrupt> {
        self.judged += 1;
        let check = |at: u64| order::check_point(history, held, at..=at);
        let common = moment.label.strip_prefix('c').and_then(|n| n.parse().ok()).map(|n| self.common.get(&n));
        let outcome = match common {
            Some(Some((before, after))) => Some(order::check_point(history, held, *before..=*after)),
            Some(None) => return Err(broken("P4", format!("nobody cut the point '{}'", moment.label))),
            None => None,
        };
        let outcome = match outcome {
            Some(outcome) => outcome,
            None => match moment.label.strip_prefix('m').map(|n| n.parse::<usize>()) {
                Some(Ok(mark)) => match self.marks.get(mark) {
                    Some(at) => check(*at),
                    None => {
                        return Err(broken("P4", format!("nobody declared the point '{}'", moment.label)));
                    }
                },
                _ => {
                    let known = self.matched.filter(|(point, _)| *point == moment.point).map(|(_, at)| at);
                    let fits = |at: &u64| check(*at).is_ok();
                    match known.into_iter().chain(self.flushes.iter().rev().copied()).find(fits) {
                        Some(at) => {
                            self.matched = Some((moment.point, at));
                            Ok(())
                        }
                        None => check(self.flushes.last().copied().unwrap_or_default()),
                    }
                }
            },
        };
        outcome.map_err(|misplaced| said(moment, misplaced, history, view))
    }
}

fn said(moment: &Moment, misplaced: Misplaced, history: &History, view: View) -> Interrupt {
    let view = match view {
        View::Now => "as it is",
        View::Durable => "what is durable of it",
    };
    let (write, what) = match misplaced {
        Misplaced::Missing { write, .. } => (write, "lacks a write that was acknowledged before"),
        Misplaced::Later { write, .. } => (write, "has a write that was issued later"),
    };
    let message = format!(
        "the backing alone ({view}) is said to be at point {} '{}', and {what}: {}",
        moment.point,
        moment.label,
        write + 1
    );
    let mut interrupt = broken("P4", message);
    if let Interrupt::Violation(v) = &mut interrupt {
        v.sectors = vec![misplaced.sector(), history.writes()[write].sectors.start];
    }
    interrupt
}
