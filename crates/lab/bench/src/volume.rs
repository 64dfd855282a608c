//! `forebay bench volume`: durable writes to the raw cache device against the engine in this process, a volume over
//! NBD, and an attached volume.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_device::{Access, Clock, Device, DeviceSpec, Ring, open};
use forebay_host::{Volume, VolumeConfig};

use crate::conditions::rounds_of;
use crate::cpu::cpu_time;
use crate::daemon::Daemon;
use crate::load::{self, Sample, Shape};
use crate::nbd_client::NbdClient;
use crate::report::{Figures, Report, median};
use crate::site::format_pair;
use crate::{BenchError, Options};

const SHAPES: [Shape; 5] = [
    Shape { name: "4k_depth1", bytes: 4096, depth: 1 },
    Shape { name: "4k_depth4", bytes: 4096, depth: 4 },
    Shape { name: "4k_depth16", bytes: 4096, depth: 16 },
    Shape { name: "4k_depth64", bytes: 4096, depth: 64 },
    Shape { name: "1m_depth4", bytes: 1 << 20, depth: 4 },
];

/// The system counts processor time in steps of 10 ms: of less than so much a part for each write is chance.
const CPU_TIME_MIN: Duration = Duration::from_millis(100);

/// Sizes in bytes and times of a run.
struct Scale {
    cache: u64,
    backing: u64,
    working_set: u64,
    rounds: u32,
    time: Duration,
}

impl Scale {
    fn new(options: &Options) -> Self {
        let (cache, rounds, millis) = if options.quick { (256 << 20, 1, 60) } else { (1 << 30, 5, 1000) };
        Self {
            cache,
            backing: 1 << 30,
            working_set: 32 << 20,
            rounds: options.rounds.unwrap_or(rounds),
            time: options.seconds.map_or(Duration::from_millis(millis), Duration::from_secs),
        }
    }
}

/// What has been measured of one thing under one shape.
#[derive(Clone, Debug, Default)]
struct Measured {
    per_second: Vec<f64>,
    writes: u64,
    cpu: Duration,
}

impl Measured {
    fn add(&mut self, sample: Sample, cpu: Duration) {
        self.per_second.push(sample.per_second());
        self.writes += sample.writes;
        self.cpu += cpu;
    }

    fn median(&self) -> f64 {
        median(self.per_second.iter().copied())
    }

    /// For each write; nothing if too few steps of the system's account were counted to say something.
    fn cpu_us(&self) -> Option<f64> {
        (self.cpu >= CPU_TIME_MIN && self.writes > 0)
            .then(|| self.cpu.as_secs_f64() * 1e6 / self.writes as f64)
    }
}

/// Runs it and returns the figures.
///
/// # Errors
/// [`BenchError`]. What cannot be measured here (attaching needs root and FUSE) is left out and said on stderr.
pub fn volume(options: &Options) -> Result<Report, BenchError> {
    options.check_loads(&[])?;
    let scale = Scale::new(options);
    let dir = &options.scratch;
    let raw_path = dir.join("raw");
    let ring = Ring::new().map_err(|e| BenchError::system("set up io_uring", e))?;
    let clock = Clock::start();
    make_file(&raw_path, scale.working_set.max(64 << 20))?;
    let mut raw = open_device(&raw_path, &ring)?;
    let (cache_a, backing_a) = make_volume(dir, "engine", scale.cache, scale.backing)?;
    let (cache_b, backing_b) = make_volume(dir, "daemon", scale.cache, scale.backing)?;
    let config = VolumeConfig::new("engine", Some(DeviceSpec::Path(cache_a)), DeviceSpec::Path(backing_a));
    let volume = Volume::open(config).map_err(|e| BenchError::Forebay(e.to_string()))?;
    let fuse = Path::new("/dev/fuse").exists() && Path::new("/dev/loop-control").exists();
    let (cache_b, backing_b) = (DeviceSpec::Path(cache_b), DeviceSpec::Path(backing_b));
    let mut daemon = Daemon::start(&[], &options.forebay, dir, Some(&cache_b), &backing_b, fuse, &[])?;
    let mut nbd =
        NbdClient::connect(&daemon.nbd).map_err(|e| BenchError::system("connect to the daemon by NBD", e))?;
    let mut attached = match fuse {
        true => {
            let path = daemon.attach()?;
            Some(open_device(&path, &ring)?)
        }
        false => {
            eprintln!("attached volume: not measured, for lack of FUSE or loop devices");
            None
        }
    };

    let mut measured: BTreeMap<(&str, &str), Measured> = BTreeMap::new();
    let mut bytes: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    let own = std::process::id();
    let (time, set) = (scale.time, scale.working_set);
    for _ in 0..scale.rounds {
        for shape in SHAPES {
            let mut measure = |what: &'static str, run: &mut dyn FnMut() -> Result<Sample, BenchError>| {
                options.go_on()?;
                let before = cpu_time(own) + cpu_time(daemon.pid());
                let sample = run()?;
                let cpu = (cpu_time(own) + cpu_time(daemon.pid())).saturating_sub(before);
                measured.entry((shape.name, what)).or_default().add(sample, cpu);
                Ok::<(), BenchError>(())
            };
            measure("raw", &mut || load::raw(&ring, &clock, &mut *raw, shape, true, set, time))?;
            let before = volume.handle().status();
            measure("engine", &mut || load::engine(&volume.handle(), shape, set, time))?;
            let after = volume.handle().status();
            let sums = bytes.entry(shape.name).or_default();
            sums.0 += after.bytes_to_cache - before.bytes_to_cache;
            sums.1 += after.bytes_acknowledged - before.bytes_acknowledged;
            measure("nbd", &mut || load::nbd(&mut nbd, shape, set, time))?;
            if let Some(device) = &mut attached {
                measure("attached", &mut || {
                    load::raw(&ring, &clock, &mut **device, shape, false, set, time)
                })?;
            }
        }
    }
    drop(attached);
    let how = rounds_of(scale.rounds, scale.time);
    Ok(report(&measured, &bytes).under_conditions(options, how))
}

/// What the figures are, for who has the report alone.
const MEANINGS: &[&str] = &[
    "Each thing writes durably in a closed loop: 4k_depth16 is writes of 4 KiB, 16 of them under way.",
    "raw is the cache's device alone, the limit; engine a volume in this process; nbd one of a daemon over NBD; attached the same as a block device.",
    "of_raw: writes per second against those of the raw device.",
    "bytes_ratio: bytes written to the cache for each byte acknowledged, headers and summaries included.",
    "cpu_us: processor time of benchmark and daemon for each write, in microseconds.",
];

fn report(measured: &BTreeMap<(&str, &str), Measured>, bytes: &BTreeMap<&str, (u64, u64)>) -> Report {
    let (mut figures, mut absolute) = (Figures::new(), Figures::new());
    let (mut charts, mut rows) = (Vec::new(), Vec::new());
    for shape in SHAPES {
        let raw = measured.get(&(shape.name, "raw")).map_or(0.0, Measured::median);
        let (to_cache, acknowledged) = bytes.get(shape.name).copied().unwrap_or_default();
        let bytes_ratio = (acknowledged > 0).then(|| to_cache as f64 / acknowledged as f64);
        if let Some(ratio) = bytes_ratio {
            figures.insert(format!("engine_{}_bytes_ratio", shape.name), ratio);
            absolute.insert(format!("engine_{}_bytes_to_cache", shape.name), to_cache as f64);
            absolute.insert(format!("engine_{}_bytes_acknowledged", shape.name), acknowledged as f64);
        }
        let mut bars = Vec::new();
        for what in ["raw", "engine", "nbd", "attached"] {
            let Some(m) = measured.get(&(shape.name, what)) else { continue };
            let per_second = m.median();
            bars.push((what.to_owned(), per_second));
            absolute.insert(format!("{what}_{}_writes_per_second", shape.name), per_second);
            if let Some(cpu_us) = m.cpu_us() {
                figures.insert(format!("{what}_{}_cpu_us", shape.name), cpu_us);
            }
            let of_raw = (what != "raw" && raw > 0.0).then(|| per_second / raw);
            if let Some(ratio) = of_raw {
                figures.insert(format!("{what}_{}_of_raw", shape.name), ratio);
            }
            let said = |value: Option<f64>, digits: usize| {
                value.map_or_else(String::new, |value| format!("{value:.digits$}"))
            };
            rows.push(vec![
                shape.name.to_owned(),
                what.to_owned(),
                format!("{per_second:.0}"),
                said(Some(per_second * shape.bytes as f64 / f64::from(1 << 20)), 1),
                said(of_raw, 3),
                said(bytes_ratio.filter(|_| what == "engine"), 3),
                said(m.cpu_us(), 1),
            ]);
        }
        charts.push((format!("{}: durable writes per second", shape.name), bars));
    }
    let columns = ["shape", "what", "writes/s", "MiB/s", "of_raw", "bytes_ratio", "cpu_us"];
    let table =
        ("Measured, and against the raw device".to_owned(), columns.map(str::to_owned).to_vec(), rows);
    Report {
        name: "volume",
        title: "Durable writes: raw cache device, engine in process, NBD, attached block device, in turn in one run".to_owned(),
        notes: MEANINGS.iter().map(|text| (*text).to_owned()).collect(),
        figures,
        measured: absolute,
        charts,
        tables: vec![table],
        ..Report::default()
    }
}

pub(crate) fn make_file(path: &Path, bytes: u64) -> Result<(), BenchError> {
    let doing = || format!("write {}", path.display());
    let chunk = vec![0u8; 1 << 20];
    let mut file = File::create(path).map_err(|e| BenchError::system(doing(), e))?;
    for _ in 0..bytes / chunk.len() as u64 {
        std::io::Write::write_all(&mut file, &chunk).map_err(|e| BenchError::system(doing(), e))?;
    }
    file.sync_all().map_err(|e| BenchError::system(doing(), e))
}

pub(crate) fn open_device(path: &Path, ring: &Ring) -> Result<Box<dyn Device>, BenchError> {
    open(&DeviceSpec::Path(path.to_owned()), ring, Access::ReadWrite)
        .map_err(|e| BenchError::Forebay(e.to_string()))
}

/// The files of a new cache and a new backing.
pub(crate) fn make_volume(
    dir: &Path,
    name: &str,
    cache_bytes: u64,
    backing_bytes: u64,
) -> Result<(PathBuf, PathBuf), BenchError> {
    let (cache, backing) = (dir.join(format!("{name}.cache")), dir.join(format!("{name}.img")));
    fs::create_dir_all(dir).map_err(|e| BenchError::system(format!("make {}", dir.display()), e))?;
    format_pair(&cache, &backing, cache_bytes, Some(backing_bytes))?;
    Ok((cache, backing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_that_says_nothing_is_left_out() {
        let of =
            |millis, writes| Measured { writes, cpu: Duration::from_millis(millis), ..Measured::default() };
        let shape = SHAPES[0].name;
        let figures =
            |raw: Measured| report(&BTreeMap::from([((shape, "raw"), raw)]), &BTreeMap::new()).figures;
        let name = format!("raw_{shape}_cpu_us");
        assert_eq!(figures(of(200, 1000)).get(&name), Some(&200.0));
        for (millis, writes) in [(0, 1000), (90, 1000), (200, 0)] {
            assert_eq!(figures(of(millis, writes)).get(&name), None, "{millis} ms, {writes} writes");
        }
    }

    #[test]
    fn what_was_measured_stands_beside_the_ratios() {
        let shape = SHAPES[0].name;
        let of = |per_second| Measured { per_second: vec![per_second], ..Measured::default() };
        let measured = BTreeMap::from([((shape, "raw"), of(1000.0)), ((shape, "engine"), of(512.0))]);
        let report = report(&measured, &BTreeMap::from([(shape, (3 << 20, 2 << 20))]));
        let name = |what: &str, ending: &str| format!("{what}_{shape}_{ending}");
        assert_eq!(report.figures[&name("engine", "of_raw")], 0.512);
        assert_eq!(report.measured[&name("engine", "writes_per_second")], 512.0);
        assert_eq!(report.measured[&name("raw", "writes_per_second")], 1000.0);
        let (_, _, rows) = &report.tables[0];
        assert_eq!(
            rows.iter().map(|row| row.join(" ")).collect::<Vec<_>>(),
            ["4k_depth1 raw 1000 3.9   ", "4k_depth1 engine 512 2.0 0.512 1.500 "]
        );
        assert!(!report.figures.contains_key("engine_4k_depth4_bytes_ratio"), "nothing was written");
        assert!(report.notes.iter().any(|note| note.starts_with("bytes_ratio: ")));
    }
}
