//! `forebay`: a durable write cache that knows which writes a request is waiting for.
#![forbid(unsafe_code)]

mod background_dirty;
mod changes;
mod checkpoints;
mod cli;
mod commands;
mod config;
mod consistency_group;
mod control_path;
mod daemon;
mod device_decoration;
mod diagnosis;
mod ending;
mod failure;
mod figures;
mod group_plan;
mod health;
mod image;
mod logging;
mod meter;
mod nbd_limits;
mod nearest;
mod output;
mod patience;
mod plan;
mod reclaim;
mod request_recorder;
mod resident;
mod serve_args;
mod served;
mod service_manager;
mod staleness_histogram;
mod stop;
mod tracking;
mod trouble;
mod volume_name;

#[cfg(test)]
mod documents;
#[cfg(test)]
mod fuzzing;
#[cfg(test)]
mod reference;

use std::process::ExitCode;

use clap::FromArgMatches;
use mimalloc::MiMalloc;

/// Large buffers come and go with every large request; the C library's allocator gives each back to the kernel and pays
/// for it with page faults.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let cli = cli::command()
        .try_get_matches()
        .and_then(|matches| cli::Cli::from_arg_matches(&matches))
        .unwrap_or_else(|e| cli::usage(e).exit());
    logging::start(&cli.log);
    if let Err(e) = stop::outlive_file_limits() {
        tracing::debug!(
            "a file that reaches the limit of its size ends the process: {}",
            forebay_block::words_of(&e)
        );
    }
    let outcome = cli.command.run();
    logging::end();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::from(failure.kind.exit_code())
        }
    }
}
