//! Reads and gatherings against devices that fail, damage and are changed meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use forebay_block::{BLOCK_BYTES, BlockNo, Buf, BufMut, DeviceOp, DeviceResult, ErrorKind, IoError, Seq};
use forebay_format::Layout;
use forebay_format::checksum::block_checksum;
use forebay_policy::Issuer;
use proptest::prelude::*;

use super::*;
use crate::interface::{RequestId, RunKey};
use crate::locks::BlockRange;
use crate::map::segments::{Slot, SlotKind, SlotRef};

const BLOCKS: u64 = 12;
const BLOCK: usize = BLOCK_BYTES as usize;
/// The volume ends within a block.
const VOLUME: u64 = (BLOCKS - 1) * BLOCK_BYTES + 512;
const FIRST_OFFSET: u32 = 8192;

/// What reading a place of the cache brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// An error, so many times.
    Fails(u32),
    /// Something else, so many times.
    Damaged(u32),
}

/// Any number of times.
const FOR_GOOD: u32 = u32::MAX;

struct World {
    map: Map,
    reading: Reading,
    layout: Layout,
    next: u64,
    /// What each place of the cache holds, and of which block: blocks are full of one byte.
    cache: BTreeMap<u64, u8>,
    faults: BTreeMap<u64, Fault>,
    backing: [u8; BLOCKS as usize],
    backing_fails: bool,
    /// In the journal on the backing's side: what it holds, and whether that is whole.
    journal: BTreeMap<u64, (u8, bool)>,
    under_way: Vec<(Asked, Option<DeviceResult>)>,
    told: Vec<Told>,
    seen: Seen,
    log: Vec<String>,
}

fn full(fill: u8) -> Buf {
    let mut data = BufMut::zeroed(BLOCK);
    data.fill(fill);
    data.freeze()
}

impl World {
    fn new() -> Self {
        let layout =
            Layout { cache_id: [1; 16], generation: 1, align: 512, segment_bytes: 4 << 20, segment_count: 2 };
        let mut map = Map::of_segments(2);
        map.segments_mut().open(0, 1, Seq(1), 0, 1);
        Self {
            map,
            reading: Reading::new(layout, VOLUME),
            layout,
            next: 0,
            cache: BTreeMap::new(),
            faults: BTreeMap::new(),
            backing: std::array::from_fn(|n| b'A' + n as u8),
            backing_fails: false,
            journal: BTreeMap::new(),
            under_way: Vec::new(),
            told: Vec::new(),
            seen: Seen::default(),
            log: Vec::new(),
        }
    }

    /// A new version of the block comes into the log, behind the one before.
    fn put(&mut self, block: u64, fill: u8, kind: SlotKind, dirty: bool) -> SlotRef {
        let offset = FIRST_OFFSET + self.next as u32 * BLOCK as u32;
        self.next += 1;
        let (block, seq) = (BlockNo(block), Seq(self.next));
        let checksum = block_checksum(block, seq, &full(fill));
        let slot = Slot::new(block, offset, checksum, kind, seq, Seq(1));
        let slot = self.map.segments_mut().push(0, slot);
        if let Some(old) = self.map.put(slot, dirty) {
            self.map.cleaned(old.slot);
        }
        self.cache.insert(self.place(slot), fill);
        slot
    }

    fn place(&self, slot: SlotRef) -> u64 {
        self.map.member(slot, &self.layout).place
    }

    fn current(&self, block: u64) -> Option<SlotRef> {
        self.map.lookup(BlockNo(block))
    }

    /// The index forgets the block.
    fn forget(&mut self, block: u64) {
        self.map.forget(BlockRange::new(BlockNo(block), 1));
    }

    fn fault(&mut self, block: u64, fault: Fault) {
        let place = self.place(self.current(block).unwrap());
        self.faults.insert(place, fault);
    }

    /// What the device answers now.
    fn carry_out(&mut self, asked: &Asked) -> DeviceResult {
        let DeviceOp::Read { offset, len } = asked.op else { panic!("{asked:?}") };
        let mut data = BufMut::zeroed(len);
        let mut fails = false;
        for (n, part) in data.chunks_mut(BLOCK).enumerate() {
            let at = offset + (n * BLOCK) as u64;
            match asked.role {
                Role::Backing => {
                    part.fill(self.backing[(at / BLOCK_BYTES) as usize]);
                    fails |= self.backing_fails;
                }
                Role::Journal => {
                    let (fill, is_whole) = self.journal[&at];
                    part.fill(fill);
                    part[77] ^= u8::from(!is_whole);
                }
                Role::Cache => {
                    assert!(self.map.segments().get(0).pins > 0 || asked.class == Class::Background, "G2");
                    part.fill(self.cache[&at]);
                    match self.faults.get_mut(&at) {
                        Some(Fault::Fails(times) | Fault::Damaged(times)) if *times == 0 => {}
                        Some(Fault::Fails(times)) => {
                            fails = true;
                            *times -= u32::from(*times != FOR_GOOD);
                        }
                        Some(Fault::Damaged(times)) => {
                            part[99] ^= 4;
                            *times -= u32::from(*times != FOR_GOOD);
                        }
                        None => {}
                    }
                }
            }
        }
        if fails { Err(IoError::new(ErrorKind::Io, "device")) } else { Ok(Some(data.freeze())) }
    }

    fn takes(&mut self, step: Step) {
        let Step { seen, unreadable, asked, told } = step;
        self.seen.hit_bytes += seen.hit_bytes;
        self.seen.missed_bytes += seen.missed_bytes;
        self.seen.cache_errors += seen.cache_errors;
        self.seen.backing_errors += seen.backing_errors;
        self.seen.checksum_failures += seen.checksum_failures;
        if let Some(block) = unreadable {
            self.log.push(format!("forget {}", block.0));
            self.forget(block.0);
        }
        for asked in asked {
            let DeviceOp::Read { offset, len } = asked.op else { panic!("{asked:?}") };
            let from = if asked.role == Role::Cache {
                u64::from(FIRST_OFFSET) + self.layout.segment_offset(0)
            } else {
                0
            };
            let (at, count) = ((offset - from) / BLOCK_BYTES, len.div_ceil(BLOCK));
            self.log.push(format!("{:?} {at}+{count}", asked.role));
            self.under_way.push((asked, None));
        }
        if let Some(told) = told {
            assert!(self.under_way.is_empty(), "G3: nothing of it is under way any more");
            self.told.push(told);
        }
    }

    fn reads(&mut self, offset: u64, len: usize) {
        let reader = (Reader::Client(RequestId(1)), Issuer::default());
        let step = self.reading.read(reader, (offset, len), &mut self.map);
        self.takes(step);
    }

    /// The device does what was asked; the answer comes later.
    fn does(&mut self, n: usize) {
        if self.under_way[n].1.is_none() {
            let (asked, _) = self.under_way.remove(n);
            let result = self.carry_out(&asked);
            self.under_way.insert(n, (asked, Some(result)));
        }
    }

    fn ends(&mut self, n: usize) {
        self.does(n);
        let (asked, result) = self.under_way.remove(n);
        let resort = self.reading.last_resort(asked.key);
        let elsewhere = resort.map(|(block, _)| block.offset()).filter(|at| self.journal.contains_key(at));
        let step = self.reading.ended(asked.key, result.unwrap(), elsewhere, &mut self.map);
        self.takes(step);
    }

    fn runs(&mut self) {
        for _ in 0..1000 {
            if self.under_way.is_empty() {
                return;
            }
            self.ends(0);
        }
        panic!("does not come to an end: {:?}", self.log);
    }

    /// What was read, one letter for each 512 bytes, or the error's kind.
    fn told(&mut self) -> Result<Vec<u8>, ErrorKind> {
        assert_eq!((self.told.len(), self.map.segments().get(0).pins), (1, 0), "answered once; G2");
        match self.told.pop() {
            Some(Told::Read(_, result)) => result
                .map(|data| data.chunks(512).map(|sector| sector[0]).collect())
                .map_err(|error| error.kind),
            other => panic!("{other:?}"),
        }
    }
}

/// What is asked of the devices for a read of blocks 1, 2 and 3, step by step, and what is told.
#[test]
fn a_read_goes_block_by_block_where_the_cache_is_damaged() {
    /// What it is, how it comes about, what is asked, what is told, and checksum failures and errors of the cache.
    type Case =
        (&'static str, fn(&mut World), &'static [&'static str], Result<&'static str, ErrorKind>, (u64, u64));
    fn cached(world: &mut World, dirty: bool) {
        for (block, fill) in [(1, b'x'), (2, b'y'), (3, b'z')] {
            world.put(block, fill, SlotKind::Data, dirty);
        }
    }
    let cases: &[Case] = &[
        ("nothing is cached", |_| (), &["Backing 1+3"], Ok("BCD"), (0, 0)),
        ("all is whole", |w| cached(w, true), &["Cache 0+3"], Ok("xyz"), (0, 0)),
        (
            "it is damaged once",
            |w| {
                cached(w, true);
                w.fault(2, Fault::Damaged(1));
            },
            &["Cache 0+3", "Cache 1+1"],
            Ok("xyz"),
            (1, 0),
        ),
        (
            "the read fails once",
            |w| {
                cached(w, true);
                w.fault(2, Fault::Fails(1));
            },
            &["Cache 0+3", "Cache 0+1", "Cache 1+1", "Cache 2+1"],
            Ok("xyz"),
            (0, 1),
        ),
        (
            "what is dirty is damaged for good",
            |w| {
                cached(w, true);
                w.fault(2, Fault::Damaged(FOR_GOOD));
            },
            &["Cache 0+3", "Cache 1+1"],
            Err(ErrorKind::Corrupt),
            (2, 0),
        ),
        (
            "what is dirty fails for good",
            |w| {
                cached(w, true);
                w.fault(1, Fault::Fails(FOR_GOOD));
            },
            &["Cache 0+3", "Cache 0+1", "Cache 1+1", "Cache 2+1"],
            Err(ErrorKind::Io),
            (0, 2),
        ),
        (
            "what is clean is damaged for good",
            |w| {
                cached(w, false);
                w.fault(3, Fault::Damaged(FOR_GOOD));
            },
            &["Cache 0+3", "Cache 2+1", "forget 3", "Backing 3+1"],
            Ok("xyD"),
            (2, 0),
        ),
        (
            "zeroes between others",
            |w| {
                cached(w, true);
                w.put(2, 0, SlotKind::Zero, true);
            },
            &["Cache 0+1", "Cache 2+1"],
            Ok("x\0z"),
            (0, 0),
        ),
        (
            "one is lost",
            |w| {
                cached(w, true);
                w.put(2, 0, SlotKind::Poison, true);
            },
            &["Cache 0+1", "Cache 2+1"],
            Err(ErrorKind::Corrupt),
            (0, 0),
        ),
        (
            "they lie apart",
            |w| {
                cached(w, true);
                w.put(1, b'v', SlotKind::Data, true);
            },
            &["Cache 3+1", "Cache 1+2"],
            Ok("vyz"),
            (0, 0),
        ),
        ("the backing fails", |w| w.backing_fails = true, &["Backing 1+3"], Err(ErrorKind::Io), (0, 0)),
    ];
    for (name, setup, log, told, (failures, errors)) in cases {
        let mut world = World::new();
        setup(&mut world);
        world.reads(BLOCK_BYTES, 3 * BLOCK);
        world.runs();
        assert_eq!(world.log, *log, "{name}");
        let expected = told.map(|text| text.bytes().flat_map(|fill| [fill; 8]).collect::<Vec<u8>>());
        assert_eq!(world.told(), expected, "{name}");
        assert_eq!((world.seen.checksum_failures, world.seen.cache_errors), (*failures, *errors), "{name}");
    }
}

#[test]
fn a_block_that_was_cached_meanwhile_is_not_taken_from_the_backing() {
    let mut world = World::new();
    world.reads(0, 3 * BLOCK);
    world.put(1, b'x', SlotKind::Data, true);
    // A bypass of it is under way.
    world.backing[1] = b'!';
    world.runs();
    assert_eq!(world.log, ["Backing 0+3", "Cache 0+1"]);
    assert_eq!(world.told(), Ok([[b'A'; 8], [b'x'; 8], [b'C'; 8]].concat()));
}

#[test]
fn a_block_that_moves_is_followed_but_not_for_ever() {
    let mut world = World::new();
    world.put(0, b'a', SlotKind::Data, true);
    world.fault(0, Fault::Damaged(FOR_GOOD));
    world.reads(0, BLOCK);
    for n in 1..9 {
        world.put(0, b'a' + n, SlotKind::Data, true);
        world.fault(0, Fault::Damaged(FOR_GOOD));
        if !world.under_way.is_empty() {
            world.ends(0);
        }
    }
    assert_eq!(world.log, ["Cache 0+1", "Cache 1+1", "Cache 2+1", "Cache 3+1"]);
    assert_eq!(world.told(), Err(ErrorKind::Corrupt));
}

/// What one block may be read as, and whether its read may fail.
#[derive(Clone, Debug, Default)]
struct May {
    fills: BTreeSet<u8>,
    fail: bool,
}

impl World {
    /// What the block is now.
    fn acknowledged(&self, block: u64, may: &mut May) {
        let fill = match self.current(block) {
            None => self.backing[block as usize],
            Some(slot) => {
                let place = self.place(slot);
                let s = *self.map.segments().slot(slot);
                let damaged = matches!(
                    self.faults.get(&place),
                    Some(Fault::Fails(FOR_GOOD) | Fault::Damaged(FOR_GOOD))
                );
                may.fail |= damaged && s.has(crate::map::segments::DIRTY) || s.kind() == SlotKind::Poison;
                if s.kind() == SlotKind::Poison {
                    return;
                }
                self.cache[&place]
            }
        };
        may.fills.insert(fill);
    }
}

proptest! {
    /// Whatever happens meanwhile: what is read of each block is a version that was the newest acknowledged one at some instant of the
    /// read, and only what is damaged for good, and dirty, may fail it.
    #[test]
    fn a_read_finds_the_newest_version(
        before in proptest::collection::vec((0u64..BLOCKS, 0u8..7, 0u8..7), 0..24),
        (from, count) in (0u64..VOLUME / 512, 1u64..40),
        meanwhile in proptest::collection::vec((0u8..10, 0u64..BLOCKS, 0usize..4), 0..24),
    ) {
        let mut world = World::new();
        let mut fill = b'a';
        for (block, what, fault) in before {
            fill += 1;
            let kind = match what {
                0 => SlotKind::Poison,
                1 => SlotKind::Zero,
                _ => SlotKind::Data,
            };
            let dirty = what < 4;
            let fill = if kind == SlotKind::Data { fill } else { 0 };
            world.put(block, fill, kind, dirty);
            if !dirty {
                world.backing[block as usize] = fill;
            }
            let faults = [Fault::Fails(1), Fault::Damaged(1), Fault::Fails(FOR_GOOD), Fault::Damaged(FOR_GOOD)];
            if let Some(fault) = faults.get(fault as usize) && kind == SlotKind::Data {
                world.fault(block, *fault);
            }
        }
        let offset = from * 512;
        let len = (count * 512).min(VOLUME - offset);
        let mut may = vec![May::default(); BLOCKS as usize];
        let all = |world: &World, may: &mut Vec<May>| {
            (0..BLOCKS).for_each(|block| world.acknowledged(block, &mut may[block as usize]));
        };
        all(&world, &mut may);
        world.reads(offset, len as usize);
        // Bypasses of cached blocks that are on the backing and not acknowledged.
        let mut bypasses = BTreeSet::new();
        for (what, block, n) in meanwhile {
            match what {
                // A write comes into the log; not while a bypass holds the block.
                0..3 if !bypasses.contains(&block) => {
                    fill += 1;
                    world.put(block, fill, SlotKind::Data, true);
                }
                // A bypass of a cached block is carried out by the backing.
                3 if world.current(block).is_some() => {
                    fill += 1;
                    world.backing[block as usize] = fill;
                    bypasses.insert(block);
                }
                // And acknowledged.
                4 if bypasses.remove(&block) => world.forget(block),
                5 if !world.under_way.is_empty() => world.does(n % world.under_way.len()),
                6..10 if !world.under_way.is_empty() => world.ends(n % world.under_way.len()),
                _ => {}
            }
            // A clean copy that was given up while a bypass of it is under way: the backing has the older version no more.
            bypasses.retain(|block| world.current(*block).is_some());
            all(&world, &mut may);
        }
        world.runs();
        all(&world, &mut may);
        let touched = offset / BLOCK_BYTES..(offset + len).div_ceil(BLOCK_BYTES);
        match world.told() {
            Err(_) => prop_assert!(touched.clone().any(|block| may[block as usize].fail), "{:?}", world.log),
            Ok(sectors) => {
                prop_assert_eq!(sectors.len() as u64, len / 512);
                for (n, sector) in sectors.iter().enumerate() {
                    let block = (offset / 512 + n as u64) / 8;
                    let fills = &may[block as usize].fills;
                    prop_assert!(fills.contains(sector), "block {block} is {sector}, not {fills:?}: {:?}", world.log);
                }
            }
        }
        prop_assert!(world.reading.has_no_reads());
    }

    /// A gathering brings exactly the versions that were chosen, or says which of them cannot be had: what fails for three reads, and is not
    /// whole in the journal.
    #[test]
    fn a_gathering_brings_what_was_chosen_or_says_what_is_bad(
        members in proptest::collection::vec((0u64..BLOCKS, 0u32..6, any::<bool>(), 0u8..3), 1..24),
        order in proptest::collection::vec(0usize..8, 0..64),
    ) {
        let mut world = World::new();
        let (mut chosen, mut expected, mut bad) = (Vec::new(), Vec::new(), BTreeSet::new());
        let mut blocks = BTreeSet::new();
        for (block, times, fails, journal) in members {
            if !blocks.insert(block) {
                // Something else lies in between.
                world.next += 1;
                continue;
            }
            let fill = b'a' + block as u8;
            let slot = world.put(block, fill, SlotKind::Data, true);
            let times = if times == 5 { FOR_GOOD } else { times };
            world.fault(block, if fails { Fault::Fails(times) } else { Fault::Damaged(times) });
            if journal > 0 {
                world.journal.insert(block * BLOCK_BYTES, (fill, journal == 1));
            }
            if times > 2 && journal != 1 {
                // What the journal has is not whole: that is what it was read as last.
                bad.insert((block, !fails || journal == 2));
            }
            chosen.push(world.map.member(slot, &world.layout));
            expected.push(fill);
        }
        let step = world.reading.gather(Wanted::Run(RunKey(7)), chosen);
        world.takes(step);
        // Newer versions do not matter.
        world.put(0, b'!', SlotKind::Data, true);
        for n in order {
            if !world.under_way.is_empty() {
                world.ends(n % world.under_way.len());
            }
        }
        world.runs();
        prop_assert_eq!(world.told.len(), 1);
        match world.told.pop() {
            Some(Told::Gathered(Wanted::Run(RunKey(7)), Ok(bufs))) => {
                prop_assert!(bad.is_empty());
                let found: Vec<u8> = bufs.iter().flat_map(|buf| buf.chunks(BLOCK).map(|b| b[0])).collect();
                prop_assert_eq!(found, expected);
            }
            Some(Told::Gathered(Wanted::Run(RunKey(7)), Err(told))) => {
                let told: BTreeSet<(u64, bool)> = told.iter().map(|b| (b.block.0, b.corrupt)).collect();
                prop_assert_eq!(told, bad);
            }
            other => prop_assert!(false, "{other:?}"),
        }
    }
}
