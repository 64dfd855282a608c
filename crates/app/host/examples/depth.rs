//! Durable 4 KiB writes: the raw cache device against a volume in process, side by side, as ratios.
//!
//! `cargo run --release -p forebay-host --example depth -- DIRECTORY [pmem]`

use std::error::Error;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use forebay_block::{BlockService, Buf, Class, DeviceOp, Op, Origin};
use forebay_device::{Access, Clock, DeviceSpec, Ring, open};
use forebay_host::{Ending, FormatOptions, JournalChoice, Volume, VolumeConfig, VolumeHandle, format};

const WRITE_BYTES: usize = 4096;
const CACHE_BYTES: u64 = 2 << 30;
const BACKING_BYTES: u64 = 4 << 30;
const ROUND: Duration = Duration::from_secs(1);
const ROUNDS: usize = 3;
const DEPTHS: [usize; 4] = [1, 4, 16, 64];

/// Block numbers in an order that no device can foresee.
struct Places(u64);

impl Places {
    fn next(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Durable writes a second of the raw device, one after the other as a log would place them.
fn raw(spec: &DeviceSpec, write_bytes: usize, depth: usize) -> Result<f64, Box<dyn Error>> {
    let (ring, clock) = (Ring::new()?, Clock::start());
    let mut device = open(spec, &ring, Access::ReadWrite)?;
    let data = Buf::copy_of(&vec![0x5a; write_bytes]);
    let span = device.info().size_bytes / 2 / write_bytes as u64;
    let (mut next, mut under_way, mut ended) = (0, 0, 0u64);
    let mut done = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < ROUND || under_way > 0 {
        while under_way < depth && begun.elapsed() < ROUND {
            let offset = next % span * write_bytes as u64;
            let bufs = vec![data.clone()];
            device.submit(
                next,
                DeviceOp::Write { offset, bufs, durable: true },
                Class::Foreground,
                clock.now(),
            );
            next += 1;
            under_way += 1;
        }
        device.poll(clock.now(), &mut done);
        if done.is_empty() && under_way > 0 {
            let timeout = device.deadline().map(|_| Duration::ZERO);
            ring.submit_and_wait(timeout, || true)?;
        }
        for (_, result) in done.drain(..) {
            result?;
            under_way -= 1;
            ended += 1;
        }
    }
    Ok(ended as f64 / begun.elapsed().as_secs_f64())
}

/// Acknowledged random writes a second of a volume.
fn volume(handle: &VolumeHandle, depth: usize, places: &mut Places) -> Result<f64, Box<dyn Error>> {
    let blocks = handle.info().size_bytes / WRITE_BYTES as u64;
    let data = Buf::copy_of(&[0xa5; WRITE_BYTES]);
    let (sender, receiver) = mpsc::sync_channel(depth);
    let mut start = || {
        let offset = places.next(blocks) * WRITE_BYTES as u64;
        let sender = sender.clone();
        let done = Box::new(move |result: Result<_, _>| {
            // The receiver is there until the last of these has come.
            let _ = sender.send(result.is_ok());
        });
        handle.submit(Op::Write { offset, data: data.clone(), fua: false }, Origin::default(), done);
    };
    let begun = Instant::now();
    (0..depth).for_each(|_| start());
    let (mut under_way, mut ended) = (depth, 0u64);
    while under_way > 0 {
        if !receiver.recv()? {
            return Err("a write failed".into());
        }
        ended += 1;
        under_way -= 1;
        if begun.elapsed() < ROUND {
            start();
            under_way += 1;
        }
    }
    Ok(ended as f64 / begun.elapsed().as_secs_f64())
}

fn best(mut figure: impl FnMut() -> Result<f64, Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    (0..ROUNDS).try_fold(0f64, |best, _| Ok(best.max(figure()?)))
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or("in which directory?")?;
    let mapped = arguments.next().is_some_and(|a| a == "pmem");
    let path = |name: &str| Path::new(&directory).join(name);
    let spec = |name: &str| if mapped { DeviceSpec::Pmem(path(name)) } else { DeviceSpec::Path(path(name)) };
    let options = FormatOptions {
        cache: spec("depth.cache"),
        backing: DeviceSpec::Path(path("depth.backing")),
        cache_bytes: Some(CACHE_BYTES),
        backing_bytes: Some(BACKING_BYTES),
        volume_bytes: None,
        align: None,
        logical_block: None,
        force: true,
        journal: JournalChoice::Auto,
    };
    let made = format(&options, &mut |_, _| {})?;
    println!("{}: {}, log aligned to {}", made.cache.name, made.cache.durability, made.layout.align);
    println!(
        "{:>5} {:>10} {:>10} {:>10} {:>6} {:>6}",
        "depth", "raw 4K/s", "raw 8K/s", "volume/s", "ratio", "bytes"
    );
    for depth in DEPTHS {
        let raw_figure = best(|| raw(&options.cache, WRITE_BYTES, depth))?;
        let double = best(|| raw(&options.cache, 2 * WRITE_BYTES, depth))?;
        // The raw writes have gone over the log.
        format(&options, &mut |_, _| {})?;
        let config = VolumeConfig::new("depth", Some(options.cache.clone()), options.backing.clone());
        let served = Volume::open(config)?;
        let mut places = Places(depth as u64);
        let handle = served.handle();
        let figure = best(|| volume(&handle, depth, &mut places))?;
        let status = handle.status();
        let bytes = status.bytes_to_cache as f64 / status.bytes_acknowledged as f64;
        let ratio = figure / raw_figure;
        println!("{depth:>5} {raw_figure:>10.0} {double:>10.0} {figure:>10.0} {ratio:>6.2} {bytes:>6.2}");
        served.end(Ending::Keep)?;
    }
    for name in ["depth.cache", "depth.backing", "depth.backing.forebay"] {
        std::fs::remove_file(path(name))?;
    }
    Ok(())
}
