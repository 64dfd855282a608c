//! Starvation inside a device: what was started first need not end first.
//!
//! A disk takes what lies near its head first. As long as it is given more that lies there, a request that somebody waits for and that
//! lies elsewhere is left for last, for as long as the disk's own patience lasts (half a second was seen). What a device has been given
//! cannot be hurried, but it can be given nothing more until that one has ended: then it has nothing left to prefer.
//!
//! Elsewhere that would only cost time: a device that carries out many at once has some that are late by chance, and what is stuck does not come
//! back for want of others. So only what is old is looked at, a hold ends soon if nothing ends during it, and after it nothing is held back for
//! several times as long.

use std::collections::BTreeMap;

/// So many operations that started later may end before one that is awaited, which is about what a disk needs to choose well.
pub const OVERTAKEN_MAX: u64 = 16;
/// Nothing is held back for an operation that is younger than this, in nanoseconds: a dozen places of a disk, and longer than a device without
/// an arm takes.
pub const OVERTAKEN_NS_MIN: u64 = 50_000_000;
/// Longest time in nanoseconds that nothing is started for the sake of one operation: a disk ends a few dozen meanwhile.
pub const HOLD_NS_MAX: u64 = 100_000_000;
/// A hold is in vain if nothing has ended for so long, in nanoseconds: longer than a disk takes for an ordinary operation, so that
/// what is left is stuck, or waits for something else than the device.
pub const QUIET_NS_MAX: u64 = 25_000_000;
/// Nothing is held back for an operation more often than this.
pub const HOLDS_MAX: u8 = 3;
/// After a hold there is none for so many times as long as it was, and no less than [`HOLD_NS_MAX`], so that a device loses a fifth of its time at
/// most;
const REST: u64 = 4;
/// and for so many times as long if it was in vain.
const REST_IN_VAIN: u64 = 30;

/// What an operation is to those that are overtaken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nobody is known to wait for it, so that it may be overtaken.
    Unawaited,
    /// Somebody waits for it.
    Awaited,
    /// It does not count: it ends when others have (a flush), or after a time that nobody knows.
    Apart,
}

#[derive(Clone, Copy, Debug)]
struct Operation {
    standing: Standing,
    since_ns: u64,
    /// How often something was held back for it.
    holds: u8,
}

/// Nothing is started for the sake of one operation.
#[derive(Clone, Copy, Debug)]
struct Hold {
    number: u64,
    since_ns: u64,
    /// How many had ended, of all, when that was last looked at, and since when it is so many.
    ends: u64,
    quiet_since_ns: u64,
}

/// The numbers of what has been started at a device.
#[derive(Clone, Debug, Default)]
pub struct Overtaking {
    started: u64,
    ended: u64,
    /// With those that do not count.
    ends: u64,
    /// What is outstanding and counts, by its number.
    outstanding: BTreeMap<u64, Operation>,
    hold: Option<Hold>,
    rest_until_ns: u64,
    holds: u64,
}

impl Overtaking {
    /// An operation starts; its number, 0 for all that are [`Standing::Apart`].
    pub fn started(&mut self, standing: Standing, now_ns: u64) -> u64 {
        if standing == Standing::Apart {
            return 0;
        }
        self.started += 1;
        self.outstanding.insert(self.started, Operation { standing, since_ns: now_ns, holds: 0 });
        self.started
    }

    /// Somebody comes to wait for an outstanding operation.
    pub fn promoted(&mut self, number: u64) {
        if let Some(Operation { standing: standing @ Standing::Unawaited, .. }) =
            self.outstanding.get_mut(&number)
        {
            *standing = Standing::Awaited;
        }
    }

    /// An operation has ended.
    pub fn ended(&mut self, number: u64) {
        self.ends += 1;
        self.ended += u64::from(self.outstanding.remove(&number).is_some());
    }

    /// Whether nothing more is to be started now, because an awaited operation has been overtaken too often and would be again.
    pub fn holds_back(&mut self, now_ns: u64) -> bool {
        if let Some(hold) = &mut self.hold {
            if hold.ends != self.ends {
                (hold.ends, hold.quiet_since_ns) = (self.ends, now_ns);
            }
            let Hold { number, since_ns, quiet_since_ns, .. } = *hold;
            let has_ended = !self.outstanding.contains_key(&number);
            if !has_ended && self.held_until().is_some_and(|until| now_ns < until) {
                return true;
            }
            let in_vain = !has_ended && now_ns.saturating_sub(quiet_since_ns) >= QUIET_NS_MAX;
            let lasted = now_ns.saturating_sub(since_ns).min(HOLD_NS_MAX);
            let rest = lasted.saturating_mul(if in_vain { REST_IN_VAIN } else { REST });
            self.rest_until_ns = now_ns.saturating_add(rest.max(HOLD_NS_MAX));
            self.hold = None;
        }
        if now_ns < self.rest_until_ns {
            return false;
        }
        // Of what has ended fewer than `number` can have started before it.
        let limit = self.ended.saturating_sub(OVERTAKEN_MAX);
        let others = self.outstanding.len() > 1;
        let is_left = |o: &Operation| {
            let is_old = now_ns.saturating_sub(o.since_ns) >= OVERTAKEN_NS_MIN;
            o.standing == Standing::Awaited && is_old && o.holds < HOLDS_MAX
        };
        let left = self.outstanding.range_mut(..=limit).find(|(_, o)| others && is_left(o));
        let Some((number, operation)) = left else { return false };
        operation.holds += 1;
        self.hold = Some(Hold { number: *number, since_ns: now_ns, ends: self.ends, quiet_since_ns: now_ns });
        self.holds += 1;
        true
    }

    /// How often nothing was started for the sake of one, since the beginning.
    pub fn holds(&self) -> u64 {
        self.holds
    }

    /// When something may be started again at the latest, in nanoseconds, if [`Overtaking::holds_back`] has just said that nothing is.
    pub fn held_until(&self) -> Option<u64> {
        let hold = self.hold?;
        let quiet_until = hold.quiet_since_ns.saturating_add(QUIET_NS_MAX);
        Some(hold.since_ns.saturating_add(HOLD_NS_MAX).min(quiet_until))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Standing::{Apart, Awaited, Unawaited};
    use super::*;

    const MS: u64 = 1_000_000;

    /// A device with `depth` operations at a time that takes the newest one of those that it has when it has carried one out, 4 ms each: how many
    /// end before the first one does.
    fn ends_before_the_first(depth: usize, standing: Standing) -> u64 {
        let mut overtaking = Overtaking::default();
        let first = overtaking.started(standing, 0);
        let (mut device, mut carried_out) = (vec![first], overtaking.started(Unawaited, 0));
        for ended in 1..1000 {
            let now = ended * 4 * MS;
            while device.len() + 1 < depth && !overtaking.holds_back(now) {
                device.push(overtaking.started(Unawaited, now));
            }
            overtaking.ended(carried_out);
            carried_out = device.pop().unwrap_or_else(|| overtaking.started(Unawaited, now));
            if carried_out == first {
                return ended;
            }
        }
        1000
    }

    #[test]
    fn a_device_that_prefers_others_gets_no_others() {
        assert_eq!(ends_before_the_first(8, Unawaited), 1000, "nobody waits for it");
        for depth in [3, 8, 24] {
            let ends = ends_before_the_first(depth, Awaited);
            assert!((OVERTAKEN_MAX..=OVERTAKEN_MAX + depth as u64).contains(&ends), "{depth}: {ends}");
        }
    }

    /// So many come and end at once.
    fn pass_by(overtaking: &mut Overtaking, count: u64) {
        for _ in 0..count {
            let next = overtaking.started(Awaited, 0);
            overtaking.ended(next);
        }
    }

    #[test]
    fn what_comes_to_be_awaited_counts_from_its_start() {
        let mut overtaking = Overtaking::default();
        let first = overtaking.started(Unawaited, 0);
        pass_by(&mut overtaking, OVERTAKEN_MAX + 1);
        overtaking.started(Unawaited, 0);
        let old = OVERTAKEN_NS_MIN;
        assert!(!overtaking.holds_back(old));
        overtaking.promoted(first);
        assert!(
            !overtaking.holds_back(old - 1) && overtaking.holds_back(old) && overtaking.holds_back(old + MS)
        );
        assert_eq!((overtaking.held_until(), overtaking.holds()), (Some(old + QUIET_NS_MAX), 1));
        overtaking.ended(first);
        assert!(!overtaking.holds_back(old + 2 * MS));
        assert_eq!(overtaking.held_until(), None);
    }

    #[test]
    fn what_ends_when_all_others_have_is_not_left_for_last() {
        for (standing, others) in [(Apart, Unawaited), (Awaited, Apart)] {
            let mut overtaking = Overtaking::default();
            let first = overtaking.started(standing, 0);
            pass_by(&mut overtaking, 2 * OVERTAKEN_MAX);
            overtaking.started(others, 0);
            overtaking.promoted(first);
            assert!(!overtaking.holds_back(OVERTAKEN_NS_MIN), "{standing:?} among {others:?}");
        }
        // Nor do they count as what has overtaken.
        let mut overtaking = Overtaking::default();
        (0..2).for_each(|_| _ = overtaking.started(Awaited, 0));
        for _ in 0..2 * OVERTAKEN_MAX {
            let flush = overtaking.started(Apart, 0);
            overtaking.ended(flush);
        }
        assert!(!overtaking.holds_back(OVERTAKEN_NS_MIN));
    }

    #[test]
    fn a_busy_device_is_not_taken_for_one_that_is_stuck() {
        let mut overtaking = Overtaking::default();
        let first = overtaking.started(Awaited, 0);
        pass_by(&mut overtaking, 2 * OVERTAKEN_MAX);
        let mut others: Vec<_> = (0..64).map(|_| overtaking.started(Awaited, 0)).collect();
        let mut now = OVERTAKEN_NS_MIN;
        for holds in 1..=2 {
            assert!(overtaking.holds_back(now) && overtaking.holds() == holds);
            let begun = now;
            while overtaking.holds_back(now) {
                assert!(now < begun + HOLD_NS_MAX);
                now += 4 * MS;
                others.pop().into_iter().for_each(|other| overtaking.ended(other));
            }
            assert_eq!(now, begun + HOLD_NS_MAX);
            now += HOLD_NS_MAX * REST;
        }
        // When it has the device for itself it is waited for as long as that may take for one.
        assert!(overtaking.holds_back(now));
        others.into_iter().for_each(|other| overtaking.ended(other));
        assert!(overtaking.holds_back(now + 10 * MS));
        assert_eq!(overtaking.held_until(), Some(now + 10 * MS + QUIET_NS_MAX));
        overtaking.ended(first);
        assert!(!overtaking.holds_back(now + 11 * MS));
    }

    #[test]
    fn a_hold_is_followed_by_a_rest() {
        let mut overtaking = Overtaking::default();
        let left = [0; 2].map(|_| overtaking.started(Awaited, 0));
        pass_by(&mut overtaking, OVERTAKEN_MAX + 2);
        overtaking.started(Awaited, 0);
        let begun = OVERTAKEN_NS_MIN;
        assert!(overtaking.holds_back(begun));
        overtaking.ended(left[0]);
        let rested = begun + 30 * MS * (1 + REST);
        assert!(!overtaking.holds_back(begun + 30 * MS) && !overtaking.holds_back(rested - 1));
        assert!(overtaking.holds_back(rested) && overtaking.holds() == 2);
    }

    #[test]
    fn what_is_stuck_holds_back_three_times_and_briefly() {
        let mut overtaking = Overtaking::default();
        overtaking.started(Awaited, 0);
        pass_by(&mut overtaking, 2 * OVERTAKEN_MAX);
        let mut now = OVERTAKEN_NS_MIN;
        assert!(!overtaking.holds_back(now), "it has the device for itself");
        overtaking.started(Unawaited, 0);
        for holds in 1..=u64::from(HOLDS_MAX) {
            assert!(overtaking.holds_back(now) && overtaking.holds_back(now + QUIET_NS_MAX - 1));
            assert_eq!(overtaking.holds(), holds);
            now += QUIET_NS_MAX;
            let rest = QUIET_NS_MAX * REST_IN_VAIN;
            assert!(!overtaking.holds_back(now) && !overtaking.holds_back(now + rest - 1));
            now += rest;
        }
        assert!(!overtaking.holds_back(now));
        let next = overtaking.started(Awaited, now);
        pass_by(&mut overtaking, 10 * OVERTAKEN_MAX);
        now += OVERTAKEN_NS_MIN;
        assert!(overtaking.holds_back(now), "what comes later is no worse off");
        overtaking.ended(next);
        assert!(!overtaking.holds_back(now));
    }

    #[test]
    fn the_end_of_a_flush_is_no_silence() {
        let mut overtaking = Overtaking::default();
        (0..2).for_each(|_| _ = overtaking.started(Awaited, 0));
        pass_by(&mut overtaking, 2 * OVERTAKEN_MAX);
        let flush = overtaking.started(Apart, 0);
        let begun = OVERTAKEN_NS_MIN;
        assert!(overtaking.holds_back(begun));
        overtaking.ended(flush);
        assert!(overtaking.holds_back(begun + 20 * MS));
        assert_eq!(overtaking.held_until(), Some(begun + 20 * MS + QUIET_NS_MAX));
    }

    /// Operations that a store with `depth` at a time ends in a minute, each within so many milliseconds as `takes` says of a number of chance up to 1.
    fn ends_at_a_store(depth: usize, takes: fn(f64) -> f64, holds: bool) -> u64 {
        let (mut overtaking, mut dice, mut ends) = (Overtaking::default(), 1u64, 0);
        let mut device: Vec<(u64, u64)> = Vec::new();
        for now in (0..60_000).map(|ms| ms * MS) {
            device.retain(|(number, until)| {
                let ended = *until <= now;
                if ended {
                    overtaking.ended(*number);
                    ends += 1;
                }
                !ended
            });
            while device.len() < depth && !(holds && overtaking.holds_back(now)) {
                dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let ns = takes((dice >> 33) as f64 / f64::from(1u32 << 31)) * MS as f64;
                device.push((overtaking.started(Awaited, now), now + ns as u64));
            }
        }
        ends
    }

    #[test]
    fn a_store_that_is_late_by_chance_is_kept_busy() {
        let stragglers = |chance: f64| if chance < 0.01 { 300.0 } else { 10.0 };
        let exponential = |chance: f64| -10.0 * (1.0 - chance).ln();
        for (takes, depth) in [stragglers, exponential].into_iter().flat_map(|t| [4, 32, 128].map(|d| (t, d)))
        {
            let (with, without) = (ends_at_a_store(depth, takes, true), ends_at_a_store(depth, takes, false));
            println!("{depth} at a time: {:.3} of what it does unheeded", with as f64 / without as f64);
            assert!(with * 100 > without * 90, "{depth}: {with} of {without}");
        }
    }

    proptest! {
        /// Beside a plain list: a hold begins for what is awaited, old, was overtaken by as many as it says and is not alone; it does not last
        /// longer than it may, and there is a rest after it.
        #[test]
        fn it_holds_back_for_a_reason(steps in proptest::collection::vec((0u8..6, any::<usize>(), any::<bool>(), 0u64..20), 1..600)) {
            let mut overtaking = Overtaking::default();
            // Number, awaited, how many that started later have ended, when it started.
            let mut device: Vec<(u64, bool, u64, u64)> = Vec::new();
            let (mut now, mut began, mut ended_at) = (0, None, 0);
            for (kind, at, awaited, ms) in steps {
                now += ms * MS;
                let at = at % device.len().max(1);
                match kind {
                    0..=2 => device.push((overtaking.started(if awaited { Awaited } else { Unawaited }, now), awaited, 0, now)),
                    3 | 4 if !device.is_empty() => {
                        // The newest ones end first, mostly.
                        let (number, ..) = device.remove(if kind == 3 { device.len() - 1 } else { at });
                        overtaking.ended(number);
                        device.iter_mut().filter(|d| d.0 < number).for_each(|d| d.2 += 1);
                    }
                    5 if !device.is_empty() => {
                        device[at].1 = true;
                        overtaking.promoted(device[at].0);
                    }
                    _ => {}
                }
                let holds = overtaking.holds();
                match overtaking.holds_back(now) {
                    true if overtaking.holds() > holds => {
                        let is_left = |d: &&(u64, bool, u64, u64)| d.1 && d.2 > OVERTAKEN_MAX && now - d.3 >= OVERTAKEN_NS_MIN;
                        prop_assert!(device.iter().any(|d| is_left(&d)) && device.len() > 1);
                        prop_assert!(began.is_none() && now >= ended_at);
                        began = Some(now);
                    }
                    true => prop_assert!(began.is_some_and(|began| now < began + HOLD_NS_MAX)),
                    false => if let Some(began) = began.take() {
                        ended_at = now + (REST * (now - began).min(HOLD_NS_MAX)).max(HOLD_NS_MAX);
                    }
                }
            }
        }
    }
}
