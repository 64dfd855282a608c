//! The engine's front: dispatches events to the parts that own the state.

use forebay_block::Nanos;

use crate::interface::{Effect, Event, Params, Status};

/// A volume's cache engine. See the crate's documentation.
pub struct Engine {
    params: Params,
}

impl Engine {
    /// An engine that has not started; call [`Engine::poll`] to begin recovery.
    pub fn new(params: Params) -> Self {
        Self { params }
    }

    /// Takes one event in. Effects come from the next [`Engine::poll`]; handing in several events before one poll
    /// lets their writes share a batch.
    pub fn handle(&mut self, event: Event, now: Nanos) {
        let _ = (event, now, &self.params);
    }

    /// Moves everything forward that can move, and appends what is to be done to `effects`.
    pub fn poll(&mut self, now: Nanos, effects: &mut Vec<Effect>) {
        let _ = (now, effects);
    }

    /// When [`Engine::poll`] wants to be called even if no event arrives; `None` if never.
    pub fn next_wake(&self) -> Option<Nanos> {
        None
    }

    /// Figures as of `now`.
    pub fn status(&self, now: Nanos) -> Status {
        let _ = now;
        Status::default()
    }
}
