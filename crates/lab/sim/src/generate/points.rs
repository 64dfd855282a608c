//! Consistency points: declared at any time, or with each flush, where the backing moves in groups.

use forebay_policy::{GroupEnds, WritePolicy};

use super::{Options, Theme};
use crate::plan::{Action, Plan};
use crate::random::Random;

/// Label of the random stream: the rest of a plan is that of the same seed without points.
const STREAM: u64 = 0x706f_696e;

/// Gives the plan points, if it is its turn and its backing has a journal.
pub(super) fn declare(plan: &mut Plan, options: Options) {
    let mut random = Random::derived(plan.seed, STREAM);
    let themed = options.themes.contains(&Theme::Points);
    let journaled = plan.settings().any(|s| s.write_policy == WritePolicy::Journaled);
    if plan.shape.journal_bytes == 0 || !journaled || !(themed || random.percent(50)) {
        return;
    }
    let alone = [GroupEnds::Anywhere, GroupEnds::Flushes, GroupEnds::Points];
    let ends = *random.pick(&alone);
    let changes = random.percent(20);
    for settings in plan.settings_mut().filter(|s| s.write_policy == WritePolicy::Journaled) {
        settings.group_ends = if changes { *random.pick(&alone) } else { ends };
    }
    let percent = *random.pick(&[2, 5, 20, 50]);
    super::sprinkle(plan, &mut random, percent, |_| Action::Mark);
}
