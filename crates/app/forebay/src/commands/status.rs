//! `forebay status`: what volumes are doing.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use forebay_control::{
    Answer, Client, ClientError, FailureKind, Request, Unserved, VolumeReport, VolumeState, VolumeStatus,
    prometheus,
};
use serde::Serialize;

use super::{ask_when_there, not_an_answer, told_by};
use crate::control_path::{control_path, runtime_directory};
use crate::failure::{Failure, Outcome};
use crate::output::{print, print_json};
use crate::volume_name;
use forebay_policy::{size, time};

/// Daemons that are asked at a time.
const ASKED_AT_ONCE: usize = 64;

/// Arguments of `forebay status`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  forebay status\n  forebay status db --json\n  \
forebay serve --name db --cache c --backing b & forebay status db --wait 10s\n\n\
A daemon that says nothing for 5 seconds is given up. `forebay status` then shows the volume without figures, \
and ends with 0. `forebay status NAME` fails with 1.\n\n\
A volume without figures is `unreachable` (the daemon does not answer), `gone` (it was killed; its socket is \
left) or `refused` (it serves others and not this one).")]
pub struct Args {
    /// The volume; without it, every volume of every daemon whose socket lies in the default directory
    #[arg(value_parser = volume_name::parse)]
    name: Option<String>,

    /// Print JSON: one object with a NAME, {"volumes": [...]} without
    #[arg(long)]
    json: bool,

    /// Print metrics for Prometheus
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,

    /// The daemon's control socket, if not the default one
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,

    /// How long to wait for a daemon that is not there yet
    #[arg(long, value_name = "TIME", value_parser = time::parse_ms, default_value = "0s", requires = "name")]
    wait: u64,
}

/// Prints the figures in the form that was asked for. Of all volumes: what is not there is told beside the others.
pub fn run(args: Args) -> Outcome {
    let Some(name) = args.name else {
        let volumes = match args.control {
            Some(path) => ask_all(&path)?,
            None => everywhere(&runtime_directory()?),
        };
        return match volumes.as_slice() {
            all if args.prometheus => print(&prometheus(all)),
            all if args.json => print_json(&All { volumes: all }),
            [] => print("no volume is being served\n"),
            all => print(&all.iter().map(report).collect::<Vec<_>>().join("\n")),
        };
    };
    let volume = one(&name, args.control, args.wait)?;
    match &volume {
        volume if args.prometheus => print(&prometheus(std::slice::from_ref(volume)))?,
        volume if args.json => print_json(volume)?,
        VolumeReport::Figures(figures) => print(&text(figures))?,
        VolumeReport::Unserved(_) => {}
    }
    match volume {
        VolumeReport::Figures(_) => Ok(()),
        VolumeReport::Unserved(unserved) => Err(Failure::new(FailureKind::Failed, line(&unserved))),
    }
}

/// The JSON of `forebay status --json`.
#[derive(Serialize)]
struct All<'a> {
    volumes: &'a [VolumeReport],
}

/// One volume. Where it has no daemon of its own, one that was to serve it may say why it does not.
fn one(name: &str, control: Option<PathBuf>, wait_ms: u64) -> Result<VolumeReport, Failure> {
    let alone = control.is_none();
    let path = match control {
        Some(path) => path,
        None => control_path(name)?,
    };
    let request = Request::Status { volume: Some(name.to_owned()) };
    let mut e = match ask_when_there(&path, wait_ms, &request, |e| e) {
        Ok(answer) => {
            return volumes_of(answer)?.into_iter().next().ok_or_else(|| {
                Failure::new(FailureKind::Failed, format!("the daemon does not say how '{name}' is"))
            });
        }
        Err(e) => e,
    };
    if alone && matches!(e, ClientError::NotRunning(_) | ClientError::Gone(_)) {
        let all = everywhere(&runtime_directory()?);
        if let Some(volume) = all.iter().find(|volume| volume.name() == name) {
            return Ok(volume.clone());
        }
        e = told_by(&all, name, e);
    }
    match state_of(&e) {
        Some(state) => Ok(unserved(name, state, &e)),
        None => Err(e.into()),
    }
}

fn volumes_of(answer: Answer) -> Result<Vec<VolumeReport>, Failure> {
    match answer {
        Answer::Volumes(volumes) => Ok(volumes),
        _ => Err(not_an_answer()),
    }
}

fn ask_all(path: &Path) -> Result<Vec<VolumeReport>, ClientError> {
    let answer = Client::connect(path)?.call(&Request::Status { volume: None }, |_| {})?;
    Ok(volumes_of(answer)?)
}

/// What a daemon is that gives no answer; `None` if there is none, or it is another failure than the daemon's.
fn state_of(e: &ClientError) -> Option<VolumeState> {
    match e {
        ClientError::Gone(_) => Some(VolumeState::Gone),
        ClientError::Silent { .. } | ClientError::Lost { .. } => Some(VolumeState::Unreachable),
        ClientError::NotRunning(_)
        | ClientError::NotASocket(_)
        | ClientError::Denied(_)
        | ClientError::Untrusted { .. }
        | ClientError::Io { .. }
        | ClientError::Said(_) => None,
    }
}

fn unserved(name: &str, state: VolumeState, e: &ClientError) -> VolumeReport {
    VolumeReport::Unserved(Unserved { name: name.to_owned(), state, reason: e.to_string() })
}

/// The volumes of all daemons with a socket in `directory`; one that serves several volumes has several sockets. All are asked
/// at once, and none keeps the others from being shown.
pub fn everywhere(directory: &Path) -> Vec<VolumeReport> {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return Vec::new();
    };
    let sockets: Vec<PathBuf> = entries
        .filter_map(Result::ok)
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket()))
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "sock"))
        .collect();
    let mut found: BTreeMap<String, VolumeReport> = BTreeMap::new();
    for some in sockets.chunks(ASKED_AT_ONCE) {
        let answers: Vec<Vec<VolumeReport>> = std::thread::scope(|scope| {
            let asked: Vec<_> = some.iter().map(|path| scope.spawn(|| volumes_at(path))).collect();
            asked.into_iter().map(|answer| answer.join().unwrap_or_default()).collect()
        });
        for volume in answers.into_iter().flatten() {
            match found.get(volume.name()) {
                // Another daemon may serve what one refuses, or has left its socket of.
                Some(known) if rank(known) <= rank(&volume) => {}
                _ => {
                    found.insert(volume.name().to_owned(), volume);
                }
            }
        }
    }
    found.into_values().collect()
}

/// What is told of a volume of which several things are known: the least.
fn rank(volume: &VolumeReport) -> u8 {
    match volume.state() {
        VolumeState::Unreachable => 1,
        VolumeState::Refused => 2,
        VolumeState::Gone => 3,
        _ => 0,
    }
}

/// The volumes of the daemon behind a socket; if it gives no answer, one that has the socket's name.
fn volumes_at(path: &Path) -> Vec<VolumeReport> {
    match ask_all(path) {
        Ok(volumes) => volumes,
        // It has ended in this moment.
        Err(ClientError::NotRunning(_)) => Vec::new(),
        Err(e) => {
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            vec![unserved(&name, state_of(&e).unwrap_or(VolumeState::Unreachable), &e)]
        }
    }
}

fn report(volume: &VolumeReport) -> String {
    match volume {
        VolumeReport::Figures(figures) => text(figures),
        VolumeReport::Unserved(unserved) => line(unserved) + "\n",
    }
}

fn line(unserved: &Unserved) -> String {
    format!("{}: {}: {}", unserved.name, unserved.state.as_str(), unserved.reason)
}

fn text(v: &VolumeStatus) -> String {
    let mut t = String::new();
    let mut row = |label: &str, value: String| {
        let _ = writeln!(t, "  {label:<14} {value}");
    };
    if let Some(reason) = &v.reason {
        row("reason", reason.clone());
        row("since", format!("{} ({:.0} s)", v.degraded_since.as_deref().unwrap_or("?"), v.degraded_seconds));
    }
    row("cache", cache(v));
    row(
        "backing",
        format!("{}, {} in blocks of {} bytes", v.backing, size::show(v.size_bytes), v.logical_block_bytes),
    );
    row("durability", durability(v));
    row(
        "policy",
        format!(
            "{}, admission {}, on-full {}, durability {}, scheduler {}",
            policy(v),
            v.admission,
            v.on_full,
            v.durability,
            v.scheduler
        ),
    );
    if !v.journals.is_empty() {
        row("journals", format!("found at {} ({})", v.journals, v.journal_caching));
    }
    row("backing lacks", backing_lacks(v));
    if v.write_policy == "journaled" {
        row("points", points(v));
    }
    if !v.consistency_group.is_empty() {
        row("common points", common_points(v));
    }
    row(
        "requests",
        format!("{} reads, {} writes, {} flushes; {} errors", v.reads, v.writes, v.flushes, v.errors),
    );
    row(
        "reads from",
        format!("cache {}, backing {}", size::show(v.read_bytes_hit), size::show(v.read_bytes_missed)),
    );
    row("acknowledged", size::show(v.bytes_acknowledged));
    row(
        "written",
        format!("to cache {}, to backing {}", size::show(v.bytes_to_cache), size::show(v.bytes_to_backing)),
    );
    row(
        "writes",
        format!("{} cached, {} bypassed, {} stalls", v.writes_admitted, v.writes_bypassed, v.stalls),
    );
    if v.backing_outstanding > 0 {
        row(
            "at the backing",
            format!(
                "{} under way; {} awaited and {} others wait, {} were hurried since the start",
                v.backing_outstanding,
                v.backing_waiting_critical,
                v.backing_waiting_noncritical,
                v.backing_promoted
            ),
        );
    }
    let stored = (v.store_stored_bytes, v.store_live_bytes);
    if let Some(cost) = store_cost(&v.store_requests, &v.store_bytes, v.store_objects, stored) {
        row("store", cost);
    }
    let reasons: Vec<String> =
        v.writes_by_reason.iter().filter(|(_, n)| **n > 0).map(|(why, n)| format!("{n} {why}")).collect();
    if !reasons.is_empty() {
        row("because", reasons.join(", "));
    }
    for missing in &v.criticality_missing {
        row("not known", missing.clone());
    }
    if v.checksum_failures + v.cache_errors + v.backing_errors > 0 {
        row(
            "faults",
            format!(
                "{} bad checksums, {} cache errors, {} backing errors",
                v.checksum_failures, v.cache_errors, v.backing_errors
            ),
        );
    }
    row(
        "memory",
        format!("{}; index {:.1} bytes/block", size::show(v.memory_bytes), v.index_bytes_per_block),
    );
    if !v.exports.is_empty() {
        row("offered at", v.exports.join(", "));
    }
    if v.exports.iter().any(|place| place.starts_with("unix:") || place.starts_with("tcp:")) {
        row(
            "NBD clients",
            format!("{} connected, {} refused, {} displaced", v.nbd_clients, v.nbd_refused, v.nbd_displaced),
        );
    }
    if let Some(device) = &v.device {
        row("attached as", device.clone());
        let share = match v.background_dirty.as_str() {
            "system" => "as the system has it".to_owned(),
            share => format!("written back from {share} of memory on"),
        };
        row("dirty pages", share);
        for knob in v.knobs.iter().filter(|knob| knob.set != knob.before) {
            let before = if knob.before.is_empty() { "nothing" } else { &knob.before };
            row("set", format!("{} to {}, before {before}", knob.name, knob.set));
        }
    }
    let read_only = if v.read_only { ", read-only" } else { "" };
    format!("{}: {}{read_only}\n{t}", v.name, v.state.as_str())
}

fn cache(v: &VolumeStatus) -> String {
    if v.cache.is_empty() {
        return "none".into();
    }
    format!("{}, {} used of {}", v.cache, size::show(v.cache_used_bytes), size::show(v.cache_bytes))
}

fn policy(v: &VolumeStatus) -> String {
    match v.write_policy.as_str() {
        "ordered" => format!("ordered by {}", v.order),
        other => other.to_owned(),
    }
}

fn points(v: &VolumeStatus) -> String {
    let at = match v.backing_point {
        0 => "the backing alone is at none".to_owned(),
        point => format!("the backing alone is at point {point}"),
    };
    format!("{} committed; {at}; group-ends is {}", v.points, v.group_ends)
}

fn common_points(v: &VolumeStatus) -> String {
    let at = match v.common_point {
        0 => "the backing alone is at none".to_owned(),
        point => format!("the backing alone is at point {point}"),
    };
    format!("of {}; {at}", v.consistency_group)
}

fn durability(v: &VolumeStatus) -> String {
    if v.cache.is_empty() {
        return format!("backing {}", v.backing_durability);
    }
    format!("cache {}; backing {}", v.cache_durability, v.backing_durability)
}

/// What a backing has cost since the start, and what it holds, where requests and bytes are paid for.
fn store_cost(
    requests: &BTreeMap<String, u64>,
    bytes: &BTreeMap<String, u64>,
    objects: u64,
    (stored, live): (u64, u64),
) -> Option<String> {
    if requests.is_empty() {
        return None;
    }
    let count = |request: &str| requests.get(request).copied().unwrap_or_default();
    let bytes = |what: &str| size::show(bytes.get(what).copied().unwrap_or_default());
    let amplification = match live {
        0 => String::new(),
        live => format!(", {:.2} times what can be read", stored as f64 / live as f64),
    };
    Some(format!(
        "{} creates, {} gets, {} lists, {} deletes, {} sent again; sent {}, received {}; {objects} objects of {}{amplification}",
        count("create"),
        count("get"),
        count("list"),
        count("delete"),
        count("retry"),
        bytes("sent"),
        bytes("received"),
        size::show(stored),
    ))
}

fn backing_lacks(v: &VolumeStatus) -> String {
    if v.dirty_bytes == 0 {
        return "nothing".into();
    }
    let age = format!("{}, oldest {:.1} s", size::show(v.staleness_bytes), v.staleness_seconds);
    match &v.recovery_point {
        Some(point) => format!("{age}; alone it is as of {point}"),
        None => format!("{age}; alone it is not consistent"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_is_paid_for_tells_what_it_costs() {
        let counts = |all: &[(&str, u64)]| all.iter().map(|(what, n)| ((*what).to_owned(), *n)).collect();
        let requests = counts(&[("create", 7), ("get", 5), ("list", 3), ("delete", 2), ("retry", 1)]);
        let bytes = counts(&[("sent", 4 << 20), ("received", 1 << 20), ("moved", 9), ("checkpoints", 9)]);
        assert_eq!(
            store_cost(&requests, &bytes, 6, (3 << 20, 2 << 20)).as_deref(),
            Some(
                "7 creates, 5 gets, 3 lists, 2 deletes, 1 sent again; sent 4 MiB, received 1 MiB; 6 objects of 3 MiB, \
                 1.50 times what can be read"
            )
        );
        let empty = store_cost(&requests, &bytes, 0, (0, 0)).unwrap();
        assert!(empty.ends_with("0 objects of 0 B"), "{empty}");
        assert_eq!(store_cost(&BTreeMap::new(), &BTreeMap::new(), 0, (0, 0)), None, "of other backings");
    }
}
