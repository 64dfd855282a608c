//! `forebay recover`: a backing without its cache.

use forebay_control::{FailureKind, rfc3339};
use forebay_device::DeviceSpec;
use forebay_host::{JournalChoice, Moment, RecoverOptions, Recovered, recover, recover_group};
use serde::Serialize;

use crate::failure::{Failure, Outcome, from_host};
use crate::output::{print, print_json};
use crate::plan;

/// Arguments of `forebay recover`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    forebay recover disk.img\n  \
    forebay recover disk.img --list\n  \
    forebay recover data.img log.img\n\n\
For a backing whose cache is lost, or not at hand, and whose last run had --write-policy journaled or ordered. \
Applies what the journal on the backing's side has committed, and says as of when the backing is.\n\n\
What was acknowledged later is in the cache alone: if the cache is still there, serve it again instead. `forebay \
serve --no-cache --accept-stale` continues from here.\n\n\
Several backings, of all members of one consistency group, are brought to the newest point that all of them \
have.\n\n\
Refused (exit code 3) while the volume's owner on another host may write, or if the backing is not known to be \
consistent.")]
pub struct Args {
    /// The backing, or those of all members of a consistency group
    #[arg(required = true, value_name = "BACKING")]
    backings: Vec<DeviceSpec>,

    /// Where its journal lies, if not where `forebay serve` puts it by itself; for several backings once for each, in their order
    #[arg(long, value_name = "LOCATION")]
    journal: Vec<String>,

    /// Bring a member of a consistency group to its last point without the others; it shares no point with them any more
    #[arg(long, conflicts_with = "list")]
    alone: bool,

    /// Change nothing; show the states that the journal holds
    #[arg(long)]
    list: bool,

    /// Recover although the host of the last run has not stopped the volume cleanly; make sure that it is dead. An image
    /// of a Ceph cluster is taken away from it
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
    /// Number of the point of its consistency group at which the backing is now, or 0.
    common_point: u64,
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
    let usage = |e: String| Failure::new(FailureKind::Usage, e);
    let mut journals = args
        .journal
        .iter()
        .map(|text| plan::journal(Some(text)))
        .collect::<std::result::Result<Vec<_>, _>>()
        .map_err(usage)?;
    if !journals.is_empty() && journals.len() != args.backings.len() {
        return Err(usage("give --journal once for each backing, in their order".to_owned()));
    }
    journals.resize(args.backings.len(), JournalChoice::Auto);
    let places: Vec<_> = args.backings.into_iter().zip(journals).collect();
    let options = RecoverOptions { takeover: args.takeover, look: args.list, alone: args.alone };
    let (common, done) = match places.as_slice() {
        [(backing, journal)] => (0, vec![recover(backing, journal, options).map_err(|e| from_host(&e))?]),
        _ if args.list || args.alone => {
            return Err(usage("--list and --alone are for one backing at a time".to_owned()));
        }
        _ => recover_group(&places, args.takeover).map_err(|e| from_host(&e))?,
    };
    match (done.as_slice(), args.json) {
        ([one], true) => print_json(&result(one)),
        (all, true) => print_json(&serde_json::json!({
            "common_point": common,
            "backings": all.iter().map(result).collect::<Vec<_>>(),
        })),
        (all, false) => {
            let mut said: String = all.iter().map(|done| text(done, args.list)).collect();
            if common > 0 {
                said += &format!("all are at common point {common} of the consistency group\n");
            }
            print(&said)
        }
    }
}

fn result(done: &Recovered) -> Result<'_> {
    Result {
        backing: &done.backing,
        size_bytes: done.volume_bytes,
        cache: &done.cache,
        common_point: done.common.decided,
        as_of: point(&done.moment),
        waiting: done.waiting.iter().map(point).collect(),
        blocks_applied: done.blocks_applied,
    }
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
    let common = &done.common;
    if !common.names.is_empty() {
        let members = common.members().collect::<Vec<_>>().join(", ");
        text += &format!("consistency group: {} of {members}\n", common.name());
        for (what, point) in
            [("is", common.decided), ("can be brought by recovering all members", common.prepared)]
        {
            if point > 0 {
                text += &format!("common point {point}: at it the backing {what}\n");
            }
        }
    }
    text
}
