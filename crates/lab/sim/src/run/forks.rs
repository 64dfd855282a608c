//! Many ends of one beginning: what comes before a crash is run once for all crashes that are tried.

use std::collections::HashMap;

use forebay_engine::Engine;

use super::{Outcome, Simulator};
use crate::life::Death;
use crate::plan::{CrashKind, End, Plan};
use crate::trace::Detail;
use crate::world::World;

impl Simulator {
    /// Runs the first round of `plan` once, and at each step that `forks` names lets it end, on a copy of the world, by each of the
    /// crashes there, followed by the plan's other rounds. What comes of each is what comes of the plan whose first round
    /// ends by that crash after that step; steps that are not reached are missing.
    pub fn run_forks(
        &mut self,
        plan: &Plan,
        forks: &HashMap<u64, Vec<CrashKind>>,
    ) -> HashMap<(u64, CrashKind), Outcome> {
        let mut outcomes = HashMap::new();
        let mut copy = Self { protocol: self.protocol, promise: self.promise, ..Self::default() };
        let mut watch = |world: &World, death: Death| {
            let step = death.step;
            for kind in forks.get(&step).into_iter().flatten() {
                copy.world.clone_from(world);
                let end = End::CrashAfter(step, *kind);
                let mut death = death.clone();
                death.leave(&mut copy.world);
                let ended = copy.dies(death, end, Some(*kind)).map_err(|i| (i, step));
                let outcome = copy.rounds(plan, Some(ended), &mut Engine::new, &mut |_, _| {});
                outcomes.insert((step, *kind), outcome);
            }
        };
        self.begin(plan, Detail::Hash);
        if let Some(round) = plan.rounds.first() {
            // Whatever ends this life, each fork has been seen to its end.
            let _ = self.round(round, &mut Engine::new, Some(&mut watch));
        }
        outcomes
    }
}
