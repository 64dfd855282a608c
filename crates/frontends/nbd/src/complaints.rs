//! Lines in the log about connections, of which a flood makes as many as it likes: a few are written, the others are counted.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::lock::hold;

/// Lines that are written in a period.
pub(crate) const LINES_MAX: u32 = 4;

/// The period.
pub(crate) const PERIOD: Duration = Duration::from_secs(10);

#[derive(Default)]
struct State {
    /// When the period began; `None` while there is nothing to count.
    began: Option<Instant>,
    written: u32,
    left_out: u64,
}

/// What a server has to say of connections that it closes.
#[derive(Default)]
pub(crate) struct Complaints(Mutex<State>);

impl Complaints {
    /// Whether one more line may be written now. If not, it is counted.
    pub(crate) fn may_say(&self, now: Instant) -> bool {
        let mut state = hold(&self.0);
        if state.began.is_none_or(|began| now.duration_since(began) >= PERIOD && state.left_out == 0) {
            *state = State { began: Some(now), written: 0, left_out: 0 };
        }
        if state.written < LINES_MAX {
            state.written += 1;
            return true;
        }
        state.left_out += 1;
        false
    }

    /// How many lines were left out in a period that is over: that is worth a line of its own, once.
    pub(crate) fn left_out(&self, now: Instant) -> Option<u64> {
        let mut state = hold(&self.0);
        let over = state.began.is_some_and(|began| now.duration_since(began) >= PERIOD);
        if !over || state.left_out == 0 {
            return None;
        }
        Some(std::mem::take(&mut *state).left_out)
    }

    /// When [`Complaints::left_out`] will have something to tell.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        let state = hold(&self.0);
        state.began.filter(|_| state.left_out > 0).map(|began| began + PERIOD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_makes_a_few_lines_and_every_one_of_it_is_counted() {
        let (complaints, start) = (Complaints::default(), Instant::now());
        let (mut lines, mut told) = (0, 0);
        const EVENTS: u64 = 60_000;
        for n in 0..EVENTS {
            let now = start + Duration::from_millis(n);
            if let Some(left_out) = complaints.left_out(now) {
                lines += 1;
                told += left_out;
            }
            if complaints.may_say(now) {
                lines += 1;
                told += 1;
            }
        }
        assert!(complaints.next_at().is_some());
        told += complaints.left_out(start + PERIOD * 100).unwrap();
        assert_eq!(complaints.next_at(), None);
        assert_eq!(told, EVENTS);
        let periods = EVENTS as u32 / PERIOD.as_millis() as u32;
        assert!(lines <= periods * (LINES_MAX + 1), "{lines} lines");
    }

    #[test]
    fn what_is_rare_is_said_each_time() {
        let (complaints, start) = (Complaints::default(), Instant::now());
        assert!((0..100).all(|n| complaints.may_say(start + PERIOD / LINES_MAX * n)));
        assert_eq!(complaints.left_out(start + PERIOD * 100), None);
    }
}
