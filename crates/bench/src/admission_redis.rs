//! `forebay bench admission-redis`: the admission policies under YCSB on Redis, in front of a disk, with NV-DRAM and with an SSD as the cache
//! (ATC'15, section 7.3).

use forebay_policy::Admission;

use crate::admission::{
    Contender, Contest, FLASH, NVDRAM, Own, Results, Shown, add_figures, breakdown_table, percentile_ms,
    waits_table,
};
use crate::redis::{Redis, Requests, missing};
use crate::report::{Figures, Report, Table};
use crate::site::Emulated;
use crate::{BenchError, Options};

/// A load on a kind of cache: its name, the share of updates, the emulated cache.
type Load = (&'static str, u64, &'static str);

/// YCSB's A and B.
const LOADS: [Load; 4] =
    [("ycsb_a", 50, NVDRAM), ("ycsb_b", 5, NVDRAM), ("ycsb_a_ssd", 50, FLASH), ("ycsb_b_ssd", 5, FLASH)];

/// What is run.
struct Plan {
    loads: Vec<Load>,
    /// Instead of the loads' own.
    cache: Option<Emulated>,
    records: u64,
    clients: u64,
    volume_bytes: u64,
    contest: Contest,
}

impl Plan {
    fn new(options: &Options) -> Self {
        let own = |admissions, size, rounds, warm_seconds, seconds| Own {
            admissions,
            sizes: vec![size],
            rounds,
            warm_seconds,
            seconds,
        };
        // Which bytes are Redis's log is not known beforehand: its files come and go.
        let asked = Admission::ALL.iter().copied().filter(|a| *a != Admission::Range).collect();
        let (loads, records, clients, own) = match options.quick {
            true => (1, 5000, 4, own(vec![Admission::All, Admission::CpPiIoi], 16 << 20, 1, 1, 2)),
            false => (LOADS.len(), 100_000, 40, own(asked, 64 << 20, 3, 10, 40)),
        };
        let cache = options.contest.cache_model.as_deref().map(Emulated::new);
        // With one cache for all, a load need not be run again with another.
        let loads = if cache.is_some() { loads.min(2) } else { loads };
        Self {
            loads: LOADS.into_iter().take(loads).collect(),
            cache,
            records,
            clients,
            volume_bytes: if options.quick { 384 << 20 } else { 1 << 30 },
            contest: Contest::new(options, own),
        }
    }
}

/// Runs it and returns the figures.
///
/// # Errors
/// [`BenchError`]: also if something is missing that it needs.
pub fn admission_redis(options: &Options) -> Result<Report, BenchError> {
    if let Some(missing) = missing() {
        return Err(BenchError::Forebay(format!("admission-redis cannot run here: {missing}")));
    }
    let plan = Plan::new(options);
    let mut results = Results::default();
    let contest = &plan.contest;
    for round in 0..contest.rounds {
        for (load, size) in plan.loads.iter().flat_map(|l| contest.sizes.iter().map(move |s| (l, *s))) {
            for contender in &contest.contenders {
                let bare = *contender == Contender::NO_CACHE;
                if bare && Some(&size) != contest.sizes.first() {
                    continue;
                }
                let size = if bare { 0 } else { size };
                let shown = measure(options, &plan, *contender, (load, size))?;
                eprintln!(
                    "round {}: {}, cache {} MiB, {}: {:.0} requests a second",
                    round + 1,
                    load.0,
                    size >> 20,
                    contender.label(),
                    shown.rate
                );
                results.add(load.0, size, *contender, shown);
            }
        }
    }
    Ok(report(&results, &plan))
}

fn measure(
    options: &Options,
    plan: &Plan,
    contender: Contender,
    ((_, updates_percent, cache), cache_bytes): (&Load, u64),
) -> Result<Shown, BenchError> {
    let cache = plan.cache.clone().unwrap_or_else(|| Emulated::new(*cache));
    let site = plan.contest.site(contender, cache, cache_bytes, "redis");
    let redis =
        Redis::serve(&options.forebay, &options.scratch, plan.volume_bytes, &site, &plan.contest.settings)?;
    let requests =
        Requests { records: plan.records, clients: plan.clients, updates_percent: *updates_percent };
    redis.load(&requests)?;
    redis.ask(&requests, plan.contest.warm)?;
    let before = redis.daemon.status()?;
    let answers = redis.ask(&requests, plan.contest.time)?;
    let after = redis.daemon.status()?;
    let seconds = plan.contest.time.as_secs_f64().max(1.0);
    Ok(Shown {
        rate: answers.latencies_us.len() as f64 / seconds,
        tail_ms: [9900, 9990, 9999].map(|p| percentile_ms(&answers.latencies_us, p)),
        silent_seconds: answers.silent_seconds as f64,
        explain: redis.daemon.json("explain")?,
        waits: redis.daemon.json("waits")?,
        ..Shown::default()
    }
    .grown(&before, &after, seconds))
}

/// What Figure 9's text says of cp+pi+ioi against `all`: throughput and cached writes, with the ramdisk and with the SSD.
const PAPER: [(&str, &str, &str, &str); 8] = [
    ("ycsb_a", "of_all", "throughput", "1.17 to 1.32"),
    ("ycsb_b", "of_all", "throughput", "1.17 to 1.32"),
    ("ycsb_a_ssd", "of_all", "throughput", "1.47 to 1.55"),
    ("ycsb_b_ssd", "of_all", "throughput", "1.47 to 1.55"),
    ("ycsb_a", "cache_bytes_of_all", "bytes cached", "0.71 to 0.80"),
    ("ycsb_b", "cache_bytes_of_all", "bytes cached", "0.71 to 0.80"),
    ("ycsb_a_ssd", "cache_bytes_of_all", "bytes cached", "0.13 to 0.16"),
    ("ycsb_b_ssd", "cache_bytes_of_all", "bytes cached", "0.13 to 0.16"),
];

fn beside_the_paper(figures: &Figures, plan: &Plan) -> Table {
    let contender = Contender::of(Admission::CpPiIoi).name();
    let size = plan.contest.sizes.last().copied().unwrap_or_default();
    let line = |(load, ending, what, paper): (&str, &str, &str, &str)| {
        let here = figures.get(&format!("{load}_cache_{}_mib_{contender}_{ending}", size >> 20))?;
        Some([load, what, &format!("{here:.2}"), paper].map(str::to_owned).to_vec())
    };
    let columns = ["cp+pi+ioi against all", "", "here", "ATC'15"].map(str::to_owned).to_vec();
    ("Here and in the paper (Figure 9)".to_owned(), columns, PAPER.into_iter().filter_map(line).collect())
}

/// Tail latencies in the paper (Table 4, SSD), in milliseconds.
const PAPER_TAILS: [(&str, Admission, &str); 6] = [
    ("ycsb_a_ssd", Admission::All, "80, 649, > 1000"),
    ("ycsb_a_ssd", Admission::Sync, "72, 678, > 1000"),
    ("ycsb_a_ssd", Admission::CpPiIoi, "32, 50, 79"),
    ("ycsb_b_ssd", Admission::All, "70, 572, > 1000"),
    ("ycsb_b_ssd", Admission::Sync, "59, 438, > 1000"),
    ("ycsb_b_ssd", Admission::CpPiIoi, "23, 32, 83"),
];

fn tails(results: &Results, plan: &Plan) -> Table {
    let mut lines = Vec::new();
    let size = plan.contest.sizes.last().copied().unwrap_or_default();
    for (load, ..) in &plan.loads {
        for contender in &plan.contest.contenders {
            let tail = |n: usize| results.median(load, size, *contender, |s| s.tail_ms[n]);
            let (Some(p99), Some(p99_9), Some(p99_99)) = (tail(0), tail(1), tail(2)) else { continue };
            let paper = PAPER_TAILS.iter().find(|(l, a, _)| l == load && Some(*a) == contender.admission());
            let mut line = vec![(*load).to_owned(), contender.label().to_owned()];
            line.extend([p99, p99_9, p99_99].map(|ms| format!("{ms:.1}")));
            line.push(paper.map_or_else(String::new, |(.., text)| (*text).to_owned()));
            lines.push(line);
        }
    }
    let columns = ["load", "policy", "99%", "99.9%", "99.99%", "ATC'15"].map(str::to_owned).to_vec();
    ("Latencies of requests in ms (Table 4)".to_owned(), columns, lines)
}

fn report(results: &Results, plan: &Plan) -> Report {
    let (sizes, contenders) = (plan.contest.sizes.as_slice(), plan.contest.contenders.as_slice());
    let size = sizes.last().copied().unwrap_or_default();
    let mut figures = Figures::new();
    let (mut charts, mut tables) = (Vec::new(), Vec::new());
    for (load, ..) in &plan.loads {
        add_figures(&mut figures, results, load, sizes, (contenders, "requests_per_second"));
        let bar = |c: &Contender| Some((c.label().to_owned(), results.median(load, size, *c, |s| s.rate)?));
        charts.push((
            format!("{load}: requests a second (Figure 9)"),
            contenders.iter().filter_map(bar).collect(),
        ));
        tables.push(waits_table(results, load, size, contenders));
        tables.push(breakdown_table(results, load, size, false));
    }
    tables.insert(0, tails(results, plan));
    tables.insert(0, beside_the_paper(&figures, plan));
    Report {
        name: "admission-redis",
        title: format!(
            "Admission policies under YCSB on Redis, its log synced at each command, snapshots each 5 s: {} records of 1 KB, {} clients, in \
             front of an emulated {} a cache of {} MiB on emulated NV-DRAM or SSD; {} rounds of {} s, medians",
            plan.records,
            plan.clients,
            plan.contest.backing.name(),
            size >> 20,
            plan.contest.rounds,
            plan.contest.time.as_secs()
        ),
        figures,
        charts,
        plots: Vec::new(),
        tables,
    }
}
