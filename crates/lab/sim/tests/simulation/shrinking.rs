//! A failing plan becomes short, and what is left still fails for the same reason.

use forebay_engine::{Engine, Mutation};
use forebay_sim::campaign::Campaign;
use forebay_sim::generate::{Options, plan};
use forebay_sim::plan::Plan;
use forebay_sim::run::Simulator;
use forebay_sim::shrink::shrink;
use forebay_sim::trace::{Detail, timeline};

use super::toy::{Bug, Toy};

fn steps(plan: &Plan) -> usize {
    plan.rounds.iter().map(|r| r.steps.len()).sum()
}

#[test]
fn a_long_plan_becomes_a_short_one() {
    let mut simulator = Simulator::default();
    let mut run = |plan: &_, detail| simulator.run_with(plan, detail, |p| Toy::new(p, Bug::ForgetsFlush));
    let options = Options { actions_max: 80, rounds_max: 4, faults: false, decay: false, themes: &[] };
    let (long, violation) = (0..500)
        .map(|seed| plan(seed, options))
        .find_map(|p| Some((p.clone(), run(&p, Detail::Hash).violation?)))
        .expect("the bug is found");
    let (short, found) = shrink(&long, violation.clone(), |p| run(p, Detail::Hash).violation);
    println!("{} steps became {}:\n{short}", steps(&long), steps(&short));
    assert_eq!(found.promise, violation.promise);
    // A write, a flush, and a read after the cut: nothing less shows the bug.
    assert!(short.rounds.len() == 2 && steps(&short) <= 3, "{short}");
    let lines = run(&short, Detail::Lines);
    assert_eq!(lines.violation, Some(found.clone()));
    let text = timeline(&lines.lines, &found.sectors);
    assert!(text.contains("flush") && text.contains("cut"), "{text}");
    assert_eq!(short.to_string().parse(), Ok(short));
}

/// What only the verifier or the comparison of two runs finds is shortened like everything else.
#[test]
fn what_the_second_opinion_finds_becomes_short_too() {
    let mut campaign = Campaign::default();
    let make = |p| Engine::with_mutation(p, Mutation::IgnoresLastRecord);
    let options = Options { faults: false, decay: false, ..Options::default() };
    let (long, found) = (0..100)
        .map(|seed| plan(seed, options))
        .find_map(|p| Some((p.clone(), campaign.differs_with(&p, false, make)?)))
        .expect("the bug is found");
    assert_eq!((found.violation.promise, &found.plan), ("check", &long));
    let found = campaign.differs_with(&long, true, make).expect("it is still found");
    assert_eq!(found.violation.promise, "check");
    assert!(found.plan.rounds.len() <= 3 && steps(&found.plan) <= 2, "{}", found.plan);
    assert!(found.timeline.contains("recovered"), "{}", found.timeline);
}
