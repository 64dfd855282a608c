//! `forebay tune journal`: how much staleness buys how much speed, and where the user's two functions meet best: w* =
//! argmax(Revenue(w) - Penalty(w)), as in FAST'13, section 6 (Figures 14 and 16). Nothing is fitted: w is one of the values that
//! were measured.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use forebay_policy::{Order, Settings, WritePolicy};

use crate::BenchError;
use crate::contender::Contender;
use crate::function::Function;
use crate::loads::Kind;
use crate::plot::Plot;
use crate::report::{Figures, Report, median};
use crate::run::{BACKING, Outcome, Scale, Staleness, run};
use crate::site::Emulated;

/// What is turned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knob {
    /// The size at which a group is committed under `journaled`: the paper's journal.
    GroupSize,
    /// The cache of a volume under `ordered` (order by barriers): the most that its backing may be behind.
    CacheSize,
}

impl Knob {
    /// Its name and unit.
    pub const fn label(self) -> &'static str {
        match self {
            Self::GroupSize => "group, bytes",
            Self::CacheSize => "cache, bytes",
        }
    }

    /// Positions that suit a load which works on so many bytes.
    pub fn positions(self, working_set: u64, quick: bool) -> Vec<f64> {
        self.percents(quick).iter().map(|p| (working_set * p / 100) as f64).collect()
    }

    /// The settings of a volume at a position, and the size of its cache in bytes.
    pub fn volume(self, w: f64, working_set: u64) -> (Settings, u64) {
        let bytes = w as u64;
        match self {
            Self::GroupSize => (
                Settings { write_policy: WritePolicy::Journaled, group_bytes: bytes, ..Settings::default() },
                working_set * CACHE_PERCENT / 100,
            ),
            Self::CacheSize => (
                Settings { write_policy: WritePolicy::Ordered, order: Order::Barrier, ..Settings::default() },
                bytes,
            ),
        }
    }

    /// Positions, in percent of a load's working set.
    const fn percents(self, quick: bool) -> &'static [u64] {
        match (self, quick) {
            (Self::GroupSize, true) => &[2, 10, 40],
            (Self::GroupSize, false) => &[1, 2, 5, 10, 20, 30, 40],
            (Self::CacheSize, true) => &[20, 40, 80, 120],
            (Self::CacheSize, false) => &[5, 10, 20, 40, 60, 80, 120, 160],
        }
    }
}

/// What has been seen at one position of the knob.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// The knob, in bytes.
    pub w: f64,
    /// Operations a second.
    pub per_second: f64,
    /// The most that the backing was behind, in seconds.
    pub stale_seconds: f64,
    /// The same in bytes.
    pub stale_bytes: f64,
}

/// Which number the penalty is a function of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StaleBy {
    /// The knob itself, as in the paper.
    Knob,
    /// The most that the backing was behind, in seconds.
    Seconds,
    /// The most that the backing was behind, in bytes.
    Bytes,
}

impl StaleBy {
    fn of(self, point: &Point) -> f64 {
        match self {
            Self::Knob => point.w,
            Self::Seconds => point.stale_seconds,
            Self::Bytes => point.stale_bytes,
        }
    }
}

/// The user's two functions.
#[derive(Clone, Debug)]
pub struct Worth {
    /// Of operations a second.
    pub revenue: Function,
    /// Of staleness.
    pub penalty: Function,
    /// What staleness is.
    pub stale_by: StaleBy,
}

impl Worth {
    /// Revenue, penalty and what is left, at a point.
    fn of(&self, point: &Point) -> (f64, f64, f64) {
        let (revenue, penalty) =
            (self.revenue.at(point.per_second), self.penalty.at(self.stale_by.of(point)));
        (revenue, penalty, revenue - penalty)
    }

    /// The point with the most left; of equals the first, which is the least stale.
    pub fn best<'a>(&self, points: &'a [Point]) -> Option<&'a Point> {
        points.iter().fold(None, |best: Option<&Point>, p| match best {
            Some(b) if self.of(b).2 >= self.of(p).2 => Some(b),
            _ => Some(p),
        })
    }
}

/// The cache in percent of the working set, where it is not what is turned.
const CACHE_PERCENT: u64 = 80;

/// Built-in loads by name.
pub fn load_names() -> Vec<&'static str> {
    Kind::ALL.iter().map(|kind| kind.name()).collect()
}

/// Sizes and times of the measurement with a built-in load.
struct Plan {
    scale: Scale,
    rounds: usize,
}

impl Plan {
    fn new(quick: bool) -> Self {
        let ms = Duration::from_millis;
        let (working_set, warm, time, rounds) =
            if quick { (24 << 20, ms(300), ms(400), 1) } else { (256 << 20, ms(5000), ms(5000), 3) };
        Self { scale: Scale { working_set, warm, time }, rounds }
    }
}

/// Measures a built-in load in `scratch`, at `values` of the knob or, if there are none, at some of its own choice; tells
/// each point.
///
/// # Errors
/// [`BenchError`]; also if there is no such load.
pub fn measure_load(
    scratch: &Path,
    load: &str,
    knob: Knob,
    values: &[f64],
    quick: bool,
    mut tell: impl FnMut(&Point),
) -> Result<Vec<Point>, BenchError> {
    let known =
        || BenchError::Forebay(format!("'{load}' is not a load; known are {}", load_names().join(", ")));
    let kind = Kind::ALL.into_iter().find(|kind| kind.name() == load).ok_or_else(known)?;
    let plan = Plan::new(quick);
    let own = || knob.positions(plan.scale.working_set, quick);
    let mut values: Vec<f64> = if values.is_empty() { own() } else { values.to_vec() };
    values.sort_by(f64::total_cmp);
    let mut outcomes: BTreeMap<usize, Vec<Outcome>> = BTreeMap::new();
    let mut points = Vec::new();
    for round in 0..plan.rounds {
        for (n, w) in values.iter().enumerate() {
            let outcome = one(scratch, kind, knob, *w, plan.scale)?;
            let seen = outcomes.entry(n).or_default();
            seen.push(outcome);
            if round + 1 == plan.rounds {
                let point = summed(*w, seen);
                tell(&point);
                points.push(point);
            }
        }
    }
    Ok(points)
}

fn one(scratch: &Path, kind: Kind, knob: Knob, w: f64, scale: Scale) -> Result<Outcome, BenchError> {
    let (settings, cache_bytes) = knob.volume(w, scale.working_set);
    run(scratch, &Emulated::new(BACKING), kind, &Contender::new(kind.name(), settings), cache_bytes, scale)
}

/// Sums up the staleness that was seen while throughput was measured.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    seconds_max: f64,
    bytes_max: f64,
}

impl Seen {
    /// The backing is behind by so many seconds and bytes now.
    pub fn look(&mut self, seconds: f64, bytes: f64) {
        self.seconds_max = self.seconds_max.max(seconds);
        self.bytes_max = self.bytes_max.max(bytes);
    }

    /// All that was seen at a position.
    pub fn point(&self, w: f64, per_second: f64) -> Point {
        Point { w, per_second, stale_seconds: self.seconds_max, stale_bytes: self.bytes_max }
    }
}

/// The median of the throughputs, the worst staleness.
fn summed(w: f64, outcomes: &[Outcome]) -> Point {
    let most = |f: fn(&Staleness) -> f64| outcomes.iter().map(|o| f(&o.staleness)).fold(0.0, f64::max);
    Point {
        w,
        per_second: median(outcomes.iter().map(|o| o.per_second)),
        stale_seconds: most(|s| s.seconds_max),
        stale_bytes: most(|s| s.bytes_max),
    }
}

/// The report, whose plots are the paper's Figures 14 and 16.
pub fn report(points: &[Point], knob_label: &str, what: &str, worth: &Worth) -> Report {
    let best = worth.best(points);
    let line = |f: &dyn Fn(&Point) -> f64| points.iter().map(|p| (p.w, f(p))).collect::<Vec<_>>();
    let plot = |title: &str, y_label: &str, lines: Vec<(&str, Vec<(f64, f64)>)>| Plot {
        title: title.to_owned(),
        x_label: knob_label.to_owned(),
        y_label: y_label.to_owned(),
        lines: lines.into_iter().map(|(name, points)| (name.to_owned(), points)).collect(),
        ..Plot::default()
    };
    let mut profit = plot(
        "Revenue, penalty and profit (Figure 16)",
        "amount",
        vec![
            ("revenue", line(&|p| worth.of(p).0)),
            ("penalty", line(&|p| worth.of(p).1)),
            ("revenue - penalty", line(&|p| worth.of(p).2)),
        ],
    );
    profit.mark = best.map(|p| (p.w, "w*".to_owned()));
    let plots = vec![
        plot("Speed (Figure 14)", "operations a second", vec![("speed", line(&|p| p.per_second))]),
        plot("Staleness, at most", "seconds", vec![("staleness", line(&|p| p.stale_seconds))]),
        profit,
    ];
    let mut figures = Figures::new();
    if let Some(best) = best {
        let (revenue, penalty, left) = worth.of(best);
        for (name, value) in [
            ("best_w_bytes", best.w),
            ("best_operations_per_second", best.per_second),
            ("best_staleness_seconds", best.stale_seconds),
            ("best_staleness_bytes", best.stale_bytes),
            ("best_revenue", revenue),
            ("best_penalty", penalty),
            ("best_profit", left),
        ] {
            figures.insert(name.to_owned(), value);
        }
    }
    let columns =
        ["w, bytes", "operations/s", "staleness, s", "staleness, bytes", "revenue", "penalty", "profit"];
    let row = |p: &Point| {
        let (revenue, penalty, left) = worth.of(p);
        let whole = |v: f64| format!("{v:.0}");
        let fine = |v: f64| format!("{v:.3}");
        vec![
            whole(p.w),
            format!("{:.1}", p.per_second),
            fine(p.stale_seconds),
            whole(p.stale_bytes),
            fine(revenue),
            fine(penalty),
            fine(left),
        ]
    };
    let table = (
        "Measured".to_owned(),
        columns.map(str::to_owned).to_vec(),
        points.iter().map(row).collect::<Vec<_>>(),
    );
    let title =
        format!("{what}: revenue {} of operations/s, penalty {} of staleness", worth.revenue, worth.penalty);
    Report { name: "tune-journal", title, figures, plots, tables: vec![table], ..Report::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points() -> Vec<Point> {
        // More staleness buys ever less speed.
        [(1.0, 100.0), (2.0, 180.0), (4.0, 240.0), (8.0, 260.0)]
            .map(|(w, per_second)| Point { w, per_second, stale_seconds: w / 10.0, stale_bytes: w * 1000.0 })
            .to_vec()
    }

    fn best(penalty: &str, stale_by: StaleBy) -> f64 {
        let worth = Worth { revenue: Function::Linear(1.0), penalty: penalty.parse().unwrap(), stale_by };
        worth.best(&points()).unwrap().w
    }

    #[test]
    fn the_best_is_where_most_is_left() {
        assert_eq!(best("linear:0", StaleBy::Knob), 8.0, "staleness costs nothing");
        assert_eq!(best("linear:20", StaleBy::Knob), 4.0);
        assert_eq!(best("linear:1000", StaleBy::Knob), 1.0);
        assert_eq!(best("step:0.3:100", StaleBy::Seconds), 2.0);
        assert_eq!(best("exponential:1:1500", StaleBy::Bytes), 4.0);
        let worth =
            Worth { revenue: Function::Linear(0.0), penalty: Function::Linear(0.0), stale_by: StaleBy::Knob };
        assert_eq!(worth.best(&points()).unwrap().w, 1.0, "of equals the least stale");
        assert!(worth.best(&[]).is_none());
    }

    #[test]
    fn the_report_points_at_the_best() {
        let worth = Worth {
            revenue: Function::Linear(1.0),
            penalty: Function::Linear(20.0),
            stale_by: StaleBy::Knob,
        };
        let report = report(&points(), "w", "a load", &worth);
        assert_eq!(report.figures["best_w_bytes"], 4.0);
        assert_eq!(report.plots.last().unwrap().mark, Some((4.0, "w*".into())));
        assert_eq!(report.tables[0].2.len(), 4);
        assert!(report.text().contains("best_profit"));
    }
}
