//! A volume in memory.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use forebay_block::{
    Allocation, BLOCK_BYTES, BlockService, BufMut, Completion, ErrorKind, Gate, IoError, Op, Origin, Reply,
    StatusExtent, VolumeInfo, blocks_of, check_bounds,
};

/// Where a request is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    /// On the frontend's own thread, within `submit`.
    Inline,
    /// On one thread of the volume, as a real volume does.
    Thread,
}

struct Content {
    bytes: Vec<u8>,
    allocated: BTreeSet<u64>,
}

struct Inner {
    info: VolumeInfo,
    content: Mutex<Content>,
}

/// A volume in memory.
pub struct MemoryVolume {
    inner: Arc<Inner>,
    queue: Option<Sender<(Op, Completion)>>,
    gate: Arc<Gate>,
}

impl MemoryVolume {
    pub fn new(name: &str, size_bytes: u64, workers: Workers) -> Self {
        Self::with_info(
            VolumeInfo {
                name: name.to_owned(),
                size_bytes,
                read_only: false,
                request_bytes_max: 32 << 20,
                logical_block: 512,
            },
            workers,
        )
    }

    pub fn with_info(info: VolumeInfo, workers: Workers) -> Self {
        let content = Content { bytes: vec![0; info.size_bytes as usize], allocated: BTreeSet::new() };
        let inner = Arc::new(Inner { info, content: Mutex::new(content) });
        let queue = (workers == Workers::Thread).then(|| {
            let (sender, receiver): (_, Receiver<(Op, Completion)>) = channel();
            let inner = Arc::clone(&inner);
            thread::spawn(move || {
                for (op, done) in receiver {
                    done(inner.carry_out(op));
                }
            });
            sender
        });
        Self { inner, queue, gate: Arc::default() }
    }
}

impl Inner {
    fn carry_out(&self, op: Op) -> Result<Reply, IoError> {
        check_bounds(&op, self.info.size_bytes)?;
        let mut content = self.content.lock().expect("no request panics");
        Ok(match op {
            Op::Read { offset, len } => {
                let start = offset as usize;
                Reply::Data(BufMut::copy_of(&content.bytes[start..start + len]).freeze())
            }
            Op::Write { offset, data, .. } => {
                let start = offset as usize;
                content.bytes[start..start + data.len()].copy_from_slice(&data);
                let (first, count) = blocks_of(offset, data.len() as u64);
                content.allocated.extend(first.0..first.0 + count);
                Reply::Done
            }
            Op::Flush => Reply::Done,
            Op::Zero { offset, len, unmap, .. } => {
                content.bytes[offset as usize..(offset + len) as usize].fill(0);
                let whole = offset.div_ceil(BLOCK_BYTES)..(offset + len) / BLOCK_BYTES;
                if unmap {
                    content.allocated.retain(|b| !whole.contains(b));
                } else {
                    content.allocated.extend(whole);
                }
                Reply::Done
            }
            Op::Status { offset, len, .. } => {
                let (first, count) = blocks_of(offset, len);
                let extents = (first.0..first.0 + count).map(|block| {
                    let start = (block * BLOCK_BYTES).max(offset);
                    let end = ((block + 1) * BLOCK_BYTES).min(offset + len);
                    let allocated = content.allocated.contains(&block);
                    let allocation = if allocated { Allocation::Data } else { Allocation::Hole };
                    StatusExtent { len: end - start, allocation }
                });
                Reply::Status(extents.collect())
            }
        })
    }
}

impl BlockService for MemoryVolume {
    fn info(&self) -> VolumeInfo {
        self.inner.info.clone()
    }

    /// Nobody who writes here must be alone.
    fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    fn submit(&self, op: Op, _origin: Origin, done: Completion) {
        match &self.queue {
            None => done(self.inner.carry_out(op)),
            Some(queue) => {
                if let Err(lost) = queue.send((op, done)) {
                    lost.0.1(Err(IoError::new(ErrorKind::Shutdown, "the volume's thread is gone")));
                }
            }
        }
    }
}
