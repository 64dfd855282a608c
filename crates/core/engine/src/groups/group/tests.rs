//! The life of a group, step by step.

use forebay_block::BlockNo;
use forebay_format::Layout;

use super::*;
use crate::interface::PartKey;
use crate::map::sample::Sample;

fn group(blocks: usize, common: bool) -> (Group, Sample) {
    let mut sample = Sample::new();
    let layout =
        Layout { cache_id: [0; 16], generation: 1, align: 4096, segment_bytes: 1 << 20, segment_count: 64 };
    let members: Vec<Member> = (0..blocks)
        .map(|n| {
            let slot = sample.block(n as u64 % 4);
            sample.map.segments_mut().pin(slot.segment());
            sample.map.member(slot, &layout)
        })
        .collect();
    let entries =
        (0..blocks as u64).map(|n| GroupEntry { block: BlockNo(n), seq: Seq(n), checksum: 0, zero: false });
    let moment = Moment { group: 4, seq: Seq(9), ..Moment::default() };
    let descriptor =
        Descriptor { cache_id: [0; 16], generation: 1, position: 8192, moment, entries: entries.collect() };
    let point = Point {
        upto: Seq(9),
        parts: PartKey(1),
        time_ns: 0,
        label: "p".into(),
        command: None,
        common: common.then(Common::default),
    };
    (Group::new(descriptor, members, Some(point), Nanos(1), 5), sample)
}

/// Gathers and writes everything that the group asks for.
fn write_all(group: &mut Group) {
    loop {
        match group.next() {
            Some(Next::Gather(first, _)) => {
                group.gathered(first);
                group.writes(1);
                group.written(true);
            }
            Some(Next::Flush) => return,
            None => panic!("nothing is on its way"),
        }
    }
}

#[test]
fn pieces_go_four_at_a_time_and_the_flush_comes_last() {
    let (mut group, _) = group(64 * 5 + 3, false);
    // The descriptor's write.
    group.writes(1);
    let mut pieces = Vec::new();
    while let Some(Next::Gather(first, members)) = group.next() {
        pieces.push((first, members.len()));
    }
    assert_eq!(pieces, [(0, 64), (64, 64), (128, 64)], "three beside the descriptor");
    group.written(true);
    let Some(Next::Gather(192, _)) = group.next() else { panic!("room for one more") };
    // A piece that crosses the end of the ring is two writes.
    assert_eq!(group.gathered(64), 8192 + Descriptor::descriptor_bytes(323) + (64 << 12));
    group.writes(2);
    assert!(group.next().is_none());
    group.written(true);
    assert!(group.next().is_none());
    group.written(true);
    for first in [0, 128, 192] {
        group.gathered(first);
        group.writes(1);
        group.written(true);
    }
    write_all(&mut group);
    assert!(group.next().is_none() && group.told() == Some(Phase::Flushing));
    group.flushed(true, 5);
    assert_eq!(group.told(), Some(Phase::Committing));
}

#[test]
fn what_gives_it_up() {
    type Do = fn(&mut Group);
    let table: [(&str, Do, bool); 8] = [
        ("nothing", |_| {}, false),
        (
            "a write fails",
            |g| {
                g.writes(1);
                g.written(false)
            },
            true,
        ),
        (
            "a block cannot be read",
            |g| {
                g.next();
                g.lacks()
            },
            true,
        ),
        ("the policy has no groups any more", |g| g.look(false, 5), true),
        ("the backing has lost something", |g| g.look(true, 6), true),
        ("it has lost nothing", |g| g.look(true, 5), false),
        (
            "its flush fails",
            |g| {
                write_all(g);
                g.flushed(false, 5)
            },
            true,
        ),
        (
            "another flush has failed meanwhile",
            |g| {
                write_all(g);
                g.flushed(true, 6)
            },
            true,
        ),
    ];
    for (what, happens, given_up) in table {
        let (mut group, _) = group(1, false);
        happens(&mut group);
        assert_eq!((group.is_given_up(), group.is_over()), (given_up, given_up), "{what}");
        assert_eq!(group.told().is_none(), given_up, "{what}");
        group.look(true, 5);
        assert_eq!(group.is_given_up(), given_up, "{what}, for good");
    }
    // What is lost after its own flush does not concern it.
    let (mut group, _) = group(1, false);
    write_all(&mut group);
    group.flushed(true, 5);
    group.look(true, 6);
    assert!(!group.is_given_up());
}

#[test]
fn it_goes_only_when_nothing_of_it_is_on_its_way() {
    let (mut group, _) = group(1, false);
    group.writes(2);
    group.written(false);
    assert!(group.is_given_up() && !group.is_over());
    assert!(group.next().is_none(), "nothing more is gathered");
    group.written(true);
    assert!(group.is_over());
}

#[test]
fn one_that_is_shared_rests_until_others_decide() {
    let at_rest = || {
        let (mut group, mut sample) = group(2, true);
        let segment = 0;
        group.look(true, 5);
        write_all(&mut group);
        group.flushed(true, 5);
        assert_eq!(group.told(), Some(Phase::Preparing));
        assert!(group.may_be_told_of() && !group.is_prepared());
        group.overtaken();
        assert!(!group.is_given_up(), "it is durable: the head tells of it before long");
        assert_eq!(sample.map.segments().get(segment).pins, 2);
        assert!(group.prepared(sample.map.segments_mut()) && group.is_prepared());
        assert_eq!(sample.map.segments().get(segment).pins, 0);
        assert!(!group.prepared(sample.map.segments_mut()), "that is no news");
        group
    };
    let mut kept = at_rest();
    kept.settle(true);
    assert_eq!((kept.told(), kept.is_common()), (Some(Phase::Committing), true));
    let mut forgotten = at_rest();
    forgotten.settle(false);
    assert!(forgotten.is_over() && !forgotten.is_prepared());
    let mut alone = at_rest();
    alone.goes_alone();
    assert_eq!((alone.told(), alone.is_common()), (Some(Phase::Committing), false));
    assert_eq!((alone.moment().point, alone.moment().label.as_str()), (0, ""));
    // One that is not durable yet is overtaken.
    let (mut early, _) = group(2, true);
    early.overtaken();
    assert!(early.is_given_up());
    let (mut own, _) = group(2, false);
    own.overtaken();
    assert!(!own.is_given_up(), "it is nobody else's");
}
