//! What turns events into effects: the engine, or nothing.

use forebay_block::Nanos;
use forebay_engine::{Effect, Engine, Event, Status};

use crate::passthrough::PassThrough;

/// What decides: the engine, or only the backing's queue between client and backing.
pub(crate) enum Core {
    Cached(Box<Engine>),
    Plain(Box<PassThrough>),
}

impl Core {
    pub(crate) fn handle(&mut self, event: Event, now: Nanos) {
        match self {
            Self::Cached(engine) => engine.handle(event, now),
            Self::Plain(plain) => plain.handle(event, now),
        }
    }

    pub(crate) fn poll(&mut self, now: Nanos, effects: &mut Vec<Effect>) {
        match self {
            Self::Cached(engine) => engine.poll(now, effects),
            Self::Plain(plain) => plain.poll(now, effects),
        }
    }

    pub(crate) fn next_wake(&self) -> Option<Nanos> {
        match self {
            Self::Cached(engine) => engine.next_wake(),
            Self::Plain(plain) => plain.next_wake(),
        }
    }

    /// Whether requests wait for whichever came before them and touches the same bytes.
    pub(crate) fn keeps_order(&self) -> bool {
        matches!(self, Self::Plain(_))
    }

    pub(crate) fn status(&self, now: Nanos) -> Status {
        match self {
            Self::Cached(engine) => engine.status(now),
            Self::Plain(plain) => plain.status(now),
        }
    }
}
