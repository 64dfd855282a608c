//! Who is compared.

use forebay_policy::SchedulerKind;

use super::Plan;
use crate::site::Site;

/// A scheduler of the backing, without a cache or with one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Contender {
    scheduler: SchedulerKind,
    cached: bool,
    /// Beside a task that writes as fast as it can.
    pub(crate) neighbour: bool,
}

impl Contender {
    /// Without a cache.
    pub(crate) const fn of(scheduler: SchedulerKind) -> Self {
        Self { scheduler, cached: false, neighbour: false }
    }

    pub(crate) const fn beside_neighbour(self) -> Self {
        Self { neighbour: true, ..self }
    }

    /// Every scheduler without a cache, then `rcp` with one.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let cached = Self { cached: true, ..Self::of(SchedulerKind::Rcp) };
        SchedulerKind::ALL.iter().copied().map(Self::of).chain([cached])
    }

    pub(crate) const fn is_cached(self) -> bool {
        self.cached
    }

    /// As people call it, and the command line.
    pub(crate) fn label(self) -> String {
        let cached = if self.cached { "+cache" } else { "" };
        let neighbour = if self.neighbour { " beside the neighbour" } else { "" };
        format!("{}{cached}{neighbour}", self.scheduler)
    }

    /// As figures do.
    pub(crate) fn name(self) -> String {
        self.label().replace([' ', '+', '-'], "_")
    }

    /// What its volume stands on.
    pub(crate) fn site(self, plan: &Plan, rules: &str) -> Site {
        let mut flags = vec![
            ("scheduler".to_owned(), self.scheduler.to_string()),
            ("rules".to_owned(), rules.to_owned()),
        ];
        if self.cached {
            let own = [("write-policy", "write-back"), ("admission", "cp+pi+ioi"), ("destage-on-stop", "no")];
            flags.extend(own.map(|(key, value)| (key.to_owned(), value.to_owned())));
        }
        flags.extend(plan.with.iter().cloned());
        Site { cache: self.cached.then(|| plan.cache.clone()), backing: plan.drive.clone(), flags }
    }
}
