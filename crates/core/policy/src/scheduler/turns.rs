//! Turns: of two kinds one goes first, and the other is not forgotten.

/// Of the starts while both wait, one in so many is of the kind that goes second: starvation is bounded (P7).
pub(super) const SECOND_ONE_IN: usize = 16;

/// Counts how often the second kind was passed over.
#[derive(Debug, Default)]
pub(super) struct Turns {
    passed_over: usize,
}

impl Turns {
    /// Whether it is the turn of what goes second, which waits.
    pub fn is_second(&self) -> bool {
        self.passed_over + 1 >= SECOND_ONE_IN
    }

    /// One of those that go first has started; whether one of the others waited.
    pub fn first_started(&mut self, second_waits: bool) {
        self.passed_over = if second_waits { self.passed_over + 1 } else { 0 };
    }

    /// One of those that go second has started.
    pub fn second_started(&mut self) {
        self.passed_over = 0;
    }
}
