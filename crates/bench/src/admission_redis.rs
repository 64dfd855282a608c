//! `forebay bench admission-redis`: the admission policies under YCSB on Redis, in front of a disk, with NV-DRAM and with an SSD as the cache
//! (ATC'15, section 7.3).

use std::time::Duration;

use forebay_policy::Admission;

use crate::admission::{
    Contender, Results, Shown, add_figures, breakdown_table, disk, flash, nvdram, percentile_ms, waits_table,
};
use crate::postgresql::{Site, SpecOf};
use crate::redis::{Redis, Requests, missing};
use crate::report::{Figures, Report, Table};
use crate::{BenchError, Options};

/// A load on a kind of cache: its name, the share of updates, how a file becomes the cache.
type Load = (&'static str, u64, SpecOf);

/// YCSB's A and B.
const LOADS: [Load; 4] =
    [("ycsb_a", 50, nvdram), ("ycsb_b", 5, nvdram), ("ycsb_a_ssd", 50, flash), ("ycsb_b_ssd", 5, flash)];

/// Sizes and times.
struct Plan {
    loads: &'static [Load],
    records: u64,
    clients: u64,
    volume_bytes: u64,
    cache_bytes: u64,
    contenders: Vec<Contender>,
    rounds: u32,
    warm: Duration,
    time: Duration,
}

impl Plan {
    fn new(options: &Options) -> Self {
        let second = Duration::from_secs(1);
        let (admissions, own): (&[Admission], _) = match options.quick {
            true => (&[Admission::All, Admission::CpPiIoi], (&LOADS[..1], 5000, 4, 16 << 20, 1, second, 2)),
            false => (Admission::ALL, (&LOADS[..], 100_000, 40, 64 << 20, 3, 10 * second, 40)),
        };
        let (loads, records, clients, cache_bytes, rounds, warm, seconds) = own;
        let time = second * u32::try_from(options.seconds.unwrap_or(seconds)).unwrap_or(u32::MAX);
        // Which bytes are Redis's log is not known beforehand: its files come and go.
        let asked = admissions.iter().filter(|a| **a != Admission::Range).map(|a| Contender::of(*a));
        Self {
            loads,
            records,
            clients,
            volume_bytes: if options.quick { 384 << 20 } else { 1 << 30 },
            cache_bytes,
            contenders: asked.chain([Contender::NO_CACHE]).collect(),
            rounds: options.rounds.unwrap_or(rounds),
            warm: warm.min(time),
            time,
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
    for round in 0..plan.rounds {
        for load in plan.loads {
            for contender in &plan.contenders {
                let shown = measure(options, &plan, *contender, load)?;
                eprintln!(
                    "round {}: {}, {}: {:.0} requests a second",
                    round + 1,
                    load.0,
                    contender.label(),
                    shown.rate
                );
                let size = if *contender == Contender::NO_CACHE { 0 } else { plan.cache_bytes };
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
    (_, updates_percent, cache): &Load,
) -> Result<Shown, BenchError> {
    let mut flags = vec![("write-policy", "write-back".to_owned()), ("rules", "redis".to_owned())];
    flags.extend(contender.admission().map(|admission| ("admission", admission.to_string())));
    let cache = contender.admission().map(|_| (*cache, plan.cache_bytes));
    let site = Site { cache, backing: disk, flags };
    let redis = Redis::serve(&options.forebay, &options.scratch, plan.volume_bytes, &site)?;
    let requests =
        Requests { records: plan.records, clients: plan.clients, updates_percent: *updates_percent };
    redis.load(&requests)?;
    redis.ask(&requests, plan.warm)?;
    let before = redis.daemon.status()?;
    let answers = redis.ask(&requests, plan.time)?;
    let after = redis.daemon.status()?;
    let seconds = plan.time.as_secs_f64().max(1.0);
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
    let line = |(load, ending, what, paper): (&str, &str, &str, &str)| {
        let here =
            figures.get(&format!("{load}_cache_{}_mib_{contender}_{ending}", plan.cache_bytes >> 20))?;
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
    for (load, ..) in plan.loads {
        for contender in &plan.contenders {
            let tail = |n: usize| results.median(load, plan.cache_bytes, *contender, |s| s.tail_ms[n]);
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
    let contenders = plan.contenders.as_slice();
    let mut figures = Figures::new();
    let (mut charts, mut tables) = (Vec::new(), Vec::new());
    for (load, ..) in plan.loads {
        add_figures(&mut figures, results, load, &[plan.cache_bytes], (contenders, "requests_per_second"));
        let bar = |c: &Contender| {
            Some((c.label().to_owned(), results.median(load, plan.cache_bytes, *c, |s| s.rate)?))
        };
        charts.push((
            format!("{load}: requests a second (Figure 9)"),
            contenders.iter().filter_map(bar).collect(),
        ));
        tables.push(waits_table(results, load, plan.cache_bytes, contenders));
        tables.push(breakdown_table(results, load, plan.cache_bytes, false));
    }
    tables.insert(0, tails(results, plan));
    tables.insert(0, beside_the_paper(&figures, plan));
    Report {
        name: "admission-redis",
        title: format!(
            "Admission policies under YCSB on Redis, its log synced at each command, snapshots each 5 s: {} records of 1 KB, {} clients, an \
             emulated disk of 10,000 rpm, a cache of {} MiB on emulated NV-DRAM or SSD; {} rounds of {} s, medians",
            plan.records,
            plan.clients,
            plan.cache_bytes >> 20,
            plan.rounds,
            plan.time.as_secs()
        ),
        figures,
        charts,
        plots: Vec::new(),
        tables,
    }
}
