//! The handle to a volume that frontends and the control socket hold.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};

use forebay_block::{
    BlockService, Completion, ErrorKind, Feed, Gate, IoError, Op, Origin, Refused, VolumeInfo,
};
use forebay_device::{CheckpointChange, DeviceInfo, Waker};
use forebay_engine::{Command, CommonError, CommonState, CommonStep, MarkError, Status};
use forebay_policy::{AdmissionReason, Ranges, Settings};

use crate::error::HostError;
use crate::queue::{Ending, Incoming, Message, REQUEST_BYTES_MAX, RequestQueue};

/// How long [`VolumeHandle::status`] waits for fresh figures before it takes the last ones: the volume's thread never
/// blocks for long, but for a mapped device that syncs.
const STATUS_WAIT_MAX: Duration = Duration::from_millis(500);

/// Whoever knows more of writes than the frontends do, and wants to know what becomes of them. It is called on the volume's thread and must
/// not block.
pub trait Observer: Send + Sync {
    /// A request that came by [`VolumeHandle::submit_unidentified`] is about to be taken in. Returns who issued it, and the completion to use
    /// in place of `done`, which must call `done` once.
    fn identify(&self, op: &Op, origin: Origin, done: Completion) -> (Origin, Completion);

    /// A write is acknowledged: who issued it and whether that one waits for it (also if it was forced to be durable), why it went where it
    /// went, and its bytes.
    fn admitted(&self, origin: &Origin, reason: AdmissionReason, bytes: u64);
}

#[derive(Default)]
struct Published {
    status: Status,
    version: u64,
    /// When the volume's thread was asked for figures that it has not published. It is asked once (P7).
    asked_at: Option<Instant>,
    settings: Settings,
    ranges: Ranges,
    endurance_bytes_a_day: u64,
}

impl Published {
    fn unanswered(&self) -> Duration {
        self.asked_at.map_or(Duration::ZERO, |at| at.elapsed())
    }
}

/// What the volume's thread and its handles share.
pub(crate) struct Shared {
    pub(crate) info: VolumeInfo,
    pub(crate) cache: Option<DeviceInfo>,
    pub(crate) backing: DeviceInfo,
    pub(crate) backing_id: Option<[u8; 16]>,
    /// That of the journal, if it has one of its own.
    pub(crate) journal: Option<DeviceInfo>,
    pub(crate) queue: RequestQueue,
    gate: Arc<Gate>,
    pub(crate) observer: OnceLock<Arc<dyn Observer>>,
    pub(crate) without_journal: Option<String>,
    published: Mutex<Published>,
    fresh: Condvar,
}

impl Shared {
    pub(crate) fn new(
        info: VolumeInfo,
        cache: Option<DeviceInfo>,
        backing: (DeviceInfo, Option<[u8; 16]>),
        settings: Settings,
        waker: Waker,
    ) -> Self {
        let published = Published { settings, ..Published::default() };
        Self {
            info,
            cache,
            backing: backing.0,
            backing_id: backing.1,
            journal: None,
            queue: RequestQueue::new(waker),
            gate: Arc::default(),
            observer: OnceLock::new(),
            without_journal: None,
            published: Mutex::new(published),
            fresh: Condvar::new(),
        }
    }

    fn published(&self) -> MutexGuard<'_, Published> {
        // Each change is an assignment, so the value is whole even after a panic.
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn publish(&self, status: Status) {
        let mut published = self.published();
        published.status = status;
        published.version += 1;
        published.asked_at = None;
        self.fresh.notify_all();
    }
}

/// A volume, as its frontends see it: a [`BlockService`], and a few commands. Cloning it is cheap; it may outlive the
/// volume, and then answers that the volume has stopped.
#[derive(Clone)]
pub struct VolumeHandle(pub(crate) Arc<Shared>);

impl VolumeHandle {
    /// Figures as of now (or, if the volume's thread is held up, of a moment ago).
    pub fn status(&self) -> Status {
        self.figures().0
    }

    /// The figures, and for how long the volume's thread has not answered: not at all if they are fresh.
    pub fn figures(&self) -> (Status, Duration) {
        let before = self.ask();
        let stale = |published: &mut Published| published.version == before && published.asked_at.is_some();
        let waited = self.0.fresh.wait_timeout_while(self.0.published(), STATUS_WAIT_MAX, stale);
        let (mut published, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let unanswered = if stale(&mut published) { published.unanswered() } else { Duration::ZERO };
        (published.status.clone(), unanswered)
    }

    /// For how long the volume's thread has not answered, as far as is known: it is asked, and looked at when this is called
    /// again. One that has ended is not asked.
    pub fn unanswered(&self) -> Duration {
        self.ask();
        self.0.published().unanswered()
    }

    /// Asks the volume's thread for figures, unless that was done; returns the version of the last ones.
    fn ask(&self) -> u64 {
        let mut published = self.0.published();
        let version = published.version;
        let asked = published.asked_at.is_some();
        published.asked_at.get_or_insert_with(Instant::now);
        drop(published);
        if !asked && !self.0.queue.tell(Message::Status) {
            self.0.published().asked_at = None;
        }
        version
    }

    /// The settings in force.
    pub fn settings(&self) -> Settings {
        self.0.published().settings
    }

    /// The cache device; `None` without one.
    pub fn cache(&self) -> Option<&DeviceInfo> {
        self.0.cache.as_ref()
    }

    /// The journal's device, if it has one of its own.
    pub fn journal(&self) -> Option<&DeviceInfo> {
        self.0.journal.as_ref()
    }

    /// The backing device.
    pub fn backing(&self) -> &DeviceInfo {
        &self.0.backing
    }

    /// Changes the settings for writes that arrive from now on.
    ///
    /// # Errors
    /// [`HostError`] if the volume has stopped.
    pub fn set(&self, settings: Settings) -> Result<(), HostError> {
        self.command(Command::Set(settings))?;
        self.0.published().settings = settings;
        Ok(())
    }

    /// The ranges that the admission policy `range` lets in.
    pub fn ranges(&self) -> Ranges {
        self.0.published().ranges.clone()
    }

    /// Changes these ranges for writes that arrive from now on.
    ///
    /// # Errors
    /// [`HostError`] if the volume has stopped.
    pub fn set_ranges(&self, ranges: Ranges) -> Result<(), HostError> {
        self.command(Command::SetRanges(ranges.clone()))?;
        self.0.published().ranges = ranges;
        Ok(())
    }

    /// Changes how many bytes a day may be written to the cache before the admission policy `adaptive` tightens; 0: any.
    ///
    /// # Errors
    /// [`HostError`] if the volume has stopped.
    pub fn set_endurance(&self, bytes_a_day: u64) -> Result<(), HostError> {
        self.command(Command::SetEndurance(bytes_a_day))?;
        self.0.published().endurance_bytes_a_day = bytes_a_day;
        Ok(())
    }

    /// That budget.
    pub fn endurance_bytes_a_day(&self) -> u64 {
        self.0.published().endurance_bytes_a_day
    }

    /// Has `observer` asked who issues writes, and told of every write why it went where it went. Only the first one counts.
    pub fn observe(&self, observer: Arc<dyn Observer>) {
        // A second one would be a mistake of the caller's, and do no harm.
        let _ = self.0.observer.set(observer);
    }

    /// Says that a critical task waits for outstanding writes of `len` bytes from `offset` on: only a hint. False if the
    /// volume has stopped.
    pub fn promote(&self, offset: u64, len: u64) -> bool {
        self.0.queue.tell(Message::Promote { offset, len })
    }

    /// Destages everything that was acknowledged before, and waits until it is durable on the backing.
    ///
    /// # Errors
    /// [`HostError`] if the backing could not take it, or the volume has stopped.
    pub fn destage(&self) -> Result<(), HostError> {
        let done = self.command(Command::Destage);
        done.map_err(|e| match e {
            HostError::Command { volume, error }
                if error.kind == ErrorKind::ReadOnly && self.0.info.read_only =>
            {
                HostError::ReadOnly { volume, what: "what the backing lacks stays in the cache" }
            }
            e => e,
        })
    }

    /// Declares a consistency point and waits until the group that ends there is committed on the backing's side. Returns its
    /// number.
    ///
    /// # Errors
    /// [`HostError::Mark`] if there can be none, [`HostError::Stopped`] if the volume has stopped.
    pub fn mark(&self, label: &str) -> Result<u64, HostError> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let done = Box::new(move |result| {
            // As for commands.
            let _ = sender.send(result);
        });
        let volume = self.0.info.name.clone();
        if !self.0.queue.tell(Message::Mark(label.to_owned(), done)) {
            return Err(HostError::Stopped { volume });
        }
        match receiver.recv() {
            Ok(Ok(point)) => Ok(point),
            Ok(Err(MarkError::Stopping)) | Err(_) => Err(HostError::Stopped { volume }),
            Ok(Err(error)) => Err(HostError::Mark { volume, error }),
        }
    }

    /// A step of a round of the volume's consistency group ([`CommonStep`]).
    ///
    /// # Errors
    /// [`HostError::Common`] if it was not taken, [`HostError::Stopped`] if the volume has stopped.
    pub fn common(&self, round: u64, run: u64, step: CommonStep) -> Result<CommonState, HostError> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let done = Box::new(move |result| {
            // As for commands.
            let _ = sender.send(result);
        });
        let volume = self.0.info.name.clone();
        if !self.0.queue.tell(Message::Common(round, run, step, done)) {
            return Err(HostError::Stopped { volume });
        }
        match receiver.recv() {
            Ok(Ok(state)) => Ok(state),
            Ok(Err(CommonError::Mark(MarkError::Stopping))) | Err(_) => Err(HostError::Stopped { volume }),
            Ok(Err(error)) => Err(HostError::Common { volume, error }),
        }
    }

    /// Makes a named checkpoint of what the backing has acknowledged, or gives one up, and waits until that is durable.
    ///
    /// # Errors
    /// [`HostError::Checkpoint`] if it was not done, [`HostError::Stopped`] if the volume has stopped.
    pub fn checkpoint(&self, change: CheckpointChange) -> Result<(), HostError> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let done = Box::new(move |result| {
            // As for commands.
            let _ = sender.send(result);
        });
        let volume = self.0.info.name.clone();
        if !self.0.queue.tell(Message::Checkpoint(change, done)) {
            return Err(HostError::Stopped { volume });
        }
        match receiver.recv() {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(HostError::Checkpoint { volume, error }),
            Err(_) => Err(HostError::Stopped { volume }),
        }
    }

    /// Why this run has no journal although there is a place for one: `journaled` cannot be chosen before a restart.
    pub fn without_journal(&self) -> Option<&str> {
        self.0.without_journal.as_deref()
    }

    /// Identity of the backing; `None` without a cache.
    pub fn backing_id(&self) -> Option<[u8; 16]> {
        self.0.backing_id
    }

    fn command(&self, command: Command) -> Result<(), HostError> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let done = Box::new(move |result| {
            // Whoever asked waits for this, or has gone.
            let _ = sender.send(result);
        });
        let volume = || self.0.info.name.clone();
        if !self.0.queue.tell(Message::Command(command, done)) {
            return Err(HostError::Stopped { volume: volume() });
        }
        match receiver.recv() {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) if error.kind == ErrorKind::Shutdown => {
                Err(HostError::Stopped { volume: volume() })
            }
            Ok(Err(error)) => Err(HostError::Command { volume: volume(), error }),
            Err(_) => Err(HostError::Stopped { volume: volume() }),
        }
    }

    pub(crate) fn end(&self, ending: Ending) {
        // A thread that has ended already needs not be told.
        let _ = self.0.queue.tell(Message::End(ending));
    }

    /// As [`BlockService::submit`], of a request whose issuer the [`Observer`] may know.
    pub fn submit_unidentified(&self, op: Op, origin: Origin, done: Completion) {
        self.push(op, origin, done, false);
    }

    fn push(&self, op: Op, origin: Origin, done: Completion, identified: bool) {
        if is_too_long(&op) {
            let e = IoError::new(ErrorKind::Invalid, "request is longer than the volume takes");
            return done(Err(e));
        }
        // A completion that asks for more must not wait for whoever waits for completions.
        let changes = op.changes().filter(|_| !self.0.queue.is_mine());
        let inside = changes.map(|bytes| self.0.gate.pass(bytes));
        self.0.queue.push(Incoming { op, origin, done, identified, inside });
    }
}

fn is_too_long(op: &Op) -> bool {
    let len = match op {
        Op::Read { len, .. } => *len,
        Op::Write { data, .. } => data.len(),
        _ => 0,
    };
    len > REQUEST_BYTES_MAX
}

impl BlockService for VolumeHandle {
    fn info(&self) -> VolumeInfo {
        self.0.info.clone()
    }

    fn submit(&self, op: Op, origin: Origin, done: Completion) {
        self.push(op, origin, done, true);
    }

    fn try_submit(&self, op: Op, origin: Origin, done: Completion) -> Result<(), Box<Refused>> {
        if is_too_long(&op) {
            return Err(Box::new((op, done)));
        }
        let inside = match op.changes().map(|bytes| self.0.gate.try_pass(bytes)) {
            Some(None) => return Err(Box::new((op, done))),
            passed => passed.flatten(),
        };
        let incoming = Incoming { op, origin, done, identified: true, inside };
        self.0.queue.try_push(incoming).map_err(|Incoming { op, done, .. }| Box::new((op, done)))
    }

    fn adopt(&self, feed: Box<dyn Feed>) -> Result<(), Box<dyn Feed>> {
        let new = self.0.queue.feeds.admit(feed)?;
        // Of a volume that has ended it is dropped, and so comes back.
        let _ = self.0.queue.tell(Message::Adopt(new));
        Ok(())
    }

    fn gate(&self) -> &Arc<Gate> {
        &self.0.gate
    }
}
