//! A volume in an object store as a device, see [`super`].

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, Read};
use std::time::{Duration, Instant};

use forebay_block::{Class, DeviceOp, DeviceResult, ErrorKind, IoError, Nanos, OpKind};
use forebay_objects as objects;
use forebay_objects::{
    Answer, Claim, Command, CommandError, Counters, CreateError, CreateParams, Creation, Effect, Limits,
    OpenParams, Opened, Request, Takeover, Vault, Writer,
};

use crate::access::{Access, OpenError};
use crate::bounds::check_ranges;
use crate::checkpoints::{CheckpointChange, CheckpointDone, CheckpointError};
use crate::clock::Clock;
use crate::device::{Away, Device, DeviceInfo, DeviceKind, Survives};
use crate::remote::began;
use crate::ring::{Ring, Waker};
use crate::s3::client::Client;
use crate::s3::credentials::Environment;
use crate::s3::drive::Drive;
use crate::s3::naming::Naming;
use crate::s3::owner::{self, Owner};
use crate::s3::uri::S3Spec;
use crate::s3::workers::{Store, Workers};
use crate::store_figures::{Billed, StoreFigures};

/// Operations that it takes at a time.
const DEPTH_MAX: usize = 128;
/// Threads for requests: what a vault has under way of gets and creates, and some for the rest.
const THREADS_MAX: usize = 96;
/// A device that is dropped waits for so long until the store has heard that the volume is free again.
const RELEASE_MAX: Duration = Duration::from_secs(5);
/// The tags of commands: of one that is waited for, and of one that changes a checkpoint. There is one at a time.
const COMMAND: u64 = 0;
const NAMING: u64 = 1;
/// Whoever waits for the end of another command looks so often.
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// See the module's documentation.
pub struct S3Device {
    info: DeviceInfo,
    drive: Drive,
    vault: Vault,
    patience: Duration,
    owns: bool,
    /// Operations for which the vault has no room yet.
    queue: VecDeque<(u64, DeviceOp)>,
    /// What is under way, and where.
    under_way: HashMap<u64, (OpKind, Option<u64>)>,
    finished: Vec<(u64, DeviceResult)>,
    /// A checkpoint that is being made or given up.
    naming: Option<Naming>,
    /// The time of the caller's clock and of the drive's own when the caller last told it.
    now: (Nanos, Nanos),
    /// The log has said that the store fails.
    said_away: bool,
    /// Another host has it.
    is_fenced: bool,
}

impl S3Device {
    /// Opens a volume.
    ///
    /// # Errors
    /// [`OpenError`]: there is none, the store cannot be reached or refuses, or somebody else has the volume.
    pub fn open(spec: &S3Spec, ring: &Ring, access: Access) -> Result<Self, OpenError> {
        let path = spec.as_path().to_owned();
        if access.writes() && spec.checkpoint.is_some() {
            return Err(OpenError::ReadOnly { path, why: "a checkpoint stays as it was" });
        }
        let failed = |why| OpenError::system("open", spec.as_path(), io::Error::other(why));
        let mut drive = start(spec, ring.waker())?;
        let own = Owner::own();
        let mut attempt = match (access, &spec.checkpoint) {
            (Access::ReadOnly | Access::Look, Some(name)) => objects::Access::Checkpoint(name.clone()),
            (Access::ReadOnly | Access::Look, None) => objects::Access::Latest,
            (Access::ReadWrite, _) => objects::Access::Own(Takeover::Never),
            (Access::TakeOver, _) => objects::Access::Own(Takeover::Always),
        };
        let (vault, opened) = loop {
            let params = OpenParams {
                writer: writer(&own).map_err(|e| OpenError::system("open", spec.as_path(), e))?,
                access: attempt.clone(),
                limits: Limits { patience: spec.timeout, ..Limits::default() },
                time_ns: time_ns(&drive.clock),
            };
            let mut vault = Vault::open(params, drive.clock.now());
            let ended = drive.wait(&mut vault, spec.timeout, |_, told| {
                told.into_iter().find_map(|effect| match effect {
                    Effect::Opened(opened) => Some(Ok(opened)),
                    Effect::Refused(why) => Some(Err(why)),
                    _ => None,
                })
            });
            let why = match ended.map_err(failed)? {
                Ok(opened) => break (vault, opened),
                Err(why) => why,
            };
            match why {
                objects::OpenError::InUse(claim)
                    if attempt == objects::Access::Own(Takeover::Never) && is_dead(&own, &claim) =>
                {
                    attempt = objects::Access::Own(Takeover::From(claim.writer.nonce));
                }
                objects::OpenError::InUse(claim) | objects::OpenError::Lost(claim) => {
                    return Err(OpenError::InUse { path, holder: holder(&claim, &own) });
                }
                objects::OpenError::NoVolume => return Err(OpenError::Missing { path }),
                objects::OpenError::Corrupt { name: object, what } => {
                    return Err(OpenError::Damaged { path, object, what });
                }
                why => return Err(failed(why.to_string())),
            }
        };
        tell_opened(spec, &opened);
        Ok(Self::new(spec, drive, vault, &opened))
    }

    fn new(spec: &S3Spec, drive: Drive, vault: Vault, opened: &Opened) -> Self {
        Self {
            info: DeviceInfo {
                name: spec.to_string(),
                kind: DeviceKind::Remote,
                several_ways: false,
                size_bytes: opened.size_bytes,
                logical_block: 512,
                native_block: 512,
                physical_block: 4096,
                unit_bytes: None,
                direct: true,
                volatile_cache: true,
                forgets: true,
                atomic: true,
                depth: DEPTH_MAX,
                survives: Survives::PowerCut,
                durability: "power cuts, as far as the object store keeps what it has acknowledged",
                billed: Some(Billed::default()),
            },
            now: (Nanos(0), drive.clock.now()),
            drive,
            vault,
            patience: spec.timeout,
            owns: opened.epoch > 0,
            queue: VecDeque::new(),
            under_way: HashMap::new(),
            finished: Vec::new(),
            naming: None,
            said_away: false,
            is_fenced: false,
        }
    }

    /// Hands over what the vault has room for, and takes what it tells.
    fn go_on(&mut self) {
        loop {
            // One that is fenced has room for nothing, and fails everything.
            while (self.vault.room() > 0 || self.is_fenced)
                && let Some((tag, op)) = self.queue.pop_front()
            {
                self.vault.submit(self.drive.clock.now(), tag, op);
            }
            let mut told = Vec::new();
            self.drive.turn(&mut self.vault, &mut told);
            if told.is_empty() {
                break;
            }
            for effect in told {
                self.take(effect);
            }
        }
        self.tell();
        if let Some(billed) = &self.info.billed {
            billed.put(figures(&self.vault.counters()));
        }
    }

    fn take(&mut self, effect: Effect) {
        match effect {
            Effect::Done { tag, result } => {
                let (kind, offset) = self.under_way.remove(&tag).unwrap_or((OpKind::Flush, None));
                let result =
                    result.map_err(|fault| IoError::of_store(fault.kind, doing(kind), fault.what, offset));
                self.finished.push((tag, result));
            }
            Effect::Fenced(fenced) => {
                self.is_fenced = true;
                let by =
                    fenced.by.map_or_else(|| "another owner".to_owned(), |by| owner::words(&by.writer.host));
                tracing::error!(
                    "{}: {by} has taken it over; nothing more is written or read here, and the volume has to be stopped",
                    self.info.name
                );
            }
            Effect::Carried { tag: NAMING, result } => {
                if let Some(naming) = self.naming.take() {
                    naming.end(result);
                }
            }
            Effect::Request { .. } | Effect::Opened(_) | Effect::Refused(_) | Effect::Carried { .. } => {}
        }
    }

    /// The log tells once that the store fails, and once that it is well again.
    fn tell(&mut self) {
        let name = &self.info.name;
        match (self.vault.trouble(), self.said_away) {
            (Some(ailment), false) => {
                tracing::warn!("{name}: the object store fails, which is tried again: {}", ailment.what)
            }
            (None, true) => tracing::info!("{name}: the object store is well again"),
            _ => return,
        }
        self.said_away = !self.said_away;
    }

    /// Has a command carried out, with no operation under way. A checkpoint that is being made or given up comes first.
    fn command(&mut self, command: Command, patience: Duration) -> Result<(), CommandError> {
        let begun = Instant::now();
        loop {
            let result = self.command_now(command.clone(), patience);
            if result != Err(CommandError::Busy) || begun.elapsed() > patience {
                return result;
            }
            self.drive.workers.wait(BUSY_PAUSE);
        }
    }

    fn command_now(&mut self, command: Command, patience: Duration) -> Result<(), CommandError> {
        self.vault.command(self.drive.clock.now(), COMMAND, command);
        let mut others = Vec::new();
        let ended = self.drive.wait(&mut self.vault, patience, |_, told| {
            let mut result = None;
            for effect in told {
                match effect {
                    Effect::Carried { tag: COMMAND, result: ended } => result = Some(ended),
                    effect => others.push(effect),
                }
            }
            result
        });
        others.into_iter().for_each(|effect| self.take(effect));
        ended.unwrap_or_else(|what| Err(CommandError::Store(objects::Fault { kind: ErrorKind::Io, what })))
    }
}

impl Device for S3Device {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&mut self, tag: u64, op: DeviceOp, _class: Class, now: Nanos) {
        self.now = (now, self.drive.clock.now());
        if let Err(e) = check_ranges(&op, self.info.size_bytes) {
            return self.finished.push((tag, Err(e)));
        }
        if op.kind() != OpKind::Flush && op.bytes() == 0 {
            let nothing = matches!(op, DeviceOp::Read { .. }).then(|| forebay_block::Buf::zeroed(0));
            return self.finished.push((tag, Ok(nothing)));
        }
        self.under_way.insert(tag, (op.kind(), op.offset()));
        self.queue.push_back((tag, op));
        self.go_on();
    }

    fn poll(&mut self, now: Nanos, done: &mut Vec<(u64, DeviceResult)>) {
        self.now = (now, self.drive.clock.now());
        // Whoever is served from the cache asks nothing of the store, and must not be for long if somebody else has it.
        self.vault.look(self.now.1);
        self.go_on();
        done.append(&mut self.finished);
    }

    fn deadline(&self) -> Option<Nanos> {
        if !self.finished.is_empty() {
            return Some(Nanos(0));
        }
        let (callers, own) = self.now;
        self.vault.deadline().map(|at| Nanos(callers.0.saturating_add(at.since(own))))
    }

    fn waiting(&self) -> usize {
        self.queue.len()
    }

    fn is_fenced(&self) -> bool {
        self.is_fenced
    }

    fn away(&self) -> Option<Away> {
        let ailment = self.vault.trouble()?;
        let lasts = Duration::from_nanos(self.drive.clock.now().since(ailment.since));
        let why = IoError::of_store(ailment.kind, "asking the object store", ailment.what.as_str(), None);
        Some(Away { lasts, why: Some(why), refuses: ailment.is_refusal })
    }

    fn checkpoint(&mut self, change: CheckpointChange, done: CheckpointDone, now: Nanos) {
        self.now = (now, self.drive.clock.now());
        if !self.owns {
            return done(Err(CheckpointError::ReadOnly));
        }
        if self.naming.is_some() {
            return done(Err(CheckpointError::Busy));
        }
        let (naming, command) = Naming::begin(change, done);
        self.naming = Some(naming);
        self.vault.command(self.drive.clock.now(), NAMING, command);
        self.go_on();
    }

    fn resize(&mut self, size_bytes: u64) -> io::Result<()> {
        let resized = self.command(Command::Resize(size_bytes), self.patience);
        resized.map_err(|e| io::Error::other(e.to_string()))?;
        self.info.size_bytes = size_bytes;
        Ok(())
    }
}

impl Drop for S3Device {
    /// The next owner need not ask whether this one lives.
    fn drop(&mut self) {
        let takes_objects = self.vault.trouble().is_none_or(|ailment| ailment.request != "create");
        if !self.owns || self.is_fenced || !takes_objects || !self.under_way.is_empty() {
            return;
        }
        if let Err(why) = self.command(Command::Release, RELEASE_MAX) {
            tracing::warn!("{}: the object store has not heard that it is free again: {why}", self.info.name);
        }
    }
}

/// The threads for a volume's requests.
fn start(spec: &S3Spec, waker: Waker) -> Result<Drive, OpenError> {
    let client = Client::new(spec, &Environment::own(), THREADS_MAX);
    let client = client.map_err(|why| OpenError::system("use", spec.as_path(), io::Error::other(why)))?;
    Ok(Drive::new(Workers::new(Box::new(client), THREADS_MAX, waker)))
}

/// Makes a volume of this size where there is nothing; whether it has.
pub(super) fn make(spec: &S3Spec, size_bytes: u64) -> Result<bool, OpenError> {
    let system = |e| OpenError::system("make", spec.as_path(), e);
    let failed = |why: String| system(io::Error::other(why));
    if spec.checkpoint.is_some() {
        return Err(failed("a checkpoint is of a volume that there is".to_owned()));
    }
    // Nobody sleeps in it.
    let ring = Ring::new().map_err(system)?;
    let mut drive = start(spec, ring.waker())?;
    let params = CreateParams {
        volume: random().map_err(system)?,
        size_bytes,
        writer: writer(&Owner::own()).map_err(system)?,
        time_ns: time_ns(&drive.clock),
        limits: Limits::default(),
    };
    let mut creation = Creation::new(&params);
    let ended = drive.wait(&mut creation, spec.timeout, |creation, _| creation.ended().cloned());
    match ended.map_err(failed)? {
        Ok(()) => Ok(true),
        Err(CreateError::Exists) => Ok(false),
        Err(why) => Err(failed(why.to_string())),
    }
}

/// Removes all objects of a volume that was just made.
pub(super) fn remove(spec: &S3Spec) -> Result<(), OpenError> {
    let failed = |why: String| OpenError::system("remove", spec.as_path(), io::Error::other(why));
    let client = Client::new(spec, &Environment::own(), 1).map_err(failed)?;
    let carry_out = |request| client.carry_out(&request).map_err(|e| failed(e.to_string()));
    loop {
        let listed = carry_out(Request::List { prefix: String::new(), after: String::new() })?;
        let Answer::Page { names, more } = listed else { return Ok(()) };
        for name in names {
            carry_out(Request::Delete { name })?;
        }
        if !more {
            return Ok(());
        }
    }
}

fn writer(own: &Owner) -> io::Result<Writer> {
    Ok(Writer { nonce: random()?, host: own.encode() })
}

fn random() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn time_ns(clock: &Clock) -> u64 {
    clock.wall_offset_ns() + clock.now().0
}

fn is_dead(own: &Owner, claim: &Claim) -> bool {
    Owner::decode(&claim.writer.host).is_some_and(|other| own.knows_dead(&other, began))
}

/// Who has the volume, and what is to be done.
fn holder(claim: &Claim, own: &Owner) -> String {
    if Owner::decode(&claim.writer.host).as_ref() == Some(own) {
        return "this process itself (given twice?)".to_owned();
    }
    let who = owner::words(&claim.writer.host);
    format!("{who}; end it there, or if it is surely dead, give --takeover")
}

fn tell_opened(spec: &S3Spec, opened: &Opened) {
    if let Some(claim) = &opened.taken_from {
        let who = owner::words(&claim.writer.host);
        tracing::warn!(%spec, "taken over from {who}, which had not released it; it can write nothing there any more");
    }
}

fn figures(counters: &Counters) -> StoreFigures {
    StoreFigures {
        creates: counters.creates,
        gets: counters.gets,
        lists: counters.lists,
        deletes: counters.deletes,
        retries: counters.retries,
        bytes_sent: counters.bytes_up,
        bytes_moved: counters.bytes_moved,
        bytes_checkpoints: counters.bytes_checkpoints,
        bytes_received: counters.bytes_down,
        objects: counters.objects,
        stored_bytes: counters.stored_bytes,
        live_bytes: counters.live_bytes,
    }
}

/// What an operation does, for messages.
const fn doing(kind: OpKind) -> &'static str {
    match kind {
        OpKind::Read => "reading from an object store",
        OpKind::Write => "writing to an object store",
        OpKind::Flush => "flushing an object store",
        OpKind::Zero => "zeroing in an object store",
        OpKind::Commit => "committing a group in an object store",
    }
}
