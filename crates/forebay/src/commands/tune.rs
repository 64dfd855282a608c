//! `forebay tune`: find the setting that is worth most.

use std::path::PathBuf;

use clap::ValueEnum;
use forebay_bench::tune::{Knob, Point, StaleBy, Worth, load_names, measure_load, report};
use forebay_bench::{BenchError, Function, number};
use forebay_control::FailureKind;

use crate::cli::{Failure, Outcome};
use crate::output::print;

/// What can be tuned.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum What {
    /// How far the backing may be behind
    Journal,
}

/// What is turned to find out.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Turned {
    /// The cache of an `ordered` volume, which bounds its staleness
    CacheSize,
}

impl From<Turned> for Knob {
    fn from(turned: Turned) -> Self {
        match turned {
            Turned::CacheSize => Self::CacheSize,
        }
    }
}

/// What the penalty is a function of.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum PenaltyOf {
    /// The knob, as in the paper
    Knob,
    /// The most that the backing was behind, in seconds
    Seconds,
    /// The most that the backing was behind, in bytes
    Bytes,
}

impl From<PenaltyOf> for StaleBy {
    fn from(of: PenaltyOf) -> Self {
        match of {
            PenaltyOf::Knob => Self::Knob,
            PenaltyOf::Seconds => Self::Seconds,
            PenaltyOf::Bytes => Self::Bytes,
        }
    }
}

/// Arguments of `forebay tune`.
#[derive(clap::Args)]
#[command(
    after_help = "Example: forebay tune journal --load postmark --revenue linear:0.02 --penalty exponential:1:8M\n\n\
Measures speed and staleness at some positions w of the knob, and says where most is left of revenue, a function of operations a \
second, after the penalty, a function of staleness: w* = argmax(Revenue(w) - Penalty(w)). Nothing is fitted: w* is one of the \
positions that were measured. Functions are linear:RATE, step:AT:AMOUNT, exponential:AMOUNT:SCALE, that is AMOUNT times (e^(x/SCALE) - \
1), and points:X=Y,X=Y,... with straight lines between; numbers take K, M, G and T. Prints a table; writes \
DIR/tune-journal.json, .html, and the plots as .1.svg (speed), .2.svg (staleness) and .3.svg (revenue, penalty, profit)."
)]
pub struct Args {
    /// What to tune
    what: What,

    /// What so many operations a second are worth
    #[arg(long, value_name = "FUNCTION")]
    revenue: Function,

    /// What so much staleness costs
    #[arg(long, value_name = "FUNCTION")]
    penalty: Function,

    /// What the penalty is a function of
    #[arg(long, value_enum, default_value = "knob")]
    penalty_of: PenaltyOf,

    /// The built-in load (docs/reference/benchmarks.md, policies)
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(load_names()), default_value = "postmark")]
    load: String,

    /// What is turned
    #[arg(long, value_enum, default_value = "cache-size")]
    knob: Turned,

    /// Positions of the knob; by default some between a twentieth and one and a half of the load's working set
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = position)]
    values: Vec<f64>,

    /// A first impression, in a few seconds
    #[arg(long)]
    quick: bool,

    /// Where to work and to leave the report
    #[arg(long, value_name = "DIR", default_value = "forebay-tune")]
    out: PathBuf,
}

fn position(text: &str) -> Result<f64, String> {
    number(text).filter(|n| *n > 0.0).ok_or_else(|| format!("'{text}' is not a size above 0"))
}

fn failed(e: &BenchError) -> Failure {
    Failure::new(FailureKind::Failed, e.to_string())
}

/// Measures, writes the report and prints it.
pub fn run(args: Args) -> Outcome {
    let What::Journal = args.what;
    let system =
        |doing: &str, e: std::io::Error| Failure::new(FailureKind::Failed, format!("cannot {doing}: {e}"));
    let scratch = args.out.join("scratch");
    std::fs::create_dir_all(&scratch).map_err(|e| system(&format!("make {}", scratch.display()), e))?;
    let knob = Knob::from(args.knob);
    let tell = |p: &Point| {
        tracing::info!(w = p.w, per_second = p.per_second, stale_seconds = p.stale_seconds, "measured")
    };
    let measured = measure_load(&scratch, &args.load, knob, &args.values, args.quick, tell);
    // Large files are not left behind, whatever came out.
    std::fs::remove_dir_all(&scratch).map_err(|e| system(&format!("remove {}", scratch.display()), e))?;
    let points = measured.map_err(|e| failed(&e))?;
    let worth = Worth { revenue: args.revenue, penalty: args.penalty, stale_by: args.penalty_of.into() };
    let report = report(&points, knob.label(), &format!("Load {}", args.load), &worth);
    report.write(&args.out).map_err(|e| failed(&e))?;
    print(&report.text())
}
