//! A vault of `forebay-objects`, or one that is being made, and the threads that carry out its requests.

use std::time::Duration;

use forebay_block::Nanos;
use forebay_objects::{Ailment, Answer, Creation, Effect, StoreError, Vault};

use crate::clock::Clock;
use crate::s3::workers::{Ended, Workers};

/// What is driven.
pub(super) trait Driven {
    fn answered(&mut self, now: Nanos, id: u64, result: Result<Answer, StoreError>);
    fn poll(&mut self, now: Nanos, effects: &mut Vec<Effect>);
    fn deadline(&self) -> Option<Nanos>;
    /// What the store does not do.
    fn trouble(&self) -> Option<&Ailment>;
}

macro_rules! driven {
    ($kind:ty) => {
        impl Driven for $kind {
            fn answered(&mut self, now: Nanos, id: u64, result: Result<Answer, StoreError>) {
                <$kind>::answered(self, now, id, result);
            }
            fn poll(&mut self, now: Nanos, effects: &mut Vec<Effect>) {
                <$kind>::poll(self, now, effects);
            }
            fn deadline(&self) -> Option<Nanos> {
                <$kind>::deadline(self)
            }
            fn trouble(&self) -> Option<&Ailment> {
                <$kind>::trouble(self)
            }
        }
    };
}
driven!(Vault);
driven!(Creation);

/// Whoever waits looks at least so often at what has passed.
const WAIT_MAX: Duration = Duration::from_millis(200);

/// See the module's documentation.
pub(super) struct Drive {
    pub(super) workers: Workers,
    pub(super) clock: Clock,
    ended: Vec<Ended>,
    effects: Vec<Effect>,
}

impl Drive {
    pub(super) fn new(workers: Workers) -> Self {
        Self { workers, clock: Clock::start(), ended: Vec::new(), effects: Vec::new() }
    }

    /// Passes on what the store has answered, has requests carried out, and appends all other effects.
    pub(super) fn turn(&mut self, driven: &mut dyn Driven, told: &mut Vec<Effect>) {
        self.workers.take(&mut self.ended);
        for (id, result) in self.ended.drain(..) {
            driven.answered(self.clock.now(), id, result);
        }
        driven.poll(self.clock.now(), &mut self.effects);
        for effect in self.effects.drain(..) {
            match effect {
                Effect::Request { id, request } => self.workers.begin(id, request),
                effect => told.push(effect),
            }
        }
    }

    /// Turns until `ends` makes something of the effects, and waits meanwhile. Gives up with what the store said last when it has
    /// not done something for as long as `patience`, of which nothing counts that was before.
    pub(super) fn wait<T, D: Driven>(
        &mut self,
        driven: &mut D,
        patience: Duration,
        mut ends: impl FnMut(&mut D, Vec<Effect>) -> Option<T>,
    ) -> Result<T, String> {
        let begun = self.clock.now();
        loop {
            let mut told = Vec::new();
            self.turn(driven, &mut told);
            if let Some(end) = ends(driven, told) {
                return Ok(end);
            }
            let now = self.clock.now();
            if let Some(ailment) = driven.trouble()
                && Duration::from_nanos(now.since(ailment.since.max(begun))) > patience
            {
                return Err(ailment.what.clone());
            }
            let pause =
                driven.deadline().map_or(WAIT_MAX, |at| Duration::from_nanos(at.since(now)).min(WAIT_MAX));
            self.workers.wait(pause);
        }
    }
}
