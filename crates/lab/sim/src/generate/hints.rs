//! Hostile hints (P8): criticality of writes drawn at random, and promotions of any range at any time. Whoever was critical
//! is not a moment later.

use forebay_block::Criticality;
use forebay_policy::Admission;

use super::{BLOCK, Options, Theme};
use crate::plan::{Action, Plan, Step};
use crate::random::Random;

/// Label of the random stream: the rest of a plan is that of the same seed without hints.
const STREAM: u64 = 0x6869_6e74;
/// Of so many plans without wanted themes one has hints.
const HINTED_ONE_IN: u64 = 4;

/// Gives the plan hints, and policies that follow them, if it is its turn.
pub(super) fn hint(plan: &mut Plan, options: Options) {
    let mut random = Random::derived(plan.seed, STREAM);
    let themed = [Theme::Hinted, Theme::Scheduled].iter().any(|t| options.themes.contains(t));
    if !(random.below(HINTED_ONE_IN) == 0 && options.themes.is_empty() || themed) {
        return;
    }
    for settings in plan.settings_mut() {
        settings.admission = *random.pick(&[
            Admission::Cp,
            Admission::CpPi,
            Admission::Adaptive,
            Admission::CpPiIoi,
            Admission::CpPiIoi,
            Admission::CpPiIoi,
        ]);
    }
    let critical_percent = *random.pick(&[0, 10, 50, 90]);
    let promote_percent = *random.pick(&[10, 30, 60]);
    let volume_bytes = plan.shape.volume_bytes;
    for round in &mut plan.rounds {
        let mut steps = Vec::with_capacity(round.steps.len() * 2);
        for mut step in std::mem::take(&mut round.steps) {
            let mut range = (random.below(volume_bytes), BLOCK);
            if let Action::Write { offset, len, criticality, .. }
            | Action::Zero { offset, len, criticality, .. } = &mut step.action
            {
                range = (*offset, *len);
                if random.percent(critical_percent) {
                    *criticality = *random.pick(&[
                        Criticality::Direct,
                        Criticality::Inherited,
                        Criticality::Awaited,
                        Criticality::Capped,
                    ]);
                }
            }
            steps.push(step);
            if random.percent(promote_percent) {
                let (offset, len) = match random.below(8) {
                    0 => (0, volume_bytes),
                    1 => (random.below(volume_bytes), random.below(volume_bytes)),
                    2 => (u64::MAX - random.below(BLOCK), u64::MAX),
                    _ => range,
                };
                let delay_us = if random.percent(30) { 0 } else { random.below(300) };
                steps.push(Step { delay_us, action: Action::Promote { offset, len } });
            }
        }
        round.steps = steps;
    }
}
