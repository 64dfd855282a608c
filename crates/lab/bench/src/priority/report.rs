//! The page: what was measured beside the goals and the paper's figures.

use std::collections::BTreeSet;

use forebay_policy::{SchedulerKind, size};

use super::contender::Contender;
use super::shown::{Results, Slice, TAILS};
use super::{BASE, NEIGHBOUR, POSTGRESQL, Plan, REDIS, WIREDTIGER};
use crate::conditions::counted;
use crate::plot::Plot;
use crate::report::{Figures, Report, Table};

/// A load of the paper: what its requests are called, its task in the background, and how much more throughput than under the base is the goal.
struct Shape {
    load: &'static str,
    requests: &'static str,
    background: &'static str,
    throughput_goal: f64,
}

const SHAPES: [Shape; 3] = [
    Shape { load: POSTGRESQL, requests: "transactions", background: "checkpoints", throughput_goal: 1.5 },
    Shape { load: WIREDTIGER, requests: "operations", background: "checkpoints", throughput_goal: 2.0 },
    Shape { load: REDIS, requests: "requests", background: "snapshots", throughput_goal: 1.3 },
];

/// The ratio that the neighbour is measured by.
const NEIGHBOUR_FIGURE: &str = "greedy_neighbour_p99_9_of_alone";

const P99_9: u64 = 99_900;
const P99_999: u64 = 99_999;

fn rcp() -> Contender {
    Contender::of(SchedulerKind::Rcp)
}

fn ratio(of: Option<f64>, base: Option<f64>) -> Option<f64> {
    Some(of? / base.filter(|base| *base > 0.0)?)
}

/// Every contender of a load that was measured.
type Under<'a> = Vec<(Contender, &'a Slice)>;

fn find<'a>(under: &Under<'a>, what: impl Fn(Contender) -> bool) -> Option<&'a Slice> {
    under.iter().find(|(c, _)| what(*c)).map(|(_, slice)| *slice)
}

fn base<'a>(under: &Under<'a>) -> Option<&'a Slice> {
    find(under, |c| c.label() == BASE)
}

/// The other schedulers without a cache.
fn others<'a>(under: &Under<'a>) -> Vec<&'a Slice> {
    under.iter().filter(|(c, _)| *c != rcp() && !c.is_cached()).map(|(_, slice)| *slice).collect()
}

/// The least and the most of a figure.
fn span(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    let grow = |span: Option<(f64, f64)>, v: f64| Some(span.map_or((v, v), |(l, m)| (l.min(v), m.max(v))));
    values.into_iter().fold(None, grow)
}

fn add_figures((figures, measured): (&mut Figures, &mut Figures), shape: &Shape, under: &Under<'_>) {
    let mut add = |name: String, value: Option<f64>| value.map(|value| figures.insert(name, value));
    for (contender, slice) in under {
        let name = format!("{}_{}", shape.load, contender.name());
        let of_base =
            |figure: &dyn Fn(&Slice) -> Option<f64>| ratio(figure(slice), base(under).and_then(figure));
        add(format!("{name}_throughput_of_{BASE}"), of_base(&|s| Some(s.per_second())));
        add(format!("{name}_p99_9_of_{BASE}"), of_base(&|s| s.percentile_ms(P99_9)));
        let took = of_base(&|s| s.background_seconds(shape.background));
        add(format!("{name}_{}_took_of_{BASE}", shape.background), took);
        add(format!("{name}_p99_999_ms"), slice.percentile_ms(P99_999));
        measured.insert(format!("{name}_per_second"), slice.per_second());
        measured.insert(format!("{name}_requests"), slice.latencies_us.len() as f64);
        for (percentile, what) in TAILS {
            slice.percentile_ms(percentile).map(|ms| measured.insert(format!("{name}_{what}_ms"), ms));
        }
        for (what, took) in &slice.background {
            let what = what.replace(' ', "_");
            measured.insert(format!("{name}_{what}"), took.len() as f64);
            let mean = (!took.is_empty()).then(|| took.iter().sum::<f64>() / took.len() as f64);
            mean.map(|seconds| measured.insert(format!("{name}_{what}_seconds"), seconds));
        }
        for (kind, ms) in &slice.waits_ms {
            measured.insert(format!("{name}_waited_for_{kind}_ms_per_second"), ms / slice.seconds);
        }
    }
    let Some(ours) = find(under, |c| c == rcp()) else { return };
    let name = format!("{}_{}", shape.load, rcp().name());
    let best = |figure: &dyn Fn(&Slice) -> Option<f64>| span(others(under).into_iter().filter_map(figure));
    add(
        format!("{name}_p99_999_of_{BASE}_p99_9"),
        ratio(ours.percentile_ms(P99_999), base(under).and_then(|s| s.percentile_ms(P99_9))),
    );
    add(
        format!("{name}_throughput_of_best_other"),
        ratio(Some(ours.per_second()), best(&|s| Some(s.per_second())).map(|(_, most)| most)),
    );
    add(
        format!("{name}_p99_9_of_best_other"),
        ratio(ours.percentile_ms(P99_9), best(&|s| s.percentile_ms(P99_9)).map(|(least, _)| least)),
    );
    let took = |s: &Slice| s.background_seconds(shape.background);
    add(
        format!("{name}_{}_took_of_best_other", shape.background),
        ratio(took(ours), best(&took).map(|(least, _)| least)),
    );
}

/// A goal: what, the figure's name, whether more is better, and the limit.
type Goal = (String, String, bool, f64);

fn goals_of(shape: &Shape) -> Vec<Goal> {
    let name = format!("{}_{}", shape.load, rcp().name());
    let goal = |what: &str, ending: String, more: bool, limit: f64| {
        (format!("{}: {what}", shape.load), format!("{name}_{ending}"), more, limit)
    };
    vec![
        goal("throughput of cfq's", format!("throughput_of_{BASE}"), true, shape.throughput_goal),
        goal("99.9% of cfq's", format!("p99_9_of_{BASE}"), false, 0.1),
        goal("99.999% of cfq's 99.9%", format!("p99_999_of_{BASE}_p99_9"), false, 1.0),
        goal("throughput of the best other's", "throughput_of_best_other".to_owned(), true, 1.0),
        goal("99.9% of the best other's", "p99_9_of_best_other".to_owned(), false, 1.0),
        goal(
            &format!("{} take, of the best other's", shape.background),
            format!("{}_took_of_best_other", shape.background),
            false,
            1.0,
        ),
    ]
}

fn goals_table(figures: &Figures) -> Option<Table> {
    let neighbour = ("victim's 99.9% of that alone".to_owned(), NEIGHBOUR_FIGURE.to_owned(), false, 2.0);
    let line = |(what, figure, more, limit): Goal| {
        let here = *figures.get(&figure)?;
        let reached = if more { here >= limit } else { here <= limit };
        let sign = if more { "≥" } else { "≤" };
        let reached = if reached { "yes" } else { "no" };
        Some(vec![what, format!("{sign} {limit}"), format!("{here:.3}"), reached.to_owned()])
    };
    let lines: Vec<Vec<String>> =
        SHAPES.iter().flat_map(goals_of).chain([neighbour]).filter_map(line).collect();
    let columns = ["rcp", "goal", "here", "reached"].map(str::to_owned).to_vec();
    (!lines.is_empty()).then(|| ("Goals".to_owned(), columns, lines))
}

/// What FAST'17 says, in the authors' slides: of PostgreSQL times, of the others how much better RCP is than each of the other schedulers.
fn beside_the_paper(results: &Results) -> Option<Table> {
    let said = |(least, most): (f64, f64), unit: &str| format!("{least:.1} to {most:.1}{unit}");
    let mut lines = Vec::new();
    let mut line = |what: &str, here: Option<String>, paper: &str| {
        lines.extend(here.map(|here| vec![what.to_owned(), here, paper.to_owned()]));
    };
    for (load, what, throughput, tail) in [
        (POSTGRESQL, "PostgreSQL, TPC-C", None, None),
        (WIREDTIGER, "WiredTiger (the paper: MongoDB), YCSB A", Some("1.12 to 3.01"), Some("5 to 20")),
        (REDIS, "Redis, YCSB A", Some("1.07 to 1.49"), Some("2 to 20")),
    ] {
        let under = results.under(load);
        let Some(ours) = find(&under, |c| c == rcp()) else { continue };
        let gains = |gain: &dyn Fn(&Slice) -> Option<f64>| span(others(&under).into_iter().filter_map(gain));
        let gained = gains(&|s| ratio(Some(ours.per_second()), Some(s.per_second())));
        let shorter = gains(&|s| ratio(s.percentile_ms(P99_9), ours.percentile_ms(P99_9)));
        if load == POSTGRESQL {
            let theirs = gains(&|s| s.percentile_ms(P99_9)).map(|span| said(span, " ms"));
            line(&format!("{what}: 99.9% under the others"), theirs, "over 2 s");
            let here = ours.percentile_ms(P99_999).map(|ms| format!("{ms:.1} ms"));
            line(&format!("{what}: 99.999% under rcp"), here, "300 ms");
        }
        let times = |of: Option<(f64, f64)>| of.map(|(l, m)| format!("{l:.2} to {m:.2}"));
        let not_in_text = "not in the slides' text";
        line(
            &format!("{what}: throughput of rcp, of each other's"),
            times(gained),
            throughput.unwrap_or(not_in_text),
        );
        line(&format!("{what}: 99.9% of each other, of rcp's"), times(shorter), tail.unwrap_or(not_in_text));
    }
    let columns = ["", "here", "FAST'17"].map(str::to_owned).to_vec();
    (!lines.is_empty()).then(|| ("Here and in the paper (FAST'17)".to_owned(), columns, lines))
}

fn shown(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

fn measured_table(shape: &Shape, under: &Under<'_>) -> Table {
    let mut columns = vec!["scheduler".to_owned(), format!("{}/s", shape.requests), format!("of {BASE}")];
    columns.extend(["99%, ms", "99.9%", "99.99%", "99.999%"].map(str::to_owned));
    columns.push(shape.requests.to_owned());
    let tasks: BTreeSet<&str> =
        under.iter().flat_map(|(_, slice)| slice.background.keys().copied()).collect();
    for task in &tasks {
        columns.extend([(*task).to_owned(), "s each".to_owned(), "longest".to_owned()]);
    }
    let line = |(contender, slice): &(Contender, &Slice)| {
        let of_base = ratio(Some(slice.per_second()), base(under).map(Slice::per_second));
        let mut line = vec![contender.label(), format!("{:.0}", slice.per_second()), shown(of_base, 2)];
        line.extend(TAILS.iter().map(|(percentile, _)| shown(slice.percentile_ms(*percentile), 1)));
        line.push(slice.latencies_us.len().to_string());
        for task in &tasks {
            let took = slice.background.get(task).map_or(&[][..], Vec::as_slice);
            line.push(took.len().to_string());
            line.push(shown(slice.background_seconds(task), 2));
            line.push(shown(span(took.iter().copied()).map(|(_, most)| most), 2));
        }
        line
    };
    (format!("{}: measured", shape.load), columns, under.iter().map(line).collect())
}

/// What critical tasks waited for under each scheduler, as LatencyTOP shows it in the paper.
fn waits_table(load: &str, under: &Under<'_>) -> Option<Table> {
    let kinds: BTreeSet<&str> =
        under.iter().flat_map(|(_, slice)| slice.waits_ms.keys()).map(String::as_str).collect();
    let mut columns = vec!["waits for".to_owned()];
    columns.extend(under.iter().map(|(c, _)| c.label()));
    let line = |kind: &str| {
        let ms = |slice: &Slice| slice.waits_ms.get(kind).copied().unwrap_or_default() / slice.seconds;
        let of_each = under.iter().map(|(_, slice)| format!("{:.1}", ms(slice)));
        [kind.to_owned()].into_iter().chain(of_each).collect::<Vec<_>>()
    };
    let lines: Vec<_> = kinds.into_iter().map(line).collect();
    let heading = format!(
        "{load}: what critical tasks waited for, ms of all of them in a second (as FAST'17 with LatencyTOP)"
    );
    (!lines.is_empty()).then_some((heading, columns, lines))
}

/// The long percentiles, to the right one nine more each.
fn tails_plot(shape: &Shape, under: &Under<'_>) -> Plot {
    let line = |(contender, slice): &(Contender, &Slice)| {
        let points =
            (2..).zip(TAILS).filter_map(|(nines, (p, _))| Some((f64::from(nines), slice.percentile_ms(p)?)));
        (contender.label(), points.collect())
    };
    Plot {
        title: format!("{}: latency of {}", shape.load, shape.requests),
        x_label: "nines of the percentile: 99%, 99.9%, 99.99%, 99.999%".into(),
        y_label: "ms".into(),
        lines: under.iter().map(line).collect(),
        ..Plot::default()
    }
}

fn neighbour(results: &Results, figures: &mut Figures, measured: &mut Figures) -> Option<Table> {
    let alone = results.of(NEIGHBOUR, rcp())?;
    let beside = results.of(NEIGHBOUR, rcp().beside_neighbour())?;
    let tail = |slice: &Slice| slice.percentile_ms(P99_9);
    ratio(tail(beside), tail(alone)).map(|ratio| figures.insert(NEIGHBOUR_FIGURE.to_owned(), ratio));
    let mut lines = Vec::new();
    for (what, slice) in [("alone", alone), ("beside", beside)] {
        let mib = slice.neighbour_bytes_per_second / f64::from(1 << 20);
        tail(slice).map(|ms| measured.insert(format!("{NEIGHBOUR}_{what}_p99_9_ms"), ms));
        measured.insert(format!("{NEIGHBOUR}_{what}_per_second"), slice.per_second());
        let mut line = vec![what.to_owned(), format!("{:.0}", slice.per_second())];
        line.extend(TAILS.iter().map(|(percentile, _)| shown(slice.percentile_ms(*percentile), 1)));
        line.push(format!("{mib:.1}"));
        lines.push(line);
        measured.insert(format!("{NEIGHBOUR}_{what}_neighbour_mib_per_second"), mib);
    }
    let columns = ["victim", "transactions/s", "99%, ms", "99.9%", "99.99%", "99.999%", "neighbour, MiB/s"];
    let heading = "A victim (PostgreSQL) alone and beside a task that writes as fast as it can, under rcp";
    Some((heading.to_owned(), columns.map(str::to_owned).to_vec(), lines))
}

fn notes(results: &Results, plan: &Plan) -> Vec<String> {
    let mut notes = vec![
        format!(
            "The drive is {}: unless --backing-model says otherwise, Micron's MX200 of 1 TB with a fifth of its rates and its buffer. Two \
             processors cannot ask it for more than that. A fifth as fast it is as busy as the paper's.",
            plan.drive.name()
        ),
        "Latencies are of clients that wait for each answer. A percentile is the least time that so many requests did not exceed: of fewer than \
         100,000 requests 99.999% is the longest of all."
            .to_owned(),
        "The background's tasks are those that ended while it was measured.".to_owned(),
        format!("rcp+cache has a cache of {} on an emulated {}.", size::show(plan.cache.1), plan.cache.0.name()),
    ];
    notes.extend(results.notes().iter().cloned());
    if SHAPES.iter().any(|s| !results.under(s.load).is_empty() && base(&results.under(s.load)).is_none()) {
        notes.push(format!("{BASE} was not measured under each load: ratios to it are missing there."));
    }
    notes
}

pub(crate) fn report(results: &Results, plan: &Plan) -> Report {
    let (mut figures, mut measured) = (Figures::new(), Figures::new());
    let (mut tables, mut charts, mut plots) = (Vec::new(), Vec::new(), Vec::new());
    for shape in &SHAPES {
        let under = results.under(shape.load);
        if under.is_empty() {
            continue;
        }
        add_figures((&mut figures, &mut measured), shape, &under);
        tables.push(measured_table(shape, &under));
        tables.extend(waits_table(shape.load, &under));
        plots.push(tails_plot(shape, &under));
        let mut chart = |what: &str, figure: &dyn Fn(&Slice) -> Option<f64>| {
            let bar = |(c, slice): &(Contender, &Slice)| Some((c.label(), figure(slice)?));
            charts.push((format!("{}: {what}", shape.load), under.iter().filter_map(bar).collect()));
        };
        chart(&format!("{} a second", shape.requests), &|s| Some(s.per_second()));
        chart("99.9%, ms", &|s| s.percentile_ms(P99_9));
        chart("99.999%, ms", &|s| s.percentile_ms(P99_999));
    }
    tables.extend(neighbour(results, &mut figures, &mut measured));
    let first = [goals_table(&figures), beside_the_paper(results)];
    if !plan.quick {
        tables.splice(0..0, first.into_iter().flatten());
    }
    Report {
        name: "priority",
        title: format!(
            "Schedulers of the backing without a cache, and rcp with one: TPC-C on PostgreSQL ({}), YCSB A on WiredTiger and on Redis, beside \
             their checkpoints and snapshots",
            counted(plan.warehouses.into(), "warehouse")
        ),
        notes: notes(results, plan),
        left_out: results.left_out().to_vec(),
        figures,
        measured,
        charts,
        plots,
        tables,
        ..Report::default()
    }
}
