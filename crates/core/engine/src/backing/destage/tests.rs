use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::locks::Hold;
use crate::map::segments::{DESTAGING, Slot, SlotKind, UNREADABLE};

/// Destaging beside a map, its locks, and a backing that does what the test says.
struct World {
    map: Map,
    locks: Locks,
    destage: Destage,
    now: Nanos,
    /// Flushes of the backing that have failed.
    losses: u64,
    /// Where the log is written.
    segment: u32,
    next_seq: u64,
    /// Runs whose writes have not ended, with their blocks and versions.
    under_way: Vec<(RunKey, BlockRange, Vec<Seq>)>,
    told: Vec<Told>,
}

/// What destaging thinks of the current version of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Clean,
    /// To be destaged.
    Dirty,
    UnderWay,
    /// Not to be destaged for a while, as it could not be read.
    SetAside,
    /// It will never be readable.
    Damaged,
}

impl World {
    /// All blocks are dirty.
    fn new(blocks: &[u64]) -> Self {
        let map = Map::of_segments(2);
        let (locks, destage) = (Locks::default(), Destage::default());
        let mut world = Self {
            map,
            locks,
            destage,
            now: Nanos(0),
            losses: 0,
            segment: 0,
            next_seq: 1,
            under_way: Vec::new(),
            told: Vec::new(),
        };
        world.open();
        blocks.iter().for_each(|block| world.write(*block));
        world
    }

    /// The log goes on in its next segment.
    fn open(&mut self) {
        self.segment = self.map.segments_mut().take_free().unwrap();
        self.map.segments_mut().open(self.segment, u64::from(self.segment) + 1, Seq(self.next_seq), 0, 1);
    }

    /// A version of the block in the log.
    fn version(&mut self, block: u64) -> SlotRef {
        let seq = Seq(self.next_seq);
        self.next_seq += 1;
        let first = self.map.segments().get(self.segment).first_seq;
        let slot = Slot::new(BlockNo(block), 0, 0, SlotKind::Data, seq, first);
        self.map.segments_mut().ends_with(self.segment, seq);
        self.map.segments_mut().push(self.segment, slot)
    }

    /// A client writes the block to the log.
    fn write(&mut self, block: u64) {
        let slot = self.version(block);
        if let Some(old) = self.map.put(slot, true) {
            self.map.cleaned(old.slot);
            self.destage.is_readable(BlockNo(block));
        }
    }

    fn current(&self, block: u64) -> SlotRef {
        self.map.lookup(BlockNo(block)).unwrap()
    }

    fn state(&self, block: u64) -> State {
        let slot = self.current(block);
        let s = self.map.segments().slot(slot);
        match () {
            () if self.destage.is_corrupt(BlockNo(block), slot) => State::Damaged,
            () if s.has(UNREADABLE) => State::SetAside,
            () if s.has(DESTAGING) => State::UnderWay,
            () if s.has(DIRTY) => State::Dirty,
            () => State::Clean,
        }
    }

    /// Begins all runs that may begin.
    fn begin(&mut self) {
        self.destage.step(self.now, &mut self.map);
        if !self.destage.has_plan() {
            self.destage.collect(&self.map, 1 << 20, false);
        }
        while !self.destage.is_paused()
            && let Some(begun) =
                self.destage.begin_run(&mut self.map, &mut self.locks, false, Planted::default())
        {
            let versions = begun.slots.iter().map(|slot| self.map.segments().seq(*slot)).collect();
            self.under_way.push((begun.key, begun.range, versions));
        }
    }

    /// Begins one run of an order, which needs no flush.
    fn begin_durable(&mut self, blocks: &[u64]) {
        let plan = blocks.iter().map(|block| (BlockNo(*block), self.current(*block))).collect();
        self.destage.follow(plan, true);
        self.begin();
    }

    fn unlock(&mut self, range: BlockRange) {
        range.iter().for_each(|block| self.locks.release(BlockRange::new(block, 1), Hold::Backing));
    }

    /// The write of the oldest run ends.
    fn written(&mut self, well: bool) -> Outcome {
        let (key, range, _) = self.under_way.remove(0);
        let ended = self.destage.written(key, well, self.now, &mut self.map, Planted::default());
        let (unlocked, outcome) = ended.unwrap();
        assert_eq!(unlocked, range);
        self.unlock(range);
        self.hear();
        outcome
    }

    fn hear(&mut self) {
        while let Some(told) = self.destage.next_told(&mut self.map, Planted::default()) {
            self.told.push(told);
        }
    }

    /// Begins a flush if one is due where nothing more is to be started.
    fn flush(&mut self) -> bool {
        let facts =
            FlushFacts { runs_allowed: 0, log_blocks: 1 << 20, room_awaited: false, step_awaited: false };
        let due = self.destage.flush_is_due(facts, &self.map);
        if due {
            self.destage.begin_flush(self.losses);
        }
        due
    }

    fn flushed(&mut self, well: bool) {
        if !well {
            self.another_fails();
        }
        self.destage.flushed(self.losses, self.now, &mut self.map);
        self.hear();
    }

    /// A flush of the backing fails that somebody else has asked for.
    fn another_fails(&mut self) {
        self.losses += 1;
        self.destage.write_again(&mut self.map);
    }

    /// The block of the oldest run that has it cannot be read.
    fn cannot_read(&mut self, block: u64, corrupt: bool) -> Unread {
        let at = self.under_way.iter().position(|(_, range, _)| range.contains(BlockNo(block))).unwrap();
        let (key, range, versions) = self.under_way.remove(at);
        let seq = versions[(block - range.first.0) as usize];
        let of_it = |slot: &SlotRef| {
            self.map.segments().block(*slot).0 == block && self.map.segments().seq(*slot) == seq
        };
        let slot = self.map.segments().slot_refs(0).find(of_it).unwrap();
        let unread = self.destage.unreadable(BlockNo(block), slot, corrupt, self.now, &mut self.map);
        assert_eq!(self.destage.give_up(key, &mut self.map), Some(range));
        self.unlock(range);
        unread
    }

    fn pass(&mut self, ms: u64) {
        self.now = self.now.plus_ms(ms);
        self.destage.retry_unreadable(self.now, &mut self.map);
        self.destage.step(self.now, &mut self.map);
    }
}

#[test]
fn runs_are_cut_where_units_of_the_backing_end() {
    let mut world = World::new(&(1000..1050).collect::<Vec<_>>());
    world.destage = Destage::of_units(NonZeroU64::new(1024));
    world.begin();
    let runs = world.under_way.iter().map(|(_, range, _)| (range.first.0, range.count));
    assert_eq!(runs.collect::<Vec<_>>(), [(1000, 24), (1024, 26)]);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Begin,
    /// In an order, durably.
    BeginDurable,
    /// The writes of all runs end well, or none does.
    Written(bool),
    Flush,
    Flushed(bool),
    AnotherFails,
    /// Block 0 is written anew by a client.
    Overwrite,
    /// A bypass may have changed block 0 on the backing.
    Void,
    /// Block 0 cannot be read; its checksum is wrong.
    CannotRead(bool),
    /// So many attempts to read it fail one after the other.
    CannotReadFor(u32),
    Pass(u64),
    TryAgain,
    /// Nothing is started for so many milliseconds from now on; 0: no pause.
    PausedFor(u64),
}

#[test]
fn what_fails_is_tried_again() {
    use State::{Clean, Damaged, Dirty, SetAside, UnderWay};
    use Step::{
        AnotherFails, Begin, BeginDurable, CannotRead, CannotReadFor, Flush, Flushed, Overwrite, Pass,
        PausedFor, TryAgain, Void, Written,
    };
    // Blocks 0 and 1 go in one run, 9 in another. Steps; what 0, 1 and 9 are then; failures in a row.
    let cases: &[(&[Step], [State; 3], u32)] = &[
        (&[Begin], [UnderWay; 3], 0),
        (&[Begin, Written(true)], [UnderWay; 3], 0),
        (&[Begin, Written(true), Flush, Flushed(true)], [Clean; 3], 0),
        (&[BeginDurable, Written(true)], [Clean; 3], 0),
        // The backing write fails: what fails with it is one failure.
        (&[Begin, Written(false), PausedFor(100)], [Dirty; 3], 1),
        (&[BeginDurable, Written(false), PausedFor(100)], [Dirty; 3], 1),
        (&[Begin, Written(false), Begin], [Dirty; 3], 1),
        (&[Begin, Written(false), Pass(100), Begin], [UnderWay; 3], 1),
        (&[Begin, Written(false), Pass(100), Begin, Written(false), PausedFor(200)], [Dirty; 3], 2),
        (&[Begin, Written(false), TryAgain, PausedFor(0), Begin], [UnderWay; 3], 0),
        (&[Begin, Written(false), Pass(100), Begin, Written(true), Flush, Flushed(true)], [Clean; 3], 0),
        // The flush fails, or another one while the written data awaits it.
        (&[Begin, Written(true), Flush, Flushed(false), PausedFor(100)], [Dirty; 3], 1),
        (&[Begin, Written(true), AnotherFails, PausedFor(0)], [Dirty; 3], 0),
        (&[Begin, Written(true), Flush, AnotherFails], [UnderWay; 3], 0),
        (&[Begin, Written(true), Flush, AnotherFails, Flushed(true), PausedFor(100)], [Dirty; 3], 1),
        (&[Begin, AnotherFails, Written(true), Flush, Flushed(true)], [Clean; 3], 0),
        // Overwritten meanwhile: the newer version is as it was, whatever becomes of the older.
        (&[Begin, Overwrite, Written(true), Flush, Flushed(true)], [Dirty, Clean, Clean], 0),
        (&[Begin, Written(true), Flush, Overwrite, Flushed(true)], [Dirty, Clean, Clean], 0),
        (&[Begin, Overwrite, Written(false), PausedFor(100)], [Dirty; 3], 1),
        (&[Begin, Written(true), Overwrite, AnotherFails], [Dirty; 3], 0),
        // Something else went over it on the backing.
        (&[Begin, Written(true), Void, Flush, Flushed(true)], [Dirty, Clean, Clean], 0),
        (&[Begin, Written(true), Flush, Void, Flushed(true)], [Dirty, Clean, Clean], 0),
        (&[Begin, Written(true), Flush, Void, Flushed(false)], [Dirty; 3], 1),
        // It cannot be read: the rest of its run goes on without it.
        (&[Begin, CannotRead(false)], [SetAside, Dirty, UnderWay], 0),
        (&[Begin, CannotRead(false), Begin], [SetAside, UnderWay, UnderWay], 0),
        (&[Begin, CannotRead(false), Pass(4999)], [SetAside, Dirty, UnderWay], 0),
        (&[Begin, CannotRead(false), Pass(5000)], [Dirty, Dirty, UnderWay], 0),
        (&[Begin, CannotRead(false), Overwrite], [Dirty, Dirty, UnderWay], 0),
        (&[Begin, Overwrite, CannotRead(false)], [Dirty, Dirty, UnderWay], 0),
        (&[CannotReadFor(11)], [SetAside, UnderWay, UnderWay], 0),
        (&[CannotReadFor(11), Pass(5000)], [Dirty, UnderWay, UnderWay], 0),
        (&[CannotReadFor(12), Pass(5000)], [Damaged, UnderWay, UnderWay], 0),
        (&[Begin, CannotRead(true), Pass(5000)], [Damaged, Dirty, UnderWay], 0),
        (&[Begin, CannotRead(true), Overwrite], [Dirty, Dirty, UnderWay], 0),
    ];
    for (steps, states, failures) in cases {
        let mut world = World::new(&[0, 1, 9]);
        for step in *steps {
            match *step {
                Begin => world.begin(),
                BeginDurable => world.begin_durable(&[0, 1, 9]),
                Written(well) => {
                    while !world.under_way.is_empty() {
                        world.written(well);
                    }
                }
                Flush => assert!(world.flush(), "{steps:?}"),
                Flushed(well) => world.flushed(well),
                AnotherFails => world.another_fails(),
                Overwrite => world.write(0),
                Void => world.destage.void(BlockRange::new(BlockNo(0), 1), &mut world.map),
                CannotRead(corrupt) => {
                    world.cannot_read(0, corrupt);
                }
                CannotReadFor(times) => {
                    for n in 0..times {
                        world.pass(if n > 0 { 5000 } else { 0 });
                        world.begin();
                        world.cannot_read(0, false);
                        world.begin();
                    }
                }
                Pass(ms) => world.pass(ms),
                TryAgain => world.destage.try_again(),
                PausedFor(ms) => {
                    let until =
                        world.destage.next_wake().map(|at| at.0.saturating_sub(world.now.0) / 1_000_000);
                    assert_eq!(until.unwrap_or(0), ms, "{steps:?}");
                }
            }
        }
        assert_eq!([0, 1, 9].map(|block| world.state(block)), *states, "{steps:?}");
        assert_eq!(world.destage.failures(), *failures, "{steps:?}");
        if world.destage.is_idle() {
            assert_eq!(world.map.segments().get(0).pins, 0, "{steps:?}");
            assert!(world.locks.is_empty(), "{steps:?}");
        }
    }
}

#[test]
fn what_cannot_be_read_and_was_overwritten_is_nobodys_concern() {
    let mut world = World::new(&[0, 1]);
    world.begin();
    assert_eq!(world.cannot_read(1, false), Unread::Kept);
    world.begin();
    world.write(0);
    assert_eq!(world.cannot_read(0, true), Unread::Overwritten);
    // An order asks for older versions, too: with this one something is missing on the backing for good.
    let older = world.version(5);
    world.map.put(older, true);
    let newer = world.version(5);
    world.map.put(newer, true);
    let unread = world.destage.unreadable(BlockNo(5), older, false, world.now, &mut world.map);
    assert_eq!(unread, Unread::Skipped);
    assert!(!world.map.segments().slot(older).has(DIRTY));
}

#[test]
fn a_planned_block_whose_segment_has_left_the_log_is_passed_over() {
    let mut world = World::new(&[0]);
    world.destage.collect(&world.map, 1 << 20, false);
    world.open();
    world.write(0);
    world.map.retire_below(2);
    world.begin();
    assert!(world.under_way.is_empty(), "the plan is from before");
    world.begin();
    assert_eq!(world.under_way.len(), 1);
}

#[test]
fn pauses_grow_up_to_five_seconds() {
    let mut world = World::new(&[0]);
    let pauses: Vec<u64> = (0..9)
        .map(|_| {
            world.begin();
            assert_eq!(world.written(false), Outcome::Failed);
            let pause = (world.destage.next_wake().unwrap().0 - world.now.0) / 1_000_000;
            world.pass(pause);
            pause
        })
        .collect();
    assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]);
}

/// A backing with a volatile cache: which version of a block it has, 0 for what somebody else wrote.
#[derive(Default)]
struct Backing {
    cache: BTreeMap<u64, u64>,
    /// What the flush under way makes durable if it ends well.
    flushing: BTreeMap<u64, u64>,
    disk: BTreeMap<u64, u64>,
}

impl Backing {
    fn has_durably(&self, block: u64, seq: u64) -> bool {
        self.disk.get(&block) == Some(&seq) && self.cache.get(&block).is_none_or(|cached| *cached == seq)
    }

    fn begin_flush(&mut self) {
        self.flushing = std::mem::take(&mut self.cache);
        self.disk.extend(self.flushing.keys().map(|block| (*block, 0)));
    }

    fn flushed(&mut self) {
        self.disk.extend(std::mem::take(&mut self.flushing));
    }

    /// A flush has failed: whatever was not durable is gone.
    fn lose(&mut self) {
        self.disk.extend(std::mem::take(&mut self.cache).into_keys().map(|block| (block, 0)));
        self.flushing.clear();
    }
}

proptest! {
    /// Whatever fails, and when: a version is told clean once, and only when the backing has it durably; and in the end
    /// all of them are.
    #[test]
    fn what_is_told_clean_is_on_the_backing(steps in proptest::collection::vec((0u8..11, 0u64..12), 1..200)) {
        let blocks: Vec<u64> = (0..12).collect();
        let mut world = World::new(&blocks);
        let mut backing = Backing::default();
        let (mut told, mut flushing) = (BTreeSet::new(), false);
        let ends = [(0, 0), (1, 0), (3, 0), (9, 0)].into_iter().cycle().take(600);
        // At last nothing fails any more.
        for (step, block) in steps.into_iter().chain([(20, 0)]).chain(ends) {
            match step {
                0 => world.begin(),
                1 | 2 if !world.under_way.is_empty() => {
                    let (_, range, versions) = world.under_way[0].clone();
                    let well = step == 1;
                    for (block, seq) in range.iter().zip(&versions) {
                        // A write that failed may have left anything.
                        backing.cache.insert(block.0, if well { seq.0 } else { 0 });
                    }
                    let outcome = world.written(well);
                    prop_assert_eq!(outcome, if well { Outcome::Written } else { Outcome::Failed });
                }
                3 if !flushing => {
                    flushing = world.flush();
                    if flushing {
                        backing.begin_flush();
                    }
                }
                3 | 4 if flushing => {
                    flushing = false;
                    backing.flushed();
                    world.flushed(true);
                }
                5 if flushing => {
                    flushing = false;
                    backing.lose();
                    world.flushed(false);
                }
                6 => {
                    backing.lose();
                    world.another_fails();
                }
                7 => world.write(block),
                8 => {
                    let range = BlockRange::new(BlockNo(block), 1);
                    if world.locks.try_take(range, Hold::Backing) {
                        backing.cache.insert(block, 0);
                        world.destage.void(range, &mut world.map);
                        // A clean copy would not be true any more: the engine forgets it.
                        if world.state(block) == State::Clean {
                            world.write(block);
                        }
                        world.locks.release(range, Hold::Backing);
                    }
                }
                9 => world.pass(1000),
                10 if world.under_way.iter().any(|(_, range, _)| range.contains(BlockNo(block))) => {
                    world.cannot_read(block, false);
                }
                20 => {
                    world.pass(10_000);
                    world.destage.try_again();
                }
                _ => {}
            }
            for cleaned in std::mem::take(&mut world.told) {
                let Told::Cleaned(Cleaned { block, seq, current, .. }) = cleaned else { continue };
                prop_assert!(told.insert((block, seq)), "{block} of record {seq} is told twice");
                // What was overwritten meanwhile is no concern of the log's any more.
                let is_there = current.is_none() || backing.has_durably(block.0, seq.0);
                prop_assert!(is_there, "{block} of record {seq} is not on the backing");
            }
        }
        let damaged = blocks.iter().filter(|block| world.state(**block) == State::Damaged).count();
        prop_assert_eq!(world.map.segments().dirty(), damaged as u64);
        prop_assert!(world.destage.is_idle() && world.locks.is_empty());
        prop_assert_eq!(world.map.segments().get(0).pins, 0);
    }
}
