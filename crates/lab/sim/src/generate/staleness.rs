//! Bounds of staleness.

use forebay_policy::{MaxStaleness, WritePolicy};

use super::{Options, Theme};
use crate::plan::{End, Plan};
use crate::random::Random;

/// Label of the random stream: the rest of a plan is that of the same seed without bounds.
const STREAM: u64 = 0x7374_616c;

/// Gives the plan a bound, if it is its turn.
pub(super) fn bound(plan: &mut Plan, options: Options) {
    let mut random = Random::derived(plan.seed, STREAM);
    let themed = options.themes.contains(&Theme::Stale);
    if !(random.below(6) == 0 && options.themes.is_empty() || themed) {
        return;
    }
    let bounds = [
        MaxStaleness::Age(10),
        MaxStaleness::Age(100),
        MaxStaleness::Age(1000),
        MaxStaleness::Age(5000),
        MaxStaleness::Bytes(64 << 10),
        MaxStaleness::Bytes(256 << 10),
    ];
    let bound = *random.pick(&bounds);
    let changes = random.percent(25);
    for settings in plan.settings_mut().filter(|s| s.write_policy != WritePolicy::WriteThrough) {
        settings.max_staleness = if changes { *random.pick(&bounds) } else { bound };
    }
    for round in plan.rounds.iter_mut().filter(|_| themed) {
        // Time enough to see what is left lying.
        if let End::CrashAfter(_, kind) | End::CrashIdle(kind) = round.end
            && random.percent(40)
        {
            round.end = End::CrashSettled(kind);
        }
    }
}
