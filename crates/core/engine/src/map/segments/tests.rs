//! The table against a model that keeps what it must know plainly.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, PartialEq)]
struct PlainSlot {
    slot: SlotRef,
    seq: Seq,
    lost: bool,
    current: bool,
    dirty: bool,
    unreadable: bool,
}

#[derive(Default)]
struct Plain {
    slots: Vec<PlainSlot>,
    pins: u32,
    complete: bool,
    retiring: bool,
}

impl Plain {
    fn count(&self, what: impl Fn(&PlainSlot) -> bool) -> usize {
        self.slots.iter().filter(|s| what(s)).count()
    }

    fn is_clean(&self) -> bool {
        self.complete && self.count(|s| s.dirty) == 0
    }
}

proptest! {
    /// Segments go round: taken when free, in the order in which they were freed; freed when nothing reads them.
    /// The counts are those of the slots, and what is dirty is found in the order of the log.
    #[test]
    fn behaves_like_a_ring(ops in proptest::collection::vec((0u8..12, any::<u16>()), 1..600)) {
        const COUNT: u32 = 5;
        let mut table = SegmentTable::new(COUNT, Planted::default());
        let mut plain: BTreeMap<u32, Plain> = BTreeMap::new();
        let (mut live, mut draining): (VecDeque<u32>, VecDeque<u32>) = Default::default();
        let mut free: VecDeque<u32> = (0..COUNT).collect();
        let (mut opened, mut next) = (0, Seq(1));
        for (op, pick) in ops {
            let pick = usize::from(pick);
            let segment = |l: &VecDeque<u32>| l.get(pick % l.len().max(1)).copied();
            match op {
                0 => {
                    prop_assert_eq!(table.take_free(), free.front().copied());
                    if let Some(index) = free.pop_front() {
                        opened += 1;
                        table.open(index, opened, next, 0, 1);
                        live.push_back(index);
                        plain.insert(index, Plain::default());
                    }
                }
                // A record of one block or of two; what is in the log becomes current later, but in its order.
                1..4 => if let Some(index) = live.back().copied().filter(|i| !plain[i].complete) {
                    let p = plain.get_mut(&index).unwrap();
                    let first = table.get(index).first_seq;
                    for _ in 0..1 + pick % 2 {
                        let lost = pick % 3 == 0;
                        let kind = if lost { SlotKind::Poison } else { SlotKind::Zero };
                        let slot = table.push(index, Slot::new(BlockNo(pick as u64), 0, 0, kind, next, first));
                        table.became_current(slot, op != 1);
                        p.slots.push(PlainSlot { slot, seq: next, lost, current: true, dirty: op != 1, unreadable: false });
                    }
                    table.get_mut(index).last_seq = next;
                    next = next.next();
                },
                4..7 => if let Some(p) = segment(&live).and_then(|i| plain.get_mut(&i)) {
                    let of = |s: &&mut PlainSlot| s.current || op == 4 && s.dirty;
                    let skipped = pick % p.slots.len().max(1);
                    let Some(s) = p.slots.iter_mut().skip(skipped).find(of) else { continue };
                    match op {
                        4 => table.became_clean(s.slot),
                        _ => table.ceased_current(s.slot, op == 5),
                    }
                    s.current &= op == 4;
                    s.dirty &= op == 5;
                },
                7 => if let Some(index) = live.iter().copied().find(|i| !plain[i].complete) {
                    table.get_mut(index).state = SegmentState::Sealed;
                    plain.get_mut(&index).unwrap().complete = true;
                },
                8 => if let Some(index) = segment(&live) {
                    table.pin(index);
                    plain.get_mut(&index).unwrap().pins += 1;
                },
                9 => if let Some(index) = live.iter().copied().find(|i| !plain[i].retiring).filter(|i| plain[i].is_clean()) {
                    let place = table.get(index).seq;
                    prop_assert_eq!(table.begin_retiring(), Some(place));
                    plain.get_mut(&index).unwrap().retiring = true;
                },
                10 => if let Some(p) = segment(&live).and_then(|i| plain.get_mut(&i))
                    && let Some(s) = p.slots.get_mut(pick % 7) {
                    s.unreadable = !s.unreadable;
                    table.mark(s.slot, UNREADABLE, s.unreadable);
                },
                _ => {
                    let all: VecDeque<u32> = draining.iter().chain(&live).copied().collect();
                    if let Some(p) = segment(&all).and_then(|i| plain.get_mut(&i)).filter(|p| p.pins > 0) {
                        p.pins -= 1;
                        table.unpin(segment(&all).unwrap());
                    } else if let Some(index) = live.front().copied().filter(|i| plain[i].retiring) {
                        for s in plain[&index].slots.iter().filter(|s| s.current) {
                            table.ceased_current(s.slot, false);
                        }
                        table.retire(index);
                        live.pop_front();
                        draining.push_back(index);
                    }
                }
            }
            while let Some(index) = draining.front().copied().filter(|i| plain[i].pins == 0) {
                draining.pop_front();
                free.push_back(index);
                plain.remove(&index);
            }
            prop_assert_eq!(&table.live, &live);
            prop_assert_eq!(&table.free, &free);
            prop_assert_eq!(&table.draining, &draining);
            for index in &live {
                prop_assert_eq!(table.get(*index).dirty as usize, plain[index].count(|s| s.dirty));
                prop_assert_eq!(table.get(*index).current as usize, plain[index].count(|s| s.current));
            }
            let sum = |what: fn(&PlainSlot) -> bool| live.iter().map(|i| plain[i].count(what)).sum::<usize>();
            prop_assert_eq!(table.dirty() as usize, sum(|s| s.dirty));
            prop_assert_eq!(table.lost() as usize, sum(|s| s.dirty && s.lost));
            prop_assert_eq!(table.all_hopeless(), sum(|s| s.dirty && !s.lost && !s.unreadable) == 0);
            prop_assert_eq!(table.held(), live.iter().skip_while(|i| plain[i].is_clean()).count());
            let retiring = live.iter().take_while(|i| plain[i].retiring).count();
            prop_assert_eq!((table.retiring(), table.tail()), (retiring, live.get(retiring).copied()));
            let with_dirty = live.iter().copied().filter(|i| plain[i].count(|s| s.dirty) > 0);
            prop_assert!(table.with_dirty().eq(with_dirty));
            for after in [Seq(0), Seq(pick as u64 % next.0), next] {
                let slots = live.iter().flat_map(|i| &plain[i].slots);
                let dirty = slots.filter(|s| s.dirty && s.seq > after).map(|s| (s.seq, s.slot));
                prop_assert!(table.dirty_after(after).eq(dirty));
            }
            let place = opened.saturating_sub(pick as u64 % 7);
            let from = live.iter().map(|i| table.get(*i).seq).filter(|seq| *seq >= place);
            prop_assert!(table.live_from(place).map(|s| s.seq).eq(from));
        }
    }
}

/// What is dirty is found without a look at what is clean before it, in the segment or in others.
#[test]
fn the_oldest_dirty_slot_is_found_at_once() {
    let mut table = SegmentTable::new(3000, Planted::default());
    for n in 0..3000 {
        let first = Seq(u64::from(n) * 10 + 1);
        table.open(n, u64::from(n) + 1, first, 0, 1);
        for k in 0..10 {
            let slot = Slot::new(BlockNo(k), 0, 0, SlotKind::Data, Seq(first.0 + k), first);
            let slot = table.push(n, slot);
            table.became_current(slot, n >= 2995 && k > 5);
        }
        table.get_mut(n).last_seq = Seq(first.0 + 9);
    }
    let before = table.visits();
    let (seq, slot) = table.dirty_after(Seq(0)).next().unwrap();
    assert_eq!((seq, slot), (Seq(29_957), SlotRef::new(2995, 6)));
    assert!(table.visits() - before <= 2, "{} visits", table.visits() - before);
    let before = table.visits();
    assert_eq!(table.dirty_after(Seq(29_990)).next().unwrap().0, Seq(29_997));
    assert!(table.visits() - before <= 3, "{} visits", table.visits() - before);
}
