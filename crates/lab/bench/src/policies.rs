//! `forebay bench policies`: the write policies side by side under the loads of FAST'13 (Figure 12), and how they depend on the
//! size of the cache (Figure 13) and of groups (Figure 14).

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_policy::WritePolicy;

use crate::conditions::rounds_of;
use crate::contender::{self, BASE, Contender, GROUP_PERCENT, journaled};
use crate::loads::Kind;
use crate::plot::Plot;
use crate::postgresql::{PostgreSql, rough};
use crate::report::{Figures, Report, Table, median};
use crate::run::{BACKING, Outcome, Scale, run};
use crate::site::Emulated;
use crate::{BenchError, Options};

/// The cache in percent of the working set, as in the paper's Figure 12.
const CACHE_PERCENT: u64 = 80;
/// The load of the paper's Figure 13.
const SIZED: Kind = Kind::FileServer;
/// The load of the paper's Figure 14.
const GROUPED: Kind = Kind::PostMark;

/// The name of `journaled` with groups of so many percent of the working set.
fn grouped(percent: u64) -> String {
    format!("group_{percent}_percent_journaled")
}

/// The name of the load that is a real database.
const POSTGRESQL: &str = "tpcc_postgresql";

/// Names of the loads under which the write policies are compared.
pub fn loads() -> impl Iterator<Item = &'static str> {
    Kind::ALL.into_iter().map(Kind::name).chain([POSTGRESQL])
}

/// Every contender's name.
pub fn contenders() -> impl Iterator<Item = String> {
    contender::contenders(0).into_iter().map(|c| c.name)
}

/// Sizes and times.
struct Plan {
    /// The backing.
    store: Emulated,
    scale: Scale,
    rounds: u32,
    /// Sizes of the cache, in percent of the working set, beside [`CACHE_PERCENT`].
    cache_percents: &'static [u64],
    /// Sizes of groups, in percent of the working set.
    group_percents: &'static [u64],
}

impl Plan {
    fn new(options: &Options) -> Self {
        let ms = Duration::from_millis;
        let store = Emulated::new(options.backing_model.as_deref().unwrap_or(BACKING));
        match options.quick {
            true => Self {
                store,
                scale: Scale { working_set: 24 << 20, warm: ms(250), time: ms(300) },
                rounds: 1,
                cache_percents: &[120],
                group_percents: &[2, 40],
            },
            false => Self {
                store,
                scale: Scale { working_set: 256 << 20, warm: ms(5000), time: ms(5000) },
                rounds: 2,
                cache_percents: &[10, 20, 40, 60, 120],
                group_percents: &[1, 2, 5, 10, 40],
            },
        }
    }

    fn cache_bytes(&self, percent: u64) -> u64 {
        self.scale.working_set * percent / 100
    }
}

/// What is known of one contender under one load with one cache.
#[derive(Clone, Debug, Default)]
struct Measured(Vec<Outcome>);

impl Measured {
    fn per_second(&self) -> f64 {
        median(self.0.iter().map(|o| o.per_second))
    }

    /// Bytes to the backing for each byte acknowledged.
    fn backing_ratio(&self) -> f64 {
        let (to, of) =
            self.0.iter().fold((0, 0), |sums, o| (sums.0 + o.backing_bytes, sums.1 + o.acknowledged_bytes));
        to as f64 / (of as f64).max(1.0)
    }

    /// Bytes to the journal for each byte acknowledged.
    fn journal_ratio(&self) -> f64 {
        let sums = |sums: (u64, u64), o: &Outcome| (sums.0 + o.journal_bytes, sums.1 + o.acknowledged_bytes);
        let (to, of) = self.0.iter().fold((0, 0), sums);
        to as f64 / (of as f64).max(1.0)
    }

    fn staleness_seconds_max(&self) -> f64 {
        self.0.iter().map(|o| o.staleness.seconds_max).fold(0.0, f64::max)
    }
}

type Key = (&'static str, u64, String);

/// What has been measured, by load, size of the cache and contender.
struct Results(BTreeMap<Key, Measured>);

impl Results {
    fn add(&mut self, load: &'static str, percent: u64, contender: &Contender, outcome: Outcome) {
        self.0.entry((load, percent, contender.name.clone())).or_default().0.push(outcome);
    }

    fn of(&self, load: &'static str, percent: u64, name: &str) -> Option<&Measured> {
        self.0.get(&(load, percent, name.to_owned()))
    }

    /// Throughput against write-through's in the same run, with the cache of Figure 12.
    fn of_base(&self, load: &'static str, percent: u64, name: &str) -> Option<f64> {
        let base = self.of(load, CACHE_PERCENT, BASE)?.per_second();
        Some(self.of(load, percent, name)?.per_second() / base.max(1e-9))
    }
}

/// The database, if there is time and it can be run here.
fn postgresql(options: &Options) -> Result<Option<PostgreSql>, BenchError> {
    if options.quick {
        eprintln!("{POSTGRESQL}: not measured with --quick");
        return Ok(None);
    }
    match PostgreSql::missing(&options.scratch) {
        Some(why) => {
            eprintln!("{POSTGRESQL}: not measured, because {why}");
            Ok(None)
        }
        None => PostgreSql::prepare(options, rough(), &[], &options.scratch).map(Some),
    }
}

/// Runs it and returns the figures.
///
/// # Errors
/// [`BenchError`].
pub fn policies(options: &Options) -> Result<Report, BenchError> {
    // There is no time for a database then.
    let known: Vec<_> = loads().filter(|load| !options.quick || *load != POSTGRESQL).collect();
    options.check_loads(&known)?;
    let mut plan = Plan::new(options);
    plan.rounds = options.rounds.unwrap_or(plan.rounds);
    plan.scale.time = options.seconds.map_or(plan.scale.time, Duration::from_secs);
    let mut results = Results(BTreeMap::new());
    let mut contenders = contender::contenders(plan.scale.working_set);
    let of =
        |name: &String| options.contenders.is_empty() || name == BASE || options.contenders.contains(name);
    contenders.retain(|c| of(&c.name));
    if options.wants(POSTGRESQL)
        && let Some(database) = postgresql(options)?
    {
        let time = if options.seconds.is_some() { plan.scale.time } else { 2 * plan.scale.time };
        for contender in &contenders {
            options.go_on()?;
            let outcome =
                database.measure(&options.forebay, &plan.store, contender, plan.scale.warm, time)?;
            results.add(POSTGRESQL, CACHE_PERCENT, contender, outcome);
        }
    }
    let mut measure = |kind: Kind, percent: u64, contender: &Contender| {
        options.go_on()?;
        let outcome =
            run(&options.scratch, &plan.store, kind, contender, plan.cache_bytes(percent), plan.scale)?;
        results.add(kind.name(), percent, contender, outcome);
        Ok::<(), BenchError>(())
    };
    for _ in 0..plan.rounds {
        for kind in Kind::ALL.into_iter().filter(|kind| options.wants(kind.name())) {
            contenders.iter().try_for_each(|c| measure(kind, CACHE_PERCENT, c))?;
        }
        for percent in plan.cache_percents.iter().filter(|_| options.wants(SIZED.name())) {
            sized(&contenders).try_for_each(|c| measure(SIZED, *percent, c))?;
        }
        let groups = options.wants(GROUPED.name())
            && contenders.contains(&journaled(plan.scale.working_set, GROUP_PERCENT));
        for percent in plan.group_percents.iter().filter(|_| groups) {
            let contender = journaled(plan.scale.working_set, *percent);
            measure(GROUPED, CACHE_PERCENT, &Contender { name: grouped(*percent), ..contender })?;
        }
    }
    let mut how = rounds_of(plan.rounds, plan.scale.time);
    if results.of(POSTGRESQL, CACHE_PERCENT, BASE).is_some() {
        let time = if options.seconds.is_some() { plan.scale.time } else { 2 * plan.scale.time };
        how = format!("{how}; {POSTGRESQL} in {}", rounds_of(1, time));
    }
    Ok(report(&results, &contenders, &plan, options.quick).under_conditions(options, how))
}

fn report(results: &Results, contenders: &[Contender], plan: &Plan, quick: bool) -> Report {
    let (mut figures, mut absolute) = (Figures::new(), Figures::new());
    let (mut charts, mut rows) = (Vec::new(), Vec::new());
    for load in loads() {
        let mut bars = Vec::new();
        for contender in contenders {
            let name = contender.name.as_str();
            let Some(measured) = results.of(load, CACHE_PERCENT, name) else { continue };
            let ratio = results.of_base(load, CACHE_PERCENT, name).unwrap_or_default();
            bars.push((name.to_owned(), ratio));
            absolute.insert(format!("{load}_{name}_operations_per_second"), measured.per_second());
            rows.push(vec![
                load.to_owned(),
                name.to_owned(),
                format!("{:.1}", measured.per_second()),
                format!("{ratio:.3}"),
                format!("{:.3}", measured.backing_ratio()),
                format!("{:.3}", measured.staleness_seconds_max()),
            ]);
            if name != BASE {
                figures.insert(format!("{load}_{name}_of_{BASE}"), ratio);
                figures.insert(format!("{load}_{name}_staleness_seconds"), measured.staleness_seconds_max());
            }
            figures.insert(format!("{load}_{name}_backing_bytes_ratio"), measured.backing_ratio());
            if contender.settings.write_policy == WritePolicy::Journaled {
                figures.insert(format!("{load}_{name}_journal_bytes_ratio"), measured.journal_ratio());
            }
        }
        if !bars.is_empty() {
            charts.push((
                format!("{load}: operations a second against write-through (as in FAST'13, Figure 12)"),
                bars,
            ));
        }
    }
    let plots = vec![sizes(results, contenders, plan, &mut figures), groups(results, plan, &mut figures)];
    let title = format!(
        "Write policies in front of {}, cache {CACHE_PERCENT} % of the working set, relative to write-through, in turn in one run",
        plan.store.name()
    );
    let columns = [
        "load",
        "policy",
        "operations/s",
        "of write_through",
        "bytes to the backing, of acknowledged",
        "staleness, s",
    ];
    let table = ("Measured, and against write-through".to_owned(), columns.map(str::to_owned).to_vec(), rows);
    // A quick run has other sizes, and no time.
    let beside = (!quick).then(|| beside_the_paper(results, contenders));
    Report {
        name: "policies",
        title,
        figures,
        measured: absolute,
        charts,
        plots,
        tables: beside.into_iter().chain([table]).collect(),
        ..Report::default()
    }
}

/// Who is measured with caches of other sizes: the paper's, without admission.
fn sized(contenders: &[Contender]) -> impl Iterator<Item = &Contender> {
    contenders.iter().filter(|c| c.caches_every_write())
}

/// The paper's Figure 13, whose numbers join the figures.
fn sizes(results: &Results, contenders: &[Contender], plan: &Plan, figures: &mut Figures) -> Plot {
    let mut lines = Vec::new();
    for contender in sized(contenders) {
        let percents = plan.cache_percents.iter().copied().chain([CACHE_PERCENT]);
        let mut points: Vec<(f64, f64)> = percents
            .filter_map(|percent| {
                Some((percent as f64, results.of_base(SIZED.name(), percent, &contender.name)?))
            })
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (percent, ratio) in points.iter().filter(|p| p.0 != CACHE_PERCENT as f64) {
            let name = format!("{}_cache_{percent}_percent_{}_of_{BASE}", SIZED.name(), contender.name);
            figures.insert(name, *ratio);
        }
        lines.push((contender.name.clone(), points));
    }
    Plot {
        title: format!("{}: sensitivity to the size of the cache (as in FAST'13, Figure 13)", SIZED.name()),
        x_label: "cache, % of the working set".into(),
        y_label: format!("against write-through at {CACHE_PERCENT} %"),
        lines,
        log_x: true,
        ..Plot::default()
    }
}

/// The paper's Figure 14, whose numbers join the figures: between write-through and write-back.
fn groups(results: &Results, plan: &Plan, figures: &mut Figures) -> Plot {
    let load = GROUPED.name();
    let mut points = Vec::new();
    for percent in plan.group_percents {
        let name = grouped(*percent);
        let Some(ratio) = results.of_base(load, CACHE_PERCENT, &name) else { continue };
        let Some(measured) = results.of(load, CACHE_PERCENT, &name) else { continue };
        figures.insert(format!("{load}_{name}_of_{BASE}"), ratio);
        figures.insert(format!("{load}_{name}_staleness_seconds"), measured.staleness_seconds_max());
        points.push((*percent as f64, ratio));
    }
    let level = |name: &str| {
        let ratio = results.of_base(load, CACHE_PERCENT, name);
        let ends = [points.first(), points.last()].into_iter().flatten();
        ends.filter_map(|p| Some((p.0, ratio?))).collect::<Vec<_>>()
    };
    let (back, through) = (level("write_back"), level(BASE));
    Plot {
        title: format!("{load}: sensitivity to the size of groups (as in FAST'13, Figure 14)"),
        x_label: "group, % of the working set".into(),
        y_label: "against write-through".into(),
        lines: vec![("journaled".into(), points), ("write_back".into(), back), (BASE.into(), through)],
        log_x: true,
        ..Plot::default()
    }
}

/// What the paper says of a policy: the least and the most throughput against write-through, over its benchmarks. (Its text
/// gives these; the bars of Figure 12 have no numbers.)
const PAPER: &[(&str, f64, f64)] = &[("ordered", 1.1, 8.0), ("journaled", 1.5, 10.0)];

fn beside_the_paper(results: &Results, contenders: &[Contender]) -> Table {
    let mut rows = Vec::new();
    for contender in contenders.iter().filter(|c| c.name != BASE) {
        let mut ratios: Vec<(f64, &str)> = loads()
            .filter_map(|load| Some((results.of_base(load, CACHE_PERCENT, &contender.name)?, load)))
            .collect();
        ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (Some(least), Some(most)) = (ratios.first(), ratios.last()) else { continue };
        let paper = PAPER.iter().find(|(policy, ..)| contender.name == *policy);
        rows.push(vec![
            contender.name.clone(),
            format!("{:.2} ({}) to {:.2} ({})", least.0, least.1, most.0, most.1),
            paper.map_or_else(|| "no number".to_owned(), |(_, least, most)| format!("{least} to {most}")),
        ]);
    }
    let columns = ["policy", "here", "FAST'13"].map(str::to_owned).to_vec();
    ("Throughput against write-through, here and in the paper".to_owned(), columns, rows)
}
