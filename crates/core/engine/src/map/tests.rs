//! The map against a model that looks through everything that there is.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::map::segments::SegmentState;

const BLOCKS: u64 = 24;
/// Between records; more than what share a moment.
const STEP_NS: u64 = 10_000_000;

/// A version in the log.
#[derive(Clone, Debug)]
struct Version {
    block: BlockNo,
    slot: SlotRef,
    seq: Seq,
    kind: SlotKind,
    current: bool,
    dirty: bool,
    tracked: bool,
    unreadable: bool,
    /// The index forgot it as untrue.
    untrue: bool,
}

struct Model {
    map: Map,
    versions: Vec<Version>,
    recalled: BTreeMap<BlockNo, Seq>,
    next: Seq,
    next_place: u64,
    /// Place of the log's first segment, as a record will say.
    tail: u64,
}

impl Model {
    fn new() -> Self {
        let layout = Layout {
            cache_id: [1; 16],
            generation: 1,
            align: 512,
            segment_bytes: 64 << 10,
            segment_count: 6,
        };
        let map = Map::new(&layout, Planted::default());
        let mut model = Self {
            map,
            versions: Vec::new(),
            recalled: BTreeMap::new(),
            next: Seq(1),
            next_place: 1,
            tail: 1,
        };
        model.open();
        model
    }

    fn time(seq: Seq) -> u64 {
        (1 << 40) + seq.0 * STEP_NS
    }

    /// The next segment; none if none is free.
    fn open(&mut self) {
        if let Some(index) = self.map.segments.take_free() {
            if let Some(head) = self.head() {
                self.map.segments.seal(head);
            }
            self.map.segments.open(index, self.next_place, self.next, Self::time(self.next), 1);
            self.next_place += 1;
        }
    }

    fn head(&self) -> Option<u32> {
        (0..6).find(|i| self.map.segments.get(*i).state == SegmentState::Open)
    }

    fn current(&mut self, block: BlockNo) -> Option<&mut Version> {
        self.versions.iter_mut().find(|v| v.block == block && v.current)
    }

    /// A record with one version; `keeps` the one before, if it is dirty.
    fn put(&mut self, block: BlockNo, kind: SlotKind, dirty: bool, keeps: bool) -> SlotRef {
        let (head, seq) = (self.head().unwrap(), self.next);
        self.next = seq.next();
        let first = self.map.segments.get(head).first_seq;
        let slot = self.map.segments.push(head, Slot::new(block, 0, 0, kind, seq, first));
        self.map.segments.ends_with(head, seq);
        self.map.note_moment(seq, Self::time(seq));
        let before = self.current(block).map(|v| {
            let gone = v.gone();
            (v.current, v.tracked) = (false, false);
            v.dirty &= keeps;
            gone
        });
        let gone = self.map.put(slot, dirty);
        assert_eq!(gone, before);
        if let Some(gone) = gone.filter(|_| !keeps) {
            self.map.cleaned(gone.slot);
        }
        let (current, tracked, unreadable, untrue) = (true, false, false, false);
        self.versions.push(Version { block, slot, seq, kind, current, dirty, tracked, unreadable, untrue });
        slot
    }

    fn forget(&mut self, range: BlockRange, what: impl Fn(&Version) -> bool, untrue: bool) -> Vec<Gone> {
        let mut gone = Vec::new();
        for v in self.versions.iter_mut().filter(|v| v.current && range.contains(v.block) && what(v)) {
            gone.push(v.gone());
            (v.current, v.tracked, v.dirty) = (false, false, false);
            v.untrue = untrue;
        }
        gone.sort_by_key(|gone| gone.block);
        gone
    }

    fn step(&mut self, op: u8, pick: usize, flag: bool) {
        let block = BlockNo(pick as u64 % BLOCKS);
        let range = BlockRange::new(block, 1 + pick as u64 / 64 % 9);
        let (many, at) = (self.versions.len(), pick / 16);
        let picked = (many > 0).then(|| self.versions[at % many].clone());
        match op {
            0 => self.open(),
            1..6 => {
                let kind = [SlotKind::Data, SlotKind::Zero, SlotKind::Poison][pick % 7 % 3];
                self.put(block, kind, op > 1, flag);
            }
            6 | 7 => {
                if let Some(v) = picked {
                    self.map.cleaned(v.slot);
                    let v = &mut self.versions[at % many];
                    v.dirty = false;
                    if v.current {
                        v.tracked |= v.kind != SlotKind::Poison;
                        self.map.admit(v.slot);
                    }
                }
            }
            8 => {
                let gone = self.forget(range, |_| true, flag);
                assert_eq!(if flag { self.map.forget_untrue(range) } else { self.map.forget(range) }, gone);
            }
            9 => {
                let clean = Seq(pick as u64 % self.next.0);
                let gone = self.forget(range, |v| !v.dirty, true);
                self.recalled.retain(|_, seq| *seq > clean);
                self.recalled.extend(gone.iter().filter(|g| g.seq > clean).map(|g| (g.block, g.seq)));
                assert_eq!(self.map.forget_clean(range, clean), gone);
            }
            10 => {
                if let Some(v) = picked.filter(|v| !v.tracked) {
                    if flag {
                        self.map.destage_begins(v.slot)
                    } else {
                        self.map.destage_fails(v.slot)
                    }
                    if pick.is_multiple_of(3) {
                        assert_eq!(self.map.cannot_read(v.slot), v.unreadable);
                    } else {
                        self.map.try_reading(v.slot);
                    }
                    self.versions[at % many].unreadable = pick.is_multiple_of(3);
                }
            }
            11 => {
                if let Some(v) = picked {
                    self.map.used(v.slot);
                    // What is judged worth it goes to the log's head.
                    if let Some(list) = self.map.judge(v.slot) {
                        assert!(v.tracked && v.kind == SlotKind::Data);
                        let slot = self.put(v.block, v.kind, false, false);
                        self.map.readmit(slot, list);
                        self.current(v.block).unwrap().tracked = true;
                    } else {
                        assert!(!v.tracked || v.kind != SlotKind::Data, "what is used stays");
                    }
                }
            }
            12 | 13 => {
                let is_clean =
                    |s: &crate::map::segments::Segment| s.dirty == 0 && s.state == SegmentState::Sealed;
                while self.map.segments.tail().is_some_and(|i| is_clean(self.map.segments.get(i))) {
                    self.tail = self.map.segments.begin_retiring().unwrap() + 1;
                }
                if flag {
                    self.map.retire_below(self.tail);
                    let first = self.map.segments.first_seq();
                    self.versions.retain(|v| v.seq >= first);
                }
            }
            _ => {
                if self.map.segments.dirty() == 0 {
                    let gone = self.map.void_all();
                    assert_eq!(gone.len(), self.versions.iter().filter(|v| v.current).count());
                    self.versions.iter_mut().for_each(|v| (v.current, v.tracked) = (false, false));
                }
            }
        }
    }

    fn check(&self, pick: usize) {
        let (map, versions) = (&self.map, &self.versions);
        for block in (0..BLOCKS).map(BlockNo) {
            let current = versions.iter().find(|v| v.block == block && v.current).map(|v| v.slot);
            assert_eq!(map.lookup(block), current, "{block}");
        }
        for v in versions {
            let s = map.segments.slot(v.slot);
            assert_eq!((s.block(), map.segments.seq(v.slot), s.kind()), (v.block, v.seq, v.kind));
            assert_eq!(
                (s.has(DIRTY), s.has(TRACKED), map.is_current(v.slot)),
                (v.dirty, v.tracked, v.current),
                "{v:?}"
            );
            assert!(!v.tracked || v.current && !v.dirty, "{v:?}");
        }
        let count = |what: fn(&&Version) -> bool| versions.iter().filter(what).count() as u64;
        assert_eq!(map.segments.dirty(), count(|v| v.dirty));
        assert_eq!(map.segments.lost(), count(|v| v.dirty && v.kind == SlotKind::Poison));
        let hopeless = count(|v| v.dirty && (v.unreadable || v.kind == SlotKind::Poison));
        assert_eq!(map.segments.all_hopeless(), hopeless == count(|v| v.dirty));
        assert_eq!(map.index.len() as u64, count(|v| v.current));
        // Each list of replacement has its slots, and no more.
        let frequent = |v: &&Version| map.segments.slot(v.slot).has(FREQUENT);
        let (frequent, recent): (Vec<_>, Vec<_>) = versions.iter().filter(|v| v.tracked).partition(frequent);
        assert_eq!(map.replacement.tracked(), (recent.len() as u64, frequent.len() as u64));
        let after = Seq(pick as u64 % self.next.0);
        let dirty = versions.iter().filter(|v| v.dirty && v.seq > after).map(|v| (v.seq, v.slot));
        assert!(map.segments.dirty_after(after).eq(dirty));
        let oldest = versions.iter().find(|v| v.dirty).map(|v| Self::time(v.seq));
        assert_eq!(map.oldest_dirty_ns(), oldest);
        let there =
            versions.iter().find(|v| v.dirty && v.kind != SlotKind::Poison).map(|v| Self::time(v.seq));
        assert_eq!(map.oldest_dirty_or_young_ns(Self::time(self.next), 0), there);
        let range = BlockRange::new(BlockNo(pick as u64 % BLOCKS), 7);
        let newest =
            self.recalled.iter().filter(|(block, _)| range.contains(**block)).map(|(_, seq)| *seq).max();
        assert_eq!(map.recalled_upto(range), newest.unwrap_or_default());
        // What is untrue and in the log is named, and nothing that is cached.
        let named = map.untrue_blocks().unwrap();
        let is_named = |block: BlockNo| named.iter().any(|range| range.contains(block));
        for v in versions {
            assert!(!v.untrue || is_named(v.block) || map.lookup(v.block).is_some(), "{v:?} is believed");
            assert!(!(v.current && is_named(v.block)), "{v:?} is not believed");
        }
    }
}

impl Version {
    fn gone(&self) -> Gone {
        Gone { block: self.block, slot: self.slot, seq: self.seq, was_dirty: self.dirty }
    }
}

proptest! {
    /// M1 to M5, whatever happens in whatever order: what a lookup finds, what is dirty and since when, what replacement knows, what is
    /// not believed.
    #[test]
    fn behaves_like_a_list_of_versions(
        ops in proptest::collection::vec((0u8..15, any::<u16>(), any::<bool>()), 1..250),
    ) {
        let mut model = Model::new();
        for (op, pick, flag) in ops {
            model.step(op, pick.into(), flag);
            model.check(pick.into());
        }
    }
}
