//! `forebay bench admission-postgresql`: the admission policies under TPC-C on PostgreSQL, in front of a disk, with caches from scarce to
//! sufficient (ATC'15, section 7.2).

use forebay_policy::{Admission, size};

use crate::admission::{
    Account, Contender, Contest, Own, Results, Shown, add_figures, breakdown_table, highest_tail, meanings,
    measured_table, over_sizes, per_cached_block, percentile_ms, waits_table,
};
use crate::conditions::{counted, rounds_of};
use crate::postgresql::{Load, PostgreSql};
use crate::report::{Figures, Report, Table};
use crate::site::{Emulated, NVDRAM};
use crate::{BenchError, Options};

const NAME: &str = "tpcc";
/// TPC-C's mix: at least 43% payments and 4% of each of the others; the rest are new orders, of which the measure counts those in a minute.
pub(crate) const SCRIPTS: &[(&str, &str, u32)] = &[
    ("new_order", include_str!("tpcc/new_order.sql"), 45),
    ("payment", include_str!("tpcc/payment.sql"), 43),
    ("order_status", include_str!("tpcc/order_status.sql"), 4),
    ("delivery", include_str!("tpcc/delivery.sql"), 4),
    ("stock_level", include_str!("tpcc/stock_level.sql"), 4),
];
/// Buffers for a quarter of the database: the paper's 512 MB began as a half, and the database grows. A checkpoint for each 256 MB of log, as in the paper.
/// What goes by the clock goes ten times as fast as by default, for the load has a tenth of the rows and is about as much faster: a checkpoint
/// each 30 s at the least, and the background writer's rounds each 20 ms. The log's files are used again: with less of them whoever writes
/// while a checkpoint takes long makes new ones of 16 MB of zeroes, which the paper's version did not. Nor had that workers of a query's own;
/// whether a plan has some would differ from run to run.
const CONFIGURATION: &str = "shared_buffers = 32MB\nmin_wal_size = 512MB\nmax_wal_size = 512MB\nmax_parallel_workers_per_gather = 0\n\
                             listen_addresses = ''\ncheckpoint_timeout = 30s\nbgwriter_delay = 20ms\nmax_connections = 40\n";

/// What is run.
struct Plan {
    load: Load,
    contest: Contest,
    cache: Emulated,
    /// The load is the one that was made to be like the paper's.
    is_papers: bool,
}

impl Plan {
    fn new(options: &Options) -> Self {
        let load = |warehouses, clients, image_bytes| Load {
            schema: include_str!("tpcc/schema.sql"),
            log_segments: 4 * warehouses,
            scripts: SCRIPTS,
            warehouses,
            clients,
            // As clients of such a load do; planned anew each time they would be what keeps the processor busy.
            protocol: "prepared",
            image_bytes,
            configuration: CONFIGURATION.to_owned(),
        };
        let (load, own) = match options.quick {
            true => {
                let admissions = vec![Admission::All, Admission::CpPiIoi];
                let own = Own { admissions, sizes: vec![16 << 20], rounds: 1, warm_seconds: 1, seconds: 2 };
                (load(1, 4, 1 << 30), own)
            }
            false => {
                let sizes = vec![SCARCE, 16 << 20, MIDDLE, SUFFICIENT];
                let own = Own {
                    admissions: Admission::ALL.to_vec(),
                    sizes,
                    rounds: 3,
                    warm_seconds: 20,
                    seconds: 40,
                };
                (load(10, 24, 4 << 30), own)
            }
        };
        let cache = Emulated::new(options.contest.cache_model.as_deref().unwrap_or(NVDRAM));
        Self { load, contest: Contest::new(options, own), cache, is_papers: !options.quick }
    }
}

/// Runs it and returns the figures.
///
/// # Errors
/// [`BenchError`]: also if something is missing that it needs.
pub fn admission_postgresql(options: &Options) -> Result<Report, BenchError> {
    if let Some(missing) = PostgreSql::missing(&options.scratch) {
        return Err(BenchError::Forebay(format!("admission-postgresql cannot run here: {missing}")));
    }
    options.check_loads(&[])?;
    let plan = Plan::new(options);
    let results = Results::until_stopped(options, |results| measure_all(options, &plan, results))?;
    let how = rounds_of(plan.contest.rounds, plan.contest.time);
    Ok(report(&results, &plan).under_conditions(options, how))
}

fn measure_all(options: &Options, plan: &Plan, results: &mut Results) -> Result<(), BenchError> {
    let contest = &plan.contest;
    let database = PostgreSql::prepare(options, plan.load.clone(), &contest.settings, &options.scratch)?;
    for round in 0..contest.rounds {
        for (number, size) in contest.sizes.iter().enumerate() {
            for contender in contest.in_turn(round) {
                let (bare, first) = (contender == Contender::NO_CACHE, number == 0);
                if bare && !first {
                    continue;
                }
                let size = if bare { 0 } else { *size };
                options.go_on()?;
                let shown = measure(options, &database, plan, contender, size)?;
                eprintln!(
                    "round {}: cache {} MiB, {}: {:.0} new orders a minute, {}",
                    round + 1,
                    size >> 20,
                    contender.label(),
                    shown.rate,
                    highest_tail(&shown.tail_ms)
                );
                results.add(NAME, size, contender, shown);
            }
        }
    }
    Ok(())
}

fn measure(
    options: &Options,
    database: &PostgreSql,
    plan: &Plan,
    contender: Contender,
    cache_bytes: u64,
) -> Result<Shown, BenchError> {
    let site = plan.contest.site(contender, plan.cache.clone(), cache_bytes, "postgresql");
    let running = database.serve(&options.forebay, &site)?;
    running.warm_up()?;
    let run = || {
        running.pgbench(plan.contest.warm)?;
        let before = Account::of(&running.daemon)?;
        let transactions = running.pgbench(plan.contest.time)?;
        Ok((before, transactions, Account::of(&running.daemon)?))
    };
    let (before, transactions, after) = match contender.admission() {
        Some(Admission::Range) => running.with_log_ranges(run)?,
        _ => run()?,
    };
    let seconds = plan.contest.time.as_secs_f64().max(1.0);
    let new_orders = transactions.counts.first().copied().unwrap_or_default() as f64;
    Shown {
        rate: new_orders / seconds * 60.0,
        tail_ms: [9900, 9990, 9999].map(|p| percentile_ms(&transactions.latencies_us, p)),
        silent_seconds: transactions.silent_seconds as f64,
        ..Shown::default()
    }
    .grown(&before, &after, seconds)
}

/// The caches here that are to the load what the paper's are to its own: the least, one between, and one that has room for all.
const SCARCE: u64 = 4 << 20;
const MIDDLE: u64 = 64 << 20;
const SUFFICIENT: u64 = 512 << 20;

/// What the paper says in words or numbers: what, of which cache here, how much, and the figure here that stands beside it.
type Said = (&'static str, u64, &'static str, &'static str);

/// With a ramdisk as the cache.
const PAPER: &[Said] = &[
    ("cp+pi+ioi against all, scarce cache (Figure 4a, 32 MB)", SCARCE, "1.80", "of_all"),
    ("cp+pi+ioi against all, sufficient cache (Figure 4a, 4 GB)", SUFFICIENT, "1.00", "of_all"),
    ("bytes cached by cp+pi+ioi against all, sufficient cache", SUFFICIENT, "0.28", "cache_bytes_of_all"),
    (
        "performance per cached block, cp+pi+ioi against all, scarce (Figure 7)",
        SCARCE,
        "1.2 to 3.7",
        "per_cached_block_of_all",
    ),
    (
        "performance per cached block, cp+pi+ioi against all, sufficient (Figure 7)",
        SUFFICIENT,
        "1.2 to 3.7",
        "per_cached_block_of_all",
    ),
    ("new orders of cp+pi+ioi against all, middle (Figure 8, 512 MB)", MIDDLE, "1.57", "of_all"),
    (
        "requests a second of cp+pi+ioi against all, middle (Figure 8, 512 MB)",
        MIDDLE,
        "0.91",
        "writes_of_all",
    ),
];

/// With an SSD.
const PAPER_SSD: &[Said] = &[
    ("cp+pi+ioi against all, scarce cache (Figure 4b, 4 GB)", SCARCE, "1.8 to 2.2", "of_all"),
    ("cp+pi+ioi against all, sufficient cache (Figure 4b, 128 GB)", SUFFICIENT, "1.8 to 2.2", "of_all"),
    (
        "bytes cached by cp+pi+ioi against all, sufficient cache",
        SUFFICIENT,
        "less than 0.5",
        "cache_bytes_of_all",
    ),
];

/// What was run with caches that can be compared with the paper's: nothing is said of the others.
fn beside_the_paper(figures: &Figures, cache: &str) -> Option<Table> {
    let said = if cache.starts_with("ssd") { PAPER_SSD } else { PAPER };
    let contender = Contender::of(Admission::CpPiIoi).name();
    let line = |(what, size, paper, ending): &Said| {
        let mib = size >> 20;
        let here = figures.get(&format!("{NAME}_cache_{mib}_mib_{contender}_{ending}"))?;
        Some(vec![(*what).to_owned(), format!("{mib} MiB"), format!("{here:.2}"), (*paper).to_owned()])
    };
    let lines: Vec<Vec<String>> = said.iter().filter_map(line).collect();
    let columns = ["", "cache here", "here", "ATC'15"].map(str::to_owned).to_vec();
    (!lines.is_empty()).then(|| ("Here and in the paper (ATC'15)".to_owned(), columns, lines))
}

fn report(results: &Results, plan: &Plan) -> Report {
    let (sizes, contenders) = (plan.contest.sizes.as_slice(), plan.contest.contenders.as_slice());
    let (mut figures, mut measured) = (Figures::new(), Figures::new());
    add_figures((&mut figures, &mut measured), results, NAME, sizes, (contenders, "tpmc"));
    // A quick run has another load.
    let beside = if plan.is_papers { beside_the_paper(&figures, plan.cache.name()) } else { None };
    let run = sizes.iter().map(|size| size::show(*size)).collect::<Vec<_>>().join(", ");
    let size = |at: usize| sizes.get(at).copied().unwrap_or_default();
    let (middle, sufficient) = (size(sizes.len() / 2), size(sizes.len().saturating_sub(1)));
    let over = |title: &str, y: &str, figure: fn(&Shown) -> Option<f64>| {
        over_sizes(results, (NAME, sizes, contenders), (title, y), figure)
    };
    let chart = |what: &str, figure: fn(&Shown) -> Option<f64>| {
        let bar = |c: &Contender| Some((c.label().to_owned(), results.median(NAME, middle, *c, figure)?));
        let heading = format!("{what}, cache {} MiB (as in ATC'15, Figure 8)", middle >> 20);
        (heading, contenders.iter().filter_map(bar).collect())
    };
    let plots = [
        over("New orders a minute (as in ATC'15, Figure 4)", "tpmC", |s| Some(s.rate)),
        over(
            "New orders a minute for each block of 4 KiB cached (as in ATC'15, Figure 7)",
            "tpmC/block",
            per_cached_block,
        ),
        over("99.9th percentile of a transaction's latency", "ms", |s| s.tail_ms[1]),
    ];
    let tables = [
        beside,
        Some(measured_table(results, (NAME, sizes, contenders), "tpmC")),
        waits_table(results, NAME, middle, contenders),
        breakdown_table(results, NAME, sufficient, plan.is_papers),
    ];
    Report {
        name: "admission-postgresql",
        title: format!(
            "Admission policies under TPC-C on PostgreSQL: {} with a tenth of the standard's rows, {} without think time, in \
             front of an emulated {} with a cache of {run} on an emulated {}",
            counted(plan.load.warehouses.into(), "warehouse"),
            counted(plan.load.clients.into(), "client"),
            plan.contest.backing.name(),
            plan.cache.name(),
        ),
        notes: meanings("new orders a minute"),
        charts: vec![
            chart("New orders a minute", |s| Some(s.rate)),
            chart("Writes a second", |s| Some(s.writes_per_second)),
        ],
        plots: plots.into_iter().flatten().collect(),
        tables: tables.into_iter().flatten().collect(),
        figures,
        measured,
        ..Report::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_caches_that_are_like_the_papers_stand_beside_them() {
        let name =
            |mib: u64| format!("{NAME}_cache_{mib}_mib_{}_of_all", Contender::of(Admission::CpPiIoi).name());
        let figures = |sizes: &[u64]| sizes.iter().map(|mib| (name(*mib), 1.5)).collect::<Figures>();
        assert_eq!(beside_the_paper(&figures(&[16]), NVDRAM), None, "neither scarce nor sufficient");
        let (_, _, rows) = beside_the_paper(&figures(&[4, 16]), NVDRAM).unwrap();
        assert_eq!(rows.len(), 1, "{rows:?}");
        assert!(rows[0][0].contains("scarce") && rows[0][1..] == ["4 MiB", "1.50", "1.80"], "{rows:?}");
    }
}
