//! `forebay bench`: measure volumes side by side with what they stand on.

use std::path::PathBuf;
use std::sync::Arc;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args as _, ValueEnum};
use forebay_bench::{BenchError, Contest, Options};
use forebay_control::FailureKind;
use forebay_policy::Admission;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::commands::serve;
use crate::failure::{Failure, Outcome};
use crate::output::print;

/// The benchmarks.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum What {
    /// Durable writes to the raw cache device, the engine, NBD and an attached volume
    Volume,
    /// Processor time of the engine for each write, as the cache and the volume grow; without devices
    Engine,
    /// The write policies against each other, under the loads of FAST'13, in front of a store with an access time of 2 ms
    Policies,
    /// The admission policies under TPC-C on PostgreSQL, on a disk with NV-DRAM caches from scarce to sufficient, as in ATC'15; needs root
    AdmissionPostgresql,
    /// The admission policies under YCSB on Redis, on a disk with NV-DRAM and SSD caches, as in ATC'15; needs root
    AdmissionRedis,
    /// A cache that is full all the time against the store without it, at depths of 1 to 128; and the processor time of a write over NBD
    Cliffs,
    /// The schedulers of the backing under PostgreSQL, WiredTiger and Redis, on an SSD without a cache, as in FAST'17; needs root
    Priority,
    /// Volumes on Ceph's RBD and in an S3 store, with Forebay in front and without: durable writes and PostgreSQL; needs Ceph's programs
    Distributed,
}

/// Arguments of `forebay bench`.
#[derive(clap::Args)]
#[command(after_help = "Example: forebay bench volume --out /mnt/fast/bench\n\n\
Uses up to 3 GiB (`priority`: 6 GiB, in memory if there is room) in a directory of its own below DIR, which it removes; what `priority` \
installs in DIR/wiredtiger stays: DIR must lie on the device that is to be \
measured (`engine` needs none). Writes DIR/WHAT.json and DIR/WHAT.html. Ratios compare within one run; absolute figures are this \
machine's at this moment.\n\n\
`priority` and `distributed` go on where a load, a scheduler or a peer cannot be measured, say so in their report, and exit with 1.\n\n\
Told to stop (SIGINT, SIGTERM, SIGHUP) it takes down all that it has started and mounted, and exits with 1. The \
admission benchmarks, `priority` and `distributed` stop in the midst of what they measure, and report what they have. The others stop after \
what they measure, without a report. SIGQUIT ends it at once and leaves all that behind.")]
pub struct Args {
    /// What to measure
    what: What,

    /// A first impression, in under a minute
    #[arg(long)]
    quick: bool,

    /// How often to measure each contender [default: the benchmark's own number]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,

    /// Seconds for each measurement under a load [default: the benchmark's own number]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: Option<u64>,

    /// Loads to compare under: of `policies` as `fileserver`, of `admission-redis` as `ycsb_a_ssd`, of `priority` as `redis`, of `cliffs` as `remote` or `write_path`, of `distributed` as `rbd` or `s3_postgresql` [default: all of them]
    #[arg(long, value_name = "LOAD", value_delimiter = ',', value_parser = load)]
    loads: Vec<String>,

    /// Write policies to compare beside `write_through`, as `ordered_barrier`, `ordered_sync` or `journaled_nvram` [default: all of them]
    #[arg(long, value_name = "CONTENDER", value_delimiter = ',', value_parser = contender)]
    contenders: Vec<String>,

    /// Schedulers to compare in `priority`, `rcp+cache` for rcp with a cache [default: all of them]
    #[arg(long, value_name = "SCHEDULER", value_delimiter = ',', value_parser = scheduler)]
    schedulers: Vec<String>,

    /// Warehouses of TPC-C in `priority` [default: 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    warehouses: Option<u32>,

    /// Admission policies to compare in the admission benchmarks, `none` for no cache [default: all of them]
    #[arg(long, value_name = "POLICY", value_delimiter = ',', value_parser = policy)]
    policies: Vec<OrNone>,

    /// Sizes of the cache in the admission benchmarks, and in `priority` the first of them [default: the benchmark's own]
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = cache)]
    caches: Vec<u64>,

    /// The emulated cache of the admission benchmarks and of `priority`, as `ssd-sata` or `nvdram,latency=1us`
    #[arg(long, value_name = "KIND[,KEY=VALUE]", value_parser = model)]
    cache_model: Option<String>,

    /// The emulated backing of all but `volume`, as `hdd-7k2` or `remote,latency=1ms` [default: the benchmark's own]
    #[arg(long, value_name = "KIND[,KEY=VALUE]", value_parser = model)]
    backing_model: Option<String>,

    /// A further flag of `forebay serve` for all in the admission benchmarks who have a cache, as `on-full=bypass`, and for all in `priority`; may be given again
    #[arg(long, value_name = "FLAG=VALUE", value_parser = pair)]
    with: Vec<(String, String)>,

    /// A further setting of the database in the admission benchmarks, `priority` and `distributed`, as `wal_compression=lz4` or `maxmemory=1gb`; may be given again
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    setting: Vec<(String, String)>,

    /// Where to work and to leave the report
    #[arg(long, value_name = "DIR", default_value = "forebay-bench")]
    out: PathBuf,
}

/// An admission policy, or no cache.
type OrNone = Option<Admission>;

fn policy(text: &str) -> Result<OrNone, String> {
    match text {
        "none" => Ok(None),
        _ => text.parse().map(Some).map_err(|e: forebay_policy::UnknownSetting| e.to_string()),
    }
}

fn load(text: &str) -> Result<String, String> {
    let mut known: Vec<_> = forebay_bench::loads()
        .chain(forebay_bench::redis_loads())
        .chain(forebay_bench::priority_loads())
        .chain(forebay_bench::distributed_loads())
        .map(str::to_owned)
        .chain(forebay_bench::cliffs_loads())
        .collect();
    known.sort_unstable();
    known.dedup();
    one_of(text, "load", known)
}

fn contender(text: &str) -> Result<String, String> {
    one_of(text, "contender", forebay_bench::contenders().collect())
}

fn scheduler(text: &str) -> Result<String, String> {
    one_of(text, "scheduler", forebay_bench::schedulers().collect())
}

fn one_of(text: &str, what: &str, known: Vec<String>) -> Result<String, String> {
    match known.iter().any(|name| name == text) {
        true => Ok(text.to_owned()),
        false => Err(format!("no such {what}; there are {}", known.join(", "))),
    }
}

fn model(text: &str) -> Result<String, String> {
    forebay_bench::check_model(text).map(|()| text.to_owned()).map_err(|e| e.to_string())
}

fn cache(text: &str) -> Result<u64, String> {
    let bytes = forebay_policy::size::parse(text)?;
    forebay_bench::check_cache(bytes).map(|()| bytes).map_err(|e| e.to_string())
}

/// What the admission benchmarks give `forebay serve` for those who have a cache, before the further flags.
const SERVED: &[&str] = &[
    "--name=bench",
    "--cache=cache",
    "--backing=backing",
    "--control=control",
    "--nbd=unix:nbd",
    "--fuse=volume",
    "--write-policy=write-back",
    "--rules=redis",
    "--admission=all",
];

/// Refuses what `forebay serve` would, before anything is started.
fn check_with(flags: &[(String, String)]) -> Outcome {
    let command = serve::Args::augment_args(clap::Command::new("serve").no_binary_name(true));
    for (flag, value) in flags {
        let given = SERVED.iter().map(|flag| (*flag).to_owned()).chain([format!("--{flag}={value}")]);
        let Err(e) = command.clone().try_get_matches_from(given) else { continue };
        let why = match (e.kind(), e.get(ContextKind::SuggestedArg)) {
            (ErrorKind::UnknownArgument, Some(ContextValue::String(like))) => {
                format!("`forebay serve` has no flag --{flag}; did you mean {like}?")
            }
            (ErrorKind::UnknownArgument, _) => format!("`forebay serve` has no flag --{flag}"),
            (ErrorKind::ArgumentConflict, _) => format!("--{flag} is what the benchmark sets itself"),
            _ => {
                let said = e.render().to_string();
                let lines: Vec<&str> =
                    said.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
                lines.join(" ").trim_start_matches("error: ").to_owned()
            }
        };
        return Err(Failure::new(FailureKind::Usage, format!("--with {flag}={value}: {why}")));
    }
    Ok(())
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (flag, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((flag.to_owned(), value.to_owned()))
}

fn failed(e: &BenchError) -> Failure {
    Failure::new(FailureKind::Failed, e.to_string())
}

/// The signals that this process was started to ignore, as with `nohup`: bit n-1 for signal n.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Measures, writes the report and prints the figures.
pub fn run(args: Args) -> Outcome {
    let system = |doing: &str, e: std::io::Error| {
        Failure::new(FailureKind::Failed, format!("cannot {doing}: {}", forebay_block::words_of(&e)))
    };
    check_with(&args.with)?;
    let scratch = args.out.join("scratch");
    std::fs::create_dir_all(&scratch).map_err(|e| system(&format!("make {}", scratch.display()), e))?;
    let scratch = scratch.canonicalize().map_err(|e| system("find the scratch directory", e))?;
    let forebay = std::env::current_exe().map_err(|e| system("find this program", e))?;
    let options = Options {
        quick: args.quick,
        rounds: args.rounds,
        seconds: args.seconds,
        loads: args.loads,
        contenders: args.contenders,
        backing_model: args.backing_model,
        contest: Contest {
            policies: args.policies,
            caches: args.caches,
            cache_model: args.cache_model,
            with: args.with,
            settings: args.setting,
            schedulers: args.schedulers,
            warehouses: args.warehouses,
        },
        scratch: scratch.clone(),
        forebay,
        stopped: Arc::default(),
    };
    // Not a second one to end it at once: `timeout` and terminals send more than one.
    let ignored = ignored_signals();
    for signal in [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| ignored & (1 << (signal - 1)) == 0) {
        flag::register(signal, Arc::clone(&options.stopped)).map_err(|e| system("listen to signals", e))?;
    }
    let result = match args.what {
        What::Volume => forebay_bench::volume(&options),
        What::Engine => forebay_bench::engine(&options),
        What::Policies => forebay_bench::policies(&options),
        What::AdmissionPostgresql => forebay_bench::admission_postgresql(&options),
        What::AdmissionRedis => forebay_bench::admission_redis(&options),
        What::Cliffs => forebay_bench::cliffs(&options),
        What::Priority => forebay_bench::priority(&options),
        What::Distributed => forebay_bench::distributed(&options),
    };
    let written = result.and_then(|mut report| {
        if options.is_stopped() {
            report.title.push_str("; told to stop before it had measured all of it");
        }
        report.write(&args.out).map(|()| report)
    });
    // Files of a gibibyte are not left behind, whatever came out.
    std::fs::remove_dir_all(&scratch).map_err(|e| system(&format!("remove {}", scratch.display()), e))?;
    let report = written.map_err(|e| failed(&e))?;
    print(&report.text())?;
    let out = args.out.display();
    match (options.is_stopped(), report.not_measured()) {
        (true, _) => Err(Failure::new(
            FailureKind::Failed,
            format!("told to stop: the report in {out} is of what was measured until then"),
        )),
        (false, Some(missing)) => Err(Failure::new(
            FailureKind::Failed,
            format!("the report in {out} is of a part of what was asked for; {missing}"),
        )),
        (false, None) => Ok(()),
    }
}
