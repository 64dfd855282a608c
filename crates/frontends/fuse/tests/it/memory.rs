//! A volume in memory, on threads of its own, that completes requests late and out of order.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use forebay_block::{
    Allocation, BlockService, BufMut, Completion, ErrorKind, Gate, Inside, IoError, Op, Origin, Reply,
    StatusExtent, VolumeInfo, check_bounds,
};

/// Requests that wait for a thread of the volume before `submit` blocks.
const QUEUE_MAX: usize = 1024;

/// How a volume behaves.
#[derive(Clone, Copy, Debug)]
pub struct Behaviour {
    pub size_bytes: u64,
    pub read_only: bool,
    /// Threads that carry out requests; with one they complete in order.
    pub threads: usize,
    /// Longest random pause before and after the effect of a request.
    pub delay_us_max: u64,
}

impl Behaviour {
    pub fn of_size(size_bytes: u64) -> Self {
        Self { size_bytes, read_only: false, threads: 4, delay_us_max: 0 }
    }
}

struct Request {
    op: Op,
    origin: Origin,
    done: Completion,
    _inside: Option<Inside>,
}

/// What a volume has seen.
#[derive(Default)]
pub struct Seen {
    pub writes: AtomicU64,
    pub fua_writes: AtomicU64,
    pub flushes: AtomicU64,
    pub unmaps: AtomicU64,
    pub zeroes: AtomicU64,
    pub last_pid: AtomicU64,
    /// Requests that arrived at the volume while it was stalled.
    pub stalled: AtomicU64,
}

struct Shared {
    behaviour: Behaviour,
    data: Mutex<Vec<u8>>,
    queue: Mutex<VecDeque<Request>>,
    changed: Condvar,
    gate: Arc<Gate>,
    stop: AtomicBool,
    stall: AtomicBool,
    failing: AtomicBool,
    failed: AtomicU64,
    seen: Seen,
}

/// The volume. Clones are the same volume.
#[derive(Clone)]
pub struct MemoryVolume(Arc<Shared>);

impl MemoryVolume {
    pub fn start(behaviour: Behaviour) -> Self {
        let shared = Arc::new(Shared {
            behaviour,
            data: Mutex::new(vec![0; behaviour.size_bytes as usize]),
            queue: Mutex::default(),
            changed: Condvar::new(),
            gate: Arc::default(),
            stop: AtomicBool::new(false),
            stall: AtomicBool::new(false),
            failing: AtomicBool::new(false),
            failed: AtomicU64::new(0),
            seen: Seen::default(),
        });
        for i in 0..behaviour.threads {
            let shared = Arc::clone(&shared);
            thread::spawn(move || work(&shared, i as u64 + 1));
        }
        Self(shared)
    }

    pub fn seen(&self) -> &Seen {
        &self.0.seen
    }

    /// Answers nothing from now on, but takes requests; or goes on.
    pub fn stall(&self, stall: bool) {
        self.0.stall.store(stall, SeqCst);
        self.0.changed.notify_all();
    }

    /// Answers everything with an I/O error from now on, or no longer.
    pub fn fail(&self, fail: bool) {
        self.0.failing.store(fail, SeqCst);
    }

    /// How many requests were answered so.
    pub fn failed(&self) -> u64 {
        self.0.failed.load(SeqCst)
    }

    pub fn peek(&self, offset: usize, len: usize) -> Vec<u8> {
        self.0.data.lock().unwrap()[offset..offset + len].to_vec()
    }

    pub fn poke(&self, offset: usize, bytes: &[u8]) {
        self.0.data.lock().unwrap()[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    pub fn stop(&self) {
        self.0.stop.store(true, SeqCst);
        self.0.changed.notify_all();
    }
}

impl BlockService for MemoryVolume {
    fn info(&self) -> VolumeInfo {
        VolumeInfo {
            name: "memory".to_owned(),
            size_bytes: self.0.behaviour.size_bytes,
            read_only: self.0.behaviour.read_only,
            request_bytes_max: 1 << 20,
            logical_block: 512,
        }
    }

    fn submit(&self, op: Op, origin: Origin, done: Completion) {
        let _inside = op.changes().map(|bytes| self.0.gate.pass(bytes));
        let mut queue = self.0.queue.lock().unwrap();
        while queue.len() >= QUEUE_MAX {
            queue = self.0.changed.wait(queue).unwrap();
        }
        queue.push_back(Request { op, origin, done, _inside });
        if self.0.stall.load(SeqCst) {
            self.0.seen.stalled.fetch_add(1, SeqCst);
        }
        drop(queue);
        self.0.changed.notify_one();
    }

    fn gate(&self) -> &Arc<Gate> {
        &self.0.gate
    }
}

fn work(shared: &Shared, seed: u64) {
    let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut pause = || {
        let max = shared.behaviour.delay_us_max;
        if max > 0 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            thread::sleep(Duration::from_micros(random % max));
        }
    };
    loop {
        let request = {
            let mut queue = shared.queue.lock().unwrap();
            loop {
                if shared.stop.load(SeqCst) {
                    return;
                }
                match (shared.stall.load(SeqCst), queue.pop_front()) {
                    (false, Some(request)) => break request,
                    (true, Some(request)) => queue.push_front(request),
                    (_, None) => {}
                }
                queue = shared.changed.wait(queue).unwrap();
            }
        };
        shared.changed.notify_one();
        pause();
        let result = carry_out(shared, &request.op, request.origin);
        pause();
        (request.done)(result);
    }
}

fn carry_out(shared: &Shared, op: &Op, origin: Origin) -> Result<Reply, IoError> {
    check_bounds(op, shared.behaviour.size_bytes)?;
    if shared.failing.load(SeqCst) {
        shared.failed.fetch_add(1, SeqCst);
        return Err(IoError::new(ErrorKind::Io, "made to fail"));
    }
    let seen = &shared.seen;
    seen.last_pid.store(u64::from(origin.pid), SeqCst);
    let mut data = shared.data.lock().unwrap();
    match op {
        Op::Read { offset, len } => {
            let start = *offset as usize;
            return Ok(Reply::Data(BufMut::copy_of(&data[start..start + len]).freeze()));
        }
        Op::Write { offset, data: bytes, fua } => {
            seen.writes.fetch_add(1, SeqCst);
            seen.fua_writes.fetch_add(u64::from(*fua), SeqCst);
            assert_eq!(bytes.as_ptr() as usize % 4096, 0, "payload is page-aligned");
            data[*offset as usize..*offset as usize + bytes.len()].copy_from_slice(bytes);
        }
        Op::Flush => {
            seen.flushes.fetch_add(1, SeqCst);
        }
        Op::Zero { offset, len, unmap, .. } => {
            (if *unmap { &seen.unmaps } else { &seen.zeroes }).fetch_add(1, SeqCst);
            data[*offset as usize..(*offset + *len) as usize].fill(0);
        }
        Op::Status { offset, len, extents_max } => {
            // Short answers, as a volume may give.
            let len = (*len).min(STATUS_BYTES_MAX);
            let mut extents = status(&data[*offset as usize..(*offset + len) as usize]);
            extents.truncate(*extents_max);
            return Ok(Reply::Status(extents));
        }
    }
    Ok(Reply::Done)
}

/// Bytes that one answer about allocation describes.
pub const STATUS_BYTES_MAX: u64 = 32 << 10;

/// Zero blocks are holes.
fn status(data: &[u8]) -> Vec<StatusExtent> {
    let mut extents: Vec<StatusExtent> = Vec::new();
    for block in data.chunks(4096) {
        let zero = block.iter().all(|b| *b == 0);
        let allocation = if zero { Allocation::Hole } else { Allocation::Data };
        match extents.last_mut() {
            Some(last) if last.allocation == allocation => last.len += block.len() as u64,
            _ => extents.push(StatusExtent { len: block.len() as u64, allocation }),
        }
    }
    extents
}
