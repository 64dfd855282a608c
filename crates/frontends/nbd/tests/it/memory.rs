//! A volume in memory.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;

use forebay_block::{
    Allocation, BLOCK_BYTES, BlockService, BufMut, Completion, ErrorKind, Feed, Fetched, Gate, IoError, Op,
    Origin, Refused, Reply, Round, StatusExtent, VolumeInfo, blocks_of, check_bounds,
};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

/// Where a request is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    /// On the frontend's own thread, within `submit`.
    Inline,
    /// On one thread of the volume, which fetches the requests as well, as a real volume's does.
    Thread,
    /// On one thread of the volume, which fetches nothing.
    Apart,
}

enum Work {
    Request(Op, Completion),
    Adopt(Box<dyn Feed>),
    /// Until the sender is dropped.
    Hang(Receiver<()>),
}

/// The way to the volume's thread.
struct Queue {
    sender: Sender<Work>,
    bell: Arc<OwnedFd>,
    fetches: bool,
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
    queue: Option<Queue>,
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
        let queue = (workers != Workers::Inline).then(|| {
            let (sender, receiver) = channel();
            let inner = Arc::clone(&inner);
            let bell = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd"));
            let rung = Arc::clone(&bell);
            thread::spawn(move || inner.run(&receiver, &rung));
            Queue { sender, bell, fetches: workers == Workers::Thread }
        });
        Self { inner, queue, gate: Arc::default() }
    }
}

impl MemoryVolume {
    /// Has the volume's thread do nothing while what this returns is there.
    pub fn hang(&self) -> SyncSender<()> {
        let (sender, until) = sync_channel(0);
        if let Some(queue) = &self.queue {
            queue.push(Work::Hang(until));
            sender.send(()).expect("it hangs now");
        }
        sender
    }
}

impl Queue {
    fn push(&self, work: Work) {
        if let Err(lost) = self.sender.send(work)
            && let Work::Request(_, done) = lost.0
        {
            done(Err(IoError::new(ErrorKind::Shutdown, "the volume's thread is gone")));
        }
        rustix::io::write(&self.bell, &1u64.to_ne_bytes()).expect("the bell rings");
    }
}

impl Drop for MemoryVolume {
    fn drop(&mut self) {
        if let Some(Queue { sender, bell, .. }) = self.queue.take() {
            drop(sender);
            rustix::io::write(&bell, &1u64.to_ne_bytes()).expect("the bell rings");
        }
    }
}

/// Fetches what there is; false if the feed leaves.
fn fetch(feed: &mut Box<dyn Feed>) -> bool {
    let fetch = || {
        let mut fetched = Fetched::Part;
        while fetched == Fetched::Part {
            fetched = feed.fetch();
        }
        fetched == Fetched::All
    };
    catch_unwind(AssertUnwindSafe(fetch)).unwrap_or(false)
}

impl Inner {
    /// The volume's thread.
    fn run(&self, work: &Receiver<Work>, bell: &OwnedFd) {
        let mut feeds: Vec<Box<dyn Feed>> = Vec::new();
        loop {
            let sockets = feeds.iter().map(|feed| feed.socket());
            let fds = std::iter::once(bell.as_fd()).chain(sockets);
            let mut fds: Vec<PollFd<'_>> =
                fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN | PollFlags::RDHUP)).collect();
            poll(&mut fds, None).expect("a poll");
            let mut readable = fds.iter().skip(1).map(|fd| !fd.revents().is_empty()).collect::<Vec<_>>();
            drop(fds);
            let _ = rustix::io::read(bell, &mut [0; 8]);
            feeds.retain_mut(|feed| !readable.remove(0) || fetch(feed));
            let _round = Round::begin();
            loop {
                match work.try_recv() {
                    Ok(Work::Request(op, done)) => done(self.carry_out(op)),
                    Ok(Work::Adopt(mut feed)) => feeds.extend(fetch(&mut feed).then_some(feed)),
                    Ok(Work::Hang(until)) => until.iter().for_each(drop),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
        }
    }

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
            Some(queue) => queue.push(Work::Request(op, done)),
        }
    }

    /// It has room for everything.
    fn try_submit(&self, op: Op, origin: Origin, done: Completion) -> Result<(), Box<Refused>> {
        self.submit(op, origin, done);
        Ok(())
    }

    fn adopt(&self, feed: Box<dyn Feed>) -> Result<(), Box<dyn Feed>> {
        match &self.queue {
            Some(queue) if queue.fetches => {
                queue.push(Work::Adopt(feed));
                Ok(())
            }
            _ => Err(feed),
        }
    }
}
