//! The end of a life.

use forebay_block::Nanos;

use super::Life;
use crate::random::Random;
use crate::subject::Subject;
use crate::world::World;

/// What a life leaves behind when it ends, besides the world.
#[derive(Clone)]
pub struct Death {
    /// Virtual time.
    pub now: Nanos,
    /// Steps of the life.
    pub step: u64,
    /// Recovery had come to its end.
    pub recovered: bool,
    /// The log was being retired.
    retiring: bool,
    /// Decides what the crash does.
    pub random: Random,
}

impl Death {
    /// The process is gone: what was being retired may have become durable or not.
    pub fn leave(&mut self, world: &mut World) {
        if self.retiring {
            world.leave_retirement(self.random.below(4));
        }
    }
}

/// Sees, before each step of a life, the world, and what else would be left if that were the end.
pub type Watch<'w> = &'w mut dyn FnMut(&World, Death);

impl<S: Subject> Life<'_, S> {
    /// What would be left if this were the end.
    pub fn death(&self) -> Death {
        let (recovered, retiring) = (self.recovered.is_some(), !self.retiring.is_empty());
        Death { now: self.now, step: self.step, recovered, retiring, random: self.random.clone() }
    }
}
