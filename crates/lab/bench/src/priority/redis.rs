//! YCSB's A on servers of Redis whose logs are synced at each command, while snapshots are made and logs are rewritten.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::contender::Contender;
use super::image::Image;
use super::shown::{Slice, Waits};
use super::{Bench, Load};
use crate::BenchError;
use crate::redis::{Requests, Servers};

/// How often servers are asked what they are doing in the background.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// What they do there: the field that says so, and what it is called in the report.
const TASKS: [(&str, &str); 2] =
    [("rdb_bgsave_in_progress", "snapshots"), ("aof_rewrite_in_progress", "rewrites of the log")];

/// Servers' files with all records in their logs.
pub(crate) struct Records {
    image: Image,
    servers: u64,
    requests: Requests,
}

impl Records {
    pub(crate) fn prepare(bench: &Bench<'_>) -> Result<Self, BenchError> {
        let (servers, records, clients) = if bench.plan.quick { (2, 5_000, 8) } else { (4, 50_000, 40) };
        let requests = Requests { records, clients, updates_percent: 50 };
        let bytes = if bench.plan.quick { 512 << 20 } else { 4 << 30 };
        let (image, _mounted) = Image::new(bench, "redis", bytes)?;
        let loading = Servers::start(&bench.options.scratch, &image.mount, servers, &bench.plan.settings)?;
        loading.load(&requests, bench.options)?;
        drop(loading);
        Ok(Self { image, servers, requests })
    }
}

impl Load for Records {
    fn measure(&self, bench: &Bench<'_>, contender: Contender) -> Result<Slice, BenchError> {
        let (options, plan) = (bench.options, bench.plan);
        let (mounted, daemon) = self.image.serve(bench, contender, "redis")?;
        let servers = Servers::start(&options.scratch, &self.image.mount, self.servers, &plan.settings)?;
        servers.make_snapshots()?;
        let ends = AtomicBool::new(false);
        let slice = thread::scope(|scope| {
            let watching = scope.spawn(|| watch(&servers, &ends));
            let work = || {
                servers.ask(&self.requests, plan.warm, options)?;
                let (before, began) = (Waits::of(&daemon)?, Instant::now());
                let answers = servers.ask(&self.requests, plan.time, options)?;
                let waits_ms = Waits::of(&daemon)?.since(&before);
                Ok((answers, waits_ms, began))
            };
            let done: Result<_, BenchError> = work();
            ends.store(true, Ordering::Relaxed);
            let ended = watching.join().unwrap_or_else(|panic| resume_unwind(panic))?;
            let (answers, waits_ms, began) = done?;
            let mut background = TASKS.map(|(_, what)| (what, Vec::new()));
            for task in ended.into_iter().filter(|task| task.at >= began) {
                if let Some((_, took)) = background.get_mut(task.what) {
                    took.push(task.took.as_secs_f64());
                }
            }
            Ok(Slice {
                seconds: plan.time.as_secs_f64(),
                latencies_us: answers.latencies_us,
                late: 0,
                background: background.into(),
                waits_ms,
                neighbour_bytes_per_second: 0.0,
            })
        });
        drop((servers, mounted, daemon));
        slice
    }
}

/// A task in the background that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ended {
    /// Which of [`TASKS`].
    what: usize,
    at: Instant,
    took: Duration,
}

/// Follows what the servers do in the background, until it is told to end.
fn watch(servers: &Servers, ends: &AtomicBool) -> Result<Vec<Ended>, BenchError> {
    let (mut running, mut ended) = (Vec::new(), Vec::new());
    while !ends.load(Ordering::Relaxed) {
        look(&servers.persistence()?, Instant::now(), &mut running, &mut ended);
        thread::sleep(LOOK_EVERY);
    }
    Ok(ended)
}

/// Takes note of which tasks have begun and ended, by what each server says now.
fn look(
    said: &[String],
    now: Instant,
    running: &mut Vec<[Option<Instant>; TASKS.len()]>,
    ended: &mut Vec<Ended>,
) {
    running.resize(said.len(), [None; TASKS.len()]);
    for (text, since) in said.iter().zip(running) {
        for ((what, (field, _)), since) in TASKS.iter().enumerate().zip(since) {
            let is_running = text.lines().any(|line| line.strip_prefix(field) == Some(":1"));
            match *since {
                None if is_running => *since = Some(now),
                Some(began) if !is_running => {
                    ended.push(Ended { what, at: now, took: now - began });
                    *since = None;
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_in_the_background_is_followed_from_its_beginning_to_its_end() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let says = |save: u8, rewrite: u8| {
            format!("# Persistence\r\nrdb_bgsave_in_progress:{save}\r\naof_rewrite_in_progress:{rewrite}\r\n")
        };
        let (mut running, mut ended) = (Vec::new(), Vec::new());
        let steps = [[(0, 0), (1, 0)], [(1, 0), (1, 0)], [(1, 1), (0, 0)], [(0, 1), (0, 0)]];
        for (n, servers) in (0..).zip(steps) {
            look(&servers.map(|(s, r)| says(s, r)), start + second * n, &mut running, &mut ended);
        }
        let end = |at: u32, took: u32| Ended { what: 0, at: start + second * at, took: second * took };
        assert_eq!(ended, [end(2, 2), end(3, 2)], "a rewrite has not ended");
    }
}
