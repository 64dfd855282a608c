//! YCSB's A on WiredTiger as MongoDB drives it: clients that commit, a checkpoint after the other, eviction. The driver is a program in Python.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::contender::Contender;
use super::image::Image;
use super::shown::{Slice, Waits};
use super::{Bench, Load};
use crate::mounted::{self, call, call_long, path};
use crate::{BenchError, Options};

/// The driver.
const DRIVER: &str = include_str!("../../../../../tests/clients/wiredtiger_load.py");
/// Makes a Python that has WiredTiger.
const INSTALLER: &str = include_str!("../../../../../scripts/wiredtiger.sh");
/// Where that Python is, if not beside the report.
const PLACE: &str = "FOREBAY_WIREDTIGER";
/// From one checkpoint's end to the next one's beginning. MongoDB's 60 are for caches that are hundreds of times as large.
const CHECKPOINT_SECONDS: &str = "1";
/// Longest that the driver takes beyond what it is told.
const PATIENCE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(20);

/// What is missing to run it here, if anything is; WiredTiger itself is installed.
pub(crate) fn missing() -> Option<String> {
    let python = || call("python3", &["--version"]).err().map(|_| "python3 is missing".to_owned());
    mounted::missing().or_else(python)
}

/// Where the Python with WiredTiger is, or will be: beside the report, so that it is made once.
fn place(options: &Options) -> PathBuf {
    let beside = || options.scratch.parent().unwrap_or(&options.scratch).join("wiredtiger");
    std::env::var_os(PLACE).map_or_else(beside, PathBuf::from)
}

fn python(options: &Options) -> PathBuf {
    place(options).join("bin/mongod")
}

/// Whether WiredTiger is installed.
pub(crate) fn is_there(options: &Options) -> bool {
    call(python(options), &["-c", "import wiredtiger; wiredtiger.wiredtiger_version()"]).is_ok()
}

/// A database with all records.
pub(crate) struct Documents {
    image: Image,
    python: PathBuf,
    driver: PathBuf,
    records: u64,
    threads: u64,
    cache_mib: u64,
}

impl Documents {
    pub(crate) fn prepare(bench: &Bench<'_>) -> Result<Self, BenchError> {
        let options = bench.options;
        let written = |name: &str, text: &str| {
            let place = options.scratch.join(name);
            let made = |e| BenchError::system(format!("make {}", place.display()), e);
            fs::write(&place, text).map_err(made).map(|()| place.clone())
        };
        // Not `wiredtiger.py`: that would be the module for whoever imports it from there.
        let (driver, installer) =
            (written("wiredtiger_load.py", DRIVER)?, written("wiredtiger.sh", INSTALLER)?);
        if !is_there(options) {
            eprintln!("installing WiredTiger into {}, which takes minutes", place(options).display());
            call_long("bash", &[path(&installer)?, path(&place(options))?], &options.stopped)?;
        }
        let (records, threads, cache_mib) =
            if bench.plan.quick { (20_000, 8, 16) } else { (100_000, 24, 40) };
        let (image, mounted) =
            Image::new(bench, "wiredtiger", if bench.plan.quick { 1 << 29 } else { 2 << 30 })?;
        let documents = Self { image, python: python(options), driver, records, threads, cache_mib };
        let args = documents.args("load")?;
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        call_long(&documents.python, &args, &options.stopped)?;
        drop(mounted);
        Ok(documents)
    }

    fn args(&self, what: &str) -> Result<Vec<String>, BenchError> {
        let (records, cache) = (self.records.to_string(), self.cache_mib.to_string());
        let directory = self.image.mount.join("db");
        let all =
            [path(&self.driver)?, what, path(&directory)?, "--records", &records, "--cache-mib", &cache];
        Ok(all.map(str::to_owned).to_vec())
    }
}

impl Load for Documents {
    fn measure(&self, bench: &Bench<'_>, contender: Contender) -> Result<Slice, BenchError> {
        let plan = bench.plan;
        let (mounted, daemon) = self.image.serve(bench, contender, "mongodb")?;
        let latencies = bench.options.scratch.join("wiredtiger.latencies");
        let [threads, warm, seconds] =
            [self.threads as f64, plan.warm.as_secs_f64(), plan.time.as_secs_f64()]
                .map(|number| number.to_string());
        let mut args = self.args("run")?;
        let further =
            ["--threads", &threads, "--warm", &warm, "--seconds", &seconds, "--latencies", path(&latencies)?];
        args.extend(further.into_iter().chain(["--checkpoint", CHECKPOINT_SECONDS]).map(str::to_owned));
        let mut running = Running::start(&self.python, &args, &bench.options.scratch)?;
        let until = Instant::now() + plan.warm + plan.time + PATIENCE;
        running.says(bench.options, until, |said| {
            said.errors.lines().any(|line| line == "counting").then_some(())
        })?;
        let before = Waits::of(&daemon)?;
        let figures: Value =
            running.says(bench.options, until, |said| serde_json::from_str(&said.output).ok())?;
        let waits_ms = Waits::of(&daemon)?.since(&before);
        // It would close the database in its own time; its files are thrown away.
        drop(running);
        let bytes = fs::read(&latencies).map_err(|e| BenchError::system("read WiredTiger's latencies", e))?;
        let slice = of_driver(&figures, &bytes)?;
        drop((mounted, daemon));
        Ok(Slice { waits_ms, ..slice })
    }
}

/// What the driver has measured.
fn of_driver(figures: &Value, latencies: &[u8]) -> Result<Slice, BenchError> {
    let strange = || BenchError::Forebay(format!("WiredTiger's driver says {figures}"));
    let seconds = figures.get("seconds").and_then(Value::as_f64).ok_or_else(strange)?;
    let late = figures.get("operations_late").and_then(Value::as_u64).ok_or_else(strange)?;
    let checkpoints = figures.get("checkpoint_ms").and_then(Value::as_array).ok_or_else(strange)?;
    let took = checkpoints.iter().filter_map(Value::as_f64).map(|ms| ms / 1000.0).collect();
    let (numbers, rest) = latencies.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(BenchError::Forebay("WiredTiger's latencies are cut off".to_owned()));
    }
    let mut latencies_us: Vec<u64> = numbers.iter().map(|us| u32::from_ne_bytes(*us).into()).collect();
    latencies_us.sort_unstable();
    let background = [("checkpoints", took)].into();
    Ok(Slice { seconds, latencies_us, late, background, ..Slice::default() })
}

/// What the driver has said so far.
struct Said {
    output: String,
    errors: String,
}

/// The driver at work. Dropping it ends it.
struct Running {
    child: Child,
    output: PathBuf,
    errors: PathBuf,
}

impl Running {
    fn start(python: &Path, args: &[String], dir: &Path) -> Result<Self, BenchError> {
        let failed = |e| BenchError::system("start WiredTiger's driver", e);
        let (output, errors) = (dir.join("wiredtiger.out"), dir.join("wiredtiger.err"));
        let mut command = Command::new(python);
        command.args(args).stdin(Stdio::null()).process_group(0);
        command.stdout(File::create(&output).map_err(failed)?).stderr(File::create(&errors).map_err(failed)?);
        Ok(Self { child: command.spawn().map_err(failed)?, output, errors })
    }

    fn said(&self) -> Said {
        // What is not there yet comes.
        let text = |place: &Path| fs::read_to_string(place).unwrap_or_default();
        Said { output: text(&self.output), errors: text(&self.errors) }
    }

    /// Waits until it has said something.
    fn says<T>(
        &mut self,
        options: &Options,
        until: Instant,
        what: impl Fn(&Said) -> Option<T>,
    ) -> Result<T, BenchError> {
        loop {
            options.go_on()?;
            let ended = !matches!(self.child.try_wait(), Ok(None));
            let said = self.said();
            if let Some(found) = what(&said) {
                return Ok(found);
            }
            if ended || Instant::now() >= until {
                return Err(BenchError::Forebay(format!(
                    "WiredTiger's driver {}: {}",
                    if ended { "has ended too early" } else { "takes too long" },
                    said.errors.trim()
                )));
            }
            thread::sleep(POLL);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // It has not been waited for, so that its number is still its own.
            let _ = kill_process(Pid::from_child(&self.child), Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_figures_are_read_as_it_writes_them() {
        let figures = serde_json::json!({
            "seconds": 2.0, "checkpoint_ms": [1500.0, 500.0], "operations": 2, "operations_late": 1,
        });
        let bytes: Vec<u8> = [900u32, 100, 500].iter().flat_map(|us| us.to_ne_bytes()).collect();
        let slice = of_driver(&figures, &bytes).unwrap();
        assert_eq!((slice.seconds, slice.latencies_us.as_slice()), (2.0, &[100, 500, 900][..]));
        assert_eq!(slice.per_second(), 1.0, "what ended too late is in no rate");
        assert_eq!(
            (slice.background["checkpoints"].len(), slice.background_seconds("checkpoints")),
            (2, Some(1.0))
        );
        assert!(
            of_driver(&figures, &bytes[1..]).is_err() && of_driver(&serde_json::json!({}), &bytes).is_err()
        );
    }
}
