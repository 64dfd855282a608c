//! Opening a volume.
//!
//! ```text
//!  volume ─► checkpoints ─► load the newest ─► epochs ─► walk the log ─► owner? ─► claim ─► fence ─► checkpoints ─► holds ─► begin
//!                 ▲    ▲                                    │            in use: refused     │      again │
//!                 │    └──────── what was read disagrees ◄──┘                                │            │
//!                 └──────────────────────── a newer checkpoint has come ◄────────────────────┴────────────┘
//! ```
//!
//! - O1: exactly one opening creates the claim of a number.
//! - O2: an owner begins its log only when the logs of all owners before have ended for good, and it has all of them.
//! - O3: an object may have been deleted because a checkpoint that came meanwhile does without it. So the checkpoints are listed again when
//!   the logs have ended: then no further one can come that needs less than what was read.
//! - O4: an owner that is to be taken over may have begun, or a later one may have come: its own first object, a name like any other, decides.
//! - O5: where the log seems to end, what lies behind is a witness of whether it ended there before ([`gap`]). A volume that has lost an
//!   object is refused before anything is claimed or fenced: it opens when the object is back.

mod ask;
mod gap;

use crate::calls::{Calls, Outcome};
use crate::codec::{
    Damage, Fence, Identity, LogHead, Pointer, Stamp, VolumeMark, claim_bytes, claim_of, head_bytes,
};
use crate::face::{Access, Claim, OpenError, OpenParams, Position, Takeover};
use crate::jobs::{Job, Step};
use crate::load::{Load, Loaded, Wrong};
use crate::map::Object;
use crate::names;
use crate::open::ask::{create, get, list};
use crate::open::gap::{Gap, Said, missing};
use crate::state::State;
use crate::store::Request;
use crate::walk::{Found, Next, Walk, read_head};

/// How often an opening begins anew before it gives up.
const ROUNDS_MAX: u32 = 16;

/// A volume that was opened.
#[derive(Clone, Debug)]
pub(crate) struct Recovered {
    pub(crate) state: State,
    /// The owner's number, 0 for a reader.
    pub(crate) epoch: u64,
    /// The owner's first object, which the state does not have yet.
    pub(crate) first: Option<Object>,
    /// The newest checkpoint.
    pub(crate) checkpoint: Option<Position>,
    /// Objects behind it, and their bytes.
    pub(crate) log_objects: u64,
    pub(crate) log_bytes: u64,
    pub(crate) taken_from: Option<Claim>,
}

/// How far an opening is.
pub(crate) enum Opening {
    Goes(Box<Open>),
    Done(Box<Recovered>),
    Refused(OpenError),
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct Open {
    params: OpenParams,
    small_sectors: u32,
    rounds: u32,
    mark: Option<VolumeMark>,
    state: State,
    /// The newest of what was listed so far.
    listed: Option<Position>,
    /// The checkpoint that is newest as far as is known.
    checkpoint: Option<Position>,
    load: Option<Load>,
    newest: u64,
    walk: Option<Walk>,
    claim: Option<Claim>,
    taken_from: Option<Claim>,
    /// Whether the checkpoints are being listed again.
    is_again: bool,
    /// Where the log seems to end.
    gap: Option<Gap>,
    /// What is missing, unless a newer checkpoint does without it.
    lost: Option<OpenError>,
    /// An owner's first object that did not agree with the end of the log before it: that end, the object, and what it says.
    disagreed: Option<(Position, Position, Position)>,
    /// Named checkpoints of which it is not known yet what they need.
    to_hold: Vec<Position>,
    /// This owner's first object, and the state before it.
    first: Option<Object>,
}

/// Whether the volume is open, or why it will not be.
type Progress = Result<bool, OpenError>;

impl Open {
    pub(crate) fn begin(params: OpenParams, calls: &mut Calls<Job>) -> Self {
        let small_sectors = (params.limits.object_bytes / 512 / 16) as u32;
        get(calls, Step::Volume, names::VOLUME.to_owned());
        Self {
            params,
            small_sectors,
            rounds: 0,
            mark: None,
            state: State::empty([0; 16], 0, small_sectors),
            listed: None,
            checkpoint: None,
            load: None,
            newest: 0,
            walk: None,
            claim: None,
            taken_from: None,
            is_again: false,
            gap: None,
            lost: None,
            disagreed: None,
            to_hold: Vec::new(),
            first: None,
        }
    }

    /// Takes what a request has come to.
    pub(crate) fn handle(
        mut self: Box<Self>,
        calls: &mut Calls<Job>,
        time_ns: u64,
        step: Step,
        outcome: Outcome,
    ) -> Opening {
        let progress = match outcome {
            Outcome::Failed { name, error } => Err(OpenError::Store { name, error }),
            outcome => self.step(calls, time_ns, step, outcome),
        };
        match progress {
            Ok(false) => Opening::Goes(self),
            Ok(true) => Opening::Done(Box::new(self.finish())),
            Err(error) => Opening::Refused(error),
        }
    }

    fn step(&mut self, calls: &mut Calls<Job>, time_ns: u64, step: Step, outcome: Outcome) -> Progress {
        match step {
            Step::Volume => self.volume(calls, outcome),
            Step::Pointers => self.pointers(calls, outcome),
            Step::Pointer => self.pointer(calls, outcome),
            Step::Checkpoints => self.checkpoints(calls, time_ns, outcome),
            Step::Manifest | Step::Part(_) => self.load(calls, time_ns, step, outcome),
            Step::Epochs => self.epochs(calls, time_ns, outcome),
            Step::Head(at) => self.head(calls, time_ns, at, outcome),
            Step::Behind | Step::Witness(_) | Step::Gap(_) => {
                let (volume, newest) = (self.state.volume, self.newest);
                let Some(gap) = &mut self.gap else { return Ok(false) };
                let said = match step {
                    Step::Witness(at) => gap.witness(calls, (volume, newest), at, outcome),
                    Step::Gap(witness) => gap.again(witness, outcome),
                    _ => gap.behind(calls, newest, outcome),
                };
                self.gap_says(calls, time_ns, said)
            }
            Step::Later(epoch) => self.later(calls, time_ns, epoch, outcome),
            Step::Holder => self.holder(calls, time_ns, outcome),
            Step::Claim => self.claimed(calls, time_ns, outcome),
            Step::Fence => self.fence(calls, time_ns, outcome),
            Step::Winner => self.winner(outcome),
            Step::Begin => self.begun(calls, outcome),
        }
    }

    fn volume(&mut self, calls: &mut Calls<Job>, outcome: Outcome) -> Progress {
        let Outcome::Object { bytes, .. } = outcome else { return Err(OpenError::NoVolume) };
        let mark = VolumeMark::decode(&bytes).map_err(|damage| corrupt(names::VOLUME.to_owned(), &damage))?;
        self.mark = Some(mark);
        self.state = State::empty(mark.volume, mark.sectors, self.small_sectors);
        match &self.params.access {
            Access::Checkpoint(name) if names::is_checkpoint_name(name) => {
                list(calls, Step::Pointers, names::checkpoints(name), String::new());
            }
            Access::Checkpoint(name) => return Err(OpenError::NoCheckpoint(name.clone())),
            Access::Own(_) | Access::Latest => self.list_checkpoints(calls),
        }
        Ok(false)
    }

    fn pointers(&mut self, calls: &mut Calls<Job>, outcome: Outcome) -> Progress {
        let Outcome::Page { names, more } = outcome else { return Ok(false) };
        let newest = names.iter().filter_map(|name| names::checkpoint_of(name)).map(|(_, at)| at).max();
        self.listed = self.listed.max(newest);
        let Access::Checkpoint(name) = &self.params.access else { return Ok(false) };
        match (more, names.into_iter().next_back(), self.listed) {
            (true, Some(last), _) => list(calls, Step::Pointers, names::checkpoints(name), last),
            (_, _, Some(at)) => get(calls, Step::Pointer, names::checkpoint(name, at)),
            _ => return Err(OpenError::NoCheckpoint(name.clone())),
        }
        Ok(false)
    }

    fn pointer(&mut self, calls: &mut Calls<Job>, outcome: Outcome) -> Progress {
        let (Access::Checkpoint(name), Some(at)) = (&self.params.access, self.listed) else {
            return Ok(false);
        };
        let Outcome::Object { bytes, .. } = outcome else {
            return Err(OpenError::NoCheckpoint(name.clone()));
        };
        let path = names::checkpoint(name, at);
        let pointer = Pointer::decode(&bytes, &self.identity(at)).map_err(|damage| corrupt(path, &damage))?;
        if pointer.name != *name {
            return Err(OpenError::NoCheckpoint(name.clone()));
        }
        self.load = Some(Load::begin(at, true, calls));
        Ok(false)
    }

    fn list_checkpoints(&mut self, calls: &mut Calls<Job>) {
        self.listed = None;
        list(calls, Step::Checkpoints, names::INDEX.to_owned(), String::new());
    }

    fn checkpoints(&mut self, calls: &mut Calls<Job>, time_ns: u64, outcome: Outcome) -> Progress {
        let Outcome::Page { names, more } = outcome else { return Ok(false) };
        self.listed = self.listed.max(names.iter().filter_map(|name| names::index_of(name)).max());
        if let (true, Some(last)) = (more, names.into_iter().next_back()) {
            list(calls, Step::Checkpoints, names::INDEX.to_owned(), last);
            return Ok(false);
        }
        if let Some(lost) = self.lost.take() {
            return if self.listed == self.checkpoint { Err(lost) } else { self.anew(calls) };
        }
        if self.is_again {
            self.is_again = false;
            return if self.listed == self.checkpoint {
                self.have_all(calls, time_ns)
            } else {
                self.anew(calls)
            };
        }
        self.checkpoint = self.listed;
        match self.checkpoint {
            Some(at) => self.load = Some(Load::begin(at, true, calls)),
            None => self.list_epochs(calls),
        }
        Ok(false)
    }

    fn load(&mut self, calls: &mut Calls<Job>, time_ns: u64, step: Step, outcome: Outcome) -> Progress {
        let Some(mut load) = self.load.take() else { return Ok(false) };
        let loaded = match step {
            Step::Part(number) => load.part(&mut self.state, calls, number, outcome),
            _ => load.manifest(&mut self.state, calls, outcome),
        };
        let is_hold = !self.to_hold.is_empty();
        match loaded.map_err(|(name, what): Wrong| OpenError::Corrupt { name, what })? {
            Loaded::Part => self.load = Some(load),
            Loaded::Gone(name) => match &self.params.access {
                _ if is_hold => return Err(missing(name, "the name of a checkpoint")),
                Access::Checkpoint(name) => return Err(OpenError::NoCheckpoint(name.clone())),
                _ => self.accuse(calls, missing(name, "its checkpoint")),
            },
            Loaded::Whole if is_hold => {
                let entries: Vec<_> = load.objects().copied().collect();
                self.state.hold(load.at(), &entries);
                self.to_hold.pop();
                return self.next_hold(calls, time_ns);
            }
            Loaded::Whole if matches!(self.params.access, Access::Checkpoint(_)) => return Ok(true),
            Loaded::Whole => self.list_epochs(calls),
        }
        Ok(false)
    }

    fn list_epochs(&mut self, calls: &mut Calls<Job>) {
        let before = self.checkpoint.map_or(0, |at| at.epoch).checked_sub(1);
        self.newest = 0;
        list(calls, Step::Epochs, names::EPOCHS.to_owned(), before.map(names::claim).unwrap_or_default());
    }

    fn epochs(&mut self, calls: &mut Calls<Job>, time_ns: u64, outcome: Outcome) -> Progress {
        let Outcome::Page { names, more } = outcome else { return Ok(false) };
        let newest = names.iter().filter_map(|name| names::epoch_of(name)).max();
        self.newest = self.newest.max(newest.unwrap_or(0));
        if let (true, Some(last)) = (more, names.into_iter().next_back()) {
            list(calls, Step::Epochs, names::EPOCHS.to_owned(), last);
            return Ok(false);
        }
        if let Some(epoch) = self.checkpoint.map(|at| at.epoch).filter(|epoch| *epoch > self.newest) {
            let what = "there is a checkpoint of this owner, whose claim is gone".to_owned();
            return Err(OpenError::Corrupt { name: names::claim(epoch), what });
        }
        if let Some(own) = self.claim.as_ref().map(|claim| claim.epoch) {
            if self.newest > own {
                get(calls, Step::Winner, names::claim(self.newest));
                return Ok(false);
            }
            self.newest = own - 1;
        }
        self.walk = Some(Walk::new(&self.state, self.newest));
        self.go_on(calls, time_ns)
    }

    fn head(&mut self, calls: &mut Calls<Job>, time_ns: u64, at: Position, outcome: Outcome) -> Progress {
        let found = match outcome {
            Outcome::Object { bytes, size } => {
                let head = read_head(&bytes, size, &self.identity(at));
                match head.map_err(|damage| corrupt(names::log(at), &damage))? {
                    Ok(found) => found,
                    Err(len) => {
                        calls.start(
                            Job::Open(Step::Head(at)),
                            Request::Get { name: names::log(at), from: 0, len },
                        );
                        return Ok(false);
                    }
                }
            }
            _ => Found::Missing,
        };
        let is_asked = self.walk.as_mut().is_some_and(|walk| walk.take(at, found));
        if is_asked { self.go_on(calls, time_ns) } else { Ok(false) }
    }

    /// Walks on as far as that goes.
    fn go_on(&mut self, calls: &mut Calls<Job>, time_ns: u64) -> Progress {
        let Some(walk) = &mut self.walk else { return Ok(false) };
        match walk.step(&mut self.state) {
            Next::Wait => {
                for at in walk.asks() {
                    get(calls, Step::Head(at), names::log(at));
                }
            }
            Next::Fence(at) => {
                let Some(claim) = &self.claim else { return Ok(false) };
                let stamp = Stamp { nonce: claim.writer.nonce, time_ns };
                let fence = Fence { identity: self.identity(at), stamp, by: claim.epoch };
                create(calls, Step::Fence, names::log(at), fence.encode());
            }
            Next::Gap(at) => self.gap = Some(Gap::look(calls, at)),
            Next::Owner(by) => return self.look_for_claim(calls, time_ns, by),
            Next::Disagrees(at, said) => return self.disagree(calls, at, said),
            Next::Wrong(at, what) => {
                return Err(OpenError::Corrupt { name: names::log(at), what: what.to_owned() });
            }
            Next::Ended if walk.is_fencing() => {
                self.is_again = true;
                self.list_checkpoints(calls);
            }
            Next::Ended if self.claim.is_some() => return self.begin_fences(calls, time_ns),
            Next::Ended if self.params.access == Access::Latest => return Ok(true),
            Next::Ended if walk.is_released() => self.make_claim(calls, time_ns),
            Next::Ended => get(calls, Step::Holder, names::claim(self.newest)),
        }
        Ok(false)
    }

    fn holder(&mut self, calls: &mut Calls<Job>, time_ns: u64, outcome: Outcome) -> Progress {
        let claim = self.claim_in(outcome, self.newest)?;
        match self.params.access {
            Access::Own(Takeover::Always) => {}
            Access::Own(Takeover::From(nonce)) if claim.writer.nonce == nonce => {}
            _ => return Err(OpenError::InUse(claim)),
        }
        self.taken_from = Some(claim);
        self.make_claim(calls, time_ns);
        Ok(false)
    }

    fn make_claim(&mut self, calls: &mut Calls<Job>, time_ns: u64) {
        let writer = self.params.writer.clone();
        let epoch = self.newest + 1;
        let claim = Claim { epoch, writer, time_ns, takeover: self.taken_from.is_some() };
        create(calls, Step::Claim, names::claim(epoch), claim_bytes(self.state.volume, &claim));
        self.claim = Some(claim);
    }

    fn claimed(&mut self, calls: &mut Calls<Job>, time_ns: u64, outcome: Outcome) -> Progress {
        if let Outcome::Conflict { bytes, size } = outcome {
            return Err(OpenError::Lost(self.claim_in(Outcome::Object { bytes, size }, self.newest + 1)?));
        }
        self.begin_fences(calls, time_ns)
    }

    fn begin_fences(&mut self, calls: &mut Calls<Job>, time_ns: u64) -> Progress {
        if let Some(walk) = &mut self.walk {
            walk.fence();
        }
        forget_heads(calls);
        self.go_on(calls, time_ns)
    }

    fn fence(&mut self, calls: &mut Calls<Job>, time_ns: u64, outcome: Outcome) -> Progress {
        let Some(walk) = &mut self.walk else { return Ok(false) };
        match outcome {
            Outcome::Created => walk.fenced(),
            _ => {
                walk.was_not_free();
                forget_heads(calls);
            }
        }
        self.go_on(calls, time_ns)
    }

    /// The logs of all owners before have ended, and nothing of them is missing.
    fn have_all(&mut self, calls: &mut Calls<Job>, time_ns: u64) -> Progress {
        self.to_hold = self.state.named.iter().map(|named| named.at).collect();
        self.to_hold.sort_unstable();
        self.to_hold.dedup();
        // From here on what is loaded is a checkpoint that is held.
        if let Some(walk) = &mut self.walk {
            walk.end(&mut self.state);
        }
        self.next_hold(calls, time_ns)
    }

    fn next_hold(&mut self, calls: &mut Calls<Job>, time_ns: u64) -> Progress {
        match self.to_hold.last() {
            Some(at) => self.load = Some(Load::begin(*at, false, calls)),
            None => self.make_first(calls, time_ns),
        }
        Ok(false)
    }

    fn make_first(&mut self, calls: &mut Calls<Job>, time_ns: u64) {
        let (Some(claim), Some(walk)) = (&self.claim, &self.walk) else { return };
        let at = Position { epoch: claim.epoch, seq: 0 };
        let stamp = Stamp { nonce: claim.writer.nonce, time_ns };
        let mut head = LogHead::new(self.identity(at), stamp, self.state.volume_sectors);
        head.commit = true;
        head.before = walk.predecessor(&self.state);
        let bytes = head.encode(&[]);
        let data_at = head_bytes(&bytes).unwrap_or_default() as u32;
        self.first = Some(Object::stored(at, data_at, 0));
        create(calls, Step::Begin, names::log(at), bytes);
    }

    fn begun(&mut self, calls: &mut Calls<Job>, outcome: Outcome) -> Progress {
        let Outcome::Conflict { bytes, .. } = outcome else { return Ok(true) };
        let Some(at) = self.first.map(|first| first.at) else { return Ok(true) };
        let fence =
            Fence::decode(&bytes, &self.identity(at)).map_err(|damage| corrupt(names::log(at), &damage))?;
        self.newest = fence.by;
        get(calls, Step::Winner, names::claim(fence.by));
        Ok(false)
    }

    fn winner(&mut self, outcome: Outcome) -> Progress {
        Err(OpenError::Lost(self.claim_in(outcome, self.newest)?))
    }

    /// Begins once more with the newest checkpoint.
    fn anew(&mut self, calls: &mut Calls<Job>) -> Progress {
        self.rounds += 1;
        let Some(mark) = self.mark.filter(|_| self.rounds < ROUNDS_MAX) else {
            return Err(OpenError::Unsettled);
        };
        calls.drop_all();
        self.state = State::empty(mark.volume, mark.sectors, self.small_sectors);
        (self.load, self.walk, self.gap, self.is_again) = (None, None, None, false);
        self.list_checkpoints(calls);
        Ok(false)
    }

    fn finish(self) -> Recovered {
        Recovered {
            epoch: self.first.map_or(0, |first| first.at.epoch),
            first: self.first,
            checkpoint: self.checkpoint,
            log_objects: self.walk.as_ref().map_or(0, |walk| walk.objects),
            log_bytes: self.walk.as_ref().map_or(0, |walk| walk.bytes),
            taken_from: self.taken_from,
            state: self.state,
        }
    }

    const fn identity(&self, at: Position) -> Identity {
        Identity { volume: self.state.volume, at }
    }

    fn claim_in(&self, outcome: Outcome, epoch: u64) -> Result<Claim, OpenError> {
        let name = names::claim(epoch);
        let Outcome::Object { bytes, .. } = outcome else {
            return Err(OpenError::Corrupt { name, what: "the claim is gone".to_owned() });
        };
        claim_of(&bytes, self.state.volume, epoch).map_err(|damage| corrupt(name, &damage))
    }
}

fn corrupt(name: String, damage: &Damage) -> OpenError {
    OpenError::Corrupt { name, what: damage.to_string() }
}

/// What was asked for before something has changed counts no more.
fn forget_heads(calls: &mut Calls<Job>) {
    calls.drop_where(|job| matches!(job, Job::Open(Step::Head(_))));
}

// Where the log seems to end.

impl Open {
    /// What was found out of a gap.
    fn gap_says(&mut self, calls: &mut Calls<Job>, time_ns: u64, said: Said) -> Progress {
        match said {
            Said::Wait => Ok(false),
            Said::Ends => self.pass(calls, time_ns),
            Said::HasLog(epoch) => self.look_for_claim(calls, time_ns, epoch),
            Said::Lost(lost) => {
                self.accuse(calls, lost);
                Ok(false)
            }
        }
    }

    /// Looks whether an owner has a claim that must have one.
    fn look_for_claim(&mut self, calls: &mut Calls<Job>, time_ns: u64, epoch: u64) -> Progress {
        if self.claim.as_ref().is_some_and(|claim| claim.epoch == epoch) {
            return self.pass(calls, time_ns);
        }
        get(calls, Step::Later(epoch), names::claim(epoch));
        Ok(false)
    }

    /// Takes the claim of an owner that has come after the newest one that is known.
    fn later(&mut self, calls: &mut Calls<Job>, time_ns: u64, epoch: u64, outcome: Outcome) -> Progress {
        if let Outcome::Missing = outcome {
            return Err(missing(names::claim(epoch), "what this owner has made"));
        }
        self.pass(calls, time_ns)
    }

    /// The log ends where it seems to.
    fn pass(&mut self, calls: &mut Calls<Job>, time_ns: u64) -> Progress {
        self.gap = None;
        if let Some(walk) = &mut self.walk {
            walk.pass();
        }
        self.go_on(calls, time_ns)
    }

    /// An object is lost unless a newer checkpoint does without it.
    fn accuse(&mut self, calls: &mut Calls<Job>, lost: OpenError) {
        calls.drop_all();
        self.lost = Some(lost);
        self.list_checkpoints(calls);
    }

    /// The first object of an owner names another end of the log before than was found. That may be as this log went on meanwhile; a second
    /// time it is not.
    fn disagree(&mut self, calls: &mut Calls<Job>, at: Position, said: Position) -> Progress {
        let end = self.walk.as_ref().map_or(Position::default(), |walk| walk.begun());
        if self.disagreed.replace((end, at, said)) != Some((end, at, said)) {
            return self.anew(calls);
        }
        let (first, witness) = (Position { epoch: said.epoch, seq: 0 }, names::log(at));
        let lost = if said.epoch > end.epoch {
            missing(names::log(first), &witness)
        } else if said.epoch == end.epoch && said.seq > end.seq {
            missing(names::log(end), &witness)
        } else {
            let what = "it does not go on where the log before it ends".to_owned();
            OpenError::Corrupt { name: witness, what }
        };
        self.accuse(calls, lost);
        Ok(false)
    }
}
