//! Disks: one arm, platters that turn whether or not anybody waits, a queue to choose from, a volatile write cache and a
//! read-ahead buffer.
//!
//! ```text
//!  submit ─► queue full? wait ─► controller ─┬─► read: in the buffer? ─► link ─► end
//!                                            │        └─► to the arm ─► end
//!                                            ├─► write: room in the cache? ─► link ─► end
//!                                            │        └─► durable, or no cache: to the arm ─► end
//!                                            └─► flush: all that was cached is on the medium ─► end
//!  the arm: of all that it knows, what it can be at soonest (seek, then the turn of the spindle);
//!           what has waited too long goes first; what is cached goes when nobody waits or room is needed
//! ```

mod cache;
mod geometry;
mod seek;
mod settings;
mod stream;

use std::collections::VecDeque;

use forebay_block::Nanos;

pub use settings::DiskSettings;

use crate::agenda::Agenda;
use crate::machine::{Access, Ends, Machine, Operation};
use crate::memory::transfer_ns;
use crate::parameter::BadSetting;
use crate::random::Random;
use cache::{Extent, WriteCache};
use geometry::Geometry;
use seek::SeekCurve;
use stream::ReadBuffer;

/// A sector that has passed the head by no more than this counts as just coming: times are whole nanoseconds, and a
/// transfer that goes on where the last one ended would else lose a turn to their rounding.
const ROUNDING_NS: u64 = 1_000;
/// Cached extents that the disk looks at when it chooses, oldest first. From no data sheet: with it, random writes
/// into the cache are two to three times as many a second as random reads at depth 1, which is what tests of such
/// drives show.
const DESTAGE_CHOICE_MAX: usize = 32;
/// Longest piece of a cached extent that is written in one go, in bytes: a read need not wait for more.
const DESTAGE_BYTES_MAX: u64 = 512 << 10;

/// A command that the disk has accepted.
#[derive(Clone, Copy, Debug)]
struct Command {
    tag: u64,
    op: Operation,
    arrived: Nanos,
}

impl Command {
    fn is_read(&self) -> bool {
        self.op.access == Access::Read
    }

    /// Bytes that go over the link.
    fn moved_bytes(&self) -> u64 {
        match self.op.access {
            Access::Read | Access::Write { .. } => self.op.len,
            Access::Flush | Access::Zero { .. } => 0,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// The controller knows the command.
    Known(Command),
    /// The head has read on as far as it should.
    ReadAheadDone,
    /// The host has the answer.
    Ended(u64),
}

/// What the arm is at.
#[derive(Clone, Copy, Debug)]
enum Work {
    Command(Command),
    Destage(Extent),
}

/// What the arm could do next.
#[derive(Clone, Copy, Debug)]
enum Choice {
    Command(usize),
    Destage(usize),
}

/// See the module's documentation.
pub(crate) struct Disk {
    settings: DiskSettings,
    geometry: Geometry,
    curve: SeekCurve,
    phase_ns: u64,
    /// The byte that the head is over, or before.
    head: u64,
    arm: Option<(Nanos, Work)>,
    agenda: Agenda<Event>,
    queue: Vec<Command>,
    /// Commands that the disk has no room for yet.
    outside: VecDeque<Command>,
    /// Commands that take a place of the queue.
    accepted: u64,
    cache: WriteCache,
    /// Writes that wait for room in the cache.
    blocked: VecDeque<Command>,
    /// Flushes, and the number of the last write that each covers.
    flushes: Vec<(Command, u64)>,
    buffer: ReadBuffer,
    /// The end of the read-ahead is planned as an event.
    read_ahead_watched: bool,
}

impl Disk {
    pub(crate) fn new(settings: &DiskSettings, device_bytes: u64) -> Result<Self, BadSetting> {
        let disk_bytes = settings.disk_bytes(device_bytes)?;
        Ok(Self {
            geometry: Geometry::new(settings, disk_bytes),
            curve: settings.curve()?,
            phase_ns: Random::new(settings.seed).below(settings.turn_ns()),
            head: 0,
            arm: None,
            agenda: Agenda::new(),
            queue: Vec::new(),
            outside: VecDeque::new(),
            accepted: 0,
            cache: WriteCache::new(settings.cache_bytes),
            blocked: VecDeque::new(),
            flushes: Vec::new(),
            buffer: ReadBuffer::new(settings.read_ahead_bytes, disk_bytes),
            read_ahead_watched: false,
            settings: settings.clone(),
        })
    }

    fn accept(&mut self, command: Command, now: Nanos) {
        self.accepted += 1;
        self.agenda.plan(Nanos(now.0 + self.settings.command_ns), Event::Known(command));
    }

    fn ends_at(&mut self, tag: u64, at: Nanos) {
        self.agenda.plan(at, Event::Ended(tag));
    }

    fn link_ns(&self, bytes: u64) -> u64 {
        transfer_ns(bytes, self.settings.link_rate_bytes)
    }

    fn happen(&mut self, event: Event, at: Nanos, ends: &mut Ends) {
        match event {
            Event::Known(command) => self.known(command, at),
            Event::ReadAheadDone => self.read_ahead_watched = false,
            Event::Ended(tag) => {
                ends.push((tag, at));
                self.accepted -= 1;
                if let Some(next) = self.outside.pop_front() {
                    self.accept(next, at);
                }
            }
        }
    }

    fn known(&mut self, command: Command, at: Nanos) {
        let Operation { access, offset, len } = command.op;
        let caches = self.settings.write_cache == 1 && self.cache.could_hold(len);
        match access {
            Access::Read if self.read_hits(offset, len, at) => {
                self.ends_at(command.tag, Nanos(at.0 + self.link_ns(len)));
            }
            Access::Read => self.queue.push(command),
            Access::Write { durable: false } | Access::Zero { unmap: false } if caches => {
                self.forget_read(offset, len, at);
                self.blocked.push_back(command);
                self.admit(at);
            }
            Access::Write { .. } | Access::Zero { unmap: false } => {
                self.forget_read(offset, len, at);
                self.queue.push(command);
            }
            Access::Flush if self.cache.is_empty() => self.ends_at(command.tag, at),
            Access::Flush => self.flushes.push((command, self.cache.newest())),
            // A disk knows no discard: it takes the command and does nothing.
            Access::Zero { unmap: true } => self.ends_at(command.tag, at),
        }
    }

    /// Whether a read is in a buffer. Where the disk had stopped reading ahead it goes on now.
    fn read_hits(&mut self, offset: u64, len: u64, at: Nanos) -> bool {
        self.buffer.fill(&self.geometry, at);
        let flowed = self.buffer.is_flowing();
        let hit = self.buffer.hit(offset, len);
        if let Some(head) = self.buffer.head().filter(|_| !flowed && self.buffer.is_flowing()) {
            self.buffer.resume(Nanos(at.0 + self.turn_until(head, at)));
        }
        hit || self.cache.holds(offset, len)
    }

    fn forget_read(&mut self, offset: u64, len: u64, at: Nanos) {
        self.buffer.fill(&self.geometry, at);
        if let Some(head) = self.buffer.forget(offset, len) {
            self.head = head;
        }
    }

    /// Takes writes into the cache while there is room, in order.
    fn admit(&mut self, at: Nanos) {
        while let Some(command) = self.blocked.front().copied() {
            let Operation { offset, len, .. } = command.op;
            if !self.cache.insert(offset, len) {
                return;
            }
            self.blocked.pop_front();
            self.ends_at(command.tag, Nanos(at.0 + self.link_ns(command.moved_bytes())));
        }
    }

    fn finish(&mut self, work: Work, at: Nanos) {
        match work {
            Work::Command(command) => {
                let Operation { offset, len, .. } = command.op;
                self.head = offset + len;
                if command.is_read() {
                    self.buffer.read(offset, len, at);
                }
                self.ends_at(command.tag, at);
            }
            Work::Destage(extent) => {
                self.head = extent.offset + extent.len;
                self.cache.written();
                let oldest = self.cache.oldest();
                let covered = |f: &mut (Command, u64)| oldest.is_none_or(|oldest| oldest > f.1);
                for (command, _) in self.flushes.extract_if(.., covered) {
                    self.agenda.plan(at, Event::Ended(command.tag));
                }
                self.admit(at);
            }
        }
    }

    /// Sets the arm to work, if there is any.
    fn start(&mut self, now: Nanos) {
        self.buffer.fill(&self.geometry, now);
        let Some(choice) = self.choose(now) else {
            return self.watch_read_ahead();
        };
        let (work, offset, len, flows) = match choice {
            Choice::Command(at) => {
                let command = self.queue.swap_remove(at);
                let Operation { offset, len, .. } = command.op;
                let flows = self.flows_over(&command);
                (Work::Command(command), offset, len, flows)
            }
            Choice::Destage(at) => {
                let Some(extent) = self.cache.take(at, DESTAGE_BYTES_MAX) else { return };
                (Work::Destage(extent), extent.offset, extent.len, None)
            }
        };
        let writes = !matches!(work, Work::Command(command) if command.is_read());
        let done = flows.unwrap_or_else(|| {
            let way_ns = self.way_ns(offset, writes, now);
            Nanos(now.0 + way_ns + self.geometry.transfer_ns(offset, len))
        });
        if let Some(head) = self.buffer.stop() {
            self.head = head;
        }
        // The link is faster than the head, but a read may have been overtaken by what the head read on.
        let linked_ns =
            if let Work::Command(command) = work { self.link_ns(command.moved_bytes()) } else { 0 };
        self.arm = Some((done.max(Nanos(now.0 + linked_ns)), work));
    }

    /// Cached writes wait until the disk has read ahead: it then has to look again.
    fn watch_read_ahead(&mut self) {
        if !self.cache.is_empty()
            && !self.read_ahead_watched
            && let Some(at) = self.buffer.stops_at(&self.geometry)
        {
            self.read_ahead_watched = true;
            self.agenda.plan(at, Event::ReadAheadDone);
        }
    }

    /// When a command will be done that the head is just reading into.
    fn flows_over(&self, command: &Command) -> Option<Nanos> {
        let Operation { offset, len, .. } = command.op;
        if command.is_read() { self.buffer.flows_over(offset, len, &self.geometry) } else { None }
    }

    fn choose(&self, now: Nanos) -> Option<Choice> {
        let oldest = self.queue.iter().enumerate().min_by_key(|(_, c)| c.arrived);
        let in_order = self.settings.queue == 1;
        if let Some((at, command)) = oldest
            && (in_order || now.since(command.arrived) > self.settings.age_ns_max)
        {
            return Some(Choice::Command(at));
        }
        let commands = self.queue.iter().enumerate().map(|(at, command)| {
            let flows = self.flows_over(command).is_some();
            let way_ns = if flows { 0 } else { self.way_ns(command.op.offset, !command.is_read(), now) };
            (way_ns, Choice::Command(at))
        });
        let wanted = if self.destages() { DESTAGE_CHOICE_MAX } else { 0 };
        let extents = self.cache.extents().take(wanted).enumerate();
        let extents =
            extents.map(|(at, extent)| (self.way_ns(extent.offset, true, now), Choice::Destage(at)));
        commands.chain(extents).min_by_key(|(way_ns, _)| *way_ns).map(|(_, choice)| choice)
    }

    /// Whether cached writes may have the arm.
    fn destages(&self) -> bool {
        let needed = !self.flushes.is_empty() || !self.blocked.is_empty() || self.cache.is_crowded();
        needed || self.queue.is_empty() && !self.buffer.is_flowing()
    }

    /// Nanoseconds until the head is over a byte: the arm's way, then the turn.
    fn way_ns(&self, offset: u64, writes: bool, now: Nanos) -> u64 {
        let head = self.buffer.head().unwrap_or(self.head);
        let (from, to) = (self.geometry.place(head), self.geometry.place(offset));
        let settle_ns = if writes { self.settings.write_settle_ns } else { 0 };
        let arm_ns = if from.cylinder != to.cylinder {
            self.curve.ns((to.radius - from.radius).abs()) + settle_ns
        } else if from.track != to.track {
            self.settings.track_switch_ns
        } else {
            0
        };
        arm_ns + self.turn_until(offset, Nanos(now.0 + arm_ns))
    }

    /// Nanoseconds until a byte passes the head.
    fn turn_until(&self, offset: u64, now: Nanos) -> u64 {
        let turn_ns = self.settings.turn_ns();
        let stands_ns = (now.0 + self.phase_ns) % turn_ns;
        let wait_ns = (self.geometry.place(offset).angle_ns + turn_ns - stands_ns) % turn_ns;
        if wait_ns + ROUNDING_NS >= turn_ns { 0 } else { wait_ns }
    }
}

impl Machine for Disk {
    fn submit(&mut self, tag: u64, op: Operation, now: Nanos) {
        let command = Command { tag, op, arrived: now };
        if self.accepted < self.settings.queue {
            self.accept(command, now);
        } else {
            self.outside.push_back(command);
        }
    }

    fn waiting(&self) -> usize {
        self.outside.len()
    }

    fn advance(&mut self, now: Nanos, ends: &mut Ends) {
        while let Some(first) = self.next_event().filter(|at| *at <= now) {
            if let Some((at, work)) = self.arm.take_if(|(at, _)| *at == first) {
                self.finish(work, at);
            } else if let Some((at, event)) = self.agenda.pop() {
                self.happen(event, at, ends);
            }
            if self.arm.is_none() {
                self.start(first);
            }
        }
    }

    fn next_event(&self) -> Option<Nanos> {
        [self.agenda.first(), self.arm.map(|(at, _)| at)].into_iter().flatten().min()
    }
}
