//! Rounds of a consistency group, step by step: who is told what, and what expires.

use forebay_block::Seq;
use forebay_format::journal::{Group as Descriptor, Head, Moment};
use forebay_policy::GroupEnds;

use super::*;
use crate::groups::tests::{facts, head, with_ends};

const RUN: u64 = 3;

struct Member {
    common: CommonPoints,
    journal: Journal,
    points: Points,
    facts: Facts,
    commands: u64,
}

impl Member {
    fn new() -> Self {
        Self::with(Journal::new(Some(head(16)), None))
    }

    fn with(journal: Journal) -> Self {
        let (common, points, facts) =
            (CommonPoints::default(), Points::default(), with_ends(GroupEnds::Common));
        Self { common, journal, points, facts, commands: 0 }
    }

    /// One that has found point 4 prepared.
    fn with_prepared() -> Self {
        let moment = Moment { group: 4, seq: Seq(8), ..Moment::default() };
        let descriptor =
            Descriptor { cache_id: [2; 16], generation: 2, position: 0, moment, entries: Vec::new() };
        let mut head = Head { prepared: 4096, ..head(16) };
        head.common.prepared = 4;
        Self::with(Journal::new(Some(head), Some(descriptor)))
    }

    fn command(&mut self, round: u64, run: u64, step: CommonStep) -> Vec<Told> {
        self.commands += 1;
        let command = (RequestId(self.commands), round, run, step);
        self.common.command(command, &mut self.journal, &mut self.points, self.facts)
    }

    fn step(&mut self, urgent: bool, at_rest: bool) -> Vec<Told> {
        self.common.step(&mut self.journal, &mut self.points, self.facts, urgent, at_rest)
    }

    /// A round begins.
    fn begin(&mut self, round: u64) {
        assert_eq!(self.command(round, 0, CommonStep::Begin), []);
        assert_eq!(self.common.tell(&self.journal), [told(self.commands, Ok(()))]);
    }

    /// Writers are held back, and what is under way is acknowledged.
    fn cut(&mut self, round: u64) {
        assert_eq!(self.command(round, RUN, CommonStep::Hold), []);
        assert_eq!(self.step(false, true), [told(self.commands, Ok(()))]);
    }

    fn prepare(&mut self, round: u64) -> Vec<Told> {
        let step = CommonStep::Prepare {
            label: "p".into(),
            group: Common { names: "g a b".into(), ..Common::default() },
        };
        self.command(round, RUN, step)
    }

    fn wait(&mut self, ms: u64) {
        self.facts.now = self.facts.now.plus_ms(ms);
    }
}

fn told(id: u64, result: Result<(), CommonError>) -> Told {
    Told::Common(RequestId(id), result)
}

#[test]
fn a_round() {
    let mut m = Member::new();
    m.begin(7);
    assert!(!m.common.holds(m.facts.now));
    assert_eq!(m.command(7, RUN, CommonStep::Hold), []);
    assert_eq!(m.step(false, false), [], "something is under way");
    assert!(m.common.holds(m.facts.now) && m.common.cut().is_none());
    assert_eq!(m.step(false, true), [told(2, Ok(()))]);
    assert!(m.common.holds(m.facts.now), "until all members have cut");
    assert_eq!(m.common.cut().map(|cut| cut.upto), Some(Seq(10)));
    m.facts.written = Seq(12);
    assert_eq!(m.command(7, RUN, CommonStep::Release), [told(3, Ok(()))]);
    assert!(!m.common.holds(m.facts.now));
    assert_eq!(m.prepare(7), [], "told when it is durable");
    let point = m.points.next().unwrap();
    assert_eq!(
        (point.upto, point.common.as_ref().map(|c| c.prepared)),
        (Seq(10), Some(7)),
        "the cut, not now"
    );
    assert!(m.common.cut().is_none());
}

#[test]
fn who_may_take_a_step() {
    let hold = || CommonStep::Hold;
    for (what, round, run, change, step, error) in [
        ("the round's", 7, RUN, facts(), hold(), None),
        ("another round's", 6, RUN, facts(), hold(), Some(CommonError::Overtaken)),
        ("another run's", 7, RUN - 1, facts(), hold(), Some(CommonError::Overtaken)),
        ("a later round begins", 8, 0, facts(), CommonStep::Begin, None),
        ("the same round begins again", 7, 0, facts(), CommonStep::Begin, Some(CommonError::Overtaken)),
        ("somebody asks", 0, 0, facts(), CommonStep::Begin, None),
        ("it stops", 7, RUN, Facts { running: false, ..facts() }, hold(), Some(MarkError::Stopping.into())),
        ("it has failed", 7, RUN, Facts { latched: true, ..facts() }, hold(), Some(CommonError::NoMember)),
        ("no groups", 7, RUN, Facts { journaled: false, ..facts() }, hold(), Some(CommonError::NoMember)),
    ] {
        let mut m = Member::new();
        m.begin(7);
        m.facts = Facts { settings: m.facts.settings, ..change };
        let expected: Vec<Told> = error.into_iter().map(|error| told(2, Err(error))).collect();
        assert_eq!(m.command(round, run, step), expected, "{what}");
    }
    let mut alone = Member { facts: facts(), ..Member::new() };
    assert_eq!(alone.command(7, 0, CommonStep::Begin), [told(1, Err(CommonError::NoMember))]);
}

#[test]
fn a_later_round_takes_the_place_of_an_earlier_one() {
    let overtaken = |id| told(id, Err(CommonError::Overtaken));
    let mut m = Member::new();
    m.begin(7);
    assert_eq!(m.command(7, RUN, CommonStep::Hold), []);
    assert_eq!(m.command(7, RUN, CommonStep::Hold), [overtaken(2)]);
    assert_eq!(m.command(8, 0, CommonStep::Begin), [overtaken(3)], "writers go on");
    assert!(!m.common.holds(m.facts.now));
    assert_eq!(m.command(9, 0, CommonStep::Begin), [overtaken(4)]);
    assert_eq!(m.common.state(&m.journal, m.facts).round, 9);
    assert_eq!(m.common.tell(&m.journal), [told(5, Ok(()))]);
    // What an earlier round has declared, too.
    m.cut(9);
    m.command(9, RUN, CommonStep::Release);
    assert_eq!(m.prepare(9), []);
    assert_eq!(m.command(10, 0, CommonStep::Begin), [overtaken(8)]);
    assert!(!m.points.is_marked());
}

#[test]
fn what_takes_too_long_expires() {
    let expired = |id| [told(id, Err(CommonError::Expired))];
    // Writers are held back no longer than that, whether it has cut or not.
    let mut m = Member::new();
    m.begin(7);
    m.command(7, RUN, CommonStep::Hold);
    m.wait(HOLD_MS - 1);
    assert!(m.common.holds(m.facts.now));
    assert_eq!(m.step(false, false), []);
    assert_eq!(m.common.next_wake(m.facts, || false), Some(Nanos(m.facts.now.0 + 1_000_000)));
    m.wait(1);
    assert!(!m.common.holds(m.facts.now));
    assert_eq!(m.step(false, true), expired(2));
    // A release that comes too late is none.
    for (ms, result) in [(HOLD_MS - 1, Ok(())), (HOLD_MS, Err(CommonError::Expired))] {
        let mut m = Member::new();
        m.begin(7);
        m.cut(7);
        m.wait(ms);
        assert_eq!(m.command(7, RUN, CommonStep::Release), [told(3, result.clone())], "{ms}");
        assert_eq!(m.common.cut().is_some(), result.is_ok(), "{ms}");
        assert_eq!(m.prepare(7).is_empty(), result.is_ok(), "{ms}");
    }
    // Nor does a cut count for good.
    for (ms, lasts) in [(CUT_MS - 1, true), (CUT_MS, false)] {
        let mut m = Member::new();
        m.begin(7);
        m.cut(7);
        m.command(7, RUN, CommonStep::Release);
        m.wait(ms);
        assert_eq!(m.step(false, true), []);
        let told: &[Told] = if lasts { &[] } else { &expired(4) };
        assert_eq!(m.prepare(7), told, "{ms}");
    }
    // One that was not released is not prepared.
    let mut m = Member::new();
    m.begin(7);
    m.cut(7);
    assert_eq!(m.prepare(7), expired(3));
}

#[test]
fn who_waits_for_a_cut_is_told_when_the_round_is_over() {
    let mut member = Member::new();
    member.begin(1);
    assert_eq!(member.command(1, RUN, CommonStep::Hold), []);
    let hold = member.commands;
    let over = Err(CommonError::Expired);
    let answers = member.command(1, RUN, CommonStep::Release);
    assert_eq!(answers, [told(hold, over.clone()), told(hold + 1, over)]);
}

#[test]
fn what_is_prepared_is_settled() {
    let settle = |point, keep| CommonStep::Settle { point, keep };
    let mut m = Member::with_prepared();
    m.begin(5);
    assert_eq!(m.command(5, RUN, settle(3, true)), [told(2, Err(CommonError::GivenUp))], "another point");
    assert_eq!(m.command(5, RUN, settle(3, false)), [told(3, Ok(()))], "nobody has it");
    assert_eq!(m.command(5, RUN, settle(4, true)), [], "told when it is durable");
    assert_eq!(m.common.tell(&m.journal), []);
    assert!(!m.journal.common_is_at_rest());
    // The volume has decided a point.
    let mut decided = head(16);
    decided.common.decided = 4;
    for (point, keep, result) in [(4, true, Ok(())), (4, false, Err(CommonError::Overtaken))] {
        let mut m = Member::with(Journal::new(Some(decided.clone()), None));
        m.begin(5);
        assert_eq!(m.command(5, RUN, settle(point, keep)), [told(2, result)], "{keep}");
    }
}

#[test]
fn nobody_waits_for_the_others_for_good() {
    let mut m = Member::with_prepared();
    m.begin(5);
    m.cut(5);
    m.command(5, RUN, CommonStep::Release);
    assert_eq!(m.step(true, false), []);
    assert!(!m.common.is_impatient(m.facts));
    assert_eq!(m.common.next_wake(m.facts, || false), Some(m.facts.now.plus_ms(WAIT_MS)));
    m.wait(WAIT_MS - 1);
    assert_eq!(m.step(false, false), []);
    assert_eq!(m.step(true, false), [], "somebody else waits: from the beginning");
    m.wait(WAIT_MS - 1);
    m.step(true, false);
    assert!(!m.common.is_impatient(m.facts) && m.common.cut().is_some());
    assert!(m.journal.common_is_at_rest());
    m.wait(1);
    m.step(true, false);
    assert!(m.common.is_impatient(m.facts) && m.common.cut().is_none());
    // What was prepared is committed, at no common point.
    assert!(m.journal.point_under_way().is_none() && !m.journal.is_empty());
    assert_eq!(m.prepare(5), [told(4, Err(CommonError::Expired))]);
}

#[test]
fn who_waits_is_told_when_it_is_no_member_any_more() {
    for (what, change, error) in [
        ("it stops", Facts { running: false, ..facts() }, MarkError::Stopping.into()),
        ("it has failed", Facts { latched: true, ..facts() }, CommonError::NoMember),
        ("the backing fails", Facts { given_up: true, ..facts() }, MarkError::Failing.into()),
    ] {
        let mut m = Member::with_prepared();
        m.begin(5);
        m.command(5, RUN, CommonStep::Settle { point: 4, keep: true });
        m.command(5, RUN, CommonStep::Hold);
        m.command(0, 0, CommonStep::Begin);
        m.facts = Facts { settings: m.facts.settings, ..change };
        let err = |id| told(id, Err(error.clone()));
        assert_eq!(m.step(false, true), [err(3), err(4), err(2)], "{what}");
        assert_eq!(m.step(false, true), [], "{what}: once");
        assert!(!m.common.holds(m.facts.now));
    }
}
