//! Solid-state disks: a controller, dies behind it, a link to the host, and a DRAM buffer in front of the dies' slow
//! programming.
//!
//! ```text
//!  read:   controller ─► dies (one page each) ─► link ─► end
//!  write:  controller ─► link ─► room in the buffer ─► end
//!                                      └─► programmed in the background, at the sustained rate
//! ```
//!
//! Garbage collection is not played out; its cost in the steady state is what makes the published rate of random
//! writes so much lower than the sequential one, and that difference is charged to every write that continues none of
//! the latest streams.

mod settings;

use std::collections::{HashMap, VecDeque};

use forebay_block::Nanos;

pub use settings::FlashSettings;

use crate::agenda::Agenda;
use crate::machine::{Access, Ends, Machine, Operation};
use crate::memory::transfer_ns;
use crate::random::Random;
use crate::spread::Spread;

/// Unit in which data lies on the dies, and that one die reads at a time, in bytes.
const PAGE_BYTES: u64 = 16 << 10;
/// Sequential streams that are told from random accesses, of reads and of writes.
const STREAMS_MAX: usize = 16;
/// The published random rates are of operations of so many bytes.
const RANDOM_BYTES: u64 = 4096;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The controller has understood the command.
    Understood(u64),
    /// A page of a read has left its die; so many bytes of it go over the link.
    PageRead(u64, u64),
    /// So many bytes of a read are with the host.
    PageSent(u64),
    /// The data of a write has come over the link.
    Received(u64),
    /// The operation has ended.
    Ended(u64),
}

#[derive(Clone, Copy, Debug)]
struct Command {
    tag: u64,
    op: Operation,
    pages_left: u64,
    sequential: bool,
}

/// See the module's documentation.
pub(crate) struct Flash {
    settings: FlashSettings,
    command_ns: u64,
    die_read: Spread,
    /// What is left of a read-ahead's latency beside controller and link.
    buffered_ns: u64,
    accept: Spread,
    random_write_ns: u64,
    random: Random,
    agenda: Agenda<Step>,
    commands: HashMap<u64, Command>,
    next_id: u64,
    controller_free: Nanos,
    die_free: Vec<Nanos>,
    out_free: Nanos,
    in_free: Nanos,
    buffered_bytes: u64,
    /// Writes that wait for room in the buffer.
    blocked: VecDeque<u64>,
    /// When the writes in the buffer will have been programmed, in order, and their bytes.
    drains: VecDeque<(Nanos, u64)>,
    drain_free: Nanos,
    read_streams: Streams,
    write_streams: Streams,
}

/// The ends of the latest sequential streams.
#[derive(Clone, Debug, Default)]
struct Streams(VecDeque<u64>);

impl Streams {
    /// Whether an access continues a stream; it then is the stream's newest, else a new stream's first.
    fn continues(&mut self, offset: u64, len: u64) -> bool {
        let found = self.0.iter().position(|end| *end == offset);
        if let Some(at) = found {
            self.0.remove(at);
        } else if self.0.len() == STREAMS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(offset + len);
        found.is_some()
    }
}

impl Flash {
    pub(crate) fn new(settings: &FlashSettings) -> Self {
        let s = settings;
        let command_ns = 1_000_000_000 / s.iops;
        let (out_ns, in_ns) =
            (transfer_ns(RANDOM_BYTES, s.read_rate_bytes), transfer_ns(RANDOM_BYTES, s.link_rate_bytes));
        // What is published is the whole; what the die or the buffer takes is what controller and link leave of it.
        let rest = |whole: u64, link_ns: u64| whole.saturating_sub(command_ns + link_ns);
        let tail = s.read_latency_ns_p99.max(s.read_latency_ns) - s.read_latency_ns;
        let die_ns = rest(s.read_latency_ns, out_ns);
        let accept_ns = rest(s.write_latency_ns, in_ns);
        let random_ns = 1_000_000_000 / s.write_iops;
        Self {
            command_ns,
            die_read: Spread::new(die_ns, die_ns + tail),
            buffered_ns: rest(s.read_ahead_latency_ns, out_ns),
            accept: Spread::new(accept_ns, accept_ns * 2),
            random_write_ns: random_ns.saturating_sub(transfer_ns(RANDOM_BYTES, s.write_rate_bytes)),
            random: Random::new(s.seed),
            agenda: Agenda::new(),
            commands: HashMap::new(),
            next_id: 0,
            controller_free: Nanos(0),
            die_free: vec![Nanos(0); s.dies as usize],
            out_free: Nanos(0),
            in_free: Nanos(0),
            buffered_bytes: 0,
            blocked: VecDeque::new(),
            drains: VecDeque::new(),
            drain_free: Nanos(0),
            read_streams: Streams::default(),
            write_streams: Streams::default(),
            settings: settings.clone(),
        }
    }

    fn step(&mut self, at: Nanos, step: Step, ends: &mut Ends) {
        match step {
            Step::Understood(id) => self.understood(id, at),
            Step::PageRead(id, bytes) => {
                self.out_free =
                    Nanos(self.out_free.max(at).0 + transfer_ns(bytes, self.settings.read_rate_bytes));
                self.agenda.plan(self.out_free, Step::PageSent(id));
            }
            Step::PageSent(id) => {
                if let Some(command) = self.commands.get_mut(&id) {
                    command.pages_left -= 1;
                    if command.pages_left == 0 {
                        self.end(id, at, ends);
                    }
                }
            }
            Step::Received(id) => {
                self.blocked.push_back(id);
                self.admit(at);
            }
            Step::Ended(id) => self.end(id, at, ends),
        }
    }

    fn end(&mut self, id: u64, at: Nanos, ends: &mut Ends) {
        if let Some(command) = self.commands.remove(&id) {
            ends.push((command.tag, at));
        }
    }

    fn understood(&mut self, id: u64, at: Nanos) {
        let Some(command) = self.commands.get(&id).copied() else { return };
        let op = command.op;
        match op.access {
            Access::Read => self.read(id, command, at),
            Access::Write { .. } => {
                self.in_free =
                    Nanos(self.in_free.max(at).0 + transfer_ns(op.len, self.settings.link_rate_bytes));
                self.agenda.plan(self.in_free, Step::Received(id));
            }
            Access::Flush => {
                let emptied =
                    if self.settings.power_loss_protection == 1 { at } else { self.drain_free.max(at) };
                self.agenda.plan(Nanos(emptied.0 + self.settings.flush_ns), Step::Ended(id));
            }
            // Zeroing is an entry in the mapping, whether or not the space is given back.
            Access::Zero { .. } => {
                let done = at.0 + self.accept.draw_ns(&mut self.random);
                self.agenda.plan(Nanos(done), Step::Ended(id));
            }
        }
    }

    fn read(&mut self, id: u64, command: Command, at: Nanos) {
        let (mut offset, end) = (command.op.offset, command.op.offset + command.op.len);
        if offset == end {
            self.agenda.plan(at, Step::Ended(id));
            return;
        }
        let mut pages = 0;
        while offset < end {
            let page = offset / PAGE_BYTES;
            let bytes = ((page + 1) * PAGE_BYTES).min(end) - offset;
            let read =
                if command.sequential { Nanos(at.0 + self.buffered_ns) } else { self.read_page(page, at) };
            self.agenda.plan(read, Step::PageRead(id, bytes));
            offset += bytes;
            pages += 1;
        }
        if let Some(command) = self.commands.get_mut(&id) {
            command.pages_left = pages;
        }
    }

    /// When a page will have left its die.
    fn read_page(&mut self, page: u64, at: Nanos) -> Nanos {
        let mut read_ns = self.die_read.draw_ns(&mut self.random);
        if self.drain_free > at {
            read_ns += self.random.below(self.settings.suspend_ns + 1);
        }
        let die = (page % self.settings.dies) as usize;
        self.die_free[die] = Nanos(self.die_free[die].max(at).0 + read_ns);
        self.die_free[die]
    }

    /// Takes writes into the buffer while there is room, in order. One that is larger than the buffer goes through it
    /// alone.
    fn admit(&mut self, at: Nanos) {
        while let Some(id) = self.blocked.front().copied() {
            let Some(command) = self.commands.get(&id).copied() else {
                self.blocked.pop_front();
                continue;
            };
            let Operation { access, offset, len } = command.op;
            if self.buffered_bytes > 0 && self.buffered_bytes + len > self.settings.buffer_bytes {
                return;
            }
            self.blocked.pop_front();
            self.buffered_bytes += len;
            let random_ns = if self.write_streams.continues(offset, len) { 0 } else { self.random_write_ns };
            let program_ns = transfer_ns(len, self.settings.write_rate_bytes) + random_ns;
            self.drain_free = Nanos(self.drain_free.max(at).0 + program_ns);
            self.drains.push_back((self.drain_free, len));
            let kept =
                self.settings.power_loss_protection == 1 || access != (Access::Write { durable: true });
            // A write that does not fit has to be programmed for the part that finds no room.
            let fits = len <= self.settings.buffer_bytes;
            let done = match (kept, fits) {
                (true, true) => at.0 + self.accept.draw_ns(&mut self.random),
                (true, false) => self.drain_free.0,
                (false, _) => self.drain_free.0 + self.settings.flush_ns,
            };
            self.agenda.plan(Nanos(done), Step::Ended(id));
        }
    }

    /// The next instant at which something happens inside.
    fn first(&self) -> Option<Nanos> {
        let drained = self.drains.front().map(|(at, _)| *at);
        [self.agenda.first(), drained].into_iter().flatten().min()
    }
}

impl Machine for Flash {
    fn submit(&mut self, tag: u64, op: Operation, now: Nanos) {
        self.next_id += 1;
        let sequential = op.access == Access::Read && self.read_streams.continues(op.offset, op.len);
        self.commands.insert(self.next_id, Command { tag, op, pages_left: 0, sequential });
        self.controller_free = Nanos(self.controller_free.max(now).0 + self.command_ns);
        self.agenda.plan(self.controller_free, Step::Understood(self.next_id));
    }

    fn advance(&mut self, now: Nanos, ends: &mut Ends) {
        while let Some(first) = self.first().filter(|at| *at <= now) {
            if let Some((at, bytes)) = self.drains.pop_front_if(|(at, _)| *at == first) {
                self.buffered_bytes -= bytes;
                self.admit(at);
            } else if let Some((at, step)) = self.agenda.pop() {
                self.step(at, step, ends);
            }
        }
    }

    /// The earliest that any command could end if nothing stood in its way from here on.
    fn next_event(&self) -> Option<Nanos> {
        let least = |id: &u64| match self.commands.get(id).map(|c| (c.op.access, c.sequential)) {
            Some((Access::Read, true)) => self.buffered_ns,
            Some((Access::Read, false)) => self.die_read.least_ns(),
            _ => 0,
        };
        let earliest = self.agenda.iter().map(|(at, step)| match step {
            Step::Understood(id) => at.0 + least(id),
            Step::PageRead(..) | Step::PageSent(_) | Step::Received(_) | Step::Ended(_) => at.0,
        });
        let room = self.drains.front().filter(|_| !self.blocked.is_empty()).map(|(at, _)| at.0);
        earliest.chain(room).min().map(Nanos)
    }
}
