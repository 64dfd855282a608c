//! Another host takes the backing over (P6, hazard 9).

use forebay_block::{ErrorKind, Nanos, Op};
use forebay_engine::{Command, Effect, Engine, Event, Params, RecoveryError, State};
use forebay_format::Layout;
use forebay_policy::{Settings, WritePolicy};

use crate::world::{World, settings};

const POLICIES: [WritePolicy; 4] =
    [WritePolicy::WriteBack, WritePolicy::WriteThrough, WritePolicy::Ordered, WritePolicy::Journaled];

fn world(seed: u64) -> World {
    let write_policy = POLICIES[seed as usize % 4];
    let mut w = World::new(seed, Settings { write_policy, ..settings() }, 300, 8);
    w.traffic(100);
    w.errors_expected = true;
    w
}

fn requests(w: &mut World) -> Vec<u64> {
    let mut ids = Vec::new();
    for offset in (0..8).map(|n| n * 32768) {
        ids.push(w.write(offset + 512, 4096));
        ids.push(w.submit(Op::Read { offset: offset + 8192, len: 4096 }));
        ids.push(w.zero(offset + 16384, 8192));
        ids.push(w.submit(Op::Flush));
    }
    ids
}

fn kind(w: &mut World, id: u64) -> Option<ErrorKind> {
    w.run_until_answered(id).err().map(|error| error.kind)
}

/// Whatever was under way, and whatever comes later, is answered with this error; nothing is read, written or waited for.
fn is_fenced(w: &mut World, what: &str) {
    assert_eq!(w.status().state, Some(State::Fenced), "{what}");
    assert_eq!((w.waiting(), w.next_wake()), (0, None), "{what}");
    // What was under way at the cache ends.
    w.run(200);
    let before = w.media();
    for id in requests(w) {
        assert_eq!(kind(w, id), Some(ErrorKind::Fenced), "{what}");
    }
    for command in [Command::Destage, Command::Set(settings()), Command::Stop { destage: false }] {
        assert_eq!(w.command(command).unwrap_err().kind, ErrorKind::Fenced, "{what}");
    }
    w.promote(0, 1 << 20);
    assert_eq!((w.ios(), w.status().state), (0, Some(State::Fenced)), "{what}");
    assert_eq!(w.media(), before, "{what}");
}

#[test]
fn who_has_lost_the_backing_answers_nothing_well_any_more() {
    for seed in 0..40 {
        let mut w = world(seed);
        let ids = requests(&mut w);
        let destage = w.begin(Command::Destage);
        w.run((seed * 7 % 60) as u32);
        w.backing_fenced = true;
        w.run(600);
        let what = format!("seed {seed}");
        assert!(ids.iter().all(|id| w.is_answered(*id)), "{what}");
        // It may have been done before.
        let outcome = w.outcome(destage).unwrap().clone();
        assert!(outcome.is_ok() || outcome.is_err_and(|error| error.kind == ErrorKind::Fenced), "{what}");
        if w.status().state != Some(State::Fenced) {
            // Nothing had to go to the backing.
            let id = w.write(0, 4096);
            w.run_until_answered(id).ok();
            assert_eq!(w.command(Command::Destage).unwrap_err().kind, ErrorKind::Fenced, "{what}");
        }
        is_fenced(&mut w, &what);
    }
}

#[test]
fn who_is_told_answers_not_even_what_was_decided_in_this_turn() {
    // Under write-through the read may go past the cache.
    for seed in (0..12).filter(|seed| POLICIES[*seed as usize % 4] != WritePolicy::WriteThrough) {
        let mut w = world(seed);
        let id = w.write(0, 4096);
        w.run_until_answered(id).unwrap();
        w.run(200);
        let read = w.submit(Op::Read { offset: 0, len: 4096 });
        let stop = w.begin(Command::Stop { destage: true });
        w.ios();
        assert!(w.is_reading_cache(), "seed {seed}");
        w.end_at_cache();
        w.fence();
        assert_eq!(kind(&mut w, read), Some(ErrorKind::Fenced), "seed {seed}");
        let stopped = w.outcome(stop).unwrap().clone();
        assert_eq!(stopped.unwrap_err().kind, ErrorKind::Fenced, "seed {seed}");
        is_fenced(&mut w, &format!("seed {seed}"));
    }
}

#[test]
fn a_log_is_not_recovered_for_a_backing_of_another_host() {
    let layout =
        Layout { cache_id: [7; 16], generation: 1, align: 512, segment_bytes: 128 << 10, segment_count: 8 };
    let mut engine = Engine::new(Params {
        layout,
        volume_bytes: 1 << 20,
        settings: settings(),
        wall_offset_ns: 0,
        clean_stop: false,
        journal: None,
        prepared: None,
        commits_in_place: false,
        backing_unit_bytes: None,
        backing_forgets: false,
        journal_left: false,
        backing_depth: 1,
        read_only: false,
    });
    let mut effects = Vec::new();
    engine.poll(Nanos(0), &mut effects);
    assert!(!effects.is_empty() && effects.iter().all(|effect| matches!(effect, Effect::Io { .. })));
    effects.clear();
    engine.handle(Event::Fenced, Nanos(1));
    engine.poll(Nanos(1), &mut effects);
    assert!(matches!(&effects[..], [Effect::Recovered(Err(RecoveryError::Fenced))]), "{effects:?}");
}
