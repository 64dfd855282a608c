//! What is simulated: anything with the engine's front.

use forebay_block::Nanos;
use forebay_engine::{Effect, Engine, Event, State};
use forebay_policy::Staleness;

/// The engine, or a toy with the same front that the simulator's own tests use.
pub trait Subject {
    /// As [`Engine::handle`].
    fn handle(&mut self, event: Event, now: Nanos);
    /// As [`Engine::poll`].
    fn poll(&mut self, now: Nanos, effects: &mut Vec<Effect>);
    /// As [`Engine::next_wake`].
    fn next_wake(&self) -> Option<Nanos>;
    /// The state of [`Engine::status`].
    fn state(&self, now: Nanos) -> Option<State>;
    /// Whether it says, by [`Engine::status`], that the backing alone is consistent (P4).
    fn backing_is_consistent(&self) -> bool;
    /// How far the backing lags behind, by [`Engine::status`]; `None` if it never says, and keeps to no bound.
    fn staleness(&self, _now: Nanos) -> Option<Staleness> {
        None
    }
    /// Operations that wait for the backing, critical and not; `None` if it has no such queue.
    fn backing_waiting(&self) -> Option<(usize, usize)> {
        None
    }
    /// Whether it knows policies under which it is to say so.
    fn knows_order(&self) -> bool {
        true
    }
}

impl Subject for Engine {
    fn handle(&mut self, event: Event, now: Nanos) {
        Self::handle(self, event, now);
    }

    fn poll(&mut self, now: Nanos, effects: &mut Vec<Effect>) {
        Self::poll(self, now, effects);
    }

    fn next_wake(&self) -> Option<Nanos> {
        Self::next_wake(self)
    }

    fn state(&self, now: Nanos) -> Option<State> {
        self.status(now).state
    }

    fn backing_is_consistent(&self) -> bool {
        Self::backing_is_consistent(self)
    }

    fn backing_waiting(&self) -> Option<(usize, usize)> {
        Some(Self::backing_waiting(self))
    }

    fn staleness(&self, now: Nanos) -> Option<Staleness> {
        Some(Self::staleness(self, now))
    }
}
