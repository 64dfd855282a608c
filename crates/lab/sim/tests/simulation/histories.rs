//! The engine's behaviour, byte for byte: `histories.txt` keeps a hash of the whole history of many seeds. A change that is
//! meant to change nothing reproduces them all.
//!
//! `make histories` runs them all, and `UPDATE_HISTORIES=1 make histories` keeps what it finds; the commit that does so says
//! which behaviour has changed.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Mutex;

use forebay_sim::generate::{self, Options, Theme};
use forebay_sim::run::Simulator;
use forebay_sim::trace::Detail;

use crate::threads::on_two_threads;

/// Seeds in the list.
const SEEDS: usize = LOCAL_SEEDS + 1000;
/// The first of them whose store is behind a network.
const LOCAL_SEEDS: usize = 20_000;
/// Hashes on one line of it.
const PER_LINE: usize = 20;
/// Of so many lines one is run where not all are asked for.
const SHARE: usize = 20;

/// All other themes, each as a campaign of its own.
const THEMES: [&[Theme]; 15] = [
    &[],
    &[Theme::Contended],
    &[Theme::Crowded],
    &[Theme::Cuts],
    &[Theme::Touches],
    &[Theme::Flushes],
    &[Theme::Copies],
    &[Theme::Failing],
    &[Theme::Decaying],
    &[Theme::Exchanged],
    &[Theme::Consistent],
    &[Theme::Points],
    &[Theme::Common],
    &[Theme::Stale],
    &[Theme::Hinted],
];

/// A store behind a network, with different ways to it.
const REMOTE: [&[Theme]; 4] = [
    &[Theme::Remote],
    &[Theme::Remote, Theme::Copies],
    &[Theme::Remote, Theme::Consistent],
    &[Theme::Remote, Theme::Contended],
];

/// What the plan of a seed is about: none, reported and all faults in turn, and every theme with each; then stores behind a network.
fn options(seed: usize) -> Options {
    if seed >= LOCAL_SEEDS {
        return Options { decay: false, themes: REMOTE[seed % REMOTE.len()], ..Options::default() };
    }
    let faults = seed % 3;
    Options {
        faults: faults > 0,
        decay: faults > 1,
        themes: THEMES[seed / 3 % THEMES.len()],
        ..Options::default()
    }
}

/// Half of the hash of everything that the engine, the devices and the clients said to each other.
fn hash(simulator: &mut Simulator, seed: usize) -> u32 {
    let plan = generate::plan(seed as u64, options(seed));
    let outcome = simulator.run(&plan, Detail::HashData);
    assert_eq!(outcome.violation, None, "seed {seed}");
    (outcome.hash >> 32) as u32
}

#[test]
fn histories_are_those_that_are_kept() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("histories.txt");
    let update = std::env::var_os("UPDATE_HISTORIES").is_some();
    let all = update || std::env::var_os("FOREBAY_ALL_HISTORIES").is_some();
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    let kept: Vec<&str> = kept.lines().collect();
    assert!(update || kept.len() == SEEDS / PER_LINE, "{} has {} lines", file.display(), kept.len());
    let found = Mutex::new(vec![String::new(); SEEDS / PER_LINE]);
    let differ = Mutex::new(Vec::new());
    on_two_threads(SEEDS / PER_LINE, |line| {
        if !all && line % SHARE != 0 {
            return;
        }
        let mut simulator = Simulator::default();
        let mut text = String::new();
        for seed in line * PER_LINE..(line + 1) * PER_LINE {
            let _ = write!(text, "{:08x} ", hash(&mut simulator, seed));
        }
        let text = text.trim_end().to_owned();
        if let Some(was) = kept.get(line).filter(|was| **was != text) {
            let changed = text.split(' ').zip(was.split(' ')).enumerate().filter(|(_, (is, was))| is != was);
            differ.lock().unwrap().extend(changed.map(|(at, _)| line * PER_LINE + at));
        }
        found.lock().unwrap()[line] = text;
    });
    if update {
        let found = found.into_inner().unwrap();
        std::fs::write(&file, found.join("\n") + "\n").unwrap();
        return;
    }
    let mut differ = differ.into_inner().unwrap();
    differ.sort_unstable();
    assert!(
        differ.is_empty(),
        "{} of the histories run are others than those kept; the first: {:?} (`options` says what each is about)",
        differ.len(),
        &differ[..differ.len().min(10)]
    );
}
