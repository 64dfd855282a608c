//! What a device still has to do for writes that it has acknowledged: a flush waits for all of it.
//!
//! A device with a volatile cache ends a write as soon as it has the data. "One non-critical operation outstanding"
//! (RCP, FAST'17, section 4) bounds nothing there: one after the other ends at once, the cache is full of them, and each
//! flush that somebody waits for empties it. A commit that writes 8 KiB takes as long as megabytes of a checkpoint.
//!
//! So acknowledged bytes count until the device has carried them out, which it does at a *rate*. While flushes are waited
//! for, a further write that nobody waits for starts only when what is left would delay a flush by no more than
//! [`DELAY_NS`]. The device is as busy as before, but with what it can end soon.
//!
//! ```text
//!   level │\   one starts
//!         │ \    |\              it falls at the rate; a flush that ends leaves what has started since it began
//!         │  \   | \
//!   rate ×│┄┄┄\┄┄|┄┄\┄┄┄┄        below this the next one may start
//!   delay │    \_|   \___
//!         └────────────────► time
//! ```
//!
//! **The rate** is learned from the flushes. One that takes longer than the level says lowers it, one that takes no longer
//! raises it, so that a device without such a cache is not slowed down. It never falls below [`RATE_MIN`]: so whatever
//! waits for the level starts within a bounded time.

/// Longest delay in nanoseconds of a flush, by what has started before it. About what a flush takes by itself on an SSD.
pub const DELAY_NS: u64 = 500_000;
/// The rate is never taken to be lower than this, in bytes a second: a disk's, with operations of 32 KiB here and there.
pub const RATE_MIN: u64 = 4 << 20;
/// The rate in the beginning, and the highest, in bytes a second: nothing is slowed down by it.
pub const RATE_MAX: u64 = 8 << 30;
/// So long after a flush that somebody has waited for the next one is expected, in nanoseconds.
pub const EXPECTED_NS: u64 = 250_000_000;
/// Nothing is learned from a flush before which fewer bytes were written: it takes its own time.
const TELLING_BYTES: u64 = 64 << 10;

/// A flush that somebody waits for, at the device.
#[derive(Clone, Copy, Debug)]
struct Flush {
    number: u64,
    started_ns: u64,
    /// What it waits for, as far as is known.
    level: u64,
    /// Bytes written since the flush before: what nobody waits for, and what somebody does.
    background: u64,
    critical: u64,
}

/// See the module's documentation. All times are nanoseconds of one clock.
#[derive(Clone, Debug)]
pub struct Backlog {
    /// Bytes a second.
    rate: u64,
    /// Bytes that nobody waits for and that the device has not carried out, at that time.
    level: u64,
    at_ns: u64,
    /// Bytes of these that have started since the flush under way did.
    since_flush: u64,
    /// Bytes that somebody waits for, since the last flush started.
    critical: u64,
    /// What a flush takes by itself.
    alone_ns: u64,
    flush: Option<Flush>,
    /// The flush has ended, and nobody has said yet when.
    has_ended: bool,
    last_flush_ns: Option<u64>,
}

impl Default for Backlog {
    fn default() -> Self {
        Self {
            rate: RATE_MAX,
            level: 0,
            at_ns: 0,
            since_flush: 0,
            critical: 0,
            alone_ns: 0,
            flush: None,
            has_ended: false,
            last_flush_ns: None,
        }
    }
}

/// `a × b ÷ c`, which the largest number stands for if it is too large.
fn scaled(a: u64, b: u64, c: u64) -> u64 {
    u64::try_from(u128::from(a) * u128::from(b) / u128::from(c.max(1))).unwrap_or(u64::MAX)
}

const SECOND_NS: u64 = 1_000_000_000;

impl Backlog {
    /// Time passes. To be told before anything else of what happens then.
    pub fn pass(&mut self, now_ns: u64) {
        let passed = now_ns.saturating_sub(self.at_ns);
        // Rounded up, so that it has fallen at the time that was told.
        let carried_out = scaled(passed, self.rate, SECOND_NS).saturating_add(u64::from(passed > 0));
        self.level = self.level.saturating_sub(carried_out);
        self.at_ns = self.at_ns.max(now_ns);
        if std::mem::take(&mut self.has_ended)
            && let Some(flush) = self.flush.take()
        {
            self.learn(flush, now_ns.saturating_sub(flush.started_ns));
            self.level = self.level.min(self.since_flush);
        }
    }

    /// A write starts that is not durable when it ends, of so many bytes.
    pub fn written(&mut self, bytes: u64, is_awaited: bool) {
        if is_awaited {
            self.critical = self.critical.saturating_add(bytes);
        } else {
            self.level = self.level.saturating_add(bytes);
            self.since_flush = self.since_flush.saturating_add(bytes);
        }
    }

    /// A flush starts that somebody waits for. Of several at a time one counts.
    pub fn flush_started(&mut self, number: u64) {
        self.last_flush_ns = Some(self.at_ns);
        if self.flush.is_none() {
            let background = std::mem::take(&mut self.since_flush).max(self.level);
            let critical = std::mem::take(&mut self.critical);
            self.flush =
                Some(Flush { number, started_ns: self.at_ns, level: self.level, background, critical });
        }
    }

    /// An operation has ended; the time is told next.
    pub fn ended(&mut self, number: u64) {
        self.has_ended |= self.flush.is_some_and(|flush| flush.number == number);
    }

    /// Until when no further write may start that nobody waits for, unless another flush comes; `None` if one may.
    pub fn held_until(&self) -> Option<u64> {
        let expected_until = self.last_flush_ns?.saturating_add(EXPECTED_NS);
        let most = scaled(DELAY_NS, self.rate, SECOND_NS);
        let falls_ns = || scaled(self.level - most, SECOND_NS, self.rate).saturating_add(1);
        let is_held = self.at_ns < expected_until && self.level > most;
        is_held.then(|| self.at_ns.saturating_add(falls_ns()).min(expected_until))
    }

    /// From how long a flush took, in nanoseconds.
    fn learn(&mut self, flush: Flush, took_ns: u64) {
        let ns = |bytes| scaled(bytes, SECOND_NS, self.rate);
        if flush.background == 0 {
            self.alone_ns = (7 * self.alone_ns + took_ns.saturating_sub(ns(flush.critical))) / 8;
        }
        if flush.background.saturating_add(flush.critical) < TELLING_BYTES {
            return;
        }
        let expected_ns = self.alone_ns.saturating_add(ns(flush.level.saturating_add(flush.critical)));
        // A quarter may be chance, and half of the delay is no matter.
        let slow_ns = expected_ns.saturating_add(expected_ns / 4).saturating_add(DELAY_NS / 2);
        self.rate = match took_ns {
            took if took > slow_ns => self.rate - self.rate / 4,
            took if took <= expected_ns => self.rate + self.rate / 8,
            _ => self.rate,
        };
        self.rate = self.rate.clamp(RATE_MIN, RATE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    /// What flushes took that came 2 ms after one another, of which each follows a write of 8 KiB; and bytes a second that somebody wrote
    /// who writes 64 KiB whenever it may.
    struct Life {
        flushes_ns: Vec<u64>,
        background: u64,
    }

    /// A device that acknowledges at once and carries out so many bytes a second, for a second; a flush takes `alone_ns` more. In the beginning
    /// there are flushes alone.
    fn life(rate: u64, alone_ns: u64, backlog: &mut Backlog) -> Life {
        let (mut held, mut background, mut flushes_ns) = (0u64, 0, Vec::new());
        let (mut number, mut flush): (u64, Option<(u64, u64)>) = (0, None);
        let mut next_flush_ns = 0;
        for now_ns in (0..1000 * MS).step_by(50_000) {
            held = held.saturating_sub(scaled(50_000, rate, SECOND_NS));
            if let Some((started_ns, ends_ns)) = flush
                && now_ns >= ends_ns
            {
                flushes_ns.push(now_ns - started_ns);
                backlog.ended(number);
                (flush, next_flush_ns) = (None, now_ns + 2 * MS);
            }
            backlog.pass(now_ns);
            if flush.is_none() && now_ns >= next_flush_ns {
                backlog.written(8 << 10, true);
                held += 8 << 10;
                number += 1;
                backlog.flush_started(number);
                flush = Some((now_ns, now_ns + alone_ns + scaled(held, SECOND_NS, rate)));
            }
            // Its cache is not without end.
            while now_ns > 50 * MS && held < 4 << 20 && backlog.held_until().is_none() {
                backlog.written(64 << 10, false);
                (held, background) = (held + (64 << 10), background + (64 << 10));
                backlog.pass(now_ns);
            }
        }
        Life { flushes_ns, background }
    }

    #[test]
    fn flushes_wait_for_little_and_the_device_is_busy() {
        for rate in [100 << 20, 500 << 20] {
            let flushes = |life: &Life| {
                let mut last = life.flushes_ns[life.flushes_ns.len() / 2..].to_vec();
                last.sort_unstable();
                last[last.len() * 9 / 10]
            };
            let with = life(rate, MS, &mut Backlog::default());
            let full_ns = MS + scaled(4 << 20, SECOND_NS, rate);
            println!(
                "{rate}: {} us of {}, {} MB/s",
                flushes(&with) / 1000,
                full_ns / 1000,
                with.background >> 20
            );
            assert!(flushes(&with) < 4 * MS.max(full_ns / 10), "{} ns", flushes(&with));
            assert!(with.background > rate / 2, "{} bytes a second", with.background);
        }
    }

    #[test]
    fn a_device_that_holds_nothing_back_is_not_slowed_down() {
        let mut backlog = Backlog::default();
        let free = life(RATE_MAX, MS / 10, &mut backlog);
        assert_eq!(backlog.rate, RATE_MAX);
        assert!(free.background > 2 << 30, "{} bytes a second", free.background);
    }

    #[test]
    fn without_flushes_nothing_is_held_and_a_flush_is_not_expected_for_ever() {
        let mut backlog = Backlog { rate: RATE_MIN, ..Backlog::default() };
        backlog.written(1 << 30, false);
        assert_eq!(backlog.held_until(), None);
        backlog.flush_started(1);
        assert_eq!(backlog.held_until(), Some(EXPECTED_NS), "not for as long as it takes");
        backlog.pass(EXPECTED_NS);
        assert_eq!(backlog.held_until(), None);
    }

    proptest! {
        /// Whatever flushes take: what waits may start once the device has had the time for what was before it, at the lowest rate.
        #[test]
        fn nothing_is_held_for_long(steps in proptest::collection::vec((0u8..5, 0u64..40 * MS, 1u64..=1 << 20), 1..200)) {
            let (mut backlog, mut now_ns, mut number) = (Backlog::default(), 0, 0);
            for (step, passes_ns, bytes) in steps {
                now_ns += passes_ns;
                backlog.pass(now_ns);
                match step {
                    0 => backlog.written(bytes, true),
                    1 => {
                        number += 1;
                        backlog.flush_started(number);
                    }
                    2 => backlog.ended(number),
                    _ if backlog.held_until().is_none() => backlog.written(bytes, false),
                    _ => {}
                }
                let held_ns = backlog.held_until().map_or(0, |until| until - now_ns);
                // One write, and what may have been left before it.
                let level = (1 << 20) + scaled(DELAY_NS, RATE_MAX, SECOND_NS);
                prop_assert!(held_ns <= scaled(level, SECOND_NS, RATE_MIN), "{held_ns} ns");
                prop_assert!((RATE_MIN..=RATE_MAX).contains(&backlog.rate));
            }
            if let Some(until) = backlog.held_until() {
                backlog.pass(until);
                prop_assert_eq!(backlog.held_until(), None, "at the time that was told");
            }
        }
    }
}
