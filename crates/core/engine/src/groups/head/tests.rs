//! What the head says, for each state, and when that is worth a write.

use std::sync::Arc;

use forebay_block::BlockNo;
use forebay_format::journal::{Group as Descriptor, GroupEntry};
use proptest::prelude::*;

use super::*;
use crate::groups::points::Point;
use crate::groups::ring::InRing;
use crate::groups::tests::{facts, head, with_ends};

/// Everything on which the head depends.
struct World {
    heads: Heads,
    facts: Facts,
    claims: bool,
    ring: Ring,
    group: Option<Group>,
    points: Points,
    map: Map,
}

impl World {
    fn new(head: Head) -> Self {
        let (ring, points, map) = (Ring::default(), Points::default(), Map::of_segments(8));
        Self { heads: Heads::new(Some(head)), facts: facts(), claims: true, ring, group: None, points, map }
    }

    fn truth(&self) -> Truth<'_> {
        let Self { facts, claims, ring, group, points, map, .. } = self;
        let (facts, claims, group) = (*facts, *claims, group.as_ref());
        Truth { facts, claims, map, ring, group, points, planted: Planted::default() }
    }

    fn wanted(&self) -> Option<Head> {
        self.heads.wanted(self.truth())
    }

    /// A group of one block, of record `upto`, in the ring.
    fn in_ring(&mut self, upto: u64) {
        let position = self.ring.newest().map_or(0, |group| group.end);
        let entry = GroupEntry { block: BlockNo(upto), seq: Seq(upto), checksum: 0, zero: false };
        let moment = Moment { group: upto, seq: Seq(upto), ..Moment::default() };
        self.ring.push(InRing { position, end: position + 8192, moment, entries: Arc::new(vec![entry]) });
    }

    /// A group is under way that ends behind record 9, and has been flushed.
    fn flushed(&mut self, common: Option<Common>) -> &mut Group {
        let moment = Moment { group: 5, seq: Seq(9), point: 5, label: "p".into(), ..Moment::default() };
        let descriptor =
            Descriptor { cache_id: [2; 16], generation: 3, position: 0, moment, entries: Vec::new() };
        let point = Some(Point::found(&descriptor.moment, common));
        let mut group = Group::new(descriptor, Vec::new(), point, Nanos(0), 0);
        assert!(group.next().is_some());
        group.flushed(true, 0);
        self.group.insert(group)
    }
}

fn consistent(head: &Head) -> (bool, u64, u64) {
    (head.consistent, head.applied.seq.0, head.committed.seq.0)
}

fn inconsistent() -> Head {
    Head { consistent: false, ..head(16) }
}

#[test]
fn consistent_is_said_only_when_it_is_true_and_durable() {
    for (what, consistent_before, claims, progress, durable, latched, journaled, expected) in [
        ("nothing may be claimed", true, false, 5, 9, false, true, Some((false, 0, 0))),
        ("nothing may be claimed, nor was it", false, false, 5, 9, false, true, Some((false, 0, 0))),
        ("it begins with what is on the backing", false, true, 5, 9, false, true, Some((true, 5, 5))),
        ("it begins with all that is durable", false, true, 9, 9, false, true, Some((true, 9, 9))),
        ("the log would not know what it begins with", false, true, 5, 4, false, true, None),
        ("nothing has changed", true, true, 5, 9, false, true, Some((true, 2, 2))),
        ("under ordered: what is durably recorded", true, true, 5, 9, false, false, Some((true, 4, 4))),
        ("under ordered, and the log fails", true, true, 5, 9, true, false, Some((true, 5, 5))),
        (
            "under ordered, and the log fails: what it durably has",
            true,
            true,
            5,
            3,
            true,
            false,
            Some((true, 3, 3)),
        ),
    ] {
        let mut world = World::new(if consistent_before { head(16) } else { inconsistent() });
        let (progress, durable, clean) = (Seq(progress), Seq(durable), Seq(4));
        world.facts = Facts { progress, durable, clean, latched, journaled, ..world.facts };
        world.claims = claims;
        let wanted = world.wanted();
        assert_eq!(wanted.as_ref().map(consistent), expected, "{what}");
        assert!(wanted.is_none_or(|head| head.update == 1 && head.generation == 3), "{what}");
    }
    assert!(
        World { heads: Heads::new(None), ..World::new(head(16)) }.wanted().is_none(),
        "there is no journal"
    );
}

#[test]
fn it_never_goes_back_behind_what_it_has_said() {
    let mut world = World::new(head(16));
    world.facts = Facts { journaled: false, clean: Seq(0), ..world.facts };
    assert_eq!(world.wanted().map(|head| consistent(&head)), Some((true, 2, 2)));
}

#[test]
fn what_is_not_claimed_leaves_nothing_to_be_done_again() {
    let (mut common, mut before) = (Common { decided: 3, ..Common::default() }, head(16));
    common.prepared = 4;
    before = Head { head: 16384, tail: 8192, prepared: 20480, common, ..before };
    let mut world = World::new(before);
    world.claims = false;
    world.flushed(None);
    let wanted = world.wanted().unwrap();
    assert_eq!((wanted.tail, wanted.head, wanted.prepared), (16384, 16384, 16384));
    assert_eq!((wanted.common.decided, wanted.common.prepared), (0, 0));
}

#[test]
fn groups_are_left_behind_when_they_are_on_the_backing() {
    for (progress, tail, applied) in [(2, 0, 2), (4, 8192, 4), (5, 8192, 4), (6, 16384, 6), (9, 16384, 6)] {
        let mut world = World::new(Head { head: 16384, ..head(16) });
        world.in_ring(4);
        world.in_ring(6);
        world.facts.progress = Seq(progress);
        let wanted = world.wanted().unwrap();
        assert_eq!((wanted.tail, wanted.applied.seq.0), (tail, applied), "{progress}");
        assert_eq!((wanted.head, wanted.committed.seq.0), (16384, 2), "nothing is committed");
    }
}

#[test]
fn a_group_is_committed_when_it_is_flushed_and_not_before() {
    let mut world = World::new(head(16));
    let moment = Moment { group: 5, seq: Seq(9), ..Moment::default() };
    let descriptor =
        Descriptor { cache_id: [2; 16], generation: 3, position: 0, moment, entries: Vec::new() };
    world.group = Some(Group::new(descriptor, Vec::new(), None, Nanos(0), 0));
    let committed = |world: &World| world.wanted().map(|head| (head.head, head.committed.seq.0)).unwrap();
    assert_eq!(committed(&world), (0, 2), "it is written");
    world.group.as_mut().unwrap().next();
    assert_eq!(committed(&world), (0, 2), "it is flushed just now");
    world.group.as_mut().unwrap().flushed(true, 0);
    assert_eq!(committed(&world), (4096, 9));
    world.group.as_mut().unwrap().look(false, 0);
    assert_eq!(committed(&world), (0, 2), "it is given up");
}

#[test]
fn what_it_says_of_common_points() {
    let set = |n: u8| Common { set: [n; 16], names: "a b".into(), ..Common::default() };
    let ours = Common { prepared: 8, ..set(1) };
    let before = |set: &Common| {
        let mut head = head(16);
        head.common = Common { decided: 6, ..set.clone() };
        head
    };
    type Do = fn(&mut Group);
    let prepared: Do = |group| {
        group.prepared(crate::map::sample::Sample::new().map.segments_mut());
    };
    let kept: Do = |group| {
        group.prepared(crate::map::sample::Sample::new().map.segments_mut());
        group.settle(true)
    };
    let alone: Do = |group| {
        group.prepared(crate::map::sample::Sample::new().map.segments_mut());
        group.goes_alone()
    };
    let forgotten: Do = |group| {
        group.prepared(crate::map::sample::Sample::new().map.segments_mut());
        group.settle(false)
    };
    let none: Do = |_| {};
    for (what, told_of, happens, decided, says_prepared, heads, point) in [
        ("it is to be prepared", &set(1), none, 6, 8, (0, 4096), 0),
        ("of another set there were other points", &set(2), none, 0, 8, (0, 4096), 0),
        ("it is prepared", &set(1), prepared, 6, 8, (0, 4096), 0),
        ("all have it", &set(1), kept, 8, 0, (4096, 4096), 5),
        ("it goes alone", &set(1), alone, 0, 0, (4096, 4096), 0),
        ("it is forgotten", &set(1), forgotten, 6, 0, (0, 0), 0),
    ] {
        let mut world = World::new(before(told_of));
        world.facts = Facts { progress: Seq(2), ..with_ends(GroupEnds::Common) };
        happens(world.flushed(Some(ours.clone())));
        let wanted = world.wanted().unwrap();
        assert_eq!((wanted.common.decided, wanted.common.prepared), (decided, says_prepared), "{what}");
        assert_eq!((wanted.head, wanted.prepared), heads, "{what}");
        assert_eq!(wanted.committed.point, point, "{what}");
        // Who shares no points any more says nothing of them.
        world.facts = Facts { progress: Seq(2), ..facts() };
        world.group = None;
        assert_eq!(world.wanted().unwrap().common, Common::default());
    }
}

#[test]
fn a_point_that_is_renounced_is_not_named_but_with_a_new_group() {
    let mut before = head(16);
    (before.committed.point, before.applied.point) = (4, 4);
    let mut world = World::new(before);
    assert_eq!(world.wanted().unwrap().committed.point, 4);
    world.points.renounce();
    let wanted = world.wanted().unwrap();
    assert_eq!((wanted.committed.point, wanted.applied.point), (0, 0));
    world.flushed(None);
    let wanted = world.wanted().unwrap();
    assert_eq!((wanted.committed.point, wanted.applied.point), (5, 0), "the group's own point");
}

#[test]
fn when_it_is_written() {
    let now = facts().now;
    let wanted = |change: fn(&mut Head)| {
        let mut head = Head { update: 1, ..head(16) };
        change(&mut head);
        head
    };
    type Change = fn(&mut Head);
    let (same, commits): (Change, Change) = (|_| {}, |h| h.head = 4096);
    let leaves: Change = |h| h.tail = 4096;
    let moves: Change = |h| h.committed.seq = Seq(8);
    let prepares: Change = |h| h.prepared = 4096;
    let turns: Change = |h| h.consistent = false;
    for (what, change, hurried, renounces, uncertain, written, refreshes) in [
        ("nothing new", same, false, false, false, false, false),
        ("nothing new, whoever waits", same, true, false, false, false, false),
        ("the medium may say something else", same, false, false, true, true, false),
        ("a point is not true any more", same, false, true, false, true, false),
        ("a group is committed", commits, false, false, false, true, false),
        ("a group is prepared", prepares, false, false, false, true, false),
        ("it is not consistent any more", turns, false, false, false, true, false),
        ("groups are left behind", leaves, false, false, false, false, true),
        ("somebody waits for that", leaves, true, false, false, true, false),
        ("the backing has come further", moves, false, false, false, false, true),
        ("somebody waits for that, too", moves, true, false, false, true, false),
    ] {
        let mut heads = Heads::new(Some(head(16)));
        heads.uncertain = uncertain;
        let op = heads.write(wanted(change), now, hurried, renounces, Planted::default());
        assert_eq!((op.is_some(), heads.is_writing()), (written, written), "{what}");
        assert_eq!(heads.refresh_at().is_some(), refreshes, "{what}");
        if refreshes {
            let before = Nanos(now.plus_ms(REFRESH_MS).0 - 1);
            assert!(
                heads.write(wanted(change), before, false, false, Planted::default()).is_none(),
                "{what}"
            );
            let late = now.plus_ms(REFRESH_MS);
            assert!(heads.write(wanted(change), late, false, false, Planted::default()).is_some(), "{what}");
            assert_eq!(heads.refresh_at(), None);
        }
        if let Some(DeviceOp::Write { offset, durable, .. }) = op {
            assert_eq!((offset, durable), (4096, true), "the other copy, durably");
        }
    }
}

#[test]
fn what_may_be_on_the_medium() {
    let named = |point, prepared: u64| {
        let mut head = head(16);
        head.committed.point = point;
        head.common.prepared = prepared;
        head
    };
    let mut heads = Heads::new(Some(named(3, 0)));
    assert_eq!((heads.point(), heads.tells_of_prepared()), (3, false));
    let write = |heads: &mut Heads, head: Head| {
        assert!(
            heads.write(Head { head: 4096, ..head }, Nanos(0), false, false, Planted::default()).is_some()
        );
    };
    write(&mut heads, named(5, 7));
    assert!(heads.is_committing() && heads.point() == 5 && heads.tells_of_prepared());
    // It fails: both may be there.
    let failed = heads.ended().unwrap();
    heads.failed(&failed);
    assert!(heads.is_uncertain() && heads.tells_of_prepared() && heads.durable_says_consistent());
    assert_eq!((heads.point(), heads.common_state()), (3, (0, 0)), "what is known");
    write(&mut heads, named(0, 0));
    let good = heads.ended().unwrap();
    heads.written(good);
    assert!(!heads.is_uncertain() && !heads.tells_of_prepared() && heads.point() == 0);
}

proptest! {
    /// Whatever happens: a head that says "consistent" is as of what is durable in the log, or of a group that was flushed, or of what was
    /// said before; and it only ever says so if that may be claimed.
    #[test]
    fn no_head_says_more_than_is_true(
        (before, claims, journaled, latched) in any::<(bool, bool, bool, bool)>(),
        (progress, durable, clean, in_ring, flushed) in (2u64..9, 2u64..9, 0u64..9, 0u64..3, any::<bool>()),
    ) {
        let mut world = World::new(if before { Head { head: in_ring * 8192, ..head(16) } } else { inconsistent() });
        let clean = Seq(clean.min(durable));
        world.facts = Facts { progress: Seq(progress), durable: Seq(durable), clean, journaled, latched, ..world.facts };
        world.claims = claims;
        (0..in_ring).for_each(|n| world.in_ring(3 + n));
        if flushed {
            world.flushed(None);
        }
        let Some(wanted) = world.wanted() else { return Ok(()) };
        if !wanted.consistent {
            prop_assert!(!claims && wanted.committed.seq == Seq(0) && wanted.tail == wanted.head);
            return Ok(());
        }
        prop_assert!(claims);
        let of_group = flushed && wanted.committed.seq == Seq(9);
        prop_assert!(of_group || wanted.committed.seq.0 <= durable.max(2));
        prop_assert!(wanted.applied.seq.0 <= progress.max(2).max(durable.min(clean.0)) && wanted.applied.seq <= wanted.committed.seq.max(Seq(4)));
        prop_assert!(wanted.tail <= wanted.head && wanted.update == 1);
    }
}
