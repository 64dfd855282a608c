//! A share of each sweep; `FOREBAY_SIM_SHARE=1` runs all of it, `=100` one case in a hundred.

use std::sync::Mutex;

use forebay_sim::campaign::{Campaign, figure, figures};
use forebay_sim::generate::{self, Options};
use forebay_sim::media::Survival;
use forebay_sim::plan::{CrashKind, End};
use forebay_sim::run::Simulator;
use forebay_sim::sweep::{Share, Swept, crashes, decays, failures};
use forebay_sim::trace::Detail;

use super::threads::on_two_threads;

fn sweep(usual: u64, sweep: fn(Share) -> Swept) -> Swept {
    let of: u64 = std::env::var("FOREBAY_SIM_SHARE").map_or(usual, |of| of.parse().unwrap());
    let total: Mutex<Swept> = Mutex::default();
    on_two_threads(2, |first| {
        let swept = sweep(Share { first: first as u64 * of, of: of * 2 });
        total.lock().unwrap().add(swept);
    });
    let total = total.into_inner().unwrap();
    println!("{}\n{}", total.line(), figures(&total.stats).trim_end());
    print!("{}", figure("cases of sweeps", total.ran) + &figure("broken promises", total.found.len() as u64));
    for broken in &total.found {
        // A plan of a sweep of damages does not say what was damaged, and breaks nothing.
        let shortest = Campaign::default().plan(&broken.plan, true);
        let file = shortest.map_or_else(|| broken.plan.to_string(), |finding| finding.to_file());
        println!("{}: {}\n{file}", broken.case, broken.violation);
    }
    let shown: Vec<String> = total.found.iter().map(|b| format!("{}: {}", b.case, b.violation)).collect();
    assert!(shown.is_empty(), "{shown:#?}");
    total
}

/// A sweep runs what comes before a crash once for all crashes; each must be what its plan alone would have been.
#[test]
fn a_fork_is_what_its_plan_would_be() {
    let (mut simulator, mut alone) = (Simulator::default(), Simulator::default());
    let (mut compared, mut reached) = (0, 0);
    for seed in 0..12 {
        let mut plan = generate::plan(seed, Options::default());
        let kinds =
            Survival::ALL.map(|survival| CrashKind::Cut { cache: seed % 3 > 0, backing: true, survival });
        let forks = (0..200).step_by(7).map(|step| (step, kinds.to_vec())).collect();
        plan.rounds[0].end = End::CrashAfter(u64::MAX, CrashKind::Kill);
        let outcomes = simulator.run_forks(&plan, &forks);
        for ((step, kind), outcome) in outcomes {
            plan.rounds[0].end = End::CrashAfter(step, kind);
            assert_eq!(outcome, alone.run(&plan, Detail::Hash), "seed {seed}, {kind:?} after step {step}");
            compared += 1;
            reached = reached.max(step);
        }
    }
    assert!(compared > 300 && reached == 196, "{compared} compared, up to step {reached}");
}

#[test]
fn a_cut_at_every_write_flush_and_trim() {
    let swept = sweep(389, crashes);
    assert_eq!(swept.errors + swept.refused, 0, "nothing fails where nothing is sick");
    assert!(swept.cases > 72 * 4 * 1000);
}

#[test]
fn every_nth_operation_fails() {
    let swept = sweep(97, failures);
    assert!(swept.errors > 0 && swept.right > 0 && swept.cases > 72 * 4 * 100);
}

#[test]
fn every_sector_of_the_log_decays() {
    let swept = sweep(7, decays);
    assert!(swept.errors > 0 && swept.right > 0 && swept.cases == 768 * 5);
}
