//! Runs seeds one after the other, counts, and on a violation makes a report that can be replayed.

use std::fmt::Write as _;

use forebay_engine::{Engine, Params};

use crate::fault::Effect;
use crate::generate::{self, Options};
use crate::plan::Plan;
use crate::run::{Outcome, Simulator};
use crate::shrink;
use crate::subject::Subject;
use crate::trace::{self, Detail};
use crate::violation::Violation;
use crate::world::Stats;

/// A broken promise with all that a person needs.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What broke.
    pub violation: Violation,
    /// The shortest plan found that breaks it.
    pub plan: Plan,
    /// What happened to the blocks concerned.
    pub timeline: String,
}

impl Finding {
    /// The plan as a file that can be replayed, with the violation and the timeline as remarks.
    pub fn to_file(&self) -> String {
        let mut text = self.plan.to_string();
        let _ = writeln!(text, "\n# {}", self.violation);
        for line in self.timeline.lines() {
            let _ = writeln!(text, "# {line}");
        }
        text
    }
}

/// Runs one seed and forgets the rest.
pub fn run_seed(seed: u64, options: Options) -> Outcome {
    Simulator::default().run(&generate::plan(seed, options), Detail::Hash)
}

/// What came of seeds.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    /// Totals.
    pub stats: Stats,
    /// Seeds run.
    pub seeds: u64,
    /// Plans that were run twice and compared.
    pub twice: u64,
}

/// Seeds run so far, and what came of them.
#[derive(Default)]
pub struct Campaign {
    simulator: Simulator,
    /// What is asked of the plans.
    pub options: Options,
    /// What has been counted since [`Campaign::take_counted`].
    pub counted: Counted,
}

/// Runs a plan without and with the verifier's second opinion: what was counted, and what breaks a promise, the verifier or
/// a difference.
fn run_twice<S: Subject>(
    simulator: &mut Simulator,
    plan: &Plan,
    make: &mut impl FnMut(Params) -> S,
) -> (Stats, Option<Violation>) {
    let [first, second] = [false, true].map(|second_opinion| {
        simulator.second_opinion = second_opinion;
        simulator.run_with(plan, Detail::HashData, &mut *make)
    });
    simulator.second_opinion = false;
    let differ = || Violation {
        promise: "replay",
        message: "the same plan has two different histories".to_owned(),
        sectors: Vec::new(),
        round: plan.rounds.len().saturating_sub(1),
        step: 0,
    };
    (first.stats, second.violation.clone().or_else(|| (first != second).then(differ)))
}

/// One seed in so many is run twice.
const TWICE_EVERY: u64 = 64;

impl Campaign {
    /// One whose plans are as `options` want them.
    pub fn new(options: Options) -> Self {
        Self { options, ..Self::default() }
    }

    /// Runs one seed; on a violation, shrinks its plan. Now and then one is run twice.
    pub fn seed(&mut self, seed: u64) -> Option<Finding> {
        self.counted.seeds += 1;
        let plan = generate::plan(seed, self.options);
        match seed.is_multiple_of(TWICE_EVERY) {
            true => self.differs(&plan, true),
            false => self.plan(&plan, true),
        }
    }

    /// Runs a plan twice and compares every byte that went to and fro; the second time the verifier looks at each
    /// cache that a crash leaves. What is found is shortened, if that is wished.
    pub fn differs(&mut self, plan: &Plan, shrink: bool) -> Option<Finding> {
        self.differs_with(plan, shrink, Engine::new)
    }

    /// As [`Campaign::differs`], run against whatever `make` makes.
    pub fn differs_with<S: Subject>(
        &mut self,
        plan: &Plan,
        shrink: bool,
        mut make: impl FnMut(Params) -> S,
    ) -> Option<Finding> {
        self.counted.twice += 1;
        let simulator = &mut self.simulator;
        let (stats, violation) = run_twice(simulator, plan, &mut make);
        self.counted.stats.add(&stats);
        let mut found = (plan.clone(), violation?);
        if shrink {
            found = shrink::shrink(plan, found.1, |p| run_twice(simulator, p, &mut make).1);
        }
        let (plan, violation) = found;
        simulator.second_opinion = true;
        let lines = simulator.run_with(&plan, Detail::Lines, &mut make).lines;
        simulator.second_opinion = false;
        let timeline = trace::timeline(&lines, &violation.sectors);
        Some(Finding { violation, plan, timeline })
    }

    /// What has been counted since this was asked last.
    pub fn take_counted(&mut self) -> Counted {
        std::mem::take(&mut self.counted)
    }

    /// Runs a plan; on a violation shrinks it, if that is wished.
    pub fn plan(&mut self, plan: &Plan, shrink: bool) -> Option<Finding> {
        let outcome = self.simulator.run(plan, Detail::Hash);
        self.counted.stats.add(&outcome.stats);
        let mut violation = outcome.violation?;
        let mut plan = plan.clone();
        if shrink {
            let simulator = &mut self.simulator;
            (plan, violation) =
                shrink::shrink(&plan, violation, |p| simulator.run(p, Detail::Hash).violation);
        }
        let lines = self.simulator.run(&plan, Detail::Lines).lines;
        let timeline = trace::timeline(&lines, &violation.sectors);
        Some(Finding { violation, plan, timeline })
    }
}

impl Counted {
    /// Adds what was counted elsewhere.
    pub fn add(&mut self, other: &Self) {
        self.stats.add(&other.stats);
        self.seeds += other.seeds;
        self.twice += other.twice;
    }

    /// One line on how far it has come.
    pub fn progress(&self) -> String {
        let s = &self.stats;
        format!(
            "{} seeds, {} events, {} starts, {} kills, {} cache cuts, {} backing cuts, {} in recovery",
            self.seeds, s.events, s.starts, s.kills, s.cuts_cache, s.cuts_backing, s.crashes_in_recovery
        )
    }

    /// Everything that was counted, one figure a line.
    pub fn summary(&self) -> String {
        figure("seeds", self.seeds) + &figure("of them run twice", self.twice) + &figures(&self.stats)
    }
}

/// A line of a summary. `make soak` adds up the lines of this form that its tests print.
pub fn figure(name: &str, count: u64) -> String {
    format!("{name:>28}  {count}\n")
}

/// What was counted in worlds, one figure a line.
pub fn figures(s: &Stats) -> String {
    let figures = [
        ("events", s.events),
        ("requests", s.requests),
        ("promotions", s.promotions),
        ("bytes written by clients", s.bytes_written),
        ("sectors checked", s.sectors_checked),
        ("backings judged alone", s.orders_judged),
        ("starts (each a recovery)", s.starts),
        ("process deaths", s.kills),
        ("power cuts of the cache", s.cuts_cache),
        ("power cuts of the backing", s.cuts_backing),
        ("crashes in recovery", s.crashes_in_recovery),
        ("crashes before recovery", s.crashes_in_start),
        ("older and foreign refused", s.pairs_refused),
        ("caches lost for good", s.caches_lost),
        ("stores taken over", s.taken_over),
        ("journals replayed", s.replays),
        ("caches removed for good", s.caches_released),
        ("clean stops", s.stops),
        ("sectors damaged at rest", s.damages),
        ("starts refused for damage", s.refusals),
        ("logs retired", s.retired),
        ("errors excused by faults", s.errors),
    ];
    let faults = Effect::ALL.iter().zip(s.faults).map(|((_, name), n)| figure(&format!("faults: {name}"), n));
    figures.into_iter().map(|(name, count)| figure(name, count)).chain(faults).collect()
}
