//! What a write over NBD costs the server in processor time: a volume with its cache in memory, beside other servers of memory.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use forebay_device::DeviceSpec;

use crate::cpu::precise_cpu_time;
use crate::daemon::Daemon;
use crate::generator::{Generator, Kind, Load, Timing};
use crate::other::Other;
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
        let load = Load { kind: Kind::Write, depth, span_bytes: SPAN_BYTES, fua: false };
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
        let socket = dir.join(name);
        let Some(other) = Other::start(command, || socket.exists())? else {
            let program = name.replace('_', "-");
            left_out.push(format!("{program} is not installed: there are no figures of {name}."));
            continue;
        };
        servers.push(Server::new(name, other.pid(), &socket, Running::Other(other))?);
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
    let daemon = Daemon::start(&[], &options.forebay, &place, Some(&cache), &backing, false, &[])?;
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
