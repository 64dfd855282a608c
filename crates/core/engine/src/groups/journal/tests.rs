//! The life of groups in the journal, from the log to the backing.

use forebay_policy::Settings;

use super::*;
use crate::groups::tests::{facts, head, with_ends};
use crate::interface::{PartKey, RequestId};
use crate::map::sample::Sample;

const LAYOUT: Layout =
    Layout { cache_id: [2; 16], generation: 3, align: 4096, segment_bytes: 1 << 20, segment_count: 64 };

struct World {
    journal: Journal,
    points: Points,
    sample: Sample,
    facts: Facts,
}

impl World {
    /// Records 1 to 4 with a block each, the first two of them on the backing.
    fn new(ring_blocks: u64) -> Self {
        let mut sample = Sample::new();
        let slots: Vec<SlotRef> = [1, 2, 1, 3].map(|block| sample.block(block)).to_vec();
        slots.iter().take(2).for_each(|slot| sample.clean(*slot));
        let facts = Facts { written: Seq(4), durable: Seq(4), ..facts() };
        let (journal, points) = (Journal::new(Some(head(ring_blocks)), None), Points::default());
        let mut world = Self { journal, points, sample, facts };
        world.journal.begin(&world.sample.map, Seq(2), facts);
        world
    }

    /// Begins a group that ends so; the bytes that it writes.
    fn start(&mut self, end: GroupEnd) -> Option<Vec<DeviceOp>> {
        let facts = self.facts;
        let is_lost = |map: &Map, slot: SlotRef| map.segments().slot(slot).kind() == SlotKind::Poison;
        match self.journal.collect(&self.sample.map, end, &self.points, facts, is_lost) {
            Collected::Stretch(stretch) => {
                Some(self.journal.start(&mut self.sample.map, stretch, &LAYOUT, facts))
            }
            Collected::Nothing | Collected::GivesUp => None,
        }
    }

    fn go_on(&mut self) -> Option<Step> {
        let facts = self.facts;
        self.journal.go_on(&mut self.sample.map, facts)
    }

    /// Writes and flushes the group under way.
    fn flush(&mut self, descriptor: Vec<DeviceOp>) {
        let now = self.facts.now;
        descriptor.iter().for_each(|_| assert!(!self.journal.group_written(true, now)));
        while let Some(step) = self.go_on() {
            match step {
                Step::Gather(first, members) => {
                    let bufs = members.iter().map(|_| Buf::copy_of(&[7; 4096])).collect();
                    for _ in self.journal.gathered(first, bufs) {
                        self.journal.group_written(true, now);
                    }
                }
                Step::Flush => assert!(!self.journal.group_flushed(true, self.facts.losses, now)),
                Step::Hold(_) | Step::Gone(_) => panic!("it is given up"),
            }
        }
    }

    /// Writes the head, if that is due.
    fn head(&mut self, good: bool) -> Option<Written> {
        let facts = self.facts;
        let HeadStep::Write(_) = self.journal.head_step(&self.sample.map, &self.points, facts, 0) else {
            return None;
        };
        self.journal.head_written(good, &mut self.sample.map, &mut self.points, facts)
    }
}

#[test]
fn from_the_log_to_the_backing() {
    let mut w = World::new(16);
    assert_eq!((w.journal.groups(), w.journal.missing(true, 0)), (0, Some((2, Some(0)))));
    assert!(w.journal.may_start(w.facts));
    let descriptor = w.start(GroupEnd::Anywhere).unwrap();
    assert!(!w.journal.may_start(w.facts), "one at a time");
    assert!(
        w.journal.holds(BlockRange::new(BlockNo(3), 1)) && !w.journal.holds(BlockRange::new(BlockNo(2), 1))
    );
    w.flush(descriptor);
    assert_eq!(w.journal.committed(), Seq(2), "flushed is not committed");
    assert_eq!(w.journal.missing(true, 0).map(|(blocks, _)| blocks), Some(2));
    let written = w.head(true).unwrap();
    assert_eq!(written.committed.unwrap().iter().map(|e| e.block.0).collect::<Vec<_>>(), [1, 3]);
    assert_eq!((w.journal.committed(), w.journal.groups()), (Seq(4), 1));
    assert_eq!((w.journal.found(), w.journal.missing(true, 0)), (Some(Seq(4)), Some((0, None))));
    assert_eq!(
        w.journal.copy(BlockNo(3), Seq(4)),
        Some(8192 + 2 * 4096),
        "behind the descriptor and block 1"
    );
    assert_eq!(w.journal.copy(BlockNo(2), Seq(2)), None);
    // The backing has it: the head leaves it behind when somebody waits, or later.
    w.facts.progress = Seq(4);
    assert!(w.head(true).is_none());
    w.journal.hurry();
    assert!(w.head(true).unwrap().committed.is_none());
    assert!(w.journal.is_empty() && !w.journal.holds(BlockRange::new(BlockNo(3), 1)));
    assert!(w.journal.is_settled(&w.sample.map, &w.points, w.facts));
}

#[test]
fn a_group_that_fails_is_begun_again() {
    type Do = fn(&mut World) -> bool;
    let table: [(&str, Do, u32); 4] = [
        ("a write fails", |w| w.journal.group_written(false, w.facts.now), 1),
        (
            "the order is broken",
            |w| {
                w.facts.consistent = false;
                w.journal.group_written(true, w.facts.now)
            },
            0,
        ),
        (
            "the backing has lost something",
            |w| {
                w.facts.losses = 1;
                w.journal.group_written(true, w.facts.now)
            },
            0,
        ),
        (
            "the policy changes",
            |w| {
                w.facts.journaled = false;
                w.journal.group_written(true, w.facts.now)
            },
            0,
        ),
    ];
    for (what, happens, failures) in table {
        let mut w = World::new(16);
        w.start(GroupEnd::Anywhere).unwrap();
        assert_eq!(happens(&mut w), failures > 0, "{what}");
        assert!(matches!(w.go_on(), Some(Step::Gone(_))), "{what}");
        assert_eq!((w.journal.groups(), w.journal.failures()), (0, failures), "{what}");
        assert_eq!(w.journal.is_paused(w.facts.now), failures > 0, "{what}");
        w.facts = Facts { consistent: true, journaled: true, ..w.facts };
        assert_eq!(
            w.journal.missing(true, 0).map(|(blocks, _)| blocks),
            Some(2),
            "{what}: it is to be committed yet"
        );
        w.journal.try_again();
        let descriptor = w.start(GroupEnd::Anywhere).unwrap();
        w.flush(descriptor);
        assert!(w.head(true).unwrap().committed.is_some(), "{what}");
    }
}

#[test]
fn a_head_that_fails_commits_nothing() {
    let mut w = World::new(16);
    let descriptor = w.start(GroupEnd::Anywhere).unwrap();
    w.flush(descriptor);
    assert!(w.head(false).is_none());
    assert_eq!((w.journal.committed(), w.journal.failures()), (Seq(2), 1));
    assert!(!w.journal.says_consistent() && w.journal.durable_says_consistent());
    assert!(!w.journal.is_renounced() && !w.journal.may_start(w.facts));
    assert!(w.head(true).unwrap().committed.is_some(), "it is written again");
    assert!(w.journal.says_consistent() && w.journal.failures() == 0);
}

#[test]
fn it_is_renounced_only_when_the_medium_says_so() {
    let mut w = World::new(16);
    let descriptor = w.start(GroupEnd::Anywhere).unwrap();
    w.flush(descriptor);
    w.head(true).unwrap();
    w.facts.consistent = false;
    assert!(!w.journal.is_renounced(), "the medium says that it is consistent");
    assert!(w.head(false).is_none());
    assert!(!w.journal.is_renounced(), "it may still say so");
    w.head(true).unwrap();
    assert!(w.journal.is_renounced() && w.journal.is_empty() && w.journal.found().is_none());
    assert!(!w.journal.may_start(w.facts));
    assert!(Journal::new(None, None).is_renounced());
    // So it is when the log becomes void.
    let mut w = World::new(16);
    w.journal.retire();
    assert!(!w.journal.is_renounced());
    w.head(true).unwrap();
    assert!(w.journal.is_renounced());
}

#[test]
fn a_group_ends_at_its_point() {
    let mut w = World::new(16);
    let before = Facts { written: Seq(3), newest_part: PartKey(5), ..w.facts };
    w.points.mark(RequestId(9), "here".into(), &mut w.journal, before).unwrap();
    // The point is not durable yet.
    w.facts.durable = Seq(2);
    assert!(w.start(GroupEnd::AtPoint).is_none());
    w.facts.durable = Seq(4);
    let descriptor = w.start(GroupEnd::AtPoint).unwrap();
    w.flush(descriptor);
    let written = w.head(true).unwrap();
    assert_eq!(written.told, [Told::Point, Told::Marked(RequestId(9), Ok(1))]);
    assert_eq!((w.journal.committed(), w.journal.point()), (Seq(3), 1), "not with what came later");
    assert_eq!(w.journal.missing(true, 0).map(|(blocks, _)| blocks), Some(1));
    // The next one ends at none.
    let descriptor = w.start(GroupEnd::Anywhere).unwrap();
    w.flush(descriptor);
    let written = w.head(true).unwrap();
    assert_eq!((written.told, written.cut, w.journal.point()), (vec![], false, 0));
}

#[test]
fn a_group_that_is_cut_where_points_are_kept_is_counted() {
    let mut w = World::new(16);
    w.facts.settings = Settings { group_ends: GroupEnds::Flushes, ..with_ends(GroupEnds::Flushes).settings };
    let descriptor = w.start(GroupEnd::Anywhere).unwrap();
    w.flush(descriptor);
    assert!(w.head(true).unwrap().cut);
}

#[test]
fn what_does_not_fit_waits_for_room() {
    let mut w = World::new(3);
    let descriptor = w.start(GroupEnd::Anywhere).unwrap();
    w.flush(descriptor);
    w.head(true).unwrap();
    w.sample.block(5);
    w.sample.block(6);
    w.facts = Facts { written: Seq(6), durable: Seq(6), ..w.facts };
    assert!(w.start(GroupEnd::Anywhere).is_none(), "the ring is full");
    // And hurries the head.
    w.facts.progress = Seq(4);
    w.head(true).unwrap();
    let ops = w.start(GroupEnd::Anywhere).unwrap();
    let DeviceOp::Write { offset, .. } = &ops[0] else { panic!("a write") };
    assert_eq!(*offset, 8192, "from the beginning of the ring");
    w.flush(ops);
    w.head(true).unwrap();
    assert_eq!(w.journal.committed(), Seq(6));
}

#[test]
fn a_version_that_a_group_has_anew_need_not_go() {
    let mut w = World::new(16);
    let old = w.sample.block(8);
    let descriptor = {
        w.facts.durable = Seq(5);
        w.start(GroupEnd::Anywhere).unwrap()
    };
    w.flush(descriptor);
    w.head(true).unwrap();
    let map = |w: &World, slot| w.journal.replaces(&w.sample.map, BlockNo(8), slot);
    assert!(!map(&w, old), "it is the newest");
    let newer = w.sample.block(8);
    assert!(!map(&w, old) && !map(&w, newer), "the newer one is in no group");
    w.facts.durable = Seq(6);
    let descriptor = w.start(GroupEnd::Anywhere).unwrap();
    assert!(!map(&w, old), "nor is it committed");
    w.flush(descriptor);
    w.head(true).unwrap();
    assert!(map(&w, old) && !map(&w, newer));
    w.sample.block(8);
    assert!(map(&w, old) && !map(&w, newer), "in the ring, though not the newest");
}
