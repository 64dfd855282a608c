//! What replays say of policies and devices.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;

use forebay_policy::{Order, Settings, WritePolicy};
use forebay_replay::request_log::VERSION;
use forebay_replay::{Outcome, Setup, Trace, replay};

#[path = "replay/full_cache.rs"]
mod full_cache;

/// Overwrites 64 blocks again and again, with a flush after each eight writes and a read now and then.
fn overwrites(count: u64) -> Trace {
    let mut text = String::from("fio version 2 iolog\nf add\nf open\n");
    for n in 0..count {
        writeln!(text, "f write {} 4096", n * 37 % 64 * 4096).unwrap();
        if n % 8 == 7 {
            text += "f sync\n";
        }
        if n % 16 == 0 {
            writeln!(text, "f read {} 8192", n % 32 * 4096).unwrap();
        }
    }
    text += "f trim 0 65536\n";
    Trace::parse(&text).unwrap()
}

fn setup(write_policy: WritePolicy) -> Setup {
    Setup {
        settings: Settings { write_policy, ..Settings::default() },
        cache_bytes: 8 << 20,
        cache: "ssd-nvme".parse().unwrap(),
        backing: "remote,latency=2ms,latency-p99=5ms".parse().unwrap(),
        depth: 4,
    }
}

fn run(setup: &Setup) -> Outcome {
    replay(&[overwrites(2000)], setup).unwrap()
}

#[test]
fn every_request_is_answered_under_every_policy_and_twice_the_same() {
    for write_policy in WritePolicy::ALL {
        let setup = setup(*write_policy);
        let outcome = run(&setup);
        assert_eq!(outcome.requests, 2000 + 250 + 125 + 1, "{write_policy}");
        assert_eq!(outcome.bytes_acknowledged, 2000 * 4096, "{write_policy}");
        assert_eq!(outcome, run(&setup), "{write_policy}: equal replays have equal outcomes");
    }
}

#[test]
fn a_cache_hides_a_slow_backing() {
    let (through, back) = (run(&setup(WritePolicy::WriteThrough)), run(&setup(WritePolicy::WriteBack)));
    assert!(back.per_second() > 5.0 * through.per_second(), "{back:?} {through:?}");
    assert!(back.stale_bytes > 0.0);
    assert!(through.bytes_to_backing >= 2000 * 4096);
    let nearer = Setup { backing: "ssd-nvme".parse().unwrap(), ..setup(WritePolicy::WriteThrough) };
    assert!(run(&nearer).per_second() > 5.0 * through.per_second());
}

#[test]
fn larger_groups_coalesce_more_and_are_faster() {
    let with = |group_bytes: u64| {
        let mut setup = setup(WritePolicy::Journaled);
        (setup.settings.group_bytes, setup.settings.group_age_ms) = (group_bytes, 10_000);
        run(&setup)
    };
    let (small, large) = (with(32 << 10), with(1 << 20));
    assert!(large.per_second() > 2.0 * small.per_second(), "{small:?} {large:?}");
    assert!(large.stale_bytes > 0.0 && large.stale_seconds > 0.0, "{large:?}");
    assert!(2 * large.bytes_to_journal < small.bytes_to_journal, "{small:?} {large:?}");
    let mut ordered = setup(WritePolicy::Ordered);
    ordered.settings.order = Order::Completion;
    assert_eq!(run(&ordered).bytes_to_journal, 0);
}

#[test]
fn clients_share_the_volume_and_depth_counts() {
    let alone = setup(WritePolicy::WriteThrough);
    let two = replay(&[overwrites(500), overwrites(500)], &alone).unwrap();
    let one = replay(&[overwrites(500)], &alone).unwrap();
    assert_eq!(two.requests, 2 * one.requests);
    assert!(two.per_second() > 1.3 * one.per_second(), "{one:?} {two:?}");
    let single = replay(&[overwrites(500)], &Setup { depth: 1, ..alone }).unwrap();
    assert!(one.per_second() > 1.5 * single.per_second(), "{one:?} {single:?}");
}

#[test]
fn a_set_up_that_cannot_be_is_told() {
    let mut small = setup(WritePolicy::WriteBack);
    small.cache_bytes = 1 << 20;
    let told = replay(&[overwrites(10)], &small).unwrap_err().to_string();
    assert!(told.contains("a cache of 1 MiB is too small"), "{told}");
}

/// A record of writes of single blocks; the words behind each, and whether each waits for the one before it.
fn recorded(count: u64, words: &str, in_turn: bool, promoted: bool) -> Trace {
    let mut text = format!("{VERSION}\n0 begin 1048576 1 db\n");
    for n in 1..=count {
        let offset = n * 37 % 64 * 4096;
        writeln!(text, "{n} write {n} {offset} 4096 {words}").unwrap();
        if promoted {
            writeln!(text, "{n} promote {offset} 4096").unwrap();
        }
        if in_turn {
            writeln!(text, "{n} answer {n}").unwrap();
        }
    }
    Trace::parse(&text).unwrap()
}

#[test]
fn a_request_of_a_record_waits_for_the_answers_that_it_waited_for_and_for_nothing_else() {
    let setup = Setup { depth: 1, ..setup(WritePolicy::WriteThrough) };
    let run = |in_turn| replay(&[recorded(200, "", in_turn, false)], &setup).unwrap();
    let (one_by_one, at_once) = (run(true), run(false));
    assert_eq!((one_by_one.requests, at_once.requests), (200, 200));
    assert!(at_once.per_second() > 5.0 * one_by_one.per_second(), "{at_once:?} {one_by_one:?}");
}

/// What nobody waits for goes past the cache, to the slow backing.
#[test]
fn the_origin_in_a_record_and_its_promotions_decide_what_is_cached() {
    let mut setup = setup(WritePolicy::WriteBack);
    setup.settings.set("admission", "cp+pi+ioi").unwrap();
    let run = |words, promoted| replay(&[recorded(200, words, true, promoted)], &setup).unwrap().per_second();
    let (nobody, critical, promoted) =
        (run("sync", false), run("sync critical=direct", false), run("sync", true));
    assert!(critical > 5.0 * nobody, "{critical} {nobody}");
    assert!(promoted > 5.0 * nobody, "{promoted} {nobody}");
}
