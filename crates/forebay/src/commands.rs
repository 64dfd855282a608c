//! The commands, one file each.

pub mod attach;
pub mod bench;
pub mod check;
pub mod completions;
pub mod detach;
pub mod explain;
pub mod flush;
pub mod format;
pub mod grow;
pub mod inspect;
pub mod man;
pub mod mark;
pub mod pair;
pub mod recover;
pub mod run;
pub mod serve;
pub mod set;
pub mod shrink;
pub mod sim;
pub mod status;
pub mod tune;
pub mod waits;

use std::path::PathBuf;

use forebay_control::{Answer, Client, FailureKind, Progress, Request};

use crate::cli::Failure;
use crate::control_path::control_path;

/// The daemon has answered, and not what it was asked.
pub fn not_an_answer() -> Failure {
    let message = "the daemon answers something else than it was asked: it is of another version; use its `forebay`, or start it anew";
    Failure::new(FailureKind::Failed, message)
}

/// Sends one request to the daemon that serves `volume`, whose socket is `control` or the default one.
pub fn ask(
    volume: &str,
    control: Option<PathBuf>,
    request: &Request,
    progress: impl FnMut(Progress),
) -> Result<Answer, Failure> {
    let path = match control {
        Some(path) => path,
        None => control_path(volume)?,
    };
    Ok(Client::connect(&path)?.call(request, progress)?)
}
