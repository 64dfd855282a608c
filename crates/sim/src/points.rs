//! Whether the backing alone is exactly at a consistency point when the journal says so (P4): everything acknowledged before the
//! point is there, and nothing that was issued later.

use forebay_format::journal::Moment;

use crate::media::View;
use crate::order::{self, Held, History, Misplaced};
use crate::violation::{Interrupt, broken};

/// The points that were asked for.
#[derive(Default)]
pub struct Points {
    /// When each was declared, by the number in its name.
    marks: Vec<u64>,
    /// When flushes were issued that were answered: each is a point, or none is.
    flushes: Vec<u64>,
    /// Which flush the point is that has this number.
    matched: Option<(u64, u64)>,
    /// Images that were judged.
    pub judged: u64,
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
        let check = |at: u64| order::check_point(history, held, at);
        let outcome = match moment.label.strip_prefix('m').map(|n| n.parse::<usize>()) {
            Some(Ok(mark)) => match self.marks.get(mark) {
                Some(at) => check(*at),
                None => return Err(broken("P4", format!("nobody declared the point '{}'", moment.label))),
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
