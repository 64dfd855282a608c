//! A host and its client on a store with every fault.

use std::collections::BTreeMap;

use forebay_block::{DeviceOp, ErrorKind, Nanos};
use forebay_objects::model::{Fate, Model};
use forebay_objects::{Access, Command, CommandError, Request, Takeover};

use crate::oracle::{Content, Oracle, SECTORS, content_of};
use crate::random::Random;
use crate::world::{Host, small_limits, volume};

/// What a client waits for.
#[derive(Debug)]
enum Waits {
    Change,
    /// A durable change, or a flush: so many changes are durable then.
    Durable(usize, bool),
    Read {
        start: u64,
        versions: Vec<Vec<u64>>,
        at: Nanos,
    },
    /// All that is in the volume.
    Whole,
}

/// The store, a clock, and the requests of hosts that are dead.
pub struct World {
    pub random: Random,
    pub model: Model,
    pub now: Nanos,
    pub ghosts: Vec<Request>,
    /// Requests that fail, one in so many.
    faults: u64,
}

/// A host and its client.
pub struct Client {
    pub host: Host,
    pub oracle: Oracle,
    waits: BTreeMap<u64, Waits>,
    whole: Option<Content>,
    next_tag: u64,
    /// A command that is not answered yet.
    commanded: Option<(u64, Command, Content)>,
    /// What named checkpoints keep.
    pub names: BTreeMap<String, Content>,
    /// It waits for the end of a flush before it goes on.
    waits_for_flushes: bool,
    /// When the last read was submitted that was answered.
    pub last_read_at: Nanos,
}

impl World {
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let faults = [3, 10, 1_000_000][random.below(3) as usize];
        Self { model: volume(SECTORS * 512), random, now: Nanos(0), ghosts: Vec::new(), faults }
    }

    fn fate(&mut self) -> Fate {
        if !self.random.once_in(self.faults) {
            return Fate::Done;
        }
        [Fate::AnswerLost, Fate::Lost, Fate::Late, Fate::Refused][self.random.below(4) as usize]
    }

    /// What was late may come.
    fn land(&mut self) {
        if self.model.late() > 0 && self.random.once_in(4) {
            let which = self.random.below(self.model.late() as u64) as usize;
            self.model.land(which);
        }
        if !self.ghosts.is_empty() && self.random.once_in(8) {
            let which = self.random.below(self.ghosts.len() as u64) as usize;
            let request = self.ghosts.swap_remove(which);
            let _ = self.model.take(&request, Fate::Done);
        }
    }
}

impl Client {
    pub fn new(
        world: &World,
        name: &str,
        takeover: Takeover,
        waits_for_flushes: bool,
        oracle: Oracle,
    ) -> Self {
        Self {
            host: Host::open(name, Access::Own(takeover), small_limits(), world.now),
            oracle,
            waits: BTreeMap::new(),
            whole: None,
            next_tag: 0,
            commanded: None,
            names: BTreeMap::new(),
            waits_for_flushes,
            last_read_at: Nanos(0),
        }
    }

    /// Lets something happen in the store, or time pass.
    pub fn turn(&mut self, world: &mut World) {
        self.host.poll(world.now);
        world.land();
        if !self.host.requests.is_empty() {
            let which = world.random.below(self.host.requests.len() as u64) as usize;
            let fate = world.fate();
            self.host.answer(world.now, &mut world.model, which, fate);
        } else if let Some(at) = self.host.vault.deadline() {
            world.now = world.now.max(at);
        }
        world.now.0 += world.random.below(20_000_000);
        self.hear();
    }

    /// Takes the answers.
    fn hear(&mut self) {
        if let Some((tag, command, content)) = self.commanded.take() {
            match (self.host.carried.remove(&tag), command) {
                (None, command) => self.commanded = Some((tag, command, content)),
                (Some(Ok(())), Command::Name(name)) => drop(self.names.insert(name, content)),
                (Some(_), _) => {}
            }
        }
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
                (Waits::Read { start, versions, at }, Ok(data)) => {
                    let found = content_of(&data.expect("a read has data"));
                    let newer = self.oracle.versions(start, found.len() as u64);
                    for (n, found) in found.iter().enumerate() {
                        let is_known = versions[n].contains(found) || newer[n].contains(found);
                        assert!(is_known, "sector {}: {found}, not {:?}", start + n as u64, versions[n]);
                    }
                    self.last_read_at = self.last_read_at.max(at);
                }
                (Waits::Whole, Ok(data)) => self.whole = Some(content_of(&data.expect("a read has data"))),
                (_, Err(fault)) => {
                    assert!(matches!(fault.kind, ErrorKind::Io | ErrorKind::Fenced), "{fault}");
                }
            }
        }
    }

    /// Submits what comes to mind.
    pub fn submit(&mut self, world: &mut World) {
        if self.host.vault.room() == 0 || self.waits.len() > 8 {
            return;
        }
        let is_durable = |waits: &Waits| matches!(waits, Waits::Durable(..));
        let is_ending = self.waits.values().any(is_durable) || self.commanded.is_some();
        if self.waits_for_flushes && is_ending {
            return;
        }
        let random = &mut world.random;
        let tag = self.next_tag;
        self.next_tag += 1;
        let start = random.below(SECTORS);
        let sectors = match random.below(4) {
            0 => 1 + random.below(40),
            _ => 1 + random.below(8),
        };
        let sectors = sectors.min(SECTORS - start);
        let may_end = !self.waits_for_flushes || self.waits.is_empty();
        let op = match random.below(10) {
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
                let versions = self.oracle.versions(start, sectors);
                self.waits.insert(tag, Waits::Read { start, versions, at: world.now });
                DeviceOp::Read { offset: start * 512, len: sectors as usize * 512 }
            }
            6 if may_end => {
                let op = self.oracle.group(tag, &mut world.random);
                self.waits.insert(tag, Waits::Durable(self.oracle.upto(tag), true));
                op
            }
            kind => {
                self.waits.insert(tag, Waits::Change);
                self.oracle.change(tag, start, sectors, kind == 4, false)
            }
        };
        self.host.vault.submit(world.now, tag, op);
    }

    /// Gives and takes back names now and then; such a command ends a group.
    pub fn name(&mut self, world: &mut World) {
        if self.waits.is_empty() && self.commanded.is_none() {
            self.oracle.flush();
            let name = ["a", "b"][world.random.below(2) as usize].to_owned();
            let is_there = self.host.vault.named().iter().any(|named| named.name == name);
            let command = if is_there { Command::Unname(name) } else { Command::Name(name) };
            let tag = self.next_tag;
            self.next_tag += 1;
            if let Command::Unname(name) = &command {
                self.names.remove(name);
            }
            self.commanded = Some((tag, command.clone(), self.oracle.newest()));
            self.host.vault.command(world.now, tag, command);
        }
    }

    /// Ends with all that was submitted, and gives the volume back.
    pub fn release(&mut self, world: &mut World) {
        let upto = self.oracle.flush();
        let tag = self.next_tag;
        self.next_tag += 1;
        // A command may wait for a commit mark.
        self.waits.insert(tag, Waits::Durable(upto, false));
        self.host.vault.submit(world.now, tag, DeviceOp::Flush);
        for _ in 0..20_000 {
            self.host.vault.command(world.now, u64::MAX, Command::Release);
            self.turn(world);
            while !self.host.carried.contains_key(&u64::MAX) {
                self.turn(world);
            }
            // It may be told as late, and be carried out.
            let told = self.host.carried.remove(&u64::MAX);
            if matches!(told, Some(Ok(()) | Err(CommandError::Invalid(_)))) {
                return self.oracle.flushed(upto);
            }
        }
        panic!("it is not released");
    }

    /// The host dies. What it has asked for may still be carried out, at any time.
    pub fn die(self, world: &mut World) -> Oracle {
        for (_, request) in self.host.requests {
            if world.random.once_in(2) {
                world.ghosts.push(request);
            }
        }
        self.oracle
    }

    /// Until the volume is open, or refused.
    pub fn open(&mut self, world: &mut World) {
        for _ in 0..20_000 {
            if self.host.opened.is_some() || self.host.refused.is_some() {
                return;
            }
            self.turn(world);
        }
        panic!("it does not open");
    }

    /// Begins to read all that is in the volume.
    pub fn ask_all(&mut self, world: &World) {
        let tag = self.next_tag;
        self.next_tag += 1;
        self.host.vault.submit(world.now, tag, DeviceOp::Read { offset: 0, len: SECTORS as usize * 512 });
        self.waits.insert(tag, Waits::Whole);
    }

    /// All that is in the volume, once it is read.
    pub fn whole(&mut self) -> Option<Content> {
        self.whole.take()
    }

    pub fn read_all(&mut self, world: &mut World) -> Content {
        self.ask_all(world);
        for _ in 0..20_000 {
            self.turn(world);
            if let Some(whole) = self.whole() {
                return whole;
            }
        }
        panic!("it is not read");
    }
}
