//! The backing's queue, from outside: no more is started than the backing takes, and `rcp` keeps its bounds.

use forebay_engine::{Class, Effect, IoId, Role};
use forebay_policy::{BACKING_SLOTS_MAX, NONCRITICAL_ONE_IN, SchedulerKind};

use super::Life;
use crate::subject::Subject;
use crate::violation::{Interrupt, broken};

/// Critical operations that start one after the other while a non-critical one waits and none such is at the backing.
const PASSED_OVER_MAX: u64 = NONCRITICAL_ONE_IN as u64;
/// Non-critical operations that start one after the other while a critical one waits.
const OVERTAKEN_MAX: u64 = 1;

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

#[cfg(test)]
mod tests {
    use super::*;

    fn promise(broken: Result<(), Interrupt>) -> Option<&'static str> {
        match broken {
            Err(Interrupt::Violation(violation)) => Some(violation.promise),
            _ => None,
        }
    }

    #[test]
    fn no_more_is_started_than_the_backing_takes() {
        let mut queue = Queue { depth: 2, ..Queue::default() };
        assert_eq!(
            [1, 2, 3].map(|n| promise(queue.starts(IoId(n), Class::Foreground))),
            [None, None, Some("wall")]
        );
        queue.ended(IoId(1));
        assert_eq!(promise(queue.starts(IoId(3), Class::Background)), None);
    }

    #[test]
    fn what_nobody_waits_for_is_passed_over_so_often() {
        let mut queue = Queue::default();
        let over = |queue: &mut Queue, starts| promise(queue.judge(starts, (0, 1)));
        assert!((0..PASSED_OVER_MAX).all(|_| over(&mut queue, [1, 0]).is_none()));
        assert_eq!(over(&mut queue, [1, 0]), Some("P7"));
        assert_eq!(over(&mut queue, [PASSED_OVER_MAX, 1]), None, "its turn");
        assert_eq!(over(&mut queue, [PASSED_OVER_MAX + 1, 0]), Some("P7"));
        queue.exchanged();
        assert_eq!(promise(queue.starts(IoId(1), Class::Background)), None);
        assert_eq!(over(&mut queue, [PASSED_OVER_MAX + 1, 0]), None, "there is one at the backing");
        queue.ended(IoId(1));
        assert_eq!(promise(queue.judge([PASSED_OVER_MAX + 1, 0], (9, 0))), None, "there is nothing else");
    }

    #[test]
    fn what_somebody_waits_for_stands_behind_one() {
        let mut queue = Queue::default();
        let behind = |queue: &mut Queue, starts| promise(queue.judge(starts, (1, 9)));
        assert_eq!([[0, 1], [1, 0], [0, 1]].map(|starts| behind(&mut queue, starts)), [None; 3]);
        assert_eq!(behind(&mut queue, [0, 1]), Some("priority"));
        queue.exchanged();
        assert_eq!(behind(&mut queue, [16, 2]), None, "one in so many");
        assert_eq!(behind(&mut queue, [7, 2]), Some("priority"));
        assert_eq!(promise(queue.judge([0, 9], (0, 9))), None, "nobody waits");
    }
}
