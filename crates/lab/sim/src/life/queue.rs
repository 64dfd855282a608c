//! The backing's queue, from outside: no more is started than the backing takes, and `rcp` keeps its bounds.

use forebay_engine::{Class, Effect, IoId, Role};
use forebay_policy::{BACKING_SLOTS_MAX, SchedulerKind};

use super::Life;
use crate::subject::Subject;
use crate::violation::{Interrupt, broken};

/// Critical operations that start one after the other while another one waits and none such is at the backing; the promise is one in 16.
const PASSED_OVER_MAX: u64 = 32;
/// Non-critical operations that start one after the other while a critical one waits; the promise is 1.
const OVERTAKEN_MAX: u64 = 2;

/// See the module's documentation.
pub(crate) struct Queue {
    /// Operations that the backing takes at a time.
    pub(crate) depth: usize,
    started: Vec<(IoId, Class)>,
    passed_over: u64,
    overtaken: u64,
}

impl Default for Queue {
    fn default() -> Self {
        Self { depth: BACKING_SLOTS_MAX, started: Vec::new(), passed_over: 0, overtaken: 0 }
    }
}

impl Queue {
    /// An operation is started at the backing.
    pub(super) fn starts(&mut self, id: IoId, class: Class) -> Result<(), Interrupt> {
        if self.started.len() >= self.depth {
            let depth = self.depth;
            return Err(broken(
                "wall",
                format!("the backing takes {depth} operations at a time and is given more"),
            ));
        }
        self.started.push((id, class));
        Ok(())
    }

    /// An operation has ended, of whichever device.
    pub(super) fn ended(&mut self, id: IoId) {
        self.started.retain(|(started, _)| *started != id);
    }

    /// Another scheduler chooses, or may.
    pub(super) fn exchanged(&mut self) {
        (self.passed_over, self.overtaken) = (0, 0);
    }

    /// So many operations start now, critical and not, and so many still wait.
    fn judge(&mut self, starts: [u64; 2], waiting: (usize, usize)) -> Result<(), Interrupt> {
        let [critical, noncritical] = starts;
        let beside = noncritical > 0 || self.started.iter().any(|(_, class)| *class == Class::Background);
        self.passed_over = if waiting.1 == 0 || beside { 0 } else { self.passed_over + critical };
        if self.passed_over > PASSED_OVER_MAX {
            let n = self.passed_over;
            return Err(broken("P7", format!("what nobody waits for is passed over by {n} operations")));
        }
        self.overtaken = if waiting.0 == 0 || critical > 0 { 0 } else { self.overtaken + noncritical };
        let at_once = waiting.0 > 0 && noncritical > OVERTAKEN_MAX + critical / 8;
        if self.overtaken > OVERTAKEN_MAX || at_once {
            return Err(broken("priority", "what somebody waits for waits behind what nobody waits for"));
        }
        Ok(())
    }
}

impl<S: Subject> Life<'_, S> {
    /// Judges what starts at the backing now.
    pub(super) fn judge_queue(&mut self) -> Result<(), Interrupt> {
        let mut starts = [0; 2];
        for effect in &self.effects {
            if let Effect::Io { role: Role::Backing, class, .. } = effect {
                starts[usize::from(*class == Class::Background)] += 1;
            }
        }
        match self.engine.backing_waiting() {
            Some(waiting) if self.settings.scheduler == SchedulerKind::Rcp => {
                self.queue.judge(starts, waiting)
            }
            _ => Ok(()),
        }
    }
}
