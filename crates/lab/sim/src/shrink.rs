//! Makes a failing plan short: removes and simplifies its parts one after the other as long as the same promise
//! breaks.

use forebay_policy::BACKING_SLOTS_MAX;
use forebay_policy::Settings;

use crate::media::Survival;
use crate::plan::{Action, Between, CrashKind, End, Plan, Round};
use crate::violation::Violation;

/// Most runs that shrinking a plan may take.
pub const RUNS_MAX: u32 = 20_000;
/// Crash points below the current one that are tried one by one.
const CRASH_POINTS_MAX: u64 = 400;
/// Other schedules that are tried for a plan from which something was removed: removal shifts every later latency.
const SCHEDULES: u64 = 3;

/// A plan being shrunk, and the judge of its shorter versions.
struct Shrinker<F> {
    best: Plan,
    violation: Violation,
    judge: F,
    runs: u32,
}

/// The shortest plan found from `plan`, which breaks the promise of `violation`, by asking `judge` what other plans
/// break.
pub fn shrink(
    plan: &Plan,
    violation: Violation,
    judge: impl FnMut(&Plan) -> Option<Violation>,
) -> (Plan, Violation) {
    let mut shrinker = Shrinker { best: plan.clone(), violation, judge, runs: 0 };
    loop {
        let before = shrinker.best.clone();
        shrinker.rounds();
        for i in 0..shrinker.best.rounds.len() {
            shrinker.steps(i);
            shrinker.between(i);
            shrinker.faults(i);
            shrinker.round(i);
            shrinker.crash(i);
        }
        shrinker.models();
        shrinker.shape();
        if shrinker.best == before || shrinker.runs >= RUNS_MAX {
            return (shrinker.best, shrinker.violation);
        }
    }
}

impl<F: FnMut(&Plan) -> Option<Violation>> Shrinker<F> {
    /// Keeps `candidate` if it breaks the same promise.
    fn keep(&mut self, candidate: Plan) -> bool {
        if candidate == self.best || self.runs >= RUNS_MAX {
            return false;
        }
        self.runs += 1;
        match (self.judge)(&candidate) {
            Some(v) if v.promise == self.violation.promise => {
                (self.best, self.violation) = (candidate, v);
                true
            }
            _ => false,
        }
    }

    /// As [`Shrinker::keep`], and if that fails, with other schedules of round `i`.
    fn keep_rescheduled(&mut self, candidate: Plan, i: usize) -> bool {
        let reschedule = |n: u64| {
            let mut other = candidate.clone();
            if let Some(r) = other.rounds.get_mut(i) {
                r.schedule = n;
            }
            other
        };
        let others: Vec<Plan> = (1..=SCHEDULES).map(reschedule).collect();
        self.keep(candidate) || others.into_iter().any(|other| self.keep(other))
    }

    fn with(&self, i: usize, change: impl FnOnce(&mut Round)) -> Plan {
        let mut plan = self.best.clone();
        if let Some(r) = plan.rounds.get_mut(i) {
            change(r);
        }
        plan
    }

    /// Random latencies in place of models.
    fn models(&mut self) {
        self.keep(Plan { cache_model: None, ..self.best.clone() });
        self.keep(Plan { backing_model: None, ..self.best.clone() });
    }

    fn rounds(&mut self) {
        let mut cut = self.best.clone();
        cut.rounds.truncate(self.violation.round + 1);
        self.keep(cut);
        let mut i = 0;
        while i < self.best.rounds.len() && self.best.rounds.len() > 1 {
            let mut shorter = self.best.clone();
            shorter.rounds.remove(i);
            for event in shorter.rounds.iter_mut().flat_map(|r| &mut r.between) {
                if let Between::Older { rounds, .. } = event {
                    *rounds -= usize::from(*rounds > i);
                }
            }
            if !self.keep(shorter) {
                i += 1;
            }
        }
    }

    /// Removes runs of steps, from half of them down to single ones.
    fn steps(&mut self, i: usize) {
        let mut size = self.best.rounds[i].steps.len();
        while size > 0 {
            let mut at = 0;
            while at < self.best.rounds[i].steps.len() {
                let shorter = self.with(i, |r| {
                    r.steps.drain(at..(at + size).min(r.steps.len()));
                    for d in &mut r.damages {
                        d.after = d.after.saturating_sub(if d.after > at { size } else { 0 });
                    }
                });
                if !self.keep_rescheduled(shorter, i) {
                    at += size;
                }
            }
            size /= 2;
        }
        for at in 0..self.best.rounds[i].steps.len() {
            self.step(i, at);
        }
    }

    fn step(&mut self, i: usize, at: usize) {
        let calm = self.with(i, |r| r.steps[at].delay_us = 0);
        self.keep(calm);
        for len in [512, 4096] {
            let shorter = self.with(i, |r| match &mut r.steps[at].action {
                Action::Read { len: l, .. } | Action::Write { len: l, .. } | Action::Zero { len: l, .. } => {
                    *l = len.min(*l);
                }
                _ => {}
            });
            if self.keep(shorter) {
                break;
            }
        }
        let aligned = self.with(i, |r| match &mut r.steps[at].action {
            Action::Read { offset, len }
            | Action::Write { offset, len, .. }
            | Action::Zero { offset, len, .. } => {
                let start = *offset / 4096 * 4096;
                (*offset, *len) = (start, (*len).max(4096.min(*len + *offset - start)));
            }
            _ => {}
        });
        self.keep(aligned);
        let plain = self.with(i, |r| match &mut r.steps[at].action {
            Action::Write { fua, sync, .. } => (*fua, *sync) = (false, false),
            Action::Zero { fua, unmap, .. } => (*fua, *unmap) = (false, false),
            _ => {}
        });
        self.keep(plain);
    }

    /// Fewer events before the start, without crashes of their own.
    fn between(&mut self, i: usize) {
        for at in (0..self.best.rounds[i].between.len()).rev() {
            let fewer = self.with(i, |r| {
                r.between.remove(at);
            });
            if !self.keep(fewer) {
                let calm = self.with(i, |r| match &mut r.between[at] {
                    Between::Lose { crash, .. } | Between::Release(crash) => *crash = None,
                    Between::Older { .. } | Between::Foreign(_) => {}
                });
                self.keep(calm);
            }
        }
    }

    fn faults(&mut self, i: usize) {
        for at in (0..self.best.rounds[i].faults.len()).rev() {
            let fewer = self.with(i, |r| {
                r.faults.remove(at);
            });
            if !self.keep(fewer) {
                let single = self.with(i, |r| r.faults[at].count = 1);
                self.keep(single);
            }
        }
        for at in (0..self.best.rounds[i].damages.len()).rev() {
            let fewer = self.with(i, |r| {
                r.damages.remove(at);
            });
            self.keep(fewer);
        }
    }

    fn round(&mut self, i: usize) {
        let calm = self.with(i, |r| r.verify = false);
        self.keep(calm);
        for depth in [1, 2, 4] {
            let narrow = self.with(i, |r| r.depth = depth.min(r.depth));
            if self.keep(narrow) {
                break;
            }
        }
        let roomy = self.with(i, |r| r.backing_depth = BACKING_SLOTS_MAX);
        self.keep(roomy);
        let default = Settings::default();
        let choices: [fn(&mut Settings, Settings); 7] = [
            |s, d| s.write_policy = d.write_policy,
            |s, d| s.order = d.order,
            |s, d| s.admission = d.admission,
            |s, d| s.journal_caching = d.journal_caching,
            |s, d| s.on_full = d.on_full,
            |s, d| s.durability = d.durability,
            |s, d| s.scheduler = d.scheduler,
        ];
        for choice in choices {
            let plain = self.with(i, |r| choice(&mut r.settings, default));
            self.keep(plain);
        }
    }

    fn crash(&mut self, i: usize) {
        let kinds = [
            CrashKind::Kill,
            CrashKind::Cut { cache: true, backing: true, survival: Survival::Nothing },
            CrashKind::Cut { cache: true, backing: true, survival: Survival::Everything },
        ];
        let end = self.best.rounds[i].end;
        for kind in kinds {
            let simpler = match end {
                End::CrashAfter(n, _) => End::CrashAfter(n, kind),
                End::CrashIdle(_) => End::CrashIdle(kind),
                End::CrashSettled(_) => End::CrashSettled(kind),
                End::CrashInStart { write, .. } => End::CrashInStart { write, crash: kind },
                End::CrashInLastWords { destage, write, .. } => {
                    End::CrashInLastWords { destage, write, crash: kind }
                }
                End::CrashInStop { .. } | End::Stop { .. } => End::CrashIdle(kind),
            };
            let plan = self.with(i, |r| r.end = simpler);
            if self.keep(plan) {
                break;
            }
        }
        if let End::CrashAfter(n, kind) = self.best.rounds[i].end {
            let idle = self.with(i, |r| r.end = End::CrashIdle(kind));
            if self.keep(idle) {
                return;
            }
            for earlier in (1..n).take(CRASH_POINTS_MAX as usize) {
                let plan = self.with(i, |r| r.end = End::CrashAfter(earlier, kind));
                if self.keep(plan) {
                    return;
                }
            }
        }
    }

    fn shape(&mut self) {
        let plain = |change: &dyn Fn(&mut Plan), best: &Plan| {
            let mut plan = best.clone();
            change(&mut plan);
            plan
        };
        let end = self.best.rounds.iter().flat_map(|r| &r.steps).map(|s| match s.action {
            Action::Read { offset, len }
            | Action::Write { offset, len, .. }
            | Action::Status { offset, len }
            | Action::Zero { offset, len, .. } => offset + len,
            _ => 0,
        });
        let end = end.max().unwrap_or(0).max(4096).next_multiple_of(4096);
        let changes: [&dyn Fn(&mut Plan); 5] = [
            &|p| p.shape.volume_bytes = end.min(p.shape.volume_bytes),
            &|p| p.shape.segment_count = 6,
            &|p| p.shape.segment_bytes = 64 << 10,
            &|p| p.shape.align = 512,
            &|p| p.shape.stamped = false,
        ];
        for change in changes {
            let plan = plain(change, &self.best);
            self.keep(plan);
        }
    }
}
