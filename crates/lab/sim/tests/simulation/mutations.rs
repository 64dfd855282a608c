//! The oracle against the production engine with planted bugs: each of them is found.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use forebay_engine::{Engine, Mutation};
use forebay_sim::campaign::Campaign;
use forebay_sim::generate::{Options, Theme, plan};
use forebay_sim::run::Simulator;
use forebay_sim::trace::Detail;

use super::threads::on_two_threads;

const ANY: &[Theme] = &[];
const CONTENDED: &[Theme] = &[Theme::Contended];
const CROWDED: &[Theme] = &[Theme::Crowded];
const CUTS: &[Theme] = &[Theme::Cuts];
const TOUCHES: &[Theme] = &[Theme::Touches];
const FLUSHES: &[Theme] = &[Theme::Flushes];
const COPIES: &[Theme] = &[Theme::Copies];
const FAILING: &[Theme] = &[Theme::Failing];
const DECAYING: &[Theme] = &[Theme::Decaying];
const CONSISTENT: &[Theme] = &[Theme::Consistent];
const STALE: &[Theme] = &[Theme::Stale];
const POINTS: &[Theme] = &[Theme::Points];
const COMMON: &[Theme] = &[Theme::Common];
const HINTED: &[Theme] = &[Theme::Hinted];
const REMOTE: &[Theme] = &[Theme::Remote];
const SCHEDULED: &[Theme] = &[Theme::Scheduled];
const HINTED_CONSISTENT: &[Theme] = &[Theme::Hinted, Theme::Consistent];
const CROWDED_COPIES: &[Theme] = &[Theme::Crowded, Theme::Copies];
const CROWDED_DECAYING: &[Theme] = &[Theme::Crowded, Theme::Decaying];
const CONTENDED_FAILING: &[Theme] = &[Theme::Contended, Theme::Failing];
const CUTS_FAILING: &[Theme] = &[Theme::Cuts, Theme::Failing];
const CROWDED_FAILING_COPIES: &[Theme] = &[Theme::Crowded, Theme::Copies, Theme::Failing];
const FAILING_COPIES: &[Theme] = &[Theme::Copies, Theme::Failing];
const CONTENDED_CONSISTENT_FAILING: &[Theme] = &[Theme::Contended, Theme::Consistent, Theme::Failing];
const FAILING_FLUSHES: &[Theme] = &[Theme::Contended, Theme::Flushes, Theme::Failing];

/// What the plans are about that are to find a mutation, and within how many seeds: some six times as many as it
/// takes on average, so that a change of the engine, which deals the cards anew, does not break the test.
const fn expectation(mutation: Mutation) -> (&'static [Theme], u64) {
    use Mutation as M;
    match mutation {
        M::AcknowledgesBeforeWrite
        | M::IndexesAtSubmission
        | M::SkipsCacheFlush
        | M::WritesVolatile
        | M::CleanMarkTooEarly
        | M::ForgetsGeneration
        | M::StaleSequenceInChecksum
        | M::StaleBase
        | M::ForgetsWaiters
        | M::ForgetsRestOfBlock
        | M::BypassIgnoresDestage
        | M::CleanBeforeFlush
        | M::UnlocksEarly
        | M::DestagesSwapped
        | M::CleaningLosesDirty
        | M::AcceptsEarlierLap
        | M::IgnoresLastRecord
        | M::IgnoresTail => (ANY, 100),
        M::ForgetsFua
        | M::ZeroesVolatile
        | M::BypassKeepsIndex
        | M::MergesIntoZeroes
        | M::DestageForgetsOwed
        | M::StatusForgetsBlock
        | M::TrustsCleanAfterCrash
        | M::IgnoresZeroes => (ANY, 200),
        M::AcknowledgesOutOfOrder
        | M::ForgetsReserve
        | M::DropsSupersede
        | M::BypassesVolatile
        | M::ForgetsUnflushedBypass
        | M::CleansNewerVersion
        | M::IgnoresSupersede
        | M::IgnoresCleanMark
        | M::DestageForgetsRecord
        | M::StopsUnflushed => (ANY, 400),
        M::StopsVolatile | M::RecoversVolatile => (ANY, 2000),
        M::FlushCoversTooMuch | M::FlushForgetsBacking => (FLUSHES, 200),
        M::FlushForgetsLog => (FLUSHES, 400),
        M::RetriesFailedFlush => (FAILING_FLUSHES, 800),
        M::ReadsUnchecked => (DECAYING, 100),
        M::ReadsStaleInsteadOfDamaged | M::DestagesUnchecked | M::IgnoresProof => (DECAYING, 200),
        M::DropsPoison => (DECAYING, 400),
        M::ReadsLostAsZeroes => (DECAYING, 800),
        M::BelievesRecords => (DECAYING, 1000),
        M::CopiesUnchecked => (CROWDED_DECAYING, 5000),
        M::IgnoresRacingFill | M::SupersedesVolatile => (CONTENDED, 5000),
        M::ForgetsUntrueCopies => (COPIES, 200),
        M::FailedBypassKeepsCopy => (CROWDED_FAILING_COPIES, 1500),
        M::IgnoresFailedWrite => (CUTS_FAILING, 200),
        M::IgnoresFailedFlush => (FAILING, 1000),
        M::IgnoresFailedDestage => (FAILING, 400),
        M::RetiresEarly => (FAILING, 800),
        M::IgnoresTaint => (CONTENDED_FAILING, 8000),
        M::ReusesTooEarly => (CROWDED, 1000),
        M::ReusesUnderReader => (CROWDED_COPIES, 3000),
        M::OrderIgnoresDependence
        | M::OrderDropsVersions
        | M::OrderForgetsBypass
        | M::OrderForgetsDistance
        | M::OrderForgetsProgress
        | M::OrderForgetsBarrier
        | M::OrderClaimsTooEarly
        | M::OrderNeverCaughtUp
        | M::OrderRecoversNewest => (CONSISTENT, 200),
        M::OrderTrustsWeaker | M::OrderForgetsLost => (CONSISTENT, 1500),
        M::JournalSkipsFlush
        | M::JournalDestagesUncommitted
        | M::JournalLeavesBehindEarly
        | M::JournalHeadVolatile
        | M::JournalTakesCurrent
        | M::JournalFlushesBacking
        | M::JournalReplacesEarly
        | M::JournalForgetsToRenounce
        | M::OrderForgetsToRenounce
        | M::JournalCutsRecords => (CONSISTENT, 1000),
        M::JournalForgetsHeld => (CONSISTENT, 8000),
        M::CommitForgetsPlaces => (HINTED_CONSISTENT, 4000),
        M::CommitKeepsOlder => (CONSISTENT, 1000),
        M::OrderRecordsNowhere => (CONSISTENT, 80_000),
        M::OrderVoidsEarly => (CONSISTENT, 200),
        M::PointTakesLater
        | M::PointAnsweredEarly
        | M::PointForgotten
        | M::PointOutlivesGroup
        | M::PointForgetsBypass
        | M::PointFlushLate => (POINTS, 1000),
        M::CommonCutsEarly
        | M::CommonDestagesPrepared
        | M::CommonDecidesAlone
        | M::CommonForgetsToRenounce
        | M::CommonForgetsPrepared => (COMMON, 1000),
        M::CommonIgnoresExpiry => (COMMON, 6000),
        M::StalenessIgnored | M::StalenessUntold => (STALE, 200),
        M::StalenessByAgeAlone => (STALE, 2000),
        M::PacesForGood => (CONSISTENT, 200),
        M::ThrottleNeverReleases => (CROWDED, 400),
        M::IgnoresFence | M::FenceForgetsCommands => (REMOTE, 100),
        M::FenceLetsAnswersGo => (REMOTE, 200),
        M::ReissueUnlocksBacking | M::ReissueSkipsLog => (HINTED, 200),
        M::LandingCleansNewer => (HINTED, 1000),
        M::QueueForgetsNonCritical => (ANY, 100),
        M::PromotionForgets | M::PromotionStartsTwice => (CROWDED, 400),
        M::SchedulerForgetsPromotion
        | M::SchedulerStarvesBackground
        | M::SchedulerForgetsEnds
        | M::ExchangeForgetsWaiting
        | M::QueueStartsTooMany
        | M::WithdrawnStarts
        | M::EndedKeepsSlot => (SCHEDULED, 400),
        M::ReissueForgetsDependence => (HINTED_CONSISTENT, 200),
        M::OrderSupersedesNewest => (CONTENDED_CONSISTENT_FAILING, 100_000),
        M::ForgetsFailedFlush => (CROWDED_FAILING_COPIES, 12_000),
        M::TellsFailedFlushTooEarly => (FAILING_COPIES, 15_000),
        M::AcceptsTorn => (CUTS, 100),
        M::AcceptsEarlierRun => (TOUCHES, 8000),
        M::BeginsWithData => (TOUCHES, 40_000),
        M::LooksTooNear => (CROWDED_DECAYING, 150_000),
    }
}

/// One plan in tens of thousands finds them: that takes longer than all others together.
const RARE: [Mutation; 2] = [Mutation::OrderRecordsNowhere, Mutation::LooksTooNear];

fn options(themes: &'static [Theme]) -> Options {
    Options { themes, ..Options::default() }
}

/// Runs seeds until one breaks a promise, or the engine notices by itself: how many, and which promise.
fn seeds_until_found(mutation: Mutation) -> Option<(u64, String)> {
    let (themes, bound) = expectation(mutation);
    let mut simulator = Simulator::default();
    for seed in 0..bound {
        let plan = plan(seed, options(themes));
        let run =
            || simulator.run_with(&plan, Detail::Hash, |p| Engine::with_mutation(p, mutation)).violation;
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(None) => {}
            Ok(Some(v)) => return Some((seed + 1, v.promise.to_owned())),
            Err(_) => return Some((seed + 1, "assertion".to_owned())),
        }
    }
    None
}

#[test]
fn the_documentation_has_every_mutation() {
    let page = include_str!("../../../../../docs/design/planted-bugs.md");
    for (mutation, doc) in Mutation::ALL {
        let row = format!("| `{mutation:?}` | {} |", doc.trim());
        assert!(page.contains(&row), "docs/design/planted-bugs.md lacks: {row}");
    }
}

#[test]
fn every_mutation_is_found() {
    are_found(false);
}

#[test]
#[ignore = "takes minutes: make soak"]
fn rare_mutations_are_found() {
    are_found(true);
}

/// The rare ones, or all others.
fn are_found(rare: bool) {
    let mutations = Mutation::ALL.iter().copied().filter(|(mutation, _)| RARE.contains(mutation) == rare);
    let mutations: Vec<_> = mutations.collect();
    assert!(mutations.len() >= if rare { RARE.len() } else { 25 }, "the issue asks for so many");
    let found: Mutex<BTreeMap<usize, Option<(u64, String)>>> = Mutex::default();
    on_two_threads(mutations.len(), |i| {
        let outcome = seeds_until_found(mutations[i].0);
        found.lock().unwrap().insert(i, outcome);
    });
    println!("| mutation | what it does wrong | themes | seeds needed | promise |");
    println!("|---|---|---|---|---|");
    let mut missed = Vec::new();
    // Seeds that were run, by theme: the engine without a bug must pass them.
    let mut ran: Vec<(&[Theme], u64)> = Vec::new();
    for (i, outcome) in found.into_inner().unwrap() {
        let (mutation, doc) = mutations[i];
        let (themes, bound) = expectation(mutation);
        let Some((seeds, promise)) = outcome else {
            missed.push(format!("{mutation:?} within {bound} seeds"));
            continue;
        };
        let names: Vec<String> = themes.iter().map(|t| format!("{t:?}").to_lowercase()).collect();
        let names = if names.is_empty() { "any".to_owned() } else { names.join(" ") };
        println!("| `{mutation:?}` | {} | {names} | {seeds} of {bound} | {promise} |", doc.trim());
        match ran.iter_mut().find(|(t, _)| *t == themes) {
            Some((_, most)) => *most = seeds.max(*most),
            None => ran.push((themes, seeds)),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
    on_two_threads(ran.len(), |i| {
        let (themes, seeds) = ran[i];
        let mut campaign = Campaign::default();
        campaign.options = options(themes);
        for seed in 0..seeds {
            if let Some(finding) = campaign.seed(seed) {
                panic!(
                    "without a bug, {themes:?}, seed {seed}: {}\n{}",
                    finding.violation,
                    finding.to_file()
                );
            }
        }
    });
}
