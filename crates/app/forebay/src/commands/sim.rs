//! `forebay sim`: run the engine in a simulated world, where it is killed, cut from power and given sick devices.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use forebay_control::FailureKind;
use forebay_sim::campaign::{Campaign, Counted, Finding, figure};
use forebay_sim::generate::{Options, Theme};
use forebay_sim::in_order::{THREADS_MAX, in_order};
use forebay_sim::plan::Plan;

use crate::failure::{Failure, Outcome};
use crate::meter::Ticker;
use crate::output::print;

/// What devices may do to the engine.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Faults {
    /// Nothing; the process dies and power fails all the same
    None,
    /// Errors, slowness
    Reported,
    /// Rot, lost and misdirected writes, too
    All,
    /// Those of a store behind a network in every plan, and another host that takes it over
    Remote,
}

/// Arguments of `forebay sim`.
#[derive(clap::Args)]
#[command(after_help = "Example: forebay sim --seed 1 --minutes 10\n\n\
Each seed decides a workload, a schedule, latencies, faults and crashes. Equal seeds of equal builds give equal \
histories, byte for byte. With --seed alone that one seed is run.\n\n\
Seeds count in their order, and what was run behind the last one that counts is left out. So standard output is \
the same whatever --jobs is, but for --minutes. The time that it took goes to standard error.\n\n\
When a promise is broken, the plan is shortened as far as it still breaks it, and written to a file that --plan \
replays. The exit code is 4.")]
pub struct Args {
    /// First seed
    #[arg(long, value_name = "N", required_unless_present = "plan", conflicts_with = "plan")]
    seed: Option<u64>,

    /// Continue with the next seeds, until they have had so many events together
    #[arg(long, value_name = "N", conflicts_with = "plan", value_parser = some)]
    events: Option<u64>,

    /// Continue with the next seeds, for so long
    #[arg(long, value_name = "M", conflicts_with = "plan", value_parser = minutes)]
    minutes: Option<f64>,

    /// Continue with the next seeds, until so many have been run
    #[arg(long, value_name = "N", conflicts_with = "plan", value_parser = some)]
    seeds: Option<u64>,

    /// Replay this plan in place of one made from a seed
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,

    /// What devices may do to the engine
    #[arg(long, value_enum, default_value = "all")]
    faults: Faults,

    /// Do not stop at the first broken promise
    #[arg(long)]
    keep_going: bool,

    /// Threads, at most 256; all processors if it is not given
    #[arg(long, value_name = "N", value_parser = jobs)]
    jobs: Option<usize>,

    /// Where files of broken promises are left
    #[arg(long, value_name = "DIR", default_value = ".")]
    out: PathBuf,
}

/// Runs what is asked for, and prints what was counted.
pub fn run(args: Args) -> Outcome {
    match &args.plan {
        Some(file) => replay(file),
        None => campaign(&args),
    }
}

fn failed(doing: &str, path: &Path, e: &std::io::Error) -> Failure {
    Failure::new(
        FailureKind::Failed,
        format!("cannot {doing} {}: {}", path.display(), forebay_block::words_of(e)),
    )
}

fn replay(file: &Path) -> Outcome {
    let file = &std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let text = std::fs::read_to_string(file).map_err(|e| failed("read", file, &e))?;
    let plan: Plan = text.parse().map_err(|e| {
        Failure::new(FailureKind::Usage, format!("{} cannot be replayed: {e}", file.display()))
    })?;
    let mut campaign = Campaign::default();
    let finding = campaign.differs(&plan, false);
    let Some(finding) = finding else {
        return print(&format!("{}no promise is broken\n", campaign.counted.summary()));
    };
    print(&finding.timeline)?;
    Err(Failure::new(FailureKind::Corrupt, format!("{}: {}", file.display(), finding.violation)))
}

fn minutes(text: &str) -> Result<f64, String> {
    let minutes = forebay_bench::number(text).filter(|minutes| *minutes > 0.0 && *minutes <= 1e6);
    minutes.ok_or_else(|| format!("'{text}' is not a number of minutes, more than 0 and at most 1000000"))
}

fn some(text: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("'{text}' is not a number from 1 on"))
}

fn jobs(text: &str) -> Result<usize, String> {
    let jobs = text.parse().ok().filter(|jobs| (1..=THREADS_MAX).contains(jobs));
    jobs.ok_or_else(|| format!("'{text}' is not a number of threads from 1 to {THREADS_MAX}"))
}

fn campaign(args: &Args) -> Outcome {
    let first = args.seed.unwrap_or_default();
    let only_one = args.events.is_none() && args.minutes.is_none() && args.seeds.is_none();
    let seeds = args.seeds.or(only_one.then_some(1)).unwrap_or(u64::MAX - first);
    let began = Instant::now();
    let deadline = args.minutes.map(|m| began + Duration::from_secs_f64(m * 60.0));
    let jobs = args.jobs.or_else(|| std::thread::available_parallelism().map(usize::from).ok()).unwrap_or(1);
    let jobs = jobs.min(THREADS_MAX);
    let options = Options {
        faults: !matches!(args.faults, Faults::None),
        decay: matches!(args.faults, Faults::All),
        themes: if matches!(args.faults, Faults::Remote) { &[Theme::Remote] } else { &[] },
        ..Options::default()
    };
    let worker = || {
        let mut campaign = Campaign::new(options);
        move |seed| {
            let _told = ToldInPanic(seed);
            let finding = campaign.seed(seed);
            (campaign.take_counted(), finding)
        }
    };
    let (mut total, mut findings, mut ticker) = (Counted::default(), Vec::new(), Ticker::new());
    in_order(jobs, first..first.saturating_add(seeds), worker, |outcome| {
        if let Some((seed, (counted, finding))) = outcome {
            total.add(&counted);
            findings.extend(finding.map(|finding| (seed, finding)));
        }
        ticker.show(|| total.progress());
        let enough = args.events.is_some_and(|n| total.stats.events >= n)
            || deadline.is_some_and(|at| Instant::now() >= at)
            || (!args.keep_going && !findings.is_empty());
        if enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .map_err(|e| Failure::new(FailureKind::Failed, format!("cannot start a thread: {e}")))?;
    ticker.end();
    print(&total.summary())?;
    print(&figure("broken promises", findings.len() as u64))?;
    let s = began.elapsed().as_secs_f64();
    // It differs from run to run: standard output does not.
    eprintln!("{s:.1} s on {jobs} threads");
    report(&findings, &args.out)
}

/// A seed at which the simulator itself may fail.
struct ToldInPanic(u64);

impl Drop for ToldInPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the simulator failed at seed {}", self.0);
        }
    }
}

/// Writes a file for each finding; fails if there is one.
fn report(findings: &[(u64, Finding)], out: &Path) -> Outcome {
    for (seed, finding) in findings {
        let file = out.join(format!("forebay-sim-{seed}.plan"));
        std::fs::create_dir_all(out)
            .and_then(|()| std::fs::write(&file, finding.to_file()))
            .map_err(|e| failed("write", &file, &e))?;
        print(&format!(
            "seed {seed}: {}\n  replay: forebay sim --plan {}\n",
            finding.violation,
            file.display()
        ))?;
    }
    match findings {
        [] => print("no promise is broken\n"),
        [(seed, first), ..] => Err(Failure::new(
            FailureKind::Corrupt,
            format!("{} seeds break a promise, seed {seed} this one: {}", findings.len(), first.violation),
        )),
    }
}
