//! Opening and ending volumes.

use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use forebay_block::VolumeInfo;
use forebay_device::{Access, Clock, Device, DeviceSpec, Ring, open};
use forebay_engine::{Engine, Params, RecoveryReport, Role};
use forebay_format::Layout;
use forebay_format::label::{Label, LabelState};
use forebay_format::pairing::decide;
use forebay_policy::{Settings, WritePolicy};

use crate::core::Core;
use crate::devices::Devices;
use crate::driver::{Driver, End};
use crate::error::{CacheContent, HostError};
use crate::format::cache_content;
use crate::handle::{Shared, VolumeHandle};
use crate::identity::host_id;
use crate::journal::JournalChoice;
use crate::label::LabelPlace;
use crate::pair::{Decorate, Pair, Places, check_blocks, check_end};
use crate::passthrough::{Backing, PassThrough};
use crate::queue::{Ending, REQUEST_BYTES_MAX};
use crate::recover::{holds_prepared, journal_left, refuse_early};
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
    /// Without a cache: go on from what the backing has, although its cache may hold newer data, which becomes void. A cache that is
    /// there and holds nothing that the backing lacks needs no such word.
    pub accept_stale: bool,
    /// Neither device is written to: writes are refused, and what the backing lacks stays in the cache. No run begins, so that a label
    /// says afterwards what it said before.
    pub read_only: bool,
    /// The volume's logical block in bytes, a power of two from 512 to 4096; `None`: as recorded, and where nothing is recorded the
    /// backing's. With a cache it is recorded, unless the volume is read-only.
    pub logical_block: Option<u32>,
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
            read_only: false,
            logical_block: None,
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
    forebay_block::keep_pages();
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
        Some(cache) if config.read_only => start_looking(config, cache, &ring, &clock)?,
        Some(cache) => start_cached(config, cache, &ring, &clock)?,
        None => start_plain(config, &ring, &clock)?,
    };
    let failed = |action| {
        let name = shared.info.name.clone();
        move |e| HostError::system(action, name.as_ref(), e)
    };
    let driver = Driver::new(ring, clock, core, devices, Arc::clone(&shared));
    let mut driver = driver.map_err(failed("serve"))?;
    let recovered = driver.recover().map_err(failed("recover"))?;
    let cache = || shared.cache.as_ref().map(|c| c.name.clone()).unwrap_or_default();
    let report = recovered.map_err(|error| HostError::Recovery { cache: cache(), error })?;
    Ok((driver, shared, report))
}

fn around(decorator: &mut Decorator) -> Decorate<'_> {
    &mut **decorator
}

type Started = (Core, Devices, Arc<Shared>);

fn info(name: String, size_bytes: u64, logical_block: u32, read_only: bool) -> VolumeInfo {
    VolumeInfo { name, size_bytes, read_only, request_bytes_max: REQUEST_BYTES_MAX, logical_block }
}

fn start_cached(
    mut config: VolumeConfig,
    cache: DeviceSpec,
    ring: &Ring,
    clock: &Clock,
) -> Result<Started, HostError> {
    let bench = Bench { ring, clock };
    let logical_block = config.logical_block;
    let places = Places { cache, backing: config.backing, journal: config.journal, logical_block };
    let mut decorate = config.decorate.take();
    let access = Access::to_write(config.takeover);
    if config.takeover {
        refuse_early(|| Pair::open(ring, clock, &places, Access::Look, None)?.decide(true).map(drop))?;
    }
    let mut pair = Pair::open(ring, clock, &places, access, decorate.as_mut().map(around))?;
    pair.member = config.member.take();
    let wants_journal = config.settings.write_policy == WritePolicy::Journaled;
    let decorate = decorate.as_mut().map(around);
    let clean_stop = pair.begin_run(&bench, &places, config.takeover, wants_journal, decorate)?;
    if wants_journal && pair.journal.is_none() {
        return Err(HostError::NoJournal { backing: places.backing.to_string() });
    }
    let superblock = &pair.identities.superblock;
    let beside_volume = pair.journal.as_ref().is_some_and(|journal| journal.own_ref().is_none());
    let engine = Engine::new(Params {
        layout: superblock.layout,
        volume_bytes: superblock.volume_bytes,
        settings: config.settings,
        wall_offset_ns: clock.wall_offset_ns(),
        clean_stop,
        journal: pair.head.take(),
        prepared: pair.prepared.take(),
        commits_in_place: beside_volume && pair.backing.info().atomic,
        journal_left: pair.journal_left,
        backing_depth: pair.backing.info().depth,
        backing_unit_bytes: pair.backing.info().unit_bytes,
        backing_forgets: pair.backing.info().forgets,
        read_only: false,
    });
    let mut shared = Shared::new(
        info(config.name, superblock.volume_bytes, superblock.logical_block, false),
        Some(pair.cache.info().clone()),
        (pair.backing.info().clone(), Some(superblock.backing_id)),
        config.settings,
        ring.waker(),
    );
    shared.without_journal = pair.without_journal.take();
    shared.journal =
        pair.journal.as_ref().and_then(|journal| journal.own_ref()).map(|own| own.info().clone());
    Ok((Core::Cached(Box::new(engine)), Devices::Pair(Box::new(pair)), Arc::new(shared)))
}

/// As [`start_cached`], with nothing written to either device.
fn start_looking(
    mut config: VolumeConfig,
    cache: DeviceSpec,
    ring: &Ring,
    clock: &Clock,
) -> Result<Started, HostError> {
    let logical_block = config.logical_block;
    let places = Places { cache, backing: config.backing, journal: JournalChoice::None, logical_block };
    let mut decorate = config.decorate.take();
    let mut pair = Pair::open(ring, clock, &places, Access::ReadOnly, decorate.as_mut().map(around))?;
    let (generation, clean_stop) = pair.look(config.takeover)?;
    let superblock = &pair.identities.superblock;
    // None of them does anything without writes; that one needs a journal.
    let settings = Settings { write_policy: WritePolicy::WriteBack, ..config.settings };
    let engine = Engine::new(Params {
        layout: Layout { generation, ..superblock.layout },
        volume_bytes: superblock.volume_bytes,
        settings,
        wall_offset_ns: clock.wall_offset_ns(),
        clean_stop,
        journal: None,
        prepared: None,
        commits_in_place: false,
        journal_left: pair.journal_left,
        backing_depth: pair.backing.info().depth,
        backing_unit_bytes: pair.backing.info().unit_bytes,
        backing_forgets: pair.backing.info().forgets,
        read_only: true,
    });
    let logical_block = logical_block.unwrap_or(superblock.logical_block);
    let shared = Shared::new(
        info(config.name, superblock.volume_bytes, logical_block, true),
        Some(pair.cache.info().clone()),
        (pair.backing.info().clone(), Some(superblock.backing_id)),
        config.settings,
        ring.waker(),
    );
    Ok((Core::Cached(Box::new(engine)), Devices::Pair(Box::new(pair)), Arc::new(shared)))
}

/// What the cache holds that the label names; `None` if it is not there, is in use, or is not the very one of the latest run (P6).
fn content_of_its_cache(bench: &Bench<'_>, label: &Label) -> Option<CacheContent> {
    let spec: DeviceSpec = label.cache_name.parse().ok()?;
    let mut cache = open(&spec, bench.ring, Access::ReadOnly).ok()?;
    let superblock = bench.superblock(&mut *cache).ok()?;
    decide(&superblock, Some(label), &host_id(), false).ok()?;
    // A run that has ended has said so on both sides.
    if !label.in_use && !superblock.clean_stop {
        return None;
    }
    Some(cache_content(bench, &mut *cache, &superblock))
}

/// Refuses a backing whose cache may hold what it lacks.
fn check_alone(bench: &Bench<'_>, config: &VolumeConfig, label: &Label) -> Result<(), HostError> {
    let content = match config.accept_stale {
        true => Some(CacheContent::Clean),
        false => content_of_its_cache(bench, label),
    };
    if content == Some(CacheContent::Clean) {
        return Ok(());
    }
    let (backing, cache) = (config.backing.to_string(), label.cache_name.clone());
    Err(HostError::WithoutItsCache { backing, cache, content })
}

fn start_plain(mut config: VolumeConfig, ring: &Ring, clock: &Clock) -> Result<Started, HostError> {
    let access = if config.read_only { Access::ReadOnly } else { Access::to_write(config.takeover) };
    if access == Access::TakeOver {
        refuse_early(|| {
            let bench = Bench { ring, clock };
            let mut backing = open(&config.backing, ring, Access::Look)?;
            match LabelPlace::find(&bench, &mut *backing, config.backing.path())? {
                Some((_, label)) if label.state == LabelState::Paired => check_alone(&bench, &config, &label),
                _ => Ok(()),
            }
        })?;
    }
    let mut backing = open(&config.backing, ring, access)?;
    if let Some(mut decorate) = config.decorate.take() {
        backing = decorate(Role::Backing, backing);
    }
    let bench = Bench { ring, clock };
    check_blocks(backing.info())?;
    let found = LabelPlace::find(&bench, &mut *backing, config.backing.path())?;
    let recorded = found.as_ref().map(|(_, label)| label.logical_block);
    let logical_block = config.logical_block.or(recorded).unwrap_or(backing.info().native_block);
    let unit = u64::from(logical_block.max(backing.info().logical_block));
    let mut size_bytes = backing.info().size_bytes / unit * unit;
    if let Some((place, mut label)) = found {
        size_bytes = size_bytes.min(label.volume_bytes);
        check_end(backing.info(), size_bytes, logical_block)?;
        if label.state == LabelState::Paired {
            check_alone(&bench, &config, &label)?;
            let alone = Label { state: LabelState::Released, ..label.clone() };
            backing.recognize_by(place.sign(vec![label.clone(), alone]));
            // What the journal has of a consistent state comes first.
            let left = journal_left(&bench, &mut *backing, &config.backing, &label, &config.journal, access)?;
            if let Some((mut journal, head)) = left {
                if head.has_prepared() {
                    return Err(holds_prepared(&config.backing, &head.common));
                }
                if config.read_only && head.tail != head.head {
                    return Err(HostError::UnappliedGroups {
                        backing: config.backing.to_string(),
                        journal: journal.name,
                    });
                }
                journal.replay(&bench, &mut *backing, Some(&label), head)?;
            }
            // From here on the two go separate ways, and the cache must never be used with this backing again. Who only reads parts
            // nobody.
            if !config.read_only {
                place.carry_out(&bench, &mut *backing, &label.leave_behind())?;
            }
        }
        backing.recognize_by(place.sign(vec![label]));
    }
    let about = Backing {
        block: backing.info().logical_block,
        depth: backing.info().depth,
        read_only: config.read_only,
        forgets: backing.info().forgets,
    };
    let scheduler = config.settings.scheduler;
    let plain = PassThrough::new(size_bytes, about, scheduler, clock.wall_offset_ns());
    let core = Core::Plain(Box::new(plain));
    let shared = Shared::new(
        info(config.name, size_bytes, logical_block, config.read_only),
        None,
        (backing.info().clone(), None),
        config.settings,
        ring.waker(),
    );
    Ok((core, Devices::Backing(backing), Arc::new(shared)))
}
