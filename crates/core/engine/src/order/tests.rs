//! The order as a whole: whose turn it is, when a set ends, what a change of policy means.

use forebay_block::BlockNo;

use super::*;
use crate::map::sample::Sample;

fn settings(write_policy: WritePolicy) -> Settings {
    Settings { write_policy, ..Settings::default() }
}

fn ordered() -> Order {
    Order::new(&settings(WritePolicy::Ordered), false, false)
}

fn journaled() -> Order {
    Order::new(&settings(WritePolicy::Journaled), true, false)
}

/// Everything that is written is durable, and nothing is on its way.
fn facts(written: u64) -> Facts {
    Facts { written: Seq(written), durable: Seq(written), idle: true, ..Facts::default() }
}

#[test]
fn whose_turn_it_is() {
    const RANGE: BlockRange = BlockRange { first: BlockNo(7), count: 2 };
    struct Case {
        asking: Asking,
        held: bool,
        supersedes: bool,
        own: Option<SlotKind>,
        journaled: bool,
        catching_up: bool,
        turn: Turn,
    }
    let asking = Asking { after: Seq(5), recorded: Seq(5), committed: Seq(0), latched: false };
    let case = Case {
        asking,
        held: false,
        supersedes: false,
        own: None,
        journaled: false,
        catching_up: false,
        turn: Turn::Now,
    };
    let early = Asking { recorded: Seq(4), ..asking };
    let committed = Asking { committed: Seq(5), ..early };
    for (what, case) in [
        ("all is recorded", Case { ..case }),
        ("it is not", Case { asking: early, turn: Turn::Waits, ..case }),
        ("a group has it", Case { asking: committed, journaled: true, ..case }),
        ("groups do not count", Case { asking: committed, turn: Turn::Waits, ..case }),
        (
            "groups do not count yet",
            Case { asking: committed, journaled: true, catching_up: true, turn: Turn::Waits, ..case },
        ),
        ("a replay would write over it", Case { held: true, turn: Turn::Waits, ..case }),
        ("older versions would come back", Case { supersedes: true, turn: Turn::Waits, ..case }),
        (
            "a log that has failed brings nothing back",
            Case { supersedes: true, asking: Asking { latched: true, ..asking }, ..case },
        ),
        ("its own is on its way", Case { own: Some(SlotKind::Data), turn: Turn::Waits, ..case }),
        ("its own zeroes are", Case { own: Some(SlotKind::Zero), turn: Turn::Waits, ..case }),
        ("its own is lost, and all before is recorded", Case { own: Some(SlotKind::Poison), ..case }),
        (
            "not all before what is lost is recorded",
            Case {
                asking: Asking { after: Seq(0), recorded: Seq(4), ..asking },
                own: Some(SlotKind::Poison),
                turn: Turn::Waits,
                ..case
            },
        ),
    ] {
        let mut order = if case.journaled { journaled() } else { ordered() };
        if case.catching_up {
            order.catch_up(PartKey(1));
        }
        let mut sample = Sample::new();
        (1..=5).for_each(|_| drop(sample.record(1, &[])));
        // Record 6.
        let own = case.own.map(|kind| sample.record(1, &[(7, kind)]).1[0]);
        let (held, supersedes) = (|| case.held, || case.supersedes);
        let turn = order.turn_of(&sample.map, case.asking, RANGE, own.into_iter(), held, supersedes);
        assert_eq!(turn, case.turn, "{what}");
    }
}

#[test]
fn who_waits_for_what_is_lost_gives_up() {
    let asking = Asking { after: Seq(9), recorded: Seq(0), committed: Seq(0), latched: false };
    let range = |block| BlockRange::new(BlockNo(block), 1);
    let turn = |order: &Order, sample: &Sample, block| {
        order.turn_of(&sample.map, asking, range(block), std::iter::empty(), || false, || false)
    };
    let (mut sample, mut order) = (Sample::new(), ordered());
    sample.block(1);
    order.catch_up(PartKey(0));
    assert_eq!(turn(&order, &sample, 2), Turn::Waits, "nothing is lost");
    sample.record(1, &[(3, SlotKind::Poison)]);
    assert_eq!(turn(&order, &sample, 2), Turn::GivesUp);
    assert_eq!(turn(&order, &sample, 3), Turn::GivesUp, "the lost block itself");
    assert_eq!(turn(&order, &sample, 1), Turn::Waits, "an older version of its own block");
    assert_eq!(turn(&ordered(), &sample, 2), Turn::Waits, "the order is kept");
}

#[test]
fn a_set_ends_when_all_of_it_is_there() {
    let lost = |map: &Map, slot: SlotRef| map.segments().slot(slot).kind() == SlotKind::Poison;
    let (mut sample, mut order) = (Sample::new(), ordered());
    // Record 3 depends on 2.
    let slots = [(9, 1), (9, 2), (1, 3)]
        .map(|(distance, block)| sample.record(distance, &[(block, SlotKind::Data)]).1[0]);
    assert_eq!(order.set_end(&sample.map, facts(3), 100), Some(Seq(2)));
    order.begin_set(Seq(2), false);
    let members = order.members(&mut sample.map, |_, _, _| false);
    assert_eq!(members, [(BlockNo(1), slots[0]), (BlockNo(2), slots[1])]);
    assert_eq!(order.end_set(&mut sample.map, facts(3), lost), Ended::NotYet);
    sample.clean(slots[0]);
    assert!(order.slide_on(&sample.map, facts(3)) && order.progress() == Some(Seq(1)));
    assert!(!order.slide_on(&sample.map, facts(3)), "no further");
    assert!(!order.may_end(&sample.map, facts(3)));
    sample.clean(slots[1]);
    assert!(!order.may_end(&sample.map, Facts { idle: false, ..facts(3) }), "something is on its way");
    assert!(order.may_end(&sample.map, facts(3)));
    assert_eq!(order.end_set(&mut sample.map, facts(3), lost), Ended::Complete);
    assert_eq!((order.progress(), order.set_upto()), (Some(Seq(2)), None));
    assert!(order.is_consistent());
    // What is lost breaks the order, and leaves the set.
    let marks = sample.record(9, &[(4, SlotKind::Poison)]).1;
    assert_eq!(order.set_end(&sample.map, facts(4), 100), Some(Seq(4)), "what is lost holds nobody up");
    order.begin_set(Seq(4), false);
    assert_eq!(order.end_set(&mut sample.map, facts(4), lost), Ended::NotYet);
    sample.clean(slots[2]);
    assert_eq!(order.end_set(&mut sample.map, facts(4), lost), Ended::Lost(marks.clone()));
    assert!(order.is_catching_up() && order.progress() == Some(Seq(2)));
    let latched = Facts { latched: true, ..facts(4) };
    assert_eq!(order.end_set(&mut sample.map, latched, lost), Ended::Complete, "no log takes the marks");
}

#[test]
fn a_set_has_enough_blocks_and_whole_records() {
    let mut sample = Sample::new();
    for block in [1, 3, 5] {
        sample.record(99, &[(block, SlotKind::Data), (block + 1, SlotKind::Data)]);
    }
    for (enough, end) in [(1, 1), (2, 1), (3, 2), (4, 2), (5, 7), (100, 7)] {
        assert_eq!(ordered().set_end(&sample.map, facts(7), enough), Some(Seq(end)), "{enough}");
    }
}

#[test]
fn what_a_set_may_hold() {
    let mut sample = Sample::new();
    // Each depends on the one before.
    for block in 1..=6 {
        sample.block(block);
    }
    let latched = Facts { latched: true, found: Some(Seq(0)), durable: Seq(3), ..facts(6) };
    let mut catching_up = ordered();
    catching_up.catch_up(PartKey(0));
    let mut groups_catch_up = journaled();
    groups_catch_up.catch_up(PartKey(0));
    let committed = Facts { committed: Seq(4), ..facts(6) };
    for (what, order, facts, end) in [
        ("one after the other", ordered(), facts(6), Some(1)),
        ("until it has caught up, in any order", catching_up, facts(6), Some(6)),
        ("what is committed", journaled(), committed, Some(4)),
        ("nothing is committed", journaled(), facts(6), None),
        ("groups, in any order", groups_catch_up, committed, Some(6)),
        ("nothing is written", ordered(), facts(0), None),
        ("the log has failed, and the journal speaks of what it durably has", ordered(), latched, Some(1)),
    ] {
        assert_eq!(order.set_end(&sample.map, facts, 100), end.map(Seq), "{what}");
    }
}

#[test]
fn what_a_change_of_policy_means() {
    let by = |write_policy, order| Settings { write_policy, order, ..Settings::default() };
    let (strict, lax) = (Dependence::Completion, Dependence::Barrier);
    use WritePolicy::{Journaled, Ordered, WriteBack};
    for (before, after, empty, followed, catches_up) in [
        (by(Ordered, strict), by(Ordered, strict), true, Followed::As, false),
        (by(Ordered, strict), by(Ordered, lax), true, Followed::As, false),
        // What counted for nothing between barriers may be on the backing.
        (by(Ordered, lax), by(Ordered, strict), true, Followed::As, true),
        (by(Ordered, strict), by(Journaled, strict), true, Followed::Groups, false),
        (by(Journaled, strict), by(Ordered, strict), true, Followed::Groups, false),
        // Groups are left: later.
        (by(Journaled, strict), by(Ordered, strict), false, Followed::As, false),
        (by(Journaled, strict), by(WriteBack, strict), false, Followed::As, false),
        (by(Journaled, strict), by(WriteBack, strict), true, Followed::Ends, false),
        (by(WriteBack, strict), by(Ordered, strict), true, Followed::Begins, false),
    ] {
        let mut order = Order::new(&before, true, false);
        assert_eq!(order.follow(&after, true, empty, facts(0)), followed, "{before:?} {after:?}");
        assert_eq!(order.is_catching_up(), catches_up, "{before:?} {after:?}");
        assert_eq!(order.is_leaving(), !empty);
        assert_eq!(order.keeps_versions(), before.write_policy != WriteBack, "not before its turn");
    }
}

#[test]
fn what_the_last_run_left_is_trusted_if_it_kept_as_much() {
    let (no, barriers, completion) = (Consistent::No, Consistent::Barriers, Consistent::Completion);
    let settings = |order| Settings { order, ..settings(WritePolicy::Ordered) };
    for (by, kept, says, journal_left, consistent) in [
        (Dependence::Completion, completion, None, false, true),
        (Dependence::Completion, barriers, None, false, false),
        (Dependence::Completion, no, None, false, false),
        (Dependence::Barrier, barriers, None, false, true),
        (Dependence::Barrier, completion, None, false, true),
        // Groups may be left where this run does not look.
        (Dependence::Completion, completion, None, true, false),
        (Dependence::Completion, completion, Some(true), true, true),
        (Dependence::Completion, completion, Some(false), false, false),
    ] {
        let mut order = Order::new(&settings(by), says.is_some(), journal_left);
        order.begin(&mut Sample::new().map, Seq(3), None);
        order.trust(&mut Sample::new().map, facts(5), kept, says);
        assert_eq!(order.is_consistent(), consistent, "{by:?} {kept:?} {says:?} {journal_left}");
    }
}

#[test]
fn what_the_journal_has_is_clean() {
    let mut sample = Sample::new();
    let slots: Vec<SlotRef> = (1..=3).map(|block| sample.block(block)).collect();
    let mut order = journaled();
    assert_eq!(order.begin(&mut sample.map, Seq(0), Some(Seq(2))), Seq(2));
    assert_eq!(slots.iter().map(|slot| sample.is_dirty(*slot)).collect::<Vec<_>>(), [false, false, true]);
    assert_eq!(order.begin(&mut sample.map, Seq(3), Some(Seq(2))), Seq(3), "the log knows better");
}

#[test]
fn which_versions_are_kept() {
    let mut sample = Sample::new();
    let data = sample.block(1);
    let lost = sample.record(1, &[(2, SlotKind::Poison)]).1[0];
    let unreadable = sample.block(3);
    sample.map.cannot_read(unreadable);
    let clean = sample.block(4);
    sample.clean(clean);
    for (what, slot, keeps, breaks) in [
        ("data", data, true, false),
        ("lost: what replaces it is not on the backing yet", lost, false, true),
        ("unreadable", unreadable, false, true),
        ("clean", clean, false, false),
    ] {
        let mut order = ordered();
        assert_eq!(order.keeps(&sample.map, slot, false, PartKey(1)), keeps, "{what}");
        assert_eq!(order.is_catching_up(), breaks, "{what}");
        let mut none = Order::new(&settings(WritePolicy::WriteBack), false, false);
        assert!(!none.keeps(&sample.map, slot, false, PartKey(1)) && !none.is_catching_up());
    }
}

#[test]
fn how_far_recovery_would_go_on() {
    let mut order = ordered();
    order.begin(&mut Sample::new().map, Seq(5), None);
    for (latched, found, recorded) in
        [(false, None, 3), (true, None, 5), (true, Some(4), 4), (false, Some(4), 3)]
    {
        let facts = Facts { clean: Seq(3), latched, found: found.map(Seq), ..facts(9) };
        assert_eq!(order.recorded(facts), Seq(recorded), "{latched} {found:?}");
    }
}
