//! A volume without a cache: the backing as it is, through the same interface as the engine's.
//!
//! What clients wait for goes first here, too: operations stand in the backing's queue ([`PlainQueue`]) before they start. Where nobody
//! has said of late that a request is critical ([`HINTED_NS`]), nothing is known of who waits, and everything counts as awaited. Else writes
//! are what nobody waits for, unless they are critical, or something comes to wait for them. Of those the device gets no more at a time
//! than [`PIECE_BYTES`], for what it has begun it cannot leave.

use std::collections::HashMap;

use forebay_block::{
    Allocation, Buf, Criticality, DeviceOp, DeviceResult, ErrorKind, IoError, Nanos, Op, Origin, Reply,
    SECTOR_BYTES, StatusExtent, check_bounds,
};
use forebay_engine::{
    Class, Command, CommonError, Effect, Event, IoId, MarkError, PlainQueue, RequestId, Role, State, Status,
    Watch,
};
use forebay_policy::{AdmissionReason, HINTED_NS, Issuer, SchedulerKind, WritePolicy};

use crate::in_order::{Asker, Askers, Span, Turns};
use crate::partial::{Next, Partial};

/// A write that nobody waits for goes to the device in pieces of at most so many bytes: of 0.1 ms on an SSD.
const PIECE_BYTES: u64 = 64 << 10;

/// What clients are told when the backing is another host's.
const FENCED: IoError = IoError::new(ErrorKind::Fenced, "request");

/// Whom a device operation is for.
enum Purpose {
    Request {
        id: RequestId,
        op: Op,
        /// The first of two operations: a flush makes it durable.
        flush_follows: bool,
    },
    Command(RequestId),
    /// One of several of a write.
    Piece(RequestId),
    /// Of a request with parts of blocks; where it reads, if it does.
    Partial {
        id: RequestId,
        read: Option<u64>,
    },
    /// A read that begins or ends within a block, of which so many bytes are left out.
    Widened {
        id: RequestId,
        op: Op,
        skip: usize,
    },
}

/// A write in pieces.
struct Pieces {
    op: Op,
    /// How many have not ended.
    left: usize,
    result: DeviceResult,
}

/// See the module's documentation. As thin as can be: most requests are one operation of the backing. A long write that nobody waits
/// for is several. A zero that must be durable is followed by a flush. What does not suit the backing's blocks is made to
/// ([`crate::partial`]). Requests that touch the same bytes take turns ([`crate::in_order`]).
pub(crate) struct PassThrough {
    volume_bytes: u64,
    /// Logical block of the backing in bytes.
    block: u64,
    /// Writes are refused, and nothing is asked of the backing but reads.
    read_only: bool,
    /// What it answers is durable, as it would else not outlive this process (P1).
    forgets: bool,
    /// Longest piece of a write that nobody waits for, in bytes: a multiple of the block.
    piece_bytes: u64,
    turns: Turns,
    askers: Askers,
    /// Until then somebody has said of late that a request is critical, so that the others are not.
    hinted_until: Nanos,
    queue: PlainQueue,
    scheduler: SchedulerKind,
    partial: HashMap<RequestId, Partial>,
    pieces: HashMap<RequestId, Pieces>,
    /// Operations of the backing, those that wait for it included.
    under_way: HashMap<IoId, Purpose>,
    effects: Vec<Effect>,
    /// The command to stop, until everything under way has ended.
    stop: Option<RequestId>,
    next_io: u64,
    state: State,
    /// Since when the backing is another host's.
    fenced_at: Option<Nanos>,
    figures: Status,
    watch: Watch,
    /// Wall-clock time at which the clock of the events read 0.
    wall_offset_ns: u64,
    now: Nanos,
}

/// What is known of the backing of a volume without a cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backing {
    /// Its logical block in bytes.
    pub(crate) block: u32,
    /// Operations that it takes at a time.
    pub(crate) depth: usize,
    /// Nothing but reads is asked of it.
    pub(crate) read_only: bool,
    /// It loses with this process what it has not made durable.
    pub(crate) forgets: bool,
}

/// The same, durable when it is answered.
fn forced(op: Op) -> Op {
    match op {
        Op::Write { offset, data, .. } => Op::Write { offset, data, fua: true },
        Op::Zero { offset, len, unmap, .. } => Op::Zero { offset, len, unmap, fua: true },
        other => other,
    }
}

impl PassThrough {
    pub(crate) fn new(
        volume_bytes: u64,
        backing: Backing,
        scheduler: SchedulerKind,
        wall_offset_ns: u64,
    ) -> Self {
        Self {
            volume_bytes,
            block: backing.block.into(),
            read_only: backing.read_only,
            forgets: backing.forgets,
            piece_bytes: PIECE_BYTES,
            turns: Turns::default(),
            askers: Askers::default(),
            hinted_until: Nanos(0),
            queue: PlainQueue::new(scheduler, backing.depth),
            scheduler,
            partial: HashMap::new(),
            pieces: HashMap::new(),
            under_way: HashMap::new(),
            effects: vec![Effect::Recovered(Ok(Default::default()))],
            stop: None,
            next_io: 0,
            state: State::Healthy,
            fenced_at: None,
            figures: Status::default(),
            watch: Watch::default(),
            wall_offset_ns,
            now: Nanos(0),
        }
    }

    pub(crate) fn handle(&mut self, event: Event, now: Nanos) {
        self.now = now;
        match event {
            Event::Request { id, op, origin } => self.request(id, op, &origin),
            Event::Io { id, result } => self.io_done(id, result),
            Event::Fenced => self.fence(),
            Event::Promote { offset, len } => {
                self.hinted();
                self.are_awaited(Span { start: offset, end: offset.saturating_add(len) });
            }
            Event::Command { id, command } => match command {
                Command::Set(settings) => {
                    if settings.scheduler != self.scheduler {
                        self.scheduler = settings.scheduler;
                        self.queue.use_scheduler(self.scheduler);
                    }
                    self.effects.push(Effect::CommandDone { id, result: Ok(()) });
                }
                Command::SetRanges(_) | Command::SetEndurance(_) => {
                    self.effects.push(Effect::CommandDone { id, result: Ok(()) });
                }
                // It is like write-through: the backing passes every state and rests at none.
                Command::Mark { .. } => {
                    let result = Err(match self.read_only {
                        true => MarkError::ReadOnly,
                        false => MarkError::Policy(WritePolicy::WriteThrough),
                    });
                    self.effects.push(Effect::Marked { id, result });
                }
                Command::Common { .. } => {
                    self.effects.push(Effect::CommonDone { id, result: Err(CommonError::NoMember) });
                }
                Command::Destage if self.read_only => {
                    self.effects.push(Effect::CommandDone { id, result: Ok(()) });
                }
                // A flush covers whatever was acknowledged before it.
                Command::Destage => self.io(DeviceOp::Flush, Purpose::Command(id)),
                Command::Stop { .. } => {
                    self.state = State::Stopping;
                    self.stop = Some(id);
                }
            },
        }
    }

    pub(crate) fn poll(&mut self, now: Nanos, effects: &mut Vec<Effect>) {
        self.now = now;
        if self.under_way.is_empty()
            && let Some(id) = self.stop.take()
        {
            if self.read_only {
                self.state = State::Stopped;
                self.effects.push(Effect::CommandDone { id, result: Ok(()) });
            } else {
                self.io(DeviceOp::Flush, Purpose::Command(id));
            }
        }
        for (id, op, class) in self.queue.start(self.now) {
            self.figures.bytes_to_backing += op.write_bytes();
            self.watch.started(id, Role::Backing, &op, self.now);
            self.effects.push(Effect::Io { id, role: Role::Backing, op, class });
        }
        effects.append(&mut self.effects);
    }

    /// When [`PassThrough::poll`] wants to be called although nothing happens.
    pub(crate) fn next_wake(&self) -> Option<Nanos> {
        self.queue.next_wake()
    }

    pub(crate) fn status(&self, now: Nanos) -> Status {
        let further_pieces: usize = self.pieces.values().map(|pieces| pieces.left - 1).sum();
        let mut status = Status {
            state: Some(self.state),
            requests: (self.under_way.len() - further_pieces + self.turns.waiting()) as u64,
            fenced_ns: self.fenced_at.map(|at| self.wall_offset_ns.saturating_add(at.0)),
            ailing: self.watch.ailing(now, false, self.wall_offset_ns),
            ..self.figures.clone()
        };
        self.queue.tell(&mut status);
        status
    }

    fn request(&mut self, id: RequestId, op: Op, origin: &Origin) {
        let refusal = match self.state {
            State::Stopping | State::Stopped => Err(IoError::new(ErrorKind::Shutdown, "request")),
            State::Fenced => Err(FENCED),
            _ if self.read_only && matches!(op, Op::Write { .. } | Op::Zero { .. }) => {
                Err(IoError::new(ErrorKind::ReadOnly, "write, discard or zero"))
            }
            _ => check_bounds(&op, self.volume_bytes),
        };
        if let Err(error) = refusal {
            return self.reply(id, Err(error));
        }
        if self.read_only && matches!(op, Op::Flush) {
            return self.request_done(id, op, Ok(None));
        }
        let op = if self.forgets { forced(op) } else { op };
        let blocks = Span::of(&op).map(|span| span.widened(self.block.max(SECTOR_BYTES)));
        let (class, issuer) = self.judge(&op, origin);
        if let (Class::Foreground, Some(blocks)) = (class, blocks) {
            self.are_awaited(blocks);
        }
        self.askers.arrive(id, Asker { issuer, class, blocks });
        if let Some(op) = self.turns.arrive(id, op, self.block.max(SECTOR_BYTES)) {
            self.begin_in_turn(id, op);
        }
    }

    /// Somebody says who is critical.
    fn hinted(&mut self) {
        self.hinted_until = Nanos(self.now.0.saturating_add(HINTED_NS));
    }

    /// Whether somebody waits for a request, as far as is known, and who asked for it.
    fn judge(&mut self, op: &Op, origin: &Origin) -> (Class, Issuer) {
        if origin.criticality != Criticality::None {
            self.hinted();
        }
        match op {
            Op::Write { fua, .. } | Op::Zero { fua, .. } => {
                let awaited = origin.is_awaited(*fua) || self.now >= self.hinted_until;
                let class = if awaited { Class::Foreground } else { Class::Background };
                (class, Issuer { reason: Some(AdmissionReason::NoCache), ..Issuer::of(origin, *fua) })
            }
            Op::Read { .. } | Op::Flush | Op::Status { .. } => {
                (Class::Foreground, Issuer::of(origin, false).waits())
            }
        }
    }

    /// Somebody waits for what touches these bytes.
    fn are_awaited(&mut self, span: Span) {
        let turned = self.askers.are_awaited(span);
        if !turned.is_empty() {
            self.queue.promote(&turned);
        }
    }

    fn begin_in_turn(&mut self, id: RequestId, op: Op) {
        match self.block <= SECTOR_BYTES {
            true => self.begin(id, op),
            false => self.begin_in_blocks(id, op),
        }
    }

    /// Begins a request that the backing may not take as it is.
    fn begin_in_blocks(&mut self, id: RequestId, op: Op) {
        if let Op::Read { offset, len } = op {
            let skip = offset % self.block;
            let whole = (skip + len as u64).next_multiple_of(self.block);
            let read = DeviceOp::Read { offset: offset - skip, len: whole as usize };
            return self.io(read, Purpose::Widened { id, op, skip: skip as usize });
        }
        match Partial::of(op, self.block) {
            Ok((partial, reads)) => {
                self.partial.insert(id, partial);
                self.carry_partial(id, reads);
            }
            Err(op) => self.begin(id, op),
        }
    }

    fn carry_partial(&mut self, id: RequestId, ops: Vec<DeviceOp>) {
        for op in ops {
            let read = match op {
                DeviceOp::Read { offset, .. } => Some(offset),
                _ => None,
            };
            self.io(op, Purpose::Partial { id, read });
        }
    }

    fn partial_done(&mut self, id: RequestId, read: Option<u64>, result: DeviceResult) {
        let Some(partial) = self.partial.get_mut(&id) else { return };
        match partial.ended(read, result) {
            Next::Wait => {}
            Next::Carry(ops) => self.carry_partial(id, ops),
            Next::Done(result) => {
                let Some(partial) = self.partial.remove(&id) else { return };
                let flush_follows = result.is_ok() && matches!(partial.op, Op::Zero { fua: true, .. });
                if flush_follows {
                    return self
                        .io(DeviceOp::Flush, Purpose::Request { id, op: partial.op, flush_follows: false });
                }
                self.request_done(id, partial.op, result.map(|()| None));
            }
        }
    }

    fn begin_in_pieces(&mut self, id: RequestId, op: Op) {
        let Op::Write { offset, data, fua } = &op else { return self.begin_whole(id, op) };
        let (begin, end) = (*offset, *offset + data.len() as u64);
        let mut pieces = Vec::new();
        let mut at = begin;
        while at < end {
            let until = (at + 1).next_multiple_of(self.piece_bytes).min(end);
            let piece = data.slice((at - begin) as usize, (until - at) as usize);
            pieces.push(DeviceOp::Write { offset: at, bufs: vec![piece], durable: *fua });
            at = until;
        }
        self.pieces.insert(id, Pieces { op, left: pieces.len(), result: Ok(None) });
        pieces.into_iter().for_each(|piece| self.io(piece, Purpose::Piece(id)));
    }

    fn piece_done(&mut self, id: RequestId, result: DeviceResult) {
        let Some(pieces) = self.pieces.get_mut(&id) else { return };
        pieces.left -= 1;
        if pieces.result.is_ok() {
            pieces.result = result;
        }
        if pieces.left == 0
            && let Some(Pieces { op, result, .. }) = self.pieces.remove(&id)
        {
            self.request_done(id, op, result);
        }
    }

    fn begin(&mut self, id: RequestId, op: Op) {
        let is_long = matches!(&op, Op::Write { data, .. } if data.len() as u64 > self.piece_bytes);
        match self.askers.of(Some(id)) {
            (Class::Background, _) if is_long => self.begin_in_pieces(id, op),
            _ => self.begin_whole(id, op),
        }
    }

    fn begin_whole(&mut self, id: RequestId, op: Op) {
        let mut flush_follows = false;
        let device_op = match &op {
            Op::Read { offset, len } => DeviceOp::Read { offset: *offset, len: *len },
            Op::Write { offset, data, fua } => {
                DeviceOp::Write { offset: *offset, bufs: vec![data.clone()], durable: *fua }
            }
            Op::Flush => DeviceOp::Flush,
            Op::Zero { offset, len, unmap, fua } => {
                flush_follows = *fua;
                DeviceOp::Zero { offset: *offset, len: *len, unmap: *unmap }
            }
            Op::Status { len, .. } => {
                // Nothing is cached.
                let extents = vec![StatusExtent { len: *len, allocation: Allocation::Hole }];
                return self.reply(id, Ok(Reply::Status(extents)));
            }
        };
        self.io(device_op, Purpose::Request { id, op, flush_follows });
    }

    fn io(&mut self, op: DeviceOp, purpose: Purpose) {
        self.next_io += 1;
        let id = IoId(self.next_io);
        let request = match &purpose {
            Purpose::Request { id, .. }
            | Purpose::Piece(id)
            | Purpose::Partial { id, .. }
            | Purpose::Widened { id, .. } => Some(*id),
            Purpose::Command(_) => None,
        };
        self.queue.push((id, op), request, self.askers.of(request), self.now);
        self.under_way.insert(id, purpose);
    }

    fn io_done(&mut self, id: IoId, result: DeviceResult) {
        self.figures.backing_errors += u64::from(result.is_err());
        self.watch.ended(id, &result, self.now, false);
        self.queue.ended(id);
        if result.as_ref().is_err_and(|error| error.kind == ErrorKind::Fenced) {
            self.fence();
        }
        match self.under_way.remove(&id) {
            Some(Purpose::Command(id)) => {
                if self.state == State::Stopping && self.stop.is_none() {
                    self.state = State::Stopped;
                }
                let result = if self.fenced_at.is_some() { Err(FENCED) } else { result.map(drop) };
                self.effects.push(Effect::CommandDone { id, result });
            }
            Some(Purpose::Request { id, op, flush_follows: true }) if result.is_ok() => {
                self.io(DeviceOp::Flush, Purpose::Request { id, op, flush_follows: false });
            }
            Some(Purpose::Request { id, op, .. }) => self.request_done(id, op, result),
            Some(Purpose::Piece(id)) => self.piece_done(id, result),
            Some(Purpose::Partial { id, read }) => self.partial_done(id, read, result),
            Some(Purpose::Widened { id, op, skip }) => {
                let len = match op {
                    Op::Read { len, .. } => len,
                    _ => 0,
                };
                let wanted = result.map(|data| data.map(|data| data.slice(skip, len)));
                self.request_done(id, op, wanted);
            }
            None => {}
        }
    }

    fn request_done(&mut self, id: RequestId, op: Op, result: DeviceResult) {
        let writes = matches!(op, Op::Write { .. } | Op::Zero { .. });
        if result.is_ok() {
            self.count(&op);
            if writes {
                let bytes = crate::queue::bytes_of(&op);
                self.effects.push(Effect::Admitted { id, reason: AdmissionReason::NoCache, bytes });
            }
        }
        let reply = result.map(|data| match op {
            Op::Read { .. } => Reply::Data(data.unwrap_or_else(|| Buf::zeroed(0))),
            _ => Reply::Done,
        });
        self.reply(id, reply);
        for (id, op) in self.turns.ended(id) {
            self.begin_in_turn(id, op);
        }
    }

    fn count(&mut self, op: &Op) {
        match op {
            Op::Read { len, .. } => {
                self.figures.reads += 1;
                self.figures.read_bytes_missed += *len as u64;
            }
            Op::Write { data, .. } => {
                self.count_write();
                self.figures.bytes_acknowledged += data.len() as u64;
            }
            Op::Zero { .. } => self.count_write(),
            Op::Flush => self.figures.flushes += 1,
            Op::Status { .. } => {}
        }
    }

    fn count_write(&mut self) {
        self.figures.writes += 1;
        self.figures.writes_bypassed += 1;
        self.figures.reasons.count(AdmissionReason::NoCache);
    }

    /// Another host has taken the backing over, for good: nothing is answered well any more, whatever the backing has said.
    fn fence(&mut self) {
        if self.state == State::Healthy {
            self.state = State::Fenced;
        }
        self.fenced_at.get_or_insert(self.now);
    }

    fn reply(&mut self, id: RequestId, result: Result<Reply, IoError>) {
        let result = if self.fenced_at.is_some() { Err(FENCED) } else { result };
        self.askers.ended(id);
        self.figures.errors += u64::from(result.is_err());
        self.effects.push(Effect::Reply { id, result });
    }
}

#[cfg(test)]
mod tests;
