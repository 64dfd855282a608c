//! Every scheduler of the backing's queue, in front of backings of every depth: no promise depends on either.

use std::collections::BTreeSet;

use forebay_policy::SchedulerKind;
use forebay_sim::generate::{Options, Theme, plan};
use forebay_sim::plan::Action;

use super::threads::no_promise_is_broken;

const THEMES: [&[Theme]; 5] = [
    &[Theme::Scheduled],
    &[Theme::Scheduled, Theme::Contended],
    &[Theme::Scheduled, Theme::Crowded],
    &[Theme::Scheduled, Theme::Failing],
    &[Theme::Scheduled, Theme::Consistent],
];
const SEEDS: u64 = 200;

#[test]
fn no_scheduler_breaks_a_promise() {
    no_promise_is_broken(&THEMES, SEEDS, |_| {});
}

#[test]
fn plans_have_every_scheduler_and_depth_and_exchange_them() {
    for themes in [&[][..], &[Theme::Scheduled]] {
        let (mut kinds, mut depths, mut exchanges) = (BTreeSet::new(), BTreeSet::new(), 0);
        for seed in 0..SEEDS {
            let plan = plan(seed, Options { themes, ..Options::default() });
            kinds.extend(plan.settings().map(|settings| settings.scheduler.to_string()));
            depths.extend(plan.rounds.iter().map(|round| round.backing_depth));
            for round in &plan.rounds {
                let mut scheduler = round.settings.scheduler;
                for step in &round.steps {
                    if let Action::Set(settings) = &step.action {
                        exchanges += usize::from(settings.scheduler != scheduler);
                        scheduler = settings.scheduler;
                    }
                }
            }
        }
        assert_eq!(kinds.len(), SchedulerKind::ALL.len(), "{themes:?}: {kinds:?}");
        assert_eq!(depths.into_iter().collect::<Vec<_>>(), [1, 2, 4, 128, 256], "{themes:?}");
        assert!(exchanges > 20, "{themes:?}: {exchanges} exchanges");
    }
}
