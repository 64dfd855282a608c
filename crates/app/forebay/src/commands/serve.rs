//! `forebay serve`: the daemon.

use crate::daemon;
use crate::failure::Outcome;
use crate::plan::Plan;

pub use crate::serve_args::Args;

/// Serves until it is told to stop.
pub fn run(args: Args) -> Outcome {
    daemon::run(Plan::make(args)?)
}
