//! Starvation inside a device: what was started first need not end first.
//!
//! A disk takes what lies near its head first. As long as it is given more that lies there, a request that somebody waits for and that
//! lies elsewhere is left for last, for as long as the disk's own patience lasts (half a second was seen). What a device has been given
//! cannot be hurried, but it can be given nothing more until that one has ended: then it has nothing left to prefer.

use std::collections::BTreeMap;

/// So many operations that started later may end before one that is awaited: a disk chooses among them well, and takes about 60 ms.
pub const OVERTAKEN_MAX: u64 = 16;
/// Or so many for each awaited one that is outstanding, if that is more: with many of them some are late by chance.
pub const OVERTAKEN_FOR_EACH: u64 = 4;
/// Longest time in nanoseconds that nothing is started for the sake of one operation: a disk ends a few dozen meanwhile. What has not ended
/// then is stuck for another reason, and is not waited for again.
pub const HOLD_NS_MAX: u64 = 100_000_000;

/// The numbers of what has been started at a device.
#[derive(Clone, Debug, Default)]
pub struct Overtaking {
    started: u64,
    ended: u64,
    /// What is outstanding, by its number, and whether somebody waits for it who has not been given up.
    outstanding: BTreeMap<u64, bool>,
    awaited: u64,
    /// For which one nothing is started, and until when at most.
    hold: Option<(u64, u64)>,
    holds: u64,
}

impl Overtaking {
    /// An operation starts; its number.
    pub fn started(&mut self, awaited: bool) -> u64 {
        self.started += 1;
        self.awaited += u64::from(awaited);
        self.outstanding.insert(self.started, awaited);
        self.started
    }

    /// Somebody comes to wait for an outstanding operation.
    pub fn promoted(&mut self, number: u64) {
        if let Some(awaited @ false) = self.outstanding.get_mut(&number) {
            *awaited = true;
            self.awaited += 1;
        }
    }

    /// An operation has ended.
    pub fn ended(&mut self, number: u64) {
        if let Some(awaited) = self.outstanding.remove(&number) {
            self.ended += 1;
            self.awaited -= u64::from(awaited);
        }
    }

    /// Whether nothing more is to be started now, because an awaited operation has been overtaken too often and would be again.
    pub fn holds_back(&mut self, now_ns: u64) -> bool {
        // Of what has ended fewer than `number` can have started before it.
        let overtaken = OVERTAKEN_MAX.max(OVERTAKEN_FOR_EACH * self.awaited);
        let limit = self.ended.saturating_sub(overtaken);
        while let Some((number, _)) = self.outstanding.range(..=limit).find(|(_, awaited)| **awaited) {
            let number = *number;
            let has_younger = self.outstanding.last_key_value().is_some_and(|(last, _)| *last > number);
            let begun = self.hold.filter(|(held, _)| *held == number);
            let until = begun.map_or(now_ns.saturating_add(HOLD_NS_MAX), |(_, until)| until);
            if has_younger && now_ns < until {
                self.holds += u64::from(begun.is_none());
                self.hold = Some((number, until));
                return true;
            }
            self.outstanding.insert(number, false);
            self.awaited -= 1;
        }
        self.hold = None;
        false
    }

    /// For how many operations nothing was started, since the beginning.
    pub fn holds(&self) -> u64 {
        self.holds
    }

    /// When something may be started again at the latest, in nanoseconds, if [`Overtaking::holds_back`] has just said that nothing is.
    pub fn held_until(&self) -> Option<u64> {
        self.hold.map(|(_, until)| until)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A device with `depth` operations at a time that carries out the newest one of those that it has when it has carried one out: how many end
    /// before the first one does.
    fn ends_before_the_first(depth: usize, awaited: bool) -> u64 {
        let mut overtaking = Overtaking::default();
        let first = overtaking.started(awaited);
        let (mut device, mut carried_out) = (vec![first], overtaking.started(false));
        for ended in 0..10_000 {
            while device.len() + 1 < depth && !overtaking.holds_back(0) {
                device.push(overtaking.started(false));
            }
            overtaking.ended(carried_out);
            carried_out = device.pop().unwrap_or_else(|| overtaking.started(false));
            if carried_out == first {
                return ended + 1;
            }
        }
        10_000
    }

    #[test]
    fn a_device_that_prefers_others_gets_no_others() {
        assert_eq!(ends_before_the_first(8, false), 10_000, "nobody waits for it");
        for depth in [3, 8, 32] {
            let ends = ends_before_the_first(depth, true);
            assert!((OVERTAKEN_MAX + 1..=OVERTAKEN_MAX + depth as u64).contains(&ends), "{depth}: {ends}");
        }
    }

    #[test]
    fn what_comes_to_be_awaited_counts_from_its_start() {
        let mut overtaking = Overtaking::default();
        let first = overtaking.started(false);
        for _ in 0..=OVERTAKEN_MAX {
            let next = overtaking.started(true);
            overtaking.ended(next);
        }
        overtaking.started(false);
        assert!(!overtaking.holds_back(5));
        overtaking.promoted(first);
        assert!(overtaking.holds_back(5) && overtaking.holds_back(6));
        assert_eq!((overtaking.held_until(), overtaking.holds()), (Some(5 + HOLD_NS_MAX), 1));
        overtaking.ended(first);
        assert!(!overtaking.holds_back(7));
        assert_eq!(overtaking.held_until(), None);
    }

    #[test]
    fn what_never_ends_holds_back_once_and_for_a_while() {
        let mut overtaking = Overtaking::default();
        overtaking.started(true);
        for _ in 0..=OVERTAKEN_MAX {
            let next = overtaking.started(false);
            overtaking.ended(next);
        }
        assert!(!overtaking.holds_back(0), "it has the device for itself");
        let stuck = [overtaking.started(true), overtaking.started(true)];
        for _ in 0..=OVERTAKEN_MAX + 1 {
            let next = overtaking.started(false);
            overtaking.ended(next);
        }
        assert!(overtaking.holds_back(0) && overtaking.holds_back(HOLD_NS_MAX - 1));
        assert!(!overtaking.holds_back(HOLD_NS_MAX), "{stuck:?}");
        overtaking.started(false);
        assert!(
            !overtaking.holds_back(HOLD_NS_MAX + 1),
            "the other one has it for itself by then, and both are given up"
        );
    }

    proptest! {
        /// Beside a plain list: whoever is held back for is awaited, was overtaken by as many as it says, and is not alone.
        #[test]
        fn it_holds_back_for_a_reason(steps in proptest::collection::vec((0u8..4, any::<usize>(), any::<bool>()), 1..600)) {
            let mut overtaking = Overtaking::default();
            // Number, awaited, how many that started later have ended.
            let mut device: Vec<(u64, bool, u64)> = Vec::new();
            for (now, (kind, at, awaited)) in steps.into_iter().enumerate() {
                let at = at % device.len().max(1);
                match kind {
                    0 | 1 => device.push((overtaking.started(awaited), awaited, 0)),
                    2 if !device.is_empty() => {
                        let (number, ..) = device.remove(at);
                        overtaking.ended(number);
                        device.iter_mut().filter(|d| d.0 < number).for_each(|d| d.2 += 1);
                    }
                    3 if !device.is_empty() => {
                        device[at].1 = true;
                        overtaking.promoted(device[at].0);
                    }
                    _ => {}
                }
                if overtaking.holds_back(now as u64) {
                    let reason = device.iter().find(|d| d.1 && d.2 > OVERTAKEN_MAX);
                    prop_assert!(reason.is_some_and(|reason| device.iter().any(|d| d.0 > reason.0)));
                }
            }
        }
    }
}
