//! The throttle: how fast writes may enter a log that fills, so that they are slowed down to what leaves it, and
//! never stopped.
//!
//! ```text
//!   share of the rate at which room is made, by room in percent of the log
//!
//!                 0 ······ 12.5 ······ 25 ······ 32.5 ······ 40 ······ 100
//!     awaited     0 ─────── 1 ──────► any ──────────────────────────────►
//!     not awaited 0.06 ──────────────►0.06 ────── 1 ───────► any ───────►
//! ```
//!
//! The log is freed a segment at a time, and cleaned a flush at a time. Writers are given room evenly instead: so
//! much of the rate at which it was made lately as the curve says. Where more enters than leaves, room shrinks until
//! the two are equal. It settles where the curve passes 1.
//!
//! After ZFS's write throttle (a delay that grows with the share of dirty data, from `zfs_delay_min_dirty_percent`
//! on; `module/zfs/dmu_tx.c`), with a measured rate in place of a configured one. What nobody waits for is slowed
//! down first, and to almost nothing where what somebody waits for begins to be.

use std::collections::VecDeque;

use crate::Priority;

/// Room in percent of the log from which on writes that somebody waits for are slowed down. They settle at half of
/// it.
const CRITICAL_FROM_PERCENT: u64 = 25;
/// In a small log it is so many segments, and at most half of the log: one is being filled, one is being emptied, and
/// what is written is flushed.
const CRITICAL_FROM_SEGMENTS: u64 = 8;
/// Further room in percent of the log from which on writes that nobody waits for are slowed down. Where the others
/// begin they get the least.
const NONCRITICAL_PERCENT: u64 = 15;
/// Of the rate at which room is made, in thousandths, what writes that nobody waits for get at least (P7).
const NONCRITICAL_LEAST: u64 = 60;
/// The most that either kind gets while it is slowed down.
const SHARE_MOST: u64 = 20_000;
/// Longest that one write is held back beyond the one before it, whatever the rates say, in nanoseconds: a backing
/// that hardly moves is told by the log's being full, and by nothing else (P7).
pub const THROTTLE_NS_MAX: u64 = 250_000_000;
/// Time by which a late writer may make up for its being late, in nanoseconds: who wakes them has no better clock.
const LATE_NS_MAX: u64 = 1_000_000;
/// How long after a write that is known to be awaited others count as not awaited, in nanoseconds.
pub const HINTED_NS: u64 = 1_000_000_000;
/// The rate is that of the latest such part of the log, in percent, that became free.
const WINDOW_PERCENT: u64 = 25;
/// Measurements in it.
const SAMPLES: usize = 16;
/// Parts of it in which evenly made room is counted: what is less waits for more, so that nothing is lost to rounding.
const EVEN_PARTS: u64 = 1024;

/// What is known of the log's room, in bytes of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogRoom {
    /// All that writes may fill.
    pub log_bytes: u64,
    /// What becomes free at a time.
    pub segment_bytes: u64,
    /// What is free or as good as free: all but what lies behind the oldest dirty block, with what of that is clean
    /// already.
    pub free_bytes: u64,
    /// What has become free since the beginning of time. It never shrinks.
    pub made_bytes: u64,
    /// What will become free next: it is on its way to the backing, or awaits its flush.
    pub coming_bytes: u64,
    /// Destaging is under way: how fast room is made says something of the backing.
    pub destages: bool,
}

impl LogRoom {
    /// Room from which on writes that somebody waits for are slowed down.
    fn critical_from(&self) -> u64 {
        let small = (self.segment_bytes * CRITICAL_FROM_SEGMENTS).min(self.log_bytes / 2);
        small.max(self.log_bytes * CRITICAL_FROM_PERCENT / 100)
    }
}

/// When one kind of writes went last.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    at_ns: u64,
    bytes: u64,
}

/// The chooser. Times are by any clock in nanoseconds that does not go back.
#[derive(Clone, Debug, Default)]
pub struct Throttle {
    /// When how much had been made, oldest first.
    samples: VecDeque<(u64, u64)>,
    /// Bytes a second at which room was made lately; 0 if that is not known.
    rate: u64,
    room: LogRoom,
    /// What would have been made if it came evenly, and when.
    even_bytes: u64,
    even_ns: u64,
    critical: Pace,
    noncritical: Pace,
    /// Until then writes that are not known to be awaited count as such.
    hinted_until_ns: u64,
}

impl Throttle {
    /// Looks at the log's room, as it is now.
    pub fn look(&mut self, room: LogRoom, now_ns: u64) {
        let window = room.log_bytes * WINDOW_PERCENT / 100;
        if !room.destages {
            // What the backing can do is not seen while it has nothing to do.
            self.samples.clear();
        } else {
            self.sample(room.made_bytes, window, now_ns);
        }
        if let Some(even) = self.evenly_made(&room, window, now_ns) {
            (self.even_bytes, self.even_ns) = (even, now_ns);
        }
        self.room = room;
    }

    fn sample(&mut self, made: u64, window: u64, now_ns: u64) {
        let portion = window / SAMPLES as u64;
        if self.samples.back().is_some_and(|(_, last)| made < last + portion.max(1)) {
            return;
        }
        self.samples.push_back((now_ns, made));
        while self.samples.len() > SAMPLES
            || self.samples.len() > 3 && self.samples.get(1).is_some_and(|(_, next)| next + window <= made)
        {
            self.samples.pop_front();
        }
        if let (Some((from_ns, from)), true) = (self.samples.front(), self.samples.len() > 2) {
            self.rate = per_second(made - from, now_ns - from_ns);
        }
    }

    /// What has been made if it comes evenly: at the rate of lately, and drawn to what was made. `None` if too little
    /// to be counted has come since the last time.
    fn evenly_made(&self, room: &LogRoom, window: u64, now_ns: u64) -> Option<u64> {
        let target = room.made_bytes;
        let step = per_ns(self.rate, now_ns.saturating_sub(self.even_ns));
        if self.rate == 0 || step >= window || room.log_bytes != self.room.log_bytes {
            return Some(target);
        }
        if step < window / EVEN_PARTS {
            return None;
        }
        let even = self.even_bytes + step;
        let part = |of: u64| (u128::from(of) * u128::from(step) / u128::from(window.max(1))) as u64;
        let drawn = match even < target {
            true => even + part(target - even),
            false => even - part(even - target),
        };
        Some(drawn.clamp(room.made_bytes.saturating_sub(window), room.made_bytes + room.coming_bytes))
    }

    /// Bytes a second at which room is made, as far as is known now: less than it was if what is due does not come.
    fn rate_now(&self, now_ns: u64) -> u64 {
        match (self.samples.front(), self.samples.back()) {
            (Some((from_ns, from)), Some((last_ns, last))) if self.samples.len() > 2 => {
                // As long again as between two of them is no delay yet.
                let between = (last_ns - from_ns) / (self.samples.len() as u64 - 1);
                let late = now_ns.saturating_sub(last_ns + 2 * between);
                self.rate.min(per_second(last - from, last_ns - from_ns + late))
            }
            _ => self.rate,
        }
    }

    /// Room as it would be if it came evenly.
    fn free_evenly(&self, now_ns: u64) -> u64 {
        let made = self.even_bytes + per_ns(self.rate, now_ns.saturating_sub(self.even_ns));
        let made = made.min(self.room.made_bytes + self.room.coming_bytes);
        (self.room.free_bytes + made).saturating_sub(self.room.made_bytes).min(self.room.log_bytes)
    }

    /// What writes of this kind get of the rate at which room is made, in thousandths; `None`: they are not slowed
    /// down.
    fn share(&self, priority: Priority, now_ns: u64) -> Option<u64> {
        let (from, free) = (self.room.critical_from(), self.free_evenly(now_ns));
        let share = |room: u64, from: u64| {
            let left = from.checked_sub(room).filter(|left| *left > 0)?;
            // The root of what would be even: room comes in portions, and writers are not to feel each.
            let thousandths = (u128::from(room) * 1_000_000 / u128::from(left)).isqrt();
            Some(u64::try_from(thousandths).unwrap_or(u64::MAX).min(SHARE_MOST))
        };
        match priority {
            Priority::Critical => share(free, from),
            Priority::NonCritical => {
                let own = self.room.log_bytes * NONCRITICAL_PERCENT / 100;
                share(free.saturating_sub(from), own).map(|share| share.max(NONCRITICAL_LEAST))
            }
        }
    }

    /// From when on the next write of this kind may enter the log; `None`: at once.
    pub fn due_ns(&self, priority: Priority, now_ns: u64) -> Option<u64> {
        Some(self.due_at(priority, now_ns)).filter(|due| *due > now_ns)
    }

    /// Which kind of write it is, one that is known to be `awaited` or not. Where nobody says who waits, somebody
    /// does: what is not known to be awaited is nobody's only while there is something that is.
    pub fn kind(&mut self, awaited: bool, now_ns: u64) -> Priority {
        if awaited {
            self.hinted_until_ns = now_ns.saturating_add(HINTED_NS);
        }
        match self.hinted_until_ns(now_ns) {
            Some(_) if !awaited => Priority::NonCritical,
            _ => Priority::Critical,
        }
    }

    /// Until when writes that are not known to be awaited are taken for nobody's; `None` if they are not now.
    pub fn hinted_until_ns(&self, now_ns: u64) -> Option<u64> {
        Some(self.hinted_until_ns).filter(|until| *until > now_ns)
    }

    /// Whether it has seen how fast room is made.
    pub fn knows_rate(&self) -> bool {
        self.rate > 0
    }

    /// Whether writes of this kind are slowed down.
    pub fn slows(&self, priority: Priority, now_ns: u64) -> bool {
        self.knows_rate() && self.share(priority, now_ns).is_some()
    }

    /// Writes of this kind have entered the log and take so much of it.
    pub fn entered(&mut self, priority: Priority, bytes: u64, now_ns: u64) {
        let due = self.due_at(priority, now_ns);
        let pace = match priority {
            Priority::Critical => &mut self.critical,
            Priority::NonCritical => &mut self.noncritical,
        };
        *pace = Pace { at_ns: due.clamp(now_ns.saturating_sub(LATE_NS_MAX), now_ns), bytes };
    }

    /// From when on the next one may enter, or might have.
    fn due_at(&self, priority: Priority, now_ns: u64) -> u64 {
        let share = self.share(priority, now_ns).filter(|_| self.knows_rate());
        let Some(share) = share else { return now_ns };
        let pace = self.pace(priority);
        let rate = u128::from(self.rate_now(now_ns)) * u128::from(share);
        let wait_ns = u128::from(pace.bytes) * 1_000_000_000_000 / rate.max(1);
        pace.at_ns.saturating_add(u64::try_from(wait_ns).unwrap_or(u64::MAX).min(THROTTLE_NS_MAX))
    }

    fn pace(&self, priority: Priority) -> &Pace {
        match priority {
            Priority::Critical => &self.critical,
            Priority::NonCritical => &self.noncritical,
        }
    }
}

/// Bytes that come in so many nanoseconds at so many a second.
fn per_ns(rate: u64, ns: u64) -> u64 {
    u64::try_from(u128::from(rate) * u128::from(ns) / 1_000_000_000).unwrap_or(u64::MAX)
}

fn per_second(bytes: u64, ns: u64) -> u64 {
    let rate = u128::from(bytes) * 1_000_000_000 / u128::from(ns.max(1));
    u64::try_from(rate).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use Priority::{Critical, NonCritical};

    const LOG: u64 = 64 << 20;
    const MS: u64 = 1_000_000;

    fn room(free_percent: u64, made_bytes: u64) -> LogRoom {
        let free_bytes = LOG * free_percent / 100;
        LogRoom {
            log_bytes: LOG,
            segment_bytes: 1 << 20,
            free_bytes,
            made_bytes,
            coming_bytes: 0,
            destages: true,
        }
    }

    /// A throttle that has seen a mebibyte made in each so many milliseconds, and has so much room; and the time.
    fn seen(ms: u64, free_percent: u64) -> (Throttle, u64) {
        let mut throttle = Throttle::default();
        for n in 0..=20 {
            throttle.look(room(free_percent, n << 20), n * ms * MS);
        }
        (throttle, 20 * ms * MS)
    }

    /// How long after a mebibyte the next write waits, in milliseconds.
    fn wait_ms(free_percent: u64, priority: Priority) -> Option<u64> {
        let (mut throttle, now) = seen(10, free_percent);
        throttle.entered(priority, 1 << 20, now);
        throttle.due_ns(priority, now).map(|due| (due + LATE_NS_MAX - now + MS / 2) / MS)
    }

    #[test]
    fn writers_are_slowed_down_as_room_shrinks() {
        let waits = |priority| [50, 39, 32, 25, 20, 12, 6, 1].map(|free| wait_ms(free, priority));
        let critical = waits(Critical);
        assert_eq!(critical[..4], [None; 4], "there is room for all that somebody waits for");
        assert_eq!(
            critical[4..],
            [Some(5), Some(10), Some(18), Some(49)],
            "at half of it room comes as it goes"
        );
        let noncritical = waits(NonCritical);
        assert_eq!(
            (noncritical[0], noncritical[2]),
            (None, Some(11)),
            "what nobody waits for has less of the log"
        );
        assert_eq!(noncritical[3..], [Some(167); 5], "and hardly anything where the others are slowed down");
    }

    #[test]
    fn a_small_log_keeps_room_for_whole_segments() {
        let from = |segments: u64| LogRoom { log_bytes: segments << 20, ..room(0, 0) }.critical_from() >> 20;
        assert_eq!([4, 12, 16, 20, 32, 64].map(from), [2, 6, 8, 8, 8, 16]);
    }

    #[test]
    fn what_nobody_is_known_to_wait_for_is_slowed_down_first_where_somebody_is_known_to_wait() {
        let mut throttle = Throttle::default();
        assert_eq!(throttle.kind(false, 0), Critical, "nobody says who waits");
        assert_eq!(throttle.kind(true, 5), Critical);
        assert_eq!(
            [6, HINTED_NS + 4, HINTED_NS + 5].map(|now| throttle.kind(false, now)),
            [NonCritical, NonCritical, Critical]
        );
        let until = Some(HINTED_NS + 5);
        assert_eq!(
            [6, HINTED_NS + 4, HINTED_NS + 5].map(|now| throttle.hinted_until_ns(now)),
            [until, until, None]
        );
    }

    #[test]
    fn what_is_not_known_slows_nobody_down() {
        let mut throttle = Throttle::default();
        let free = |throttle: &mut Throttle, now| {
            throttle.entered(Critical, 1 << 20, now);
            throttle.due_ns(Critical, now).is_none() && !throttle.slows(Critical, now)
        };
        assert!(free(&mut throttle, 0), "nothing has been seen");
        throttle.look(room(1, 0), 0);
        throttle.look(room(1, 1 << 20), 10 * MS);
        assert!(free(&mut throttle, 11 * MS), "one portion is no rate");
        let (mut known, now) = seen(10, 1);
        assert!(!free(&mut known, now));
        known.look(LogRoom::default(), now + MS);
        assert!(free(&mut known, now + MS), "there is no log that could fill");
    }

    #[test]
    fn a_backing_that_was_idle_keeps_its_rate_and_one_that_stops_loses_it() {
        let wait = |throttle: &mut Throttle, now| {
            throttle.entered(Critical, 1 << 20, now);
            throttle.due_ns(Critical, now).map_or(0, |due| (due + LATE_NS_MAX - now + MS / 2) / MS)
        };
        let (mut throttle, now) = seen(10, 12);
        throttle.look(LogRoom { destages: false, ..room(12, 20 << 20) }, now + 500 * MS);
        assert_eq!(wait(&mut throttle, now + 5_000 * MS), 10, "it had nothing to do");
        let (mut throttle, now) = seen(10, 12);
        throttle.look(room(12, 20 << 20), now + 15 * MS);
        assert_eq!(wait(&mut throttle, now + 15 * MS), 10, "it is hardly late");
        assert_eq!(wait(&mut throttle, now + 320 * MS), 31, "nothing has come for twice the window");
        assert_eq!(
            wait(&mut throttle, now + 60_000 * MS),
            THROTTLE_NS_MAX / MS,
            "and a stuck one does not hold for ever"
        );
    }

    #[test]
    fn room_that_comes_in_portions_is_given_evenly() {
        // Four mebibytes at a time; between them as much is on its way. One writer takes 64 KiB at a time.
        let (mut throttle, start) = seen(10, 25);
        let (mut made, mut used, mut now, mut waits) = (20u64 << 20, 0u64, start, Vec::new());
        let begun = made;
        while now < start + 4_000 * MS {
            let due = begun + ((now - start) / (40 * MS)) * (4 << 20);
            made = made.max(due);
            let free_bytes = (LOG / 4 + made - begun).saturating_sub(used);
            throttle.look(LogRoom { coming_bytes: 4 << 20, free_bytes, ..room(0, made) }, now);
            match throttle.due_ns(Critical, now) {
                Some(due) => now = due,
                None => {
                    assert!(free_bytes >= 64 << 10, "the log is never full");
                    throttle.entered(Critical, 64 << 10, now);
                    used += 64 << 10;
                    waits.push(now);
                }
            }
        }
        let waits: Vec<u64> = waits.windows(2).map(|w| w[1] - w[0]).skip(waits.len() / 2).collect();
        let (least, most) = (waits.iter().min().unwrap(), waits.iter().max().unwrap());
        assert!(*most < least * 3 / 2, "from {least} to {most} ns");
        assert!(used >= (made - begun) * 95 / 100, "{used} of {}", made - begun);
    }

    #[test]
    fn looking_often_makes_no_less_room() {
        // A mebibyte in ten milliseconds; one looks each time that less than a byte has come, the other once.
        let coming = LogRoom { coming_bytes: 4 << 20, ..room(12, 20 << 20) };
        let [often, once] = [100_000, 1].map(|looks| {
            let (mut throttle, now) = seen(10, 12);
            throttle.look(coming, now);
            (1..=looks).for_each(|n| throttle.look(coming, now + n * MS / looks));
            throttle.free_evenly(now + MS)
        });
        assert!(once > coming.free_bytes + (96 << 10), "{once} bytes");
        assert!(often.abs_diff(once) < 1 << 10, "{often} bytes, and {once}");
    }

    /// Writers who take whatever they are given: of each kind so many bytes at a time, if any.
    struct Greedy {
        throttle: Throttle,
        now: u64,
        made: u64,
        bytes: [u64; 2],
        used: [u64; 2],
        /// Since when each kind has been waiting although there is room, and the longest such time.
        since: [u64; 2],
        longest_ns: [u64; 2],
    }

    impl Greedy {
        fn free(&self) -> u64 {
            LOG + self.made - self.used[0] - self.used[1]
        }

        fn look(&mut self) {
            let room = LogRoom { free_bytes: self.free(), ..room(0, self.made) };
            self.throttle.look(room, self.now);
        }

        fn run(&mut self, until: u64) {
            while self.now < until {
                let mut next = until;
                for (n, priority) in [Critical, NonCritical].into_iter().enumerate() {
                    if self.bytes[n] == 0 {
                        continue;
                    }
                    if self.free() < self.bytes[n] {
                        self.since[n] = self.now;
                        continue;
                    }
                    match self.throttle.due_ns(priority, self.now) {
                        Some(due) => next = next.min(due),
                        None => {
                            self.throttle.entered(priority, self.bytes[n], self.now);
                            self.used[n] += self.bytes[n];
                            self.longest_ns[n] = self.longest_ns[n].max(self.now - self.since[n]);
                            self.since[n] = self.now;
                            self.look();
                            next = self.now;
                        }
                    }
                }
                self.now = next;
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// However room comes and whoever writes: what comes is given out, so that no more room piles up than the
        /// curves begin with (P7); nobody waits longer than the bound while there is room; and what somebody waits
        /// for gets nearly all of it.
        #[test]
        fn what_comes_is_given_out(
            portion_kib in 256u64..2048,
            every_us in 500u64..50_000,
            jitter in proptest::collection::vec(0u64..100, 300..301),
            critical_kib in prop_oneof![Just(0u64), 16u64..256],
            noncritical_kib in 16u64..256,
        ) {
            let bytes = [critical_kib << 10, noncritical_kib << 10];
            let portion = portion_kib << 10;
            let zeroes = [0; 2];
            let (now, made, throttle) = (0, 0, Throttle::default());
            let mut greedy = Greedy { throttle, now, made, bytes, used: zeroes, since: zeroes, longest_ns: zeroes };
            greedy.look();
            let mut at_half = zeroes;
            for (n, jitter) in jitter.iter().enumerate() {
                greedy.run(greedy.now + every_us * 1000 * (50 + jitter) / 100);
                greedy.made += portion.min(greedy.used[0] + greedy.used[1] - greedy.made);
                greedy.look();
                if n == 150 {
                    at_half = greedy.used;
                }
            }
            let from = CRITICAL_FROM_PERCENT + if critical_kib > 0 { 0 } else { NONCRITICAL_PERCENT };
            let free = greedy.free();
            prop_assert!(free <= LOG * from / 100 + 2 * portion, "{} MiB are kept back", free >> 20);
            let longest = greedy.longest_ns.into_iter().max().unwrap_or(0);
            prop_assert!(longest <= THROTTLE_NS_MAX, "somebody waited for {longest} ns");
            let got = [0, 1].map(|n| greedy.used[n] - at_half[n]);
            prop_assert!(critical_kib == 0 || got[0] >= 4 * got[1], "{got:?}");
        }
    }
}
