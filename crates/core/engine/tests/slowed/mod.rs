//! Writers who are slowed down as the log fills.

use forebay_block::{Criticality, Origin};
use forebay_engine::{Command, State};
use forebay_policy::{MaxStaleness, Settings};

use super::world::{World, settings};

const SECOND: u64 = 1_000_000_000;

fn known_to_be_awaited() -> Origin {
    Origin { sync: true, criticality: Criticality::Direct, ..Origin::default() }
}

/// A log that nearly fills, in front of a backing whose pace is known and which rests from now on. All was known to be awaited.
fn nearly_full() -> World {
    let mut w = World::new(2, settings(), 16_384, 128);
    w.origin = known_to_be_awaited();
    for n in 0..9000 {
        w.write(n * 5003 % 16_000 * 4096, 4096);
        w.run(2);
    }
    w.backing_rests = true;
    for n in 0.. {
        assert!(n < 4000, "nobody is slowed down: {:?}", w.status());
        w.write(n * 5003 % 16_000 * 4096, 4096);
        w.end_all_at_cache();
        if w.status().state == Some(State::Full) {
            break;
        }
    }
    // It is as slow as it gets by now.
    w.pass_ms(60_000);
    w.run(10);
    w
}

/// So many writes of one block each.
fn writes(w: &mut World, count: u64) -> Vec<u64> {
    (0..count).map(|n| w.write(n * 4096, 4096)).collect()
}

fn run_until(w: &mut World, ns: u64) {
    while w.now().0 < ns {
        w.run(1);
    }
}

fn answered(w: &World, ids: &[u64]) -> usize {
    ids.iter().filter(|id| w.is_answered(**id)).count()
}

#[test]
fn who_nobody_was_known_to_wait_for_is_not_passed_once_that_is_said_of_nobody() {
    let mut w = nearly_full();
    w.write(0, 4096);
    w.origin = Origin::default();
    let before = writes(&mut w, 40);
    let over = w.now().0 + SECOND;
    run_until(&mut w, over + SECOND / 10);
    let had = answered(&w, &before);
    assert!(had < 36, "they are slowed down: {had}");
    let after: Vec<u64> = (100..140).map(|n| w.write(n * 4096, 4096)).collect();
    while answered(&w, &before) < before.len() {
        w.run(1);
        assert!(answered(&w, &after) == 0 || answered(&w, &before) == before.len());
    }
}

#[test]
fn a_stop_makes_nobody_wait_for_the_throttle() {
    let mut w = nearly_full();
    let ids = writes(&mut w, 100);
    w.begin(Command::Stop { destage: false });
    let begun = w.now().0;
    run_until(&mut w, begun + SECOND / 4);
    assert_eq!(answered(&w, &ids), ids.len());
}

#[test]
fn whoever_the_bound_of_staleness_lets_go_does_not_wait_for_the_throttle_too() {
    let mut w = nearly_full();
    let bound = Settings { max_staleness: MaxStaleness::Bytes(1 << 20), ..settings() };
    w.command(Command::Set(bound)).unwrap();
    let ids = writes(&mut w, 64);
    let begun = w.now().0;
    run_until(&mut w, begun + SECOND / 2);
    assert_eq!(answered(&w, &ids), 0, "they are held back");
    run_until(&mut w, begun + 2 * SECOND);
    assert_eq!(answered(&w, &ids), ids.len());
}
