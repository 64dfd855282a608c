//! One load on one volume, for a while.

use std::fs::File;
use std::path::Path;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use forebay_device::DeviceSpec;
use forebay_host::{JournalChoice, Volume, VolumeConfig};

use crate::BenchError;
use crate::contender::Contender;
use crate::dice::Dice;
use crate::file_system::FileSystem;
use crate::loads::Kind;
use crate::site::{Emulated, format_pair};
use crate::store::{BLOCK_BYTES, Store};

/// A store behind a network, with about 2 ms for an access as in Figure 1 of the paper; data survives the death of the process only.
pub(crate) const BACKING: &str = "remote,latency=2ms,latency-p99=5ms";
/// The paper's cache was an SSD behind PCIe.
pub(crate) const CACHE: &str = "ssd-nvme";
/// How often staleness is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Sizes and times of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    /// Bytes that the load works on.
    pub(crate) working_set: u64,
    /// Before anything is counted.
    pub(crate) warm: Duration,
    /// While it is counted.
    pub(crate) time: Duration,
}

/// What a run has shown.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    /// Operations of the load a second.
    pub(crate) per_second: f64,
    /// Bytes that the backing has got or still has to get.
    pub(crate) backing_bytes: u64,
    /// Bytes that the journal on the backing's side has got.
    pub(crate) journal_bytes: u64,
    /// Bytes of writes acknowledged.
    pub(crate) acknowledged_bytes: u64,
    /// Acknowledged data that the backing lacked, on average and at most, in seconds and bytes.
    pub(crate) staleness: Staleness,
}

/// How far the backing was behind.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Staleness {
    pub(crate) seconds_mean: f64,
    pub(crate) seconds_max: f64,
    pub(crate) bytes_mean: f64,
    pub(crate) bytes_max: f64,
}

/// The contender's journal, in a file beside that of its backing; `like` is what the backing is, and the journal, too, unless the
/// contender has another.
pub(crate) fn journal_spec(
    contender: &Contender,
    like: &Emulated,
    backing: &Path,
) -> Result<DeviceSpec, BenchError> {
    contender.journal.map_or_else(|| like.clone(), Emulated::new).at(&backing.with_extension("log"))
}

fn forebay(error: impl std::fmt::Display) -> BenchError {
    BenchError::Forebay(error.to_string())
}

/// A fresh volume of its own in `dir`.
fn open(
    dir: &Path,
    volume_bytes: u64,
    cache_bytes: u64,
    contender: &Contender,
    store: &Emulated,
) -> Result<Volume, BenchError> {
    let (cache, backing) = (dir.join("cache"), dir.join("backing"));
    for entry in
        std::fs::read_dir(dir).map_err(|e| BenchError::system("look into the scratch directory", e))?
    {
        let path = entry.map_err(|e| BenchError::system("look into the scratch directory", e))?.path();
        let leftover = path
            .file_name()
            .and_then(|n| n.to_str())
            .is_some_and(|n| n.starts_with("cache") || n.starts_with("backing"));
        if leftover {
            std::fs::remove_file(&path)
                .map_err(|e| BenchError::system(format!("remove {}", path.display()), e))?;
        }
    }
    format_pair(&cache, &backing, cache_bytes, Some(volume_bytes))?;
    let mut config = VolumeConfig::new("bench", Some(Emulated::new(CACHE).at(&cache)?), store.at(&backing)?);
    // Twice the cache, so that the log is full before the ring is.
    let ring = backing.with_extension("log");
    File::create(&ring)
        .and_then(|file| file.set_len(2 * cache_bytes))
        .map_err(|e| BenchError::system(format!("make {}", ring.display()), e))?;
    config.settings = contender.settings;
    config.journal = JournalChoice::At(journal_spec(contender, store, &backing)?);
    Volume::open(config).map_err(forebay)
}

/// Runs a load on a fresh volume before `store` whose cache has `cache_bytes`.
pub(crate) fn run(
    dir: &Path,
    store: &Emulated,
    kind: Kind,
    contender: &Contender,
    cache_bytes: u64,
    scale: Scale,
) -> Result<Outcome, BenchError> {
    let geometry = kind.geometry(scale.working_set, (scale.time / 4).max(Duration::from_millis(100)));
    let volume = open(dir, geometry.blocks() * BLOCK_BYTES, cache_bytes, contender, store)?;
    let handle = volume.handle();
    let fs = FileSystem::new(Store::new(Arc::new(handle.clone())), geometry);
    let load = kind.load(&geometry);
    fs.set_up(&load.written(&geometry))?;
    handle.destage().map_err(forebay)?;
    let set_up = handle.status();
    let (stop, steps, failure) = (AtomicBool::new(false), AtomicU64::new(0), Mutex::new(None));
    let note = |result: Result<(), BenchError>| {
        if let Err(error) = result {
            stop.store(true, Ordering::Relaxed);
            fs.stop();
            failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    };
    let mut outcome = Outcome::default();
    thread::scope(|scope| {
        scope.spawn(|| note(fs.write_back()));
        for client in 0..kind.clients() {
            let (note, stop, steps, fs, load) = (&note, &stop, &steps, &fs, &load);
            scope.spawn(move || {
                let mut dice = Dice::new(client);
                while !stop.load(Ordering::Relaxed) {
                    note(load.step(&mut dice, fs));
                    steps.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        thread::sleep(scale.warm);
        let (start, before) = (Instant::now(), steps.load(Ordering::Relaxed));
        outcome.staleness = watch(&handle, scale.time, &stop);
        let done = steps.load(Ordering::Relaxed) - before;
        outcome.per_second = done as f64 / start.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        fs.stop();
    });
    if let Some(error) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    // What is dirty has to go to the backing, too: from a cache that was never full nothing would have gone there yet.
    let status = handle.status();
    outcome.backing_bytes = status.bytes_to_backing + status.dirty_bytes - set_up.bytes_to_backing;
    outcome.journal_bytes = status.bytes_to_journal - set_up.bytes_to_journal;
    outcome.acknowledged_bytes = status.bytes_acknowledged - set_up.bytes_acknowledged;
    Ok(outcome)
}

/// Looks at the volume's staleness for a while.
fn watch(handle: &forebay_host::VolumeHandle, time: Duration, stop: &AtomicBool) -> Staleness {
    let start = Instant::now();
    let (mut staleness, mut looks) = (Staleness::default(), 0u32);
    while start.elapsed() < time && !stop.load(Ordering::Relaxed) {
        thread::sleep(LOOK_EVERY.min(time.saturating_sub(start.elapsed())));
        let status = handle.status();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let age = |oldest: u64| now.saturating_sub(Duration::from_nanos(oldest)).as_secs_f64();
        let (seconds, bytes) = (status.oldest_dirty_ns.map_or(0.0, age), status.dirty_bytes as f64);
        looks += 1;
        staleness.seconds_mean += (seconds - staleness.seconds_mean) / f64::from(looks);
        staleness.bytes_mean += (bytes - staleness.bytes_mean) / f64::from(looks);
        staleness.seconds_max = staleness.seconds_max.max(seconds);
        staleness.bytes_max = staleness.bytes_max.max(bytes);
    }
    staleness
}
