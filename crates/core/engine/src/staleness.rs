//! Writers that are held back because the backing lacks nearly as much as is allowed.
//!
//! ```text
//!   at the edge:  holds ─────── progress ── holds ─────── HOLD_MS_MAX without progress ─► lets one round go ── holds ···
//!   not at it:    lets go
//! ```
//!
//! A backing that does nothing is no reason to wait for good (P7).

use forebay_block::Nanos;
use forebay_policy::HOLD_MS_MAX;

/// What becomes of writers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holding {
    /// There is room.
    Free,
    /// They are held back, but this round goes.
    LetGo,
    /// They are held back from now on.
    Begins,
    GoesOn,
}

#[derive(Clone, Copy)]
struct Held {
    /// Since when the backing has made no progress.
    since: Nanos,
    /// What it had done then.
    progress: u64,
}

/// Whether writers are held back, and since when.
#[derive(Default)]
pub(crate) struct Hold {
    held: Option<Held>,
}

impl Hold {
    /// Whether writers are held back now. `edge`: they would bring the backing beyond the bound; `progress` grows with whatever the
    /// backing takes.
    pub(crate) fn step(&mut self, edge: bool, progress: u64, now: Nanos) -> Holding {
        if !edge {
            self.held = None;
            return Holding::Free;
        }
        let Some(held) = &mut self.held else {
            self.held = Some(Held { since: now, progress });
            return Holding::Begins;
        };
        if held.progress != progress {
            *held = Held { since: now, progress };
        }
        if now >= held.since.plus_ms(HOLD_MS_MAX) {
            held.since = now;
            return Holding::LetGo;
        }
        Holding::GoesOn
    }

    /// When they are let go if the backing does nothing.
    pub(crate) fn until(&self) -> Option<Nanos> {
        self.held.map(|held| held.since.plus_ms(HOLD_MS_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_until_there_is_room_or_nothing_moves() {
        use Holding::{Begins, Free, GoesOn, LetGo};
        let mut hold = Hold::default();
        for (ms, edge, progress, expected, until) in [
            (0, false, 0, Free, None),
            (1, true, 0, Begins, Some(1 + HOLD_MS_MAX)),
            (HOLD_MS_MAX, true, 0, GoesOn, Some(1 + HOLD_MS_MAX)),
            // Nothing has moved: one round goes, and no more.
            (1 + HOLD_MS_MAX, true, 0, LetGo, Some(1 + 2 * HOLD_MS_MAX)),
            (2 + HOLD_MS_MAX, true, 0, GoesOn, Some(1 + 2 * HOLD_MS_MAX)),
            // Something has: they wait from the beginning.
            (2 * HOLD_MS_MAX, true, 1, GoesOn, Some(3 * HOLD_MS_MAX)),
            (1 + 2 * HOLD_MS_MAX, true, 1, GoesOn, Some(3 * HOLD_MS_MAX)),
            (2 + 2 * HOLD_MS_MAX, false, 1, Free, None),
            (3 + 2 * HOLD_MS_MAX, true, 1, Begins, Some(3 + 3 * HOLD_MS_MAX)),
        ] {
            let now = Nanos(0).plus_ms(ms);
            assert_eq!(hold.step(edge, progress, now), expected, "{ms} ms");
            assert_eq!(hold.until(), until.map(|ms| Nanos(0).plus_ms(ms)), "{ms} ms");
        }
    }
}
