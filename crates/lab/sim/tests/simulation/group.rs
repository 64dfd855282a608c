//! Two volumes of one consistency group, each with an engine and devices of its own, and one writer that writes each time to either of
//! them, after the write before was acknowledged. At some instant everything dies, and the caches are lost: the two backings,
//! brought to the newest point that both have, are as after one of the writes, across both.

use std::collections::VecDeque;

use forebay_block::{Buf, DeviceOp, Nanos, Op, Origin};
use forebay_engine::{
    Command, CommonError, CommonState, CommonStep, Effect, Engine, Event, IoId, Mutation, Params, RequestId,
    Role,
};
use forebay_format::Layout;
use forebay_format::journal::{Head, JOURNAL_RING_OFFSET};
use forebay_format::replay::{Prepared, Replay, Step};
use forebay_format::shared_point::{Common, names_of, newest_common, set_of};
use forebay_policy::{GroupEnds, Settings, WritePolicy};
use forebay_sim::random::Random;

const BLOCKS: usize = 24;
const BLOCK: usize = 4096;
const SEGMENT: u32 = 64 << 10;
const RING: usize = 2 * SEGMENT as usize;
/// Step and answer of the coordinator.
type Answer = Result<CommonState, CommonError>;

struct Member {
    engine: Engine,
    cache: Vec<u8>,
    backing: Vec<u8>,
    journal: Vec<u8>,
    ios: Vec<(IoId, Role, DeviceOp)>,
    written: bool,
    /// On its way to it.
    inbox: VecDeque<(u64, Command)>,
    /// The step that was asked for last.
    asked: u64,
    answer: Option<Answer>,
}

impl Member {
    fn new(n: u8, shared: bool, mutation: Option<Mutation>) -> Self {
        let layout =
            Layout { cache_id: [n; 16], generation: 1, align: 512, segment_bytes: SEGMENT, segment_count: 6 };
        let mut head = Head::new([n; 16], [n; 16], (BLOCKS * BLOCK) as u64, RING as u64);
        (head.generation, head.update) = (1, 1);
        let mut journal = vec![0; JOURNAL_RING_OFFSET as usize + RING];
        let at = Head::copy_offset(1) as usize;
        journal[at..at + BLOCK].copy_from_slice(&head.encode());
        let settings = Settings {
            write_policy: WritePolicy::Journaled,
            group_ends: if shared { GroupEnds::Common } else { GroupEnds::Points },
            ..Settings::default()
        };
        let params = Params {
            layout,
            volume_bytes: (BLOCKS * BLOCK) as u64,
            settings,
            wall_offset_ns: 1 << 60,
            clean_stop: false,
            journal: Some(head),
            prepared: None,
            commits_in_place: false,
            journal_left: false,
            backing_depth: 256,
            backing_unit_bytes: None,
            backing_forgets: false,
            read_only: false,
        };
        let engine = match mutation {
            Some(mutation) => Engine::with_mutation(params, mutation),
            None => Engine::new(params),
        };
        let cache = vec![0; layout.cache_bytes() as usize];
        let backing = vec![0; BLOCKS * BLOCK];
        Self {
            engine,
            cache,
            backing,
            journal,
            ios: Vec::new(),
            written: true,
            inbox: VecDeque::new(),
            asked: 0,
            answer: None,
        }
    }

    fn perform(&mut self, role: Role, op: &DeviceOp) -> Option<Buf> {
        let bytes = match role {
            Role::Cache => &mut self.cache,
            Role::Backing => &mut self.backing,
            Role::Journal => &mut self.journal,
        };
        match op {
            DeviceOp::Read { offset, len } => return Some(Buf::copy_of(&bytes[*offset as usize..][..*len])),
            DeviceOp::Write { offset, bufs, .. } => {
                let mut at = *offset as usize;
                for buf in bufs {
                    bytes[at..at + buf.len()].copy_from_slice(buf);
                    at += buf.len();
                }
            }
            DeviceOp::Zero { offset, len, .. } => bytes[*offset as usize..][..*len as usize].fill(0),
            DeviceOp::Flush | DeviceOp::Commit(_) => {}
        }
        None
    }

    fn poll(&mut self, now: Nanos) {
        let mut effects = Vec::new();
        self.engine.poll(now, &mut effects);
        for effect in effects {
            match effect {
                Effect::Io { id, role, op, .. } => self.ios.push((id, role, op)),
                Effect::Reply { .. } => self.written = true,
                Effect::CommonDone { id, result } if id.0 == self.asked => self.answer = Some(result),
                _ => {}
            }
        }
    }

    fn deliver(&mut self, now: Nanos) {
        if let Some((id, command)) = self.inbox.pop_front() {
            self.engine.handle(Event::Command { id: RequestId(id), command }, now);
        }
    }

    fn head(&self) -> Head {
        Head::newest(&self.journal[..JOURNAL_RING_OFFSET as usize]).unwrap()
    }

    /// As `forebay recover` does.
    fn recover(&mut self, mut replay: Replay) {
        loop {
            let (role, op) = match replay.step() {
                Step::End => return,
                Step::Journal(op) => (Role::Journal, op),
                Step::Backing(op) => (Role::Backing, op),
            };
            let read = self.perform(role, &op);
            replay.done(read.as_ref()).unwrap();
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Idle,
    Begin,
    SettleOld,
    Hold,
    Release,
    Prepare,
    Settle,
}

struct World {
    members: [Member; 2],
    random: Random,
    now: Nanos,
    shared: bool,
    ids: u64,
    round: u64,
    stage: Stage,
    /// Member, block of each write so far, from 1.
    writes: Vec<(usize, usize)>,
}

impl World {
    fn new(seed: u64, shared: bool, mutation: Option<Mutation>) -> Self {
        let members = [1, 2].map(|n| Member::new(n, shared, mutation));
        let random = Random::new(seed);
        let (now, writes) = (Nanos(0), Vec::new());
        Self { members, random, now, shared, ids: 0, round: 0, stage: Stage::Idle, writes }
    }

    fn id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    /// The next write, once the one before is acknowledged.
    fn write(&mut self) {
        if self.members.iter().any(|member| !member.written) {
            return;
        }
        let (to, block) = (self.random.below(2) as usize, self.random.below(BLOCKS as u64) as usize);
        self.writes.push((to, block));
        let data = Buf::copy_of(&(self.writes.len() as u64).to_le_bytes().repeat(BLOCK / 8));
        let (id, now) = (RequestId(self.id()), self.now);
        let op = Op::Write { offset: (block * BLOCK) as u64, data, fua: false };
        self.members[to].written = false;
        self.members[to].engine.handle(Event::Request { id, op, origin: Origin::default() }, now);
    }

    fn ask(&mut self, stage: Stage, step: impl Fn(usize) -> Option<(u64, CommonStep)>) {
        self.stage = stage;
        for n in 0..2 {
            let round = self.round;
            let Some((run, step)) = step(n) else { continue };
            let id = self.id();
            (self.members[n].asked, self.members[n].answer) = (id, None);
            self.members[n].inbox.push_back((id, Command::Common { round, run, step }));
        }
    }

    /// Each volume by itself.
    fn mark_each(&mut self) {
        for n in 0..2 {
            let id = self.id();
            self.members[n].inbox.push_back((id, Command::Mark { label: String::new() }));
        }
    }

    fn coordinate(&mut self) {
        let patient = !self.random.percent(2);
        if self.stage == Stage::Idle || !patient {
            self.round += 1;
            return self.ask(Stage::Begin, |_| Some((0, CommonStep::Begin)));
        }
        let answers = self.members.each_ref().map(|member| member.answer.clone());
        let [Some(a), Some(b)] = answers else { return };
        let (Ok(a), Ok(b)) = (a, b) else {
            self.stage = Stage::Idle;
            return;
        };
        let states = [a, b];
        let run = states.map(|state| state.run);
        let old = states.iter().map(|state| state.prepared).max().unwrap_or_default();
        match self.stage {
            Stage::Begin if old > 0 => {
                let all = states.iter().all(|state| state.prepared == old || state.decided == old);
                let keep = states.iter().any(|state| state.decided == old) || all && self.random.percent(50);
                let round = self.round;
                self.stage = Stage::SettleOld;
                for n in 0..2 {
                    let point = states[n].prepared;
                    if point > 0 {
                        let step = CommonStep::Settle { point, keep: keep && point == old };
                        let id = self.id();
                        (self.members[n].asked, self.members[n].answer) = (id, None);
                        self.members[n].inbox.push_back((id, Command::Common { round, run: run[n], step }));
                    }
                }
            }
            Stage::Begin | Stage::SettleOld => self.ask(Stage::Hold, |n| Some((run[n], CommonStep::Hold))),
            Stage::Hold => self.ask(Stage::Release, |n| Some((run[n], CommonStep::Release))),
            Stage::Release => self.ask(Stage::Prepare, |n| {
                let (names, set) = (names_of("shop", &["data", "log"]).unwrap(), set_of(&[[1; 16], [2; 16]]));
                let group = Common { set, member: n as u32, names, ..Common::default() };
                Some((run[n], CommonStep::Prepare { label: String::new(), group }))
            }),
            Stage::Prepare => {
                let point = self.round;
                self.ask(Stage::Settle, |n| Some((run[n], CommonStep::Settle { point, keep: true })));
            }
            Stage::Settle | Stage::Idle => self.stage = Stage::Idle,
        }
    }

    fn step(&mut self) {
        self.now = Nanos(self.now.0 + 1000 * self.random.below(200));
        if self.random.below(400) == 0 {
            self.now = self.now.plus_ms(self.random.below(1300));
        }
        let n = self.random.below(2) as usize;
        if !self.members[n].ios.is_empty() {
            let at = self.random.below(self.members[n].ios.len() as u64) as usize;
            let (id, role, op) = self.members[n].ios.swap_remove(at);
            let data = self.members[n].perform(role, &op);
            self.members[n].engine.handle(Event::Io { id, result: Ok(data) }, self.now);
        }
        if self.random.percent(20) {
            self.members[n].deliver(self.now);
        }
        if self.ids > 0 || self.members.iter().all(|m| m.engine.status(self.now).backing_consistent) {
            match self.random.below(8) {
                0..4 => self.write(),
                4 if self.shared => self.coordinate(),
                4 if self.random.percent(10) => self.mark_each(),
                _ => {}
            }
        }
        self.members.iter_mut().for_each(|member| member.poll(self.now));
    }

    /// Everything dies, and what was under way has happened or not. Whether the backings had a point to be brought to.
    fn crash(&mut self) -> bool {
        for member in &mut self.members {
            for (_, role, op) in std::mem::take(&mut member.ios) {
                if self.random.percent(50) {
                    member.perform(role, &op);
                }
            }
        }
        let heads = self.members.each_ref().map(Member::head);
        let newest = newest_common(heads.iter().map(|head| &head.common));
        if self.shared && (newest.is_none() || heads.iter().any(|head| !head.consistent)) {
            return false;
        }
        for (member, head) in self.members.iter_mut().zip(heads) {
            let applied = Some(head.common.prepared) == newest;
            member
                .recover(Replay::deciding(head, if applied { Prepared::Applied } else { Prepared::Dropped }));
        }
        true
    }

    /// The number of the write up to which both backings have everything, and nothing later.
    fn judge(&self) -> Result<u64, String> {
        let held = |member: usize, block: usize| {
            let bytes = &self.members[member].backing[block * BLOCK..][..8];
            u64::from_le_bytes(bytes.try_into().unwrap())
        };
        let places = || (0..2).flat_map(|member| (0..BLOCKS).map(move |block| (member, block)));
        let newest = places().map(|(member, block)| held(member, block)).max().unwrap();
        for (member, block) in places() {
            let theirs = (1..).zip(&self.writes).filter(|(_, at)| **at == (member, block)).map(|(no, _)| no);
            let expected = theirs.take_while(|no| *no <= newest).last().unwrap_or(0);
            if held(member, block) != expected {
                let is = held(member, block);
                return Err(format!(
                    "write {newest} is there, but member {member} has {is} and not {expected}"
                ));
            }
        }
        Ok(newest)
    }
}

/// How many runs of `seeds` ended at a common point, and what is wrong with the first that broke the promise.
fn run(seeds: u64, shared: bool, mutation: Option<Mutation>) -> (u64, u64, Option<String>) {
    let (mut ended, mut newest) = (0, 0);
    for seed in 0..seeds {
        let mut world = World::new(seed, shared, mutation);
        for _ in 0..world.random.between(100, 6000) {
            world.step();
        }
        if world.crash() {
            ended += 1;
            match world.judge() {
                Ok(upto) => newest += upto,
                Err(broken) => return (ended, newest, Some(format!("seed {seed}: {broken}"))),
            }
        }
    }
    (ended, newest, None)
}

#[test]
fn two_volumes_of_a_consistency_group_are_one() {
    let (ended, newest, broken) = run(150, true, None);
    assert_eq!(broken, None);
    println!("{ended} of 150 runs ended at a common point, {newest} writes");
    assert!(ended > 75 && newest > 20 * ended, "{ended} points with {newest} writes");
}

#[test]
fn two_volumes_that_are_marked_at_the_same_time_are_not() {
    assert!(run(100, false, None).2.is_some(), "nothing was tested");
}

#[test]
fn planted_bugs_are_found_across_two_volumes() {
    for mutation in
        [Mutation::CommonCutsEarly, Mutation::CommonIgnoresExpiry, Mutation::CommonDestagesPrepared]
    {
        assert!(run(2000, true, Some(mutation)).2.is_some(), "{mutation:?}");
    }
}
