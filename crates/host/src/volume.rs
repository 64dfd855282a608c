//! Opening and ending volumes.

use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use forebay_block::VolumeInfo;
use forebay_device::{Clock, Device, DeviceSpec, Ring, open};
use forebay_engine::{Engine, Params, RecoveryReport, Role};
use forebay_format::label::{Label, LabelState};
use forebay_policy::{Settings, WritePolicy};

use crate::core::Core;
use crate::devices::Devices;
use crate::driver::{Driver, End};
use crate::error::HostError;
use crate::handle::{Shared, VolumeHandle};
use crate::journal::JournalChoice;
use crate::label::LabelPlace;
use crate::pair::{Decorate, Pair, Places};
use crate::passthrough::PassThrough;
use crate::queue::{Ending, REQUEST_BYTES_MAX};
use crate::recover::{holds_prepared, journal_left};
use crate::superblocks::Bench;

/// What a volume is made of and how it behaves.
pub struct VolumeConfig {
    /// Its name, as exported.
    pub name: String,
    /// The cache; `None` serves the backing as it is.
    pub cache: Option<DeviceSpec>,
    /// The backing.
    pub backing: DeviceSpec,
    /// Where the journal on the backing's side lies.
    pub journal: JournalChoice,
    /// The user's choices.
    pub settings: Settings,
    /// The consistency group that it is a member of: its names ([`crate::names_of`]), and which of the members it is.
    pub member: Option<(String, u32)>,
    /// Start although another host has not stopped the volume cleanly: it is surely dead.
    pub takeover: bool,
    /// Without a cache: go on from what the backing has, although its cache may hold newer data, which becomes void.
    pub accept_stale: bool,
    /// Puts decorators around the devices, for tests.
    pub decorate: Option<Decorator>,
}

/// Puts decorators around a device; asked once for each, on the volume's thread.
pub type Decorator = Box<dyn FnMut(Role, Box<dyn Device>) -> Box<dyn Device> + Send>;

impl VolumeConfig {
    /// A volume with default settings.
    pub fn new(name: &str, cache: Option<DeviceSpec>, backing: DeviceSpec) -> Self {
        Self {
            name: name.to_owned(),
            cache,
            backing,
            journal: JournalChoice::Auto,
            settings: Settings::default(),
            member: None,
            takeover: false,
            accept_stale: false,
            decorate: None,
        }
    }
}

/// A volume that is being served, by a thread of its own. Dropping it stops it without destaging.
pub struct Volume {
    handle: VolumeHandle,
    recovery: RecoveryReport,
    thread: Option<JoinHandle<Result<(), HostError>>>,
}

/// The outcome of opening, from the volume's thread.
type Opened = Result<(Arc<Shared>, RecoveryReport), HostError>;

impl Volume {
    /// Claims the devices, checks that they belong together, begins a run, recovers the log, and serves.
    ///
    /// # Errors
    /// [`HostError`]; after a refusal nothing has been changed on either device.
    pub fn open(config: VolumeConfig) -> Result<Self, HostError> {
        let name = config.name.clone();
        let (sender, receiver) = mpsc::sync_channel::<Opened>(1);
        let spawned =
            thread::Builder::new().name(format!("volume {name}")).spawn(move || run(config, &sender));
        let thread = spawned.map_err(|e| HostError::system("start a thread for", name.as_ref(), e))?;
        match receiver.recv() {
            Ok(Ok((shared, recovery))) => {
                Ok(Self { handle: VolumeHandle(shared), recovery, thread: Some(thread) })
            }
            Ok(Err(e)) => {
                // It has said all it had to say; waiting lets the devices be free when this returns.
                let _ = thread.join();
                Err(e)
            }
            Err(_) => Err(HostError::Stopped { volume: name }),
        }
    }

    /// What frontends talk to.
    pub fn handle(&self) -> VolumeHandle {
        self.handle.clone()
    }

    /// What recovery found.
    pub fn recovery(&self) -> RecoveryReport {
        self.recovery
    }

    /// Whether the volume's thread has ended by itself, which only a failure of the system makes it do.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends the volume. New requests are refused, those under way are finished.
    ///
    /// # Errors
    /// [`HostError`] if not all was done that was asked for. If destaging failed, the dirty data is still in the cache,
    /// and the volume has stopped cleanly all the same where that was possible.
    pub fn end(mut self, ending: Ending) -> Result<(), HostError> {
        self.end_thread(ending)
    }

    fn end_thread(&mut self, ending: Ending) -> Result<(), HostError> {
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        self.handle.end(ending);
        let volume = || self.handle.0.info.name.clone();
        thread.join().unwrap_or_else(|_| Err(HostError::Stopped { volume: volume() }))
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // Nobody is left to be told; the next start recovers whatever this leaves.
        let _ = self.end_thread(Ending::Keep);
    }
}

/// The life of a volume's thread.
fn run(config: VolumeConfig, opened: &mpsc::SyncSender<Opened>) -> Result<(), HostError> {
    let name = config.name.clone();
    let mut driver = match start(config) {
        Ok((driver, shared, recovery)) => {
            // If the opener has gone, the queue stays empty until the handle's last clone is dropped with it.
            let _ = opened.send(Ok((shared, recovery)));
            driver
        }
        Err(e) => {
            let _ = opened.send(Err(e));
            return Ok(());
        }
    };
    match driver.serve() {
        End::Abandoned => Ok(()),
        End::RingFailed(e) => Err(HostError::system("go on with the volume", name.as_ref(), e)),
        End::Stopped { ending, result } => {
            let finished = driver.finish(ending, result.is_ok());
            result.map_err(|error| HostError::Command { volume: name, error })?;
            finished
        }
    }
}

fn start(config: VolumeConfig) -> Result<(Driver, Arc<Shared>, RecoveryReport), HostError> {
    let ring = Ring::new().map_err(|e| HostError::system("serve", config.name.as_ref(), e))?;
    let clock = Clock::start();
    let (core, devices, shared) = match config.cache.clone() {
        Some(cache) => start_cached(config, cache, &ring, &clock)?,
        None => start_plain(config, &ring, &clock)?,
    };
    let mut driver = Driver::new(ring, clock, core, devices, Arc::clone(&shared));
    let recovered =
        driver.recover().map_err(|e| HostError::system("recover", shared.info.name.as_ref(), e))?;
    let cache = || shared.cache.as_ref().map(|c| c.name.clone()).unwrap_or_default();
    let report = recovered.map_err(|error| HostError::Recovery { cache: cache(), error })?;
    Ok((driver, shared, report))
}

fn around(decorator: &mut Decorator) -> Decorate<'_> {
    &mut **decorator
}

type Started = (Core, Devices, Arc<Shared>);

fn info(name: String, size_bytes: u64) -> VolumeInfo {
    VolumeInfo { name, size_bytes, read_only: false, request_bytes_max: REQUEST_BYTES_MAX }
}

fn start_cached(
    mut config: VolumeConfig,
    cache: DeviceSpec,
    ring: &Ring,
    clock: &Clock,
) -> Result<Started, HostError> {
    let bench = Bench { ring, clock };
    let places = Places { cache, backing: config.backing, journal: config.journal };
    let mut decorate = config.decorate.take();
    let mut pair = Pair::open(ring, clock, &places, decorate.as_mut().map(around))?;
    pair.member = config.member.take();
    let wants_journal = config.settings.write_policy == WritePolicy::Journaled;
    let decorate = decorate.as_mut().map(around);
    let clean_stop = pair.begin_run(&bench, &places, config.takeover, wants_journal, decorate)?;
    if wants_journal && pair.journal.is_none() {
        return Err(HostError::NoJournal { backing: places.backing.to_string() });
    }
    let superblock = &pair.identities.superblock;
    let engine = Engine::new(Params {
        layout: superblock.layout,
        volume_bytes: superblock.volume_bytes,
        settings: config.settings,
        wall_offset_ns: clock.wall_offset_ns(),
        clean_stop,
        journal: pair.head.take(),
        prepared: pair.prepared.take(),
        journal_left: pair.journal_left,
    });
    let shared = Shared::new(
        info(config.name, superblock.volume_bytes),
        Some(pair.cache.info().clone()),
        (pair.backing.info().clone(), Some(superblock.backing_id)),
        config.settings,
        ring.waker(),
    );
    Ok((Core::Cached(Box::new(engine)), Devices::Pair(Box::new(pair)), Arc::new(shared)))
}

fn start_plain(config: VolumeConfig, ring: &Ring, clock: &Clock) -> Result<Started, HostError> {
    let mut backing = open(&config.backing, ring)?;
    if let Some(mut decorate) = config.decorate {
        backing = decorate(Role::Backing, backing);
    }
    let bench = Bench { ring, clock };
    let mut size_bytes = backing.info().size_bytes / 512 * 512;
    if let Some((place, mut label)) = LabelPlace::find(&bench, &mut *backing, config.backing.path())? {
        size_bytes = size_bytes.min(label.volume_bytes);
        if label.state == LabelState::Paired {
            if !config.accept_stale {
                let (backing, cache) = (config.backing.to_string(), label.cache_name);
                return Err(HostError::WithoutItsCache { backing, cache });
            }
            let alone = Label { state: LabelState::Released, ..label.clone() };
            backing.recognize_by(place.sign(vec![label.clone(), alone]));
            // What the journal has of a consistent state comes first.
            let left = journal_left(&bench, &mut *backing, &config.backing, &label, &config.journal)?;
            if let Some((mut journal, head)) = left {
                if head.has_prepared() {
                    return Err(holds_prepared(&config.backing, &head.common));
                }
                journal.replay(&bench, &mut *backing, Some(&label), head)?;
            }
            // From here on the two go separate ways, and the cache must never be used with this backing again.
            place.carry_out(&bench, &mut *backing, &label.leave_behind())?;
        }
        backing.recognize_by(place.sign(vec![label]));
    }
    let core = Core::Plain(Box::new(PassThrough::new(size_bytes, clock.wall_offset_ns())));
    let shared = Shared::new(
        info(config.name, size_bytes),
        None,
        (backing.info().clone(), None),
        config.settings,
        ring.waker(),
    );
    Ok((core, Devices::Backing(backing), Arc::new(shared)))
}
