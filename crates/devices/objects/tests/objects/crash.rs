//! Lives that end at any instant, on a store with every fault, again and again.

use std::collections::BTreeMap;

use forebay_block::{DeviceOp, ErrorKind, Nanos};
use forebay_objects::model::{Fate, Model};
use forebay_objects::{Access, Request, Takeover};

use crate::oracle::{Content, Oracle, SECTORS, content_of};
use crate::random::Random;
use crate::world::{Host, small_limits, volume};

/// What a client waits for.
enum Waits {
    Change,
    /// A durable change, or a flush: so many changes are durable then.
    Durable(usize, bool),
    Read { start: u64, versions: Vec<Vec<u64>> },
    /// All that is in the volume.
    Whole,
}

/// A host, its client, and the requests of hosts that are dead.
struct World {
    random: Random,
    model: Model,
    now: Nanos,
    host: Host,
    ghosts: Vec<Request>,
    oracle: Oracle,
    waits: BTreeMap<u64, Waits>,
    whole: Option<Content>,
    next_tag: u64,
    /// Requests that fail, one in so many.
    faults: u64,
    /// The client waits for the end of a flush before it goes on.
    waits_for_flushes: bool,
}

impl World {
    fn new(seed: u64, waits_for_flushes: bool) -> Self {
        let mut random = Random::new(seed);
        let now = Nanos(0);
        let host = Host::open("0", Access::Own(Takeover::Never), small_limits(), now);
        let faults = [3, 10, 1_000_000][random.below(3) as usize];
        Self {
            model: volume(SECTORS * 512),
            random,
            now,
            host,
            ghosts: Vec::new(),
            oracle: Oracle::default(),
            waits: BTreeMap::new(),
            whole: None,
            next_tag: 0,
            faults,
            waits_for_flushes,
        }
    }

    fn fate(&mut self) -> Fate {
        if !self.random.once_in(self.faults) {
            return Fate::Done;
        }
        [Fate::AnswerLost, Fate::Lost, Fate::Late, Fate::Refused][self.random.below(4) as usize]
    }

    /// Lets something happen in the store, or time pass.
    fn turn(&mut self) {
        self.host.poll(self.now);
        if self.model.late() > 0 && self.random.once_in(4) {
            let which = self.random.below(self.model.late() as u64) as usize;
            self.model.land(which);
        }
        if !self.ghosts.is_empty() && self.random.once_in(8) {
            let which = self.random.below(self.ghosts.len() as u64) as usize;
            let request = self.ghosts.swap_remove(which);
            let _ = self.model.take(&request, Fate::Done);
        }
        if !self.host.requests.is_empty() {
            let which = self.random.below(self.host.requests.len() as u64) as usize;
            let fate = self.fate();
            self.host.answer(self.now, &mut self.model, which, fate);
        } else if let Some(at) = self.host.vault.deadline() {
            self.now = self.now.max(at);
        }
        self.now.0 += self.random.below(20_000_000);
        self.hear();
    }

    /// The client takes the answers.
    fn hear(&mut self) {
        for (tag, result) in std::mem::take(&mut self.host.done) {
            let waits = self.waits.remove(&tag).expect("it was asked for");
            match (waits, result) {
                (Waits::Change, Ok(_)) => self.oracle.answered(tag),
                (Waits::Durable(upto, is_change), Ok(_)) => {
                    if is_change {
                        self.oracle.answered(tag);
                    }
                    self.oracle.flushed(upto);
                }
                (Waits::Read { start, versions }, Ok(data)) => {
                    let found = content_of(&data.expect("a read has data"));
                    for (n, (found, versions)) in found.iter().zip(&versions).enumerate() {
                        let sector = start + n as u64;
                        let is_newer = self.oracle.versions(sector).contains(found);
                        assert!(versions.contains(found) || is_newer, "sector {sector}: {found}, not {versions:?}");
                    }
                }
                (Waits::Whole, Ok(data)) => self.whole = Some(content_of(&data.expect("a read has data"))),
                (_, Err(fault)) => assert_eq!(fault.kind, ErrorKind::Io, "{fault}"),
            }
        }
    }

    fn submit(&mut self) {
        if self.host.vault.room() == 0 || self.waits.len() > 8 {
            return;
        }
        let is_durable = |waits: &Waits| matches!(waits, Waits::Durable(..));
        if self.waits_for_flushes && self.waits.values().any(is_durable) {
            return;
        }
        let tag = self.next_tag;
        self.next_tag += 1;
        let start = self.random.below(SECTORS);
        let sectors = match self.random.below(4) {
            0 => 1 + self.random.below(40),
            _ => 1 + self.random.below(8),
        };
        let sectors = sectors.min(SECTORS - start);
        let may_end = !self.waits_for_flushes || self.waits.is_empty();
        let op = match self.random.below(10) {
            0 if may_end => {
                self.waits.insert(tag, Waits::Durable(self.oracle.flush(), false));
                DeviceOp::Flush
            }
            1 if may_end => {
                let op = self.oracle.change(tag, start, sectors, false, true);
                self.waits.insert(tag, Waits::Durable(self.oracle.upto(tag), true));
                op
            }
            2 | 3 => {
                let versions = (start..start + sectors).map(|sector| self.oracle.versions(sector)).collect();
                self.waits.insert(tag, Waits::Read { start, versions });
                DeviceOp::Read { offset: start * 512, len: sectors as usize * 512 }
            }
            kind => {
                self.waits.insert(tag, Waits::Change);
                self.oracle.change(tag, start, sectors, kind == 4, false)
            }
        };
        self.host.vault.submit(self.now, tag, op);
    }

    /// The host dies. What it has asked for may still be carried out, at any time.
    fn crash(&mut self, life: u64) {
        for (_, request) in std::mem::take(&mut self.host.requests) {
            if self.random.once_in(2) {
                self.ghosts.push(request);
            }
        }
        self.waits.clear();
        self.host = Host::open(&life.to_string(), Access::Own(Takeover::Always), small_limits(), self.now);
    }

    /// Until the volume is open.
    fn open(&mut self) {
        for _ in 0..20_000 {
            if self.host.opened.is_some() {
                return;
            }
            assert_eq!(self.host.refused, None);
            self.turn();
        }
        panic!("it does not open");
    }

    fn read_all(&mut self) -> Content {
        let tag = self.next_tag;
        self.next_tag += 1;
        self.host.vault.submit(self.now, tag, DeviceOp::Read { offset: 0, len: SECTORS as usize * 512 });
        self.waits.insert(tag, Waits::Whole);
        for _ in 0..20_000 {
            self.turn();
            if let Some(whole) = self.whole.take() {
                return whole;
            }
        }
        panic!("it is not read");
    }
}

fn lives(seed: u64, waits_for_flushes: bool) -> u64 {
    let mut world = World::new(seed, waits_for_flushes);
    let mut kept = 0;
    world.open();
    for life in 1..=6 {
        for _ in 0..world.random.below(400) {
            if world.random.once_in(2) {
                world.submit();
            }
            if !world.random.once_in(3) {
                world.turn();
            }
        }
        world.crash(life);
        world.open();
        let found = world.read_all();
        let upto = world.oracle.judge(&found, waits_for_flushes).unwrap_or_else(|what| panic!("seed {seed}, life {life}: {what}"));
        kept += u64::from(upto > 0 && upto < world.oracle.len());
        world.oracle.begin_with(found);
    }
    kept
}

#[test]
fn after_a_crash_all_changes_up_to_a_commit_are_there_and_no_other() {
    let kept: u64 = (0..300).map(|seed| lives(seed, true)).sum();
    assert!(kept > 100, "crashes leave a part: {kept}");
}

#[test]
fn after_a_crash_changes_are_there_in_their_order_whatever_is_under_way() {
    let kept: u64 = (1000..1300).map(|seed| lives(seed, false)).sum();
    assert!(kept > 100, "crashes leave a part: {kept}");
}
