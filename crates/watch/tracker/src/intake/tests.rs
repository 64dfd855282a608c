use super::*;
use proptest::prelude::*;

fn tag(sector: u64, sectors: u32, tid: u32, critical: u8) -> RawTag {
    RawTag { sector, bytes: sectors * 512, tid, critical, ..RawTag::default() }
}

/// Task 9 waits; the bytes that are promoted for it.
fn promote(intake: &mut Intake, wanted: Wanted, via: Wait) -> Vec<(u64, u64)> {
    ranges(intake.promote(wanted, Cause { via, waiter: 9, payers: 0 }, &|_, _, _| true))
}

fn slots(intake: &mut Intake, oldest: usize) -> Vec<(u64, u64)> {
    ranges(intake.promote_slots(oldest, Cause { via: Wait::Slot, waiter: 9, payers: 0 }, &|_, _, _| true))
}

fn ranges(promoted: Vec<Promoted>) -> Vec<(u64, u64)> {
    promoted.into_iter().map(|p| (p.offset, p.len)).collect()
}

fn tids(known: &[Known]) -> Vec<u32> {
    known.iter().map(|k| k.tid).collect()
}

#[test]
fn merged_writes_are_as_critical_as_the_most_critical_of_them() {
    let mut intake = Intake::default();
    intake.queue(&tag(0, 8, 1, 0));
    intake.queue(&RawTag { flags: FLAG_SYNC, ..tag(8, 8, 2, 1) });
    intake.queue(&RawTag { flags: FLAG_META, ..tag(16, 8, 3, 2) });
    let known = intake.arrive(0, 24 * 512).unwrap();
    assert_eq!((known.criticality, known.tid, known.sync, known.meta), (Criticality::Direct, 2, true, true));
    assert!(intake.arrive(0, 24 * 512).is_none(), "a tag is for one request");
}

#[test]
fn each_part_of_a_split_write_finds_its_tag() {
    let mut intake = Intake::default();
    intake.queue(&tag(100, 30, 7, 1));
    for at in [110, 100, 120] {
        assert_eq!(intake.arrive(at * 512, 10 * 512).unwrap().tid, 7, "{at}");
    }
    assert!(intake.queued.is_empty());
}

#[test]
fn whoever_holds_a_lock_is_not_held_up_by_what_it_has_written_on_the_side() {
    let mut intake = Intake::default();
    for (at, flags, tid) in [(0, 0, 7), (8, FLAG_SYNC, 7), (16, FLAG_SYNC, 8), (24, FLAG_META, 7)] {
        intake.queue(&RawTag { flags, ..tag(at, 8, tid, 0) });
        intake.arrive(at * 512, 4096).unwrap();
    }
    assert_eq!(promote(&mut intake, Wanted::Holder(7), Wait::Lwlock), [(4096, 4096), (12_288, 4096)]);
    assert_eq!(promote(&mut intake, Wanted::Task(7), Wait::Io), [(0, 4096), (4096, 4096), (12_288, 4096)]);
}

#[test]
fn a_newer_write_of_the_same_bytes_hides_the_older() {
    let mut intake = Intake::default();
    intake.queue(&tag(0, 24, 1, 1));
    intake.queue(&tag(8, 8, 2, 0));
    assert_eq!(intake.arrive(8 * 512, 8 * 512).unwrap().tid, 2);
    assert_eq!(intake.arrive(0, 8 * 512).unwrap().tid, 1);
    assert_eq!(intake.arrive(16 * 512, 8 * 512).unwrap().tid, 1);
}

#[test]
fn who_waits_for_a_page_promotes_its_write_whether_it_has_arrived_or_not() {
    let page = |sector, index| RawTag { mapping: 99, index, ..tag(sector, 32, 5, 0) };
    let mut intake = Intake::default();
    intake.queue(&page(0, 10));
    intake.queue(&page(1000, 50));
    assert_eq!(intake.arrive(0, 32 * 512).unwrap().criticality, Criticality::None);
    let wanted = |index| Wanted::Page { mapping: 99, index };
    assert_eq!(promote(&mut intake, wanted(13), Wait::Writeback), [(0, 32 * 512)]);
    assert!(promote(&mut intake, wanted(14), Wait::Writeback).is_empty(), "four pages, not five");
    assert!(promote(&mut intake, wanted(52), Wait::Writeback).is_empty());
    let known = intake.arrive(1000 * 512, 32 * 512).unwrap();
    assert_eq!(
        (known.criticality, known.cause),
        (Criticality::Awaited, Some(Cause { via: Wait::Writeback, waiter: 9, payers: 0 }))
    );
    intake.done(0, 32 * 512);
    assert!(promote(&mut intake, Wanted::All, Wait::Buffer).is_empty(), "what is done is not promoted");
}

/// Such a write is bypassed, whoever has issued it.
#[test]
fn an_asynchronous_write_of_a_critical_task_can_be_promoted_as_any_other() {
    let mut intake = Intake::default();
    for (i, (critical, flags)) in [(1, 0), (2, 0), (1, FLAG_SYNC), (2, FLAG_SYNC)].into_iter().enumerate() {
        intake.queue(&RawTag { flags, ..tag(8 * i as u64, 8, 1, critical) });
        let known = intake.arrive(4096 * i as u64, 4096).unwrap();
        assert_eq!(known.is_awaited(), flags != 0);
    }
    assert_eq!(promote(&mut intake, Wanted::All, Wait::Condition), [(0, 4096), (4096, 4096)]);
    intake.queue(&tag(100, 8, 1, 2));
    assert!(promote(&mut intake, Wanted::Task(2), Wait::Mutex).is_empty());
    promote(&mut intake, Wanted::Task(1), Wait::Mutex);
    let known = intake.arrive(100 * 512, 4096).unwrap();
    assert_eq!((known.criticality, known.is_awaited()), (Criticality::Awaited, true));
}

#[test]
fn the_oldest_are_those_that_came_first_of_what_is_not_done() {
    let mut intake = Intake::default();
    for i in 0..6 {
        intake.queue(&tag(8 * i, 8, 1, 0));
        intake.arrive(4096 * i, 4096);
    }
    intake.queue(&tag(800, 8, 1, 0));
    intake.done(0, 4096);
    intake.done(2 * 4096, 4096);
    let oldest = slots(&mut intake, 3);
    assert_eq!(oldest, [1, 3, 4].map(|i| (4096 * i, 4096)));
    assert_eq!(intake.arrive(800 * 512, 4096).unwrap().criticality, Criticality::None);
}

#[test]
fn who_waits_for_a_slot_waits_for_the_write_that_has_the_first_one() {
    let first = |sector, awaited| RawSlot { sector, awaited, ..RawSlot::default() };
    let mut intake = Intake::default();
    for i in 0..6 {
        intake.queue(&tag(8 * i, 8, 1, 0));
    }
    for i in 0..4 {
        intake.arrive(4096 * i, 4096);
    }
    intake.has_first_slot(&first(16, 0));
    assert_eq!(slots(&mut intake, 0), [(2 * 4096, 4096)]);
    // One that is still to arrive: known before somebody waits, or after.
    intake.has_first_slot(&first(32, 0));
    assert!(slots(&mut intake, 0).is_empty());
    assert_eq!(intake.arrive(4 * 4096, 4096).unwrap().criticality, Criticality::Awaited);
    intake.has_first_slot(&first(40, 1));
    assert_eq!(intake.arrive(5 * 4096, 4096).unwrap().criticality, Criticality::Awaited);
    // For once: who comes to the same place later has another slot, or is told of.
    intake.queue(&tag(40, 8, 1, 0));
    assert_eq!(intake.arrive(5 * 4096, 4096).unwrap().criticality, Criticality::None);
    intake.done(5 * 4096, 4096);
    // Before its tag is put away, or is known.
    intake.has_first_slot(&first(48, 1));
    assert_eq!(intake.arrive_as(&tag(48, 8, 1, 0)).criticality, Criticality::Awaited);
    // As it mostly is: it gets the slot, arrives, and only then somebody waits.
    intake.has_first_slot(&first(56, 0));
    assert_eq!(intake.arrive_as(&tag(56, 8, 1, 0)).criticality, Criticality::None);
    assert_eq!(slots(&mut intake, 0), [(7 * 4096, 4096)]);
    intake.done(7 * 4096, 4096);
    assert!(slots(&mut intake, 0).is_empty());
    // One of which nothing is known has had the slot, too, and nobody waits for what comes to its place later.
    intake.has_first_slot(&first(64, 1));
    assert!(intake.arrive(8 * 4096, 4096).is_none());
    assert_eq!(intake.arrive_as(&tag(64, 8, 1, 0)).criticality, Criticality::None);
    // Its write is done, and another comes to the same place.
    intake.has_first_slot(&first(16, 0));
    intake.done(2 * 4096, 4096);
    intake.queue(&tag(16, 8, 1, 0));
    assert!(slots(&mut intake, 0).is_empty());
    assert_eq!(intake.arrive(2 * 4096, 4096).unwrap().criticality, Criticality::None);
    // What nobody has told of.
    intake.has_first_slot(&first(4000, 1));
    assert!(slots(&mut intake, 0).is_empty());
}

#[test]
fn the_oldest_go_only_where_slots_are_short() {
    let mut intake = Intake::default();
    intake.share_slots(16);
    for i in 0..7 {
        assert!(slots(&mut intake, 2).is_empty(), "{i} outstanding");
        intake.queue(&tag(8 * i, 8, 1, 0));
        intake.arrive(4096 * i, 4096);
    }
    assert_eq!(slots(&mut intake, 2).len(), 2);
    intake.done(0, 4096);
    intake.has_first_slot(&RawSlot { sector: 24, ..RawSlot::default() });
    assert_eq!(slots(&mut intake, 2), [(3 * 4096, 4096)]);
    intake.share_slots(0);
    assert_eq!(slots(&mut intake, 2).len(), 3);
    intake.forget_slots();
    assert_eq!(slots(&mut intake, 2), [(4096, 4096), (2 * 4096, 4096)]);
}

#[test]
fn tasks_and_the_kernels_threads_are_promoted_apart() {
    let mut comm = [0; 16];
    comm[..12].copy_from_slice(b"jbd2/loop0-8");
    let mut intake = Intake::default();
    intake.queue(&RawTag { comm, ..tag(0, 8, 5, 0) });
    intake.queue(&tag(8, 8, 6, 0));
    assert!(intake.arrive(0, 4096).is_some() && intake.arrive(4096, 4096).is_some());
    intake.queue(&RawTag { flags: FLAG_META, ..tag(16, 8, 6, 0) });
    assert!(intake.arrive(2 * 4096, 4096).is_some());
    assert_eq!(promote(&mut intake, Wanted::Commit(5), Wait::Journal), [(0, 4096)]);
    assert_eq!(promote(&mut intake, Wanted::Commit(6), Wait::Journal), [(0, 4096), (2 * 4096, 4096)]);
    intake.done(2 * 4096, 4096);
    // Such a one as the journal's superblock keeps every flush from beginning.
    intake.queue(&RawTag { flags: FLAG_META | FLAG_FUA, ..tag(16, 8, 7, 0) });
    assert!(intake.arrive(2 * 4096, 4096).is_some());
    assert_eq!(promote(&mut intake, Wanted::Commit(5), Wait::Journal), [(0, 4096), (2 * 4096, 4096)]);
    assert_eq!(promote(&mut intake, Wanted::Flush, Wait::Flush), [(2 * 4096, 4096)]);
    intake.queue(&RawTag { flags: FLAG_PREFLUSH, ..tag(24, 8, 7, 0) });
    promote(&mut intake, Wanted::Flush, Wait::Flush);
    assert_eq!(intake.arrive(3 * 4096, 4096).unwrap().cause.unwrap().via, Wait::Flush);
    intake.done(2 * 4096, 4096);
    assert_eq!(promote(&mut intake, Wanted::Task(6), Wait::Mutex), [(4096, 4096)]);
    assert_eq!(promote(&mut intake, Wanted::Journal, Wait::Writeback), [(0, 4096)]);
    assert_eq!(promote(&mut intake, Wanted::All, Wait::Buffer).len(), 2);
}

#[test]
fn who_is_never_critical_is_not_waited_for() {
    let mut intake = Intake::default();
    for sector in [0, 8] {
        intake.queue(&tag(sector, 8, 7, 4));
        assert_eq!(promote(&mut intake, Wanted::Task(7), Wait::Mutex), []);
        let known = intake.arrive(sector * 512, 4096).unwrap();
        assert_eq!(known.criticality, Criticality::None);
    }
    assert_eq!(promote(&mut intake, Wanted::All, Wait::Condition), []);
    assert_eq!(slots(&mut intake, 8), []);
    assert!(intake.has_outstanding(Wanted::Task(7)), "it is not as if it were written");
    // Merged with one of somebody else's it is as that one.
    intake.queue(&tag(16, 8, 7, 4));
    intake.queue(&tag(24, 8, 8, 0));
    intake.arrive(16 * 512, 8192).unwrap();
    assert_eq!(promote(&mut intake, Wanted::Task(7), Wait::Mutex), []);
    assert_eq!(promote(&mut intake, Wanted::Task(8), Wait::Mutex), [(8192, 8192)]);
}

#[test]
fn what_comes_to_be_waited_for_counts_for_its_tasks_rate_once() {
    let mut intake = Intake::default();
    for sector in [0, 8] {
        intake.queue(&tag(sector, 8, 7, 0));
        intake.arrive(sector * 512, 4096).unwrap();
    }
    let left = std::cell::Cell::new(4096);
    let allows = |task: u32, _: Payers, bytes: u64| {
        assert_eq!(task, 7);
        let within = left.get() >= bytes;
        left.set(left.get() - if within { bytes } else { 0 });
        within
    };
    let cause = Cause { via: Wait::Mutex, waiter: 9, payers: 0 };
    for _ in 0..2 {
        let promoted = intake.promote(Wanted::Task(7), cause, &allows);
        assert_eq!(promoted, [Promoted { offset: 0, len: 4096, task: 7, cause }]);
    }
    left.set(4096);
    assert_eq!(ranges(intake.promote(Wanted::Task(7), cause, &allows)), [(0, 4096), (4096, 4096)]);
}

#[test]
fn what_never_arrives_is_forgotten() {
    let mut intake = Intake::default();
    let max = TAGS_MAX as u64;
    // In an order that is not that of their places.
    let place = |i: u64| i * 7919 % (4 * max);
    for i in 0..4 * max {
        intake.queue(&tag(place(i) * 8, 8, 1, 0));
        assert!(intake.queued.len() <= TAGS_MAX, "{i}");
    }
    let waits: Vec<u64> = (0..4 * max).filter(|i| intake.arrive(place(*i) * 4096, 4096).is_some()).collect();
    assert!(waits.len() > TAGS_MAX / 2 && waits.iter().copied().eq(4 * max - waits.len() as u64..4 * max));
    assert!(intake.queued.is_empty());
}

proptest! {
    /// Tags are what a table with one entry for each sector would be.
    #[test]
    fn tags_are_kept_by_sector(ops in proptest::collection::vec((0u64..60, 1u32..20, 0..5), 1..120)) {
        let mut intake = Intake::default();
        let mut sectors: BTreeMap<u64, u32> = BTreeMap::new();
        for (i, (sector, count, op)) in ops.into_iter().enumerate() {
            let range = sector..sector + u64::from(count);
            if op == 0 {
                // As if it had been queued, and had arrived as it was.
                prop_assert_eq!(intake.arrive_as(&tag(sector, count, i as u32, 0)).tid, i as u32);
                range.for_each(|s| { sectors.remove(&s); });
            } else if op < 3 {
                let found = intake.cut(sector * 512, range.end * 512);
                let mut expected: Vec<u32> = range.filter_map(|s| sectors.remove(&s)).collect();
                expected.dedup();
                let mut found = tids(&found);
                found.dedup();
                prop_assert_eq!(found, expected);
            } else {
                intake.queue(&tag(sector, count, i as u32, 0));
                range.for_each(|s| { sectors.insert(s, i as u32); });
            }
        }
    }
}
