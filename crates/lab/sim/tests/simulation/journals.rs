//! Journals that are found by their shape: no promise depends on what is found, nor on what becomes of it (P8).

use forebay_policy::JournalCaching;
use forebay_sim::generate::{Options, Theme, plan};

use super::threads::no_promise_is_broken;

const THEMES: [&[Theme]; 4] = [
    &[Theme::Journals],
    &[Theme::Journals, Theme::Failing],
    &[Theme::Journals, Theme::Consistent],
    &[Theme::Journals, Theme::Flushes],
];
const SEEDS: u64 = 60;

#[test]
fn no_journal_that_is_found_breaks_a_promise() {
    no_promise_is_broken(&THEMES, SEEDS, |_| {});
}

#[test]
fn plans_treat_journals_in_every_way() {
    let options = Options { themes: THEMES[0], ..Options::default() };
    let all = (0..SEEDS)
        .flat_map(|seed| plan(seed, options).settings().map(|s| s.journal_caching).collect::<Vec<_>>());
    let ways: std::collections::HashSet<_> = all.map(JournalCaching::as_str).collect();
    assert_eq!(ways.len(), JournalCaching::ALL.len());
}
