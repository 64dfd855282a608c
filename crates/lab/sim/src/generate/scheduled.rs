//! Schedulers of the backing's queue, and how many operations the backing takes at a time.

use forebay_policy::{BACKING_SLOTS_MAX, SchedulerKind, Settings};

use super::{Options, Theme};
use crate::plan::{Action, Plan, Step};
use crate::random::Random;

/// Label of the random stream: the rest of a plan is that of the same seed without.
const STREAM: u64 = 0x7363_6865;
/// Of so many plans without wanted themes one has such a queue.
const SCHEDULED_ONE_IN: u64 = 2;

/// Gives the plan schedulers and depths, if it is its turn.
pub(super) fn schedule(plan: &mut Plan, options: Options) {
    let mut random = Random::derived(plan.seed, STREAM);
    let themed = options.themes.contains(&Theme::Scheduled);
    if !(random.below(SCHEDULED_ONE_IN) == 0 && options.themes.is_empty() || themed) {
        return;
    }
    let kind = match themed && random.percent(50) {
        true => SchedulerKind::Rcp,
        false => *random.pick(SchedulerKind::ALL),
    };
    // Of a hundred settings so many have another one, and behind so many steps it is changed.
    let (strays, changes) = (*random.pick(&[0, 0, 50]), *random.pick(&[0, 0, 5]));
    for settings in plan.settings_mut() {
        settings.scheduler = if random.percent(strays) { *random.pick(SchedulerKind::ALL) } else { kind };
    }
    for round in &mut plan.rounds {
        round.backing_depth = *random.pick(&[1, 2, 4, 128, BACKING_SLOTS_MAX]);
        if themed {
            // Enough at a time for something to wait.
            round.depth = round.depth.max(16);
        }
        let mut settings: Settings = round.settings;
        let mut steps = Vec::with_capacity(round.steps.len() * 2);
        for step in std::mem::take(&mut round.steps) {
            if let Action::Set(others) = &step.action {
                settings = *others;
            }
            steps.push(step);
            if random.percent(changes) {
                settings.scheduler = *random.pick(SchedulerKind::ALL);
                steps.push(Step { delay_us: 0, action: Action::Set(settings) });
            }
        }
        round.steps = steps;
    }
}
