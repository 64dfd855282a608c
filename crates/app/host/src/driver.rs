//! A volume's thread: takes requests in, turns the engine, carries out what it asks for, and sleeps in the ring.
//!
//! ```text
//!        frontends                         devices
//!   requests, messages                ends of operations
//!           │                               │
//!           ▼                               ▼
//!        events ──────► core.handle ◄──── events
//!                           │ core.poll
//!                           ▼
//!     replies ◄────────  effects ────────► operations ──► ring: submit, sleep
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use foldhash::HashMap;
use forebay_block::{
    Allocation, Class, Completion, DeviceOp, DeviceResult, ErrorKind, Inside, IoError, Nanos, Op, Origin,
    Reply, Round,
};
use forebay_device::{Beside, Clock, Ring};
use forebay_engine::{
    Command, Effect, Event, IoId, RecoveryError, RecoveryReport, RequestId, Role, State, Status,
};

use crate::ailing::with_away;
use crate::core::Core;
use crate::devices::Devices;
use crate::error::HostError;
use crate::feeds::Feeds;
use crate::handle::Shared;
use crate::label::SideWrite;
use crate::lanes::Cost;
use crate::queue::{
    CommandDone, CommonDone, Ended, Ending, Incoming, MarkDone, Message, ZERO_PIECE_BYTES, bytes_of,
};
use crate::slow::Operations;
use crate::superblocks::Bench;
use crate::survey::{Cached, Surveyor, Turns};

/// Operations that the host itself starts carry tags from here on; the engine counts its own from 1.
const HOST_TAGS: u64 = 1 << 63;
/// A request of a client that has not been answered.
struct Outstanding {
    done: Completion,
    bytes: u64,
    /// What it counts for while it is in work.
    cost: Cost,
    /// What is left to do once this piece of it is done.
    rest: Option<Rest>,
    origin: Origin,
    /// Where a question about allocation begins, and how many extents it has a use for.
    status: Option<(u64, usize)>,
    /// It is a change of the volume; that ends before the client is answered.
    inside: Option<Inside>,
}

/// The rest of a long zero or trim, of which a piece is in work.
struct Rest {
    offset: u64,
    len: u64,
    unmap: bool,
    fua: bool,
}

/// The log is being made void (P9): operations that are left, whether the label in a side file is on its way, and whether one place says
/// so durably.
struct Retirement {
    id: IoId,
    steps: VecDeque<(Role, DeviceOp)>,
    steps_are_done: bool,
    beside: bool,
    written: bool,
}

/// How the thread's loop ended.
pub(crate) enum End {
    /// The core has stopped cleanly, or could not.
    Stopped { ending: Ending, result: Result<(), IoError> },
    /// As if killed.
    Abandoned,
    /// The ring failed: nothing can be carried out any more.
    RingFailed(std::io::Error),
}

/// See the module's documentation.
pub(crate) struct Driver {
    pub(crate) ring: Ring,
    pub(crate) clock: Clock,
    pub(crate) core: Core,
    // It goes before the devices, of whose claims its open file is a part.
    surveyor: Surveyor,
    pub(crate) devices: Devices,
    shared: Arc<Shared>,
    /// Questions about allocation, before the core has answered and afterwards.
    turns: Turns,
    feeds: Feeds,
    requests: HashMap<RequestId, Outstanding>,
    commands: HashMap<RequestId, CommandDone>,
    marks: HashMap<RequestId, MarkDone>,
    common: HashMap<RequestId, CommonDone>,
    next_id: u64,
    recovered: Option<Result<RecoveryReport, RecoveryError>>,
    retirement: Option<Retirement>,
    /// The end that was asked for, and once it is known, how stopping went.
    ending: Option<(Ending, Option<Result<(), IoError>>)>,
    /// Operations that the devices have not ended.
    under_way: usize,
    operations: Operations,
    status_wanted: bool,
    effects: Vec<Effect>,
    /// Requests that were answered in this turn.
    ended: Vec<Ended>,
    done: Vec<(u64, DeviceResult)>,
    incoming: VecDeque<Incoming>,
    messages: VecDeque<Message>,
}

impl Driver {
    /// # Errors
    /// There is no room for one more thread or open file.
    pub(crate) fn new(
        ring: Ring,
        clock: Clock,
        core: Core,
        devices: Devices,
        shared: Arc<Shared>,
    ) -> Result<Self, std::io::Error> {
        let surveyor = Surveyor::start(devices.backing().survey()?, &shared)?;
        let feeds = Feeds::new(shared.queue.feeds.clone());
        Ok(Self {
            ring,
            clock,
            core,
            surveyor,
            devices,
            shared,
            turns: Turns::default(),
            feeds,
            requests: HashMap::default(),
            commands: HashMap::default(),
            marks: HashMap::default(),
            common: HashMap::default(),
            next_id: 0,
            recovered: None,
            retirement: None,
            ending: None,
            under_way: 0,
            operations: Operations::default(),
            status_wanted: false,
            effects: Vec::new(),
            ended: Vec::new(),
            done: Vec::new(),
            incoming: VecDeque::new(),
            messages: VecDeque::new(),
        })
    }

    /// Runs until recovery has ended. Nothing is taken from the queue before: requests wait there.
    pub(crate) fn recover(&mut self) -> Result<Result<RecoveryReport, RecoveryError>, std::io::Error> {
        loop {
            let now = self.turn();
            if let Some(result) = self.recovered.take() {
                return Ok(result);
            }
            self.sleep(now, |_| true)?;
        }
    }

    /// Serves until the end.
    pub(crate) fn serve(&mut self) -> End {
        loop {
            self.feeds.fetch(&self.ring, || self.clock.now());
            self.take_in();
            let now = self.turn();
            if let Some(end) = self.end_reached() {
                // What is left to be done on the devices is waited for alone.
                self.feeds.give_up(&self.ring);
                return end;
            }
            if let Err(e) = self.sleep(now, |shared| shared.queue.is_empty(now)) {
                return End::RingFailed(e);
            }
        }
    }

    /// One turn: what has ended goes in, what is to be done comes out and is started. What that has ended at once, in a device that is
    /// mapped memory, goes in as well.
    fn turn(&mut self) -> Nanos {
        let now = self.step();
        match self.devices.deadline() {
            Some(at) if at <= now => self.step(),
            _ => now,
        }
    }

    fn step(&mut self) -> Nanos {
        let now = self.clock.now();
        self.devices.poll(now, &mut self.done);
        if self.devices.is_fenced() {
            self.core.handle(Event::Fenced, now);
        }
        let mut done = std::mem::take(&mut self.done);
        for (tag, result) in done.drain(..) {
            self.under_way -= 1;
            self.operations.ended(&self.shared.info.name, tag, &result, now);
            match tag < HOST_TAGS {
                true => self.core.handle(Event::Io { id: IoId(tag), result }, now),
                false => self.retirement_step(Some(result), now),
            }
        }
        self.done = done;
        self.core.poll(now, &mut self.effects);
        let mut effects = std::mem::take(&mut self.effects);
        let mut ended = std::mem::take(&mut self.ended);
        let mut round = None;
        for effect in effects.drain(..) {
            match effect {
                Effect::Reply { id, result } => {
                    round.get_or_insert_with(Round::begin);
                    ended.extend(self.reply(id, result));
                }
                effect => {
                    // A device may take its time.
                    if matches!(effect, Effect::Io { .. }) {
                        round = None;
                    }
                    self.carry_out(effect, now);
                }
            }
        }
        drop(round);
        self.effects = effects;
        if !ended.is_empty() {
            self.shared.queue.release(&ended);
            ended.clear();
        }
        self.ended = ended;
        if std::mem::take(&mut self.status_wanted) {
            self.publish(now);
        }
        now
    }

    fn publish(&self, now: Nanos) {
        let mut status = self.core.status(now);
        if let Some((role, away)) = self.devices.away() {
            let wall_ns = self.clock.wall_offset_ns().saturating_add(now.0);
            status.ailing = Some(with_away(status.ailing, role, away, wall_ns));
        }
        self.shared.publish(status);
    }

    fn sleep(&mut self, now: Nanos, idle: impl FnOnce(&Shared) -> bool) -> std::io::Result<()> {
        let lanes = self.shared.queue.next_change(now);
        let wakes = [self.core.next_wake(), self.devices.deadline(), self.turns.next_at(now), lanes];
        let wake = wakes.into_iter().flatten().min();
        let timeout = match self.feeds.is_ready() {
            true => Some(Duration::ZERO),
            false => wake.map(|at| Duration::from_nanos(at.since(now))),
        };
        let shared = &self.shared;
        self.ring.submit_and_wait(timeout, || idle(shared))
    }

    fn take_in(&mut self) {
        let now = self.clock.now();
        self.shared.queue.drain(now, &mut self.incoming, &mut self.messages);
        let mut incoming = std::mem::take(&mut self.incoming);
        for incoming in incoming.drain(..) {
            match incoming.op {
                Op::Status { .. } if !incoming.origin.sync && self.ending.is_none() => {
                    self.turns.wait(incoming)
                }
                _ => {
                    self.turns.give_way(now);
                    self.take_request(incoming, now);
                }
            }
        }
        self.incoming = incoming;
        while let Some(message) = self.messages.pop_front() {
            self.take_message(message, now);
        }
        if !self.requests.is_empty() {
            self.turns.give_way(now);
        }
        if let Some(question) = self.turns.take(now) {
            let began = self.clock.now();
            self.take_request(question, began);
            self.turns.spent(began, self.clock.now());
        }
    }

    fn take_request(&mut self, incoming: Incoming, now: Nanos) {
        let cost = incoming.cost();
        let Incoming { op, origin, done, identified, inside } = incoming;
        let lane = origin.lane;
        let (origin, done) = match self.shared.observer.get() {
            Some(observer) if !identified => observer.identify(&op, origin, done),
            _ => (origin, done),
        };
        // Only now: whoever knows its issuer knows it as a whole.
        let (op, rest) = self.cut(op);
        let id = self.new_id();
        let status = match op {
            Op::Status { offset, extents_max, .. } => Some((offset, extents_max)),
            _ => None,
        };
        let forced = matches!(op, Op::Write { fua: true, .. } | Op::Zero { fua: true, .. });
        let known = Origin { sync: origin.is_sync(forced), lane, ..origin };
        let bytes = bytes_of(&op);
        self.requests.insert(id, Outstanding { done, bytes, cost, rest, origin: known, status, inside });
        self.core.handle(Event::Request { id, op, origin }, now);
    }

    /// The piece of a long zero or trim that is carried out next, and the rest. Somebody else may want some of its blocks, or the
    /// backing, and should not have to wait for all of it; without a cache that may be the same client. Nothing is acknowledged before the last piece is done, and a crash before that
    /// may leave some of the pieces done.
    fn cut(&self, op: Op) -> (Op, Option<Rest>) {
        match op {
            Op::Zero { offset, len, unmap, fua }
                if len > ZERO_PIECE_BYTES && (self.core.keeps_order() || self.shared.queue.is_shared()) =>
            {
                // The pieces meet at multiples of their length, so that they are made of whole blocks.
                let first = ZERO_PIECE_BYTES - offset % ZERO_PIECE_BYTES;
                let rest = Rest { offset: offset + first, len: len - first, unmap, fua };
                (Op::Zero { offset, len: first, unmap, fua }, Some(rest))
            }
            op => (op, None),
        }
    }

    fn take_message(&mut self, message: Message, now: Nanos) {
        match message {
            Message::Command(command, done) => {
                let id = self.new_id();
                self.commands.insert(id, done);
                self.core.handle(Event::Command { id, command }, now);
            }
            Message::Mark(label, done) => {
                let id = self.new_id();
                self.marks.insert(id, done);
                self.core.handle(Event::Command { id, command: Command::Mark { label } }, now);
            }
            Message::Common(round, run, step, done) => {
                let id = self.new_id();
                self.common.insert(id, done);
                self.core.handle(Event::Command { id, command: Command::Common { round, run, step } }, now);
            }
            // The engine has no part in it: it is what the store has that gets a name.
            Message::Checkpoint(change, done) => {
                if let Some((backing, _)) = self.devices.role(Role::Backing) {
                    backing.checkpoint(change, done, now);
                }
            }
            Message::Promote { offset, len } => self.core.handle(Event::Promote { offset, len }, now),
            Message::Adopt(feed) => self.feeds.adopt(&self.ring, feed),
            Message::LabelWritten { well } => self.label_written(well, now),
            Message::Status => self.status_wanted = true,
            // The first one counts.
            Message::End(ending) if self.ending.is_none() => {
                self.ending = Some((ending, None));
                // Nobody gets a turn any more: what has been asked is answered now.
                let waiting: Vec<_> = self.turns.drain().collect();
                waiting.into_iter().for_each(|question| self.take_request(question, now));
                if ending != Ending::Abandon {
                    // Of a volume that is only read the last words say what was not done.
                    self.stop(ending != Ending::Keep && !self.shared.info.read_only, now);
                }
            }
            Message::End(_) => {}
        }
    }

    fn stop(&mut self, destage: bool, now: Nanos) {
        let id = self.new_id();
        self.core.handle(Event::Command { id, command: Command::Stop { destage } }, now);
    }

    fn new_id(&mut self) -> RequestId {
        self.next_id += 1;
        RequestId(self.next_id)
    }

    fn carry_out(&mut self, effect: Effect, now: Nanos) {
        match effect {
            Effect::Io { id, role, op, class } => self.start(id.0, role, op, class, now),
            Effect::Reply { .. } => {}
            Effect::Admitted { id, reason, bytes } => {
                if let (Some(observer), Some(request)) = (self.shared.observer.get(), self.requests.get(&id))
                {
                    observer.admitted(&request.origin, reason, bytes);
                }
            }
            Effect::CommandDone { id, result } => match self.commands.remove(&id) {
                Some(done) => done(result),
                // Only the host's own command to stop has nobody waiting for it.
                None => self.stopped(result),
            },
            Effect::Marked { id, result } => {
                if let Some(done) = self.marks.remove(&id) {
                    done(result);
                }
            }
            Effect::CommonDone { id, result } => {
                if let Some(done) = self.common.remove(&id) {
                    done(result);
                }
            }
            Effect::Recovered(result) => self.recovered = Some(result),
            Effect::RetireLog { id } => {
                if let Devices::Pair(pair) = &mut self.devices {
                    let (steps, beside) = pair.retire();
                    let (steps, begun) = (steps.into(), beside.is_some());
                    self.retirement =
                        Some(Retirement { id, steps, steps_are_done: false, beside: begun, written: false });
                    if let Some(write) = beside {
                        self.write_label_apart(write, now);
                    }
                    self.retirement_step(None, now);
                }
            }
        }
    }

    fn start(&mut self, tag: u64, role: Role, op: DeviceOp, class: Class, now: Nanos) {
        self.under_way += 1;
        match self.devices.role(role) {
            Some((device, offset)) => {
                let op = op.moved(offset);
                self.operations.started(tag, role, &op, now);
                device.submit(tag, op, class, now);
            }
            None => self
                .done
                .push((tag, Err(IoError::new(ErrorKind::Unsupported, "device of a volume without it")))),
        }
    }

    /// Answers a client; returns the request that has ended by that. A question about allocation goes on to the backing if not everything is
    /// cached, and keeps its place until that has answered; and so does a zero of which only a piece is done.
    fn reply(&mut self, id: RequestId, result: Result<Reply, IoError>) -> Option<Ended> {
        let mut outstanding = self.requests.remove(&id)?;
        let (cost, origin) = (outstanding.cost, outstanding.origin);
        if let Some(Rest { offset, len, unmap, fua }) = outstanding.rest.take_if(|_| result.is_ok()) {
            let Outstanding { done, inside, .. } = outstanding;
            let op = Op::Zero { offset, len, unmap, fua };
            self.shared.queue.push_rest(cost, Incoming { op, origin, done, identified: true, inside });
            return None;
        }
        let place = Ended { lane: origin.lane, bytes: outstanding.bytes, cost };
        let (done, result) = match (result, outstanding.status) {
            (Ok(Reply::Status(extents)), Some((offset, extents_max)))
                if extents.iter().any(|extent| extent.allocation == Allocation::Hole) =>
            {
                let cached = Cached { offset, extents_max, extents, done: outstanding.done, place };
                match self.surveyor.ask(cached) {
                    Ok(()) => return None,
                    Err(done) => (done, Err(IoError::new(ErrorKind::Io, "asking the backing for its holes"))),
                }
            }
            (result, _) => (outstanding.done, result),
        };
        drop(outstanding.inside);
        done(result);
        Some(place)
    }

    /// Has the label written by a thread of its own: what its file system takes must not keep the volume from answering.
    fn write_label_apart(&mut self, write: SideWrite, now: Nanos) {
        self.under_way += 1;
        let shared = Arc::clone(&self.shared);
        let spawned = thread::Builder::new().name("label".to_owned()).spawn(move || {
            let well = write.carry_out().is_ok();
            // A volume that has ended meanwhile has nobody who waits for it.
            let _ = shared.queue.tell(Message::LabelWritten { well });
        });
        if spawned.is_err() {
            self.label_written(false, now);
        }
    }

    fn label_written(&mut self, well: bool, now: Nanos) {
        self.under_way -= 1;
        if let Some((backing, _)) = self.devices.role(Role::Backing) {
            backing.beside(Beside::Ended { well });
        }
        if let Some(retirement) = &mut self.retirement {
            retirement.beside = false;
            retirement.written |= well;
            if retirement.steps_are_done {
                self.retirement_end(now);
            }
        }
    }

    fn retirement_step(&mut self, ended: Option<DeviceResult>, now: Nanos) {
        let Some(retirement) = &mut self.retirement else { return };
        retirement.written |= ended.is_some_and(|result| result.is_ok());
        match retirement.steps.pop_front() {
            Some((role, op)) => self.start(HOST_TAGS, role, op, Class::Foreground, now),
            None => {
                retirement.steps_are_done = true;
                self.retirement_end(now);
            }
        }
    }

    /// Ends it once nothing of it is left, be it an operation or the label's file.
    fn retirement_end(&mut self, now: Nanos) {
        let Some(retirement) = self.retirement.take_if(|retirement| !retirement.beside) else { return };
        let result = match retirement.written {
            true => Ok(None),
            false => Err(IoError::new(ErrorKind::Io, "making the log void")),
        };
        self.core.handle(Event::Io { id: retirement.id, result }, now);
    }

    fn stopped(&mut self, result: Result<(), IoError>) {
        if let Some((_, outcome)) = &mut self.ending {
            *outcome = Some(result);
        }
    }

    fn end_reached(&mut self) -> Option<End> {
        let (ending, outcome) = self.ending.as_ref()?;
        if *ending == Ending::Abandon {
            return Some(End::Abandoned);
        }
        let result = outcome.clone()?;
        // What the last words are written with must be the only thing that the devices do.
        (self.under_way == 0).then_some(End::Stopped { ending: *ending, result })
    }

    /// Writes the last words on the devices after a stop; `clean` if the core could leave everything in order.
    pub(crate) fn finish(&mut self, ending: Ending, clean: bool) -> Result<(), HostError> {
        let Status { state, dirty_bytes, .. } = self.core.status(self.clock.now());
        let bench = Bench { ring: &self.ring, clock: &self.clock };
        match &mut self.devices {
            // What is said of the backing is another host's to say.
            _ if state == Some(State::Fenced) => Ok(()),
            // No run was begun.
            Devices::Pair(_) if self.shared.info.read_only && ending == Ending::Release => {
                Err(HostError::ReadOnly {
                    volume: self.shared.info.name.clone(),
                    what: "its cache cannot be removed",
                })
            }
            Devices::Pair(_)
                if self.shared.info.read_only && ending == Ending::Destage && dirty_bytes > 0 =>
            {
                Err(HostError::ReadOnly {
                    volume: self.shared.info.name.clone(),
                    what: "what the backing lacks stays in the cache",
                })
            }
            Devices::Pair(_) if self.shared.info.read_only => Ok(()),
            Devices::Pair(pair) if ending == Ending::Release && clean => {
                if dirty_bytes > 0 {
                    pair.end_run(&bench, true)?;
                    return Err(HostError::CacheDirty { cache: pair.cache.info().name.clone(), dirty_bytes });
                }
                pair.release(&bench)
            }
            Devices::Pair(pair) => pair.end_run(&bench, clean),
            Devices::Backing(_) => Ok(()),
        }
    }

    /// Answers whoever still waits, because nothing more will come.
    fn fail_the_rest(&mut self) {
        let shutdown = || IoError::new(ErrorKind::Shutdown, "request to a volume that has stopped");
        let (requests, messages) = self.shared.queue.close();
        let waiting = self.incoming.drain(..).chain(self.turns.drain());
        for Incoming { done, .. } in requests.into_iter().chain(waiting) {
            done(Err(shutdown()));
        }
        for (_, outstanding) in self.requests.drain() {
            (outstanding.done)(Err(shutdown()));
        }
        for message in messages.into_iter().chain(self.messages.drain(..)) {
            if let Message::Command(_, done) = message {
                done(Err(shutdown()));
            }
        }
        for (_, done) in self.commands.drain() {
            done(Err(shutdown()));
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.fail_the_rest();
    }
}
