//! Long tests share the machine's processors.

use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_sim::campaign::Campaign;
use forebay_sim::generate::{Options, Theme};

/// Calls `work` with each of `0..count`, on two threads.
pub fn on_two_threads(count: usize, work: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    let run = || {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= count {
                return;
            }
            work(i);
        }
    };
    std::thread::scope(|s| {
        s.spawn(run);
        s.spawn(run);
    });
}

/// Runs so many seeds with each of these sets of themes, and shows the first plan that breaks a promise. `look` at what was counted.
pub fn no_promise_is_broken(sets: &[&'static [Theme]], seeds: u64, look: impl Fn(&Campaign) + Sync) {
    on_two_threads(sets.len(), |i| {
        let mut campaign = Campaign::default();
        campaign.options = Options { themes: sets[i], ..Options::default() };
        for seed in 0..seeds {
            if let Some(finding) = campaign.seed(seed) {
                panic!("{:?}, seed {seed}: {}\n{}", sets[i], finding.violation, finding.to_file());
            }
        }
        look(&campaign);
    });
}
