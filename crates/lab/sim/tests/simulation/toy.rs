//! A volume without a cache, one request at a time: simple enough to be right by inspection, and with bugs to choose.

use std::collections::VecDeque;

use forebay_block::{Buf, BufMut, DeviceOp, Nanos, Op, Reply, StatusExtent};
use forebay_engine::{
    Class, Command, CommonError, Effect, Event, IoId, MarkError, Params, RecoveryReport, RequestId, Role,
    State,
};
use forebay_policy::{Durability, Settings};
use forebay_sim::subject::Subject;

/// What the toy does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    None,
    /// Acknowledges a write when it is started.
    AcknowledgesEarly,
    /// Writes are not durable although the settings say so.
    ForgetsDurability,
    /// Answers a flush without flushing.
    ForgetsFlush,
    /// Every 20th write is dropped.
    DropsWrite,
    /// Every 20th request is never answered.
    LosesRequest,
    /// Every 20th answer is given twice.
    AnswersTwice,
    /// Reads of one block are answered with its neighbour.
    ReadsElsewhere,
    /// Reads return what was read there before.
    ReadsStale,
    /// Reports an error for no reason.
    InventsErrors,
    /// A write that failed is reported as done.
    HidesErrors,
    /// Partial blocks: the rest of the block is zeroed.
    ForgetsRest,
    /// Uses an offset outside of the volume.
    Overruns,
    /// Asks to be woken again and again.
    Spins,
}

enum Work {
    Read { id: RequestId, offset: u64, len: usize },
    Write { id: RequestId, offset: u64, data: Buf, durable: bool, read: bool },
    Flush { id: RequestId },
    Command { id: RequestId, stop: bool },
}

pub struct Toy {
    bug: Bug,
    volume_bytes: u64,
    settings: Settings,
    queue: VecDeque<Work>,
    running: bool,
    started: bool,
    stopped: bool,
    ids: u64,
    effects: Vec<Effect>,
    count: u64,
    remembered: Option<(u64, Buf)>,
    now: Nanos,
    /// Nothing is tried before: the backing has just failed.
    rests_until: Nanos,
}

impl Toy {
    pub fn new(params: Params, bug: Bug) -> Self {
        Self {
            bug,
            volume_bytes: params.volume_bytes,
            settings: params.settings,
            queue: VecDeque::new(),
            running: false,
            started: false,
            stopped: false,
            ids: 0,
            effects: Vec::new(),
            count: 0,
            remembered: None,
            now: Nanos(0),
            rests_until: Nanos(0),
        }
    }

    fn io(&mut self, op: DeviceOp) {
        self.ids += 1;
        self.running = true;
        self.effects.push(Effect::Io {
            id: IoId(self.ids),
            role: Role::Backing,
            op,
            class: Class::Foreground,
        });
    }

    fn blocks(&self, offset: u64, len: usize) -> (u64, u64) {
        let start = offset / 4096 * 4096;
        (start, (offset + len as u64).next_multiple_of(4096).min(self.volume_bytes))
    }

    fn rarely(&mut self) -> bool {
        self.count += 1;
        self.count.is_multiple_of(20)
    }

    fn reply(&mut self, id: RequestId, reply: Reply) {
        if self.bug == Bug::LosesRequest && self.rarely() {
            return;
        }
        if self.bug == Bug::InventsErrors && self.rarely() {
            let error = forebay_block::IoError::new(forebay_block::ErrorKind::Io, "toy");
            self.effects.push(Effect::Reply { id, result: Err(error) });
            return;
        }
        if self.bug == Bug::AnswersTwice && self.rarely() {
            self.effects.push(Effect::Reply { id, result: Ok(reply.clone()) });
        }
        self.effects.push(Effect::Reply { id, result: Ok(reply) });
    }

    fn next(&mut self) {
        if self.running || self.now < self.rests_until {
            return;
        }
        let mut early = None;
        let op = match self.queue.front() {
            None => return,
            Some(Work::Read { offset, len, .. }) => {
                let (mut start, end) = self.blocks(*offset, *len);
                let len = (end - start) as usize;
                if self.bug == Bug::ReadsElsewhere && start >= 4096 && end < self.volume_bytes {
                    start -= 4096;
                }
                if self.bug == Bug::Overruns {
                    start += 4096;
                }
                DeviceOp::Read { offset: start, len }
            }
            Some(Work::Write { id, offset, data, read, .. }) => {
                let (start, end) = self.blocks(*offset, data.len());
                if self.bug == Bug::AcknowledgesEarly && *read {
                    early = Some(*id);
                }
                if *read {
                    DeviceOp::Read { offset: start, len: (end - start) as usize }
                } else {
                    return;
                }
            }
            Some(Work::Flush { .. } | Work::Command { .. }) => DeviceOp::Flush,
        };
        if let Some(id) = early {
            self.reply(id, Reply::Done);
        }
        self.io(op);
    }

    fn finish_read(&mut self, id: RequestId, offset: u64, len: usize, data: &Buf) {
        let start = (offset % 4096) as usize;
        let mut part = data.slice(start.min(data.len() - len), len);
        if self.bug == Bug::ReadsStale {
            match &self.remembered {
                Some((o, old)) if *o == offset && old.len() == len => part = old.clone(),
                _ => self.remembered = Some((offset, part.clone())),
            }
        }
        self.reply(id, Reply::Data(part));
    }

    fn done(&mut self, result: forebay_block::DeviceResult) {
        self.running = false;
        let Some(work) = self.queue.pop_front() else {
            return;
        };
        match (work, result) {
            (Work::Write { id, .. }, Err(_)) if self.bug == Bug::HidesErrors => self.reply(id, Reply::Done),
            // A write is tried until it succeeds: P9 hides the backing's errors.
            (Work::Write { id, offset, data, durable, .. }, Err(_)) => {
                self.queue.push_front(Work::Write { id, offset, data, durable, read: true });
            }
            (Work::Read { id, .. } | Work::Flush { id }, Err(e)) => {
                self.effects.push(Effect::Reply { id, result: Err(e) });
            }
            (Work::Command { id, .. }, Err(e)) => {
                self.effects.push(Effect::CommandDone { id, result: Err(e) })
            }
            (Work::Read { id, offset, len }, Ok(Some(data))) => self.finish_read(id, offset, len, &data),
            (Work::Write { id, offset, data, durable, read: true }, Ok(Some(old))) => {
                let mut whole = BufMut::copy_of(&old);
                if self.bug == Bug::ForgetsRest {
                    whole.fill(0);
                }
                let at = (offset % 4096) as usize;
                whole[at..at + data.len()].copy_from_slice(&data);
                let start = offset / 4096 * 4096;
                self.queue.push_front(Work::Write { id, offset, data, durable, read: false });
                if self.bug == Bug::DropsWrite && self.rarely() {
                    return self.done(Ok(None));
                }
                self.io(DeviceOp::Write { offset: start, bufs: vec![whole.freeze()], durable });
            }
            (Work::Write { id, .. }, Ok(_)) if self.bug != Bug::AcknowledgesEarly => {
                self.reply(id, Reply::Done)
            }
            (Work::Flush { id }, Ok(_)) => self.reply(id, Reply::Done),
            (Work::Command { id, stop }, Ok(_)) => {
                self.stopped = stop;
                self.effects.push(Effect::CommandDone { id, result: Ok(()) });
            }
            _ => {}
        }
    }

    fn request(&mut self, id: RequestId, op: Op) {
        let forced = self.settings.durability == Durability::Write && self.bug != Bug::ForgetsDurability;
        match op {
            Op::Read { offset, len } => self.queue.push_back(Work::Read { id, offset, len }),
            Op::Write { offset, data, fua } => {
                let durable = fua || forced;
                self.queue.push_back(Work::Write { id, offset, data, durable, read: true });
            }
            Op::Zero { offset, len, fua, .. } => {
                let data = Buf::zeroed(len as usize);
                let durable = fua || forced;
                self.queue.push_back(Work::Write { id, offset, data, durable, read: true });
            }
            Op::Flush if self.bug == Bug::ForgetsFlush => self.reply(id, Reply::Done),
            Op::Flush => self.queue.push_back(Work::Flush { id }),
            Op::Status { len, .. } => {
                let extent = StatusExtent { len, allocation: forebay_block::Allocation::Data };
                self.reply(id, Reply::Status(vec![extent]));
            }
        }
    }
}

impl Subject for Toy {
    fn knows_order(&self) -> bool {
        false
    }

    fn backing_is_consistent(&self) -> bool {
        false
    }

    fn handle(&mut self, event: Event, now: Nanos) {
        self.now = now;
        match event {
            Event::Request { id, op, .. } => self.request(id, op),
            Event::Io { result, .. } => self.done(result),
            Event::Promote { .. } | Event::Fenced => {}
            Event::Command { id, command: Command::Set(settings) } => {
                self.settings = settings;
                self.effects.push(Effect::CommandDone { id, result: Ok(()) });
            }
            Event::Command { id, command: Command::Mark { .. } } => {
                self.effects.push(Effect::Marked { id, result: Err(MarkError::NotConsistent) });
            }
            Event::Command { id, command: Command::Common { .. } } => {
                self.effects.push(Effect::CommonDone { id, result: Err(CommonError::NoMember) });
            }
            Event::Command { id, command } => {
                self.queue.push_back(Work::Command { id, stop: matches!(command, Command::Stop { .. }) });
            }
        }
    }

    fn poll(&mut self, now: Nanos, effects: &mut Vec<Effect>) {
        self.now = now;
        if !self.started {
            self.started = true;
            effects.push(Effect::Recovered(Ok(RecoveryReport::default())));
        }
        self.next();
        effects.append(&mut self.effects);
    }

    fn next_wake(&self) -> Option<Nanos> {
        if self.bug == Bug::Spins {
            return Some(Nanos(0));
        }
        (self.now < self.rests_until).then_some(self.rests_until)
    }

    fn state(&self, _now: Nanos) -> Option<State> {
        Some(if self.stopped { State::Stopped } else { State::Healthy })
    }
}
