//! A volume as a file: what the operations of the file system are made of.

use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::SystemTime;

use forebay_block::{Allocation, BLOCK_BYTES, BlockService, BufMut, Completion, IoError, Op, Origin, Reply};
use forebay_block::{SECTOR_BYTES, StatusExtent};
use fuser::{Errno, FileAttr, FileType, INodeNo, ReplyEmpty, Request};

use crate::export::FuseOptions;
use crate::extent::{Refusal, read_window};
use crate::stats::Counters;

/// Answers of the volume that one search for data or holes takes in, each of them short: the kernel holds the file's lock meanwhile, and with it
/// all who write.
const SEEK_ANSWERS_MAX: u32 = 32;

/// What `chmod`, `chown` and `touch` may change, in memory: the next mount starts afresh.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes {
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    pub atime: SystemTime,
    pub mtime: SystemTime,
    pub ctime: SystemTime,
}

/// One volume as a file system.
pub(crate) struct VolumeFile {
    service: Arc<dyn BlockService>,
    pub size_bytes: u64,
    pub request_bytes_max: usize,
    pub options: FuseOptions,
    pub attributes: Mutex<Attributes>,
    pub counters: Arc<Counters>,
}

impl VolumeFile {
    pub fn new(
        service: Arc<dyn BlockService>,
        request_bytes_max: usize,
        options: FuseOptions,
        counters: Arc<Counters>,
    ) -> Self {
        let info = service.info();
        let now = SystemTime::now();
        let mode = if info.read_only { 0o400 } else { 0o600 };
        Self {
            service,
            size_bytes: info.size_bytes,
            request_bytes_max,
            options,
            attributes: Mutex::new(Attributes { mode, uid: 0, gid: 0, atime: now, mtime: now, ctime: now }),
            counters,
        }
    }

    pub fn attr(&self) -> FileAttr {
        let a = *self.attributes.lock().unwrap_or_else(PoisonError::into_inner);
        FileAttr {
            ino: INodeNo::ROOT,
            size: self.size_bytes,
            blocks: self.size_bytes / SECTOR_BYTES,
            atime: a.atime,
            mtime: a.mtime,
            ctime: a.ctime,
            crtime: a.ctime,
            kind: FileType::RegularFile,
            perm: a.mode,
            nlink: 1,
            uid: a.uid,
            gid: a.gid,
            rdev: 0,
            blksize: BLOCK_BYTES as u32,
            flags: 0,
        }
    }

    /// Hands a request to the volume; `answer` gets its outcome on a thread of the volume.
    pub fn submit(
        &self,
        op: Op,
        origin: Origin,
        answer: impl FnOnce(Result<Reply, IoError>, &Counters) + Send + 'static,
    ) {
        let counters = Arc::clone(&self.counters);
        counters.begin();
        let done: Completion = Box::new(move |result| {
            counters.end(result.is_ok());
            answer(result, &counters);
        });
        self.service.submit(op, origin, done);
    }

    /// Submits what is answered by success alone.
    pub fn submit_plain(&self, op: Op, origin: Origin, reply: ReplyEmpty) {
        self.submit(op, origin, |result, _| answer_plain(result, reply));
    }

    pub fn refuse(&self, refusal: Refusal) -> Errno {
        Counters::add(&self.counters.refused, 1);
        match refusal {
            Refusal::Unaligned => Errno::EINVAL,
            Refusal::PastEnd => Errno::ENOSPC,
        }
    }

    /// Waits on the calling (reader) thread for the outcome of a request. The volume answers on a thread of its own, so this cannot
    /// lock up; but it holds one reader for the time, so it is for rare requests.
    fn wait_for(&self, op: Op, origin: Origin) -> Result<Reply, Errno> {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.submit(op, origin, move |result, _| {
            // The receiver waits below until it has got this.
            let _ = sender.send(result);
        });
        receiver.recv().map_err(|_| Errno::EIO)?.map_err(|e| errno(&e))
    }

    /// The first extents from `offset` on.
    fn status(&self, offset: u64, origin: Origin) -> Result<Vec<StatusExtent>, Errno> {
        // One that is not wanted, and the next.
        let op = Op::Status { offset, len: self.size_bytes - offset, extents_max: 2 };
        match self.wait_for(op, origin)? {
            Reply::Status(extents) if !extents.is_empty() => Ok(extents),
            _ => Err(Errno::EIO),
        }
    }

    fn read_sector(&self, offset: u64, into: &mut [u8], origin: Origin) -> Result<(), Errno> {
        match self.wait_for(Op::Read { offset, len: into.len() }, origin)? {
            Reply::Data(data) if data.len() == into.len() => {
                into.copy_from_slice(&data);
                Ok(())
            }
            _ => Err(Errno::EIO),
        }
    }

    /// Writes what does not begin or end with a sector, and says how much of it was written.
    pub fn write_unaligned(
        &self,
        offset: u64,
        bytes: &[u8],
        fua: bool,
        origin: Origin,
    ) -> Result<usize, Errno> {
        const SECTOR: usize = SECTOR_BYTES as usize;
        let window = read_window(offset, bytes.len(), self.size_bytes, self.request_bytes_max);
        let _alone = self.service.gate().alone(window.offset..window.offset + window.len as u64);
        let mut data = BufMut::zeroed(window.len);
        let end = window.skip + window.take;
        let last = window.len - SECTOR;
        if window.skip > 0 {
            self.read_sector(window.offset, &mut data[..SECTOR], origin)?;
        }
        if end < window.len && (last > 0 || window.skip == 0) {
            self.read_sector(window.offset + last as u64, &mut data[last..], origin)?;
        }
        data[window.skip..end].copy_from_slice(&bytes[..window.take]);
        self.wait_for(Op::Write { offset: window.offset, data: data.freeze(), fua }, origin)?;
        Ok(window.take)
    }

    /// The first byte at or after `from` that is data (or lies in a hole, if `hole`); the end of the file counts as a hole.
    ///
    /// A search that takes too long ends where it has come to, as if the other began there: whoever looks on from there finds data, or a hole of no
    /// bytes. No hole is told where there may be data.
    pub fn seek(&self, from: u64, hole: bool, origin: Origin) -> Result<u64, Errno> {
        if from >= self.size_bytes {
            return Err(Errno::ENXIO);
        }
        let wanted = if hole { Allocation::Hole } else { Allocation::Data };
        let mut at = from - from % SECTOR_BYTES;
        for _ in 0..SEEK_ANSWERS_MAX {
            for extent in self.status(at, origin)? {
                if extent.allocation == wanted && extent.len > 0 {
                    return Ok(at.max(from));
                }
                at += extent.len;
            }
            if at >= self.size_bytes {
                return if hole { Ok(self.size_bytes) } else { Err(Errno::ENXIO) };
            }
        }
        Ok(at)
    }
}

/// The errno for an error of the volume.
pub(crate) fn errno(error: &IoError) -> Errno {
    Errno::from_i32(error.kind.errno())
}

pub(crate) fn answer_plain(result: Result<Reply, IoError>, reply: ReplyEmpty) {
    match result {
        Ok(_) => reply.ok(),
        Err(e) => reply.error(errno(&e)),
    }
}

/// What FUSE tells of who asks: the thread, but not through a loop device, where it is always a kernel worker.
pub(crate) fn origin(request: &Request, sync: bool) -> Origin {
    Origin { sync, pid: request.pid(), ..Origin::default() }
}
