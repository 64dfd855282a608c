//! Planted bugs: which one this engine has, if it is one for the simulator's own tests.

use crate::engine::Engine;
#[cfg(feature = "mutations")]
use crate::interface::Params;
use crate::mutation::Mutation;
#[cfg(feature = "mutations")]
use crate::mutation::Planted;

impl Engine {
    /// Whether this engine has that planted bug.
    #[inline(always)]
    pub(super) fn mutant(&self, mutation: Mutation) -> bool {
        self.planted.is(mutation)
    }

    /// As [`Engine::new`], with a planted bug.
    ///
    /// # Panics
    /// As [`Engine::new`]; and later wherever the engine notices by itself that something is wrong.
    #[cfg(feature = "mutations")]
    pub fn with_mutation(params: Params, mutation: Mutation) -> Self {
        let mut engine = Self::planted(params, Planted::of(mutation));
        engine.requests.plant(engine.planted);
        engine.reading.plant(engine.planted);
        engine.order.plant(engine.planted);
        engine.journal.plant(engine.planted);
        engine.points.plant(engine.planted);
        engine.common.plant(engine.planted);
        engine.backing.plant(engine.planted);
        engine
    }
}
