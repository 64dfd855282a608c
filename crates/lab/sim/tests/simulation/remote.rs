//! Stores behind a network: a volume keeps its promises on one that keeps its own, and one that does not is found.

use std::collections::BTreeMap;
use std::sync::Mutex;

use forebay_sim::campaign::Campaign;
use forebay_sim::device::Promise;
use forebay_sim::fault::Effect;
use forebay_sim::generate::{Options, Theme, plan};
use forebay_sim::plan::Action;
use forebay_sim::run::Simulator;
use forebay_sim::trace::Detail;
use forebay_sim::world::Stats;

use super::threads::on_two_threads;

const REMOTE: &[Theme] = &[Theme::Remote];
const THEMES: [&[Theme]; 7] = [
    REMOTE,
    &[Theme::Remote, Theme::Contended],
    &[Theme::Remote, Theme::Copies],
    &[Theme::Remote, Theme::Consistent],
    &[Theme::Remote, Theme::Common],
    &[Theme::Remote, Theme::Crowded],
    &[Theme::Remote, Theme::Flushes],
];
const SEEDS: u64 = 300;

const fn options(themes: &'static [Theme]) -> Options {
    Options { actions_max: 100, rounds_max: 5, faults: true, decay: false, themes }
}

fn happened(stats: &Stats, effect: Effect) -> u64 {
    Effect::ALL.iter().zip(stats.faults).filter(|((e, _), _)| *e == effect).map(|(_, count)| count).sum()
}

/// `FOREBAY_SIM_REMOTE_SEEDS` runs more of them.
#[test]
fn no_store_behind_a_network_breaks_a_promise() {
    let seeds = std::env::var("FOREBAY_SIM_REMOTE_SEEDS").map_or(SEEDS, |seeds| seeds.parse().unwrap());
    let first = std::env::var("FOREBAY_SIM_REMOTE_FIRST").map_or(0, |first| first.parse().unwrap());
    let total: Mutex<Stats> = Mutex::default();
    on_two_threads(THEMES.len(), |i| {
        let mut campaign = Campaign::new(options(THEMES[i]));
        for seed in first..first + seeds {
            if let Some(finding) = campaign.seed(seed) {
                panic!("{:?}, seed {seed}: {}\n{}", THEMES[i], finding.violation, finding.to_file());
            }
        }
        total.lock().unwrap().add(&campaign.take_counted().stats);
    });
    let total = total.into_inner().unwrap();
    let reached = [
        total.taken_over,
        total.replays,
        happened(&total, Effect::Late),
        happened(&total, Effect::Away),
        happened(&total, Effect::EioDone),
        happened(&total, Effect::NoSpace),
    ];
    assert!(reached.iter().all(|count| *count > SEEDS / 10), "{reached:?}");
}

#[test]
fn plans_without_this_theme_have_nothing_of_it() {
    for seed in 0..SEEDS {
        let plan = plan(seed, Options::default());
        let faults = plan.rounds.iter().flat_map(|round| &round.faults);
        assert!(faults.clone().all(|fault| !matches!(fault.effect, Effect::Late | Effect::Away)), "{seed}");
        let mut steps = plan.rounds.iter().flat_map(|round| &round.steps);
        assert!(steps.all(|step| !matches!(step.action, Action::Fence { .. })), "{seed}");
    }
}

#[test]
fn the_text_of_a_plan_says_what_becomes_of_the_store() {
    for seed in 0..SEEDS {
        let plan = plan(seed, options(THEMES[seed as usize % THEMES.len()]));
        let text = plan.to_string();
        assert_eq!(text.parse(), Ok(plan), "{text}");
    }
}

/// Planted bugs: name, what it does wrong, what it promises, in which plans and within how many seeds it is found.
fn mutations() -> Vec<(&'static str, &'static str, Promise, &'static [Theme], u64)> {
    let right = Promise::default();
    vec![
        (
            "FlushHidesUnknown",
            "A flush succeeds while the outcome of a write is unknown.",
            Promise { flushes: false, ..right },
            THEMES[2],
            3000,
        ),
        (
            "LateUnderReaders",
            "A block is read whose write may still be carried out.",
            Promise { waits: false, ..right },
            THEMES[2],
            1500,
        ),
        (
            "LateOvertakes",
            "A write of unknown outcome is carried out after a later one of its block.",
            Promise { orders: false, ..right },
            REMOTE,
            4000,
        ),
        (
            "LateOutlivesSession",
            "What was under way, or of unknown outcome, is carried out after the process has died, or another host has begun.",
            Promise { ends: false, ..right },
            REMOTE,
            300,
        ),
    ]
}

fn seeds_until_found(promise: Promise, themes: &'static [Theme], bound: u64) -> Option<(u64, &'static str)> {
    let mut simulator = Simulator::default();
    simulator.promise = promise;
    (0..bound).find_map(|seed| {
        let violation = simulator.run(&plan(seed, options(themes)), Detail::Hash).violation?;
        Some((seed + 1, violation.promise))
    })
}

#[test]
fn every_broken_promise_of_a_store_is_found_and_documented() {
    let mutations = mutations();
    let found: Mutex<BTreeMap<usize, Option<(u64, &str)>>> = Mutex::default();
    on_two_threads(mutations.len(), |i| {
        let (_, _, promise, themes, bound) = mutations[i];
        let outcome = seeds_until_found(promise, themes, bound);
        found.lock().unwrap().insert(i, outcome);
    });
    let page = include_str!("../../../../../docs/design/planted-bugs.md");
    let (mut missed, mut undocumented) = (Vec::new(), Vec::new());
    for (i, outcome) in found.into_inner().unwrap() {
        let (name, doc, _, themes, bound) = mutations[i];
        let names: Vec<String> = themes.iter().map(|t| format!("{t:?}").to_lowercase()).collect();
        match outcome {
            Some((seeds, promise)) => {
                println!("| `{name}` | {doc} | {} | {seeds} of {bound} | {promise} |", names.join(" "));
                assert_eq!(seeds_until_found(Promise::default(), themes, seeds), None, "without a bug");
            }
            None => missed.push(format!("{name} within {bound} seeds")),
        }
        if !page.contains(&format!("| `{name}` | {doc} |")) {
            undocumented.push(name);
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
    assert!(undocumented.is_empty(), "docs/design/planted-bugs.md lacks {undocumented:?}");
}
