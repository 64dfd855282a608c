//! `forebay-stamp`: see the library's documentation.
#![forbid(unsafe_code)]

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Parser, Subcommand};
use forebay_stamp::{
    Allowed, Mix, Report, SECTOR_BYTES, State, TargetSpec, VerifyOptions, WriteOptions, verify, write,
};

/// Stamps the sectors of a volume, and finds whatever it should not hold.
///
/// Prints one JSON object. Exit codes: 0 all is right; 1 something is wrong; 2 wrong usage; 3 the volume went away and
/// all was right until then.
#[derive(Parser)]
#[command(name = "forebay-stamp", max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write, zero, flush and read at random
    Write(WriteArgs),
    /// Read the whole volume and compare it
    Verify(VerifyArgs),
}

#[derive(Args)]
struct Common {
    /// The volume: nbd:unix:PATH[:EXPORT] or file:PATH
    #[arg(long)]
    target: TargetSpec,
    /// What is known of the volume; a missing file means that it is blank
    #[arg(long)]
    state: PathBuf,
    /// An error that is expected, OPERATION:ERROR such as write:enospc or any:eio
    #[arg(long = "allow", value_name = "ERROR")]
    allowed: Vec<Allowed>,
    /// Seconds without an answer that are an error
    #[arg(long, default_value_t = 60.0)]
    patience: f64,
}

#[derive(Args)]
struct WriteArgs {
    #[command(flatten)]
    common: Common,
    /// Seconds until the end
    #[arg(long, default_value_t = 3600.0)]
    seconds: f64,
    /// Requests until the end
    #[arg(long, default_value_t = u64::MAX)]
    operations: u64,
    /// Requests at a time
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=60))]
    threads: u64,
    /// Longest request in KiB
    #[arg(long, default_value_t = 1024)]
    largest: u64,
    /// Shares of writes, reads, zeroes and flushes
    #[arg(long, default_value = "60,25,8,7")]
    mix: Mix,
    /// Start of the pseudo-random sequence [default: the time]
    #[arg(long)]
    seed: Option<u64>,
    /// End each worker's run at its first error
    #[arg(long)]
    stop_on_error: bool,
}

#[derive(Args)]
struct VerifyArgs {
    #[command(flatten)]
    common: Common,
    /// Nothing is under way, as after a restart: what is read now must stay
    #[arg(long)]
    quiet: bool,
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Write(args) => run_write(args),
        Command::Verify(args) => run_verify(args),
    };
    match outcome {
        Ok(report) => tell(&report),
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::from(if is_gone(&e) { 3 } else { 1 })
        }
    }
}

/// There was a volume a moment ago, or there will be one.
fn is_gone(e: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset, UnexpectedEof};
    matches!(e.kind(), BrokenPipe | ConnectionAborted | ConnectionRefused | ConnectionReset | UnexpectedEof)
}

fn tell(report: &Report) -> ExitCode {
    for line in &report.told {
        eprintln!("WRONG: {line}");
    }
    match serde_json::to_string(report) {
        Ok(json) => println!("{json}"),
        Err(e) => eprintln!("error: {e}"),
    }
    match (report.is_right(), report.lost) {
        (false, _) => ExitCode::from(1),
        (true, true) => ExitCode::from(3),
        (true, false) => ExitCode::SUCCESS,
    }
}

fn run_write(args: WriteArgs) -> io::Result<Report> {
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    let options = WriteOptions {
        target: args.common.target,
        time: Duration::from_secs_f64(args.seconds),
        operations: args.operations,
        threads: args.threads,
        largest_bytes: args.largest << 10,
        mix: args.mix,
        seed: args.seed.unwrap_or_else(clock),
        allowed: args.common.allowed,
        stop_on_error: args.stop_on_error,
        patience: Duration::from_secs_f64(args.common.patience),
    };
    let mut state = match State::load(&args.common.state)? {
        Some(state) => state,
        None => {
            let size_bytes = options.target.open(options.patience)?.size_bytes();
            State::blank(clock(), size_bytes / SECTOR_BYTES as u64)
        }
    };
    let report = write(&options, &mut state)?;
    state.save(&args.common.state)?;
    Ok(report)
}

fn run_verify(args: VerifyArgs) -> io::Result<Report> {
    let path = args.common.state;
    let options = VerifyOptions {
        target: args.common.target,
        allowed: args.common.allowed,
        quiet: args.quiet,
        patience: Duration::from_secs_f64(args.common.patience),
    };
    let Some(mut state) = State::load(&path)? else {
        return Err(io::Error::other(format!("there is no state {}", path.display())));
    };
    let report = verify(&options, &mut state)?;
    state.save(&path)?;
    Ok(report)
}
