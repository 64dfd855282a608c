//! `forebay bench priority`: the schedulers of the backing under PostgreSQL, WiredTiger and Redis, on a model of the paper's SSD without a cache,
//! and `rcp` with one (RCP, FAST'17, evaluation); and a victim beside a neighbour that writes as fast as it can.

mod contender;
mod image;
mod neighbour;
mod postgresql;
mod redis;
mod report;
mod shown;
mod wiredtiger;

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use forebay_policy::SchedulerKind;

use crate::conditions::counted;
use crate::postgresql::PostgreSql;
use crate::report::Report;
use crate::scratch::Scratch;
use crate::site::{Emulated, NVDRAM};
use crate::{BenchError, Options};
use contender::Contender;
use shown::{Results, Slice};

/// The paper's drive, Micron's MX200 of 1 TB, with a fifth of its rates and of its buffer: two processors that also have database and clients on them
/// cannot ask it for more. A fifth as fast it is as busy as the paper's, and its queue as long in time. Published are 100,000 random reads and 87,000
/// random writes of 4 KiB, 555 and 500 MB a second (Micron's data sheet). The drive of 1 TB has no SLC cache (Dynamic Write Acceleration: smaller ones
/// have). Its capacitors protect what is at rest, not what is in its buffer. That buffer, 16 MiB, and all else are typical, from no data sheet.
const DRIVE: &str = "ssd-sata,iops=20000,write-iops=17400,read-rate=111000000,write-rate=100000000,link-rate=111000000,buffer=3200K,plp=no";
/// Of `rcp` with a cache.
const CACHE_BYTES: u64 = 256 << 20;
/// What images and copies of all loads take in memory, at most.
const STORE_BYTES: u64 = 6 << 30;
/// The same, of a quick run.
const STORE_BYTES_QUICK: u64 = 2 << 30;

const POSTGRESQL: &str = "postgresql";
const WIREDTIGER: &str = "wiredtiger";
const REDIS: &str = "redis";
const NEIGHBOUR: &str = "greedy_neighbour";
const LOADS: [&str; 4] = [POSTGRESQL, WIREDTIGER, REDIS, NEIGHBOUR];

/// The one that the others are compared with, as in the paper.
const BASE: &str = "cfq";
/// What a quick run compares.
const QUICK: [&str; 2] = ["rcp", BASE];

/// Names of the loads under which schedulers are compared.
pub fn priority_loads() -> impl Iterator<Item = &'static str> {
    LOADS.into_iter()
}

/// Names of the schedulers that are compared: each without a cache, and `rcp+cache`.
pub fn schedulers() -> impl Iterator<Item = String> {
    Contender::all().map(Contender::label)
}

/// What is run, and for how long.
struct Plan {
    contenders: Vec<Contender>,
    rounds: u32,
    warm: Duration,
    time: Duration,
    drive: Emulated,
    cache: (Emulated, u64),
    /// Further flags of `forebay serve`.
    with: Vec<(String, String)>,
    /// Further settings of the database.
    settings: Vec<(String, String)>,
    warehouses: u32,
    quick: bool,
}

impl Plan {
    fn new(options: &Options) -> Result<Self, BenchError> {
        options.check_loads(&LOADS)?;
        let asked = &options.contest;
        let databases: Vec<&String> =
            options.loads.iter().filter(|l| [POSTGRESQL, REDIS].contains(&l.as_str())).collect();
        if !asked.settings.is_empty() && (databases.len() != 1 || options.loads.len() != 1) {
            return Err(BenchError::Forebay(
                "--setting is for one database: choose it with --loads postgresql or --loads redis"
                    .to_owned(),
            ));
        }
        let wanted = |c: &Contender| match asked.schedulers.as_slice() {
            [] => !options.quick || QUICK.contains(&c.label().as_str()),
            names => names.contains(&c.label()),
        };
        let (rounds, warm, seconds) = if options.quick { (1, 1, 2) } else { (2, 5, 30) };
        let time = Duration::from_secs(options.seconds.unwrap_or(seconds));
        let cache = Emulated::new(asked.cache_model.as_deref().unwrap_or(NVDRAM));
        Ok(Self {
            contenders: Contender::all().filter(wanted).collect(),
            rounds: options.rounds.unwrap_or(rounds),
            warm: Duration::from_secs(warm).min(time),
            time,
            drive: Emulated::new(options.backing_model.as_deref().unwrap_or(DRIVE)),
            cache: (cache, asked.caches.first().copied().unwrap_or(CACHE_BYTES)),
            with: asked.with.clone(),
            settings: asked.settings.clone(),
            warehouses: asked.warehouses.unwrap_or(if options.quick { 1 } else { 32 }),
            quick: options.quick,
        })
    }

    /// How long PostgreSQL is measured: a checkpoint comes each 30 s.
    fn postgresql_time(&self) -> Duration {
        2 * self.time
    }

    /// Who is measured under a load.
    fn contenders_of(&self, load: &str) -> Vec<Contender> {
        match load {
            NEIGHBOUR => {
                let alone = Contender::of(SchedulerKind::Rcp);
                vec![alone, alone.beside_neighbour()]
            }
            _ => self.contenders.clone(),
        }
    }
}

/// Where it is run: what images and their copies lie on, and where programs work.
struct Bench<'a> {
    options: &'a Options,
    plan: &'a Plan,
    /// Memory, if there is room: no disk of this machine is in what is measured then.
    store: PathBuf,
    memory: Option<Scratch>,
}

/// A load that has been prepared.
trait Load {
    /// Runs it under a contender, on a volume of its own.
    fn measure(&self, bench: &Bench<'_>, contender: Contender) -> Result<Slice, BenchError>;
}

/// Makes a load ready, or says what is missing. Two of them share a database.
fn prepare(
    bench: &Bench<'_>,
    load: &str,
    database: &mut Option<Rc<postgresql::OrderEntry>>,
) -> Result<Box<dyn Load>, BenchError> {
    let missing = match load {
        WIREDTIGER => wiredtiger::missing(),
        REDIS => crate::redis::missing(),
        _ => PostgreSql::missing(&bench.options.scratch),
    };
    if let Some(missing) = missing {
        return Err(BenchError::Forebay(missing));
    }
    match load {
        WIREDTIGER => return Ok(Box::new(wiredtiger::Documents::prepare(bench)?)),
        REDIS => return Ok(Box::new(redis::Records::prepare(bench)?)),
        _ => {}
    }
    let shared = match database.take() {
        Some(database) => database,
        None => Rc::new(postgresql::OrderEntry::prepare(bench)?),
    };
    *database = Some(Rc::clone(&shared));
    Ok(match load {
        NEIGHBOUR => Box::new(neighbour::Neighbour::new(shared)),
        _ => Box::new(shared),
    })
}

/// Runs it and returns the figures. A load that cannot run here, or that fails, is told in the report; the others are measured.
///
/// # Errors
/// [`BenchError`]: also if no load that was asked for can run here.
pub fn priority(options: &Options) -> Result<Report, BenchError> {
    let plan = Plan::new(options)?;
    let memory = Scratch::in_memory(if plan.quick { STORE_BYTES_QUICK } else { STORE_BYTES });
    let store = memory.as_ref().map_or_else(|| options.scratch.clone(), |memory| memory.path().to_owned());
    let bench = Bench { options, plan: &plan, store, memory };
    let mut results = Results::default();
    results.note(match &bench.memory {
        Some(_) => "The drive's files lie in memory, not in the directory.".to_owned(),
        None => "There is no room in memory: the drive's files lie in the directory, and its disk is in the figures.".to_owned(),
    });
    let measured = measure_all(&bench, &mut results);
    if options.is_stopped() && results.is_empty() {
        return Err(BenchError::Stopped);
    }
    if !options.is_stopped() {
        measured?;
    }
    if results.is_empty() {
        return Err(BenchError::Forebay(format!(
            "priority cannot run here: {}",
            results.left_out().join("; ")
        )));
    }
    let how = format!(
        "{} of {} s each, twice that of PostgreSQL, after {} s; what was measured of one is put together",
        counted(plan.rounds.into(), "round"),
        plan.time.as_secs_f64(),
        plan.warm.as_secs_f64()
    );
    Ok(report::report(&results, &plan).under_conditions(options, how))
}

fn measure_all(bench: &Bench<'_>, results: &mut Results) -> Result<(), BenchError> {
    let (mut loads, mut database): (Vec<(&'static str, Box<dyn Load>)>, _) = (Vec::new(), None);
    for name in LOADS.into_iter().filter(|name| bench.options.wants(name)) {
        // What would take minutes to install is not waited for in a quick run, unless it is all that is asked for.
        if name == WIREDTIGER
            && bench.options.loads.is_empty()
            && bench.plan.quick
            && !wiredtiger::is_there(bench.options)
        {
            results.note(format!("{WIREDTIGER} is left out of a quick run where it is not installed: --loads {WIREDTIGER} installs it."));
            continue;
        }
        bench.options.go_on()?;
        match prepare(bench, name, &mut database) {
            Ok(load) => loads.push((name, load)),
            Err(e) => results.leave_out(name, None, &e),
        }
    }
    for round in 0..bench.plan.rounds {
        for (name, load) in &loads {
            let mut contenders = bench.plan.contenders_of(name);
            // What a measurement leaves behind shall not always be the same one's.
            if round % 2 == 1 {
                contenders.reverse();
            }
            for contender in contenders {
                bench.options.go_on()?;
                match load.measure(bench, contender) {
                    Ok(slice) => {
                        eprintln!("round {}: {name}, {}: {}", round + 1, contender.label(), slice.words());
                        results.add(name, contender, slice);
                    }
                    Err(_) if bench.options.is_stopped() => return Err(BenchError::Stopped),
                    Err(e) => results.leave_out(name, Some(contender), &e),
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
