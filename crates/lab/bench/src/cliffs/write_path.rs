//! What a write over NBD costs the server in processor time: a volume with its cache in memory, beside other servers of memory.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use forebay_device::DeviceSpec;
use rustix::process::{Pid, Signal, kill_process};

use crate::cliffs::generator::{Generator, Kind, Load, Timing};
use crate::cpu::precise_cpu_time;
use crate::daemon::Daemon;
use crate::report::median;
use crate::scratch::Scratch;
use crate::volume::make_volume;
use crate::{BenchError, Options};

/// Writes under way.
pub(crate) const DEPTHS: [usize; 2] = [1, 16];
/// What is written to, over and over.
const SPAN_BYTES: u64 = 32 << 20;
/// The cache has room for the writes of a moment.
const CACHE_BYTES: u64 = 256 << 20;
const BACKING_BYTES: u64 = 64 << 20;
/// Longest time until another server listens.
const START_MAX: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(10);

/// What one server took for each write, of each depth.
pub(crate) struct Cost {
    /// Name in figures.
    pub(crate) name: &'static str,
    /// Depth, processor time and time for each write, both in microseconds: medians of the rounds.
    pub(crate) of_depths: Vec<(usize, f64, f64)>,
}

/// What was measured, and sentences on what could not be.
pub(crate) struct Costs {
    pub(crate) costs: Vec<Cost>,
    pub(crate) left_out: Vec<String>,
}

/// A server of somebody else. Dropping it ends it.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        // It has not been waited for, so that its pid is still its own.
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}

/// What keeps a server running.
#[expect(dead_code, reason = "it is held for what its end does")]
enum Running {
    Forebay(Daemon),
    Other(Other),
}

struct Server {
    name: &'static str,
    pid: u32,
    generator: Generator,
    /// Depth, and microseconds of each round.
    cpu_us: Vec<(usize, f64)>,
    took_us: Vec<(usize, f64)>,
    _running: Running,
}

impl Server {
    fn new(name: &'static str, pid: u32, socket: &Path, running: Running) -> Result<Self, BenchError> {
        let generator = Generator::connect(socket, 0)?;
        Ok(Self { name, pid, generator, cpu_us: Vec::new(), took_us: Vec::new(), _running: running })
    }

    fn measure(&mut self, depth: usize, time: Duration) -> Result<(), BenchError> {
        let load = Load { kind: Kind::Write, depth, span_bytes: SPAN_BYTES };
        // Threads and memory that the load needs are there afterwards.
        self.generator.run(load, Timing::at_once(time / 8))?;
        let (before, begun) = (precise_cpu_time(self.pid)?, Instant::now());
        let slice = self.generator.run(load, Timing::at_once(time))?;
        let (cpu, took) = (precise_cpu_time(self.pid)?.saturating_sub(before), begun.elapsed());
        let each_us = |time: Duration| time.as_secs_f64() * 1e6 / slice.operations_in_all.max(1) as f64;
        self.cpu_us.push((depth, each_us(cpu)));
        self.took_us.push((depth, each_us(took)));
        Ok(())
    }

    fn cost(&self) -> Cost {
        let of = |all: &[(usize, f64)], depth| {
            median(all.iter().filter(|(of, _)| *of == depth).map(|(_, us)| *us))
        };
        let of_depth = |depth| (depth, of(&self.cpu_us, depth), of(&self.took_us, depth));
        Cost { name: self.name, of_depths: DEPTHS.map(of_depth).to_vec() }
    }
}

/// Measures each server at each depth in turn, for so many rounds.
pub(crate) fn write_path(options: &Options, rounds: u32, time: Duration) -> Result<Costs, BenchError> {
    let memory = Scratch::in_memory(CACHE_BYTES + 2 * BACKING_BYTES);
    let dir = memory.as_ref().map_or(options.scratch.as_path(), Scratch::path);
    let mut left_out = Vec::new();
    if memory.is_none() {
        left_out.push(
            "There is too little memory for the cache of nbd_depth_N_cpu_us: it lies on a disk.".into(),
        );
    }
    let mut servers = vec![forebay(options, dir)?];
    for (name, command) in [("nbdkit", nbdkit(dir)), ("qemu_nbd", qemu_nbd(dir)?)] {
        match other(name, command, &dir.join(name))? {
            Some(server) => servers.push(server),
            None => {
                let program = name.replace('_', "-");
                left_out.push(format!("{program} is not installed: there are no figures of {name}."));
            }
        }
    }
    for sentence in &left_out {
        eprintln!("{sentence}");
    }
    for _ in 0..rounds {
        for depth in DEPTHS {
            for server in &mut servers {
                options.go_on()?;
                server.measure(depth, time)?;
            }
        }
    }
    Ok(Costs { costs: servers.iter().map(Server::cost).collect(), left_out })
}

fn forebay(options: &Options, dir: &Path) -> Result<Server, BenchError> {
    let (cache, backing) = make_volume(dir, "write-path", CACHE_BYTES, BACKING_BYTES)?;
    let (cache, backing) = (DeviceSpec::Path(cache), DeviceSpec::Path(backing));
    let place = options.scratch.join("write-path");
    fs::create_dir_all(&place).map_err(|e| BenchError::system(format!("make {}", place.display()), e))?;
    let daemon = Daemon::start(&options.forebay, &place, Some(&cache), &backing, false, &[])?;
    Server::new("nbd", daemon.pid(), &daemon.nbd.clone(), Running::Forebay(daemon))
}

/// The memory plugin of nbdkit, which waits for nothing.
fn nbdkit(dir: &Path) -> Command {
    let mut command = Command::new("nbdkit");
    command.arg("--foreground").arg("--unix").arg(dir.join("nbdkit"));
    command.args(["memory", &format!("size={SPAN_BYTES}")]);
    command
}

/// qemu-nbd with a file in memory.
fn qemu_nbd(dir: &Path) -> Result<Command, BenchError> {
    let file = dir.join("qemu-nbd.img");
    File::create(&file)
        .and_then(|file| file.set_len(SPAN_BYTES))
        .map_err(|e| BenchError::system(format!("make {}", file.display()), e))?;
    let mut command = Command::new("qemu-nbd");
    command.args(["--persistent", "--format=raw", "--cache=writeback"]);
    command.arg("--socket").arg(dir.join("qemu_nbd")).arg(file);
    Ok(command)
}

/// Starts another server, and waits until it listens; nothing if it is not installed.
fn other(name: &'static str, mut command: Command, socket: &Path) -> Result<Option<Server>, BenchError> {
    let doing = || format!("start {}", command_name(name));
    // Whoever stops the benchmark from a terminal stops this process alone.
    let child = match command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0).spawn() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        child => child.map_err(|e| BenchError::system(doing(), e))?,
    };
    let mut other = Other(child);
    let until = Instant::now() + START_MAX;
    while !socket.exists() {
        let ended = other.0.try_wait().map_err(|e| BenchError::system(doing(), e))?;
        if ended.is_some() || Instant::now() >= until {
            return Err(BenchError::Forebay(format!("{} does not serve", command_name(name))));
        }
        thread::sleep(POLL);
    }
    Server::new(name, other.0.id(), socket, Running::Other(other)).map(Some)
}

fn command_name(name: &str) -> String {
    name.replace('_', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_not_there_is_no_error_and_one_that_ends_at_once_is() {
        let nowhere = Path::new("/nonexistent/socket");
        assert!(other("nbdkit", Command::new("no-such-server"), nowhere).unwrap().is_none());
        let ended = other("qemu_nbd", Command::new("false"), nowhere).err().unwrap();
        assert_eq!(ended.to_string(), "qemu-nbd does not serve");
    }
}
