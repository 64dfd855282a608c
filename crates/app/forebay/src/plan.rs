//! What `forebay serve` is to serve: the configuration file with the flags laid over it, checked.

use std::path::{Path, PathBuf};

use forebay_control::FailureKind;
use forebay_device::DeviceSpec;
use forebay_host::JournalChoice;
use forebay_nbd::{Address, SocketRights, TlsSettings};
use forebay_policy::{GroupEnds, Ranges, Settings, WritePolicy};
use forebay_tracker::{Hints, PRESETS, Rules, RulesError};

use crate::background_dirty::BackgroundDirty;
use crate::changes::{Circumstances, check_ranges, idle, nobody_is_critical};
use crate::config::{Config, VolumeConfig};
use crate::device_decoration::DeviceDecoration;
use crate::failure::Failure;
use crate::group_plan::GroupPlan;
use crate::nbd_limits::{NbdLimits, NbdWishes};
use crate::serve_args::Args;
use forebay_policy::size::Size;

/// Longest configuration file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Everything that is to be served.
#[derive(Debug)]
pub struct Plan {
    /// One control socket for all volumes; `None`: each has its default one.
    pub control: Option<PathBuf>,
    /// The configuration file that was read.
    pub config: Option<PathBuf>,
    /// Whether a clean stop destages everything first.
    pub destage_on_stop: bool,
    /// At least one volume.
    pub volumes: Vec<VolumePlan>,
    /// Who may connect to its unix sockets for NBD clients.
    pub socket: SocketRights,
    /// TLS for NBD clients on TCP.
    pub tls: Option<TlsSettings>,
    /// What NBD clients may take.
    pub nbd_limits: NbdLimits,
    /// Who is critical.
    pub rules: Rules,
    /// Whose hints are believed.
    pub hints: Hints,
}

/// One volume.
#[derive(Debug)]
pub struct VolumePlan {
    /// Its name.
    pub name: String,
    /// The cache; `None` serves the backing as it is.
    pub cache: Option<DeviceSpec>,
    /// The backing.
    pub backing: DeviceSpec,
    /// Where NBD clients are served.
    pub nbd: Vec<Address>,
    /// Where those are of whom every request is critical.
    pub critical_nbd: Vec<Address>,
    /// File that becomes the volume.
    pub fuse: Option<PathBuf>,
    /// Go on without the cache that the backing was paired with.
    pub accept_stale: bool,
    /// Take the volume over from a host that did not stop it cleanly.
    pub takeover: bool,
    /// Writes are refused, and nothing is written to cache or backing.
    pub read_only: bool,
    /// Logical block of the volume in bytes, if it was chosen.
    pub logical_block: Option<u32>,
    /// Decorators for the devices, for tests.
    pub decorate: Vec<DeviceDecoration>,
    /// A new file in which its requests are recorded.
    pub record_requests: Option<PathBuf>,
    /// Where the journal lies.
    pub journal: JournalChoice,
    /// The consistency group that it is a member of.
    pub group: Option<GroupPlan>,
    /// Policies.
    pub settings: Settings,
    /// What the admission policy `range` lets in.
    pub ranges: Ranges,
    /// Bytes a day that may be written to the cache; 0: any.
    pub endurance: u64,
    /// Somebody waits for every request of NBD clients, within an application's request.
    pub critical: bool,
    /// Of these requests' writes at most so many bytes a second count as critical.
    pub critical_rate: Option<u64>,
    /// Share of memory that its pages may have dirty while it is attached.
    pub background_dirty: BackgroundDirty,
    /// Only NBD clients are foreseen, whose requests are not critical: no rules say who is, and it is no file.
    pub is_for_nbd_alone: bool,
    /// What was given and has another effect than one may think, or none; a sentence each.
    pub warnings: Vec<String>,
}

fn usage(message: String) -> Failure {
    Failure::new(FailureKind::Usage, message)
}

impl VolumePlan {
    /// Where NBD clients are served, and whether every request of those there is critical.
    pub fn addresses(&self) -> impl Iterator<Item = (&Address, bool)> {
        let critical = self.critical_nbd.iter().map(|address| (address, true));
        self.nbd.iter().map(|address| (address, self.critical)).chain(critical)
    }
}

impl Plan {
    /// Lays the flags over the configuration file that they name.
    ///
    /// # Errors
    /// [`FailureKind::Usage`]: something is missing, or does not fit; or the file cannot be read.
    pub fn make(args: Args) -> Result<Self, Failure> {
        let mut config = match &args.config {
            Some(path) => read_config(path)?,
            None => Config {
                volume: args
                    .name
                    .iter()
                    .map(|n| VolumeConfig { name: n.clone(), ..VolumeConfig::default() })
                    .collect(),
                ..Config::default()
            },
        };
        // The file may say for all of its volumes what one that is chosen of them has no use for.
        let has_tcp = |volumes: &[VolumeConfig]| {
            volumes
                .iter()
                .flat_map(VolumeConfig::addresses)
                .any(|address| matches!(address, Address::Tcp { .. }))
        };
        let tls_is_of_use = args.tls.is_none() && has_tcp(&config.volume);
        if let Some(name) = &args.name {
            config.volume.retain(|v| v.name == *name);
        }
        if config.volume.is_empty() {
            return Err(usage(match (&args.config, &args.name) {
                (Some(path), Some(name)) => format!("{} has no volume '{name}'", path.display()),
                (Some(path), None) => format!("{} has no [[volume]]", path.display()),
                (None, _) => "nothing to serve; give --name, --cache and --backing, or --config".into(),
            }));
        }
        overlay(&args, &mut config.volume)?;
        let defaults = SocketRights::default();
        let nbd = args.nbd_wishes.or(NbdWishes {
            connections: config.nbd_connections,
            per_address: config.nbd_connections_per_address,
            handshake_ms: config.nbd_handshake_ms,
            memory: config.nbd_memory.map(|size| size.0),
        });
        let tls = tls(
            args.tls.or(config.tls),
            args.tls_verify_clients || config.tls_verify_clients.unwrap_or(false),
        )?;
        if tls.is_some() && !tls_is_of_use && !has_tcp(&config.volume) {
            return Err(usage(
                "tls is for NBD clients on TCP, and no volume is served there; give --nbd tcp:HOST:PORT, or leave tls away".to_owned(),
            ));
        }
        let socket = SocketRights {
            mode: args.socket_mode.or(config.socket_mode).unwrap_or(defaults.mode),
            group: args.socket_group.or(config.socket_group),
        };
        if socket.group.is_some() && socket.mode & 0o020 == 0 {
            return Err(usage(format!(
                "socket-group has no effect: mode {:04o} lets no group connect; give socket-mode 0660 too",
                socket.mode
            )));
        }
        let hints = args.hints.or(config.hints);
        let rules = rules(if args.rules.is_empty() { &config.rules } else { &args.rules })?;
        // Whoever says whose hints are believed means to attach the volume, unless it is nobody's.
        let is_for_nbd = rules.is_empty() && hints.as_ref().is_none_or(Hints::are_nobodys);
        let destage_on_stop = args.destage_on_stop.or(config.destage_on_stop).unwrap_or(false);
        let around = Around { decorate: &args.decorate, is_for_nbd, destage_on_stop };
        Ok(Self {
            socket,
            nbd_limits: nbd.limits(config.volume.iter().any(VolumeConfig::has_nbd))?,
            tls,
            rules,
            hints: hints.unwrap_or_default(),
            config: args.config.as_deref().map(absolute),
            control: args.control.or(config.control),
            destage_on_stop,
            volumes: config.volume.into_iter().map(|v| checked(v, &around)).collect::<Result<_, _>>()?,
        })
    }
}

fn rules(names: &[String]) -> Result<Rules, Failure> {
    let mut all = Rules::default();
    for name in names {
        let wrong = |e: RulesError| {
            let path = Path::new(name);
            match path.is_file() {
                true => usage(format!("rules of {}: {e}", absolute(path).display())),
                false => usage(format!("rules of {name}: {e}")),
            }
        };
        let of_user = || {
            let (set, user) = name.split_once('@').filter(|(_, user)| !user.is_empty())?;
            Some(Rules::preset(set)?.only_of(user))
        };
        let rules = match Rules::preset(name).or_else(of_user) {
            Some(rules) => rules,
            None if name.contains(['/', '.']) || Path::new(name).is_file() => {
                let rules = Rules::parse(&read_text(Path::new(name))?).map_err(wrong)?.called(name);
                if rules.is_empty() {
                    let file = absolute(Path::new(name));
                    tracing::warn!("{} has no rule, so that it makes nobody critical", file.display());
                }
                rules
            }
            None => {
                let presets: Vec<&str> = PRESETS.iter().map(|(preset, _)| *preset).collect();
                let presets = presets.join(", ");
                return Err(usage(format!("there are no rules '{name}'; give one of {presets}, or a file")));
            }
        };
        all.extend(rules).map_err(wrong)?;
    }
    Ok(all)
}

fn tls(directory: Option<PathBuf>, verify_clients: bool) -> Result<Option<TlsSettings>, Failure> {
    match directory {
        Some(directory) => Ok(Some(TlsSettings { directory, required: true, verify_clients })),
        None if verify_clients => {
            Err(usage("tls-verify-clients needs tls, the directory with the certificates".into()))
        }
        None => Ok(None),
    }
}

/// Flags win over the file. Those that name devices and exports can mean only one volume.
fn overlay(args: &Args, volumes: &mut [VolumeConfig]) -> Result<(), Failure> {
    for volume in volumes.iter_mut() {
        volume.write_policy = args.write_policy.or(volume.write_policy);
        volume.order = args.order.or(volume.order);
        volume.group_bytes = args.group_size.or(volume.group_bytes);
        volume.group_age_ms = args.group_age.or(volume.group_age_ms);
        volume.group_ends = args.group_ends.or(volume.group_ends);
        volume.consistency_group = args.consistency_group.clone().or(volume.consistency_group.take());
        if !args.members.is_empty() {
            volume.members.clone_from(&args.members);
        }
        volume.max_staleness = args.max_staleness.or(volume.max_staleness);
        volume.admission = args.admission.or(volume.admission);
        volume.journal_caching = args.journal_caching.or(volume.journal_caching);
        volume.on_full = args.on_full.or(volume.on_full);
        volume.durability = args.durability.or(volume.durability);
        volume.scheduler = args.scheduler.or(volume.scheduler);
        volume.background_dirty = args.background_dirty.or(volume.background_dirty);
        volume.ranges = args.ranges.clone().or(volume.ranges.take());
        volume.endurance = args.endurance.map(Size).or(volume.endurance);
        volume.critical = args.critical.then_some(true).or(volume.critical);
        if volume.is_critical_to_some() || !args.critical_nbd.is_empty() {
            volume.critical_rate = args.critical_rate.map(Size).or(volume.critical_rate);
        }
    }
    let is_rate_of_use =
        volumes.iter().any(VolumeConfig::is_critical_to_some) || !args.critical_nbd.is_empty();
    if args.critical_rate.is_some() && !is_rate_of_use {
        return Err(usage(
            "--critical-rate is for volumes that are critical; say --critical or --critical-nbd as well"
                .to_owned(),
        ));
    }
    let [volume] = volumes else {
        let own = args.cache.is_some()
            || args.backing.is_some()
            || args.fuse.is_some()
            || !args.nbd.is_empty()
            || !args.critical_nbd.is_empty();
        if own
            || args.journal.is_some()
            || args.record_requests.is_some()
            || args.no_cache
            || args.accept_stale
            || args.takeover
            || args.read_only
            || args.logical_block.is_some()
            || !args.decorate.is_empty()
        {
            return Err(usage(
                "--cache, --backing, --journal, --nbd, --fuse, --no-cache, --accept-stale, --takeover, --read-only, --logical-block and --record-requests \
                 are for one volume, and the configuration has several; choose one with --name"
                    .into(),
            ));
        }
        return Ok(());
    };
    if let Some(cache) = &args.cache {
        volume.cache = Some(cache.clone());
        volume.no_cache = None;
    }
    if let Some(backing) = &args.backing {
        volume.backing = Some(backing.clone());
    }
    if !args.critical_nbd.is_empty() {
        volume.critical_nbd.clone_from(&args.critical_nbd);
    }
    if !args.nbd.is_empty() {
        volume.nbd.clone_from(&args.nbd);
    }
    if args.fuse.is_some() {
        volume.fuse.clone_from(&args.fuse);
    }
    if args.journal.is_some() {
        volume.journal.clone_from(&args.journal);
    }
    if args.no_cache {
        volume.cache = None;
        volume.no_cache = Some(true);
    }
    if args.accept_stale {
        volume.accept_stale = Some(true);
    }
    if args.takeover {
        volume.takeover = Some(true);
    }
    if args.read_only {
        volume.read_only = Some(true);
    }
    volume.logical_block = args.logical_block.or(volume.logical_block);
    if args.record_requests.is_some() {
        volume.record_requests.clone_from(&args.record_requests);
    }
    Ok(())
}

/// What is said for all volumes, as far as each depends on it.
struct Around<'a> {
    decorate: &'a [DeviceDecoration],
    /// Nothing says that tasks could be critical.
    is_for_nbd: bool,
    destage_on_stop: bool,
}

fn checked(v: VolumeConfig, all: &Around<'_>) -> Result<VolumePlan, Failure> {
    let given = given(&v);
    let (has_nbd, is_critical_to_some) = (v.has_nbd(), v.is_critical_to_some());
    let name = v.name;
    let wrong = |e: String| usage(format!("volume '{name}': {e}"));
    let device =
        |text: String| text.parse::<DeviceSpec>().map_err(|e| usage(format!("volume '{name}': {e}")));
    let cache = match (v.cache, v.no_cache.unwrap_or(false)) {
        (Some(_), true) => {
            return Err(usage(format!("volume '{name}' has a cache and no-cache; drop one of them")));
        }
        (None, false) => {
            return Err(usage(format!(
                "volume '{name}' has no cache; name one with --cache (`forebay format` makes it) or say --no-cache"
            )));
        }
        (cache, _) => cache.map(device).transpose()?,
    };
    let Some(backing) = v.backing else {
        return Err(usage(format!("volume '{name}' has no backing; name one with --backing")));
    };
    let journal = journal(v.journal.as_deref()).map_err(|e| usage(format!("volume '{name}': {e}")))?;
    let defaults = Settings::default();
    let group = match &v.consistency_group {
        Some(group) => Some(GroupPlan::parse(group, &v.members, &name).map_err(&wrong)?),
        None if v.members.is_empty() => None,
        None => return Err(wrong("has members, and no consistency-group".to_owned())),
    };
    let ends = match (&group, v.group_ends) {
        (Some(_), None | Some(GroupEnds::Common)) => GroupEnds::Common,
        (None, Some(GroupEnds::Common)) => {
            return Err(wrong(
                "group-ends is common, which is for members of a consistency-group".to_owned(),
            ));
        }
        (None, ends) => ends.unwrap_or(defaults.group_ends),
        (Some(_), Some(ends)) => {
            return Err(wrong(format!(
                "group-ends is {ends}, but the points of a consistency-group are common"
            )));
        }
    };
    if group.is_some() && (v.write_policy != Some(WritePolicy::Journaled) || cache.is_none()) {
        return Err(wrong(
            "members of a consistency-group need a cache and write-policy journaled".to_owned(),
        ));
    }
    if group.is_some() && v.read_only == Some(true) {
        return Err(wrong(
            "is a member of a consistency-group, whose points a read-only volume cannot take".to_owned(),
        ));
    }
    let settings = Settings {
        write_policy: v.write_policy.unwrap_or(defaults.write_policy),
        order: v.order.unwrap_or(defaults.order),
        group_bytes: v.group_bytes.unwrap_or(defaults.group_bytes),
        group_age_ms: v.group_age_ms.unwrap_or(defaults.group_age_ms),
        max_staleness: v.max_staleness.unwrap_or(defaults.max_staleness),
        group_ends: ends,
        admission: v.admission.unwrap_or(defaults.admission),
        journal_caching: v.journal_caching.unwrap_or(defaults.journal_caching),
        on_full: v.on_full.unwrap_or(defaults.on_full),
        durability: v.durability.unwrap_or(defaults.durability),
        scheduler: v.scheduler.unwrap_or(defaults.scheduler),
    };
    let ranges = v.ranges.unwrap_or_default();
    if cache.is_some() {
        check_ranges(settings.admission, &ranges).map_err(&wrong)?;
    }
    let around = Circumstances {
        settings: &settings,
        cached: cache.is_some(),
        read_only: v.read_only.unwrap_or(false),
    };
    let mut warnings = idle(given, around);
    if v.accept_stale == Some(true) && cache.is_some() {
        warnings.push("accept-stale has no effect with a cache; it is for no-cache".to_owned());
    }
    if let Some(twice) = v.critical_nbd.iter().find(|address| v.nbd.contains(address)) {
        return Err(wrong(format!(
            "is served at {twice} both as nbd and as critical-nbd; give them an address each"
        )));
    }
    if v.critical == Some(true) && v.nbd.is_empty() {
        warnings.push("critical has no effect without NBD clients; give an address with nbd".to_owned());
    }
    if all.destage_on_stop && v.read_only == Some(true) {
        warnings.push("destage-on-stop has no effect on a read-only volume".to_owned());
    }
    let is_for_nbd_alone = all.is_for_nbd && has_nbd && v.fuse.is_none() && !is_critical_to_some;
    if is_for_nbd_alone && cache.is_some() && v.read_only != Some(true) {
        warnings.extend(nobody_is_critical(&settings));
    }
    if v.critical_rate.is_some() && v.critical.is_none() && v.critical_nbd.is_empty() {
        return Err(wrong("has a critical-rate, and does not say whether it is critical".to_owned()));
    }
    Ok(VolumePlan {
        group,
        cache,
        backing: device(backing)?,
        nbd: v.nbd,
        critical_nbd: v.critical_nbd,
        fuse: v.fuse,
        accept_stale: v.accept_stale.unwrap_or(false),
        takeover: v.takeover.unwrap_or(false),
        read_only: v.read_only.unwrap_or(false),
        logical_block: v.logical_block,
        decorate: all.decorate.to_vec(),
        record_requests: v.record_requests,
        settings,
        ranges,
        warnings,
        is_for_nbd_alone,
        endurance: v.endurance.map_or(0, |s| s.0),
        critical: v.critical.unwrap_or(false),
        critical_rate: v.critical_rate.map(|s| s.0),
        background_dirty: v.background_dirty.unwrap_or_default(),
        journal,
        name,
    })
}

/// The settings that are said of a volume.
fn given(v: &VolumeConfig) -> Vec<&'static str> {
    let said = [
        ("write-policy", v.write_policy.is_some()),
        ("order", v.order.is_some()),
        ("group-size", v.group_bytes.is_some()),
        ("group-age", v.group_age_ms.is_some()),
        ("group-ends", v.group_ends.is_some()),
        ("max-staleness", v.max_staleness.is_some()),
        ("admission", v.admission.is_some()),
        ("ranges", v.ranges.is_some()),
        ("endurance", v.endurance.is_some()),
        ("journal-caching", v.journal_caching.is_some()),
        ("on-full", v.on_full.is_some()),
        ("durability", v.durability.is_some()),
        ("scheduler", v.scheduler.is_some()),
    ];
    said.iter().filter(|(_, is_said)| *is_said).map(|(key, _)| *key).collect()
}

/// Understands a journal's location: a device, or `none`.
pub fn journal(location: Option<&str>) -> Result<JournalChoice, String> {
    match location {
        None => Ok(JournalChoice::Auto),
        Some("none") => Ok(JournalChoice::None),
        Some(location) => {
            location.parse().map(JournalChoice::At).map_err(|e: forebay_device::UnknownDevice| e.to_string())
        }
    }
}

/// Reads the configuration file at `path`.
///
/// # Errors
/// One sentence: where in the file, what is wrong, and which name was probably meant.
fn read_config(path: &Path) -> Result<Config, Failure> {
    let text = read_text(path)?;
    let path = absolute(path);
    Config::parse(&text).map_err(|e| Failure::new(FailureKind::Usage, format!("{}:{e}", path.display())))
}

/// A path as it is from the root on.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn read_text(path: &Path) -> Result<String, Failure> {
    let path = &absolute(path);
    let failed = |e: std::io::Error| {
        Failure::new(
            FailureKind::Failed,
            format!("cannot read the configuration {}: {}", path.display(), forebay_block::words_of(&e)),
        )
    };
    if std::fs::metadata(path).map_err(failed)?.len() > FILE_BYTES_MAX {
        return Err(Failure::new(
            FailureKind::Usage,
            format!("the configuration {} is longer than {FILE_BYTES_MAX} bytes", path.display()),
        ));
    }
    std::fs::read_to_string(path).map_err(failed)
}

#[cfg(test)]
mod tests;
