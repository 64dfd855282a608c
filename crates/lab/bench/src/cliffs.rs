//! `forebay bench cliffs`: a cache that is full all the time against the store without it, depth by depth; what a flush leaves to the
//! foreground; and what the write path costs.

use std::time::{Duration, Instant};

use crate::conditions::counted;
use crate::report::Report;
use crate::site::Emulated;
use crate::{BenchError, Options};

mod durable;
mod pair;
mod summary;
mod write_path;

use crate::generator::{Kind, Timing};
use crate::recording::Recording;
use pair::{Ground, Pair, Who};

/// Operations under way; those that say most come first, for who has no time for all.
const DEPTHS: [usize; 8] = [8, 1, 32, 128, 4, 16, 2, 64];
/// With `--quick` no further depth is measured on a store after so long.
const QUICK_MAX: Duration = Duration::from_secs(6);
/// Operations under way while everything is flushed.
const FLUSH_DEPTH: usize = 8;
const VOLUME_BYTES: u64 = 1 << 30;
/// The same with `--quick`: as many zeroes are written to the store's files first.
const VOLUME_BYTES_QUICK: u64 = 256 << 20;
/// The parts beside the stores.
const WRITE_PATH: &str = "write_path";
const DURABLE: &str = "durable";

/// How a store is measured.
#[derive(Clone, Debug)]
struct StorePlan {
    /// Name in figures.
    name: String,
    model: Emulated,
    /// Each slice; there are as many as rounds, of each contender at each depth.
    slice: Duration,
    /// How long cache and store's own buffer are filled before each slice.
    preload: Duration,
    /// Whether the cache is destaged behind each slice: a fast store makes much work of that, and is done with it soon. Of a slow one it
    /// takes long, and hardly a processor.
    cleans: bool,
    /// Blocks that are dirty when a flush begins under reads.
    dirty_blocks: u64,
    /// Longest slice under a flush, and of what it is compared with.
    flush_slice: Duration,
    /// How long a flush may go on behind that.
    flush_patience: Duration,
    flush_rounds: u32,
    /// No further depth is measured after so long.
    depths_max: Option<Duration>,
}

/// The name of a model in figures.
fn figure_name(model: &str) -> String {
    model.split(',').next().unwrap_or(model).replace('-', "_")
}

impl StorePlan {
    /// A disk does some hundred writes a second, a remote store 3,000, and a percentile of 99.9 needs thousands.
    fn new(model: &str, quick: bool) -> Self {
        let name = figure_name(model);
        let ms = Duration::from_millis;
        // Of one slice, before it, blocks, of a slice under a flush, and behind it.
        let (slice, preload, dirty_blocks, flush_slice, flush_patience) = match (name.as_str(), quick) {
            ("hdd_10k" | "hdd_7k2", true) => (250, 0, 100, 500, 0),
            ("hdd_10k" | "hdd_7k2", false) => (5000, 800, 1200, 6000, 40_000),
            ("remote", true) => (200, 100, 1000, 500, 500),
            ("remote", false) => (2800, 500, 4500, 6000, 20_000),
            (_, true) => (150, 150, 6000, 500, 500),
            (_, false) => (1200, 800, 12_000, 2000, 10_000),
        };
        Self {
            model: Emulated::new(model),
            slice: ms(slice),
            preload: ms(preload),
            cleans: !quick && !matches!(name.as_str(), "hdd_10k" | "hdd_7k2" | "remote"),
            dirty_blocks,
            flush_slice: ms(flush_slice),
            flush_patience: ms(flush_patience),
            flush_rounds: if quick { 1 } else { 3 },
            depths_max: quick.then_some(QUICK_MAX),
            name,
        }
    }

    fn timing(counted: Duration) -> Timing {
        Timing { settle: (counted / 10).max(Duration::from_millis(30)), counted }
    }
}

/// The stores, as `emulate:` names them.
const STORES: [&str; 4] = ["ssd-sata", "ssd-nvme", "remote", "hdd-10k"];

/// What can be measured alone: the stores, the write path's cost, and durable writes.
pub fn cliffs_loads() -> impl Iterator<Item = String> {
    let stores = STORES.iter().map(|model| figure_name(model));
    stores.chain([WRITE_PATH, DURABLE].map(str::to_owned))
}

/// What is measured.
struct Plan {
    stores: Vec<StorePlan>,
    volume_bytes: u64,
    /// Slices of each contender at each depth.
    rounds: u32,
    /// Rounds of write path and durable writes, and how long each measurement of them takes.
    path_rounds: u32,
    path_time: Duration,
}

impl Plan {
    fn new(options: &Options) -> Self {
        let models: Vec<&str> = match &options.backing_model {
            Some(model) => vec![model],
            None => STORES.to_vec(),
        };
        let mut stores: Vec<StorePlan> =
            models.into_iter().map(|model| StorePlan::new(model, options.quick)).collect();
        if options.backing_model.is_none() {
            stores.retain(|store| options.wants(&store.name));
        }
        let (rounds, path_rounds, path_ms) = if options.quick { (1, 1, 200) } else { (4, 5, 1000) };
        let mut path_time = Duration::from_millis(path_ms);
        if let Some(seconds) = options.seconds {
            path_time = Duration::from_secs(seconds);
            stores.iter_mut().for_each(|store| store.slice = path_time);
        }
        Self {
            stores,
            volume_bytes: if options.quick { VOLUME_BYTES_QUICK } else { VOLUME_BYTES },
            rounds: options.rounds.unwrap_or(rounds),
            path_rounds: options.rounds.unwrap_or(path_rounds),
            path_time,
        }
    }

    /// Rounds and seconds, for a person.
    fn how(&self) -> String {
        let slices = self.stores.iter().map(|s| format!("{} s of {}", s.slice.as_secs_f64(), s.model.name()));
        let path = format!("{} s of the write path", self.path_time.as_secs_f64());
        let all: Vec<String> = slices.chain([path]).collect();
        format!("{}: slices of {}", counted(self.rounds.into(), "round"), all.join(", "))
    }
}

/// What one store has shown.
struct StoreResult {
    /// Name in figures.
    name: String,
    /// For people.
    title: String,
    depths: Vec<DepthResult>,
    /// Depths for which there was no time.
    left_out: Vec<usize>,
    flushes: Vec<FlushResult>,
}

/// Writes at one depth.
struct DepthResult {
    depth: usize,
    cached: Recording,
    uncached: Recording,
    /// The smallest dirty share of the cache behind a slice.
    dirty_share: f64,
}

/// One kind of operation before the cache, with a flush and without.
struct FlushResult {
    kind: Kind,
    with: Recording,
    without: Recording,
}

/// Runs it and returns the figures.
///
/// # Errors
/// [`BenchError`]. What cannot be measured here (other servers that are not installed) is left out, and the report says so.
pub fn cliffs(options: &Options) -> Result<Report, BenchError> {
    let known: Vec<String> = cliffs_loads().collect();
    options.check_loads(&known.iter().map(String::as_str).collect::<Vec<_>>())?;
    let plan = Plan::new(options);
    let mut summary = summary::Summary::default();
    if !plan.stores.is_empty() {
        let ground = Ground::new(options, plan.volume_bytes)?;
        summary.note(format!("The files of the emulated devices lie {}.", ground.place()));
        for store in &plan.stores {
            summary.add_store(&measure(options, &ground, store, plan.rounds)?);
        }
    }
    if options.wants(WRITE_PATH) {
        summary.add_costs(&write_path::write_path(options, plan.path_rounds, plan.path_time)?);
    }
    if options.wants(DURABLE) {
        summary.add_durable(durable::durable(options, plan.path_rounds, plan.path_time)?);
    }
    Ok(summary.report().under_conditions(options, plan.how()))
}

fn measure(
    options: &Options,
    ground: &Ground,
    store: &StorePlan,
    rounds: u32,
) -> Result<StoreResult, BenchError> {
    let mut pair = Pair::start(options, ground, &store.model)?;
    // As long as the cache is not full there is little to destage before reads can be measured.
    let reads = measure_flush(options, &mut pair, store, Kind::Read)?;
    options.go_on()?;
    pair.fill()?;
    let (mut depths, mut left_out) = (Vec::new(), Vec::new());
    let begun = Instant::now();
    for depth in DEPTHS {
        if store.depths_max.is_some_and(|most| begun.elapsed() > most) {
            left_out.push(depth);
            continue;
        }
        let mut result =
            DepthResult { depth, cached: Recording::new()?, uncached: Recording::new()?, dirty_share: 1.0 };
        for round in 0..rounds {
            let mut turns = Who::BOTH;
            if round % 2 == 1 {
                turns.reverse();
            }
            for who in turns {
                options.go_on()?;
                let timing = StorePlan::timing(store.slice);
                let (slice, share) = pair.writes(who, depth, store.preload, timing)?;
                result.dirty_share = share.map_or(result.dirty_share, |share| share.min(result.dirty_share));
                match who {
                    Who::Cached => {
                        result.cached.add(slice);
                        if store.cleans {
                            pair.clean()?;
                        }
                    }
                    Who::Uncached => result.uncached.add(slice),
                }
            }
        }
        eprintln!("{}, {}", store.model.name(), result.in_words());
        depths.push(result);
    }
    depths.sort_by_key(|result| result.depth);
    let flushes = vec![reads, measure_flush(options, &mut pair, store, Kind::Write)?];
    let title = store.model.name().to_owned();
    Ok(StoreResult { name: store.name.clone(), title, depths, left_out, flushes })
}

/// Reads meet a cache of which a part is dirty, and are compared with reads when nothing is. Writes meet one that is full, in both cases.
fn measure_flush(
    options: &Options,
    pair: &mut Pair,
    store: &StorePlan,
    kind: Kind,
) -> Result<FlushResult, BenchError> {
    let mut result = FlushResult { kind, with: Recording::new()?, without: Recording::new()? };
    let timing = StorePlan::timing(store.flush_slice);
    for _ in 0..store.flush_rounds {
        options.go_on()?;
        match kind {
            Kind::Read => pair.clean()?,
            Kind::Write => pair.fill()?,
        }
        result.without.add(pair.without_flush(kind, FLUSH_DEPTH, timing)?);
        options.go_on()?;
        if kind == Kind::Read {
            pair.soil(store.dirty_blocks)?;
        }
        let flushed = pair.during_flush(kind, FLUSH_DEPTH, timing, store.flush_patience)?;
        result.with.add(flushed.slice);
        if !flushed.ended {
            break;
        }
    }
    Ok(result)
}
