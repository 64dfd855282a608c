//! What holds for every device, whatever is asked of it.

use std::collections::HashMap;

use forebay_block::Nanos;
use forebay_emulate::{Access, Kind, Model, Operation, Settings};
use proptest::prelude::*;

const SIZE: u64 = 1 << 30;

#[derive(Clone, Debug)]
struct Script {
    settings: Settings,
    /// Operations and how many nanoseconds after the one before each is submitted.
    ops: Vec<(u64, Operation)>,
    /// Instants at which somebody looks, whether or not anything is due, as nanoseconds between them.
    looks: Vec<u64>,
}

fn settings() -> impl Strategy<Value = Settings> {
    (0..Kind::ALL.len(), any::<u64>(), any::<bool>()).prop_map(|(kind, seed, other)| {
        let mut settings = Settings::of(Kind::ALL[kind]);
        let _ = settings.set("seed", &seed.to_string());
        if other {
            for (key, value) in [
                ("write-cache", "no"),
                ("plp", "no"),
                ("window", "2"),
                ("queue", "3"),
                ("cache", "64K"),
                ("buffer", "64K"),
            ] {
                // Of each kind's parameters those that it has.
                let _ = settings.set(key, value);
            }
        }
        settings
    })
}

fn operation() -> impl Strategy<Value = Operation> {
    let access = prop_oneof![
        4 => Just(Access::Read),
        4 => any::<bool>().prop_map(|durable| Access::Write { durable }),
        1 => Just(Access::Flush),
        1 => any::<bool>().prop_map(|unmap| Access::Zero { unmap }),
    ];
    let place = prop_oneof![3 => 0..SIZE / 512, 3 => 0..64u64, 1 => Just(SIZE / 512 - 1)];
    let len = prop_oneof![5 => 1..64u64, 1 => 1..8192u64];
    (access, place, len).prop_map(|(access, sector, sectors)| {
        let offset = sector * 512;
        let len = if access == Access::Flush { 0 } else { (sectors * 512).min(SIZE - offset) };
        Operation { access, offset, len }
    })
}

fn script() -> impl Strategy<Value = Script> {
    let gap = prop_oneof![3 => Just(0u64), 3 => 0..200_000u64, 1 => 0..50_000_000u64];
    let ops = prop::collection::vec((gap, operation()), 1..120);
    let looks = prop::collection::vec(1..5_000_000u64, 0..50);
    (settings(), ops, looks).prop_map(|(settings, ops, looks)| Script { settings, ops, looks })
}

/// Runs a script, looking in at odd instants as well, and returns when each operation ended.
fn ends(script: &Script, looks: bool) -> Vec<Nanos> {
    let mut model = Model::new(&script.settings, SIZE).unwrap();
    let (mut now, mut done, mut ended) = (Nanos(0), Vec::new(), HashMap::new());
    let mut looks = script.looks.iter().filter(|_| looks).copied();
    for (tag, (gap, op)) in script.ops.iter().enumerate() {
        now = Nanos(now.0 + gap);
        model.submit(tag as u64, *op, now);
        if let Some(look) = looks.next() {
            model.poll(Nanos(now.0 + look % (gap + 1)), &mut done);
            now = Nanos(now.0 + look % (gap + 1));
        }
    }
    for _ in 0..1_000_000 {
        let Some(next) = model.next_event() else { break };
        // What has ended but was not fetched is due in the past.
        now = now.max(next);
        model.poll(now, &mut done);
    }
    assert_eq!(model.under_way(), 0, "everything ends");
    for (tag, at) in done {
        assert!(at <= now && ended.insert(tag, at).is_none(), "{tag} ended once");
    }
    (0..script.ops.len() as u64).map(|tag| ended[&tag]).collect()
}

/// The greatest rate at which data can go over a device's way to the host, and the least time of a command.
fn limits(settings: &Settings) -> (f64, u64) {
    match settings {
        Settings::Disk(_, s) => (s.link_rate_bytes as f64, s.command_ns),
        Settings::Flash(_, s) => (s.link_rate_bytes.max(s.read_rate_bytes) as f64, 1_000_000_000 / s.iops),
        Settings::Remote(s) => (s.rate_bytes as f64, 0),
        Settings::Memory(s) => (s.rate_bytes as f64, s.latency_ns),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn everything_ends_and_nothing_before_it_could(script in script()) {
        let (rate, command_ns) = limits(&script.settings);
        let ends = ends(&script, false);
        let mut now = Nanos(0);
        for ((gap, op), end) in script.ops.iter().zip(&ends) {
            now = Nanos(now.0 + gap);
            let moved = match op.access {
                Access::Read | Access::Write { .. } => op.len,
                Access::Flush | Access::Zero { .. } => 0,
            };
            let least_ns = command_ns + (moved as f64 / rate * 1e9) as u64;
            prop_assert!(end.since(now) + 1 >= least_ns, "{op:?} took {} of {least_ns} ns", end.since(now));
        }
    }

    #[test]
    fn equal_seeds_give_equal_times(script in script()) {
        prop_assert_eq!(ends(&script, false), ends(&script, false));
    }

    #[test]
    fn a_flush_is_cheap_where_nothing_is_volatile(script in script()) {
        if !script.settings.volatile_cache() {
            let mut model = Model::new(&script.settings, SIZE).unwrap();
            let mut done = Vec::new();
            for (tag, (_, op)) in script.ops.iter().enumerate() {
                model.submit(tag as u64, *op, Nanos(0));
            }
            while let Some(next) = model.next_event() {
                model.poll(next, &mut done);
            }
            let idle = done.last().unwrap().1;
            model.submit(0, Operation { access: Access::Flush, offset: 0, len: 0 }, idle);
            done.clear();
            while let Some(next) = model.next_event() {
                model.poll(next, &mut done);
            }
            prop_assert!(done[0].1.since(idle) < 20_000_000);
        }
    }
}

#[test]
fn looking_in_changes_nothing() {
    for kind in Kind::ALL {
        let settings = Settings::of(kind);
        let run = |looks: bool| {
            let mut model = Model::new(&settings, SIZE).unwrap();
            let mut done = Vec::new();
            for i in 0..200u64 {
                let access = if i % 3 == 0 { Access::Read } else { Access::Write { durable: i % 5 == 0 } };
                let now = Nanos(i * 1_700_000);
                model.submit(i, Operation { access, offset: i * 7919 % 4096 * 4096, len: 4096 }, now);
                for look in (0..17).filter(|_| looks) {
                    model.poll(Nanos(now.0 + look * 100_000), &mut done);
                }
            }
            while let Some(next) = model.next_event() {
                model.poll(next, &mut done);
            }
            done
        };
        assert_eq!(run(false), run(true), "{}", kind.as_str());
    }
}
