//! Journals that are found by their shape while the volume is at work, and every way to treat them.

use forebay_block::Criticality;
use forebay_policy::{Admission, JournalCaching};

use super::{BLOCK, Options, Theme};
use crate::plan::{Action, Plan, Step};
use crate::random::Random;

/// Label of the random stream: the rest of a plan is that of the same seed without.
const STREAM: u64 = 0x6a6f_7572;
/// Blocks of each of its writes.
const WRITE_BLOCKS: u64 = 8;

/// Gives the plan a journal, if that is what it is about.
pub(super) fn write_in_circles(plan: &mut Plan, options: Options) {
    if !options.themes.contains(&Theme::Journals) {
        return;
    }
    let mut random = Random::derived(plan.seed, STREAM);
    for settings in plan.settings_mut() {
        settings.journal_caching = *random.pick(JournalCaching::ALL);
        if random.percent(40) {
            settings.admission = Admission::Journal;
        }
    }
    // Of what lies before it others write as well.
    let first = random.below(60);
    let writes = random.between(34, 40);
    let mut at = random.below(writes);
    for round in &mut plan.rounds {
        // Twice around, and some more in which it is known.
        let mut left = 3 * writes;
        let others = std::mem::take(&mut round.steps);
        let between = left / (others.len() as u64 + 1) + 1;
        for other in others {
            for _ in 0..random.below(2 * between).min(left) {
                round.steps.push(write(first + at * WRITE_BLOCKS, &mut random));
                at = (at + 1) % writes;
                left -= 1;
            }
            round.steps.push(other);
        }
    }
}

fn write(block: u64, random: &mut Random) -> Step {
    let (offset, len) = (block * BLOCK, WRITE_BLOCKS * BLOCK);
    let (fua, sync) = (random.percent(20), random.percent(80));
    let action = Action::Write { offset, len, fua, sync, criticality: Criticality::None };
    Step { delay_us: 0, action }
}
