//! Hostile hints (P8): wrong criticality, and promotions of anything at any time.

use forebay_policy::Admission;
use forebay_sim::generate::{Options, Theme, plan};
use forebay_sim::plan::Action;

use super::threads::no_promise_is_broken;

const THEMES: [&[Theme]; 5] = [
    &[Theme::Hinted],
    &[Theme::Hinted, Theme::Consistent],
    &[Theme::Hinted, Theme::Contended],
    &[Theme::Hinted, Theme::Failing],
    &[Theme::Hinted, Theme::Flushes],
];
const SEEDS: u64 = 200;

#[test]
fn hostile_hints_break_no_promise() {
    no_promise_is_broken(&THEMES, SEEDS, |campaign| {
        let themes = campaign.options.themes;
        assert!(campaign.counted.stats.promotions > SEEDS, "{themes:?}: too few promotions");
    });
}

#[test]
fn plans_without_wanted_themes_have_hints_now_and_then() {
    let hinted = |seed: &u64| {
        let plan = plan(*seed, Options::default());
        let promotes = plan.rounds.iter().flat_map(|r| &r.steps);
        promotes.filter(|s| matches!(s.action, Action::Promote { .. })).count() > 0
            && plan.settings().any(|s| s.admission == Admission::CpPiIoi)
    };
    let count = (0..200).filter(hinted).count();
    assert!((20..100).contains(&count), "{count} of 200");
}
