//! One volume that is being served, with the places where it is offered.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay_block::{BlockService, Clients, Frontend};
use forebay_control::{
    Answer, CheckpointAction, Explanation, FailureKind, GroupState, GroupStep, Knob, Progress, VolumeStatus,
};
use forebay_device::Billed;
use forebay_device::decorate::Recorders;
use forebay_engine::Status;
use forebay_fuse::{Attachment, FuseExport};
use forebay_host::{Common, CommonStep, Ending, HostError, Observer, Volume, VolumeHandle, keep_private};
use forebay_policy::{GroupEnds, Settings, WritePolicy};

use crate::changes::{Changes, Circumstances, check_ranges, idle, nobody_is_critical, out_of_volume};
use crate::checkpoints;
use crate::diagnosis::Names;
use crate::failure::{Failure, Outcome, from_host};
use crate::figures::{Surroundings, staleness_seconds, volume_status};
use crate::patience::Patience;
use crate::plan::VolumePlan;
use crate::request_recorder::{RecordedVolume, RequestRecorder};
use crate::staleness_histogram::StalenessHistogram;
use crate::tracking::{Link, RatedVolume, Tracking};
use crate::trouble::Trouble;

use self::opening::{volume_config, warn_of_weak_devices};

mod attaching;
mod opening;

/// Nanoseconds since 1970.
fn wall_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64)
}

/// How often a client that waits for a flush hears how far it is.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

/// How long whoever has the file open has to close it when the volume is stopped.
const FILE_GRACE: Duration = Duration::from_secs(2);

/// The kernel's view of the volume.
#[derive(Default)]
struct Kernel {
    /// The file, from `--fuse` or made for the loop device.
    fuse: Option<Arc<FuseExport>>,
    /// The loop device on it.
    attachment: Option<Attachment>,
    /// The file was made for the loop device alone and goes with it.
    fuse_is_for_attach: bool,
    /// The volume is being parted from its cache, or stopped: nobody else may come to use it.
    closing: bool,
}

/// A volume that is being served.
pub struct Served {
    plan: VolumePlan,
    handle: VolumeHandle,
    /// What frontends speak to, at whichever address: all have one rate of critical writes.
    service: Arc<dyn BlockService>,
    /// `None` once it has been told to end.
    volume: Mutex<Option<Volume>>,
    kernel: Mutex<Kernel>,
    /// Settings are read, changed and written back by one at a time.
    setting: Mutex<()>,
    /// Who writes to the loop device, and why its writes went where they went.
    link: Arc<Link>,
    tracking: Arc<Tracking>,
    /// Apart from `kernel`, so that a status need not wait for an attach.
    device: Mutex<Option<PathBuf>>,
    /// What was set of the kernel for that device. Apart from `kernel`, as is `device`.
    knobs: Mutex<Vec<Knob>>,
    /// How clients reach it, but for what is made while it runs. Apart from `kernel`, as is `device`.
    frontends: Mutex<Vec<Arc<dyn Frontend>>>,
    /// What was told of its devices.
    trouble: Mutex<Trouble>,
    staleness: Mutex<StalenessHistogram>,
    recorders: Recorders,
    /// Of its requests.
    recorder: Option<Arc<RequestRecorder>>,
    started: Instant,
}

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What the mutexes here guard is replaced as a whole, so it is whole even if a holder panicked.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Served {
    /// Starts the volume and, if the plan says so, its file.
    pub fn start(plan: VolumePlan, tracking: Arc<Tracking>) -> Result<Self, Failure> {
        let started = Instant::now();
        let recorders =
            Recorders::start(plan.decorate.iter().map(|d| &d.decoration)).map_err(|(path, e)| {
                let message =
                    format!("cannot make the record {}: {}", path.display(), forebay_block::words_of(&e));
                Failure::new(FailureKind::Failed, message)
            })?;
        let volume = Volume::open(volume_config(&plan, &recorders)).map_err(|e| from_host(&e))?;
        let recovery = volume.recovery();
        tracing::info!(
            volume = plan.name,
            blocks_dirty = recovery.blocks_dirty,
            blocks_clean = recovery.blocks_clean,
            records_torn = recovery.records_torn,
            segments_scanned = recovery.segments_scanned,
            milliseconds = started.elapsed().as_millis() as u64,
            "recovered"
        );
        let handle = volume.handle();
        warn_of_weak_devices(&plan, &handle);
        for told in keep_private(plan.cache.as_ref(), &plan.backing, &plan.journal, plan.read_only) {
            tracing::warn!(volume = plan.name, "{told}");
        }
        if let Some(why) = handle.without_journal() {
            tracing::warn!(
                volume = plan.name,
                "served without a journal, so that write-policy=journaled needs a restart: {why}"
            );
        }
        if plan.cache.is_some()
            && !plan.read_only
            && let Some(told) = out_of_volume(&plan.settings, &plan.ranges, handle.info().size_bytes)
        {
            tracing::warn!(volume = plan.name, "{told}");
        }
        let recorder = plan.record_requests.as_deref().and_then(|file| recorder(file, &handle));
        let link = Arc::new(Link::new(recorder.clone()));
        handle.observe(Arc::clone(&link) as Arc<dyn Observer>);
        let mut service: Arc<dyn BlockService> = Arc::new(handle.clone());
        if let Some(recorder) = &recorder {
            service = Arc::new(RecordedVolume::new(service, Arc::clone(recorder)));
        }
        // What has no place in the rate is recorded so.
        if let Some(rate) = plan.critical_rate {
            service = Arc::new(RatedVolume::new(service, rate));
        }
        let served = Self {
            handle,
            service,
            volume: Mutex::new(Some(volume)),
            kernel: Mutex::default(),
            setting: Mutex::default(),
            link,
            tracking,
            device: Mutex::default(),
            knobs: Mutex::default(),
            frontends: Mutex::default(),
            trouble: Mutex::default(),
            staleness: Mutex::default(),
            recorders,
            recorder,
            started,
            plan,
        };
        if !served.plan.ranges.is_empty() {
            served.handle.set_ranges(served.plan.ranges.clone()).map_err(|e| from_host(&e))?;
        }
        if served.plan.endurance > 0 {
            served.handle.set_endurance(served.plan.endurance).map_err(|e| from_host(&e))?;
        }
        if let Some(file) = &served.plan.fuse {
            let fuse = served.mount(file)?;
            hold(&served.frontends).push(Arc::clone(&fuse) as Arc<dyn Frontend>);
            hold(&served.kernel).fuse = Some(fuse);
        }
        Ok(served)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.plan.name
    }

    /// What it was started with.
    pub fn plan(&self) -> &VolumePlan {
        &self.plan
    }

    /// What frontends speak to.
    pub fn service(&self) -> Arc<dyn BlockService> {
        Arc::clone(&self.service)
    }

    /// Why its writes went where they went.
    pub fn explanation(&self) -> Explanation {
        self.link.explanation(&self.tracking)
    }

    /// Clients reach it by these frontends, too; whoever made them stops them.
    pub fn offered_by(&self, frontends: Vec<Arc<dyn Frontend>>) {
        hold(&self.frontends).splice(..0, frontends);
    }

    /// Everywhere it is offered.
    pub fn exports(&self) -> Vec<String> {
        hold(&self.frontends).iter().flat_map(|frontend| frontend.addresses()).collect()
    }

    fn clients(&self) -> Clients {
        hold(&self.frontends).iter().map(|frontend| frontend.clients()).sum()
    }

    /// Changes settings, all or none. Returns a sentence for each of them that has no effect.
    pub fn set(&self, settings: &[(String, String)]) -> Result<Vec<String>, Failure> {
        let _one = hold(&self.setting);
        let mut changes = Changes::of(self.handle.settings());
        let usage = |e: String| Failure::new(FailureKind::Usage, e);
        for (key, value) in settings {
            changes.set(key, value).map_err(usage)?;
        }
        let Changes { settings: new, ranges, endurance } = changes;
        check_ranges(new.admission, ranges.as_ref().unwrap_or(&self.handle.ranges())).map_err(usage)?;
        self.check_membership(&new)?;
        // The one that may be refused comes first.
        self.handle.set(new).map_err(|e| from_host(&e))?;
        if let Some(bytes) = endurance {
            self.handle.set_endurance(bytes).map_err(|e| from_host(&e))?;
        }
        if let Some(ranges) = ranges {
            self.handle.set_ranges(ranges).map_err(|e| from_host(&e))?;
        }
        let around = Circumstances {
            settings: &new,
            cached: self.plan.cache.is_some(),
            read_only: self.plan.read_only,
        };
        let mut idle = idle(settings.iter().map(|(key, _)| key.as_str()), around);
        let changes = |keys: &[&str]| settings.iter().any(|(key, _)| keys.contains(&key.as_str()));
        if self.plan.cache.is_some() && !self.plan.read_only {
            if changes(&["admission", "admit", "ranges"]) {
                let bytes = self.handle.info().size_bytes;
                idle.extend(out_of_volume(&new, &self.handle.ranges(), bytes));
            }
            if changes(&["admission", "admit"]) && self.plan.is_for_nbd_alone && hold(&self.device).is_none()
            {
                idle.extend(nobody_is_critical(&new));
            }
        }
        let changed: Vec<String> = settings.iter().map(|(key, value)| format!("{key}={value}")).collect();
        tracing::info!(volume = self.plan.name, settings = changed.join(" "), "settings changed");
        // It stays as long as this is held. Whoever holds it, to attach or to detach, follows as the settings are now, or ceases to.
        if let Ok(_kernel) = self.kernel.try_lock()
            && let Some(device) = hold(&self.device).clone()
        {
            self.link.follow(&device, &self.tracking, &self.handle);
        }
        Ok(idle)
    }

    /// Declares a consistency point as soon as there can be one, or until `patience` is over, and waits until it is committed.
    pub fn mark(&self, label: &str, patience: Patience) -> Result<u64, Failure> {
        let mut outcome = self.handle.mark(label);
        patience.wait_for(|| {
            if outcome.as_ref().is_err_and(HostError::is_not_yet) {
                outcome = self.handle.mark(label);
            }
            (!outcome.as_ref().is_err_and(HostError::is_not_yet)).then_some(())
        });
        let point = outcome.map_err(|e| from_host(&e))?;
        tracing::info!(volume = self.plan.name, point, label, "consistency point");
        Ok(point)
    }

    /// Makes a named checkpoint of what the backing has, gives one up, or lists them.
    pub fn checkpoint(&self, action: CheckpointAction) -> Result<Answer, Failure> {
        let told = match &action {
            CheckpointAction::Create(name) => Some(("made", name.clone())),
            CheckpointAction::Delete(name) => Some(("given up", name.clone())),
            CheckpointAction::List => None,
        };
        let answer = checkpoints::carry_out(&self.handle, &self.plan.backing, action)?;
        if let Some((change, checkpoint)) = told {
            tracing::info!(volume = self.plan.name, checkpoint, "checkpoint {change}");
        }
        Ok(answer)
    }

    /// The backing alone is consistent, as far as its journal says so: it could be at a point.
    pub fn is_consistent(&self) -> bool {
        self.handle.status().backing_consistent
    }

    /// Takes a step of a round of its consistency group, of which whoever asks knows these names.
    pub fn common(&self, names: &str, round: u64, run: u64, step: GroupStep) -> Result<GroupState, Failure> {
        let ours = self.plan.group.as_ref().map_or("", |group| group.names.as_str());
        if ours != names {
            let known = if ours.is_empty() { "no consistency group".to_owned() } else { format!("'{ours}'") };
            let message = format!(
                "the volume '{}' is a member of {known}, and not of '{names}' (name and members)",
                self.plan.name
            );
            return Err(Failure::new(FailureKind::Refused, message));
        }
        let step = match step {
            GroupStep::Begin => CommonStep::Begin,
            GroupStep::Settle { point, keep } => CommonStep::Settle { point, keep },
            GroupStep::Hold => CommonStep::Hold,
            GroupStep::Release => CommonStep::Release,
            GroupStep::Prepare { label, set, member } => {
                let set = u128::from_str_radix(&set, 16).map_err(|e| {
                    Failure::new(FailureKind::Usage, format!("'{set}' tells no set of backings: {e}"))
                })?;
                let (set, names) = (set.to_le_bytes(), ours.to_owned());
                CommonStep::Prepare { label, group: Common { set, member, names, ..Common::default() } }
            }
        };
        let state = self.handle.common(round, run, step).map_err(|e| from_host(&e))?;
        let backing = u128::from_le_bytes(self.handle.backing_id().unwrap_or_default());
        Ok(GroupState {
            run: state.run,
            round: state.round,
            decided: state.decided,
            prepared: state.prepared,
            wanted: round == 0 && self.handle.status().common_wanted,
            backing: format!("{backing:032x}"),
        })
    }

    /// A member of a consistency group stays one, and nobody else becomes one, as long as it is served.
    fn check_membership(&self, new: &Settings) -> Outcome {
        let common = new.group_ends == GroupEnds::Common;
        match &self.plan.group {
            Some(group) if !common || new.write_policy != WritePolicy::Journaled => {
                let message = format!(
                    "the volume '{}' is a member of a consistency group ({}), which needs write-policy=journaled and \
                     group-ends=common; serve it without --consistency-group first",
                    self.plan.name, group.names
                );
                Err(Failure::new(FailureKind::Refused, message))
            }
            None if common => Err(Failure::new(
                FailureKind::Usage,
                "group-ends: common is for members of a consistency group (`forebay serve --consistency-group`)",
            )),
            _ => Ok(()),
        }
    }

    /// Does what may take long, and tells how far destaging is as long as the volume's thread answers: so whoever waits knows that
    /// it is alive.
    pub fn telling<T: Send>(
        &self,
        progress: &mut dyn FnMut(Progress) -> bool,
        work: impl FnOnce() -> Result<T, Failure> + Send,
    ) -> Result<T, Failure> {
        let total_bytes = self.handle.status().dirty_bytes;
        thread::scope(|scope| {
            let (end, ended) = mpsc::channel();
            scope.spawn(move || end.send(work()));
            let mut listens = true;
            loop {
                match ended.recv_timeout(PROGRESS_EVERY) {
                    Ok(result) => return result,
                    Err(RecvTimeoutError::Timeout) => {
                        let (figures, unanswered) = self.handle.figures();
                        // Its last words on the devices are few. A client that has gone would hold this up each time.
                        if listens && (unanswered.is_zero() || self.has_ended()) {
                            listens =
                                progress(Progress { remaining_bytes: figures.dirty_bytes, total_bytes });
                        }
                    }
                    Err(RecvTimeoutError::Disconnected) => {
                        let message =
                            format!("the volume '{}' broke off a command; the log says why", self.plan.name);
                        return Err(Failure::new(FailureKind::Failed, message));
                    }
                }
            }
        })
    }

    /// Destages everything that was acknowledged before.
    pub fn flush(&self) -> Outcome {
        self.handle.destage().map_err(|e| from_host(&e))
    }

    /// Destages everything, stops, and parts cache and backing for good. As long as that can still fail the volume
    /// goes on.
    pub fn release(&self) -> Outcome {
        if self.plan.read_only && self.plan.cache.is_some() {
            let (volume, what) = (self.plan.name.clone(), "its cache cannot be removed");
            return Err(from_host(&HostError::ReadOnly { volume, what }));
        }
        if std::mem::replace(&mut hold(&self.kernel).closing, true) {
            return Err(self.is_closing());
        }
        let outcome = self.part();
        if outcome.is_err() && !self.has_ended() {
            hold(&self.kernel).closing = false;
        }
        outcome
    }

    fn part(&self) -> Outcome {
        self.detach_own()?;
        self.unmount()?;
        // With the volume still at work, so that its users are not locked out for long.
        self.flush()?;
        self.end(Ending::Release)?;
        tracing::info!(volume = self.plan.name, "released: the backing is complete and needs no cache");
        Ok(())
    }

    fn is_closing(&self) -> Failure {
        let message = format!(
            "the volume '{}' is being released (`forebay detach --release`) or stopped; wait for the end of that",
            self.plan.name
        );
        Failure::new(FailureKind::Refused, message)
    }

    /// Ends the volume; does nothing if that was done before.
    pub fn end(&self, ending: Ending) -> Outcome {
        let ending = match ending {
            // What the backing lacks stays in the cache, as was said at the start.
            Ending::Destage if self.plan.read_only => Ending::Keep,
            ending => ending,
        };
        let Some(volume) = hold(&self.volume).take() else { return Ok(()) };
        let outcome = volume.end(ending).map_err(|e| from_host(&e));
        self.recorder.iter().for_each(|recorder| recorder.finish());
        outcome
    }

    /// Whether it has ended, or is ending.
    pub fn has_ended(&self) -> bool {
        hold(&self.volume).as_ref().is_none_or(Volume::has_ended)
    }

    /// What the engine counts.
    pub fn figures(&self) -> Status {
        self.handle.status()
    }

    /// For how long its thread has not answered, as far as is known. One that has ended, or is ending, is not asked.
    pub fn unanswered(&self) -> Duration {
        if self.has_ended() { Duration::ZERO } else { self.handle.unanswered() }
    }

    /// Its devices, for messages.
    pub fn names(&self) -> Names {
        Names::of(&self.handle)
    }

    /// Logs what its devices have failed since the last time.
    pub fn look_for_trouble(&self) {
        let figures = self.handle.status();
        hold(&self.staleness).count(staleness_seconds(&figures, wall_ns()));
        hold(&self.trouble).look(self.name(), &self.names(), &figures, &self.recorders.failures());
    }

    /// Its figures.
    pub fn status(&self) -> VolumeStatus {
        let (figures, unanswered) = self.handle.figures();
        let settings = self.handle.settings();
        let wall_ns = wall_ns();
        let device = hold(&self.device).as_ref().map(|d| d.display().to_string());
        let attached = device.is_some();
        let criticality_missing = match self.plan.critical && !attached {
            true => Vec::new(),
            false => {
                let mut missing = self.tracking.missing(settings.admission, attached);
                missing.extend(self.link.missing());
                missing
            }
        };
        let info = self.handle.info();
        let around = Surroundings {
            size_bytes: info.size_bytes,
            logical_block_bytes: info.logical_block.into(),
            read_only: info.read_only,
            cache_durability: self.handle.cache().map(|c| c.durability.to_owned()).unwrap_or_default(),
            backing_durability: self.handle.backing().durability.to_owned(),
            device,
            knobs: hold(&self.knobs).clone(),
            criticality_missing,
            endurance_bytes_a_day: self.handle.endurance_bytes_a_day(),
            ranges: self.handle.ranges().to_string(),
            staleness: *hold(&self.staleness),
            exports: self.exports(),
            clients: self.clients(),
            uptime: self.started.elapsed(),
            unanswered: if self.has_ended() { Duration::ZERO } else { unanswered },
            names: self.names(),
            store: self.handle.backing().billed.as_ref().map(Billed::figures),
        };
        volume_status(&self.plan, &figures, &settings, wall_ns, around)
    }
}

/// Begins the record of a volume's requests. Without one the volume is served all the same: after a crash the record of before is there.
fn recorder(file: &Path, volume: &VolumeHandle) -> Option<Arc<RequestRecorder>> {
    let failed = |e: std::io::Error| {
        let why = match e.kind() {
            std::io::ErrorKind::AlreadyExists => "it exists; move it away, or name another file".to_owned(),
            _ => forebay_block::words_of(&e),
        };
        let volume = &volume.info().name;
        tracing::warn!(volume, "requests are not recorded in {}: {why}", file.display());
    };
    RequestRecorder::create(file, &volume.info()).map_err(failed).ok()
}
