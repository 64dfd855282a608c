//! A client that goes through its trace in a closed loop.

use crate::request_log::Request;
use crate::trace::{Step, Trace};

/// See the module's documentation.
pub(crate) struct Client<'a> {
    steps: &'a [Step],
    /// The next step.
    at: usize,
    /// Requests under way at most.
    depth: usize,
    under_way: usize,
    /// By step: a request that has been answered.
    answered: Vec<bool>,
}

/// What a client does.
pub(crate) enum Action {
    /// Asks, in this step.
    Ask(usize, Request),
    /// Says that somebody waits for writes of these bytes.
    Promote { offset: u64, len: u64 },
}

impl<'a> Client<'a> {
    /// At most `depth` requests are under way, unless the trace says what waits for what.
    pub(crate) fn new(trace: &'a Trace, depth: usize) -> Self {
        let depth = if trace.has_answers { usize::MAX } else { depth };
        let answered = vec![false; trace.steps.len()];
        Self { steps: &trace.steps, at: 0, depth, under_way: 0, answered }
    }

    /// What it does next, if it may now.
    pub(crate) fn next(&mut self) -> Option<Action> {
        loop {
            let at = self.at;
            let action = match *self.steps.get(at)? {
                Step::Settle if self.under_way > 0 => return None,
                Step::Answered(request) if !self.answered[request] => return None,
                Step::Request(_) if self.under_way >= self.depth => return None,
                Step::Settle | Step::Answered(_) => None,
                Step::Request(request) => {
                    self.under_way += 1;
                    Some(Action::Ask(at, request))
                }
                Step::Promote { offset, len } => Some(Action::Promote { offset, len }),
            };
            self.at += 1;
            if action.is_some() {
                return action;
            }
        }
    }

    /// The request of this step has been answered.
    pub(crate) fn answered(&mut self, step: usize) {
        self.under_way -= 1;
        self.answered[step] = true;
    }

    /// Whether everything has been asked and answered.
    pub(crate) fn is_done(&self) -> bool {
        self.at == self.steps.len() && self.under_way == 0
    }
}
