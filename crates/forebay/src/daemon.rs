//! The daemon behind `forebay serve`: starts volumes, offers them, obeys the control socket, stops.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use forebay_control::{
    Answer, AttachedDevice, ControlError, Controller, FailureKind, Progress, Request, Server, VolumeStatus,
};
use forebay_host::{Ending, POINT_LABEL_BYTES};
use forebay_nbd::{Address, Export, Limits, NbdServer, ServerConfig, TlsSettings};
use sd_notify::NotifyState;

use crate::cli::{Failure, Outcome};
use crate::consistency_group::ConsistencyGroup;
use crate::control_path::control_path;
use crate::ending::Step;
use crate::failure::from_nbd;
use crate::output::print;
use crate::plan::Plan;
use crate::reclaim::Reclaim;
use crate::served::Served;
use crate::service_manager::{Watchdog, tell};
use crate::stop::{self, StopReason};
use crate::tracking::Tracking;

/// How long NBD clients have to take their last answers when the daemon stops.
const NBD_GRACE: Duration = Duration::from_secs(5);

/// What becomes of what was acknowledged when a stop does not wait any longer.
const LEFT_BEHIND: &str = "what was acknowledged is safe in the cache, and the next start goes on from there";

/// How often it is looked whether all volumes still live, and what fails below them.
const LOOK_AFTER_EVERY: Duration = Duration::from_secs(1);

/// Serves what is planned until told to stop.
pub fn run(plan: Plan) -> Outcome {
    let system =
        |what: &str, e: std::io::Error| Failure::new(FailureKind::Failed, format!("cannot {what}: {e}"));
    let reclaim = Reclaim::begin();
    let (reasons, told_to_stop) = stop::listen().map_err(|e| system("listen to signals", e))?;
    let destage = plan.destage_on_stop;
    let sockets = control_sockets(&plan)?;
    let daemon = Arc::new(Daemon::start(plan, &sockets, reasons, reclaim)?);
    let servers = match daemon.offer(&sockets) {
        Ok(servers) => servers,
        Err(e) => {
            // The first error is the one to tell.
            let _ = daemon.stop(false);
            return Err(e);
        }
    };
    let watched = Arc::clone(&daemon);
    let watchdog = Watchdog::start(move || watched.all().iter().all(|v| v.answers()));
    print(&daemon.ready_line(&sockets))?;
    tell(&[NotifyState::Ready, NotifyState::Status("serving")]);
    let reason = wait(&daemon, &told_to_stop);
    tracing::info!(?reason, destage, "stopping");
    tell(&[NotifyState::Stopping]);
    drop(watchdog);
    let outcome = daemon.stop(destage);
    servers.into_iter().for_each(Server::stop);
    outcome
}

/// Waits for a reason to stop.
fn wait(daemon: &Daemon, told_to_stop: &Receiver<StopReason>) -> StopReason {
    loop {
        match told_to_stop.recv_timeout(LOOK_AFTER_EVERY) {
            Ok(reason) => {
                // The last second's.
                daemon.look_for_trouble();
                return reason;
            }
            Err(RecvTimeoutError::Timeout) => {
                daemon.look_for_trouble();
                if let Some(dead) = daemon.all().iter().find(|v| v.has_ended()) {
                    tracing::error!(volume = dead.name(), "the volume has ended by itself");
                    return StopReason::VolumeEnded;
                }
            }
            // The daemon itself holds the other end.
            Err(RecvTimeoutError::Disconnected) => return StopReason::NothingToServe,
        }
    }
}

/// The control sockets: the one that was given, or the default one of each volume.
fn control_sockets(plan: &Plan) -> Result<Vec<PathBuf>, Failure> {
    match &plan.control {
        Some(path) => Ok(vec![path.clone()]),
        None => plan.volumes.iter().map(|v| control_path(&v.name)).collect(),
    }
}

/// Everything that is being served.
struct Daemon {
    volumes: Mutex<BTreeMap<String, Arc<Served>>>,
    nbd: Mutex<Vec<NbdServer>>,
    groups: Mutex<Vec<Arc<ConsistencyGroup>>>,
    leaders: Mutex<Vec<JoinHandle<()>>>,
    tls: Option<TlsSettings>,
    tracking: Arc<Tracking>,
    /// Where files for loop devices are made.
    directory: PathBuf,
    reasons: Sender<StopReason>,
    reclaim: Reclaim,
}

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Both are changed by single inserts and removals, so they are whole even if a holder panicked.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Daemon {
    /// Starts the volumes; if one does not start, those before it are stopped.
    fn start(
        plan: Plan,
        sockets: &[PathBuf],
        reasons: Sender<StopReason>,
        reclaim: Reclaim,
    ) -> Result<Self, Failure> {
        let directory = sockets.first().and_then(|s| s.parent()).unwrap_or(Path::new("")).to_owned();
        let tracking = Arc::new(Tracking::new(plan.rules));
        let (volumes, nbd, tls) = (Mutex::default(), Mutex::default(), plan.tls);
        let (groups, leaders) = (Mutex::default(), Mutex::default());
        let daemon = Self { volumes, nbd, groups, leaders, tls, tracking, directory, reasons, reclaim };
        for volume in plan.volumes {
            match Served::start(volume, Arc::clone(&daemon.tracking)) {
                Ok(served) => {
                    hold(&daemon.volumes).insert(served.name().to_owned(), Arc::new(served));
                }
                Err(e) => {
                    let _ = daemon.stop(false);
                    return Err(e);
                }
            }
        }
        Ok(daemon)
    }

    /// Opens all sockets, those for NBD first.
    fn offer(self: &Arc<Self>, sockets: &[PathBuf]) -> Result<Vec<Server>, Failure> {
        self.lead_groups()?;
        self.offer_nbd()?;
        let controller: Arc<dyn Controller> = Arc::clone(self) as Arc<dyn Controller>;
        let start = |path: &PathBuf| Server::start(path, Arc::clone(&controller)).map_err(ControlError::from);
        sockets.iter().map(start).collect()
    }

    /// One NBD server for each address, for all volumes that name it.
    fn offer_nbd(&self) -> Outcome {
        let mut exports: BTreeMap<String, (Address, Vec<Arc<Served>>)> = BTreeMap::new();
        for served in hold(&self.volumes).values() {
            for address in &served.plan().nbd {
                let entry =
                    exports.entry(address.to_string()).or_insert_with(|| (address.clone(), Vec::new()));
                entry.1.push(Arc::clone(served));
            }
        }
        let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (address, volumes) in exports.into_values() {
            // A unix socket is guarded by its permissions.
            let tls = if matches!(address, Address::Tcp { .. }) { self.tls.clone() } else { None };
            let server = NbdServer::start(ServerConfig {
                listen: vec![address],
                exports: volumes
                    .iter()
                    .map(|v| Export { critical: v.plan().critical, ..Export::new(v.service()) })
                    .collect(),
                tls,
                limits: Limits::default(),
            })
            .map_err(|e| from_nbd(&e))?;
            for volume in &volumes {
                let addresses = server.addresses().iter().map(ToString::to_string).collect::<Vec<_>>();
                places.entry(volume.name().to_owned()).or_default().extend(addresses);
            }
            hold(&self.nbd).push(server);
        }
        for (name, addresses) in places {
            self.volume(&name)?.set_nbd(addresses);
        }
        Ok(())
    }

    /// What `serve` prints once everything is open.
    fn ready_line(&self, sockets: &[PathBuf]) -> String {
        let volumes = hold(&self.volumes);
        let volumes = volumes.values().map(|v| match v.exports().as_slice() {
            [] => v.name().to_owned(),
            exports => format!("{} at {}", v.name(), exports.join(" ")),
        });
        let sockets = sockets.iter().map(|s| s.display().to_string());
        format!(
            "ready: {}; control {}\n",
            volumes.collect::<Vec<_>>().join(", "),
            sockets.collect::<Vec<_>>().join(" ")
        )
    }

    fn volume(&self, name: &str) -> Result<Arc<Served>, Failure> {
        let volumes = hold(&self.volumes);
        volumes.get(name).cloned().ok_or_else(|| {
            let names = volumes.keys().cloned().collect::<Vec<_>>().join(", ");
            Failure::new(
                FailureKind::Usage,
                format!("this daemon serves no volume '{name}'; it serves {names}"),
            )
        })
    }

    fn all(&self) -> Vec<Arc<Served>> {
        hold(&self.volumes).values().cloned().collect()
    }

    fn look_for_trouble(&self) {
        self.all().iter().for_each(|v| v.look_for_trouble());
    }

    /// The figures of all volumes.
    fn statuses(&self) -> Vec<VolumeStatus> {
        self.all().iter().map(|v| v.status()).collect()
    }

    /// The consistency group with these names.
    fn group(&self, names: &str) -> Result<Arc<ConsistencyGroup>, Failure> {
        let group = hold(&self.groups).iter().find(|group| group.names() == names).cloned();
        group.ok_or_else(|| Failure::new(FailureKind::Failed, "the daemon is starting; try again"))
    }

    /// Finds the consistency groups of its volumes, and sees to the points of those that it leads.
    fn lead_groups(&self) -> Outcome {
        for volume in self.all() {
            let Some(plan) = &volume.plan().group else { continue };
            if hold(&self.groups).iter().any(|group| group.names() == plan.names) {
                continue;
            }
            let here = |name: &str| hold(&self.volumes).get(name).cloned();
            let group = Arc::new(ConsistencyGroup::find(plan, here)?);
            if group.is_led_here() {
                let leader = group.lead().map_err(|e| {
                    Failure::new(FailureKind::Failed, format!("cannot start a thread for common points: {e}"))
                })?;
                hold(&self.leaders).push(leader);
            }
            hold(&self.groups).push(group);
        }
        Ok(())
    }

    /// Declares a consistency point on each of the volumes.
    fn mark(&self, names: &[String], label: &str) -> Result<Vec<u64>, Failure> {
        let usage = |message: &str| Err(Failure::new(FailureKind::Usage, message));
        if names.is_empty() {
            return usage("no volume is named to declare a point on");
        }
        if label.len() > POINT_LABEL_BYTES || label.contains('\0') {
            return usage("a point's label has at most 64 bytes, none of them zero");
        }
        let volumes = names.iter().map(|name| self.volume(name)).collect::<Result<Vec<_>, _>>()?;
        // Members of one consistency group share one point.
        let mut shared: BTreeMap<&str, u64> = BTreeMap::new();
        for group in volumes.iter().filter_map(|volume| volume.plan().group.as_ref()) {
            if !shared.contains_key(group.names.as_str()) {
                shared.insert(&group.names, self.group(&group.names)?.mark(label)?);
            }
        }
        let point = |volume: &Served| {
            let group = volume.plan().group.as_ref();
            match group.and_then(|group| shared.get(group.names.as_str())) {
                Some(point) => Ok(*point),
                None => volume.mark(label),
            }
        };
        let point = &point;
        // Each waits for its own backing.
        thread::scope(|scope| {
            let started: Vec<_> = volumes.iter().map(|volume| scope.spawn(move || point(volume))).collect();
            let broke_off = || Failure::new(FailureKind::Failed, "a volume broke off; the log says why");
            started.into_iter().map(|mark| mark.join().unwrap_or_else(|_| Err(broke_off()))).collect()
        })
    }

    /// Makes a kernel block device of a volume, and says what whoever asked for it should know of it.
    fn attach(&self, name: &str) -> Result<AttachedDevice, Failure> {
        let volume = self.volume(name)?;
        let mut device = volume.attach(&self.directory)?;
        device.warnings.extend(self.reclaim.warning(name));
        device.warnings.iter().for_each(|warning| tracing::warn!(volume = name, "{warning}"));
        Ok(device)
    }

    /// Destages a volume, parts it from its cache and stops serving it; the last one takes the daemon with it.
    fn release(&self, name: &str, progress: &mut dyn FnMut(Progress) -> bool) -> Outcome {
        let volume = self.volume(name)?;
        let outcome = volume.release(progress);
        if outcome.is_ok() || volume.has_ended() {
            let mut volumes = hold(&self.volumes);
            volumes.remove(name);
            if volumes.is_empty() {
                // Nobody listens any more if the daemon is stopping already.
                let _ = self.reasons.send(StopReason::NothingToServe);
            }
        }
        outcome
    }

    /// Takes the volumes away from their users, then stops them. All are stopped, or given up at a standstill; the first error
    /// is returned.
    fn stop(&self, destage: bool) -> Outcome {
        hold(&self.groups).iter().for_each(|group| group.stop());
        let volumes = self.all();
        let mut withdrawn = Step::begin("the kernel to write back what it holds", &volumes, Served::withdraw);
        let came_back = withdrawn.wait();
        for server in hold(&self.nbd).drain(..) {
            server.stop(NBD_GRACE);
        }
        let ending = if destage { Ending::Destage } else { Ending::Keep };
        let mut ended = Step::begin("the last operations", &volumes, move |v: &Served| v.end(ending));
        ended.wait();
        if !came_back {
            // Whoever waited has been refused by now.
            withdrawn.wait();
        }
        let (outcomes, left) = ended.outcome();
        let failed = |text| Err(Failure::new(FailureKind::Failed, text));
        let left =
            left.into_iter().map(|v| failed(format!("the volume '{}' did not end: {LEFT_BEHIND}", v.name())));
        let cut_off = volumes.iter().filter(|_| !came_back).map(|v| {
            failed(format!("stopped '{}' although writes waited, which have failed: {LEFT_BEHIND}", v.name()))
        });
        let mut outcome = Ok(());
        for e in outcomes.into_iter().chain(left).chain(cut_off).filter_map(Result::err) {
            tracing::error!("{e}");
            outcome = outcome.and(Err(e));
        }
        // What they wait for in a daemon of another member has its limit.
        hold(&self.leaders).drain(..).for_each(|leader| drop(leader.join()));
        outcome
    }
}

impl Controller for Daemon {
    fn handle(
        &self,
        request: Request,
        progress: &mut dyn FnMut(Progress) -> bool,
    ) -> Result<Answer, ControlError> {
        match request {
            Request::Status { volume: None } => Ok(Answer::Volumes(self.statuses())),
            Request::Status { volume: Some(name) } => Ok(Answer::Volumes(vec![self.volume(&name)?.status()])),
            Request::Flush { volume } => self.volume(&volume)?.flush(progress).map(|()| Answer::Done),
            Request::Mark { volumes, label } => self.mark(&volumes, &label).map(Answer::Points),
            Request::Common { volume, names, round, run, step } => {
                Ok(Answer::Common(self.volume(&volume)?.common(&names, round, run, step)?))
            }
            Request::Set { volume, settings } => self.volume(&volume)?.set(&settings).map(|()| Answer::Done),
            Request::Explain { volume } => Ok(Answer::Explanation(self.volume(&volume)?.explanation())),
            Request::Waits { volume } => self.volume(&volume).map(|_| Answer::Waits(self.tracking.waits())),
            Request::Attach { volume } => Ok(Answer::Device(self.attach(&volume)?)),
            Request::Detach { volume, release: true } => {
                self.release(&volume, progress).map(|()| Answer::Done)
            }
            Request::Detach { volume, release: false } => match self.volume(&volume)?.detach()? {
                true => Ok(Answer::Done),
                false => Err(ControlError::new(
                    FailureKind::Failed,
                    format!("the volume '{volume}' is not attached"),
                )),
            },
        }
    }
}
