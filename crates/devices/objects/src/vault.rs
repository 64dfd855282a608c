//! The face of a volume in an object store: opening, serving, and the end.

use forebay_block::{DeviceOp, ErrorKind, Nanos};

use crate::calls::{Calls, HEAD_GUESS_BYTES, Outcome};
use crate::codec::{Stamp, claim_of};
use crate::commands::point;
use crate::face::{
    Ailment, Claim, Command, CommandError, Counters, Effect, Fenced, Named, OpenParams, Opened,
};
use crate::jobs::{Indexing, Job};
use crate::names;
use crate::open::{Open, Opening, Recovered};
use crate::serve::{Course, Serve, fault};
use crate::store::{Answer, Request, StoreError};

/// What a vault is about.
#[derive(Clone, Debug)]
enum Phase {
    Opening(Box<Open>),
    Serving(Box<Serve>),
    /// Another owner has come, whose claim is being read.
    Losing([u8; 16], u64),
    Fenced(Fenced),
    Released,
    Refused,
}

/// A block volume made of immutable objects. See the crate's documentation.
#[derive(Clone, Debug)]
pub struct Vault {
    params: OpenParams,
    calls: Calls<Job>,
    phase: Phase,
    begun: Nanos,
    effects: Vec<Effect>,
}

impl Vault {
    /// Begins to open a volume. [`Vault::poll`] tells [`Effect::Opened`] or [`Effect::Refused`].
    pub fn open(params: OpenParams, now: Nanos) -> Self {
        let mut calls = Calls::new(&params.limits);
        let open = Open::begin(params.clone(), &mut calls);
        Self { params, calls, phase: Phase::Opening(Box::new(open)), begun: now, effects: Vec::new() }
    }

    /// How many operations [`Vault::submit`] takes now.
    pub fn room(&self) -> usize {
        match &self.phase {
            Phase::Serving(serve) => self.params.limits.ops_max.saturating_sub(serve.ops()),
            _ => 0,
        }
    }

    /// Takes an operation, of whole sectors of 512 bytes. Its end is told with `tag`; one that cannot be taken fails.
    ///
    /// A write is answered when it is in memory, or durable if that is asked for; a flush when all that was taken before is durable. A read shows
    /// every write that was answered before it was taken.
    pub fn submit(&mut self, now: Nanos, tag: u64, op: DeviceOp) {
        let what = match &mut self.phase {
            Phase::Serving(serve) => return serve.submit(now, &mut self.calls, tag, op),
            Phase::Opening(_) | Phase::Refused => fault(ErrorKind::Io, "the volume is not open"),
            Phase::Losing(..) => fault(ErrorKind::Fenced, Fenced { by: None }.to_string()),
            Phase::Fenced(fenced) => fault(ErrorKind::Fenced, fenced.to_string()),
            Phase::Released => fault(ErrorKind::Shutdown, "the volume is released"),
        };
        self.effects.push(Effect::Done { tag, result: Err(what) });
    }

    /// Says that clients are being served, by a cache in front of the volume: an owner finds out whether it still is one, if it does not know it of a
    /// moment ago ([`Limits::look_interval`](crate::Limits::look_interval)).
    pub fn look(&mut self, now: Nanos) {
        if let Phase::Serving(serve) = &mut self.phase {
            serve.look(now, &mut self.calls);
        }
    }

    /// Takes a command. Its end is told with `tag`.
    pub fn command(&mut self, now: Nanos, tag: u64, command: Command) {
        let error = match &mut self.phase {
            Phase::Serving(serve) => match &mut serve.owner {
                Some(owner) => {
                    return owner.commands.start(now, tag, command, &mut serve.state, &mut owner.log);
                }
                None => CommandError::Invalid("the volume is open to be read"),
            },
            Phase::Losing(..) => CommandError::Fenced(Fenced { by: None }),
            Phase::Fenced(fenced) => CommandError::Fenced(fenced.clone()),
            _ => CommandError::Invalid("the volume is not open"),
        };
        self.effects.push(Effect::Carried { tag, result: Err(error) });
    }

    /// Takes the store's answer to a request.
    pub fn answered(&mut self, now: Nanos, id: u64, result: Result<Answer, StoreError>) {
        let Some((job, outcome)) = self.calls.answered(now, id, result) else { return };
        let time_ns = self.time_ns(now);
        match (std::mem::replace(&mut self.phase, Phase::Refused), job) {
            (Phase::Opening(open), Job::Open(step)) => {
                match open.handle(&mut self.calls, time_ns, step, outcome) {
                    Opening::Goes(open) => self.phase = Phase::Opening(open),
                    Opening::Done(recovered) => self.opened(now, *recovered),
                    Opening::Refused(error) => {
                        self.calls.drop_all();
                        self.effects.push(Effect::Refused(error));
                    }
                }
            }
            (Phase::Serving(mut serve), job) => {
                let course = serve.answered(now, &mut self.calls, job, outcome);
                self.phase = Phase::Serving(serve);
                self.go(course);
            }
            (Phase::Losing(volume, by), _) => {
                let claim = match outcome {
                    Outcome::Object { bytes, .. } => claim_of(&bytes, volume, by).ok(),
                    _ => None,
                };
                self.fenced(claim);
            }
            (phase, _) => self.phase = phase,
        }
    }

    fn opened(&mut self, now: Nanos, recovered: Recovered) {
        let state = &recovered.state;
        self.effects.push(Effect::Opened(Opened {
            volume: state.volume,
            size_bytes: state.volume_sectors * 512,
            epoch: recovered.epoch,
            as_of: state.as_of,
            time_ns: state.time_ns,
            taken_from: recovered.taken_from.clone(),
            objects_replayed: recovered.log_objects,
        }));
        self.calls.drop_all();
        let stamp = Stamp { nonce: self.params.writer.nonce, time_ns: self.time_ns(now) };
        if recovered.epoch > 0 {
            for Named { name, at } in &state.named {
                point(&mut self.calls, Indexing::OldPointer, state.volume, stamp, name, *at);
            }
        }
        let limits = self.params.limits.clone();
        let serve = Serve::new(limits, stamp.nonce, recovered, now, &mut self.calls);
        self.phase = Phase::Serving(Box::new(serve));
    }

    fn go(&mut self, course: Course) {
        match course {
            Course::Goes => {}
            Course::Fence(by) => {
                let Some(volume) = self.stop(&Fenced { by: None }) else { return };
                let request = Request::Get { name: names::claim(by), from: 0, len: HEAD_GUESS_BYTES };
                self.calls.start(Job::Successor, request);
                self.phase = Phase::Losing(volume, by);
            }
            Course::Fenced(by) => {
                self.stop(&Fenced { by: by.clone() });
                self.fenced(by);
            }
        }
    }

    /// Ends all that is under way: another owner has come.
    fn stop(&mut self, fenced: &Fenced) -> Option<[u8; 16]> {
        self.calls.drop_all();
        let Phase::Serving(serve) = &mut self.phase else { return None };
        serve.fail_all(&mut self.calls, &fault(ErrorKind::Fenced, fenced.to_string()));
        if let Some(owner) = &mut serve.owner {
            owner.commands.fail(CommandError::Fenced(fenced.clone()));
            owner.commands.take_effects(&mut serve.effects);
        }
        self.effects.append(&mut serve.effects);
        Some(serve.state.volume)
    }

    fn fenced(&mut self, by: Option<Claim>) {
        self.effects.push(Effect::Fenced(Fenced { by: by.clone() }));
        self.phase = Phase::Fenced(Fenced { by });
    }

    /// Does what can be done by now, and appends what is to be done or told.
    pub fn poll(&mut self, now: Nanos, effects: &mut Vec<Effect>) {
        let time_ns = self.time_ns(now);
        if let Phase::Serving(serve) = &mut self.phase {
            serve.go_on(now, time_ns, &mut self.calls);
            serve.expire(now, &mut self.calls);
            self.effects.append(&mut serve.effects);
            if serve.owner.as_ref().is_some_and(|owner| owner.commands.is_released()) {
                self.calls.drop_all();
                self.phase = Phase::Released;
            }
        }
        effects.append(&mut self.effects);
        self.calls.poll(now, effects);
    }

    /// When [`Vault::poll`] must be called even if nothing happens; a time in the past means at once.
    pub fn deadline(&self) -> Option<Nanos> {
        if !self.effects.is_empty() {
            return Some(Nanos(0));
        }
        if let Phase::Serving(serve) = &self.phase
            && serve.is_at_work()
        {
            return Some(Nanos(0));
        }
        let expires = match &self.phase {
            Phase::Serving(serve) if self.calls.trouble().is_some() => serve.expires_at(),
            _ => None,
        };
        self.calls.deadline().into_iter().chain(expires).min()
    }

    /// What the store does not do: of several kinds of requests, the one for which that has been so for longest.
    pub fn trouble(&self) -> Option<&Ailment> {
        self.calls.trouble()
    }

    /// The named checkpoints of an open volume.
    pub fn named(&self) -> &[Named] {
        match &self.phase {
            Phase::Serving(serve) => &serve.state.named,
            _ => &[],
        }
    }

    /// What was done, and what there is.
    pub fn counters(&self) -> Counters {
        let mut counters = self.calls.counters;
        counters.away_since = self.calls.trouble().map(|ailment| ailment.since);
        let Phase::Serving(serve) = &self.phase else { return counters };
        let map = &serve.state.map;
        let sums = map.sums();
        counters.bytes_written = serve.bytes_written;
        counters.objects = sums.objects;
        counters.stored_bytes = sums.bytes;
        counters.live_bytes = sums.live_sectors * 512;
        counters.extents = map.index.extents();
        counters.index_bytes = map.memory_bytes();
        if let Some(owner) = &serve.owner {
            counters.bytes_moved = owner.collect.bytes_moved;
            counters.bytes_checkpoints = owner.checkpoints.bytes;
            counters.commits_forced = owner.log.commits_forced;
            counters.buffered_bytes = owner.log.buffered_bytes();
            counters.log_objects = owner.checkpoints.log_objects;
        }
        counters
    }

    fn time_ns(&self, now: Nanos) -> u64 {
        self.params.time_ns.saturating_add(now.since(self.begun))
    }
}
