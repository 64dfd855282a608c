//! `forebay-stamp`: see the library's documentation.
#![forbid(unsafe_code)]

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Parser, Subcommand};
use forebay_record::{Cause, Fate, Replay, Role, VolumeCrash};
use forebay_stamp::{
    Allowed, CrashOptions, Dependence, Mix, OrderOptions, Promise, Report, SECTOR_BYTES, State, TargetSpec,
    VerifyOptions, WriteOptions, bases, crashes, order, rebuild, verify, write,
};
use serde::Serialize;

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
    /// Crash a recorded run at random instants, start forebay on what is left, and compare the whole volume
    Crashes(CrashArgs),
    /// Judge whether the backing of a recorded run was consistent at every instant of it
    Order(OrderArgs),
    /// Make the images that one crash of a recorded run leaves
    Rebuild(RebuildArgs),
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
    /// Note all acknowledgements with their times in this file
    #[arg(long)]
    acks: Option<PathBuf>,
}

#[derive(Args)]
struct VerifyArgs {
    #[command(flatten)]
    common: Common,
    /// Nothing is under way, as after a restart: what is read now must stay
    #[arg(long)]
    quiet: bool,
}

#[derive(Args)]
struct Recorded {
    /// The record of the run (forebay serve --decorate cache:record:file=RECORD --decorate backing:record:file=RECORD)
    #[arg(long)]
    record: PathBuf,
    /// A copy of the cache from before the run
    #[arg(long)]
    cache: PathBuf,
    /// The same of the backing, with its label beside it
    #[arg(long)]
    backing: PathBuf,
}

#[derive(Args)]
struct CrashArgs {
    #[command(flatten)]
    recorded: Recorded,
    /// The forebay binary
    #[arg(long)]
    forebay: PathBuf,
    /// A copy of the state from before the run [default: the volume was blank]
    #[arg(long)]
    before: Option<PathBuf>,
    /// The run before, which this one went on from: a directory with record, cache, backing, backing.forebay, acks, and
    /// state unless the volume was blank
    #[arg(long)]
    after: Option<PathBuf>,
    /// Acknowledgements of the run
    #[arg(long, required = true)]
    acks: Vec<PathBuf>,
    /// The volume's durability: write, or flush
    #[arg(long, default_value = "write")]
    durability: Promise,
    /// How many crashes
    #[arg(long, default_value_t = 100)]
    crashes: u64,
    /// Crash one recovery in so many again; 0 for none
    #[arg(long, default_value_t = 4)]
    again_one_in: u64,
    /// Start of the pseudo-random sequence
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A directory for images
    #[arg(long)]
    scratch: PathBuf,
    /// Break the promises of this device (cache or backing): what was durable is lost now and then, which must be found
    #[arg(long)]
    liar: Option<Role>,
    /// Seconds without an answer that are an error
    #[arg(long, default_value_t = 60.0)]
    patience: f64,
    /// More flags for forebay serve
    #[arg(last = true)]
    flags: Vec<String>,
}

#[derive(Args)]
struct OrderArgs {
    /// The record of the run, of its backing at least
    #[arg(long)]
    record: PathBuf,
    /// Acknowledgements of the run, on a blank volume, with no zeroes in its mix
    #[arg(long)]
    acks: PathBuf,
    /// completion or barrier
    #[arg(long, default_value = "completion")]
    order: Dependence,
    /// Judge what a replay of the journal would make of the backing (`journaled`)
    #[arg(long)]
    journal: bool,
    /// Exchange the data of so many pairs of neighbouring writes to the backing, which must be found
    #[arg(long, default_value_t = 0)]
    swaps: u64,
}

#[derive(Args)]
struct RebuildArgs {
    #[command(flatten)]
    recorded: Recorded,
    /// Number of the last entry before the crash
    #[arg(long)]
    instant: u64,
    /// kill or power-cut
    #[arg(long, default_value = "power-cut")]
    cause: Cause,
    /// What becomes of what was not durable on the cache: kept, dropped, halved or torn
    #[arg(long, default_value = "torn")]
    cache_fate: Fate,
    /// The same of the backing
    #[arg(long, default_value = "torn")]
    backing_fate: Fate,
    /// Chance, for halved and torn
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A directory for the images
    #[arg(long)]
    into: PathBuf,
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Write(args) => run_write(args).map(|report| tell(&report)),
        Command::Verify(args) => run_verify(args).map(|report| tell(&report)),
        Command::Crashes(args) => run_crashes(args),
        Command::Order(args) => run_order(args),
        Command::Rebuild(args) => run_rebuild(args),
    };
    match outcome {
        Ok(code) => code,
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

fn print(report: &impl Serialize, told: &[String]) {
    for line in told {
        eprintln!("WRONG: {line}");
    }
    match serde_json::to_string(report) {
        Ok(json) => println!("{json}"),
        Err(e) => eprintln!("error: {e}"),
    }
}

fn tell(report: &Report) -> ExitCode {
    print(report, &report.told);
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
        acks: args.acks,
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

fn run_crashes(args: CrashArgs) -> io::Result<ExitCode> {
    let report = crashes(&CrashOptions {
        forebay: args.forebay,
        flags: args.flags,
        record: args.recorded.record,
        cache: args.recorded.cache,
        backing: args.recorded.backing,
        before: args.before,
        after: args.after,
        acks: args.acks,
        promise: args.durability,
        crashes: args.crashes,
        again_one_in: args.again_one_in,
        seed: args.seed,
        scratch: args.scratch,
        liar: args.liar,
        patience: Duration::from_secs_f64(args.patience),
    })?;
    print(&report, &report.told);
    Ok(if report.violations == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn run_order(args: OrderArgs) -> io::Result<ExitCode> {
    let OrderArgs { record, acks, order: dependence, journal, swaps } = args;
    let report = order(&OrderOptions { record, acks, order: dependence, journal, swaps })?;
    print(&report, &report.told);
    Ok(if report.violations == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn run_rebuild(args: RebuildArgs) -> io::Result<ExitCode> {
    let Recorded { record, cache, backing } = args.recorded;
    let mut replay = Replay::open(&record, &bases(&cache, &backing))?;
    replay.go_to(args.instant)?;
    if replay.instant() < args.instant {
        let what = format!("the record ends with entry {}", replay.instant());
        return Err(io::Error::other(what));
    }
    std::fs::create_dir_all(&args.into)?;
    let crash = VolumeCrash {
        cause: args.cause,
        cache: args.cache_fate,
        backing: args.backing_fate,
        seed: args.seed,
    };
    rebuild(&replay, crash, &args.into)?;
    Ok(ExitCode::SUCCESS)
}
