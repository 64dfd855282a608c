//! Who waits for the writes of an attached volume: the tracker's tags, put to requests as they arrive, and the account of why each
//! write went where it went.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

use forebay_block::{BlockService, Completion, Criticality, Op, Origin, VolumeInfo};
use forebay_control::{ExplainRow, Explanation, InheritedRow, WaitRow};
use forebay_host::VolumeHandle;
use forebay_policy::{Admission, AdmissionReason, Allowance};
use forebay_tracker::{Device, Known, Rules, Tracker, TrackerError, Wait};

/// Most different rows of an account; what does not fit is counted as `other`.
const ROWS_MAX: usize = 1024;
/// Most tasks whose names are remembered until their writes are acknowledged.
const NAMES_MAX: usize = 8192;

/// Where the tracker is started, once, by the first who needs it.
pub struct Tracking {
    rules: Rules,
    tracker: Mutex<Option<Arc<Tracker>>>,
    failure: Mutex<Option<String>>,
}

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Counts and hints: half a change of them does no harm.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tracking {
    /// Nothing is started yet.
    pub fn new(rules: Rules) -> Self {
        Self { rules, tracker: Mutex::default(), failure: Mutex::default() }
    }

    /// Whether admission needs to know who issues writes.
    fn is_needed(&self, admission: Admission) -> bool {
        !self.rules.is_empty() || !matches!(admission, Admission::All | Admission::Range)
    }

    /// The tracker, started if it was not; `None` if it cannot be, and why is told by [`Tracking::missing`].
    fn tracker(&self) -> Option<Arc<Tracker>> {
        let mut tracker = hold(&self.tracker);
        if tracker.is_none() {
            match Tracker::start(self.rules.clone()) {
                Ok(started) => *tracker = Some(Arc::new(started)),
                Err(e) => {
                    tracing::warn!("who waits for a write is not known: {e}");
                    *hold(&self.failure) = Some(short(&e));
                }
            }
        }
        tracker.clone()
    }

    /// Sources of criticality that are missing, and why, for a volume with this policy that is attached, or not.
    pub fn missing(&self, admission: Admission, attached: bool) -> Vec<String> {
        if !self.is_needed(admission) {
            return Vec::new();
        }
        let mut missing = Vec::new();
        if self.rules.is_empty() {
            missing.push("tasks: no --rules say who is critical".to_owned());
        }
        if !attached {
            missing.push("tasks: the volume is not attached as a block device".to_owned());
        }
        missing.extend(hold(&self.failure).iter().map(|e| format!("tasks: {e}")));
        if let Some(tracker) = hold(&self.tracker).as_ref() {
            missing.extend(tracker.missing());
            let dropped = tracker.dropped();
            if dropped > 0 {
                missing.push(format!("{dropped} tags or signals came too fast and were dropped"));
            }
        }
        missing
    }

    /// What critical tasks waited for, on this machine, since the tracker began.
    pub fn waits(&self) -> Vec<WaitRow> {
        let Some(tracker) = hold(&self.tracker).clone() else {
            return Vec::new();
        };
        let row = |(wait, figures): (Wait, forebay_tracker::WaitFigures)| WaitRow {
            kind: wait.as_str().to_owned(),
            count: figures.count,
            total_us: figures.total.as_micros() as u64,
            average_us: figures.total.as_micros() as u64 / figures.count.max(1),
            max_us: figures.longest.as_micros() as u64,
        };
        tracker.waits().iter().map(row).collect()
    }
}

/// The first line: the verifier's words that may follow are for developers.
fn short(e: &TrackerError) -> String {
    e.to_string().lines().next().unwrap_or_default().to_owned()
}

/// A volume as its block device's frontend sees it: requests get their tags here.
pub struct TrackedVolume {
    inner: VolumeHandle,
    link: Arc<Link>,
}

/// What a volume and its tracker share.
#[derive(Default)]
pub struct Link {
    source: RwLock<Option<(Arc<Tracker>, Device)>>,
    account: Mutex<Account>,
}

impl Link {
    fn source(&self) -> Option<(Arc<Tracker>, Device)> {
        self.source.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_source(&self, source: Option<(Arc<Tracker>, Device)>) {
        let mut slot = self.source.write().unwrap_or_else(PoisonError::into_inner);
        if let Some((tracker, device)) = slot.take() {
            tracker.forget(device);
        }
        *slot = source;
    }

    /// Begins to tag the writes of this block device, if admission needs it and they are not tagged yet.
    pub fn follow(&self, device: &Path, tracking: &Tracking, handle: &VolumeHandle) {
        if self.source().is_some() || !tracking.is_needed(handle.settings().admission) {
            return;
        }
        let Some(tracker) = tracking.tracker() else {
            return;
        };
        let promoted = handle.clone();
        let promote = Box::new(move |offset, len| {
            // A volume that has stopped has nothing outstanding.
            let _ = promoted.promote(offset, len);
        });
        let followed = Device::at(device)
            .map_err(|e| e.to_string())
            .and_then(|number| tracker.watch(number, promote).map_err(|e| short(&e)).map(|()| number));
        match followed {
            Ok(number) => self.set_source(Some((tracker, number))),
            Err(e) => {
                tracing::warn!(device = %device.display(), "who writes to it is not known: {e}");
                *hold(&tracking.failure) = Some(e);
            }
        }
    }

    /// The block device is gone.
    pub fn unfollow(&self) {
        self.set_source(None);
    }

    /// Notes why a write went where it went.
    pub fn admitted(&self, origin: &Origin, reason: AdmissionReason, bytes: u64) {
        hold(&self.account).admitted(origin, reason, bytes);
    }

    /// The account so far.
    pub fn explanation(&self) -> Explanation {
        hold(&self.account).explanation()
    }
}

impl TrackedVolume {
    /// A frontend's view of the volume.
    pub fn new(inner: VolumeHandle, link: Arc<Link>) -> Self {
        Self { inner, link }
    }
}

impl BlockService for TrackedVolume {
    fn info(&self) -> VolumeInfo {
        self.inner.info()
    }

    fn submit(&self, op: Op, origin: Origin, done: Completion) {
        let range = match &op {
            Op::Write { offset, data, .. } => Some((*offset, data.len() as u64)),
            Op::Zero { offset, len, .. } => Some((*offset, *len)),
            _ => None,
        };
        let found = range.and_then(|(offset, len)| {
            let (tracker, device) = self.link.source()?;
            let known = tracker.arrive(device, offset, len)?;
            Some((tracker, device, offset, len, known))
        });
        let Some((tracker, device, offset, len, known)) = found else {
            return self.inner.submit(op, origin, done);
        };
        let capped = known.is_awaited() && !tracker.allows(known.tid, len);
        let criticality = if capped { Criticality::Capped } else { known.criticality };
        let origin = Origin {
            sync: origin.sync || known.sync,
            meta: origin.meta || known.meta,
            criticality,
            ioprio: known.ioprio,
            pid: known.tid,
        };
        hold(&self.link.account).named(&known, tracker.label(known.tid));
        if known.is_awaited() {
            return self.inner.submit(op, origin, done);
        }
        let at_its_end = Arc::clone(&tracker);
        let done: Completion = Box::new(move |result| {
            at_its_end.done(device, offset, len);
            done(result);
        });
        self.inner.submit(op, origin, done);
        tracker.submitted(device, offset, len);
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
            Op::Zero { .. } => Some(0),
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
}

/// What kind of data a write carries, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Carried {
    Journal,
    Metadata,
    Data,
}

impl Carried {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Journal => "journal",
            Self::Metadata => "metadata",
            Self::Data => "data",
        }
    }
}

/// Writes by task, data and reason (ATC'15, tables 1 and 3).
#[derive(Default)]
struct Account {
    names: HashMap<u32, (Arc<str>, bool)>,
    rows: BTreeMap<(Arc<str>, Carried, usize), (u64, u64)>,
    inherited: BTreeMap<(Arc<str>, Wait), u64>,
}

impl Account {
    fn named(&mut self, known: &Known, label: Option<Arc<str>>) {
        if self.names.len() >= NAMES_MAX {
            self.names.clear();
        }
        let name = label.unwrap_or_else(|| known.task_name().into());
        let inherited = matches!(known.criticality, Criticality::Inherited | Criticality::Awaited);
        if let Some(via) = known.via.filter(|_| inherited && known.is_awaited())
            && (self.inherited.len() < ROWS_MAX || self.inherited.contains_key(&(Arc::clone(&name), via)))
        {
            *self.inherited.entry((Arc::clone(&name), via)).or_default() += 1;
        }
        self.names.insert(known.tid, (name, known.is_journal()));
    }

    fn admitted(&mut self, origin: &Origin, reason: AdmissionReason, bytes: u64) {
        let (name, journal) = match self.names.get(&origin.pid) {
            Some((name, journal)) => (Arc::clone(name), *journal),
            None => ("client".into(), false),
        };
        let data = match (journal, origin.meta) {
            (true, _) => Carried::Journal,
            (false, true) => Carried::Metadata,
            (false, false) => Carried::Data,
        };
        let mut key = (name, data, reason as usize);
        if self.rows.len() >= ROWS_MAX && !self.rows.contains_key(&key) {
            key.0 = "other".into();
        }
        let row = self.rows.entry(key).or_default();
        row.0 += 1;
        row.1 += bytes;
    }

    fn explanation(&self) -> Explanation {
        let reason = |index: usize| AdmissionReason::ALL.get(index).copied().unwrap_or(AdmissionReason::All);
        let rows = self.rows.iter().map(|((task, data, why), (writes, bytes))| ExplainRow {
            task: task.to_string(),
            data: data.as_str().to_owned(),
            reason: reason(*why).to_string(),
            cached: reason(*why).is_cached(),
            writes: *writes,
            bytes: *bytes,
        });
        let inherited = self.inherited.iter().map(|((task, through), writes)| InheritedRow {
            task: task.to_string(),
            through: through.as_str().to_owned(),
            writes: *writes,
        });
        Explanation { rows: rows.collect(), inherited: inherited.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_added_up_by_task_data_and_reason() {
        let mut account = Account::default();
        account.names.insert(7, ("backend".into(), false));
        account.names.insert(8, ("jbd2".into(), true));
        let origin = |pid, meta| Origin { pid, meta, ..Origin::default() };
        account.admitted(&origin(7, false), AdmissionReason::Direct, 4096);
        account.admitted(&origin(7, false), AdmissionReason::Direct, 8192);
        account.admitted(&origin(8, true), AdmissionReason::Inherited, 512);
        account.admitted(&origin(9, true), AdmissionReason::NotCritical, 1);
        let rows = account.explanation().rows;
        let texts: Vec<String> = rows
            .iter()
            .map(|r| format!("{} {} {} {} {} {}", r.task, r.data, r.reason, r.cached, r.writes, r.bytes))
            .collect();
        assert_eq!(
            texts,
            [
                "backend data direct true 2 12288",
                "client metadata not-critical false 1 1",
                "jbd2 journal inherited true 1 512"
            ]
        );
    }

    #[test]
    fn an_account_stays_small() {
        let mut account = Account::default();
        for pid in 0..3 * ROWS_MAX as u32 {
            account.names.insert(pid, (pid.to_string().into(), false));
            account.admitted(&Origin { pid, ..Origin::default() }, AdmissionReason::All, 1);
        }
        assert!(account.rows.len() <= ROWS_MAX + AdmissionReason::ALL.len());
        let other = account.explanation().rows.into_iter().find(|r| r.task == "other").unwrap();
        assert_eq!(other.writes, 2 * ROWS_MAX as u64);
    }

    #[test]
    fn what_is_missing_is_told_where_it_is_needed() {
        let tracking = Tracking::new(Rules::default());
        assert!(tracking.missing(Admission::All, false).is_empty());
        let missing = tracking.missing(Admission::Cp, false).join("; ");
        assert!(missing.contains("--rules") && missing.contains("not attached"), "{missing}");
        let tracking = Tracking::new(Rules::preset("redis").unwrap());
        assert_eq!(tracking.missing(Admission::CpPi, true), Vec::<String>::new());
    }
}
