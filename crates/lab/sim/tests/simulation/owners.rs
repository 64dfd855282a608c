//! P6 in the simulator: bugs in what the host says of who belongs to whom are found, and a plan says everything of it.

use std::collections::BTreeMap;
use std::sync::Mutex;

use forebay_format::identities::{Identities, Starter, Update};
use forebay_format::label::Phase;
use forebay_format::pairing::Refusal;
use forebay_sim::generate::{Options, Theme, plan};
use forebay_sim::run::Simulator;
use forebay_sim::trace::Detail;
use forebay_sim::world::Protocol;

use super::threads::on_two_threads;

/// What the plans are about.
const EXCHANGED: &[Theme] = &[Theme::Exchanged];

const fn options(themes: &'static [Theme]) -> Options {
    Options { actions_max: 40, rounds_max: 5, faults: true, decay: false, themes }
}

type Begun = Result<Vec<Update>, Refusal>;

fn accepts_older_cache(pair: &mut Identities, starter: &Starter) -> Begun {
    match (pair.begin_run(starter), &pair.label) {
        (Err(Refusal::StaleCache { .. }), Some(label)) => {
            pair.superblock.layout.generation = label.generation;
            pair.begin_run(starter)
        }
        (begun, _) => begun,
    }
}

fn accepts_older_backing(pair: &mut Identities, starter: &Starter) -> Begun {
    match (pair.begin_run(starter), &mut pair.label) {
        (Err(Refusal::StaleBacking { cache, .. }), Some(label)) => {
            label.generation = cache;
            pair.begin_run(starter)
        }
        (begun, _) => begun,
    }
}

fn accepts_foreign(pair: &mut Identities, starter: &Starter) -> Begun {
    match (pair.begin_run(starter), &mut pair.label) {
        (Err(Refusal::ForeignCache { .. } | Refusal::ForeignBacking { .. }), Some(label)) => {
            (label.cache_id, label.backing_id) =
                (pair.superblock.layout.cache_id, pair.superblock.backing_id);
            pair.begin_run(starter)
        }
        (begun, _) => begun,
    }
}

fn forgets_run(pair: &mut Identities, starter: &Starter) -> Begun {
    pair.clone().begin_run(starter)?;
    pair.superblock.clean_stop = false;
    let mut updates = vec![Update::Flush];
    updates.extend(pair.label.as_mut().map(|label| label.count_update()));
    updates.extend(pair.superblock.updates());
    Ok(updates)
}

fn without(begun: Begun, skips: impl Fn(usize, &Update) -> bool) -> Begun {
    Ok(begun?.into_iter().enumerate().filter(|(i, update)| !skips(*i, update)).map(|(_, u)| u).collect())
}

fn skips_intent(pair: &mut Identities, starter: &Starter) -> Begun {
    let updates = pair.begin_run(starter)?;
    let intent = updates.iter().position(|u| matches!(u, Update::Label { .. }));
    without(Ok(updates), |i, _| Some(i) == intent)
}

fn commits_first(pair: &mut Identities, starter: &Starter) -> Begun {
    let mut updates = pair.begin_run(starter)?;
    let committed = updates.pop();
    let intent = updates.iter().position(|u| matches!(u, Update::Label { .. }));
    let at = intent.map_or(0, |i| i + 1);
    updates.splice(at..at, committed);
    Ok(updates)
}

fn leaves_superblock_behind(pair: &mut Identities, starter: &Starter) -> Begun {
    let updates = pair.begin_run(starter)?;
    let intent = updates.iter().position(|u| matches!(u, Update::Label { .. })).unwrap_or_default();
    without(Ok(updates), |i, u| i < intent && matches!(u, Update::Superblock { .. }))
}

fn uses_number_again(pair: &mut Identities, starter: &Starter) -> Begun {
    let cache = pair.superblock.layout.generation;
    let mut tried = pair.clone();
    if let Some(label) =
        tried.label.as_mut().filter(|l| l.phase == Phase::Intent && l.generation == cache + 1)
    {
        (label.generation, label.phase) = (cache, Phase::Committed);
    }
    let updates = tried.begin_run(starter)?;
    *pair = tried;
    Ok(updates)
}

fn begins_unflushed(pair: &mut Identities, starter: &Starter) -> Begun {
    without(pair.begin_run(starter), |_, u| matches!(u, Update::Flush))
}

fn retires_in_words(pair: &mut Identities, _: u64) -> Vec<Update> {
    pair.label.as_mut().map(|label| label.count_update()).into_iter().collect()
}

fn releases_one_copy(pair: &mut Identities) -> Vec<Update> {
    pair.release().into_iter().skip(1).collect()
}

/// Planted bugs: name, what it does wrong, what it replaces, and within how many seeds it is found.
fn mutations() -> Vec<(&'static str, &'static str, Protocol, u64)> {
    let right = Protocol::default();
    let begins = |begin_run| Protocol { begin_run, ..right };
    vec![
        ("AcceptsOlderCache", "An older copy of the cache starts.", begins(accepts_older_cache), 100),
        (
            "AcceptsOlderBacking",
            "An older copy of the backing is started with.",
            begins(accepts_older_backing),
            100,
        ),
        ("AcceptsForeign", "The devices of another volume are started with.", begins(accepts_foreign), 100),
        ("ForgetsRun", "The number of the run is not raised on the devices.", begins(forgets_run), 100),
        ("SkipsIntent", "A start writes no intent into the label.", begins(skips_intent), 100),
        (
            "CommitsFirst",
            "A start confirms the run before the superblock has its number.",
            begins(commits_first),
            100,
        ),
        (
            "LeavesSuperblockBehind",
            "After a start that got no further than its intent, the next one announces one run more.",
            begins(leaves_superblock_behind),
            1000,
        ),
        (
            "UsesNumberAgain",
            "After a start that got no further than its intent, the next run gets the same number.",
            begins(uses_number_again),
            4000,
        ),
        (
            "BeginsUnflushed",
            "A start builds on what a killed process left volatile.",
            begins(begins_unflushed),
            8000,
        ),
        (
            "RetiresInWords",
            "A retired log is not marked as void.",
            Protocol { retire: retires_in_words, ..right },
            400,
        ),
        (
            "ReleasesOneCopy",
            "Only one copy of the label says that the cache was removed when both are erased.",
            Protocol { release: releases_one_copy, ..right },
            8000,
        ),
    ]
}

fn seeds_until_found(
    protocol: Protocol,
    themes: &'static [Theme],
    bound: u64,
) -> Option<(u64, &'static str)> {
    let mut simulator = Simulator::default();
    simulator.protocol = protocol;
    (0..bound).find_map(|seed| {
        let violation = simulator.run(&plan(seed, options(themes)), Detail::Hash).violation?;
        Some((seed + 1, violation.promise))
    })
}

#[test]
fn every_bug_of_the_hosts_part_is_found_and_documented() {
    let mutations = mutations();
    let found: Mutex<BTreeMap<usize, Option<(u64, &str)>>> = Mutex::default();
    on_two_threads(mutations.len(), |i| {
        let (_, _, protocol, bound) = mutations[i];
        let outcome = seeds_until_found(protocol, EXCHANGED, bound);
        found.lock().unwrap().insert(i, outcome);
    });
    let page = include_str!("../../../../../docs/design/planted-bugs.md");
    let (mut missed, mut undocumented) = (Vec::new(), Vec::new());
    let mut most = 0;
    for (i, outcome) in found.into_inner().unwrap() {
        let (name, doc, _, bound) = mutations[i];
        match outcome {
            Some((seeds, promise)) => {
                most = most.max(seeds);
                println!("| `{name}` | {doc} | exchanged | {seeds} of {bound} | {promise} |");
            }
            None => missed.push(format!("{name} within {bound} seeds")),
        }
        if !page.contains(&format!("| `{name}` | {doc} |")) {
            undocumented.push(name);
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
    assert!(undocumented.is_empty(), "docs/design/planted-bugs.md lacks {undocumented:?}");
    let right = seeds_until_found(Protocol::default(), EXCHANGED, most);
    assert_eq!(right, None, "without a bug");
}

#[test]
fn the_text_of_a_plan_says_what_happens_between_lives() {
    for seed in 0..200 {
        let plan = plan(seed, options(EXCHANGED));
        let text = plan.to_string();
        assert_eq!(text.parse(), Ok(plan), "{text}");
    }
}
