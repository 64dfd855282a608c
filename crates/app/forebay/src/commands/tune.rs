//! `forebay tune`: find the setting that is worth most.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use forebay_bench::tune::{Knob, Point, Seen, StaleBy, Worth, load_names, measure_load, report};
use forebay_bench::{BenchError, Function, number};
use forebay_control::{Answer, FailureKind, Request, VolumeReport, VolumeStatus};
use forebay_emulate::Settings as Model;
use forebay_replay::{Setup, Trace, replay};

use super::ask;
use crate::failure::{Failure, Outcome};
use crate::output::print;
use crate::volume_name;

/// How often a running volume is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What can be tuned.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum What {
    /// How far the backing may be behind
    Journal,
}

/// What is turned to find out.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Turned {
    /// The size at which a group is committed under `journaled`
    GroupSize,
    /// The cache of an `ordered` volume, which bounds its staleness
    CacheSize,
}

impl From<Turned> for Knob {
    fn from(turned: Turned) -> Self {
        match turned {
            Turned::GroupSize => Self::GroupSize,
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
Measures speed and staleness at some positions w of the knob. Revenue is a function of operations a second, \
penalty one of staleness. It says where most is left of revenue after the penalty: w* = argmax(Revenue(w) - \
Penalty(w)). Nothing is fitted: w* is one of the positions that were measured.\n\n\
Functions are linear:RATE, step:AT:AMOUNT, exponential:AMOUNT:SCALE and points:X=Y,X=Y,... The third is AMOUNT \
times (e^(x/SCALE) - 1); the last has straight lines between its points. Numbers take K, M, G and T.\n\n\
Prints a table; writes DIR/tune-journal.json, .html, and the plots as .1.svg (speed), .2.svg (staleness) and \
.3.svg (revenue, penalty, profit)."
)]
pub struct Args {
    /// What to tune
    what: What,

    /// A running volume with write-policy=journaled, under the load that it has. Without it, a built-in load is
    /// measured on a volume made for it. The volume is left with the best group size
    #[arg(value_parser = volume_name::parse, requires = "values")]
    name: Option<String>,

    /// The daemon's control socket, if not the default one
    #[arg(long, value_name = "SOCKET", requires = "name")]
    control: Option<PathBuf>,

    /// How long a running volume is looked at, in seconds for each position; the first third is not counted
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, value_parser = seconds, requires = "name")]
    seconds: f64,

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
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(load_names()), default_value = "postmark", conflicts_with = "name")]
    load: String,

    /// A record of a volume's requests (`forebay serve --record-requests`), or a client's log of them as fio writes it
    /// (write_iolog). Several are several clients at once. They are replayed in virtual time, with models of the
    /// devices, instead of a measurement
    #[arg(long, value_name = "FILE", conflicts_with_all = ["name", "load", "quick"])]
    trace: Vec<PathBuf>,

    /// Requests that each client of one of fio's logs has under way at most; a record says itself what waited for what
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..), requires = "trace")]
    depth: u16,

    /// The cache device for a trace, KIND[,KEY=VALUE...] as in emulate:
    #[arg(long, value_name = "MODEL", default_value = "ssd-nvme", requires = "trace")]
    cache_model: Model,

    /// The backing for a trace
    #[arg(
        long,
        value_name = "MODEL",
        default_value = "remote,latency=2ms,latency-p99=5ms",
        requires = "trace"
    )]
    backing_model: Model,

    /// What is turned
    #[arg(long, value_enum, default_value = "group-size", conflicts_with = "name")]
    knob: Turned,

    /// Positions of the knob; by default some between a twentieth and one and a half of the load's working set
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = position)]
    values: Vec<f64>,

    /// A first impression, in a few seconds
    #[arg(long, conflicts_with = "name")]
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

fn seconds(text: &str) -> Result<f64, String> {
    number(text)
        .filter(|n| (1.0..=86_400.0).contains(n))
        .ok_or_else(|| format!("'{text}' is not from 1 to 86400"))
}

/// Measures, writes the report and prints it.
pub fn run(args: Args) -> Outcome {
    let What::Journal = args.what;
    let knob = Knob::from(args.knob);
    let (what, points) = match &args.name {
        Some(name) => {
            let volume = Running { name, control: args.control.as_ref() };
            (format!("Volume {name}"), volume.measure(&args.values, Duration::from_secs_f64(args.seconds))?)
        }
        None if args.trace.is_empty() => (format!("Load {}", args.load), built_in(&args, knob)?),
        None => (traces_named(&args.trace), replayed(&args, knob)?),
    };
    let worth = Worth { revenue: args.revenue, penalty: args.penalty, stale_by: args.penalty_of.into() };
    if let (Some(name), Some(best)) = (&args.name, worth.best(&points)) {
        Running { name, control: args.control.as_ref() }.turn(best.w)?;
    }
    let report = report(&points, knob.label(), &what, &worth);
    report.write(&args.out).map_err(|e| failed(&e))?;
    print(&report.text())
}

fn tell(point: &Point) {
    let Point { w, per_second, stale_seconds, .. } = *point;
    tracing::info!(w, per_second, stale_seconds, "measured");
}

fn built_in(args: &Args, knob: Knob) -> Result<Vec<Point>, Failure> {
    let system = |doing: &str, path: &Path, e: std::io::Error| {
        Failure::new(
            FailureKind::Failed,
            format!("cannot {doing} {}: {}", path.display(), forebay_block::words_of(&e)),
        )
    };
    let scratch = args.out.join("scratch");
    std::fs::create_dir_all(&scratch).map_err(|e| system("make", &scratch, e))?;
    let measured = measure_load(&scratch, &args.load, knob, &args.values, args.quick, tell);
    // Large files are not left behind, whatever came out.
    std::fs::remove_dir_all(&scratch).map_err(|e| system("remove", &scratch, e))?;
    measured.map_err(|e| failed(&e))
}

fn traces_named(files: &[PathBuf]) -> String {
    let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    format!("Replay of {}", names.join(", "))
}

/// Nothing is measured here: the models say how long everything takes.
fn replayed(args: &Args, knob: Knob) -> Result<Vec<Point>, Failure> {
    let read = |file: &PathBuf| {
        let text = std::fs::read_to_string(file).map_err(|e| {
            Failure::new(
                FailureKind::Failed,
                format!("cannot read {}: {}", file.display(), forebay_block::words_of(&e)),
            )
        })?;
        Trace::parse(&text).map_err(|e| {
            Failure::new(FailureKind::Usage, format!("{} cannot be replayed: {e}", file.display()))
        })
    };
    let traces = args.trace.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let working_set = Trace::working_set(&traces);
    let mut values =
        if args.values.is_empty() { knob.positions(working_set, false) } else { args.values.clone() };
    values.sort_by(f64::total_cmp);
    let point = |w: f64| {
        let (settings, cache_bytes) = knob.volume(w, working_set);
        let (cache, backing) = (args.cache_model.clone(), args.backing_model.clone());
        let setup = Setup { settings, cache_bytes, cache, backing, depth: usize::from(args.depth) };
        let outcome =
            replay(&traces, &setup).map_err(|e| Failure::new(FailureKind::Failed, e.to_string()))?;
        let (stale_seconds, stale_bytes) = (outcome.stale_seconds, outcome.stale_bytes);
        let point = Point { w, per_second: outcome.per_second(), stale_seconds, stale_bytes };
        tell(&point);
        Ok(point)
    };
    values.into_iter().map(point).collect()
}

/// A volume that a daemon serves.
struct Running<'a> {
    name: &'a str,
    control: Option<&'a PathBuf>,
}

impl Running<'_> {
    fn ask(&self, request: &Request) -> Result<Answer, Failure> {
        ask(self.name, self.control.cloned(), request, |_| {})
    }

    fn status(&self) -> Result<VolumeStatus, Failure> {
        let answer = self.ask(&Request::Status { volume: Some(self.name.to_owned()) })?;
        let volume = match answer {
            Answer::Volumes(volumes) => volumes.into_iter().next(),
            _ => None,
        };
        let volume = match volume {
            Some(VolumeReport::Figures(figures)) => Some(*figures),
            Some(VolumeReport::Unserved(unserved)) => {
                return Err(Failure::new(FailureKind::Failed, unserved.reason));
            }
            None => None,
        };
        volume.ok_or_else(|| {
            Failure::new(FailureKind::Failed, format!("the daemon does not say how '{}' is", self.name))
        })
    }

    fn turn(&self, w: f64) -> Outcome {
        let settings = vec![("group-size".to_owned(), format!("{w:.0}"))];
        self.ask(&Request::Set { volume: self.name.to_owned(), settings }).map(drop)
    }

    fn measure(&self, values: &[f64], time: Duration) -> Result<Vec<Point>, Failure> {
        let policy = self.status()?.write_policy;
        if policy != "journaled" {
            let sentence = format!(
                "volume '{0}' has the write policy {policy}, which has no groups; `forebay set {0} write-policy=journaled` gives it some",
                self.name
            );
            return Err(Failure::new(FailureKind::Usage, sentence));
        }
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted.into_iter().map(|w| self.point(w, time)).collect()
    }

    fn point(&self, w: f64, time: Duration) -> Result<Point, Failure> {
        self.turn(w)?;
        std::thread::sleep(time / 3);
        let (start, before) = (Instant::now(), self.status()?);
        let (mut seen, mut now) = (Seen::default(), before.clone());
        while start.elapsed() < time * 2 / 3 {
            std::thread::sleep(LOOK_EVERY);
            now = self.status()?;
            seen.look(now.staleness_seconds, now.staleness_bytes as f64);
        }
        let done = (now.reads + now.writes).saturating_sub(before.reads + before.writes);
        let point = seen.point(w, done as f64 / start.elapsed().as_secs_f64());
        tell(&point);
        Ok(point)
    }
}
