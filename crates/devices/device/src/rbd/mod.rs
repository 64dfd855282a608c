//! An image of a Ceph cluster (RBD) as a device: for backings, and for journals beside them.
//!
//! librbd does the work, on threads of its own ([`librbd`]); its cache is off, so that a write that is acknowledged is on all OSDs that are to
//! have it. Whether a power cut leaves it there is their stores' business. A flush is passed on all the same.
//!
//! The image's exclusive lock is this process's while the device is open ([`session`]); who lost it reads and writes nothing more. An operation that
//! is not answered in time fails, and nothing passes it until its outcome is known ([`under_way`]). The library itself connects anew and sends
//! again, so that no session is ever lost without the image: nothing of [`crate::remote`]'s exchange is needed.

mod gather;
mod librbd;
pub(crate) mod owner;
mod session;
mod under_way;
mod uri;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use forebay_block::{Buf, Class, DeviceOp, DeviceResult, ErrorKind, Nanos};

pub use uri::RbdSpec;

use crate::access::{Access, OpenError};
use crate::bounds::check_range;
use crate::device::{Away, Device, DeviceInfo, DeviceKind, Survives};
use crate::rbd::session::Session;
use crate::rbd::under_way::{DEPTH_MAX, UnderWay};
use crate::remote::{Bell, RemoteSpec};
use crate::ring::Ring;

/// What librbd has answered and nobody has taken in: the number of an operation, and what it has read, or an errno.
type Answers = Vec<(u64, Result<Option<Buf>, i32>)>;

/// Shared with the library's threads.
struct Mailbox {
    answers: Mutex<Answers>,
    bell: Bell,
}

impl Mailbox {
    fn put(&self, number: u64, answer: Result<Option<Buf>, i32>) {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).push((number, answer));
        self.bell.ring();
    }

    fn take(&self) -> Answers {
        self.bell.heard();
        std::mem::take(&mut *self.answers.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl RemoteSpec for RbdSpec {
    fn as_path(&self) -> &Path {
        &self.address
    }

    fn open(&self, ring: &Ring, access: Access) -> Result<Box<dyn Device>, OpenError> {
        Ok(Box::new(RbdDevice::open(self, ring, access)?))
    }

    fn make(&self, size_bytes: u64) -> Result<bool, OpenError> {
        session::make(self, size_bytes)
    }

    fn is_made(&self) -> bool {
        true
    }

    fn remove(&self) -> Result<(), OpenError> {
        session::remove(self)
    }

    fn journal_beside(&self) -> Option<Arc<dyn RemoteSpec>> {
        Some(Arc::new(self.journal()))
    }
}

/// What the log says of an image.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    There,
    Away,
    Lost,
}

/// See the module's documentation.
pub struct RbdDevice {
    info: DeviceInfo,
    /// `None` only while it is dropped.
    session: Option<Session>,
    under_way: UnderWay,
    mailbox: Arc<Mailbox>,
    /// The time when it was last polled.
    now: Nanos,
    /// What the log has been told.
    told: Told,
    probe: Probe,
}

/// Whoever is served from the cache asks nothing of the image, and must not be for long if somebody else has it: as long as the volume has
/// something to do, it is asked for a sector now and then.
#[derive(Default)]
struct Probe {
    /// Something was answered then.
    heard: Nanos,
    /// It is asked for.
    is_out: bool,
}

/// The number of that read, which no operation has.
const PROBE: u64 = 0;
/// It is asked for when nothing has been answered for so long.
const PROBE_AFTER: Duration = Duration::from_secs(1);
/// The end of one that is out is waited for so long when the image is closed.
const PROBE_WAIT: Duration = Duration::from_secs(1);

impl RbdDevice {
    /// Connects to a cluster and opens an image of it.
    ///
    /// # Errors
    /// [`OpenError`]: Ceph's libraries are missing, the cluster or the image cannot be reached or used, or another client has it.
    pub fn open(spec: &RbdSpec, ring: &Ring, access: Access) -> Result<Self, OpenError> {
        let session = Session::open(spec, access)?;
        let extent = session.extent;
        Ok(Self {
            info: DeviceInfo {
                name: spec.to_string(),
                kind: DeviceKind::Remote,
                several_ways: false,
                size_bytes: extent.size_bytes / 512 * 512,
                logical_block: 512,
                native_block: 512,
                physical_block: 4096,
                unit_bytes: Some(extent.object_bytes).filter(|bytes| bytes.is_power_of_two()),
                direct: true,
                volatile_cache: false,
                forgets: false,
                atomic: false,
                depth: DEPTH_MAX,
                survives: Survives::Unknown,
                durability: "unknown: what is acknowledged is on the OSDs, whose stores decide what a power cut leaves",
                billed: None,
            },
            under_way: UnderWay::new(spec.timeout, extent.object_bytes),
            session: Some(session),
            mailbox: Arc::new(Mailbox { answers: Mutex::default(), bell: Bell::new(ring.waker()) }),
            now: Nanos(0),
            told: Told::There,
            probe: Probe::default(),
        })
    }

    fn begin(&mut self) {
        let Some(session) = &self.session else { return };
        while let Some((number, op)) = self.under_way.begin() {
            let mailbox = Arc::clone(&self.mailbox);
            session.start(op, Box::new(move |answer| mailbox.put(number, answer)));
        }
    }

    /// Takes in what the library has answered.
    fn take_in(&mut self) {
        for (number, answer) in self.mailbox.take() {
            if answer.is_ok() {
                self.probe.heard = self.now;
            }
            if number == PROBE {
                self.probe.is_out = false;
                self.under_way.probed(answer.err(), self.now);
            } else {
                self.under_way.end(number, answer, self.now);
            }
        }
    }

    fn ask_if_silent(&mut self) {
        let is_silent = self.now.since(self.probe.heard) >= PROBE_AFTER.as_nanos() as u64;
        let Some(session) = &self.session else { return };
        if is_silent && !self.probe.is_out && self.under_way.over().is_none() {
            self.probe.is_out = true;
            let mailbox = Arc::clone(&self.mailbox);
            let read = DeviceOp::Read { offset: 0, len: 512 };
            session.start(read, Box::new(move |answer| mailbox.put(PROBE, answer)));
        }
    }

    /// The log tells once that the image is away, that it is back, and that it is lost.
    fn tell(&mut self) {
        let name = &self.info.name;
        let news = match (self.under_way.over(), self.under_way.away_since()) {
            (Some(_), _) => Told::Lost,
            (None, Some(_)) => Told::Away,
            (None, None) => Told::There,
        };
        if news == std::mem::replace(&mut self.told, news) {
            return;
        }
        match (news, self.under_way.over()) {
            (Told::Lost, why) => {
                let why = why.map_or("", |why| why.context);
                tracing::error!("{name}: {why}; the volume has to be stopped");
            }
            (Told::Away, _) => {
                tracing::warn!("{name}: the cluster does not answer in time; what was sent is waited for")
            }
            (Told::There, _) => tracing::info!("{name}: the cluster has answered everything"),
        }
    }
}

impl Device for RbdDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&mut self, tag: u64, op: DeviceOp, _class: Class, now: Nanos) {
        match check_range(&op, self.info.size_bytes) {
            Ok(()) => self.under_way.submit(tag, op, now),
            Err(e) => self.under_way.fail(tag, e),
        }
        self.begin();
    }

    fn poll(&mut self, now: Nanos, done: &mut Vec<(u64, DeviceResult)>) {
        self.now = now;
        self.take_in();
        self.under_way.expire(now);
        self.begin();
        self.ask_if_silent();
        self.tell();
        self.under_way.take_done(done);
    }

    fn deadline(&self) -> Option<Nanos> {
        match self.under_way.has_done() {
            true => Some(Nanos(0)),
            false => self.under_way.next_expiry(),
        }
    }

    fn waiting(&self) -> usize {
        self.under_way.waiting()
    }

    fn is_fenced(&self) -> bool {
        self.under_way.over().is_some_and(|why| why.kind == ErrorKind::Fenced)
    }

    fn away(&self) -> Option<Away> {
        self.under_way.away_since().map(|since| Away::silent(Duration::from_nanos(self.now.since(since))))
    }
}

impl Drop for RbdDevice {
    fn drop(&mut self) {
        let begun = Instant::now();
        self.take_in();
        while self.probe.is_out && begun.elapsed() < PROBE_WAIT {
            thread::sleep(Duration::from_millis(1));
            self.take_in();
        }
        let Some(session) = self.session.take() else { return };
        match self.under_way.is_idle() && !self.probe.is_out {
            true => session.close(),
            false => session.abandon(),
        }
    }
}
