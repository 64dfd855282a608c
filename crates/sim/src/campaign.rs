//! Runs seeds one after the other, counts, and on a violation makes a report that can be replayed.

use std::fmt::Write as _;

use crate::fault::Effect;
use crate::generate::{self, Options};
use crate::plan::Plan;
use crate::run::{Outcome, Simulator};
use crate::shrink;
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

/// Seeds run so far, and what came of them.
#[derive(Default)]
pub struct Campaign {
    simulator: Simulator,
    /// What is asked of the plans.
    pub options: Options,
    /// Totals.
    pub stats: Stats,
    /// Seeds run.
    pub seeds: u64,
}

impl Campaign {
    /// Runs one seed; on a violation, shrinks its plan.
    pub fn seed(&mut self, seed: u64) -> Option<Finding> {
        self.seeds += 1;
        self.plan(&generate::plan(seed, self.options), true)
    }

    /// Runs a plan; on a violation shrinks it, if that is wished.
    pub fn plan(&mut self, plan: &Plan, shrink: bool) -> Option<Finding> {
        let outcome = self.simulator.run(plan, Detail::Hash);
        self.stats.add(&outcome.stats);
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
        let s = &self.stats;
        let mut text = String::new();
        let figures = [
            ("seeds", self.seeds),
            ("events", s.events),
            ("requests", s.requests),
            ("bytes written by clients", s.bytes_written),
            ("sectors checked", s.sectors_checked),
            ("starts (each a recovery)", s.starts),
            ("process deaths", s.kills),
            ("power cuts of the cache", s.cuts_cache),
            ("power cuts of the backing", s.cuts_backing),
            ("crashes in recovery", s.crashes_in_recovery),
            ("clean stops", s.stops),
            ("sectors damaged at rest", s.damages),
            ("starts refused for damage", s.refusals),
            ("logs retired", s.retired),
            ("errors excused by faults", s.errors),
        ];
        for (name, figure) in figures {
            let _ = writeln!(text, "{name:>28}  {figure}");
        }
        for ((_, name), count) in Effect::ALL.iter().zip(s.faults) {
            let _ = writeln!(text, "{:>28}  {count}", format!("faults: {name}"));
        }
        text
    }
}
