//! The oracle against the toy: a right volume passes, each wrong one is caught.

use forebay_sim::generate::{Options, plan};
use forebay_sim::run::Simulator;
use forebay_sim::trace::Detail;
use forebay_sim::violation::Violation;

use super::toy::{Bug, Toy};

const OPTIONS: Options = Options { actions_max: 60, rounds_max: 3, faults: true, decay: false, themes: &[] };

fn first_violation(bug: Bug, seeds: u64) -> Option<(u64, Violation)> {
    let mut simulator = Simulator::default();
    (0..seeds).find_map(|seed| {
        let outcome = simulator.run_with(&plan(seed, OPTIONS), Detail::Hash, |p| Toy::new(p, bug));
        outcome.violation.map(|v| (seed, v))
    })
}

#[test]
fn a_right_volume_passes() {
    if let Some((seed, v)) = first_violation(Bug::None, 400) {
        let outcome =
            Simulator::default().run_with(&plan(seed, OPTIONS), Detail::Lines, |p| Toy::new(p, Bug::None));
        let timeline = forebay_sim::trace::timeline(&outcome.lines, &v.sectors);
        panic!("seed {seed}: {v}\n{}\n{timeline}", plan(seed, OPTIONS));
    }
}

#[test]
fn every_wrong_volume_is_caught() {
    let expected = [
        (Bug::AcknowledgesEarly, &["P1", "P2", "P3"][..]),
        (Bug::ForgetsDurability, &["P1", "P3"]),
        (Bug::ForgetsFlush, &["P3"]),
        (Bug::DropsWrite, &["P1", "P2", "P9"]),
        (Bug::LosesRequest, &["P7"]),
        (Bug::AnswersTwice, &["wall"]),
        (Bug::ReadsElsewhere, &["P5", "P2"]),
        (Bug::ReadsStale, &["P2"]),
        (Bug::InventsErrors, &["P9"]),
        (Bug::HidesErrors, &["P1", "P2", "P3"]),
        (Bug::ForgetsRest, &["P2", "P3"]),
        (Bug::Overruns, &["wall"]),
        (Bug::Spins, &["P7"]),
    ];
    for (bug, promises) in expected {
        let (seed, v) = first_violation(bug, 300).unwrap_or_else(|| panic!("{bug:?} is not caught"));
        println!("{bug:?}: seed {seed}: {v}");
        assert!(promises.contains(&v.promise), "{bug:?} is taken for something else: {v}");
    }
}

#[test]
fn equal_plans_give_equal_histories() {
    let mut simulator = Simulator::default();
    for seed in 0..50 {
        let plan = plan(seed, OPTIONS);
        let text = plan.to_string();
        assert_eq!(text.parse(), Ok(plan.clone()), "the text of a plan says everything:\n{text}");
        let once = simulator.run_with(&plan, Detail::HashData, |p| Toy::new(p, Bug::None));
        let again = Simulator::default().run_with(&plan, Detail::HashData, |p| Toy::new(p, Bug::None));
        assert_eq!(once, again);
    }
}
