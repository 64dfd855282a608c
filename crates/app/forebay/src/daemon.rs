//! The daemon behind `forebay serve`: starts volumes, offers them, obeys the control socket, stops.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use forebay_block::Frontend;
use forebay_control::{
    Answer, AttachedDevice, ControlError, Controller, FailureKind, Progress, Request, Server, Unserved,
    VolumeReport, VolumeState, can_bind,
};
use forebay_host::{Ending, POINT_LABEL_BYTES};
use forebay_nbd::{
    Address, Export, Limits, MemoryBudget, NbdServer, ServerConfig, SocketRights, TlsSettings,
};
use sd_notify::NotifyState;

use crate::consistency_group::ConsistencyGroup;
use crate::control_path::{control_path, directory_of};
use crate::ending::Step;
use crate::failure::{Failure, Outcome, from_nbd};
use crate::nearest::nearest;
use crate::output::print;
use crate::patience::Patience;
use crate::plan::{Plan, VolumePlan};
use crate::reclaim::Reclaim;
use crate::served::Served;
use crate::service_manager::{Watchdog, tell};
use crate::stop::{self, StopReason};
use crate::tracking::Tracking;

/// How long clients have to take their last answers when the daemon stops.
const CLIENTS_GRACE: Duration = Duration::from_secs(5);

/// What becomes of what was acknowledged when a stop does not wait any longer.
const LEFT_BEHIND: &str = "what was acknowledged is safe in the cache, and the next start goes on from there";

/// How often it is looked whether all volumes still live, and what fails below them.
const LOOK_AFTER_EVERY: Duration = Duration::from_secs(1);

/// Serves what is planned until told to stop.
pub fn run(plan: Plan) -> Outcome {
    let system = |what: &str, e: std::io::Error| {
        Failure::new(FailureKind::Failed, format!("cannot {what}: {}", forebay_block::words_of(&e)))
    };
    let reclaim = Reclaim::begin();
    let (reasons, told_to_stop) = stop::listen().map_err(|e| system("listen to signals", e))?;
    let destage = plan.destage_on_stop;
    let control = plan.control.clone();
    let daemon = Arc::new(Daemon::start(plan, reasons, reclaim)?);
    let servers = match daemon.offer(control.as_deref()) {
        Ok(servers) => servers,
        Err(e) => {
            // The first error is the one to tell.
            let _ = daemon.stop(false);
            return Err(e);
        }
    };
    let watched = Arc::clone(&daemon);
    let watchdog =
        Watchdog::start(move || watched.all().iter().map(|v| v.unanswered()).max().unwrap_or_default());
    print(&daemon.ready_line(&servers))?;
    tell(&[NotifyState::Ready, NotifyState::Status(&daemon.in_short())]);
    let reason = wait(&daemon, &told_to_stop);
    tracing::info!(%reason, destage, "stopping");
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

/// A volume, and the frontends by which clients of an address reach it.
type Offer = (Arc<Served>, Vec<Arc<dyn Frontend>>);

/// Everything that is being served.
struct Daemon {
    volumes: Mutex<BTreeMap<String, Arc<Served>>>,
    /// Those that were to be served and cannot be, and why.
    refused: Mutex<BTreeMap<String, Failure>>,
    /// The configuration file that names them.
    config: Option<PathBuf>,
    /// Frontends that volumes may share.
    frontends: Mutex<Vec<Arc<dyn Frontend>>>,
    groups: Mutex<Vec<Arc<ConsistencyGroup>>>,
    leaders: Mutex<Vec<JoinHandle<()>>>,
    tls: Option<TlsSettings>,
    socket: SocketRights,
    nbd_limits: Limits,
    /// Of all servers together.
    nbd_memory: Arc<MemoryBudget>,
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

/// Whether the volume can have the sockets at which it is to be served, its own control socket included if it has one.
fn sockets_are_free(volume: &VolumePlan, own_control: bool) -> Outcome {
    if own_control {
        can_bind(&control_path(&volume.name)?).map_err(ControlError::from)?;
    }
    volume.addresses().try_for_each(|(address, _)| NbdServer::can_listen(address).map_err(|e| from_nbd(&e)))
}

/// What is to be said of an address at which others than this machine can read and write volumes.
fn open_to_all(address: &Address, has_tls: bool) -> Option<String> {
    let Address::Tcp { host, .. } = address else { return None };
    let is_local =
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
    (!is_local && !has_tls).then(|| {
        format!(
            "whoever reaches {address} can read and write what is served there: give --tls DIR (and --tls-verify-clients), or listen \
             on 127.0.0.1 or a unix socket"
        )
    })
}

impl Daemon {
    /// Starts the volumes. One that does not start stops no other.
    ///
    /// # Errors
    /// If none starts.
    fn start(plan: Plan, reasons: Sender<StopReason>, reclaim: Reclaim) -> Result<Self, Failure> {
        let directory = directory_of(plan.control.as_deref())?;
        let daemon = Self {
            volumes: Mutex::default(),
            refused: Mutex::default(),
            config: plan.config,
            frontends: Mutex::default(),
            groups: Mutex::default(),
            leaders: Mutex::default(),
            tls: plan.tls,
            socket: plan.socket,
            nbd_limits: plan.nbd_limits.each,
            nbd_memory: Arc::new(MemoryBudget::new(plan.nbd_limits.memory)),
            tracking: Arc::new(Tracking::new(plan.rules, plan.hints)),
            directory,
            reasons,
            reclaim,
        };
        let several = plan.volumes.len() > 1;
        if let Some(path) = &plan.control {
            can_bind(path).map_err(ControlError::from)?;
        }
        for volume in plan.volumes {
            let name = volume.name.clone();
            volume.warnings.iter().for_each(|warning| tracing::warn!(volume = name, "{warning}"));
            // A start changes who belongs to whom, which nobody should have to pay for a socket that cannot be had.
            let free = sockets_are_free(&volume, plan.control.is_none());
            match free.and_then(|()| Served::start(volume, Arc::clone(&daemon.tracking))) {
                Ok(served) => {
                    hold(&daemon.volumes).insert(name, Arc::new(served));
                }
                // The only one is what the command fails with.
                Err(e) if !several => return Err(e),
                Err(e) => daemon.refuse(&name, e),
            }
        }
        daemon.if_any()?;
        Ok(daemon)
    }

    /// The volume is not served; the others are.
    fn refuse(&self, name: &str, why: Failure) {
        tracing::error!(volume = name, "not served: {why}");
        let served = hold(&self.volumes).remove(name);
        hold(&self.refused).insert(name.to_owned(), why);
        if let Some(served) = served {
            served.withdraw();
            if let Err(e) = served.end(Ending::Keep) {
                tracing::error!(volume = name, "{e}");
            }
        }
    }

    /// Fails as the first of the volumes did if there is none left to serve.
    fn if_any(&self) -> Outcome {
        // Never both at a time: others take them in the other order.
        let none = hold(&self.volumes).is_empty();
        let refused = hold(&self.refused);
        match refused.values().next() {
            Some(why) if none => Err(match refused.len() {
                1 => why.clone(),
                n => Failure::new(why.kind, format!("none of {n} volumes can be served. The first: {why}")),
            }),
            _ => Ok(()),
        }
    }

    /// Opens all sockets. A volume that cannot have its own is not served.
    fn offer(self: &Arc<Self>, control: Option<&Path>) -> Result<Vec<Server>, Failure> {
        let controller: Arc<dyn Controller> = Arc::clone(self) as Arc<dyn Controller>;
        let start = |path: &Path| Server::start(path, Arc::clone(&controller)).map_err(ControlError::from);
        let mut servers = Vec::new();
        match control {
            Some(path) => servers.push((None, start(path)?)),
            None => {
                for name in self.all().iter().map(|volume| volume.name().to_owned()) {
                    match control_path(&name).and_then(|path| start(&path)) {
                        Ok(server) => servers.push((Some(name), server)),
                        Err(e) => self.refuse_or_fail(&name, e)?,
                    }
                }
            }
        }
        self.offer_nbd()?;
        self.lead_groups()?;
        let served = |name: &Option<String>| {
            name.as_ref().is_none_or(|name| hold(&self.volumes).contains_key(name.as_str()))
        };
        servers.retain(|(name, _)| served(name));
        Ok(servers.into_iter().map(|(_, server)| server).collect())
    }

    /// As [`Daemon::refuse`], but fails if that leaves none.
    fn refuse_or_fail(&self, name: &str, why: Failure) -> Outcome {
        if hold(&self.volumes).len() == 1 && hold(&self.refused).is_empty() {
            return Err(why);
        }
        self.refuse(name, why);
        self.if_any()
    }

    /// Serves NBD clients. The volumes of an address that cannot be had are not served, at any other address either.
    fn offer_nbd(&self) -> Outcome {
        while let Err((volumes, why)) = self.try_nbd() {
            self.stop_frontends();
            for volume in volumes {
                self.refuse_or_fail(volume.name(), why.clone())?;
            }
        }
        Ok(())
    }

    fn stop_frontends(&self) {
        for frontend in hold(&self.frontends).drain(..) {
            if let Err(e) = frontend.stop(CLIENTS_GRACE) {
                tracing::warn!("the {} at {}: {e}", frontend.kind(), frontend.addresses().join(" "));
            }
        }
    }

    /// One NBD server for each address, for all volumes that name it; those of the first that fails are returned.
    fn try_nbd(&self) -> Result<(), (Vec<Arc<Served>>, Failure)> {
        let mut exports: BTreeMap<String, (Address, Vec<_>)> = BTreeMap::new();
        for served in self.all() {
            for (address, critical) in served.plan().addresses() {
                let entry =
                    exports.entry(address.to_string()).or_insert_with(|| (address.clone(), Vec::new()));
                entry.1.push((Arc::clone(&served), critical));
            }
        }
        let mut offers: BTreeMap<String, Offer> = BTreeMap::new();
        for (address, volumes) in exports.into_values() {
            if let Some(warning) = open_to_all(&address, self.tls.is_some()) {
                let names: Vec<&str> = volumes.iter().map(|(v, _)| v.name()).collect();
                tracing::warn!(volumes = names.join(", "), "{warning}");
            }
            // A unix socket is guarded by its permissions.
            let tls = if matches!(address, Address::Tcp { .. }) { self.tls.clone() } else { None };
            let started = NbdServer::start(ServerConfig {
                listen: vec![address],
                exports: volumes
                    .iter()
                    .map(|(v, critical)| Export { critical: *critical, ..Export::new(v.service()) })
                    .collect(),
                tls,
                socket: self.socket,
                limits: self.nbd_limits,
                memory: Arc::clone(&self.nbd_memory),
            });
            let volumes: Vec<_> = volumes.into_iter().map(|(volume, _)| volume).collect();
            let server: Arc<dyn Frontend> = match started {
                Ok(server) => Arc::new(server),
                Err(e) => return Err((volumes, from_nbd(&e))),
            };
            for volume in volumes {
                let (_, by) = offers.entry(volume.name().to_owned()).or_insert_with(|| (volume, Vec::new()));
                by.push(Arc::clone(&server));
            }
            hold(&self.frontends).push(server);
        }
        for (volume, by) in offers.into_values() {
            volume.offered_by(by);
        }
        Ok(())
    }

    /// What `serve` prints once everything is open.
    fn ready_line(&self, servers: &[Server]) -> String {
        let sockets = servers.iter().map(|server| server.path().display().to_string());
        let volumes = hold(&self.volumes);
        let volumes = volumes.values().map(|v| match v.exports().as_slice() {
            [] => v.name().to_owned(),
            exports => format!("{} at {}", v.name(), exports.join(" ")),
        });
        format!(
            "ready: {}{}; control {}\n",
            volumes.collect::<Vec<_>>().join(", "),
            self.not_served(),
            sockets.collect::<Vec<_>>().join(" ")
        )
    }

    /// The volumes that are not served, to follow those that are; empty if there are none.
    fn not_served(&self) -> String {
        let refused = hold(&self.refused);
        match refused.is_empty() {
            true => String::new(),
            false => format!("; not served: {}", refused.keys().cloned().collect::<Vec<_>>().join(", ")),
        }
    }

    /// What it does, for the service manager.
    fn in_short(&self) -> String {
        let names = hold(&self.volumes).keys().cloned().collect::<Vec<_>>().join(", ");
        format!("serving {names}{}", self.not_served())
    }

    fn volume(&self, name: &str) -> Result<Arc<Served>, Failure> {
        let volumes = hold(&self.volumes);
        volumes.get(name).cloned().ok_or_else(|| {
            if let Some(why) = hold(&self.refused).get(name) {
                return Failure::new(why.kind, format!("'{name}' is not served: {why}"));
            }
            let names = volumes.keys().cloned().collect::<Vec<_>>().join(", ");
            let meant = nearest(name, volumes.keys().map(String::as_str));
            let meant = meant.map(|meant| format!("; did you mean `{meant}`?")).unwrap_or_default();
            Failure::new(
                FailureKind::Usage,
                format!("this daemon serves no volume '{name}'; it serves {names}{meant}"),
            )
        })
    }

    fn all(&self) -> Vec<Arc<Served>> {
        hold(&self.volumes).values().cloned().collect()
    }

    fn look_for_trouble(&self) {
        self.all().iter().for_each(|v| v.look_for_trouble());
    }

    /// The figures of one volume, or of all, asked at once: each waits a while for a thread that hangs.
    fn statuses(&self, name: Option<&str>) -> Result<Vec<VolumeReport>, Failure> {
        let not_served: Vec<_> = self.unserved().filter(|u| name.is_none_or(|name| u.name == name)).collect();
        let volumes = match name {
            Some(_) if !not_served.is_empty() => Vec::new(),
            Some(name) => vec![self.volume(name)?],
            None => self.all(),
        };
        let mut reports: Vec<VolumeReport> = thread::scope(|scope| {
            let asked: Vec<_> = volumes.iter().map(|volume| scope.spawn(|| volume.status())).collect();
            asked.into_iter().filter_map(|status| status.join().ok()).map(VolumeReport::from).collect()
        });
        reports.extend(not_served.into_iter().map(VolumeReport::Unserved));
        reports.sort_by(|a, b| a.name().cmp(b.name()));
        Ok(reports)
    }

    fn unserved(&self) -> impl Iterator<Item = Unserved> {
        let start = match &self.config {
            Some(file) => format!("`forebay serve --config {} --name", file.display()),
            None => "`forebay serve --name".to_owned(),
        };
        hold(&self.refused).clone().into_iter().map(move |(name, why)| {
            let reason =
                format!("{why}. Once that is mended restart the daemon, or serve it alone: {start} {name}`");
            Unserved { name, state: VolumeState::Refused, reason }
        })
    }

    /// The consistency group with these names, as soon as the daemon has found it.
    fn group(&self, names: &str, patience: Patience) -> Result<Arc<ConsistencyGroup>, Failure> {
        let find = || hold(&self.groups).iter().find(|group| group.names() == names).cloned();
        patience.wait_for(find).ok_or_else(|| {
            let message =
                format!("the daemon has not found the members of '{names}' yet: {patience} is over");
            Failure::new(FailureKind::Failed, message)
        })
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
                    Failure::new(
                        FailureKind::Failed,
                        format!("cannot start a thread for common points: {}", forebay_block::words_of(&e)),
                    )
                })?;
                hold(&self.leaders).push(leader);
            }
            hold(&self.groups).push(group);
        }
        Ok(())
    }

    /// Declares a consistency point on each of the volumes, as soon as there can be one, or until `patience` is over.
    fn mark(&self, names: &[String], label: &str, patience: Patience) -> Result<Vec<u64>, Failure> {
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
                shared.insert(&group.names, self.group(&group.names, patience)?.mark(label, patience)?);
            }
        }
        let point = |volume: &Served| {
            let group = volume.plan().group.as_ref();
            match group.and_then(|group| shared.get(group.names.as_str())) {
                Some(point) => Ok(*point),
                None => volume.mark(label, patience),
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
    fn attach(&self, volume: &Served) -> Result<AttachedDevice, Failure> {
        let mut device = volume.attach(&self.directory)?;
        device.warnings.extend(self.reclaim.warning(volume.name()));
        device.warnings.iter().for_each(|warning| tracing::warn!(volume = volume.name(), "{warning}"));
        Ok(device)
    }

    /// Destages a volume, parts it from its cache and stops serving it; the last one takes the daemon with it.
    fn release(&self, name: &str, progress: &mut dyn FnMut(Progress) -> bool) -> Result<Answer, Failure> {
        let volume = self.volume(name)?;
        let outcome = volume.telling(progress, || volume.release());
        if outcome.is_ok() || volume.has_ended() {
            let mut volumes = hold(&self.volumes);
            volumes.remove(name);
            if volumes.is_empty() {
                // Nobody listens any more if the daemon is stopping already.
                let _ = self.reasons.send(StopReason::NothingToServe);
            }
        }
        let config = self.config.as_ref().map(|file| file.display().to_string());
        outcome.map(|()| Answer::Released { config })
    }

    /// Takes the volumes away from their users, then stops them. All are stopped, or given up at a standstill; the first error
    /// is returned.
    fn stop(&self, destage: bool) -> Outcome {
        hold(&self.groups).iter().for_each(|group| group.stop());
        let volumes = self.all();
        let mut withdrawn = Step::begin("the kernel to write back what it holds", &volumes, Served::withdraw);
        let came_back = withdrawn.wait();
        self.stop_frontends();
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
            Request::Status { volume } => self.statuses(volume.as_deref()).map(Answer::Volumes),
            Request::Flush { volume } => {
                let volume = self.volume(&volume)?;
                volume.telling(progress, || volume.flush()).map(|()| Answer::Done)
            }
            Request::Mark { volumes, label, wait_ms, progress: tells } => {
                let mark = || self.mark(&volumes, &label, Patience::of(wait_ms, tells)).map(Answer::Points);
                match volumes.first() {
                    Some(first) if tells => self.volume(first)?.telling(progress, mark),
                    _ => mark(),
                }
            }
            Request::Checkpoint { volume, action } => {
                let volume = self.volume(&volume)?;
                volume.telling(progress, || volume.checkpoint(action))
            }
            Request::Common { volume, names, round, run, step } => {
                Ok(Answer::Common(self.volume(&volume)?.common(&names, round, run, step)?))
            }
            Request::Set { volume, settings } => {
                self.volume(&volume)?.set(&settings).map(|warnings| match warnings.is_empty() {
                    true => Answer::Done,
                    false => Answer::Warned(warnings),
                })
            }
            Request::Explain { volume } => Ok(Answer::Explanation(self.volume(&volume)?.explanation())),
            Request::Waits { volume } => self.volume(&volume).map(|_| Answer::Waits(self.tracking.waits())),
            Request::Attach { volume } => {
                let served = self.volume(&volume)?;
                Ok(Answer::Device(served.telling(progress, || self.attach(&served))?))
            }
            Request::Detach { volume, release: true } => self.release(&volume, progress),
            Request::Detach { volume, release: false } => {
                let served = self.volume(&volume)?;
                match served.telling(progress, || served.detach(&self.directory))? {
                    true => Ok(Answer::Done),
                    false => Err(ControlError::new(
                        FailureKind::Failed,
                        format!("the volume '{volume}' is not attached"),
                    )),
                }
            }
        }
    }
}
