//! `forebay status`: what volumes are doing.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use forebay_control::{
    Answer, Client, ClientError, ControlError, FailureKind, Request, VolumeStatus, prometheus,
};
use serde::Serialize;

use super::ask;
use crate::cli::{Failure, Outcome};
use crate::control_path::runtime_directory;
use crate::output::{print, print_json};
use crate::volume_name;
use forebay_policy::size;

/// Arguments of `forebay status`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  forebay status\n  forebay status db --json")]
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
}

/// Prints the figures in the form that was asked for.
pub fn run(args: Args) -> Outcome {
    let one = args.name.is_some();
    let volumes = collect(args.name, args.control)?;
    if args.prometheus {
        return print(&prometheus(&volumes));
    }
    match volumes.as_slice() {
        [volume] if one && args.json => print_json(volume),
        _ if args.json => print_json(&All { volumes: &volumes }),
        [] => print("no volume is being served\n"),
        all => print(&all.iter().map(text).collect::<Vec<_>>().join("\n")),
    }
}

/// The JSON of `forebay status --json`.
#[derive(Serialize)]
struct All<'a> {
    volumes: &'a [VolumeStatus],
}

fn collect(name: Option<String>, control: Option<PathBuf>) -> Result<Vec<VolumeStatus>, Failure> {
    let request = Request::Status { volume: name.clone() };
    match (name, control) {
        (Some(name), control) => volumes_of(ask(&name, control, &request, |_| {})?),
        (None, Some(path)) => {
            volumes_of(Client::connect(&path).map_err(ControlError::from)?.call(&request, |_| {})?)
        }
        (None, None) => everywhere(&runtime_directory()?),
    }
}

fn volumes_of(answer: Answer) -> Result<Vec<VolumeStatus>, Failure> {
    match answer {
        Answer::Volumes(volumes) => Ok(volumes),
        other => Err(Failure::new(
            FailureKind::Failed,
            format!("the daemon answered {other:?} to a question for its status"),
        )),
    }
}

/// The volumes of all daemons with a socket in `directory`; one that serves several volumes has several sockets.
fn everywhere(directory: &Path) -> Result<Vec<VolumeStatus>, Failure> {
    let mut found = BTreeMap::new();
    let Ok(entries) = std::fs::read_dir(directory) else {
        return Ok(Vec::new());
    };
    let mut sockets: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
    sockets.sort();
    for path in sockets.iter().filter(|p| p.extension().is_some_and(|e| e == "sock")) {
        match Client::connect(path) {
            Ok(mut client) => {
                for volume in volumes_of(client.call(&Request::Status { volume: None }, |_| {})?)? {
                    found.insert(volume.name.clone(), volume);
                }
            }
            // A socket that a killed daemon left behind.
            Err(ClientError::NotRunning(_)) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(found.into_values().collect())
}

fn text(v: &VolumeStatus) -> String {
    let mut t = String::new();
    let mut row = |label: &str, value: String| {
        let _ = writeln!(t, "  {label:<14} {value}");
    };
    row("cache", cache(v));
    row(
        "backing",
        format!("{}, {} in blocks of {}", v.backing, size::show(v.size_bytes), v.logical_block_bytes),
    );
    row("durability", durability(v));
    row(
        "policy",
        format!(
            "{}, admission {}, on-full {}, durability {}",
            policy(v),
            v.admission,
            v.on_full,
            v.durability
        ),
    );
    row("backing lacks", backing_lacks(v));
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
    if let Some(trouble) = &v.backing_trouble {
        row("backing fails", trouble.clone());
    }
    row(
        "memory",
        format!("{}; index {:.1} bytes/block", size::show(v.memory_bytes), v.index_bytes_per_block),
    );
    if !v.exports.is_empty() {
        row("offered at", v.exports.join(", "));
    }
    if let Some(device) = &v.device {
        row("attached as", device.clone());
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

fn durability(v: &VolumeStatus) -> String {
    if v.cache.is_empty() {
        return format!("backing {}", v.backing_durability);
    }
    format!("cache {}; backing {}", v.cache_durability, v.backing_durability)
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
