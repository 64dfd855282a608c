//! The stretch against a plain search, and the choice as a table.

use proptest::prelude::*;

use super::*;
use crate::map::sample::Sample;

const KINDS: [SlotKind; 3] = [SlotKind::Data, SlotKind::Zero, SlotKind::Poison];

/// Blocks of one record, with what they hold: 0 and 1 data, 2 zeroes, 3 lost, 4 unreadable.
type Record = std::collections::BTreeMap<u64, u8>;

fn kind(of: u8) -> SlotKind {
    KINDS[[0, 0, 1, 2, 0][usize::from(of)]]
}

proptest! {
    /// The longest stretch of whole records, each of which may go and still fits.
    #[test]
    fn takes_what_a_plain_search_finds(
        records in proptest::collection::vec(proptest::collection::btree_map(0u64..6, prop_oneof![20 => 0u8..3, 1 => 3u8..5], 0..4), 0..12),
        (after, durable, room, most) in (0u64..4, 0u64..14, 0u64..12, 1usize..8),
    ) {
        let mut sample = Sample::new();
        let mut slots: Vec<Vec<(u64, SlotRef)>> = Vec::new();
        for record in &records {
            let blocks: Vec<(u64, SlotKind)> = record.iter().map(|(block, of)| (*block, kind(*of))).collect();
            let made = sample.record(1, &blocks).1;
            for (slot, _) in made.iter().zip(record.values()).filter(|(_, of)| **of == 4) {
                sample.map.cannot_read(*slot);
            }
            slots.push(record.keys().copied().zip(made).collect());
        }
        let is_lost = |map: &Map, slot: SlotRef| map.segments().slot(slot).kind() == SlotKind::Poison;
        let bounds = Bounds { after: Seq(after), durable: Seq(durable), room: room << 12, most };
        let found = look(&sample.map, bounds, is_lost, Planted::default());

        let (mut newest, mut upto, mut data) = (BTreeMap::new(), after, 0);
        let (mut all, mut full, mut lost) = (true, false, false);
        for (n, record) in records.iter().enumerate() {
            let seq = n as u64 + 1;
            if seq <= after || seq > durable || record.is_empty() {
                continue;
            }
            // The first that cannot go says why.
            let bad = record.values().find(|of| **of > 2);
            let with: Record = newest.keys().chain(record.keys()).map(|block| (*block, 0)).collect();
            let blocks = data + record.values().filter(|of| **of < 2).count() as u64;
            full = bad.is_none() && (1 + blocks) > room;
            if bad.is_some() || full || newest.len() >= most {
                (all, lost) = (false, bad == Some(&3));
                break;
            }
            data = blocks;
            prop_assert!(with.len() >= newest.len());
            newest.extend(slots[n].iter().copied());
            upto = seq;
        }
        if all {
            upto = upto.max(durable);
        }
        let newest: BTreeMap<BlockNo, SlotRef> = newest.into_iter().map(|(block, slot)| (BlockNo(block), slot)).collect();
        prop_assert_eq!((found.upto, found.newest), (Seq(upto), newest));
        prop_assert_eq!((found.all, found.full, found.lost), (all, full, lost));
    }
}

#[test]
fn the_choice() {
    let some = Choice {
        empty: false,
        all: true,
        full: false,
        lost: false,
        at_point: false,
        whole: false,
        fits_empty: true,
        ring_empty: true,
        stranded: false,
    };
    let none = Choice { empty: true, ..some };
    let wait = |hurry, gives_up| Verdict::Wait { hurry, gives_up };
    for (what, choice, verdict) in [
        ("all there is", some, Verdict::Take),
        ("a part", Choice { all: false, ..some }, Verdict::Take),
        ("a part that fits", Choice { all: false, full: true, ring_empty: false, ..some }, Verdict::Take),
        ("nothing", none, wait(false, false)),
        ("nothing before what is unreadable", Choice { all: false, ..none }, wait(false, false)),
        ("nothing before what is lost", Choice { all: false, lost: true, ..none }, wait(false, true)),
        ("nothing fits yet", Choice { all: false, full: true, ring_empty: false, ..none }, wait(true, false)),
        ("nothing would ever fit", Choice { all: false, full: true, ..none }, wait(true, true)),
        ("nothing durable, and the cache fails", Choice { stranded: true, ..none }, wait(false, true)),
        (
            "the cache fails, but room comes",
            Choice { all: false, full: true, ring_empty: false, stranded: true, ..none },
            wait(true, false),
        ),
        ("a point without blocks", Choice { at_point: true, ..none }, Verdict::Take),
        (
            "a point without blocks, and no room",
            Choice { at_point: true, fits_empty: false, ring_empty: false, ..none },
            wait(true, false),
        ),
        ("all of a point", Choice { at_point: true, whole: true, ..some }, Verdict::Take),
        (
            "a part of a point, and room comes",
            Choice { at_point: true, whole: true, all: false, full: true, ring_empty: false, ..some },
            wait(true, false),
        ),
        (
            "a part of a point, and it never fits wholly",
            Choice { at_point: true, whole: true, all: false, full: true, ..some },
            Verdict::Take,
        ),
        (
            "a part of a point, the rest of which is lost",
            Choice { at_point: true, whole: true, all: false, lost: true, ..some },
            Verdict::Take,
        ),
        (
            "a part of a point, the rest of which may be read yet",
            Choice { at_point: true, whole: true, all: false, ..some },
            wait(false, false),
        ),
    ] {
        assert_eq!(choice.verdict(), verdict, "{what}");
    }
}

#[test]
fn counts_what_is_dirty_and_how_old_it_is() {
    let mut sample = Sample::new();
    let slots: Vec<SlotRef> = (0..4).map(|block| sample.block(block)).collect();
    let mut open = Open::default();
    open.added(Nanos(5));
    open.added(Nanos(9));
    assert_eq!((open.blocks(), open.since()), (2, Some(Nanos(5))));
    open.count(&sample.map, Seq(1), || Nanos(3));
    assert_eq!((open.blocks(), open.since()), (3, Some(Nanos(3))));
    slots.into_iter().for_each(|slot| sample.clean(slot));
    open.count(&sample.map, Seq(1), || Nanos(3));
    assert_eq!((open.blocks(), open.since()), (0, None));
}
