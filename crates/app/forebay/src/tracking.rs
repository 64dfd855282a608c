//! Who waits for the writes of an attached volume: the tracker's tags, put to requests as they arrive, and the account of why each
//! write went where it went.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, Weak};
use std::time::Instant;

use foldhash::HashMap;
use forebay_block::{BlockService, Completion, Content, Criticality, Gate, Op, Origin, VolumeInfo};
use forebay_control::{ExplainRow, Explanation, InheritedRow, WaitRow};
use forebay_host::{Observer, VolumeHandle};
use forebay_policy::{Admission, AdmissionReason, Allowance};
use forebay_tracker::{Cause, Device, Hints, Name, Promotion, Rules, Tracker, Wait, Waits, unknown_users};

use crate::request_recorder::RequestRecorder;

/// Most different rows of an account; what does not fit is counted as `other`.
const ROWS_MAX: usize = 1024;
/// Most tasks whose names are remembered until their writes are acknowledged.
const NAMES_MAX: usize = 8192;

/// Where the tracker is started by the first who needs it. It ends with the last: tracing costs the whole machine something.
pub struct Tracking {
    rules: Rules,
    hints: Hints,
    tracker: Mutex<Weak<Tracker>>,
    waits: Arc<Mutex<Waits>>,
    failure: Mutex<Option<String>>,
}

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Counts and hints: half a change of them does no harm.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tracking {
    /// Nothing is started yet.
    pub fn new(rules: Rules, hints: Hints) -> Self {
        let gullible: Vec<&str> = rules.gullible().collect();
        if !gullible.is_empty() {
            tracing::warn!(
                "any user's task can make itself critical by {}, which go by title, thread or port alone: give them an exe, a user or a cgroup (docs/guide/tenants.md)",
                gullible.join(", ")
            );
        }
        for user in unknown_users(&rules, &hints) {
            tracing::warn!(
                "rules or hints speak of the user '{user}', whom /etc/passwd does not have: they fit no task of such a user; give a number"
            );
        }
        Self { rules, hints, tracker: Mutex::default(), waits: Arc::default(), failure: Mutex::default() }
    }

    /// Whether admission needs to know who issues writes.
    fn is_needed(&self, admission: Admission) -> bool {
        !self.rules.is_empty() || !matches!(admission, Admission::All | Admission::Range)
    }

    /// The tracker, started if it was not; `None` if it cannot be, and why is told by [`Tracking::missing`].
    fn tracker(&self) -> Option<Arc<Tracker>> {
        let mut tracker = hold(&self.tracker);
        if let Some(at_work) = tracker.upgrade() {
            return Some(at_work);
        }
        match Tracker::start(self.rules.clone(), self.hints.clone(), Arc::clone(&self.waits)) {
            Ok(started) => {
                let started = Arc::new(started);
                *tracker = Arc::downgrade(&started);
                *hold(&self.failure) = None;
                Some(started)
            }
            Err(e) => {
                tracing::warn!("who waits for a write is not known: {e}");
                *hold(&self.failure) = Some(e.brief());
                None
            }
        }
    }

    /// Sources of criticality that are missing, and why, for a volume with this policy that is attached, or not.
    pub fn missing(&self, admission: Admission, attached: bool) -> Vec<String> {
        if !self.is_needed(admission) {
            return Vec::new();
        }
        let mut missing = Vec::new();
        if self.rules.is_empty() && admission != Admission::Sync {
            missing.push("tasks: no --rules say who is critical".to_owned());
        }
        if !attached {
            missing.push("tasks: the volume is not attached as a block device".to_owned());
        }
        missing.extend(hold(&self.failure).iter().map(|e| format!("tasks: {e}")));
        let tracker = hold(&self.tracker).upgrade();
        if let Some(tracker) = tracker {
            missing.extend(tracker.missing());
            let dropped = tracker.dropped();
            if dropped > 0 {
                missing.push(format!("{dropped} tags, slots or signals came too fast and were dropped"));
            }
        }
        missing
    }

    /// What critical tasks waited for, on this machine, while there was a tracker.
    pub fn waits(&self) -> Vec<WaitRow> {
        let row = |(wait, figures): (Wait, forebay_tracker::WaitFigures)| WaitRow {
            kind: wait.as_str().to_owned(),
            count: figures.count,
            total_us: figures.total.as_micros() as u64,
            average_us: figures.total.as_micros() as u64 / figures.count.max(1),
            max_us: figures.longest.as_micros() as u64,
        };
        hold(&self.waits).iter().map(row).collect()
    }
}

/// A volume as its block device's frontend sees it: of who issues its requests the [`Link`] is asked.
pub struct TrackedVolume(pub VolumeHandle);

/// What a volume and its tracker share.
pub struct Link {
    source: RwLock<Option<Source>>,
    /// Why the writes to the device that is there are not tagged.
    failure: Mutex<Option<String>>,
    account: Arc<Mutex<Account>>,
    /// Where requests of the block device are recorded, and that somebody came to wait for a write.
    recorder: Option<Arc<RequestRecorder>>,
}

/// Who tags a volume's writes.
type Source = (Arc<Tracker>, Device);

impl Link {
    /// Nobody tags the volume's writes yet.
    pub fn new(recorder: Option<Arc<RequestRecorder>>) -> Self {
        Self { source: RwLock::default(), failure: Mutex::default(), account: Arc::default(), recorder }
    }

    fn source(&self) -> RwLockReadGuard<'_, Option<Source>> {
        self.source.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_source(&self, source: Option<Source>) {
        let mut slot = self.source.write().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *slot, source);
        // The volume's thread does not wait for what follows.
        drop(slot);
        if let Some((tracker, device)) = before {
            tracker.forget(device);
        }
    }

    /// Begins to tag the writes of this block device, if admission needs it and they are not tagged yet; ceases to if it does not.
    pub fn follow(&self, device: &Path, tracking: &Tracking, handle: &VolumeHandle) {
        if !tracking.is_needed(handle.settings().admission) {
            return self.unfollow();
        }
        if self.source().is_some() {
            return;
        }
        let Some(tracker) = tracking.tracker() else {
            return;
        };
        let (promoted, account, recorder) =
            (handle.clone(), Arc::clone(&self.account), self.recorder.clone());
        let promote = Box::new(move |promotion: &Promotion| {
            hold(&account).awaited(promotion);
            if let Some(recorder) = &recorder {
                recorder.promoted(promotion.offset, promotion.len);
            }
            // A volume that has stopped has nothing outstanding.
            let _ = promoted.promote(promotion.offset, promotion.len);
        });
        let followed = Device::at(device)
            .map_err(|e| e.to_string())
            .and_then(|number| tracker.watch(number, promote).map_err(|e| e.brief()).map(|()| number));
        match followed {
            Ok(number) => {
                self.set_source(Some((tracker, number)));
                *hold(&self.failure) = None;
            }
            Err(e) => {
                tracing::warn!(device = %device.display(), "who writes to it is not known: {e}");
                *hold(&self.failure) = Some(e);
            }
        }
    }

    /// The block device is gone, or nobody asks who writes to it.
    pub fn unfollow(&self) {
        self.set_source(None);
        *hold(&self.failure) = None;
    }

    /// Why the writes to the device that is there are not tagged, if they should be.
    pub fn missing(&self) -> Option<String> {
        hold(&self.failure).as_ref().map(|e| format!("tasks: {e}"))
    }

    /// The account so far.
    pub fn explanation(&self, tracking: &Tracking) -> Explanation {
        // Words are made when no write waits for it.
        let counted = hold(&self.account).counted.clone();
        counted.explanation(&tracking.rules)
    }
}

impl BlockService for TrackedVolume {
    fn info(&self) -> VolumeInfo {
        self.0.info()
    }

    fn submit(&self, op: Op, origin: Origin, done: Completion) {
        self.0.submit_unidentified(op, origin, done);
    }

    fn gate(&self) -> &Arc<Gate> {
        self.0.gate()
    }
}

impl Link {
    /// Who issued a request, as the tracker has it, which is told of the end of its writes.
    fn tag(&self, op: &Op, origin: Origin, done: Completion) -> (Origin, Completion) {
        let (offset, len) = match op {
            Op::Write { offset, data, .. } => (*offset, data.len() as u64),
            Op::Zero { offset, len, .. } => (*offset, *len),
            _ => return (origin, done),
        };
        let source = self.source();
        let Some((tracker, device)) = source.as_ref() else {
            return (origin, done);
        };
        // Held from before it can be promoted, so that whoever is told of that finds its task here. The tracker's locks come after this one.
        let mut account = hold(&self.account);
        let Some(arrival) = tracker.arrive(*device, offset, len) else {
            return (origin, done);
        };
        account.named(arrival.tid, arrival.name, arrival.hinted, arrival.cause, |tid| tracker.name(tid));
        drop(account);
        let origin = Origin {
            sync: origin.sync || arrival.sync,
            content: arrival.content,
            criticality: arrival.criticality,
            ioprio: arrival.ioprio,
            pid: arrival.tid,
            lane: origin.lane,
        };
        if !arrival.outstanding {
            return (origin, done);
        }
        let (tracker, device) = (Arc::downgrade(tracker), *device);
        let done: Completion = Box::new(move |result| {
            if let Some(tracker) = tracker.upgrade() {
                tracker.done(device, offset, len);
            }
            done(result);
        });
        (origin, done)
    }
}

impl Observer for Link {
    fn identify(&self, op: &Op, origin: Origin, done: Completion) -> (Origin, Completion) {
        let (origin, done) = self.tag(op, origin, done);
        match &self.recorder {
            Some(recorder) => (origin, recorder.request(op, origin, done)),
            None => (origin, done),
        }
    }

    fn admitted(&self, origin: &Origin, reason: AdmissionReason, bytes: u64) {
        hold(&self.account).admitted(origin, reason, bytes);
    }
}

/// A volume as clients of an export see it whose critical writes have a rate.
pub struct RatedVolume<S> {
    inner: S,
    rate: Mutex<Allowance>,
    began: Instant,
}

impl<S: BlockService> RatedVolume<S> {
    /// A view of the volume in which so many bytes a second may be critical.
    pub fn new(inner: S, bytes_a_second: u64) -> Self {
        Self { inner, rate: Mutex::new(Allowance::new(bytes_a_second, 0)), began: Instant::now() }
    }
}

impl<S: BlockService> BlockService for RatedVolume<S> {
    fn info(&self) -> VolumeInfo {
        self.inner.info()
    }

    fn submit(&self, op: Op, mut origin: Origin, done: Completion) {
        let bytes = match &op {
            Op::Write { data, .. } => Some(data.len() as u64),
            Op::Zero { len, .. } => Some(*len),
            _ => None,
        };
        if let (Some(bytes), Criticality::Direct) = (bytes, origin.criticality) {
            let now_ns = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
            if !hold(&self.rate).take(bytes, now_ns) {
                origin.criticality = Criticality::Capped;
            }
        }
        self.inner.submit(op, origin, done);
    }

    fn gate(&self) -> &Arc<Gate> {
        self.inner.gate()
    }
}

/// By which kind of wait somebody critical waited for a task or for its writes, and who did if that is known.
type Why = (Wait, Option<Name>);

/// A row's task.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Writer {
    Task(Name),
    /// Of an export, or not known.
    Client,
    /// What does not fit.
    Other,
}

impl Writer {
    fn rule(self, rules: &Rules) -> Option<String> {
        match self {
            Self::Task(name) => rules.source(name).map(str::to_owned),
            Self::Client | Self::Other => None,
        }
    }

    fn words(self, rules: &Rules) -> String {
        match self {
            Self::Task(name) => rules.words(name),
            Self::Client => "client".to_owned(),
            Self::Other => "other".to_owned(),
        }
    }
}

/// A task that has written.
struct Author {
    name: Name,
    /// It was critical by its own word the last time.
    hinted: bool,
    /// How it was the last time.
    cause: Option<Why>,
    /// The same as the tracker had it when the write came; `None` if that came to be waited for later.
    came_with: Option<Cause>,
}

/// Why writes went where they went, with what is known of the tasks that issued them.
#[derive(Default)]
struct Account {
    authors: HashMap<u32, Author>,
    counted: Counted,
}

/// Whose writes, whether they are critical by their task's own word, what they carry, whether they are synchronous, and the reason.
type Row = (Writer, bool, Content, bool, usize);

/// Writes by task, data, whether they are synchronous, and reason (ATC'15, tables 1 and 3).
#[derive(Clone, Default)]
struct Counted {
    rows: HashMap<Row, (u64, u64)>,
    /// Of those that are in the cache because somebody else waits: by task, why, and reason.
    inherited: HashMap<(Writer, Why, usize), u64>,
}

impl Account {
    /// A write has arrived; what its task is called, and who waits for it if that is somebody else, whose name is asked for if it is another
    /// than before.
    fn named(
        &mut self,
        tid: u32,
        name: Name,
        hinted: bool,
        cause: Option<Cause>,
        name_of: impl FnOnce(u32) -> Option<Name>,
    ) {
        if self.authors.len() >= NAMES_MAX {
            self.authors.clear();
        }
        let known = cause.and_then(|cause| self.authors.get(&cause.waiter)).map(|waiter| waiter.name);
        let author = self.authors.entry(tid).or_insert(Author { name, hinted, cause: None, came_with: None });
        (author.name, author.hinted) = (name, hinted);
        if let Some(cause) = cause.filter(|cause| author.came_with != Some(*cause)) {
            let waiter = known.or_else(|| name_of(cause.waiter));
            author.cause = Some((cause.via, waiter));
            // Who is not known is asked for again.
            author.came_with = waiter.map(|_| cause);
        }
    }

    /// Somebody has come to wait for a write that has arrived.
    fn awaited(&mut self, promotion: &Promotion) {
        if let Some(author) = self.authors.get_mut(&promotion.task) {
            author.cause = Some((promotion.through, promotion.waiter));
            author.came_with = None;
        }
    }

    fn admitted(&mut self, origin: &Origin, reason: AdmissionReason, bytes: u64) {
        let author = self.authors.get(&origin.pid);
        let writer = author.map_or(Writer::Client, |author| Writer::Task(author.name));
        let for_others = matches!(reason, AdmissionReason::Inherited | AdmissionReason::Reissued);
        if let Some(why) = author.and_then(|author| author.cause).filter(|_| for_others) {
            let mut key = (writer, why, reason as usize);
            let inherited = &mut self.counted.inherited;
            if inherited.len() >= ROWS_MAX && !inherited.contains_key(&key) {
                (key.0, key.1.1) = (Writer::Other, None);
            }
            *inherited.entry(key).or_default() += 1;
        }
        let hinted = author.is_some_and(|author| author.hinted);
        let mut key = (writer, hinted, origin.content, origin.sync, reason as usize);
        let rows = &mut self.counted.rows;
        if rows.len() >= ROWS_MAX && !rows.contains_key(&key) {
            (key.0, key.1) = (Writer::Other, false);
        }
        let row = rows.entry(key).or_default();
        row.0 += 1;
        row.1 += bytes;
    }
}

impl Counted {
    fn explanation(&self, rules: &Rules) -> Explanation {
        let reason = |index: usize| AdmissionReason::ALL.get(index).copied().unwrap_or(AdmissionReason::All);
        // Several names may be the same in words.
        let (mut rows, mut inherited) = (BTreeMap::new(), BTreeMap::new());
        for ((writer, hint, data, sync, why), (writes, bytes)) in &self.rows {
            let key = (writer.words(rules), writer.rule(rules), *hint, *data, *sync, *why);
            let row: &mut (u64, u64) = rows.entry(key).or_default();
            *row = (row.0 + writes, row.1 + bytes);
        }
        for ((writer, (through, waiter), why), writes) in &self.inherited {
            let waiter = waiter.map(|name| (rules.words(name), rules.source(name).map(str::to_owned)));
            *inherited.entry((writer.words(rules), *through, waiter, *why)).or_insert(0) += writes;
        }
        let rows =
            rows.into_iter().map(|((task, rule, hint, data, sync, why), (writes, bytes))| ExplainRow {
                task,
                rule,
                hint,
                data: data.as_str().to_owned(),
                sync,
                reason: reason(why).to_string(),
                cached: reason(why).is_cached(),
                writes,
                bytes,
            });
        let inherited = inherited.into_iter().map(|((task, through, waiter, why), writes)| {
            let (waiter, waiter_rule) = waiter.map_or((None, None), |(waiter, rule)| (Some(waiter), rule));
            let (through, reason) = (through.as_str().to_owned(), reason(why).to_string());
            InheritedRow { task, through, waiter, waiter_rule, reason, writes }
        });
        Explanation { rows: rows.collect(), inherited: inherited.collect() }
    }
}

#[cfg(test)]
mod tests;
