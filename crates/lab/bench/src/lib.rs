//! Benchmarks of Forebay. Each runs the things that it compares in turn, round by round, in one run, and reports
//! ratios: the machines that it runs on are shared and noisy, and an absolute figure says little.

#![forbid(unsafe_code)]

mod admission;
mod admission_postgresql;
mod admission_redis;
mod cliffs;
mod conditions;
mod contender;
mod cpu;
mod daemon;
mod dice;
mod distributed;
mod engine;
mod file_system;
mod function;
pub mod fuzzing;
mod generator;
mod hollow;
mod load;
mod loads;
mod mounted;
mod nbd_client;
mod other;
mod pages;
mod plot;
mod policies;
mod postgresql;
mod priority;
mod recording;
mod redis;
mod report;
mod run;
mod scratch;
mod site;
mod store;
pub mod tune;
mod volume;

pub use admission_postgresql::admission_postgresql;
pub use admission_redis::{admission_redis, redis_loads};
pub use cliffs::{cliffs, cliffs_loads};
pub use distributed::{distributed, distributed_loads};
pub use engine::engine;
pub use function::{BadFunction, FORMS, Function, number};
pub use plot::Plot;
pub use policies::{contenders, loads, policies};
pub use priority::{priority, priority_loads, schedulers};
pub use report::{Figures, Report, Table};
pub use site::{check_cache, check_model};
pub use volume::volume;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_policy::Admission;
use thiserror::Error;

/// How a benchmark is to be run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Under a minute, for a first impression and for the tests.
    pub quick: bool,
    /// An empty directory on the file system that is to be measured; 2 GiB are used.
    pub scratch: PathBuf,
    /// How often each contender is measured, instead of the benchmark's own number of rounds.
    pub rounds: Option<u32>,
    /// Seconds that each measurement under a load takes, instead of the benchmark's own.
    pub seconds: Option<u64>,
    /// Loads to compare under, of [`loads()`], [`redis_loads()`] or [`priority_loads()`]; empty: all.
    pub loads: Vec<String>,
    /// Write policies that are compared beside the base, of [`contenders()`]; empty: all.
    pub contenders: Vec<String>,
    /// The emulated backing, as `hdd-10k,write-cache=no`, instead of the benchmark's own.
    pub backing_model: Option<String>,
    /// What campaigns of admission compare, and on what.
    pub contest: Contest,
    /// The `forebay` binary that is started as the daemon.
    pub forebay: PathBuf,
    /// Set when the benchmark is to end before its time: what it has started and mounted goes with it. The campaigns of admission and
    /// of schedulers report what they have measured until then, the others fail.
    pub stopped: Arc<AtomicBool>,
}

impl Options {
    /// Whether the load was asked for, by its name or with all.
    pub(crate) fn wants(&self, load: &str) -> bool {
        self.loads.is_empty() || self.loads.iter().any(|name| name == load)
    }

    /// Refuses loads that a benchmark which has these does not run.
    fn check_loads(&self, known: &[&str]) -> Result<(), BenchError> {
        let Some(foreign) = self.loads.iter().find(|load| !known.contains(&load.as_str())) else {
            return Ok(());
        };
        let has = if known.is_empty() { "no loads to choose".to_owned() } else { known.join(", ") };
        Err(BenchError::Forebay(format!(
            "'{foreign}' is no load of this benchmark as it is asked for: it has {has}"
        )))
    }

    /// Whether it is to end before its time.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Before each measurement.
    ///
    /// # Errors
    /// [`BenchError::Stopped`] if it is to end.
    fn go_on(&self) -> Result<(), BenchError> {
        if self.is_stopped() { Err(BenchError::Stopped) } else { Ok(()) }
    }
}

/// What campaigns of admission and of schedulers compare, and on what, instead of what each compares by itself. That of schedulers takes the first
/// of `caches`, and `with` is for all there.
#[derive(Clone, Debug, Default)]
pub struct Contest {
    /// The policies, `None` for no cache at all; empty: the benchmark's own.
    pub policies: Vec<Option<Admission>>,
    /// Sizes of the cache in bytes; empty: the benchmark's own.
    pub caches: Vec<u64>,
    /// The emulated cache, as `ssd-sata,plp=no`.
    pub cache_model: Option<String>,
    /// Further flags of `forebay serve`, for all who have a cache.
    pub with: Vec<(String, String)>,
    /// Further settings of PostgreSQL or Redis.
    pub settings: Vec<(String, String)>,
    /// Schedulers that are compared, of [`schedulers()`]; empty: all.
    pub schedulers: Vec<String>,
    /// Warehouses of TPC-C where schedulers are compared, instead of the benchmark's own number.
    pub warehouses: Option<u32>,
}

/// Why a benchmark gave no figures.
#[derive(Debug, Error)]
pub enum BenchError {
    /// The system refused something.
    #[error("cannot {doing}: {}", forebay_block::words_of(.source))]
    System {
        /// What was being done.
        doing: String,
        /// Why.
        source: std::io::Error,
    },
    /// Forebay refused something.
    #[error("{0}")]
    Forebay(String),
    /// It was to end before its time.
    #[error("told to stop: there is no report")]
    Stopped,
}

impl BenchError {
    fn system(doing: impl Into<String>, source: std::io::Error) -> Self {
        Self::System { doing: doing.into(), source }
    }
}
