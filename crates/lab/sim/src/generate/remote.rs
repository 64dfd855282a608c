//! The faults of a store behind a network, and another host that takes it over.

use forebay_engine::Role;

use super::exchange::{PAIR_WRITES, host_crash};
use super::{Options, Theme};
use crate::fault::{Effect, Fault, OpKind};
use crate::plan::{Action, Between, Plan, Step};
use crate::random::Random;

/// Label of the random stream: the rest of a plan is as if the store were a local one.
const STREAM: u64 = 0x7265_6d6f;

/// Gives the plan such a store, if that is what it is about.
pub(super) fn sicken(plan: &mut Plan, options: Options) {
    if !options.themes.contains(&Theme::Remote) {
        return;
    }
    let mut random = Random::derived(plan.seed, STREAM);
    let apart = plan.shape.journal_apart;
    let (ails, is_taken_over) = (options.faults && random.percent(75), random.percent(60));
    let last = plan.rounds.len() - 1;
    for i in 0..last {
        if plan.rounds[i].steps.is_empty() {
            continue;
        }
        if ails && random.percent(70) {
            let steps = plan.rounds[i].steps.len() as u64;
            for _ in 0..random.between(1, 3) {
                plan.rounds[i].faults.push(fault(&mut random, apart, steps));
            }
        }
        if is_taken_over && random.percent(40) {
            fence(plan, i, &mut random);
        }
    }
}

fn fault(random: &mut Random, apart: bool, steps: u64) -> Fault {
    let role = if apart && random.percent(40) { Role::Journal } else { Role::Backing };
    let effect = *random.pick(&[
        Effect::Late,
        Effect::Late,
        Effect::Late,
        Effect::Away,
        Effect::EioDone,
        Effect::Eio,
        Effect::NoSpace,
    ]);
    let kinds =
        [OpKind::Write, OpKind::Write, OpKind::Write, OpKind::Zero, OpKind::Flush, OpKind::Read, OpKind::Any];
    let on = *random.pick(&kinds);
    let count = *random.pick(&[1, 1, 2, 5, 20, u64::MAX]);
    Fault { role, on, effect, first: random.between(1, steps + 3), count }
}

/// In this round another host takes the store over. It goes on from there without the cache.
fn fence(plan: &mut Plan, round: usize, random: &mut Random) {
    let mut roles = vec![Role::Backing];
    if plan.shape.journal_apart {
        // One after the other, in any order; what is left of the two is taken over when the owner is gone.
        roles = random
            .pick(&[vec![Role::Backing, Role::Journal], vec![Role::Backing], vec![Role::Journal]])
            .clone();
    }
    let steps = &mut plan.rounds[round].steps;
    for role in roles {
        let action = Action::Fence { role, told: random.percent(30) };
        let delay_us = if random.percent(50) { 0 } else { random.below(3000) };
        steps.insert(random.below(steps.len() as u64 + 1) as usize, Step { delay_us, action });
    }
    let (wiped, plain) = (random.percent(50), random.percent(50));
    let crash = host_crash(random, PAIR_WRITES);
    plan.rounds[round + 1].between.insert(0, Between::Lose { wiped, plain, crash });
}
