//! `forebay recover`: a backing without its cache.

use forebay_control::{FailureKind, rfc3339};
use forebay_device::DeviceSpec;
use forebay_host::{Moment, Recovered, recover};
use serde::Serialize;

use crate::cli::{Failure, Outcome};
use crate::failure::from_host;
use crate::output::{print, print_json};
use crate::plan;

/// Arguments of `forebay recover`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    forebay recover disk.img\n  \
    forebay recover disk.img --list\n\n\
For a backing whose cache is lost, or not at hand, and whose last run had --write-policy journaled or ordered. Applies what \
the journal on the backing's side has committed, and says as of when the backing is. What was acknowledged later is in the \
cache alone: a cache that is still there is better served again. `forebay serve --no-cache --accept-stale` goes on from here. \
Refused (exit code 3) while the volume's owner on another host may write, or if the backing is not known to be consistent.")]
pub struct Args {
    /// The backing
    backing: DeviceSpec,

    /// Where its journal lies, if not where `forebay serve` puts it by itself
    #[arg(long, value_name = "LOCATION")]
    journal: Option<String>,

    /// Change nothing; show the states that the journal holds
    #[arg(long)]
    list: bool,

    /// Recover although the host of the last run has not stopped the volume cleanly; make sure that it is dead
    #[arg(long)]
    takeover: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// What a backing is as of, for scripts.
#[derive(Serialize)]
struct Point {
    /// Number of the group, counted since the cache was made.
    group: u64,
    /// Everything acknowledged before this is there; RFC 3339.
    time: String,
    /// Number of the consistency point, or 0.
    point: u64,
    /// Its name.
    label: String,
}

/// The result, for scripts.
#[derive(Serialize)]
struct Result<'a> {
    backing: &'a str,
    size_bytes: u64,
    cache: &'a str,
    /// What the backing is as of now.
    as_of: Point,
    /// What it would be as of with each group that waits in the journal.
    waiting: Vec<Point>,
    blocks_applied: u64,
}

fn point(moment: &Moment) -> Point {
    let Moment { group, time_ns, point, label, .. } = moment;
    Point { group: *group, time: rfc3339(*time_ns), point: *point, label: label.clone() }
}

/// Recovers, and says as of when the backing is.
pub fn run(args: Args) -> Outcome {
    let journal = plan::journal(args.journal.as_deref()).map_err(|e| Failure::new(FailureKind::Usage, e))?;
    let done = recover(&args.backing, &journal, args.takeover, args.list).map_err(|e| from_host(&e))?;
    if args.json {
        return print_json(&Result {
            backing: &done.backing,
            size_bytes: done.volume_bytes,
            cache: &done.cache,
            as_of: point(&done.moment),
            waiting: done.waiting.iter().map(point).collect(),
            blocks_applied: done.blocks_applied,
        });
    }
    print(&text(&done, args.list))
}

fn text(done: &Recovered, list: bool) -> String {
    let show = |moment: &Moment| {
        let at = match (moment.point, moment.label.is_empty()) {
            (0, _) => String::new(),
            (n, true) => format!(", consistency point {n}"),
            (n, false) => format!(", consistency point {n} '{}'", moment.label),
        };
        format!("group {}, everything acknowledged before {}{at}", moment.group, rfc3339(moment.time_ns))
    };
    if !list {
        return format!(
            "{} is consistent: {}; {} blocks were written; later writes are in the cache {} alone\n",
            done.backing,
            show(&done.moment),
            done.blocks_applied,
            done.cache
        );
    }
    let mut text = format!("applied: {}\n", show(&done.moment));
    for moment in &done.waiting {
        text += &format!("waiting: {}\n", show(moment));
    }
    text
}
