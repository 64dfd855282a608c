//! Who is told what, and when; what a bypass may do.

use super::*;
use crate::groups::tests::{facts, head, with_ends};

fn journal() -> Journal {
    Journal::new(Some(head(16)), None)
}

fn id(n: u64) -> RequestId {
    RequestId(n)
}

/// Points that commands 1, 2, ... have declared behind these records.
fn marked(upto: &[u64]) -> Points {
    let (mut points, mut journal) = (Points::default(), journal());
    for (n, upto) in (1..).zip(upto) {
        let facts = Facts { written: Seq(*upto), newest_part: PartKey(*upto), ..facts() };
        points.mark(id(n), format!("p{n}"), &mut journal, facts).unwrap();
    }
    points
}

#[test]
fn why_no_point_is_declared() {
    let ordered = |f: Facts| Facts {
        settings: forebay_policy::Settings { write_policy: WritePolicy::Ordered, ..f.settings },
        ..f
    };
    let policy = Some(MarkError::Policy(WritePolicy::Journaled));
    let inconsistent = || Journal::new(Some(Head { consistent: false, ..head(16) }), None);
    for (what, facts, journal, expected) in [
        ("it is", facts(), journal(), None),
        ("groups end at flushes, too", with_ends(GroupEnds::Flushes), journal(), None),
        ("the volume stops", Facts { running: false, ..facts() }, journal(), Some(MarkError::Stopping)),
        ("points are shared", with_ends(GroupEnds::Common), journal(), Some(MarkError::Member)),
        ("there are no groups yet", Facts { journaled: false, ..facts() }, journal(), policy.clone()),
        ("there are no groups soon", Facts { leaving: true, ..facts() }, journal(), policy),
        ("another policy", ordered(facts()), journal(), Some(MarkError::Policy(WritePolicy::Ordered))),
        ("it catches up", Facts { consistent: false, ..facts() }, journal(), Some(MarkError::NotConsistent)),
        ("the medium says nothing yet", facts(), inconsistent(), Some(MarkError::NotConsistent)),
    ] {
        let (mut points, mut journal) = (Points::default(), journal);
        let result = points.mark(id(1), String::new(), &mut journal, facts);
        assert_eq!(result.err(), expected, "{what}");
        assert_eq!(points.is_marked(), expected.is_none(), "{what}");
    }
    let mut many = marked(&[3; MARKS_MAX]);
    let more = many.mark(id(99), String::new(), &mut journal(), facts());
    assert_eq!(more, Err(MarkError::TooMany));
}

#[test]
fn each_is_told_once_its_group_is_committed() {
    let mut points = marked(&[3, 5]);
    let first = points.next().cloned().unwrap();
    assert_eq!((first.upto, first.label.as_str(), first.time_ns), (Seq(3), "p1", facts().wall_ns()));
    // Another group's point tells nobody but counts.
    let other = Point { command: Some(id(9)), ..first.clone() };
    assert_eq!(points.committed(&other, 7), [Told::Point]);
    assert_eq!(points.committed(&first, 8), [Told::Point, Told::Marked(id(1), Ok(8))]);
    let second = points.next().cloned().unwrap();
    assert_eq!(points.committed(&second, 9), [Told::Point, Told::Marked(id(2), Ok(9))]);
    assert!(!points.is_marked() && points.next().is_none());
    assert_eq!(points.committed(&second, 9), [Told::Point], "nobody is told twice");
}

#[test]
fn one_that_is_shared_is_told_when_it_is_prepared() {
    let mut points = Points::default();
    let point = Point { common: Some(Common::default()), ..Point::now(facts(), "c".into(), Some(id(4))) };
    points.mark_cut(point.clone()).unwrap();
    assert_eq!(points.prepared(&point), Some(Told::Common(id(4), Ok(()))));
    assert_eq!(points.prepared(&point), None);
    assert_eq!(points.committed(&point, 5), [Told::Point]);
}

#[test]
fn what_will_not_be_committed_is_told_at_once() {
    let shared = Point { common: Some(Common::default()), ..Point::now(facts(), String::new(), Some(id(2))) };
    let own = Told::Marked;
    for (what, facts, told) in [
        ("nothing is wrong", facts(), vec![Told::Common(id(2), Err(CommonError::NoMember))]),
        ("points are shared now", with_ends(GroupEnds::Common), vec![own(id(1), Err(MarkError::Member))]),
        (
            "the policy is left",
            Facts { leaving: true, ..facts() },
            vec![
                own(id(1), Err(MarkError::Policy(WritePolicy::Journaled))),
                Told::Common(id(2), Err(MarkError::Policy(WritePolicy::Journaled).into())),
            ],
        ),
        (
            "the backing fails",
            Facts { given_up: true, ..facts() },
            vec![own(id(1), Err(MarkError::Failing)), Told::Common(id(2), Err(MarkError::Failing.into()))],
        ),
        (
            "the order is broken",
            Facts { consistent: false, given_up: true, ..facts() },
            vec![
                own(id(1), Err(MarkError::NotConsistent)),
                Told::Common(id(2), Err(MarkError::NotConsistent.into())),
            ],
        ),
    ] {
        let mut points = marked(&[3]);
        points.mark_cut(shared.clone()).unwrap();
        assert_eq!(points.step(&journal(), facts), told, "{what}");
        assert_eq!(points.step(&journal(), facts), [], "{what}: once");
    }
}

#[test]
fn a_flush_is_a_point_only_where_it_is_to_be_one() {
    let (flushes, flush) = (with_ends(GroupEnds::Flushes), |facts| Point::now(facts, String::new(), None));
    let next = |points: &Points| points.next().map(|point| point.upto);
    for (what, facts, upto, expected) in [
        ("it is", flushes, 10, Some(Seq(10))),
        ("groups do not end there", facts(), 10, None),
        ("all is committed", Facts { written: Seq(0), ..flushes }, 0, None),
        ("no point can be declared", Facts { leaving: true, ..flushes }, 10, None),
    ] {
        let mut points = Points::default();
        points.flushed(flush(facts), &journal(), facts);
        assert_eq!(next(&points), expected, "{what} ({upto})");
    }
    let mut points = Points::default();
    points.flushed(flush(flushes), &journal(), flushes);
    assert!(!points.is_marked(), "nobody waits for it");
    points.flushed(flush(Facts { written: Seq(12), ..flushes }), &journal(), flushes);
    assert_eq!(next(&points), Some(Seq(12)), "the last one counts");
    assert_eq!(points.step(&journal(), facts()), []);
    assert_eq!(next(&points), None, "groups end elsewhere now");
    points.flushed(flush(flushes), &journal(), flushes);
    points.committed(&flush(Facts { written: Seq(9), ..flushes }), 1);
    assert_eq!(next(&points), Some(Seq(10)), "a group ends before it");
    points.committed(&flush(flushes), 2);
    assert_eq!(next(&points), None);
    // A mark comes first, and takes its place.
    points.flushed(flush(flushes), &journal(), flushes);
    let later = Facts { written: Seq(15), ..flushes };
    points.mark(id(1), String::new(), &mut journal(), later).unwrap();
    assert_eq!(next(&points), Some(Seq(15)));
}

#[test]
fn what_a_bypass_may_do() {
    let named = |point| {
        let mut head = head(16);
        head.committed.point = point;
        head
    };
    let cut = Point::now(Facts { newest_part: PartKey(30), ..facts() }, String::new(), None);
    // Part 20 had come before the mark.
    for (what, part, cut, marked_at, allowed) in [
        ("it came before the mark", 20, None, Some(20), Allowed::Renounced),
        ("it came after the mark", 21, None, Some(20), Allowed::No),
        ("it came before the cut", 30, Some(&cut), None, Allowed::Renounced),
        ("it came after the cut", 31, Some(&cut), None, Allowed::No),
        ("no point is under way", 99, None, None, Allowed::Renounced),
    ] {
        let mut points = marked_at.map_or(Points::default(), |at| marked(&[at]));
        assert_eq!(points.allow(PartKey(part), &journal(), cut), allowed, "{what}");
    }
    // The point is committed, and the head names it.
    let mut points = marked(&[20]);
    let point = points.next().cloned().unwrap();
    points.committed(&point, 4);
    let journal = Journal::new(Some(named(4)), None);
    assert_eq!(points.allow(PartKey(20), &journal, None), Allowed::Yes, "it belongs to the point");
    assert_eq!(points.allow(PartKey(21), &journal, None), Allowed::Renounced);
    assert!(points.is_named(&journal) && points.renounce() && !points.renounce());
    // The write fails: the name may be there, or not.
    points.told(&named(4), false);
    assert_eq!(points.allow(PartKey(20), &journal, None), Allowed::Renounced);
    let nameless = Journal::new(Some(named(0)), None);
    assert!(points.is_named(&nameless) && points.is_renouncing());
    points.told(&named(0), true);
    assert!(!points.is_named(&nameless) && !points.is_renouncing());
    // A flush that nobody waits for gives way.
    let flushes = with_ends(GroupEnds::Flushes);
    let mut points = Points::default();
    points.flushed(Point::now(flushes, String::new(), None), &nameless, flushes);
    assert_eq!(points.allow(PartKey(20), &nameless, None), Allowed::Renounced);
    assert!(points.next().is_some());
    assert_eq!(points.allow(PartKey(21), &nameless, None), Allowed::Renounced);
    assert!(points.next().is_none());
}
