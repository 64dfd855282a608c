//! `forebay bench distributed`: volumes in a distributed store, with Forebay in front of it and without: 4 KiB durable writes, and TPC-C on
//! PostgreSQL. The store is a Ceph of one node, in memory: images (RBD), and objects behind its gateway (S3).

mod cluster;
mod contender;
mod report;
mod shown;
mod stand;

use std::path::PathBuf;
use std::time::Duration;

use crate::admission_postgresql::SCRIPTS;
use crate::conditions::counted;
use crate::generator::{DEPTH_MAX, Generator, Kind, Load as Writes, Timing};
use crate::mounted;
use crate::postgresql::{Load, PostgreSql};
use crate::report::Report;
use crate::scratch::Scratch;
use crate::{BenchError, Options};
use cluster::Cluster;
use contender::{Contender, Store};
use shown::Results;
use stand::Stand;

/// Operations under way.
const DEPTHS: [usize; 3] = [1, 16, 64];
/// Each volume.
const VOLUME_BYTES: u64 = 1 << 30;
/// What of it is written, at random places.
const SPAN_BYTES: u64 = 256 << 20;
/// Memory that files of caches take, at most.
const CACHES_BYTES: u64 = 2 << 30;

/// What can be measured alone.
const LOADS: [&str; 4] = ["rbd", "s3", "rbd_postgresql", "s3_postgresql"];

/// Names of the loads.
pub fn distributed_loads() -> impl Iterator<Item = &'static str> {
    LOADS.into_iter()
}

/// Buffers for all of the database: what is read of the store is little. A checkpoint each 30 s.
fn database(quick: bool) -> Load {
    let (warehouses, log_segments) = if quick { (1, 4) } else { (4, 16) };
    let log_mib = log_segments * 16;
    Load {
        schema: include_str!("tpcc/schema.sql"),
        log_segments,
        scripts: SCRIPTS,
        warehouses,
        clients: if quick { 4 } else { 16 },
        protocol: "prepared",
        image_bytes: VOLUME_BYTES,
        configuration: format!(
            "shared_buffers = 128MB\nmin_wal_size = {log_mib}MB\nmax_wal_size = {log_mib}MB\ncheckpoint_timeout = 30s\n\
             max_parallel_workers_per_gather = 0\nlisten_addresses = ''\nmax_connections = 40\n"
        ),
    }
}

/// What is run, and for how long.
struct Plan {
    rounds: u32,
    /// Before anything is counted.
    settle: Duration,
    /// Longer, where a cache is to be full by then.
    fill: Duration,
    /// Of each depth.
    slice: Duration,
    /// Of the database, before it counts and while it does.
    warm: Duration,
    time: Duration,
    quick: bool,
}

impl Plan {
    fn new(options: &Options) -> Result<Self, BenchError> {
        options.check_loads(&LOADS)?;
        let ms = Duration::from_millis;
        let (rounds, settle, fill, slice, warm, time) = match options.quick {
            true => (1, ms(100), ms(300), ms(300), ms(1000), ms(2000)),
            false => (3, ms(500), ms(4000), ms(3000), ms(5000), ms(30_000)),
        };
        Ok(Self {
            rounds: options.rounds.unwrap_or(rounds),
            settle,
            fill,
            slice: options.seconds.map_or(slice, Duration::from_secs),
            warm,
            time: options.seconds.map_or(time, Duration::from_secs),
            quick: options.quick,
        })
    }
}

/// Where it is run.
struct Bench<'a> {
    options: &'a Options,
    plan: &'a Plan,
    cluster: Cluster,
    /// Memory for caches, if there is room.
    memory: Option<Scratch>,
    /// Volumes so far: each has a name of its own.
    volumes: u32,
}

impl Bench<'_> {
    /// A volume that nobody else has.
    fn new_volume(&mut self) -> String {
        self.volumes += 1;
        format!("volume-{}", self.volumes)
    }

    fn caches(&self) -> PathBuf {
        self.memory.as_ref().map_or_else(|| self.options.scratch.clone(), |memory| memory.path().to_owned())
    }
}

/// Runs it and returns the figures. A load or a contender that cannot run here is told in the report; the others are measured.
///
/// # Errors
/// [`BenchError`]: also if there can be no store here, or no load that was asked for can run.
pub fn distributed(options: &Options) -> Result<Report, BenchError> {
    let plan = Plan::new(options)?;
    let cluster = Cluster::start(options)?;
    let memory = Scratch::in_memory(CACHES_BYTES);
    let mut results = Results::default();
    if memory.is_none() {
        results.note("There is too little memory for the caches: their files lie in the directory.");
    }
    let mut bench = Bench { options, plan: &plan, cluster, memory, volumes: 0 };
    let measured = measure_all(&mut bench, &mut results);
    if options.is_stopped() && results.is_empty() {
        return Err(BenchError::Stopped);
    }
    if !options.is_stopped() {
        measured?;
    }
    if results.is_empty() {
        let why = results.left_out.join("; ");
        return Err(BenchError::Forebay(format!("distributed cannot run here: {why}")));
    }
    let how = format!(
        "{} of {} s at each depth, and {} s of PostgreSQL; medians",
        counted(plan.rounds.into(), "round"),
        plan.slice.as_secs_f64(),
        plan.time.as_secs_f64()
    );
    Ok(report::report(&results).under_conditions(options, how))
}

fn measure_all(bench: &mut Bench<'_>, results: &mut Results) -> Result<(), BenchError> {
    let wants = |load: &str| bench.options.wants(load);
    let stores: Vec<Store> = Store::ALL.into_iter().filter(|store| wants(store.name())).collect();
    let mut of_databases: Vec<Store> =
        Store::ALL.into_iter().filter(|store| wants(&store.database_load())).collect();
    let mut database_image = None;
    if !of_databases.is_empty() {
        let missing = PostgreSql::missing(&bench.options.scratch);
        match missing.map_or_else(|| prepare(bench), |missing| Err(BenchError::Forebay(missing))) {
            Ok(made) => database_image = Some(made),
            Err(_) if bench.options.is_stopped() => return Err(BenchError::Stopped),
            Err(e) => {
                of_databases.drain(..).for_each(|store| results.leave_out(&store.database_load(), None, &e));
            }
        }
    }
    for round in 0..bench.plan.rounds {
        for store in &stores {
            for contender in in_turn(Contender::of_writes(*store), round) {
                bench.options.go_on()?;
                let name = bench.new_volume();
                let measured = writes(bench, contender, &name, results);
                bench.cluster.remove(*store, &name);
                if let Err(e) = measured {
                    bench.options.go_on()?;
                    results.leave_out(store.name(), Some(contender), &e);
                }
            }
        }
        for store in &of_databases {
            for contender in in_turn(Contender::of_databases(*store), round) {
                let Some(image) = &database_image else { continue };
                bench.options.go_on()?;
                let name = bench.new_volume();
                let measured = transactions(bench, contender, &name, image, results);
                bench.cluster.remove(*store, &name);
                if let Err(e) = measured {
                    bench.options.go_on()?;
                    results.leave_out(&store.database_load(), Some(contender), &e);
                }
            }
        }
    }
    Ok(())
}

/// What a measurement leaves behind shall not always be the same one's.
fn in_turn(mut contenders: Vec<Contender>, round: u32) -> Vec<Contender> {
    if round % 2 == 1 {
        contenders.reverse();
    }
    contenders
}

fn prepare(bench: &Bench<'_>) -> Result<PostgreSql, BenchError> {
    let options = bench.options;
    PostgreSql::prepare(options, database(bench.plan.quick), &options.contest.settings, &options.scratch)
}

/// 4 KiB durable writes at each depth, over NBD, to a new volume.
fn writes(
    bench: &Bench<'_>,
    contender: Contender,
    name: &str,
    results: &mut Results,
) -> Result<(), BenchError> {
    let stand = Stand::serve(bench, contender, name)?;
    let mut generator = Generator::connect(stand.nbd(), 0)?;
    for depth in DEPTHS {
        bench.options.go_on()?;
        let load = |depth| Writes { kind: Kind::Write, depth, span_bytes: SPAN_BYTES, fua: true };
        if contender.is_full() {
            generator.run(load(DEPTH_MAX), Timing::at_once(bench.plan.fill))?;
        }
        let slice =
            generator.run(load(depth), Timing { settle: bench.plan.settle, counted: bench.plan.slice })?;
        eprintln!("{}, depth {depth}: {:.0} writes a second", contender.words(), slice.per_second());
        results.add_writes(contender, depth, slice)?;
        match stand.dirty_share()? {
            Some(share) if contender.is_full() => results.add_dirty_share(contender, share),
            // So that the cache has room again.
            _ => stand.flush()?,
        }
    }
    stand.flush()?;
    if let Some(cost) = stand.cost()? {
        results.add_cost(contender, &cost);
    }
    Ok(())
}

/// TPC-C on PostgreSQL, on a new volume that is mounted.
fn transactions(
    bench: &Bench<'_>,
    contender: Contender,
    name: &str,
    image: &PostgreSql,
    results: &mut Results,
) -> Result<(), BenchError> {
    if let Some(missing) = mounted::missing() {
        return Err(BenchError::Forebay(missing));
    }
    let stand = Stand::attach(bench, contender, name)?;
    let device = stand.device()?;
    let mut running = image.serve_on_new(&device, stand)?;
    running.needs_no_checkpoint_at_its_end();
    running.daemon.flush()?;
    running.warm_up()?;
    running.pgbench(bench.plan.warm)?;
    let transactions = running.pgbench(bench.plan.time)?;
    eprintln!("{}, PostgreSQL: {:.0} commits a second", contender.words(), transactions.per_second);
    results.add_transactions(contender, transactions);
    Ok(())
}
