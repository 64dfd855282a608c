//! The engine against two arrays of bytes: completions in random order, kills at random instants, a model of what
//! every sector may hold. The simulator crate does this at length and with faults; this is what runs with the crate.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fenced;
mod journals;
mod keeping;
mod scale;
mod slowed;
mod world;

use forebay_block::{Buf, Criticality, ErrorKind, Op, Origin, Reply};
use forebay_engine::{Command, State};
use forebay_policy::{
    Admission, AdmissionReason, Durability, MaxStaleness, OnFull, Order, Settings, WritePolicy,
};
use world::{World, settings};

#[test]
fn writes_are_read_back_and_reach_the_backing() {
    let mut w = World::new(1, settings(), 64, 8);
    let id = w.write(0, 4096 * 3);
    w.run_until_answered(id).unwrap();
    let id = w.submit(Op::Read { offset: 512, len: 8192 });
    assert!(matches!(w.run_until_answered(id), Ok(Reply::Data(d)) if d.len() == 8192));
    w.check_reads = true;
    assert!(w.status().dirty_bytes >= 3 * 4096);
    w.command(Command::Destage).unwrap();
    assert_eq!(w.status().dirty_bytes, 0);
    w.assert_backing_complete();
}

/// The label's file system is gone, too, when the cache fails: the log is retired again after a pause, or for a command, and not in a loop.
#[test]
fn a_log_that_cannot_be_retired_is_tried_again_after_a_pause() {
    let mut w = World::new(1, settings(), 64, 8);
    w.traffic(40);
    (w.cache_fails, w.errors_expected, w.clock_rests) = (true, true, true);
    let id = w.write_as(0, 4096, true);
    w.run(400);
    assert!(w.is_answered(id) && w.status().dirty_bytes == 0);
    assert_eq!(w.retirements, 1);
    assert!(w.next_wake().is_some_and(|due| due > w.now()), "it wakes by itself, and not at once");
    w.pass_ms(1000);
    w.run(20);
    assert_eq!(w.retirements, 2);
    assert!(w.command(Command::Destage).is_err());
    assert_eq!(w.retirements, 3);
}

/// Whatever was under way when the process died, and whatever policy it had: who only looks reads everything, changes nothing, and
/// leaves a volume that goes on as if it had not been there.
#[test]
fn a_volume_that_is_only_read_reads_everything_and_changes_nothing() {
    for seed in 0..24 {
        let write_policy =
            [WritePolicy::WriteBack, WritePolicy::WriteThrough, WritePolicy::Ordered, WritePolicy::Journaled]
                [seed as usize % 4];
        let mut w = World::new(seed, Settings { write_policy, ..settings() }, 300, 8);
        w.traffic(200);
        let clean = seed % 3 == 0;
        if clean {
            w.command(Command::Stop { destage: false }).unwrap();
        }
        w.restart_read_only(clean);
        let before = w.media();
        w.read_everything();
        w.pass_ms(60_000);
        w.run(200);
        w.read_everything();
        let data = Buf::zeroed(4096);
        let zero = |unmap| Op::Zero { offset: 0, len: 4096, unmap, fua: true };
        for op in [Op::Write { offset: 4096, data, fua: true }, zero(true), zero(false)] {
            w.errors_expected = true;
            let id = w.submit(op);
            assert_eq!(w.run_until_answered(id).unwrap_err().kind, ErrorKind::ReadOnly);
            w.errors_expected = false;
        }
        let flush = w.submit(Op::Flush);
        w.run_until_answered(flush).unwrap();
        w.command(Command::Set(Settings { write_policy: WritePolicy::Ordered, ..settings() })).unwrap();
        let dirty = w.status().dirty_bytes;
        let destaged = w.command(Command::Destage);
        assert_eq!(destaged.map_err(|e| e.kind).is_err(), dirty > 0, "{dirty} bytes are dirty");
        w.command(Command::Stop { destage: false }).unwrap();
        assert_eq!(w.status().state, Some(State::Stopped));
        assert!(w.media() == before, "seed {seed}: a device was changed");
        if write_policy != WritePolicy::Journaled {
            w.restart_for_writing();
            w.read_everything();
            w.traffic(50);
            w.command(Command::Stop { destage: true }).unwrap();
            w.assert_backing_complete();
        }
    }
}

#[test]
fn damaged_clean_copies_are_read_from_the_backing() {
    let mut w = World::new(2, settings(), 64, 8);
    let id = w.write(0, 4096 * 20);
    w.run_until_answered(id).unwrap();
    w.command(Command::Destage).unwrap();
    assert!(w.status().cached_bytes >= 20 * 4096);
    w.damage_all_segments();
    w.read_everything();
    assert!(w.status().checksum_failures >= 20);
}

/// With a unit of 4096 bytes a record of one block costs twice its data. Four writers that come one after the other, each
/// when it has been answered, share headers all the same.
#[test]
fn writers_that_come_one_by_one_share_headers() {
    let mut w = World::new(1, settings(), 64, 64);
    let before = w.status();
    w.closed_loop(4, 400);
    let after = w.status();
    let written = after.bytes_to_cache - before.bytes_to_cache;
    let ratio = written as f64 / (after.bytes_acknowledged - before.bytes_acknowledged) as f64;
    println!("{ratio:.3} bytes written for each byte");
    // 1.25 for the headers of the records; the rest are those of segments as small as these. Alone each would cost 2.
    assert!(ratio <= 1.45, "{ratio} bytes written for each byte");
}

/// Four writes that nobody waits for, one block each, whoever has issued them; and what the backing is doing then.
fn uncritical_writes(admission: Admission, issuer: Criticality) -> (World, Vec<u64>) {
    let mut w = World::new(1, Settings { admission, ..settings() }, 64, 8);
    w.origin = Origin { criticality: issuer, sync: false, ..w.origin };
    let writes = (0..4).map(|n| w.write(n * 4096, 4096)).collect();
    assert_eq!(w.at_backing(), [0], "the first has the backing for itself");
    (w, writes)
}

/// It may be hundreds of pages that a critical task writes back asynchronously, or one that holds what such a task waits for.
#[test]
fn what_is_waited_for_goes_to_the_backing_first() {
    for issuer in [Criticality::None, Criticality::Direct, Criticality::Inherited] {
        let (mut w, writes) = uncritical_writes(Admission::Cp, issuer);
        let status = w.status();
        assert_eq!((status.backing_outstanding, status.backing_waiting_noncritical), (1, 3));
        let read = w.submit(Op::Read { offset: 40960, len: 4096 });
        assert_eq!(w.at_backing(), [0, 40960], "a read does not wait for them");
        w.promote(12288, 4096);
        assert_eq!(w.at_backing(), [0, 40960, 12288], "nor does what somebody comes to wait for");
        w.end_at_backing();
        assert_eq!(w.at_backing(), [40960, 12288, 4096], "the others go on beside them, one at a time");
        for id in writes.into_iter().chain([read]) {
            w.run_until_answered(id).unwrap();
        }
        let status = w.status();
        assert_eq!((status.backing_promoted, status.writes_bypassed, status.backing_outstanding), (1, 4, 0));
    }
}

/// What a critical write waits for lends its priority on: here to a write of nobody's, which stands behind another for its first block.
#[test]
fn what_is_waited_for_lends_its_priority_along_the_chain_of_blocks() {
    let (mut w, writes) = uncritical_writes(Admission::Cp, Criticality::None);
    let between = w.write(12288, 8192);
    assert_eq!(w.at_backing(), [0]);
    w.origin = waited_for();
    let awaited = w.write(16384, 4096);
    assert_eq!(w.at_backing(), [0, 12288]);
    for id in writes.into_iter().chain([between, awaited]) {
        w.run_until_answered(id).unwrap();
    }
}

/// What has started cannot be hurried, but nothing more that nobody waits for is started beside it.
#[test]
fn the_calm_is_over_when_somebody_waits_for_blocks_of_what_has_started() {
    for criticality in [Criticality::None, Criticality::Direct] {
        let mut w = World::new(1, Settings { admission: Admission::Cp, ..settings() }, 256, 8);
        for n in 0..30 {
            w.write(n * 8192, 4096);
        }
        for _ in 0..3 {
            w.at_backing();
            w.end_at_backing();
        }
        let outstanding = w.at_backing();
        assert_eq!(outstanding.len(), 4, "one more for each that has ended");
        w.origin = Origin { sync: true, criticality, ..w.origin };
        let behind = w.write(outstanding[3], 4096);
        w.at_backing();
        w.end_at_backing();
        assert_eq!(w.at_backing().len(), if criticality == Criticality::Direct { 3 } else { 5 });
        w.run_until_answered(behind).unwrap();
    }
}

/// A disk takes first what lies near its head: a read far away ends last as long as there is more of that.
#[test]
fn a_read_that_the_backing_leaves_for_last_is_not_overtaken_for_good() {
    let mut w = World::new(1, settings(), 1024, 8);
    let read = |n: u64| Op::Read { offset: n * 4096, len: 4096 };
    let (far, near) = (w.submit(read(0)), w.submit(read(1)));
    let mut others = 0;
    while w.status().backing_holds == 0 {
        others += 1;
        assert!(others < 40, "{:?}", w.status());
        w.submit(read(1 + others));
        w.pass_ms(4);
        w.at_backing();
        if w.status().backing_holds == 0 {
            w.end_newest_at_backing();
        }
    }
    assert!(others > 16 && w.status().backing_waiting_critical == 1 && w.at_backing() == [0, 4096]);
    let until = w.next_wake().unwrap();
    assert_eq!(until, w.now().plus_ms(25), "the backing may be stuck");
    w.end_at_backing();
    assert_eq!(w.at_backing(), [4096, (1 + others) * 4096]);
    assert!(w.is_answered(far) && !w.is_answered(near) && w.next_wake() != Some(until));
    // Two that are stuck are waited for three times each.
    w.pass_ms(100);
    w.submit(read(2 + others));
    assert!(w.at_backing().len() == 2 && w.status().backing_holds == 2);
    w.pass_ms(100);
    assert!(w.at_backing().len() == 3 && w.next_wake().is_none_or(|at| at > w.now()));
    for n in others..others + 60 {
        w.submit(read(3 + n));
        w.pass_ms(100);
        w.at_backing();
        w.end_newest_at_backing();
    }
    assert!(w.at_backing().len() == 3 && w.status().backing_holds == 1 + 2 * 3);
}

/// Destaging frees no blocks that a bypass holds.
#[test]
fn who_waits_for_blocks_does_not_hurry_all_destaging() {
    let mut w = with_dirty_blocks(900);
    w.at_backing();
    let before = w.status();
    assert!(before.backing_waiting_noncritical > 8, "destaging waits: {before:?}");
    w.write(4096, 4096);
    w.write(4096, 8192);
    w.origin = waited_for();
    w.write(8192, 4096);
    w.at_backing();
    let promoted = w.status().backing_promoted - before.backing_promoted;
    assert!((1..8).contains(&promoted), "{promoted} promoted");
}

/// Zeroes that nobody waits for end with a flush, for which who writes there waits.
#[test]
fn what_is_waited_for_lends_its_priority_to_the_flush_of_zeroes() {
    for criticality in [Criticality::None, Criticality::Direct] {
        let mut w = World::new(1, Settings { admission: Admission::Cp, ..settings() }, 64, 8);
        let zero = w.zero(0, 4096);
        let others: Vec<u64> = (2..5).map(|n| w.write(n * 4096, 4096)).collect();
        assert_eq!(w.at_backing(), [], "the zeroes alone");
        let read = w.submit(Op::Read { offset: 40960, len: 4096 });
        w.end_at_backing();
        assert_eq!((w.at_backing(), w.flushes_at_backing()), (vec![40960, 8192, 12288], 0));
        w.origin = Origin { sync: true, criticality, ..w.origin };
        let behind = w.write(0, 4096);
        assert_eq!(w.flushes_at_backing(), usize::from(criticality == Criticality::Direct));
        for id in others.into_iter().chain([zero, read, behind]) {
            w.run_until_answered(id).unwrap();
        }
    }
}

/// How it would have been written to the backing does not change what its acknowledgement promises.
#[test]
fn a_reissued_write_is_as_durable_as_it_promises_to_be() {
    for (durability, durably) in [(Durability::Flush, false), (Durability::Write, true)] {
        let settings = Settings { durability, admission: Admission::CpPiIoi, ..settings() };
        let mut w = World::new(1, settings, 64, 8);
        w.origin = waited_for();
        let first = w.write(40960, 4096);
        w.run_until_answered(first).unwrap();
        w.end_all_at_cache();
        w.origin = Origin::default();
        let writes = [0, 4096].map(|at| w.write_as(at, 4096, false));
        assert_eq!(w.at_backing(), [0]);
        w.promote(4096, 4096);
        assert_eq!((w.writes_to_cache().len(), w.writes_to_cache_durably()), (1, durably), "{durability}");
        w.end_at_cache();
        w.at_backing();
        assert_eq!(writes.map(|id| w.is_answered(id)), [false, true], "{durability}");
        for id in writes {
            w.run_until_answered(id).unwrap();
        }
        w.command(Command::Destage).unwrap();
        w.assert_backing_complete();
    }
}

#[test]
fn a_reissued_write_that_waits_for_the_backing_never_goes_there() {
    let (mut w, writes) = uncritical_writes(Admission::CpPiIoi, Criticality::None);
    w.promote(8192, 8192);
    w.run_until_answered(writes[2]).unwrap();
    w.run_until_answered(writes[3]).unwrap();
    w.run_until_answered(writes[0]).unwrap();
    w.run_until_answered(writes[1]).unwrap();
    let status = w.status();
    assert_eq!(
        (status.writes_admitted, status.bytes_to_backing),
        (2, 8192),
        "but later, as part of a destage"
    );
    w.command(Command::Destage).unwrap();
    w.assert_backing_complete();
}

/// What was on its way to the backing when it was reissued is there when that has ended.
#[test]
fn a_reissued_write_that_has_landed_is_not_destaged_again() {
    let (mut w, writes) = uncritical_writes(Admission::CpPiIoi, Criticality::None);
    w.promote(0, 4096);
    while w.waiting() == 4 {
        assert!(!w.writes_to_cache().is_empty());
        w.end_at_cache();
        w.at_backing();
    }
    w.run_until_answered(writes[0]).unwrap();
    assert_eq!(w.status().dirty_bytes, 4096, "the log has it, and nothing has landed");
    w.end_at_backing();
    assert_eq!(w.status().dirty_bytes, 0);
    for id in &writes[1..] {
        w.run_until_answered(*id).unwrap();
    }
    w.command(Command::Destage).unwrap();
    w.assert_backing_complete();
    assert_eq!(w.status().bytes_to_backing, 4 * 4096);
}

/// What is reissued again and again does not fill the backing: of each the part is in the log, and nobody waits for the rest of it.
#[test]
fn what_lands_makes_no_way_for_more_that_nobody_waits_for() {
    let (mut w, writes) = uncritical_writes(Admission::CpPiIoi, Criticality::None);
    w.promote(0, 4096);
    w.submit(Op::Read { offset: 40960, len: 4096 });
    assert_eq!(w.at_backing(), [0, 40960], "the next does not take its place");
    w.end_all_at_cache();
    assert!(w.is_answered(writes[0]) && !w.is_answered(writes[1]));
    w.end_at_backing();
    assert_eq!(w.at_backing(), [40960, 4096]);
    for id in &writes[1..] {
        w.run_until_answered(*id).unwrap();
    }
    assert_eq!((w.status().backing_promoted, w.status().writes_admitted), (0, 1));
    w.command(Command::Destage).unwrap();
    w.assert_backing_complete();
}

/// Of what would fill it up the log takes no more than three quarters, whether it is asked for one by one or at once.
#[test]
fn nothing_is_reissued_to_a_log_that_fills() {
    for (at_once, steps) in [(1, 8), (1, 0), (400, 8)] {
        let mut w = World::new(2, Settings { admission: Admission::CpPiIoi, ..settings() }, 1024, 16);
        w.backing_rests = true;
        let writes: Vec<u64> = (0..400).map(|n| w.write(n * 8192, 4096)).collect();
        for n in 0..400 / at_once {
            w.promote(n * at_once * 8192, at_once * 8192);
            w.run(steps);
        }
        w.run(1000);
        let admitted = w.status().writes_admitted;
        println!("{admitted} of 400, {at_once} at a time, {steps} steps between");
        assert!((200..=384).contains(&admitted), "{admitted} of 400 in a log of 512 blocks");
        w.backing_rests = false;
        for id in writes {
            w.run_until_answered(id).unwrap();
        }
        w.command(Command::Destage).unwrap();
        w.assert_backing_complete();
    }
}

/// Nor does it take more than that of what is awaited already when it arrives, which goes to the backing first.
#[test]
fn what_is_awaited_on_arrival_does_not_fill_the_log() {
    let mut w = World::new(2, Settings { admission: Admission::CpPiIoi, ..settings() }, 1024, 16);
    w.backing_rests = true;
    w.origin.criticality = Criticality::Awaited;
    let writes: Vec<u64> = (0..400).map(|n| w.write(n * 8192, 4096)).collect();
    w.run(1000);
    let status = w.status();
    assert!((200..=384).contains(&status.writes_admitted), "{} of 400", status.writes_admitted);
    assert!(status.backing_waiting_noncritical < 20, "only destages wait behind others");
    w.backing_rests = false;
    for id in writes {
        w.run_until_answered(id).unwrap();
    }
    let status = w.status();
    let bypassed = status.reasons.get(AdmissionReason::NoRoom);
    assert_eq!((bypassed, status.writes_bypassed), (400 - status.writes_admitted, bypassed));
    w.command(Command::Destage).unwrap();
    w.assert_backing_complete();
    let id = w.zero(512, 2 << 20);
    w.run_until_answered(id).unwrap();
    assert_eq!(w.status().reasons.get(AdmissionReason::LongZero), 1, "its ends alone would enter the log");
}

/// Nor what writes that are waited for in their own right took lately, and will want again, though it was overwritten: a small log is theirs.
/// One that was issued synchronously is such a write, of which that was not known.
#[test]
fn what_is_reissued_leaves_room_for_what_is_waited_for_in_its_own_right() {
    let reissued = |critical: u64, sync: bool, promoted: bool| {
        let mut w = World::new(2, Settings { admission: Admission::CpPiIoi, ..settings() }, 1024, 16);
        w.origin = waited_for();
        for n in 0..critical {
            let id = w.write((512 + n % 8) * 4096, 4096);
            w.end_all_at_cache();
            assert!(w.is_answered(id));
        }
        assert!(w.now().0 < 250_000_000, "all of that was lately");
        let criticality = if promoted { Criticality::None } else { Criticality::Awaited };
        w.origin = Origin { criticality, sync, ..Origin::default() };
        w.backing_rests = true;
        for n in 0..300 {
            w.write(n * 8192, 4096);
        }
        if promoted {
            w.promote(0, 1024 * 4096);
        }
        w.run(1000);
        w.status().reasons.get(AdmissionReason::Reissued)
    };
    for promoted in [true, false] {
        let [without, with, sync] = [(0, false), (160, false), (160, true)]
            .map(|(critical, sync)| reissued(critical, sync, promoted));
        println!(
            "{without} reissued, {with} after 160 critical writes, {sync} synchronous ones, in a log of 512 blocks"
        );
        assert!(without > 200 && with > 0 && with <= 384 - 160, "{without}, {with}");
        assert!(sync > with && sync <= 384, "{sync}, {with}");
    }
}

/// A log of 12,800 blocks of which one that is older than the rest, and is not destaged, holds so many percent, few of them dirty: the same are
/// written again and again by writes that are waited for. From now on nobody waits.
fn held_by_one_block(percent: u64, calm: bool) -> World {
    let mut w = World::new(3, Settings { admission: Admission::CpPiIoi, ..settings() }, 16_384, 400);
    if calm {
        // The backing has been idle for long enough to be given whatever comes.
        for n in 0..64 {
            let id = w.write((6000 + n) * 4096, 4096);
            w.run_until_answered(id).unwrap();
        }
    }
    w.backing_rests = true;
    w.origin = waited_for();
    let id = w.write(1000 * 4096, 4096);
    w.run_until_answered(id).unwrap();
    while w.status().cache_used_bytes * 100 < w.status().cache_bytes * percent {
        let id = w.write(0, 256 << 10);
        w.run_until_answered(id).unwrap();
    }
    assert!(w.status().dirty_bytes * 10 < w.status().cache_bytes);
    w.origin = Origin::default();
    w
}

fn waited_for() -> Origin {
    Origin { sync: true, criticality: Criticality::Direct, ..Origin::default() }
}

/// It takes what somebody comes to wait for, unless writes that are waited for in their own right took more lately than it has left.
#[test]
fn a_log_that_is_held_by_its_oldest_dirty_block_takes_what_is_awaited() {
    let is_reissued = |sync: bool, promoted: bool, lately: bool| {
        let mut w = held_by_one_block(92, false);
        if !lately {
            w.pass_ms(600);
        }
        let criticality = if promoted { Criticality::None } else { Criticality::Awaited };
        w.origin = Origin { criticality, sync, ..Origin::default() };
        let id = w.write(5000 * 4096, 4096);
        if promoted {
            w.promote(5000 * 4096, 4096);
        }
        w.run(20);
        assert_eq!(w.status().stalls, 0);
        w.is_answered(id)
    };
    for (sync, promoted) in [(false, false), (false, true), (true, false), (true, true)] {
        assert!(is_reissued(sync, promoted, false), "synchronous: {sync}, promoted: {promoted}");
        assert!(!is_reissued(sync, promoted, true), "synchronous: {sync}, promoted: {promoted}");
    }
}

/// But not all that it has left: who comes after that and is waited for in his own right finds room.
#[test]
fn what_is_awaited_does_not_fill_a_log_that_is_held_by_its_oldest_dirty_block() {
    for sync in [false, true] {
        let mut w = held_by_one_block(92, false);
        w.pass_ms(600);
        w.origin = Origin { criticality: Criticality::Awaited, sync, ..Origin::default() };
        for n in 0..1000 {
            w.write((2000 + 2 * n) * 4096, 4096);
            w.run(4);
        }
        let reasons = w.status().reasons;
        let [reissued, refused] =
            [AdmissionReason::Reissued, AdmissionReason::NoRoom].map(|reason| reasons.get(reason));
        println!("{reissued} of 1000 reissued, {refused} at the backing already");
        assert!((100..900).contains(&reissued), "{reissued}");
        w.origin = waited_for();
        let writes: Vec<u64> = (0..64).map(|n| w.write((8000 + 2 * n) * 4096, 4096)).collect();
        w.run(400);
        assert!(writes.iter().all(|id| w.is_answered(*id)) && w.status().stalls == 0, "{:?}", w.status());
    }
}

/// More enters it than leaves it, and who waits for room would wait for what empties it.
#[test]
fn bypasses_give_way_to_destaging_in_a_log_that_is_held_by_its_oldest_dirty_block() {
    let at_backing = |percent: u64| {
        let mut w = held_by_one_block(percent, true);
        let writes: Vec<u64> = (0..200).map(|n| w.write((4000 + 2 * n) * 4096, 4096)).collect();
        let there = w.at_backing().iter().filter(|at| **at >= 4000 * 4096).count();
        w.backing_rests = false;
        for id in writes {
            w.run_until_answered(id).unwrap();
        }
        there
    };
    let there = [40, 62].map(at_backing);
    println!("{there:?} bypasses at the backing with 40 and 62 percent of the log held");
    assert!(there[0] > 50 && (1..=8).contains(&there[1]), "{there:?}");
}

/// A log of 1,024 blocks with so many dirty ones, at even places, which were waited for, and a backing at rest; from now on nobody waits.
fn with_dirty_blocks(dirty: u64) -> World {
    let mut w = World::new(2, Settings { admission: Admission::Cp, ..settings() }, 4096, 32);
    w.origin = waited_for();
    w.backing_rests = true;
    for n in 0..dirty {
        w.write(2 * n * 4096, 4096);
    }
    w.run(3000);
    assert_eq!((w.status().dirty_bytes, w.waiting()), (dirty * 4096, 0));
    w.origin = Origin::default();
    w
}

/// A write that nobody waits for gets a smaller share of the backing the fuller the log is, and one at a time when it is nearly full.
#[test]
fn bypasses_give_way_to_what_empties_a_log_that_fills() {
    let most_beside = |dirty: u64| {
        let mut w = with_dirty_blocks(dirty);
        let places: Vec<u64> = (0..200).map(|n| (2 * n + 1) * 4096).collect();
        let writes: Vec<u64> = places.iter().map(|offset| w.write(*offset, 4096)).collect();
        let mut most = 0;
        for _ in 0..150 {
            most = most.max(w.at_backing().iter().filter(|at| places.contains(at)).count());
            w.end_at_backing();
        }
        let answered = writes.iter().filter(|id| w.is_answered(**id)).count();
        assert!(answered > 15, "none is forgotten: {answered} with {dirty}");
        w.backing_rests = false;
        for id in writes {
            w.run_until_answered(id).unwrap();
        }
        most
    };
    let most = [100, 700, 800, 900].map(most_beside);
    println!("{most:?} bypasses beside destaging with 100, 700, 800 and 900 blocks dirty, of 1024");
    assert!(most.is_sorted_by(|a, b| a >= b), "{most:?}");
    assert!(most[0] > 50 && most[1] < 10 && most[3] <= 2, "{most:?}");
}

/// A bypass of a block that the log's tail holds keeps it from being destaged, and so makes room as destaging does.
#[test]
fn who_waits_for_room_does_not_wait_for_bypasses_but_for_one_that_keeps_the_tail() {
    let mut w = with_dirty_blocks(900);
    for n in 0..200 {
        w.write((2 * n + 1) * 4096, 4096);
    }
    // In the first segment, and not on its way to the backing yet.
    w.write(56 * 4096, 4096);
    w.origin = waited_for();
    let writes: Vec<u64> = (0..100).map(|n| w.write((3000 + n) * 4096, 4096)).collect();
    w.run(3000);
    assert!(w.status().stalls > 0, "the log is full");
    let (last, used) = (writes[99], w.status().cache_used_bytes);
    assert!(!w.is_answered(last));
    let mut ended = 0;
    while w.status().cache_used_bytes >= used {
        w.at_backing();
        w.end_at_backing();
        w.end_all_at_cache();
        ended += 1;
        assert!(ended < 5000);
    }
    println!("{ended} operations of the backing until there was room");
    assert!(ended < 160, "{ended}");
    // They are given it at the rate at which it comes.
    w.backing_rests = false;
    w.run_until_answered(last).unwrap();
}

/// A bypass would wait there for all before it.
#[test]
fn where_an_order_is_kept_what_is_awaited_on_arrival_goes_to_the_log() {
    let ordered =
        Settings { write_policy: WritePolicy::Ordered, admission: Admission::CpPiIoi, ..settings() };
    let mut w = World::new(2, ordered, 1024, 16);
    w.origin.criticality = Criticality::Awaited;
    for id in (0..400).map(|n| w.write(n * 8192, 4096)).collect::<Vec<_>>() {
        w.run_until_answered(id).unwrap();
    }
    assert_eq!(w.status().writes_bypassed, 0);
}

/// Who flushes waits for what is awaited, and not for what the backing keeps of writes that nobody waits for.
#[test]
fn a_flush_does_not_wait_for_the_backing_because_of_writes_that_nobody_waits_for() {
    let lazy = Settings { durability: Durability::Flush, ..settings() };
    let mut w = World::new(1, Settings { admission: Admission::Cp, ..lazy }, 64, 8);
    // The first one covers what a run before may have left.
    let first = w.submit(Op::Flush);
    w.run_until_answered(first).unwrap();
    for id in (0..4).map(|n| w.write(n * 4096, 4096)).collect::<Vec<_>>() {
        w.run_until_answered(id).unwrap();
    }
    w.submit(Op::Flush);
    assert_eq!((w.flushes_at_backing(), w.waiting()), (0, 0), "they were made durable as they were written");
    // Under a policy that does not ask who waits a flush makes up for it.
    let mut w = World::new(1, Settings { write_policy: WritePolicy::WriteThrough, ..lazy }, 64, 8);
    let id = w.write(0, 4096);
    w.run_until_answered(id).unwrap();
    let flush = w.submit(Op::Flush);
    assert_eq!((w.flushes_at_backing(), w.waiting()), (1, 1));
    w.run_until_answered(flush).unwrap();
}

/// A write that waits for room makes the destaging that makes room one that somebody waits for.
#[test]
fn a_writer_that_waits_for_room_hurries_the_destage() {
    let mut w = World::new(1, settings(), 1024, 8);
    for n in 0..600 {
        w.write(n * 4096, 4096);
        w.submit(Op::Read { offset: (1000 + n % 8) * 4096, len: 4096 });
        w.run(1);
    }
    w.run(20_000);
    let status = w.status();
    assert_eq!((w.waiting(), status.backing_waiting_noncritical), (0, 0), "{status:?}");
    assert!(status.stalls > 0 && status.backing_promoted > 0, "{status:?}");
}

/// Where the same blocks are written again and again few are dirty, and yet the oldest of them holds the whole log, which is freed in its
/// order. It goes while there is room for a burst, but not at once: it may yet be overwritten.
#[test]
fn a_block_that_holds_most_of_the_log_is_destaged_before_the_log_is_full() {
    let mut w = World::new(3, settings(), 16_384, 400);
    let mut destaged_at = None;
    for n in 0..200 {
        let (block, len) = if n == 0 { (1000, 4096) } else { (0, 256 << 10) };
        let id = w.write(block * 4096, len);
        w.run_until_answered(id).unwrap();
        let status = w.status();
        if status.bytes_to_backing > 0 {
            destaged_at.get_or_insert(status.cache_used_bytes * 100 / status.cache_bytes);
        }
    }
    println!("destaging began when {destaged_at:?} percent of the log were in use");
    assert!(destaged_at.is_some_and(|percent| (50..=62).contains(&percent)), "{destaged_at:?}");
}

/// Room comes from the log's tail. What was planned before somebody waited for it, sorted by address, does not come first.
#[test]
fn a_full_log_is_emptied_from_its_tail() {
    let blocks = (1..=12).map(blocks_before_there_is_room).max().unwrap();
    println!("{blocks} blocks went to the backing before there was room");
    // The tail's segment has 60 of them, and the one that goes along as many; the rest is what was on its way.
    assert!(blocks < 400, "{blocks}");
}

fn blocks_before_there_is_room(seed: u64) -> u64 {
    let mut w = World::new(seed, settings(), 16_384, 400);
    w.backing_rests = true;
    // Every other block, in no order.
    for n in 0.. {
        w.write(n * 5003 % 8192 * 8192, 4096);
        w.run(4);
        if w.waiting() > 16 {
            break;
        }
    }
    assert!(w.status().dirty_bytes > 3000 * 4096, "the log is full: {:?}", w.status());
    let (waiting, before) = (w.waiting(), w.status().bytes_to_backing);
    w.backing_rests = false;
    for _ in 0..100_000 {
        if w.waiting() < waiting {
            break;
        }
        w.run(1);
    }
    (w.status().bytes_to_backing - before) / 4096
}

/// Some long runs keep the backing as busy as many short ones, and what comes next there waits less.
#[test]
fn few_runs_are_on_their_way_at_once_if_they_are_long() {
    let under_way = |distance: u64| {
        let mut w = World::new(3, settings(), 16_384, 400);
        w.backing_rests = true;
        for n in 0..3000 {
            let id = w.write(n * distance % 16_384 * 4096, 4096);
            w.run_until_answered(id).unwrap();
        }
        w.begin(Command::Destage);
        w.run(10_000);
        let status = w.status();
        status.backing_outstanding + status.backing_waiting_noncritical
    };
    let (long, short) = (under_way(1), under_way(3));
    assert!((4..=11).contains(&long) && short >= 32, "{long} and {short}");
}

/// What stands in the queue can still be taken back, and a device takes long for a few long writes.
#[test]
fn few_bytes_that_nobody_waits_for_are_at_the_backing_at_a_time() {
    let outstanding = |len: u64| {
        let mut w = World::new(1, Settings { admission: Admission::Cp, ..settings() }, 16_384, 16);
        // So that it is calm.
        for n in 0..64 {
            let id = w.write(n * 4096, 4096);
            w.run_until_answered(id).unwrap();
        }
        w.backing_rests = true;
        (0..32).for_each(|n| _ = w.write(n * len, len as usize));
        w.run(100);
        w.status().backing_outstanding
    };
    // 4 MiB, and 128 KiB for each of the 64 that have ended in a calm.
    assert_eq!((outstanding(4096), outstanding(1 << 20)), (32, 12));
}

/// A volume under `journaled` that has settled, and whose backing ends nothing from now on.
fn journaled(volume_blocks: u64, segments: u32) -> World {
    let settings = Settings { write_policy: WritePolicy::Journaled, group_bytes: 1 << 20, ..settings() };
    let mut w = World::new(2, settings, volume_blocks, segments);
    w.run(1000);
    w.backing_rests = true;
    w
}

/// The newest version of a block stands for all that are committed, however far behind them it lies in the log: the replay of its
/// group would write it.
#[test]
fn what_a_committed_group_has_anew_is_not_written_in_place() {
    let mut w = journaled(1024, 40);
    // More than is looked at at once, at places that make no long runs.
    for n in 0.. {
        w.write(n % 300 * 8192, 4096);
        w.run(4);
        if w.waiting() > 16 {
            break;
        }
    }
    assert!(w.status().writes > 900 && w.status().stalls > 0, "the log is full: {:?}", w.status());
    w.backing_rests = false;
    while w.waiting() > 0 {
        w.run(1);
    }
    w.command(Command::Destage).unwrap();
    w.assert_backing_complete();
    let status = w.status();
    println!("{} blocks in place of {}", status.bytes_to_backing / 4096, status.bytes_acknowledged / 4096);
    assert!(status.bytes_to_backing < 400 * 4096);
}

/// A block that a client writes again and again is in no danger, but who has asked for everything to be destaged waits for it.
#[test]
fn a_block_that_is_always_replaced_is_destaged_for_a_command() {
    let mut w = journaled(4096, 200);
    // It comes last in every run through the volume, and others come faster than the backing takes them.
    let hot = 4090 * 4096;
    for n in 0..100 {
        w.write(n * 8192, 4096);
    }
    w.write(hot, 4096);
    w.run(1000);
    w.begin(Command::Destage);
    for n in 0..300 {
        w.write(hot, 4096);
        w.write((100 + 2 * n) * 8192, 4096);
        w.write((101 + 2 * n) * 8192, 4096);
        w.run(100);
        if w.at_backing().contains(&hot) {
            return;
        }
        w.end_at_backing();
    }
    panic!("the backing never gets it: {:?}", w.status());
}

/// Without the journal of the last run the backing may lack what its groups stand for.
#[test]
fn a_run_without_the_journal_of_the_last_does_not_call_the_backing_consistent() {
    for left in [false, true] {
        let mut w = journaled(1024, 40);
        for n in 0..100 {
            let id = w.write(n * 8192, 4096);
            w.run_until_answered(id).unwrap();
        }
        w.restart_without_journal(WritePolicy::Ordered, left);
        assert!(w.status().dirty_bytes > 0);
        assert_eq!(w.status().backing_consistent, !left);
        w.backing_rests = false;
        w.command(Command::Destage).unwrap();
        w.run(1000);
        assert!(w.status().backing_consistent);
    }
}

/// A volume whose backing is consistent, under `ordered`.
fn ordered(order: Order) -> World {
    let mut w = World::new(2, Settings { write_policy: WritePolicy::Ordered, order, ..settings() }, 1024, 16);
    w.run(1000);
    assert!(w.status().backing_consistent);
    w
}

/// A write of one block that is not forced.
fn one_block(offset: u64) -> Op {
    Op::Write { offset, data: Buf::zeroed(4096), fua: false }
}

/// What the backing has to take one after the other fills a part of the log; from then on what depends on it waits, all of it together, until
/// the backing has gone on. One that does nothing keeps nobody waiting for good.
#[test]
fn writers_keep_to_the_pace_of_the_backing_where_each_waits_for_the_one_before() {
    for order in [Order::Completion, Order::Barrier] {
        let mut w = ordered(order);
        w.backing_rests = true;
        let mut blocks = (0..).map(|n| n % 500 * 8192);
        let mut next = || one_block(blocks.next().unwrap());
        let flushed = |w: &mut World, id: u64| {
            w.run_until_answered(id).unwrap();
            let id = w.submit(Op::Flush);
            w.run_until_answered(id).unwrap();
        };
        while w.status().paces == 0 {
            let id = w.submit(next());
            flushed(&mut w, id);
        }
        let status = w.status();
        assert!(status.cache_used_bytes * 5 > status.cache_bytes, "only a log that fills: {status:?}");
        // It was let go; the backing takes one more, and they go on until it is too far behind again.
        w.end_at_backing();
        let mut company = vec![w.submit(next())];
        while !w.writes_to_cache().is_empty() {
            flushed(&mut w, company[0]);
            company = vec![w.submit(next())];
        }
        company.extend((0..2).map(|_| w.submit(next())));
        assert!(w.writes_to_cache().is_empty(), "they wait");
        assert_eq!(w.status().paces, 2);
        w.end_at_backing();
        let records = w.writes_to_cache();
        assert!(records.iter().any(|units| *units >= 3 * 8), "they enter together: {records:?}");
        for id in company {
            w.run_until_answered(id).unwrap();
        }
        // Only a full log stops who waits for a backing that does nothing, but for once.
        let paces = w.status().paces;
        for _ in 0..20 {
            let id = w.submit(next());
            flushed(&mut w, id);
        }
        assert!(w.status().paces <= paces + 1);
        w.backing_rests = false;
        w.command(Command::Destage).unwrap();
    }
}

/// A bypass comes after all that was acknowledged before it. Writers that are answered at once let it, and the next, catch up.
#[test]
fn the_log_does_not_get_longer_while_a_bypass_waits_for_its_turn() {
    for order in [Order::Completion, Order::Barrier] {
        let mut w = ordered(order);
        w.command(Command::Set(Settings {
            write_policy: WritePolicy::Ordered,
            order,
            admission: Admission::Sync,
            ..settings()
        }))
        .unwrap();
        w.backing_rests = true;
        // A forced write and a flush, in turn.
        let mut ops = (0..1000).map(|n| match n % 2 {
            0 => Op::Write { offset: n * 4096, data: Buf::zeroed(4096), fua: true },
            _ => Op::Flush,
        });
        let mut next = |w: &mut World| w.submit(ops.next().unwrap());
        for _ in 0..200 {
            let id = next(&mut w);
            w.run_until_answered(id).unwrap();
        }
        assert_eq!(w.status().paces, 0, "no bypass waits, and the log is roomy");
        let (mut writer, mut answered) = (next(&mut w), 0);
        let mut writes_before_bypass = |w: &mut World, offset| {
            let (bypass, mut writes) = (w.submit(one_block(offset)), 0);
            while !w.is_answered(bypass) {
                w.end_all_at_cache();
                for _ in 0..2 {
                    if w.is_answered(writer) {
                        (writer, answered) = (next(w), answered + 1);
                        w.end_all_at_cache();
                    }
                }
                w.end_at_backing();
                writes += 1;
            }
            writes
        };
        let writes = [4096, 3 * 4096].map(|offset| writes_before_bypass(&mut w, offset));
        assert!(writes[0] > 95 && writes[1] <= 70, "{order:?}: {writes:?}");
        assert!(answered > 50, "{order:?}: but the writer goes on: {answered}");
        // A backing that takes longer than a second for each is felt once, as there is room.
        let (bypass, paces) = (w.submit(one_block(5 * 4096)), w.status().paces);
        for _ in 0..20 {
            for _ in 0..4 {
                w.run_until_answered(writer).unwrap();
                writer = next(&mut w);
            }
            w.end_all_at_cache();
            w.end_at_backing();
        }
        assert!(!w.is_answered(bypass) && w.status().paces <= paces + 1, "{order:?}");
        w.backing_rests = false;
        w.run_until_answered(writer).unwrap();
        w.command(Command::Destage).unwrap();
    }
}

/// Nothing can stand for a write that others depend on: there is nothing to gain from keeping it in the log.
#[test]
fn what_others_depend_on_goes_to_the_backing_at_once() {
    for (order, at_once) in [(Order::Completion, true), (Order::Barrier, false)] {
        let mut w = ordered(order);
        let id = w.submit(one_block(8192));
        w.run_until_answered(id).unwrap();
        assert_eq!(w.at_backing().contains(&8192), at_once, "a later one may stand for it before a flush");
        w.backing_rests = true;
        for n in 2..6 {
            for op in [Op::Flush, one_block(n * 8192), Op::Flush] {
                let id = w.submit(op);
                w.run_until_answered(id).unwrap();
            }
        }
        // Nobody writes any more who could say that the first of these are on the backing.
        w.backing_rests = false;
        let before = w.now();
        w.run(300);
        assert_eq!(w.status().dirty_bytes, 0, "{order:?}");
        assert!(w.now() < before.plus_ms(5000), "and not only because it is old");
    }
}

#[test]
fn damage_after_a_clean_stop_is_an_error_and_no_older_version() {
    for seed in 0..16 {
        let durability = if seed % 2 == 0 { Durability::Write } else { Durability::Flush };
        let mut w = World::new(seed / 2, Settings { durability, ..settings() }, 64, 8);
        for _ in 0..2 {
            let id = w.write(4096, 8192);
            w.run_until_answered(id).unwrap();
        }
        w.command(Command::Stop { destage: false }).unwrap();
        w.damage_newest(8192);
        w.restart_unread(true);
        let id = w.submit(Op::Read { offset: 4096, len: 4096 });
        assert!(w.run_until_answered(id).is_ok());
        w.errors_expected = true;
        let id = w.submit(Op::Read { offset: 8192, len: 4096 });
        assert_eq!(w.run_until_answered(id).unwrap_err().kind, ErrorKind::Corrupt);
    }
}

#[test]
fn a_run_after_a_crash_begins_with_a_record_without_data_and_makes_it_durable_first() {
    for (seed, durability) in
        [(2, Durability::Write), (3, Durability::Write), (2, Durability::Flush), (3, Durability::Flush)]
    {
        let mut w = World::new(seed, Settings { durability, ..settings() }, 64, 8);
        let id = w.write(4096, 4096);
        w.run_until_answered(id).unwrap();
        w.restart_unread(false);
        assert_eq!(w.writes_to_cache(), [0; 0], "a start without writes leaves the log alone");
        // They are there before the engine is asked what is to be done.
        let ids: Vec<u64> = (2..6).map(|block| w.write(block * 4096, 4096)).collect();
        assert_eq!(w.writes_to_cache(), [1]);
        while w.writes_to_cache() == [1] {
            w.end_at_cache();
        }
        if durability == Durability::Flush {
            assert_eq!(w.writes_to_cache(), [0; 0], "written is not durable");
            w.end_at_cache();
        }
        assert!(!w.writes_to_cache().is_empty());
        ids.into_iter().for_each(|id| drop(w.run_until_answered(id).unwrap()));
    }
}

/// A world with seven segments full and one begun, after the writes have been acknowledged one by one.
fn seven_segments() -> World {
    let mut w = World::new(2, settings(), 1024, 16);
    for n in 0..7 * 28 + 10 {
        let id = w.write(n * 4096, 4096);
        w.run_until_answered(id).unwrap();
    }
    w
}

/// Segments behind the log's end are read one at a time, however many there are.
#[test]
fn recovery_has_one_whole_segment_in_memory_at_a_time() {
    let mut w = seven_segments();
    // What those two say that are left is heard behind the hole.
    (3..6).for_each(|index| w.forget_segment(index, 0));
    w.errors_expected = true;
    w.restart_unread(false);
    assert!(w.refused.is_some());
    assert_eq!(w.whole_segments_max, 1);
}

/// A summary proves of all that was before it that it was durable, even if nothing else of its segment is left, nor of those around it.
#[test]
fn a_summary_behind_a_hole_in_the_log_is_heard() {
    let refused = |summaries: &[u32]| {
        let mut w = seven_segments();
        for index in 3..8 {
            w.forget_segment(index, if summaries.contains(&index) { 512 } else { 0 });
        }
        w.errors_expected = true;
        w.restart_unread(false);
        w.refused
    };
    assert_eq!(refused(&[]), None, "nobody can know");
    assert!(refused(&[3]).is_some());
    assert!(refused(&[4]).is_some());
}

/// A read error must not cost the segment that the log's end is in: it may be the last one.
#[test]
fn a_start_that_cannot_read_summaries_goes_on_where_the_log_ends() {
    for is_sealed in [false, true] {
        let mut w = seven_segments();
        if is_sealed {
            w.backing_rests = true;
            let id = w.write(4096, 4096);
            w.run_until_answered(id).unwrap();
            w.begin(Command::Destage);
            w.end_all_at_cache();
            // The write that went on in the next segment is lost.
            w.forget_segment(8, 0);
            w.backing_rests = false;
        }
        w.summaries_unreadable = true;
        w.restart_unread(false);
        let id = w.write(0, 4096);
        let opens_segment = w.writes_to_cache() == [2];
        assert_eq!(opens_segment, is_sealed, "the record without data that begins the run is one unit");
        w.run_until_answered(id).unwrap();
        w.summaries_unreadable = false;
        w.restart(false);
    }
}

#[test]
fn random_traffic_survives_kills_in_every_mode() {
    for seed in 0..60 {
        let settings = Settings {
            write_policy: if seed % 3 == 0 { WritePolicy::WriteThrough } else { WritePolicy::WriteBack },
            durability: if seed % 2 == 0 { Durability::Write } else { Durability::Flush },
            on_full: if seed % 5 == 0 { OnFull::Bypass } else { OnFull::Wait },
            ..settings()
        };
        let mut w = World::new(seed, settings, 400, 8);
        for round in 0..6 {
            w.traffic(150);
            if round % 3 == 2 {
                w.command(Command::Stop { destage: round == 5 }).unwrap();
                assert_eq!(w.status().state, Some(State::Stopped));
                w.restart(true);
            } else {
                w.restart(false);
            }
        }
        w.command(Command::Destage).unwrap();
        w.assert_backing_complete();
    }
}

#[test]
fn a_flush_command_gives_up_on_a_backing_that_fails_and_works_when_it_is_back() {
    let mut w = World::new(2, settings(), 64, 8);
    let id = w.write(0, 4096 * 3);
    w.run_until_answered(id).unwrap();
    w.backing_fails = true;
    assert_eq!(w.command(Command::Destage).unwrap_err().kind, ErrorKind::Io);
    assert!(w.status().dirty_bytes >= 3 * 4096, "nothing is given up but the command");
    w.backing_fails = false;
    w.command(Command::Destage).unwrap();
    w.assert_backing_complete();
}

/// What a flush command is answered for stays on the backing: a restart after a kill has nothing of it to do again, and saying so
/// costs one record without data.
#[test]
fn what_a_flush_command_covers_is_clean_after_a_kill() {
    let orders = [WritePolicy::WriteBack, WritePolicy::Ordered];
    let durabilities = [Durability::Write, Durability::Flush];
    for (seed, (write_policy, durability)) in
        (0..).zip(orders.into_iter().flat_map(|order| durabilities.map(|durability| (order, durability))))
    {
        let mut w = World::new(seed, Settings { write_policy, durability, ..settings() }, 64, 8);
        for block in 0..40 {
            let id = w.write(block * 4096, 4096);
            w.run_until_answered(id).unwrap();
        }
        // The record that proves the last write durable is not the command's.
        w.pass_ms(60);
        w.run(20);
        let before = w.status().records;
        w.command(Command::Destage).unwrap();
        let records = w.status().records;
        // Under an order the progress of each set is recorded, too.
        let ordered = write_policy == WritePolicy::Ordered;
        assert!(
            ordered || records <= before + 1,
            "{write_policy} {durability}: {} records",
            records - before
        );
        w.command(Command::Destage).unwrap();
        assert_eq!(w.status().records, records, "{write_policy} {durability}: nothing is left to be said");
        w.restart_unread(false);
        assert_eq!(w.status().dirty_bytes, 0, "{write_policy} {durability}");
        let id = w.write(0, 4096);
        w.run_until_answered(id).unwrap();
        w.restart_unread(false);
        assert_eq!(w.status().dirty_bytes, 4096, "{write_policy} {durability}: and only what came later");
        w.read_everything();
    }
}

/// What has gone to the backing by itself is told, too, when the log has been quiet for a moment.
/// What a run before a crash wrote to a segment counts for what the next one may write there, though it was clean by then.
#[test]
fn a_segment_that_several_runs_write_to_keeps_to_its_blocks() {
    let mut w = World::new(2, settings(), 6000, 8);
    for _ in 0..3 {
        for _ in 0..8 {
            let ids: Vec<u64> = (0..20).map(|n| w.zero(n << 20, 1 << 20)).collect();
            ids.into_iter().for_each(|id| drop(w.run_until_answered(id).unwrap()));
        }
        while w.status().dirty_bytes > 0 {
            w.pass_ms(500);
            w.run(200);
        }
        w.restart_unread(false);
    }
}

/// What was written before the policy was chosen is destaged at once: until it is on the backing, no point can be declared.
#[test]
fn the_backing_becomes_consistent_without_waiting_for_dirty_data_to_age() {
    for order in [Order::Completion, Order::Barrier] {
        let mut w = World::new(0, settings(), 64, 8);
        let id = w.write(0, 4096 * 8);
        w.run_until_answered(id).unwrap();
        w.clock_rests = true;
        w.run(200);
        assert!(w.status().dirty_bytes > 0, "nothing presses");
        w.command(Command::Set(Settings { write_policy: WritePolicy::Ordered, order, ..settings() }))
            .unwrap();
        assert!(!w.status().backing_consistent);
        w.run(200);
        assert!(w.status().backing_consistent && w.status().dirty_bytes == 0);
    }
}

#[test]
fn a_log_that_became_clean_by_itself_says_so() {
    let mut w = World::new(0, settings(), 64, 8);
    let id = w.write(0, 4096 * 8);
    w.run_until_answered(id).unwrap();
    w.command(Command::Set(Settings { write_policy: WritePolicy::WriteThrough, ..settings() })).unwrap();
    while w.status().dirty_bytes > 0 {
        w.run(1);
    }
    w.pass_ms(60);
    w.run(20);
    w.restart_unread(false);
    assert_eq!(w.status().dirty_bytes, 0);
}

/// A sector of the log that stays unreadable costs its block, not the volume: writers get room when it has been tried
/// for a minute.
#[test]
fn an_unreadable_block_does_not_keep_a_full_log_waiting_for_good() {
    for seed in 0..4 {
        let mut w = World::new(seed, settings(), 400, 8);
        let id = w.write(4096 * 399 - 4096, 4096);
        w.run_until_answered(id).unwrap();
        let lost = 4096 * 398;
        w.unreadable = Some(w.place_of_newest(lost));
        for round in 0..60u64 {
            let id = w.write(round % 30 * (32 << 10), 32 << 10);
            w.run_until_answered(id).unwrap();
        }
        w.errors_expected = true;
        let id = w.submit(Op::Read { offset: lost, len: 4096 });
        assert!(w.run_until_answered(id).is_err(), "lost, and said so");
        assert_eq!(w.command(Command::Destage).unwrap_err().kind, ErrorKind::Corrupt, "flush says so, too");
        let id = w.write(lost, 4096);
        w.run_until_answered(id).unwrap();
        w.errors_expected = false;
        w.command(Command::Destage).unwrap();
        w.assert_backing_complete();
    }
}

/// A set takes in a newer version of a block while an older one is on its way, and the newer one is lost: what the older one has made
/// void stays so.
#[test]
fn the_backing_of_a_lost_version_keeps_the_one_before() {
    let mut w = ordered(Order::Barrier);
    let written = |w: &mut World| {
        let id = w.write(0, 4096);
        w.run_until_answered(id).unwrap();
    };
    w.backing_rests = true;
    (0..2).for_each(|_| written(&mut w));
    w.begin(Command::Destage);
    w.run(10);
    assert_eq!(w.at_backing(), [0]);
    written(&mut w);
    w.unreadable = Some(w.place_of_newest(0));
    // What is overwritten behind a barrier has to be destaged all the same.
    let id = w.submit(Op::Flush);
    w.run_until_answered(id).unwrap();
    written(&mut w);
    w.backing_rests = false;
    let mut seen = vec![0];
    for _ in 0..300 {
        w.run(1);
        seen.push(w.stamp_at_backing(0));
    }
    assert!(seen.is_sorted(), "{seen:?}");
    seen.dedup();
    assert_eq!(seen, [0, 2, 4]);
}

/// What is lost can never be brought to the backing: no writer is held back for it, however tight the bound of staleness.
#[test]
fn nobody_is_held_back_for_a_block_that_is_lost() {
    let tight = Settings { max_staleness: MaxStaleness::Age(100), ..settings() };
    let mut w = World::new(1, tight, 400, 8);
    let id = w.write(4096 * 398, 4096);
    w.run_until_answered(id).unwrap();
    w.unreadable = Some(w.place_of_newest(4096 * 398));
    let writes = |w: &mut World| {
        for round in 0..60u64 {
            let id = w.write(round % 30 * (32 << 10), 32 << 10);
            w.run_until_answered(id).unwrap();
        }
        w.status().holds
    };
    let held = writes(&mut w);
    assert!(held > 0, "as long as it is tried again");
    // The mark that it is lost grows old.
    w.run(500);
    assert_eq!(writes(&mut w), held);
}

/// A full cache in front of a backing that fails: writers wait. A stop must not wait for what will not come.
#[test]
fn a_stop_does_not_wait_for_writers_that_a_failing_backing_keeps_waiting() {
    for seed in 0..8 {
        let mut w = World::new(seed, settings(), 400, 8);
        w.backing_fails = true;
        let mut offset = 0;
        while w.waiting() < 4 {
            w.write(offset, 64 << 10);
            w.run(40);
            offset = (offset + (64 << 10)) % (1 << 20);
        }
        w.run(200);
        assert_eq!((w.status().state, w.waiting()), (Some(State::Full), 4));
        w.command(Command::Stop { destage: seed % 2 == 1 })
            .unwrap_or_else(|e| assert_eq!(e.kind, ErrorKind::Io));
        assert_eq!(w.waiting(), 0, "those who waited are told");
        w.backing_fails = false;
        w.restart(true);
        w.command(Command::Destage).unwrap();
        w.assert_backing_complete();
    }
}

#[test]
fn copies_made_anew_again_and_again_are_believed_after_a_clean_stop() {
    let mut w = World::new(2, Settings { write_policy: WritePolicy::WriteThrough, ..settings() }, 400, 16);
    // Every other block, so that no range touches another, and more often than ranges are remembered.
    for n in 0..20_000 {
        let id = w.write_as(n % 200 * 8192, 4096, false);
        w.run_until_answered(id).unwrap();
    }
    w.command(Command::Stop { destage: false }).unwrap();
    w.restart_unread(true);
    assert!(w.status().cached_bytes > 150 * 4096);
    w.read_everything();
}

#[test]
fn more_untrue_copies_than_can_be_named_are_distrusted_until_the_log_has_none_of_them() {
    const BLOCKS: u64 = 3000;
    for moves_on in [false, true] {
        let mut w = World::new(2, Settings { admission: Admission::Sync, ..settings() }, 2 * BLOCKS, 256);
        let write_all = |w: &mut World, sync: bool| {
            w.origin = Origin { sync, ..Origin::default() };
            for block in 0..BLOCKS {
                let id = w.write_as(block * 8192, 4096, false);
                w.run_until_answered(id).unwrap();
            }
            w.command(Command::Destage).unwrap();
        };
        write_all(&mut w, true);
        assert_eq!(w.status().cached_bytes, BLOCKS * 4096);
        write_all(&mut w, false);
        assert_eq!(w.status().cached_bytes, 0, "they went past the cache");
        for _ in 0..if moves_on { 4 } else { 0 } {
            write_all(&mut w, true);
        }
        w.command(Command::Stop { destage: false }).unwrap();
        w.restart_unread(true);
        assert_eq!(w.status().cached_bytes > 0, moves_on);
        w.read_everything();
    }
}

/// Whatever can be given as a setting is borne: nothing overflows, and writes are acknowledged and read back.
#[test]
fn settings_beyond_all_reason_are_borne() {
    let bounds = [
        MaxStaleness::None,
        MaxStaleness::Age(MaxStaleness::AGE_MS_MIN),
        MaxStaleness::Age(u64::MAX / 100 + 1),
        MaxStaleness::Age(u64::MAX / 1_000_000 + 1),
        MaxStaleness::Age(u64::MAX),
        MaxStaleness::Bytes(u64::MAX / 100 + 1),
        MaxStaleness::Bytes(u64::MAX),
    ];
    for (n, write_policy) in WritePolicy::ALL.iter().cycle().take(4 * bounds.len()).enumerate() {
        let ages = [0, 1, u64::MAX / 1_000_000, u64::MAX / 1_000_000 + 1, u64::MAX];
        let (max_staleness, group_age_ms) = (bounds[n % bounds.len()], ages[n % ages.len()]);
        let group_bytes = if n % 2 == 0 { Settings::GROUP_BYTES.0 } else { Settings::GROUP_BYTES.1 };
        let admission = if n % 3 == 0 { Admission::Adaptive } else { Admission::All };
        let chosen = Settings {
            write_policy: *write_policy,
            max_staleness,
            group_age_ms,
            group_bytes,
            admission,
            ..settings()
        };
        let mut w = World::new(n as u64, chosen, 200, 16);
        w.command(Command::SetEndurance([u64::MAX, 1, 0][n % 3])).unwrap();
        w.traffic(120);
        w.pass_ms(1 << 40);
        w.traffic(60);
        w.command(Command::Destage).unwrap();
        w.restart(false);
        w.command(Command::Stop { destage: false }).unwrap();
    }
}
