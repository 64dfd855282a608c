//! Closed loops of writes: `depth` requests are always under way.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use forebay_block::{BlockService, Buf, BufMut, Class, DeviceOp, IoError, Op, Origin};
use forebay_device::{Clock, Device, Ring};
use forebay_host::VolumeHandle;

use crate::BenchError;
use crate::nbd_client::NbdClient;

/// A kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Name in figures.
    pub(crate) name: &'static str,
    /// Bytes of a write.
    pub(crate) bytes: usize,
    /// Writes under way.
    pub(crate) depth: usize,
}

/// What a loop has done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) writes: u64,
    pub(crate) seconds: f64,
}

impl Sample {
    pub(crate) fn per_second(&self) -> f64 {
        self.writes as f64 / self.seconds.max(1e-9)
    }
}

/// Addresses in turn over a working set, in an order that merges nothing: what a database does to its tables.
#[derive(Clone)]
struct Addresses {
    next: u64,
    slots: u64,
    bytes: u64,
}

impl Addresses {
    fn new(working_set: u64, bytes: usize) -> Self {
        let bytes = bytes as u64;
        Self { next: 0, slots: (working_set / bytes).max(1), bytes }
    }

    fn next(&mut self) -> u64 {
        // A step that has no factor in common with a power of two visits every slot.
        self.next = (self.next + 0x9E3B) % self.slots;
        self.next * self.bytes
    }
}

fn payload(bytes: usize) -> Buf {
    let mut data = BufMut::zeroed(bytes);
    data.iter_mut().enumerate().for_each(|(n, b)| *b = (n * 31 % 251) as u8);
    data.freeze()
}

/// Durable writes, straight to a device: the limit.
pub(crate) fn raw(
    ring: &Ring,
    clock: &Clock,
    device: &mut dyn Device,
    shape: Shape,
    durable: bool,
    working_set: u64,
    time: Duration,
) -> Result<Sample, BenchError> {
    let data = payload(shape.bytes);
    let mut addresses = Addresses::new(working_set, shape.bytes);
    let start = Instant::now();
    let (mut writes, mut under_way, mut tag) = (0u64, 0usize, 0u64);
    let mut done = Vec::new();
    loop {
        let stop = start.elapsed() >= time;
        while under_way < shape.depth && !stop {
            let op = DeviceOp::Write { offset: addresses.next(), bufs: vec![data.clone()], durable };
            device.submit(tag, op, Class::Foreground, clock.now());
            (tag, under_way) = (tag + 1, under_way + 1);
        }
        if under_way == 0 {
            return Ok(Sample { writes, seconds: start.elapsed().as_secs_f64() });
        }
        device.poll(clock.now(), &mut done);
        if done.is_empty() {
            ring.submit_and_wait(None, || true)
                .map_err(|e| BenchError::system("wait for the raw device", e))?;
        }
        for (_, result) in done.drain(..) {
            result.map_err(|e| BenchError::Forebay(format!("raw device: {e}")))?;
            (writes, under_way) = (writes + 1, under_way - 1);
        }
    }
}

/// What the completions of [`engine`] share.
struct Loop {
    volume: VolumeHandle,
    data: Buf,
    stop: AtomicBool,
    writes: AtomicU64,
    ended: mpsc::SyncSender<Result<(), IoError>>,
}

/// Starts the next write; called by the completion of the one before, on the volume's own thread.
fn write_on(shared: Arc<Loop>, mut addresses: Addresses) {
    let op = Op::Write { offset: addresses.next(), data: shared.data.clone(), fua: false };
    let volume = shared.volume.clone();
    let done = move |result: Result<_, IoError>| match result {
        Ok(_) => {
            shared.writes.fetch_add(1, Ordering::Relaxed);
            if shared.stop.load(Ordering::Relaxed) {
                // The receiver waits for one message of each loop, and has room for all of them.
                let _ = shared.ended.send(Ok(()));
            } else {
                write_on(shared, addresses);
            }
        }
        Err(error) => {
            let _ = shared.ended.send(Err(error));
        }
    };
    volume.submit(op, Origin::default(), Box::new(done));
}

/// Writes to a volume of this process, without a frontend.
pub(crate) fn engine(
    volume: &VolumeHandle,
    shape: Shape,
    working_set: u64,
    time: Duration,
) -> Result<Sample, BenchError> {
    let (ended, wait) = mpsc::sync_channel(shape.depth);
    let shared = Arc::new(Loop {
        volume: volume.clone(),
        data: payload(shape.bytes),
        stop: AtomicBool::new(false),
        writes: AtomicU64::new(0),
        ended,
    });
    let start = Instant::now();
    let mut addresses = Addresses::new(working_set, shape.bytes);
    for n in 0..shape.depth as u64 {
        addresses.next = n * addresses.slots / shape.depth as u64;
        write_on(Arc::clone(&shared), addresses.clone());
    }
    std::thread::sleep(time);
    shared.stop.store(true, Ordering::Relaxed);
    for _ in 0..shape.depth {
        let ended = wait.recv().map_err(|_| BenchError::Forebay("the volume has gone".into()))?;
        ended.map_err(|e| BenchError::Forebay(format!("volume: {e}")))?;
    }
    let writes = shared.writes.load(Ordering::Relaxed);
    Ok(Sample { writes, seconds: start.elapsed().as_secs_f64() })
}

/// Writes over a connection of NBD.
pub(crate) fn nbd(
    client: &mut NbdClient,
    shape: Shape,
    working_set: u64,
    time: Duration,
) -> Result<Sample, BenchError> {
    let data = payload(shape.bytes);
    let mut addresses = Addresses::new(working_set, shape.bytes);
    let mut under_way: HashMap<u64, ()> = HashMap::new();
    let failed = |e| BenchError::system("write over NBD", e);
    let start = Instant::now();
    let (mut writes, mut cookie) = (0u64, 0u64);
    loop {
        let stop = start.elapsed() >= time;
        while under_way.len() < shape.depth && !stop {
            client.write(cookie, addresses.next(), &data).map_err(failed)?;
            under_way.insert(cookie, ());
            cookie += 1;
        }
        if under_way.is_empty() {
            return Ok(Sample { writes, seconds: start.elapsed().as_secs_f64() });
        }
        let answered = client.reply().map_err(failed)?;
        if under_way.remove(&answered).is_none() {
            return Err(BenchError::Forebay(format!("an answer to request {answered}, which was not asked")));
        }
        writes += 1;
    }
}
