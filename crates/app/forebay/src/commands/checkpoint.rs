//! `forebay checkpoint`: states of a volume in an object store that are kept under a name.

use std::path::PathBuf;

use clap::ValueEnum;
use forebay_control::{Answer, CheckpointAction, CheckpointRow, FailureKind, Request};
use forebay_device::DeviceSpec;
use serde::Serialize;

use super::{ask, not_an_answer};
use crate::checkpoints::list;
use crate::failure::{Failure, Outcome};
use crate::output::{print, print_json};
use crate::volume_name;

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum What {
    /// Make one
    Create,
    /// Show those that there are
    List,
    /// Give one up
    Delete,
}

/// Arguments of `forebay checkpoint`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    forebay flush db && forebay checkpoint create db monday\n  \
    forebay checkpoint list db\n  \
    forebay checkpoint list s3://volumes/db --json\n  \
    forebay checkpoint delete db monday\n\n\
For a volume whose backing lies in an object store (s3://); refused (exit code 3) with any other, with \
--read-only, and where another host has taken the volume over. Other hosts open a checkpoint with --backing \
s3://...,checkpoint=NAME --no-cache --read-only.\n\n\
A checkpoint is what the backing has acknowledged when it is made, and not what only the cache has: `forebay flush` \
first makes it include everything that was acknowledged. Under --write-policy journaled it is the end of a group in \
any case.\n\n\
`create` ends well when the checkpoint is durable, `delete` when nobody can open it any more. A store that does not \
carry that out in time is told (exit code 1); it may still be done later. A volume has at most 64.")]
pub struct Args {
    /// What to do
    what: What,

    /// The volume; for `list` also the address of a backing, which needs no daemon
    #[arg(value_name = "VOLUME")]
    volume: String,

    /// The checkpoint, of `create` and `delete`: 1 to 64 letters, digits, `.`, `_`, `-`
    #[arg(value_name = "NAME", required_if_eq_any([("what", "create"), ("what", "delete")]))]
    name: Option<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// The daemon's control socket, if not the default one
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
}

/// The JSON of `create` and `delete`.
#[derive(Serialize)]
struct Changed<'a> {
    volume: &'a str,
    checkpoint: &'a str,
}

/// The JSON of `list`.
#[derive(Serialize)]
struct Listed<'a> {
    checkpoints: &'a [CheckpointRow],
}

/// The checkpoint is durable, or gone for readers, when this has ended well.
pub fn run(args: Args) -> Outcome {
    let Args { what, volume, name, json, control } = args;
    let usage = |why: String| Failure::new(FailureKind::Usage, why);
    let is_address = volume.contains([':', '/']);
    let (action, name) = match (what, name) {
        (What::List, None) if is_address => {
            let backing: DeviceSpec =
                volume.parse().map_err(|e: forebay_device::UnknownDevice| usage(e.to_string()))?;
            return show(&list(&backing)?, json);
        }
        (What::List, None) => (CheckpointAction::List, String::new()),
        (What::Create, Some(name)) => (CheckpointAction::Create(name.clone()), name),
        (What::Delete, Some(name)) => (CheckpointAction::Delete(name.clone()), name),
        (What::List, Some(_)) => return Err(usage("`list` shows all checkpoints, and takes no NAME".into())),
        (What::Create | What::Delete, None) => return Err(usage("name the checkpoint".into())),
    };
    let volume = volume_name::parse(&volume).map_err(usage)?;
    let answer = ask(&volume, control, &Request::Checkpoint { volume: volume.clone(), action }, |_| {})?;
    match (what, answer) {
        (What::List, Answer::Checkpoints(rows)) => show(&rows, json),
        (What::Create | What::Delete, Answer::Done) if json => {
            print_json(&Changed { volume: &volume, checkpoint: &name })
        }
        (What::Create, Answer::Done) => print(&format!("{volume}: the checkpoint '{name}' is kept\n")),
        (What::Delete, Answer::Done) => print(&format!("{volume}: the checkpoint '{name}' is given up\n")),
        _ => Err(not_an_answer()),
    }
}

fn show(rows: &[CheckpointRow], json: bool) -> Outcome {
    if json {
        return print_json(&Listed { checkpoints: rows });
    }
    print(&text(rows))
}

fn text(rows: &[CheckpointRow]) -> String {
    if rows.is_empty() {
        return "no checkpoint has a name\n".to_owned();
    }
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or_default();
    rows.iter().map(|row| format!("{:width$}  {}\n", row.name, row.named_at)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_in_a_column() {
        let row = |name: &str| CheckpointRow { name: name.into(), named_at: "2026-11-28T00:00:00Z".into() };
        let told = text(&[row("a"), row("monday")]);
        assert_eq!(told, "a       2026-11-28T00:00:00Z\nmonday  2026-11-28T00:00:00Z\n");
        assert_eq!(text(&[]), "no checkpoint has a name\n");
    }
}
