//! Consistency groups: rounds that lead the volume to common points, by a coordinator that may fall silent.

use forebay_policy::{GroupEnds, WritePolicy};

use super::{Options, Theme};
use crate::plan::{Action, CommonRound, Plan};
use crate::random::Random;

/// Label of the random stream: the rest of a plan is that of the same seed without a consistency group.
const STREAM: u64 = 0x636f_6d6d;

/// Makes the volume a member of a consistency group, if it is its turn and its backing has a journal.
pub(super) fn share(plan: &mut Plan, options: Options) {
    let mut random = Random::derived(plan.seed, STREAM);
    let themed = options.themes.contains(&Theme::Common);
    // Points that are declared by one alone would all be refused.
    let alone = options.themes.contains(&Theme::Points);
    let journaled = plan.settings().any(|s| s.write_policy == WritePolicy::Journaled);
    if plan.shape.journal_bytes == 0 || !journaled || !(themed || !alone && random.percent(30)) {
        return;
    }
    let strays = *random.pick(&[0, 0, 20]);
    for settings in plan.settings_mut().filter(|s| s.write_policy == WritePolicy::Journaled) {
        if !random.percent(strays) {
            settings.group_ends = GroupEnds::Common;
        }
    }
    let percent = *random.pick(&[2, 10, 30]);
    let silent = *random.pick(&[10, 30, 60]);
    super::sprinkle(plan, &mut random, percent, |random| {
        Action::Round(CommonRound {
            steps: if random.percent(silent) { random.between(1, 5) as u8 } else { 6 },
            pause_us: *random.pick(&[0, 0, 100, 3000, 30_000, 1_500_000]),
            keeps_old: random.percent(50),
            keeps: random.percent(80),
        })
    });
}
