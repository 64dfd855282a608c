//! `forebay mark`: declare a consistency point.

use std::path::PathBuf;

use forebay_control::{Answer, FailureKind, Request};
use forebay_policy::time;

use super::{ask, not_an_answer};
use crate::failure::{Failure, Outcome};
use crate::output::print;
use crate::volume_name;

/// Arguments of `forebay mark`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    forebay mark db --label nightly\n  \
    fsfreeze -f /srv && forebay mark db; fsfreeze -u /srv\n\n\
For a volume with --write-policy journaled; refused (exit code 3) under any other. It waits while no point can \
be declared yet, as in a volume's first moments, and fails (exit code 1) when --wait is over.\n\n\
The point has everything that was acknowledged before, and nothing that was issued after the command ended. The \
command ends well when the group that ends there is committed on the backing's side. From then on until the next \
group `forebay recover` would make the backing exactly that. With --group-ends points the backing moves only \
from one point to the next.\n\n\
Prints the point's number. For several volumes (of one daemon) it prints a line for each, with its name before \
it: a point of each volume, declared at about the same time. Of a member of a consistency group it is a point of \
all members, and the number is that of the common point. `forebay recover BACKING --list` shows the points that \
a backing holds.")]
pub struct Args {
    /// The volumes, all of one daemon
    #[arg(required = true, value_name = "NAME", value_parser = volume_name::parse)]
    names: Vec<String>,

    /// A name for the point, at most 64 bytes
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    label: String,

    /// Longest wait for the backing to be consistent, or for room among the points that are to be committed [default:
    /// 1m]
    #[arg(long, value_name = "TIME", value_parser = time::parse_ms)]
    wait: Option<u64>,

    /// The daemon's control socket, if not the default one of the first volume
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
}

/// The points are committed when this has ended well.
pub fn run(args: Args) -> Outcome {
    let [first, ..] = args.names.as_slice() else {
        return Err(Failure::new(FailureKind::Usage, "name a volume"));
    };
    let volumes = args.names.clone();
    let request = Request::Mark { volumes, label: args.label, wait_ms: args.wait, progress: true };
    let Answer::Points(points) = ask(first, args.control, &request, |_| {})? else {
        return Err(not_an_answer());
    };
    print(&text(&args.names, &points))
}

fn text(names: &[String], points: &[u64]) -> String {
    match points {
        [point] => format!("{point}\n"),
        _ => names.iter().zip(points).map(|(name, point)| format!("{name} {point}\n")).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_number_stands_alone() {
        let names = |n: &[&str]| n.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(text(&names(&["db"]), &[7]), "7\n");
        assert_eq!(text(&names(&["db", "log"]), &[7, 3]), "db 7\nlog 3\n");
    }
}
