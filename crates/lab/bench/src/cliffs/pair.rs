//! A store twice, in two daemons: behind a cache that is full, and as it is. One of them has a load at a time.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use forebay_device::DeviceSpec;

use crate::daemon::Daemon;
use crate::generator::{DEPTH_MAX, Generator, Kind, Load, Timing};
use crate::recording::Slice;
use crate::scratch::Scratch;
use crate::site::{Emulated, NVDRAM, format_pair};
use crate::volume::make_file;
use crate::{BenchError, Options};

/// The cache: small beside the volume, so that it is full whenever more comes than the store takes.
pub(crate) const CACHE_BYTES: u64 = 64 << 20;
/// The cache counts as full when its dirty share grows by less than this in [`FILL_STEP`].
const FULL_GROWTH: f64 = 0.02;
/// What has been full and has such a dirty share still is.
const FULL_SURELY: f64 = 0.7;
/// Until then it is written so long at a time.
const FILL_STEP: Duration = Duration::from_millis(150);
/// Least dirty share of a cache that counts as full: a third is where destaging begins.
const FULL_LEAST: f64 = 0.4;
/// Longest time that filling may take.
const FILL_MAX: Duration = Duration::from_secs(30);
/// How often it is looked whether a flush has ended.
const POLL: Duration = Duration::from_millis(5);

/// The files that emulated devices stand on: in memory if there is room, as they must be faster than what is emulated.
pub(crate) struct Ground {
    dir: PathBuf,
    /// What goes with it.
    memory: Option<Scratch>,
    volume_bytes: u64,
}

impl Ground {
    pub(crate) fn new(options: &Options, volume_bytes: u64) -> Result<Self, BenchError> {
        let memory = Scratch::in_memory(2 * volume_bytes + CACHE_BYTES);
        let dir = memory.as_ref().map_or(options.scratch.as_path(), Scratch::path).to_owned();
        let ground = Self { dir, memory, volume_bytes };
        for who in Who::BOTH {
            make_file(&ground.backing(who), volume_bytes)?;
        }
        Ok(ground)
    }

    /// Where the files are, for a person.
    pub(crate) fn place(&self) -> &'static str {
        match self.memory {
            Some(_) => "in memory",
            None => "in the directory, for there is too little memory",
        }
    }

    fn backing(&self, who: Who) -> PathBuf {
        self.dir.join(format!("{}.img", who.name()))
    }
}

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Cached,
    Uncached,
}

impl Who {
    pub(crate) const BOTH: [Self; 2] = [Self::Cached, Self::Uncached];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cached => "cached",
            Self::Uncached => "uncached",
        }
    }
}

/// A daemon, and what has a load for it.
struct Side {
    daemon: Daemon,
    generator: Generator,
}

/// See the module's documentation.
pub(crate) struct Pair {
    cached: Side,
    uncached: Side,
    span_bytes: u64,
}

/// What a flush under a load has shown.
pub(crate) struct Flushed {
    pub(crate) slice: Slice,
    /// Whether the flush had ended when the next thing was to begin.
    pub(crate) ended: bool,
}

impl Pair {
    pub(crate) fn start(options: &Options, ground: &Ground, store: &Emulated) -> Result<Self, BenchError> {
        let side = |who: Who| -> Result<Side, BenchError> {
            let backing = ground.backing(who);
            let cache = match who {
                Who::Cached => Some(make_cache(&ground.dir.join("cache"), &backing)?),
                Who::Uncached => None,
            };
            let dir = options.scratch.join(who.name());
            fs::create_dir_all(&dir).map_err(|e| BenchError::system(format!("make {}", dir.display()), e))?;
            let backing = store.at(&backing)?;
            let daemon = Daemon::start(&[], &options.forebay, &dir, cache.as_ref(), &backing, false, &[])?;
            let generator = Generator::connect(&daemon.nbd, who as u64)?;
            Ok(Side { daemon, generator })
        };
        Ok(Self {
            cached: side(Who::Cached)?,
            uncached: side(Who::Uncached)?,
            span_bytes: ground.volume_bytes,
        })
    }

    fn side(&mut self, who: Who) -> &mut Side {
        match who {
            Who::Cached => &mut self.cached,
            Who::Uncached => &mut self.uncached,
        }
    }

    fn load(&self, kind: Kind, depth: usize) -> Load {
        Load { kind, depth, span_bytes: self.span_bytes, fua: false }
    }

    /// Writes until the cache is full.
    pub(crate) fn fill(&mut self) -> Result<(), BenchError> {
        let load = self.load(Kind::Write, DEPTH_MAX);
        let begun = Instant::now();
        let mut before = self.cached.daemon.dirty_share()?;
        if before >= FULL_SURELY {
            return Ok(());
        }
        while begun.elapsed() < FILL_MAX {
            self.cached.generator.run(load, Timing::at_once(FILL_STEP))?;
            let share = self.cached.daemon.dirty_share()?;
            if share >= FULL_LEAST && share - before < FULL_GROWTH {
                return Ok(());
            }
            before = share;
        }
        Err(BenchError::Forebay(format!(
            "the cache does not become full: after {} s {:.0}% of it are dirty",
            FILL_MAX.as_secs(),
            100.0 * before
        )))
    }

    /// A slice of writes, after `preload` at the greatest depth, which fills the cache and the store's own buffer; and the cache's dirty
    /// share behind it.
    pub(crate) fn writes(
        &mut self,
        who: Who,
        depth: usize,
        preload: Duration,
        timing: Timing,
    ) -> Result<(Slice, Option<f64>), BenchError> {
        let (before, load) = (self.load(Kind::Write, DEPTH_MAX), self.load(Kind::Write, depth));
        let side = self.side(who);
        if !preload.is_zero() {
            side.generator.run(before, Timing::at_once(preload))?;
        }
        let slice = side.generator.run(load, timing)?;
        let share = (who == Who::Cached).then(|| side.daemon.dirty_share()).transpose()?;
        Ok((slice, share))
    }

    /// Destages everything.
    pub(crate) fn clean(&mut self) -> Result<(), BenchError> {
        self.cached.daemon.flush()
    }

    /// Writes so many blocks to the cache.
    pub(crate) fn soil(&mut self, blocks: u64) -> Result<(), BenchError> {
        let load = self.load(Kind::Write, DEPTH_MAX);
        let most = Timing::at_once(FILL_MAX);
        self.cached.generator.run_until(load, most, &|sent| sent >= blocks).map(drop)
    }

    /// A slice before the cache.
    pub(crate) fn without_flush(
        &mut self,
        kind: Kind,
        depth: usize,
        timing: Timing,
    ) -> Result<Slice, BenchError> {
        let load = self.load(kind, depth);
        self.cached.generator.run(load, timing)
    }

    /// The same while everything is flushed: until that has ended, or the time is over. The flush may then go on for `patience`.
    pub(crate) fn during_flush(
        &mut self,
        kind: Kind,
        depth: usize,
        timing: Timing,
        patience: Duration,
    ) -> Result<Flushed, BenchError> {
        let load = self.load(kind, depth);
        let flush = Flush::begin_after(timing.settle, self.cached.daemon.flusher());
        let slice = self.cached.generator.run_until(load, timing, &|_| flush.has_ended())?;
        let ended = flush.wait(patience)?;
        Ok(Flushed { slice, ended })
    }
}

/// A flush on a thread of its own.
struct Flush {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), BenchError>>,
}

impl Flush {
    fn begin_after(pause: Duration, flush: impl FnOnce() -> Result<(), BenchError> + Send + 'static) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&ended);
        let thread = thread::spawn(move || {
            thread::sleep(pause);
            let result = flush();
            flag.store(true, Ordering::Release);
            result
        });
        Self { ended, thread }
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Whether it has ended within so long; if not, it is left to itself, and ends with its daemon.
    fn wait(self, patience: Duration) -> Result<bool, BenchError> {
        let until = Instant::now() + patience;
        while !self.has_ended() {
            if Instant::now() >= until {
                return Ok(false);
            }
            thread::sleep(POLL);
        }
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).map(|()| true)
    }
}

/// A new cache in front of `backing`, in memory.
fn make_cache(cache: &Path, backing: &Path) -> Result<DeviceSpec, BenchError> {
    let mut label = backing.as_os_str().to_owned();
    label.push(forebay_host::LABEL_SUFFIX);
    for old in [cache, Path::new(&label)] {
        // It is there from the second time on.
        let _ = fs::remove_file(old);
    }
    format_pair(cache, backing, CACHE_BYTES, None)?;
    Emulated::new(NVDRAM).at(cache)
}
