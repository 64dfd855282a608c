//! The production engine: fresh seeds, and every plan that ever broke a promise.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_sim::campaign::Campaign;
use forebay_sim::plan::Plan;

/// Seeds of one run of the tests; the campaigns of `forebay sim` are longer.
const SEEDS: u64 = 2000;

fn kept_plans() -> Vec<(String, Plan)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("plans");
    let mut plans: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let plan = std::fs::read_to_string(&path).unwrap().parse();
            (name.clone(), plan.unwrap_or_else(|e| panic!("{name}: {e}")))
        })
        .collect();
    plans.sort_by(|a, b| a.0.cmp(&b.0));
    plans
}

#[test]
fn plans_that_broke_a_promise_once_hold_now() {
    let plans = kept_plans();
    assert!(plans.len() >= 14, "plans are missing");
    let mut campaign = Campaign::default();
    for (name, plan) in plans {
        let finding = campaign.differs(&plan, false);
        assert!(finding.is_none(), "{name}: {}", finding.unwrap().violation);
    }
}

#[test]
fn fresh_seeds_break_no_promise_and_replay_byte_for_byte() {
    let first = match std::env::var("FOREBAY_SIM_SEED") {
        Ok(seed) => seed.parse().unwrap(),
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() << 20,
    };
    println!("seeds {first} to {}", first + SEEDS - 1);
    let mut campaign = Campaign::default();
    for seed in first..first + SEEDS {
        if let Some(finding) = campaign.seed(seed) {
            panic!("seed {seed}: {}\n{}", finding.violation, finding.to_file());
        }
    }
    println!("{}", campaign.counted.summary());
    assert!(campaign.counted.twice >= SEEDS / 64);
    let s = &campaign.counted.stats;
    assert!(
        s.crashes_in_recovery > 0
            && s.pairs_refused > 0
            && s.caches_lost > 0
            && s.damages > 0
            && s.faults.iter().sum::<u64>() > 0,
        "nothing was tried"
    );
}
