//! `forebay bench`: measure volumes side by side with what they stand on.

use std::path::PathBuf;

use clap::ValueEnum;
use forebay_bench::{BenchError, Options};
use forebay_control::FailureKind;

use crate::cli::{Failure, Outcome};
use crate::output::print;

/// The benchmarks.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum What {
    /// Durable writes to the raw cache device, the engine, NBD and an attached volume
    Volume,
    /// The write policies against each other, under the loads of FAST'13, in front of a store with an access time of 2 ms
    Policies,
    /// The admission policies under TPC-C on PostgreSQL, on a disk with NV-DRAM caches from scarce to sufficient, as in ATC'15; needs root
    AdmissionPostgresql,
    /// The admission policies under YCSB on Redis, on a disk with NV-DRAM and SSD caches, as in ATC'15; needs root
    AdmissionRedis,
}

/// Arguments of `forebay bench`.
#[derive(clap::Args)]
#[command(after_help = "Example: forebay bench volume --out /mnt/fast/bench\n\n\
Uses up to 3 GiB in a directory of its own below DIR, which it removes: DIR must lie on the device that is to be measured. Writes \
DIR/WHAT.json and DIR/WHAT.html. Ratios compare within one run; absolute figures are this machine's at this moment.")]
pub struct Args {
    /// What to measure
    what: What,

    /// A first impression, in under a minute
    #[arg(long)]
    quick: bool,

    /// How often to measure each contender [default: the benchmark's own number]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,

    /// Seconds for each measurement of a real application [default: the benchmark's own number]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: Option<u64>,

    /// Where to work and to leave the report
    #[arg(long, value_name = "DIR", default_value = "forebay-bench")]
    out: PathBuf,
}

fn failed(e: &BenchError) -> Failure {
    Failure::new(FailureKind::Failed, e.to_string())
}

/// Measures, writes the report and prints the figures.
pub fn run(args: Args) -> Outcome {
    let system =
        |doing: &str, e: std::io::Error| Failure::new(FailureKind::Failed, format!("cannot {doing}: {e}"));
    let scratch = args.out.join("scratch");
    std::fs::create_dir_all(&scratch).map_err(|e| system(&format!("make {}", scratch.display()), e))?;
    let scratch = scratch.canonicalize().map_err(|e| system("find the scratch directory", e))?;
    let forebay = std::env::current_exe().map_err(|e| system("find this program", e))?;
    let options = Options {
        quick: args.quick,
        rounds: args.rounds,
        seconds: args.seconds,
        scratch: scratch.clone(),
        forebay,
    };
    let result = match args.what {
        What::Volume => forebay_bench::volume(&options),
        What::Policies => forebay_bench::policies(&options),
        What::AdmissionPostgresql => forebay_bench::admission_postgresql(&options),
        What::AdmissionRedis => forebay_bench::admission_redis(&options),
    };
    // Files of a gibibyte are not left behind, whatever came out.
    std::fs::remove_dir_all(&scratch).map_err(|e| system(&format!("remove {}", scratch.display()), e))?;
    let report = result.map_err(|e| failed(&e))?;
    report.write(&args.out).map_err(|e| failed(&e))?;
    print(&report.text())
}
