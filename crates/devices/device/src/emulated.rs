//! A device that keeps its data in a file and takes the time that a model says.
//!
//! An operation goes to the file and to the model at once, and has ended when both are done with it. The model decides
//! about queueing, so that operations under way at the same time share the emulated device as they would the real one;
//! the file only must not be slower. Whether it is can be read from [`Lateness`].

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_block::{Class, DeviceOp, DeviceResult, Nanos};
use forebay_emulate::{Kind, Model, Operation, Settings};

use crate::access::{Access, OpenError};
use crate::checkpoints::{CheckpointChange, CheckpointDone};
use crate::device::{Away, Device, DeviceInfo, DeviceKind, Survives};
use crate::emulation::EmulateSpec;
use crate::file::FileDevice;
use crate::mapped::MappedDevice;
use crate::ring::Ring;
use crate::survey::Survey;

/// The thread is woken so much before an operation is due, and spends the rest of the time awake: a sleep ends some
/// microseconds late, which would be a large part of what an NVMe drive takes for a write.
const WAKE_EARLY_NS: u64 = 8_000;
/// Slack that the kernel is allowed for this thread's timers, in nanoseconds; by default it is 50 microseconds.
const TIMER_SLACK_NS: libc::c_ulong = 1_000;

/// How much later operations ended than the model had said: the file was slower, or the thread was not there in time.
#[derive(Clone, Debug, Default)]
pub struct Lateness(Arc<LatenessCounters>);

#[derive(Debug, Default)]
struct LatenessCounters {
    operations: AtomicU64,
    emulated_ns: AtomicU64,
    late_ns: AtomicU64,
}

impl Lateness {
    /// Operations that have ended.
    pub fn operations(&self) -> u64 {
        self.0.operations.load(Ordering::Relaxed)
    }

    /// Sum of the time that they should have taken, in nanoseconds.
    pub fn emulated_ns(&self) -> u64 {
        self.0.emulated_ns.load(Ordering::Relaxed)
    }

    /// Sum of the time that they took longer, in nanoseconds.
    pub fn late_ns(&self) -> u64 {
        self.0.late_ns.load(Ordering::Relaxed)
    }

    fn count(&self, emulated_ns: u64, late_ns: u64) {
        self.0.operations.fetch_add(1, Ordering::Relaxed);
        self.0.emulated_ns.fetch_add(emulated_ns, Ordering::Relaxed);
        self.0.late_ns.fetch_add(late_ns, Ordering::Relaxed);
    }
}

/// What is known of an operation under way.
#[derive(Default)]
struct UnderWay {
    submitted: Nanos,
    /// When the model had done it.
    due: Option<Nanos>,
    /// What the file said.
    result: Option<DeviceResult>,
}

/// See the module's documentation.
pub struct EmulatedDevice {
    inner: Box<dyn Device>,
    settings: Settings,
    model: Model,
    info: DeviceInfo,
    sync: bool,
    under_way: HashMap<u64, UnderWay>,
    lateness: Lateness,
    real: Vec<(u64, DeviceResult)>,
    emulated: Vec<(u64, Nanos)>,
}

impl EmulatedDevice {
    /// Opens and claims the file, for the calling thread.
    ///
    /// # Errors
    /// [`OpenError`]; a missing file is never created.
    pub fn open(spec: &EmulateSpec, ring: &Ring, access: Access) -> Result<Self, OpenError> {
        let mut inner: Box<dyn Device> = Box::new(FileDevice::open(&spec.file, ring, access)?);
        let memory = (DeviceKind::File, Survives::ProcessDeath);
        let mapped = access.writes() && (inner.info().kind, inner.info().survives) == memory;
        if mapped && spec.settings.kind() == Kind::Nvdram {
            // System calls take longer than the memory that they are to emulate.
            drop(inner);
            inner = Box::new(MappedDevice::open(&spec.file)?);
        }
        let file = inner.info();
        let model = Model::new(&spec.settings, file.size_bytes)
            .map_err(|e| OpenError::system("emulate a device on", &spec.file, io::Error::other(e)))?;
        let volatile_cache = spec.settings.volatile_cache() || spec.sync && file.volatile_cache;
        let (survives, durability) = match spec.sync {
            true => (file.survives, file.durability),
            false => {
                (Survives::ProcessDeath, "emulated with sync=no: survives the death of the process only")
            }
        };
        let depth = spec.settings.depth().min(file.depth);
        let info = DeviceInfo { volatile_cache, depth, survives, durability, ..file.clone() };
        // SAFETY: PR_SET_TIMERSLACK takes a number and no pointer.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, TIMER_SLACK_NS) };
        Ok(Self {
            inner,
            settings: spec.settings.clone(),
            model,
            info,
            sync: spec.sync,
            under_way: HashMap::new(),
            lateness: Lateness::default(),
            real: Vec::new(),
            emulated: Vec::new(),
        })
    }

    /// How late operations end.
    pub fn lateness(&self) -> Lateness {
        self.lateness.clone()
    }
}

impl Device for EmulatedDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&mut self, tag: u64, op: DeviceOp, class: Class, now: Nanos) {
        self.model.submit(tag, Operation::from(&op), now);
        let mut under_way = UnderWay { submitted: now, ..UnderWay::default() };
        match op {
            DeviceOp::Flush if !self.sync => under_way.result = Some(Ok(None)),
            DeviceOp::Write { offset, bufs, .. } if !self.sync => {
                self.inner.submit(tag, DeviceOp::Write { offset, bufs, durable: false }, class, now);
            }
            op => self.inner.submit(tag, op, class, now),
        }
        self.under_way.insert(tag, under_way);
    }

    fn poll(&mut self, now: Nanos, done: &mut Vec<(u64, DeviceResult)>) {
        self.inner.poll(now, &mut self.real);
        self.model.poll(now, &mut self.emulated);
        let mut changed = Vec::with_capacity(self.real.len() + self.emulated.len());
        for (tag, result) in self.real.drain(..) {
            changed.push(tag);
            if let Some(op) = self.under_way.get_mut(&tag) {
                op.result = Some(result);
            }
        }
        for (tag, at) in self.emulated.drain(..) {
            changed.push(tag);
            if let Some(op) = self.under_way.get_mut(&tag) {
                op.due = Some(at);
            }
        }
        for tag in changed {
            let ended = self.under_way.get(&tag).is_some_and(|op| op.due.is_some() && op.result.is_some());
            if let Some(UnderWay { submitted, due: Some(due), result: Some(result) }) =
                ended.then(|| self.under_way.remove(&tag)).flatten()
            {
                self.lateness.count(due.since(submitted), now.since(due));
                done.push((tag, result));
            }
        }
    }

    fn waiting(&self) -> usize {
        self.inner.waiting() + self.model.waiting()
    }

    fn away(&self) -> Option<Away> {
        self.inner.away()
    }

    fn checkpoint(&mut self, change: CheckpointChange, done: CheckpointDone, now: Nanos) {
        self.inner.checkpoint(change, done, now);
    }

    fn is_fenced(&self) -> bool {
        self.inner.is_fenced()
    }

    fn deadline(&self) -> Option<Nanos> {
        let due = self.model.next_event().map(|at| Nanos(at.0.saturating_sub(WAKE_EARLY_NS)));
        [self.inner.deadline(), due].into_iter().flatten().min()
    }

    fn survey(&self) -> io::Result<Survey> {
        self.inner.survey()
    }

    fn reserve(&self) -> io::Result<()> {
        self.inner.reserve()
    }

    fn resize(&mut self, size_bytes: u64) -> io::Result<()> {
        let model = Model::new(&self.settings, size_bytes);
        let model = model.map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        self.inner.resize(size_bytes)?;
        self.model = model;
        self.info.size_bytes = size_bytes;
        Ok(())
    }
}
