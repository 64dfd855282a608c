//! `forebay bench admission-redis`: the admission policies under YCSB on Redis, in front of a disk, with NV-DRAM and with an SSD as the cache
//! (ATC'15, section 7.3).

use forebay_policy::Admission;

use crate::admission::{
    Account, BASE, Contender, Contest, FLASH, Own, Results, Shown, add_figures, breakdown_table,
    highest_tail, meanings, measured_table, percentile_ms, shown_ms, waits_table,
};
use crate::conditions::{counted, rounds_of};
use crate::redis::{Redis, Requests, missing};
use crate::report::{Figures, Report, Table};
use crate::site::{Emulated, NVDRAM};
use crate::{BenchError, Options};

/// A load on a kind of cache.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    /// Share of the requests that change a record.
    updates_percent: u64,
    /// The emulated cache.
    cache: &'static str,
    cache_bytes: u64,
}

const fn load(name: &'static str, updates_percent: u64, cache: &'static str, cache_bytes: u64) -> Load {
    Load { name, updates_percent, cache, cache_bytes }
}

/// YCSB's A and B. The paper's four servers had 512 MB of NV-DRAM, or 16 GB of SSD for ten million requests. A run here has about an
/// eighth of them or less, and the SSD an eighth of the size: one that is not filled would make no difference to anybody.
const LOADS: [Load; 4] = [
    load("ycsb_a", 50, NVDRAM, 512 << 20),
    load("ycsb_b", 5, NVDRAM, 512 << 20),
    load("ycsb_a_ssd", 50, FLASH, 2 << 30),
    load("ycsb_b_ssd", 5, FLASH, 2 << 30),
];

/// Names of the loads under which the admission policies are compared on Redis.
pub fn redis_loads() -> impl Iterator<Item = &'static str> {
    LOADS.iter().map(|load| load.name)
}

/// What is run.
struct Plan {
    loads: Vec<Load>,
    /// Instead of the loads' own.
    cache: Option<Emulated>,
    servers: u64,
    /// Of each server.
    records: u64,
    clients: u64,
    volume_bytes: u64,
    /// Of another load than the paper's.
    quick: bool,
    contest: Contest,
}

impl Plan {
    fn new(options: &Options) -> Result<Self, BenchError> {
        let own = |admissions, rounds, warm_seconds, seconds| Own {
            admissions,
            sizes: Vec::new(),
            rounds,
            warm_seconds,
            seconds,
        };
        // Which bytes are Redis's log is not known beforehand: its files come and go.
        let asked = Admission::ALL.iter().copied().filter(|a| *a != Admission::Range).collect();
        let (loads, servers, records, clients, own) = match options.quick {
            true => (
                vec![Load { cache_bytes: 16 << 20, ..LOADS[0] }],
                2,
                2500,
                4,
                own(vec![Admission::All, Admission::CpPiIoi], 1, 1, 2),
            ),
            false => (LOADS.to_vec(), 4, 500_000, 40, own(asked, 3, 10, 40)),
        };
        let cache = options.contest.cache_model.as_deref().map(Emulated::new);
        // With one cache for all, a load need not be run again with another.
        let mut loads: Vec<Load> = if cache.is_some() { loads.into_iter().take(2).collect() } else { loads };
        options.check_loads(&loads.iter().map(|load| load.name).collect::<Vec<_>>())?;
        loads.retain(|load| options.wants(load.name));
        Ok(Self {
            loads,
            cache,
            servers,
            records,
            clients,
            volume_bytes: if options.quick { 384 << 20 } else { 24 << 30 },
            quick: options.quick,
            contest: Contest::new(options, own),
        })
    }

    /// Sizes of the cache under a load: its own, if none were asked for.
    fn sizes<'a>(&'a self, load: &'a Load) -> &'a [u64] {
        match self.contest.sizes.as_slice() {
            [] => std::slice::from_ref(&load.cache_bytes),
            asked => asked,
        }
    }

    /// Whether what is shown of a load was run as it was made to be like the paper's.
    fn is_papers(&self, load: &Load) -> bool {
        !self.quick && self.most(load) == load.cache_bytes
    }

    /// The largest of them, which tables and charts show.
    fn most(&self, load: &Load) -> u64 {
        self.sizes(load).last().copied().unwrap_or_default()
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
    let plan = Plan::new(options)?;
    let results = Results::until_stopped(options, |results| measure_all(options, &plan, results))?;
    let how = rounds_of(plan.contest.rounds, plan.contest.time);
    Ok(report(&results, &plan).under_conditions(options, how))
}

fn measure_all(options: &Options, plan: &Plan, results: &mut Results) -> Result<(), BenchError> {
    let contest = &plan.contest;
    for round in 0..contest.rounds {
        let loads = plan.loads.iter();
        for (load, size) in loads.flat_map(|l| plan.sizes(l).iter().map(move |s| (l, *s))) {
            for contender in contest.in_turn(round) {
                let bare = contender == Contender::NO_CACHE;
                if bare && Some(&size) != plan.sizes(load).first() {
                    continue;
                }
                let size = if bare { 0 } else { size };
                options.go_on()?;
                let shown = measure(options, plan, contender, (load, size))?;
                eprintln!(
                    "round {}: {}, cache {} MiB, {}: {:.0} requests a second, {}",
                    round + 1,
                    load.name,
                    size >> 20,
                    contender.label(),
                    shown.rate,
                    highest_tail(&shown.tail_ms)
                );
                results.add(load.name, size, contender, shown);
            }
        }
    }
    Ok(())
}

fn measure(
    options: &Options,
    plan: &Plan,
    contender: Contender,
    (load, cache_bytes): (&Load, u64),
) -> Result<Shown, BenchError> {
    let cache = plan.cache.clone().unwrap_or_else(|| Emulated::new(load.cache));
    let site = plan.contest.site(contender, cache, cache_bytes, "redis");
    let redis = Redis::serve(
        &options.forebay,
        &options.scratch,
        (plan.servers, plan.volume_bytes),
        &site,
        &plan.contest.settings,
    )?;
    let requests =
        Requests { records: plan.records, clients: plan.clients, updates_percent: load.updates_percent };
    // `cp` would load for ten minutes, as it does not cache the journal. Taking everything, every cache has the same in it when it begins.
    let admission = contender.admission();
    if admission.is_some() {
        redis.daemon.set("admission", BASE.as_str())?;
    }
    redis.servers.load(&requests, options)?;
    if let Some(admission) = admission {
        redis.daemon.set("admission", admission.as_str())?;
    }
    let ask = |time| redis.servers.ask(&requests, time, options);
    ask(plan.contest.warm)?;
    let before = Account::of(&redis.daemon)?;
    let answers = ask(plan.contest.time)?;
    let after = Account::of(&redis.daemon)?;
    let seconds = plan.contest.time.as_secs_f64().max(1.0);
    Shown {
        rate: answers.latencies_us.len() as f64 / seconds,
        tail_ms: [9900, 9990, 9999].map(|p| percentile_ms(&answers.latencies_us, p)),
        silent_seconds: answers.silent_seconds as f64,
        ..Shown::default()
    }
    .grown(&before, &after, seconds)
}

/// Requests for each byte cached, against `all`.
const PER_BLOCK: &str = "per_cached_block_of_all";

/// What Figure 9's text says of cp+pi+ioi against `all`: throughput and cached writes, with the ramdisk and with the SSD. The paper's runs end
/// after so many requests, ours after so many seconds.
const PAPER: [(&str, &str, &str, &str); 8] = [
    ("ycsb_a", "of_all", "throughput", "1.17 to 1.32"),
    ("ycsb_b", "of_all", "throughput", "1.17 to 1.32"),
    ("ycsb_a_ssd", "of_all", "throughput", "1.47 to 1.55"),
    ("ycsb_b_ssd", "of_all", "throughput", "1.47 to 1.55"),
    ("ycsb_a", PER_BLOCK, "bytes cached for each request", "0.71 to 0.80"),
    ("ycsb_b", PER_BLOCK, "bytes cached for each request", "0.71 to 0.80"),
    ("ycsb_a_ssd", PER_BLOCK, "bytes cached for each request", "0.13 to 0.16"),
    ("ycsb_b_ssd", PER_BLOCK, "bytes cached for each request", "0.13 to 0.16"),
];

fn beside_the_paper(figures: &Figures, plan: &Plan) -> Option<Table> {
    let contender = Contender::of(Admission::CpPiIoi).name();
    let line = |(name, ending, what, paper): (&str, &str, &str, &str)| {
        let load = plan.loads.iter().find(|l| l.name == name && plan.is_papers(l))?;
        let mib = plan.most(load) >> 20;
        let here = figures.get(&format!("{name}_cache_{mib}_mib_{contender}_{ending}"))?;
        // The figure says it the other way round.
        let here = if ending == PER_BLOCK { 1.0 / *here } else { *here };
        Some([name, what, &format!("{here:.2}"), paper].map(str::to_owned).to_vec())
    };
    let lines: Vec<Vec<String>> = PAPER.into_iter().filter_map(line).collect();
    let columns = ["cp+pi+ioi against all", "", "here", "ATC'15"].map(str::to_owned).to_vec();
    (!lines.is_empty()).then(|| ("Here and in the paper (ATC'15, Figure 9)".to_owned(), columns, lines))
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
    for load in &plan.loads {
        for contender in &plan.contest.contenders {
            let of = |figure: fn(&Shown) -> Option<f64>| {
                results.median(load.name, plan.most(load), *contender, figure)
            };
            if of(|s| Some(s.rate)).is_none() {
                continue;
            }
            let tail = [of(|s| s.tail_ms[0]), of(|s| s.tail_ms[1]), of(|s| s.tail_ms[2])];
            let paper =
                PAPER_TAILS.iter().find(|(l, a, _)| *l == load.name && Some(*a) == contender.admission());
            let paper = paper.filter(|_| plan.is_papers(load));
            let mut line = vec![load.name.to_owned(), contender.label().to_owned()];
            line.extend(tail.map(shown_ms));
            if !plan.quick {
                line.push(paper.map_or_else(String::new, |(.., text)| (*text).to_owned()));
            }
            lines.push(line);
        }
    }
    let columns =
        ["load", "policy", "99%", "99.9%", "99.99%"].into_iter().chain((!plan.quick).then_some("ATC'15"));
    let columns = columns.map(str::to_owned).collect();
    ("Latencies of requests in ms (as in ATC'15, Table 4)".to_owned(), columns, lines)
}

fn report(results: &Results, plan: &Plan) -> Report {
    let contenders = plan.contest.contenders.as_slice();
    let (mut figures, mut measured) = (Figures::new(), Figures::new());
    let (mut charts, mut tables) = (Vec::new(), Vec::new());
    for load in &plan.loads {
        let (name, most, sizes) = (load.name, plan.most(load), plan.sizes(load));
        let named = (contenders, "requests_per_second");
        add_figures((&mut figures, &mut measured), results, name, sizes, named);
        let bar =
            |c: &Contender| Some((c.label().to_owned(), results.median(name, most, *c, |s| Some(s.rate))?));
        charts.push((
            format!("{name}, a cache of {} MiB: requests a second (as in ATC'15, Figure 9)", most >> 20),
            contenders.iter().filter_map(bar).collect(),
        ));
        tables.push(measured_table(results, (name, sizes, contenders), "requests/s"));
        tables.extend(waits_table(results, name, most, contenders));
        tables.extend(breakdown_table(results, name, most, false));
    }
    tables.insert(0, tails(results, plan));
    tables.splice(0..0, beside_the_paper(&figures, plan));
    Report {
        name: "admission-redis",
        title: format!(
            "Admission policies under YCSB on Redis, its log synced at each command, snapshots beside it: {} with {} of 1 KB each, {}, \
             in front of an emulated {} with a cache on emulated NV-DRAM or SSD",
            counted(plan.servers, "server"),
            counted(plan.records, "record"),
            counted(plan.clients, "client"),
            plan.contest.backing.name(),
        ),
        notes: meanings("requests a second"),
        figures,
        measured,
        charts,
        tables,
        ..Report::default()
    }
}
