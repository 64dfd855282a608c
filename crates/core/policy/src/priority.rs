//! I/O priority: which of the operations that wait for the backing starts next (RCP, FAST'17,
//! section 4; `docs/design/promises.md`, I/O priority).
//!
//! Two queues, first in first out: what a client waits for, reads included, goes before what nobody is known to wait for. Of
//! the second kind few are outstanding while there are any of the first, for a device does not take back what it was given: a
//! critical operation would wait behind them inside the device.

use forebay_block::Class;

/// Operations outstanding at the backing at a time, however many it takes; further ones wait in the queue (P7).
pub const BACKING_SLOTS_MAX: usize = 256;
/// Of these at most so many are non-critical.
pub const NONCRITICAL_SLOTS_MAX: usize = 128;
/// Bytes of outstanding non-critical operations from which on no further one starts: enough to keep a device busy, and 40 ms of a disk's time.
/// What is not there yet can still be taken back, where somebody comes to wait for it.
pub const NONCRITICAL_BYTES_MAX: u64 = 4 << 20;
/// As much more for each non-critical operation that ends while it is calm, up to 20 MiB: what is far away needs more to be busy.
const NONCRITICAL_BYTES_CALM: u64 = 128 << 10;
/// An operation counts for so many bytes at most, so that one that does not end does not keep all others from starting.
pub const NONCRITICAL_BYTES_EACH: u64 = 1 << 20;
/// Non-critical operations that may be outstanding beside critical ones, where room in the log is not scarce.
pub const NONCRITICAL_BESIDE_CRITICAL: usize = 1;
/// While both kinds wait and a non-critical one may start, one in so many starts is one of them: starvation is bounded.
pub const NONCRITICAL_ONE_IN: usize = 16;

/// Whether somebody is known to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// A client's request waits for it, as far as is known.
    Critical,
    /// Destaging, and writes that no request is known to wait for.
    NonCritical,
}

impl From<Class> for Priority {
    fn from(class: Class) -> Self {
        match class {
            Class::Foreground => Self::Critical,
            Class::Background => Self::NonCritical,
        }
    }
}

impl From<Priority> for Class {
    fn from(priority: Priority) -> Self {
        match priority {
            Priority::Critical => Self::Foreground,
            Priority::NonCritical => Self::Background,
        }
    }
}

/// While the log fills, and both destaging and bypasses wait, one in so many non-critical starts is a bypass, if one may start.
pub const BYPASS_ONE_IN: usize = 8;

/// What kind of non-critical operation it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Background {
    /// It makes room in the log.
    Destage,
    /// A write that no request is known to wait for, on its way past the log.
    Bypass,
}

/// What may be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Critical operations that wait.
    pub critical: usize,
    /// Non-critical ones that may start beside what is outstanding of their kind.
    pub noncritical: usize,
    /// How many of these may be outstanding beside critical ones; at least [`NONCRITICAL_BESIDE_CRITICAL`] count.
    pub beside_critical: usize,
    /// Bytes that outstanding non-critical operations write, of each at most [`NONCRITICAL_BYTES_EACH`].
    pub noncritical_bytes: u64,
    /// Operations that may be outstanding in all.
    pub slots: usize,
}

impl Default for Waiting {
    /// Nothing waits.
    fn default() -> Self {
        let slots = BACKING_SLOTS_MAX;
        Self { critical: 0, noncritical: 0, beside_critical: 0, noncritical_bytes: 0, slots }
    }
}

/// Non-critical operations that may be outstanding where so many may in all: one is left to critical ones, where there are two.
fn noncritical_slots(slots: usize) -> usize {
    slots.saturating_sub(1).clamp(1, NONCRITICAL_SLOTS_MAX)
}

/// The chooser: counts what is outstanding, and says what starts next.
///
/// While nothing critical comes, each non-critical operation that ends lets one more of them be outstanding. So they get the
/// whole device soon after the last critical one, but not in the moment between one request of a client and the next.
#[derive(Clone, Debug, Default)]
pub struct BackingPriority {
    critical: usize,
    noncritical: usize,
    /// Non-critical ones that somebody came to wait for when they had started.
    awaited: usize,
    /// Non-critical operations that have ended since the last one that is waited for came or ended.
    calm: usize,
    /// Critical starts since the last non-critical one, while such waited and might have started.
    passed_over: usize,
    /// Destages that were preferred since the last bypass that started.
    preferred: usize,
}

impl BackingPriority {
    /// An operation has come to wait.
    pub fn arrived(&mut self, priority: Priority) {
        if priority == Priority::Critical {
            self.calm = 0;
        }
    }

    /// What starts now, of what waits; the caller starts it. `None`: nothing, until something ends or comes.
    pub fn start(&mut self, waiting: Waiting) -> Option<Priority> {
        if self.outstanding() >= waiting.slots {
            return None;
        }
        let noncritical = waiting.noncritical > 0
            && self.noncritical < self.noncritical_max(&waiting)
            && waiting.noncritical_bytes < NONCRITICAL_BYTES_MAX + self.calm as u64 * NONCRITICAL_BYTES_CALM;
        let its_turn = self.passed_over + 1 >= NONCRITICAL_ONE_IN;
        match waiting.critical > 0 {
            true if !(noncritical && its_turn) => {
                self.passed_over += usize::from(noncritical);
                self.critical += 1;
                Some(Priority::Critical)
            }
            _ if noncritical => {
                self.passed_over = 0;
                self.noncritical += 1;
                Some(Priority::NonCritical)
            }
            _ => None,
        }
    }

    /// Which of the non-critical operations goes while the log fills, where both kinds wait: destaging, but for one in so many, if a bypass
    /// may start. Who waits for room in the log waits for destaging; and a bypass keeps nobody waiting, nor does a hundred of them,
    /// which would be before a run that empties a whole segment.
    pub fn background(&mut self, bypass_may_start: bool) -> Background {
        let its_turn = self.preferred + 1 >= BYPASS_ONE_IN;
        match its_turn && bypass_may_start {
            true => {
                self.preferred = 0;
                Background::Bypass
            }
            false => {
                self.preferred += usize::from(!its_turn);
                Background::Destage
            }
        }
    }

    /// Non-critical operations that may be outstanding now.
    fn noncritical_max(&self, waiting: &Waiting) -> usize {
        let beside = waiting.beside_critical.max(NONCRITICAL_BESIDE_CRITICAL);
        beside.saturating_add(self.calm).min(noncritical_slots(waiting.slots))
    }

    /// Somebody comes to wait for a non-critical operation that is outstanding. It keeps its place: whoever waits for it is not helped by one
    /// more that nobody waits for, and of those that come to be awaited one after the other the device would be full.
    pub fn promoted(&mut self) {
        self.awaited += 1;
        self.calm = 0;
    }

    /// An operation that was started as this has ended; whether it was [`promoted`](Self::promoted) meanwhile.
    pub fn ended(&mut self, priority: Priority, promoted: bool) {
        match priority {
            Priority::Critical => self.critical = self.critical.saturating_sub(1),
            Priority::NonCritical => self.noncritical = self.noncritical.saturating_sub(1),
        }
        self.awaited = self.awaited.saturating_sub(usize::from(promoted));
        if priority == Priority::Critical || promoted {
            self.calm = 0;
        } else if self.critical + self.awaited == 0 {
            self.calm = (self.calm + 1).min(NONCRITICAL_SLOTS_MAX);
        }
    }

    /// Operations that have started and not ended.
    pub fn outstanding(&self) -> usize {
        self.critical + self.noncritical
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};

    use super::*;

    fn waiting(critical: usize, noncritical: usize) -> Waiting {
        Waiting { critical, noncritical, ..Waiting::default() }
    }

    #[test]
    fn critical_first_and_one_noncritical_beside() {
        let mut priority = BackingPriority::default();
        priority.arrived(Priority::Critical);
        assert_eq!(priority.start(waiting(1, 5)), Some(Priority::Critical));
        assert_eq!(priority.start(waiting(0, 5)), Some(Priority::NonCritical));
        assert_eq!(priority.start(waiting(0, 4)), None, "one is enough beside a critical one");
        assert_eq!(
            priority.start(Waiting { beside_critical: 2, ..waiting(0, 4) }),
            Some(Priority::NonCritical),
            "but more where the log needs room"
        );
    }

    #[test]
    fn the_device_is_taken_step_by_step_once_it_is_calm() {
        let mut priority = BackingPriority::default();
        let start_all = |p: &mut BackingPriority| std::iter::from_fn(|| p.start(waiting(0, 1000))).count();
        assert_eq!(start_all(&mut priority), 1);
        for outstanding in [2, 4, 8, 16, 32, 64, 128, 128] {
            for _ in 0..priority.outstanding() {
                priority.ended(Priority::NonCritical, false);
            }
            assert_eq!(start_all(&mut priority), outstanding);
        }
        priority.arrived(Priority::Critical);
        assert_eq!(priority.start(waiting(1, 1000)), Some(Priority::Critical), "there is a slot left for it");
        for _ in 0..128 {
            priority.ended(Priority::NonCritical, false);
        }
        assert_eq!(start_all(&mut priority), 1, "all is as before as soon as a critical one has come");
    }

    /// Whatever the device takes: where there are two slots, one is left to what somebody waits for.
    #[test]
    fn what_nobody_waits_for_never_takes_all_slots() {
        for (slots, noncritical) in [(1, 1), (2, 1), (3, 2), (4, 3), (32, 31), (128, 127), (256, 128)] {
            let mut priority = BackingPriority::default();
            let may = |critical| Waiting { slots, ..waiting(critical, 1000) };
            // It is calm for as long as it takes.
            for _ in 0..NONCRITICAL_SLOTS_MAX {
                assert_eq!(priority.start(may(0)), Some(Priority::NonCritical));
                priority.ended(Priority::NonCritical, false);
            }
            let started = std::iter::from_fn(|| priority.start(may(0))).count();
            assert_eq!(started, noncritical, "of {slots} slots");
            let critical = std::iter::from_fn(|| priority.start(may(1000))).count();
            assert_eq!(critical, slots - noncritical, "of {slots} slots");
        }
    }

    #[test]
    fn a_few_large_ones_are_enough_for_the_device() {
        let mut priority = BackingPriority::default();
        let full = Waiting { noncritical_bytes: NONCRITICAL_BYTES_MAX, ..waiting(0, 1) };
        assert_eq!(priority.start(full), None);
        assert_eq!(priority.start(Waiting { critical: 1, ..full }), Some(Priority::Critical));
        let nearly = Waiting { noncritical_bytes: NONCRITICAL_BYTES_MAX - 1, ..full };
        assert_eq!(priority.start(nearly), Some(Priority::NonCritical));
        priority.ended(Priority::Critical, false);
        priority.ended(Priority::NonCritical, false);
        assert_eq!(priority.start(full), Some(Priority::NonCritical), "more while it is calm");
    }

    #[test]
    fn someone_comes_to_wait_for_what_is_outstanding() {
        let mut priority = BackingPriority::default();
        for _ in 0..2 {
            assert_eq!(priority.start(waiting(0, 9)), Some(Priority::NonCritical));
            priority.ended(Priority::NonCritical, false);
        }
        let start_all = |p: &mut BackingPriority| std::iter::from_fn(|| p.start(waiting(0, 9))).count();
        assert_eq!(start_all(&mut priority), 3);
        priority.promoted();
        priority.ended(Priority::NonCritical, false);
        priority.ended(Priority::NonCritical, false);
        assert_eq!(start_all(&mut priority), 0, "it keeps its place, and has the device for itself");
        priority.ended(Priority::NonCritical, true);
        assert_eq!(start_all(&mut priority), 1);
        priority.ended(Priority::NonCritical, false);
        assert_eq!(start_all(&mut priority), 2, "it is calm again");
    }

    #[test]
    fn destaging_goes_first_while_the_log_fills_but_bypasses_are_not_forgotten() {
        use Background::{Bypass, Destage};
        let mut priority = BackingPriority::default();
        let started: Vec<_> = (0..2 * BYPASS_ONE_IN).map(|_| priority.background(true)).collect();
        let bypasses: Vec<usize> =
            started.iter().enumerate().filter(|(_, kind)| **kind == Bypass).map(|(at, _)| at).collect();
        assert_eq!(bypasses, [BYPASS_ONE_IN - 1, 2 * BYPASS_ONE_IN - 1]);
        assert!((0..20).all(|_| priority.background(false) == Destage));
        assert_eq!([true; 2].map(|may| priority.background(may)), [Bypass, Destage], "its turn had come");
    }

    #[test]
    fn what_nobody_waits_for_has_its_turn_beside_an_endless_critical_load() {
        let mut priority = BackingPriority::default();
        let starts: Vec<_> = (0..3 * NONCRITICAL_ONE_IN)
            .map(|_| {
                let next = priority.start(waiting(1000, 1000));
                // Each ends at once, so that never is a slot wanting.
                priority.ended(next.unwrap(), false);
                next
            })
            .collect();
        let turns: Vec<usize> =
            (0..starts.len()).filter(|at| starts[*at] == Some(Priority::NonCritical)).collect();
        let wanted: Vec<usize> = (1..=3).map(|turn| turn * NONCRITICAL_ONE_IN - 1).collect();
        assert_eq!(turns, wanted);
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// So many critical and so many other ones come before anything starts.
        Come(usize, usize),
        End(usize),
        Promote(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let many = || 0usize..3 * NONCRITICAL_ONE_IN;
        let step = prop_oneof![
            5 => (many(), many()).prop_map(|(critical, noncritical)| Step::Come(critical, noncritical)),
            20 => any::<usize>().prop_map(Step::End),
            5 => any::<usize>().prop_map(Step::Promote),
        ];
        proptest::collection::vec(step, 1..400)
    }

    /// The chooser beside a plain list of what was started.
    #[derive(Default)]
    struct Beside {
        priority: BackingPriority,
        waiting: Waiting,
        /// What was started, and whether it was promoted since.
        started: Vec<(Priority, bool)>,
        calm: usize,
        passed_over: usize,
        /// How often each bound held something back: turns of what nobody waits for, full slots, and each of the two limits.
        bites: [usize; 4],
    }

    impl Beside {
        fn step(&mut self, step: Step) {
            match step {
                Step::Come(critical, noncritical) => {
                    if critical > 0 {
                        self.calm = 0;
                        self.priority.arrived(Priority::Critical);
                    }
                    self.priority.arrived(Priority::NonCritical);
                    self.waiting.critical += critical;
                    self.waiting.noncritical += noncritical;
                }
                Step::End(n) if !self.started.is_empty() => {
                    let (ended, promoted) = self.started.swap_remove(n % self.started.len());
                    let is_awaited = |(p, promoted): &(Priority, bool)| *p == Priority::Critical || *promoted;
                    if is_awaited(&(ended, promoted)) {
                        self.calm = 0;
                    } else if !self.started.iter().any(is_awaited) {
                        self.calm += 1;
                    }
                    self.priority.ended(ended, promoted);
                }
                Step::Promote(n) if !self.started.is_empty() => {
                    let at = n % self.started.len();
                    if self.started[at] == (Priority::NonCritical, false) {
                        self.started[at].1 = true;
                        self.calm = 0;
                        self.priority.promoted();
                    }
                }
                Step::End(_) | Step::Promote(_) => {}
            }
        }

        fn noncritical(&self) -> usize {
            self.started.iter().filter(|(p, _)| *p == Priority::NonCritical).count()
        }

        /// Starts all that may start, each of so many bytes.
        fn start_all(&mut self, bytes_each: u64) -> Result<(), TestCaseError> {
            loop {
                let outstanding = self.noncritical();
                let calm = self.calm.min(NONCRITICAL_SLOTS_MAX);
                let share = (self.waiting.slots - 1).clamp(1, NONCRITICAL_SLOTS_MAX);
                let slots = (self.waiting.beside_critical.max(1) + calm).min(share);
                let has_slot = outstanding < slots;
                let has_bytes =
                    outstanding as u64 * bytes_each < NONCRITICAL_BYTES_MAX + calm as u64 * (128 << 10);
                let may = self.waiting.noncritical > 0 && has_slot && has_bytes;
                self.waiting.noncritical_bytes = outstanding as u64 * bytes_each;
                let Some(next) = self.priority.start(self.waiting) else {
                    let is_full = self.started.len() == self.waiting.slots;
                    prop_assert!(is_full || (self.waiting.critical == 0 && !may), "what may start does not");
                    let waits = self.waiting.noncritical > 0;
                    self.bites[1] += usize::from(is_full && self.waiting.critical > 0);
                    self.bites[2] += usize::from(waits && has_bytes && !has_slot);
                    self.bites[3] += usize::from(waits && has_slot && !has_bytes);
                    return Ok(());
                };
                match next {
                    Priority::Critical => {
                        prop_assert!(self.waiting.critical > 0);
                        self.waiting.critical -= 1;
                        self.passed_over += usize::from(may);
                        prop_assert!(self.passed_over < NONCRITICAL_ONE_IN, "starved");
                    }
                    Priority::NonCritical => {
                        prop_assert!(may);
                        let is_turn = self.waiting.critical > 0;
                        prop_assert!(
                            !is_turn || self.passed_over + 1 == NONCRITICAL_ONE_IN,
                            "before its turn"
                        );
                        self.bites[0] += usize::from(is_turn);
                        self.waiting.noncritical -= 1;
                        self.passed_over = 0;
                    }
                }
                self.started.push((next, false));
                prop_assert!(self.started.len() <= self.waiting.slots);
                prop_assert_eq!(self.started.len(), self.priority.outstanding());
            }
        }
    }

    /// The bounds hold, what is critical starts whenever there is a slot, and what is not critical starts within a bounded
    /// number of starts once it may. Each of the bounds is reached, or it would not be tested.
    #[test]
    fn keeps_its_bounds() {
        let bites = RefCell::new([0; 4]);
        let depths = prop_oneof![Just(1), Just(2), 1..=BACKING_SLOTS_MAX];
        let cases = (steps(), 0usize..12, 0..=NONCRITICAL_BYTES_EACH, depths);
        let run = |(steps, beside_critical, bytes_each, slots): (Vec<Step>, usize, u64, usize)| {
            let mut beside = Beside::default();
            beside.waiting.slots = slots;
            beside.waiting.beside_critical = beside_critical;
            for step in steps {
                beside.step(step);
                beside.start_all(bytes_each)?;
            }
            bites.borrow_mut().iter_mut().zip(beside.bites).for_each(|(all, these)| *all += these);
            Ok(())
        };
        TestRunner::new(Config { source_file: Some(file!()), ..Config::default() })
            .run(&cases, run)
            .unwrap_or_else(|broken| panic!("{broken}"));
        assert!(bites.borrow().iter().all(|times| *times > 100), "a bound is never reached: {bites:?}");
    }
}
