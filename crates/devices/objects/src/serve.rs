//! An open volume: operations of clients, and what follows from the store's answers.

use std::collections::{BTreeMap, VecDeque};

use forebay_block::{Buf, DeviceOp, ErrorKind, Nanos};

use crate::calls::{Calls, HEAD_GUESS_BYTES, Outcome};
use crate::checkpoint::Checkpoints;
use crate::codec::{Fence, Identity, Stamp, claim_of};
use crate::collect::Collect;
use crate::commands::Commands;
use crate::face::{Ailment, Claim, CommandError, Effect, Fault, Limits};
use crate::jobs::{Indexing, Job};
use crate::log::Log;
use crate::names;
use crate::open::Recovered;
use crate::reads::{ReadDone, Reads};
use crate::state::State;
use crate::store::Request;
use crate::trash::Trash;

/// A write, zeroes or a flush that is not in the log yet.
#[derive(Clone, Debug)]
struct Queued {
    tag: u64,
    since: Nanos,
    op: DeviceOp,
    /// Bytes of a write that are in the log.
    taken: usize,
}

/// Who waits until so many objects of the log exist.
#[derive(Clone, Debug)]
struct Waiter {
    needed: u64,
    since: Nanos,
    tag: u64,
    /// It is a group, which may be carried out whatever its client is told: it fails only if nothing more is carried out.
    is_group: bool,
}

/// What an owner has beside what a reader has.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    pub(crate) nonce: [u8; 16],
    pub(crate) epoch: u64,
    pub(crate) log: Log,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) collect: Collect,
    pub(crate) trash: Trash,
    pub(crate) commands: Commands,
    /// When the creates of objects of the log were sent first.
    sent: BTreeMap<u64, Nanos>,
    /// As of when it is certain that nobody else had begun; `None` if it must be asked again in any case.
    owned_at: Option<Nanos>,
    /// When it was asked whether another owner has come.
    looking: Option<Nanos>,
}

impl Owner {
    /// Asks whether another owner has come, unless that is asked already.
    fn look(&mut self, now: Nanos, calls: &mut Calls<Job>) {
        if self.looking.is_none() {
            self.looking = Some(now);
            let name = names::claim(self.epoch + 1);
            calls.start(Job::Look, Request::Get { name, from: 0, len: HEAD_GUESS_BYTES });
        }
    }

    /// Whether memory has room for collection.
    fn may_collect(&self, limits: &Limits) -> bool {
        !self.commands.is_releasing() && self.log.buffered_bytes() <= limits.buffered_bytes_max / 2
    }
}

/// How serving goes on.
#[derive(Clone, Debug)]
pub(crate) enum Course {
    Goes,
    /// Another owner has come, with this number.
    Fence(u64),
    /// Another owner has come: this one, if its claim could be read.
    Fenced(Option<Claim>),
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct Serve {
    pub(crate) limits: Limits,
    pub(crate) state: State,
    pub(crate) owner: Option<Owner>,
    queue: VecDeque<Queued>,
    waiters: VecDeque<Waiter>,
    reads: Reads,
    /// Reads that have ended, while it is not certain that nobody else has begun.
    unproven: VecDeque<ReadDone>,
    /// The bytes that clients wrote.
    pub(crate) bytes_written: u64,
    pub(crate) effects: Vec<Effect>,
}

/// An error of a client's operation.
pub(crate) fn fault(kind: ErrorKind, what: impl Into<String>) -> Fault {
    Fault { kind, what: what.into() }
}

impl Serve {
    pub(crate) fn new(
        limits: Limits,
        nonce: [u8; 16],
        recovered: Recovered,
        now: Nanos,
        calls: &mut Calls<Job>,
    ) -> Self {
        calls.insists = true;
        let Recovered { mut state, epoch, first, checkpoint, log_objects, log_bytes, .. } = recovered;
        let owner = first.map(|first| {
            state.map.add(first);
            state.as_of = first.at;
            let behind = (log_objects + 1, log_bytes + first.bytes());
            Owner {
                nonce,
                epoch,
                log: Log::new(state.volume, nonce, epoch, state.volume_sectors, &limits),
                checkpoints: Checkpoints::new(&limits, checkpoint, behind),
                collect: Collect::new(&limits),
                trash: Trash::default(),
                commands: Commands::default(),
                sent: BTreeMap::new(),
                owned_at: Some(now),
                looking: None,
            }
        });
        Self {
            limits,
            state,
            owner,
            queue: VecDeque::new(),
            waiters: VecDeque::new(),
            reads: Reads::default(),
            unproven: VecDeque::new(),
            bytes_written: 0,
            effects: Vec::new(),
        }
    }

    /// Operations that are not answered yet.
    pub(crate) fn ops(&self) -> usize {
        self.queue.len() + self.waiters.len() + self.reads.len() + self.unproven.len()
    }

    fn done(&mut self, tag: u64, result: Result<Option<Buf>, Fault>) {
        self.effects.push(Effect::Done { tag, result });
    }

    /// Takes an operation.
    pub(crate) fn submit(&mut self, now: Nanos, calls: &mut Calls<Job>, tag: u64, op: DeviceOp) {
        if let Err(fault) = self.check(&op) {
            return self.done(tag, Err(fault));
        }
        if let DeviceOp::Read { offset, len } = op {
            let log = self.owner.as_ref().map(|owner| &owner.log);
            let range = (offset / 512, len);
            if let Some(done) = self.reads.start(&mut self.state.map, log, calls, (now, tag), range) {
                self.unproven.push_back(done);
            }
            return self.prove(now, calls);
        }
        self.bytes_written += op.write_bytes();
        self.queue.push_back(Queued { tag, since: now, op, taken: 0 });
    }

    fn check(&self, op: &DeviceOp) -> Result<(), Fault> {
        if self.ops() >= self.limits.ops_max {
            return Err(fault(ErrorKind::Io, "more operations than the volume takes at a time"));
        }
        if self.owner.is_none() && !matches!(op, DeviceOp::Read { .. } | DeviceOp::Flush) {
            return Err(fault(ErrorKind::ReadOnly, "the volume is open to be read"));
        }
        if self.owner.as_ref().is_some_and(|owner| owner.commands.is_releasing()) {
            return Err(fault(ErrorKind::Shutdown, "the volume is being released"));
        }
        let size = self.state.volume_sectors * 512;
        let is_fit = |offset: u64, len: u64| {
            let is_whole = offset.is_multiple_of(512) && len.is_multiple_of(512) && len > 0;
            is_whole && offset.checked_add(len).is_some_and(|end| end <= size)
        };
        let is_fine = match op {
            DeviceOp::Flush => true,
            DeviceOp::Commit(commit) => {
                let mut moves = commit.moves.iter();
                is_fit(commit.head_offset, commit.head.len() as u64)
                    && moves.all(|moved| is_fit(moved.from, moved.len) && is_fit(moved.to, moved.len))
                    && commit.zeroes.iter().all(|(offset, len)| is_fit(*offset, *len))
            }
            other => is_fit(other.offset().unwrap_or(0), other.bytes()),
        };
        if is_fine {
            Ok(())
        } else {
            Err(fault(ErrorKind::Invalid, "it is not of whole sectors of the volume"))
        }
    }

    /// Whether something is to be done that waits for nothing.
    pub(crate) fn is_at_work(&self) -> bool {
        self.owner
            .as_ref()
            .is_some_and(|owner| owner.collect.is_scanning() && owner.may_collect(&self.limits))
    }

    /// Does all that can be done now.
    pub(crate) fn go_on(&mut self, now: Nanos, time_ns: u64, calls: &mut Calls<Job>) {
        loop {
            let before = (calls.started(), self.effects.len());
            self.turn(now, time_ns, calls);
            if (calls.started(), self.effects.len()) == before {
                return;
            }
        }
    }

    fn turn(&mut self, now: Nanos, time_ns: u64, calls: &mut Calls<Job>) {
        if self.owner.is_none() {
            for queued in std::mem::take(&mut self.queue) {
                // What is read only is durable.
                self.done(queued.tag, Ok(None));
            }
            return;
        }
        self.take_queued();
        let is_quiet = self.queue.is_empty();
        let Some(owner) = &mut self.owner else { return };
        let stamp = Stamp { nonce: owner.nonce, time_ns };
        owner.commands.go_on(&mut self.state, &mut owner.log, &mut owner.checkpoints, is_quiet);
        let map = &mut self.state.map;
        if !owner.commands.is_releasing() {
            if !owner.checkpoints.is_busy() && !owner.commands.is_naming() && owner.checkpoints.is_due(map) {
                owner.checkpoints.want(&mut owner.log, map);
            }
            if owner.may_collect(&self.limits) {
                owner.collect.go_on(map, &mut owner.log, calls);
            }
            owner.trash.go_on(map, calls);
        }
        if !owner.commands.is_releasing()
            && let Some(made) = owner.checkpoints.go_on(&self.state, &mut owner.log, calls, stamp)
        {
            owner.commands.made(&made, &mut self.state, &mut owner.log);
        }
        while let Some((seq, bytes)) = owner.log.take_off(&mut self.state.map, time_ns) {
            owner.checkpoints.log_objects += 1;
            owner.checkpoints.log_bytes += bytes.len() as u64;
            owner.sent.insert(seq, now);
            let name = names::log(owner.log.position(seq));
            calls.start(Job::Log(seq), Request::Create { name, bytes });
        }
        self.answer_waiters(stamp, calls);
    }

    /// Moves operations into the log, in their order, as far as memory goes.
    fn take_queued(&mut self) {
        let buffered_max = self.limits.buffered_bytes_max;
        while let (Some(queued), Some(owner)) = (self.queue.front_mut(), &mut self.owner) {
            let (log, map) = (&mut owner.log, &mut self.state.map);
            let (mut needed, mut is_group) = (None, false);
            match &queued.op {
                DeviceOp::Write { offset, bufs, durable } => {
                    let (mut at, mut is_full) = (0, false);
                    for buf in bufs {
                        let from = queued.taken.saturating_sub(at).min(buf.len());
                        let room = buffered_max.saturating_sub(log.buffered_bytes()) as usize / 512 * 512;
                        let take = (buf.len() - from).min(room);
                        log.write(map, (offset + (at + from) as u64) / 512, &buf[from..from + take]);
                        queued.taken += take;
                        at += buf.len();
                        if from + take < buf.len() {
                            is_full = true;
                            break;
                        }
                    }
                    if is_full {
                        return;
                    }
                    if *durable {
                        needed = Some(log.ask_commit(map));
                    }
                }
                DeviceOp::Zero { .. } if log.buffered_bytes() >= buffered_max => return,
                DeviceOp::Zero { offset, len, .. } => log.zero(map, offset / 512, len / 512),
                DeviceOp::Commit(_) if log.buffered_bytes() >= buffered_max => return,
                DeviceOp::Commit(commit) => {
                    needed = Some(log.group(map, commit));
                    is_group = true;
                }
                DeviceOp::Flush => needed = Some(log.ask_commit(map)),
                DeviceOp::Read { .. } => {}
            }
            let Some(Queued { tag, since, .. }) = self.queue.pop_front() else { return };
            match needed {
                Some(needed) => self.waiters.push_back(Waiter { needed, since, tag, is_group }),
                None => self.done(tag, Ok(None)),
            }
        }
    }

    fn answer_waiters(&mut self, stamp: Stamp, calls: &mut Calls<Job>) {
        let Some(owner) = &mut self.owner else { return };
        let durable = owner.log.durable();
        while self.waiters.front().is_some_and(|waiter| waiter.needed <= durable)
            && let Some(waiter) = self.waiters.pop_front()
        {
            self.effects.push(Effect::Done { tag: waiter.tag, result: Ok(None) });
        }
        owner.commands.durable(durable, &mut self.state, calls, stamp);
        owner.commands.take_effects(&mut self.effects);
    }

    /// Asks whether another owner has come, unless it is known of a moment ago.
    pub(crate) fn look(&mut self, now: Nanos, calls: &mut Calls<Job>) {
        let interval = self.limits.look_interval.as_nanos() as u64;
        let Some(owner) = &mut self.owner else { return };
        if owner.owned_at.is_none_or(|at| now.since(at) > interval) {
            owner.look(now, calls);
        }
    }

    /// Answers reads as far as it is certain that nobody else had begun so shortly before each; else asks.
    fn prove(&mut self, now: Nanos, calls: &mut Calls<Job>) {
        let interval = self.limits.look_interval.as_nanos() as u64;
        let Some(owner) = &mut self.owner else {
            for done in std::mem::take(&mut self.unproven) {
                self.effects.push(Effect::Done { tag: done.tag, result: done.result.map(Some) });
            }
            return;
        };
        let owned_at = owner.owned_at;
        let is_proven = |since: Nanos| owned_at.is_some_and(|at| since.since(at) <= interval);
        let mut open = VecDeque::new();
        for done in std::mem::take(&mut self.unproven) {
            if is_proven(done.since) {
                self.effects.push(Effect::Done { tag: done.tag, result: done.result.map(Some) });
            } else {
                open.push_back(done);
            }
        }
        let waits = !open.is_empty() || self.reads.oldest().is_some_and(|since| !is_proven(since));
        self.unproven = open;
        if waits {
            owner.look(now, calls);
        }
    }

    /// Takes what a request has come to.
    pub(crate) fn answered(
        &mut self,
        now: Nanos,
        calls: &mut Calls<Job>,
        job: Job,
        outcome: Outcome,
    ) -> Course {
        let volume = self.state.volume;
        match (job, &mut self.owner) {
            (Job::Read(number, index), _) => {
                let (done, is_gone) =
                    self.reads.answered(&mut self.state.map, volume, (number, index), outcome);
                self.unproven.extend(done);
                if let (true, Some(owner)) = (is_gone, &mut self.owner) {
                    // Another owner may have deleted it: whether there is one decides what is said.
                    owner.owned_at = None;
                }
                self.prove(now, calls);
            }
            (Job::Look, Some(owner)) => {
                let Some(asked) = owner.looking.take() else { return Course::Goes };
                match outcome {
                    Outcome::Object { bytes, .. } => {
                        return Course::Fenced(claim_of(&bytes, volume, owner.epoch + 1).ok());
                    }
                    _ => owner.owned_at = owner.owned_at.max(Some(asked)),
                }
                self.prove(now, calls);
            }
            (Job::Log(seq), Some(owner)) => match outcome {
                Outcome::Created => {
                    let sent = owner.sent.remove(&seq);
                    owner.log.created(&mut self.state.map, seq);
                    // It proves that no fence was there before it if all before it exist. Whether a lost object was deleted by another
                    // owner must be asked for all the same.
                    if seq < owner.log.durable() {
                        owner.owned_at = owner.owned_at.and(owner.owned_at.max(sent));
                    }
                }
                Outcome::Conflict { bytes, .. } => {
                    let identity = Identity { volume, at: owner.log.position(seq) };
                    let by = Fence::decode(&bytes, &identity).map_or(owner.epoch + 1, |fence| fence.by);
                    return Course::Fence(by);
                }
                _ => {}
            },
            // Nothing comes behind the object that releases the volume.
            (Job::Collect(slot), Some(owner)) if !owner.commands.is_releasing() => {
                owner.collect.answered(&mut self.state.map, &mut owner.log, volume, slot, outcome);
            }
            (Job::Index(indexing), Some(_)) => self.indexed(indexing),
            (Job::Delete(slot), Some(owner)) => owner.trash.deleted(&mut self.state.map, slot),
            (Job::Sweep, Some(owner)) => {
                owner.trash.page(&self.state, owner.epoch, owner.checkpoints.newest, outcome);
            }
            _ => {}
        }
        Course::Goes
    }

    fn indexed(&mut self, indexing: Indexing) {
        let Some(owner) = &mut self.owner else { return };
        match indexing {
            Indexing::Part(_) => owner.checkpoints.part_exists(),
            Indexing::Pointer => owner.commands.pointed(),
            Indexing::OldPointer => {}
            Indexing::Unpointed => {
                owner.commands.unpointed(&mut self.state, owner.checkpoints.newest, &mut owner.trash);
            }
            Indexing::Manifest => {
                let before = owner.checkpoints.newest;
                let is_first = !owner.checkpoints.is_own;
                let Some(made) = owner.checkpoints.made(&mut self.state) else { return };
                owner.trash.add_dead(&mut self.state.map, &made.dead);
                if let Some(before) = before.filter(|at| !self.state.is_named(*at))
                    && let Some(parts) = self.state.parts.remove(&before)
                {
                    owner.trash.add_checkpoint(before, parts);
                }
                if is_first {
                    owner.trash.sweep();
                }
                owner.commands.made(&made, &mut self.state, &mut owner.log);
            }
        }
    }

    /// Ends everything that waits with this fault.
    pub(crate) fn fail_all(&mut self, calls: &mut Calls<Job>, what: &Fault) {
        self.fail_upto(calls, Nanos(u64::MAX), what);
    }

    /// Ends what has waited for too long while the store is sick.
    pub(crate) fn expire(&mut self, now: Nanos, calls: &mut Calls<Job>) {
        let patience = self.limits.patience.as_nanos() as u64;
        let Some(Ailment { kind, what, .. }) = calls.trouble() else { return };
        let Some(upto) = now.0.checked_sub(patience).map(Nanos) else { return };
        let seconds = self.limits.patience.as_secs();
        let what = fault(*kind, format!("it has waited for the store for {seconds} s: {what}"));
        self.fail_upto(calls, upto, &what);
        if let Some(owner) = &mut self.owner
            && owner.commands.since().is_some_and(|since| since <= upto)
        {
            owner.commands.fail(CommandError::Store(what));
            owner.commands.take_effects(&mut self.effects);
        }
    }

    /// When [`Self::expire`] has something to do, if the store stays sick.
    pub(crate) fn expires_at(&self) -> Option<Nanos> {
        let oldest = [
            self.queue.front().map(|queued| queued.since),
            self.waiters.iter().find(|waiter| !waiter.is_group).map(|waiter| waiter.since),
            self.reads.oldest(),
            self.unproven.front().map(|done| done.since),
            self.owner.as_ref().and_then(|owner| owner.commands.since()),
        ];
        let patience = self.limits.patience.as_nanos() as u64;
        oldest.into_iter().flatten().min().map(|since| Nanos(since.0.saturating_add(patience)))
    }

    fn fail_upto(&mut self, calls: &mut Calls<Job>, upto: Nanos, what: &Fault) {
        while let Some(queued) = self.queue.pop_front_if(|queued| queued.since <= upto) {
            self.done(queued.tag, Err(what.clone()));
        }
        let mut done = Vec::new();
        let is_end = upto == Nanos(u64::MAX);
        for waiter in std::mem::take(&mut self.waiters) {
            if waiter.since <= upto && (is_end || !waiter.is_group) {
                self.done(waiter.tag, Err(what.clone()));
            } else {
                self.waiters.push_back(waiter);
            }
        }
        while let Some(read) = self.unproven.pop_front_if(|read| read.since <= upto) {
            done.push(read);
        }
        self.reads.fail(&mut self.state.map, calls, upto, what, &mut done);
        for done in done {
            self.done(done.tag, Err(what.clone()));
        }
    }
}
