//! What happens to devices between the lives of a plan, and crashes while the host says who belongs to whom.

use forebay_engine::Role;

use crate::media::Survival;
use crate::plan::{Between, CrashKind, End, HostCrash, Round};
use crate::random::Random;

/// Label of the random stream: the rest of a plan is as if nothing of this happened.
const STREAM: u64 = 0x6f77_6e65;
/// Most writes of the host's at a start: a flush, a superblock that was left behind, intent, superblock, confirmation.
const START_WRITES: u64 = 7;
/// Writes of the host's after a stop.
const LAST_WORDS: u64 = 3;
/// Writes that remove a cache.
const RELEASE_WRITES: u64 = 5;
/// Writes that make a pair.
pub(super) const PAIR_WRITES: u64 = 3;

/// Adds it to the plan's rounds; `often` if that is what the plan is about.
pub(super) fn exchange(seed: u64, rounds: Vec<Round>, often: bool) -> Vec<Round> {
    let mut random = Random::derived(seed, STREAM);
    let factor = if often { 5 } else { 1 };
    let mut all: Vec<Round> = Vec::with_capacity(rounds.len());
    let (mut destaged, last) = (false, rounds.len() - 1);
    for (i, mut round) in rounds.into_iter().enumerate() {
        // One crash in a start, and perhaps one in the next and in the one after that.
        let mut chance = 7 * factor;
        while random.percent(chance.min(50)) {
            chance = 40;
            let write = random.between(1, START_WRITES);
            let end = End::CrashInStart { write, crash: crash(&mut random) };
            let schedule = random.below(1 << 32);
            let between = events(&mut random, all.len(), destaged, factor);
            destaged = false;
            let (faults, damages, steps) = Default::default();
            all.push(Round {
                between,
                schedule,
                verify: false,
                faults,
                damages,
                steps,
                end,
                ..round.clone()
            });
        }
        round.between = events(&mut random, all.len(), destaged, factor);
        if let End::Stop { destage } = round.end
            && i < last
            && random.percent(20)
        {
            let write = random.between(1, LAST_WORDS);
            round.end = End::CrashInLastWords { destage, write, crash: crash(&mut random) };
        }
        destaged = round.end == End::Stop { destage: true };
        all.push(round);
    }
    all
}

/// What happens before the round that so many others go before.
fn events(random: &mut Random, before: usize, destaged: bool, factor: u64) -> Vec<Between> {
    let mut events = Vec::new();
    for role in [Role::Cache, Role::Backing] {
        if random.percent(4 * factor) {
            events.push(Between::Older { role, rounds: random.below(before as u64 + 1) as usize });
        }
        if random.percent(factor) {
            events.push(Between::Foreign(role));
        }
    }
    if destaged && random.percent(10 * factor) {
        events.push(Between::Release(host_crash(random, RELEASE_WRITES)));
    }
    if random.percent(2 * factor) {
        let (wiped, plain) = (random.percent(50), random.percent(50));
        events.push(Between::Lose { wiped, plain, crash: host_crash(random, PAIR_WRITES) });
        // The cache that was lost turns up again.
        events.push(Between::Older { role: Role::Cache, rounds: random.below(before as u64 + 1) as usize });
    }
    events
}

pub(super) fn host_crash(random: &mut Random, writes: u64) -> Option<HostCrash> {
    random.percent(50).then(|| HostCrash { write: random.between(1, writes), kind: crash(random) })
}

fn crash(random: &mut Random) -> CrashKind {
    let survival = *random.pick(&Survival::ALL);
    let (cache, backing) = *random.pick(&[(true, false), (false, true), (true, true)]);
    if random.percent(30) { CrashKind::Kill } else { CrashKind::Cut { cache, backing, survival } }
}
