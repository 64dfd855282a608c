//! The file system that the kernel sees: one regular file, which is its root.

use std::io;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, SystemTime};

use forebay_block::{Allocation, BLOCK_BYTES, BlockService, BufMut, Completion, IoError, Op, Origin, Reply};
use forebay_block::{SECTOR_BYTES, StatusExtent};
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, INodeNo, InitFlags, KernelConfig,
};
use fuser::{LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyLseek, ReplyOpen, ReplyStatfs};
use fuser::{ReplyWrite, Request, TimeOrNow, WriteFlags};

use crate::export::FuseOptions;
use crate::extent::{Refusal, is_aligned, read_window, write_len, zero_len};
use crate::gate::Gate;
use crate::stats::Counters;

/// How long the kernel may keep the file's attributes. They change only by `setattr`, which tells it.
const ATTRIBUTES_TTL: Duration = Duration::from_secs(1);

/// Bytes of the volume whose allocation is asked for at once when searching for data or holes, so that the answer
/// (at worst one extent for each 4 KiB) stays within a few MiB.
const SEEK_STEP_BYTES: u64 = 1 << 30;

/// What `chmod`, `chown` and `touch` may change, in memory: the next mount starts afresh.
#[derive(Clone, Copy, Debug)]
struct Attributes {
    mode: u16,
    uid: u32,
    gid: u32,
    atime: SystemTime,
    mtime: SystemTime,
    ctime: SystemTime,
}

/// One volume as a file system.
pub(crate) struct VolumeFile {
    service: Arc<dyn BlockService>,
    size_bytes: u64,
    request_bytes_max: usize,
    options: FuseOptions,
    attributes: Mutex<Attributes>,
    gate: Arc<Gate>,
    counters: Arc<Counters>,
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
            gate: Arc::default(),
            counters,
        }
    }

    fn attr(&self) -> FileAttr {
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

    /// Hands a request to the volume; `answer` gets its outcome on the volume's thread.
    fn submit(
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
    fn submit_plain(&self, op: Op, origin: Origin, reply: ReplyEmpty) {
        self.submit(op, origin, |result, _| answer_plain(result, reply));
    }

    fn refuse(&self, refusal: Refusal) -> Errno {
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

    fn status(&self, offset: u64, len: u64, origin: Origin) -> Result<Vec<StatusExtent>, Errno> {
        match self.wait_for(Op::Status { offset, len }, origin)? {
            Reply::Status(extents) => Ok(extents),
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
    fn write_unaligned(&self, offset: u64, bytes: &[u8], fua: bool, origin: Origin) -> Result<usize, Errno> {
        const SECTOR: usize = SECTOR_BYTES as usize;
        let _alone = self.gate.alone();
        let window = read_window(offset, bytes.len(), self.size_bytes, self.request_bytes_max);
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
    fn seek(&self, from: u64, hole: bool, origin: Origin) -> Result<u64, Errno> {
        if from >= self.size_bytes {
            return Err(Errno::ENXIO);
        }
        let wanted = if hole { Allocation::Hole } else { Allocation::Data };
        let mut at = from - from % SECTOR_BYTES;
        while at < self.size_bytes {
            let step = SEEK_STEP_BYTES.min(self.size_bytes - at);
            let mut extent_start = at;
            for extent in self.status(at, step, origin)? {
                let extent_end = extent_start + extent.len;
                if extent.allocation == wanted && extent_end > from && extent.len > 0 {
                    return Ok(extent_start.max(from));
                }
                extent_start = extent_end;
            }
            at += step;
        }
        if hole { Ok(self.size_bytes) } else { Err(Errno::ENXIO) }
    }
}

/// The errno for an error of the volume.
fn errno(error: &IoError) -> Errno {
    Errno::from_i32(error.kind.errno())
}

fn answer_plain(result: Result<Reply, IoError>, reply: ReplyEmpty) {
    match result {
        Ok(_) => reply.ok(),
        Err(e) => reply.error(errno(&e)),
    }
}

/// What FUSE tells of who asks: the thread, but not through a loop device, where it is always a kernel worker.
fn origin(request: &Request, sync: bool) -> Origin {
    Origin { sync, pid: request.pid(), ..Origin::default() }
}

impl Filesystem for VolumeFile {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let too_large = |_| io::Error::from_raw_os_error(libc::EINVAL);
        config.set_max_write(self.request_bytes_max as u32).map_err(too_large)?;
        config.set_max_background(self.options.max_background).map_err(|_| io::ErrorKind::InvalidInput)?;
        // Without it the loop device's requests would be carried out one after the other; kernels before 3.13 lack it.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        Ok(())
    }

    fn getattr(&self, _request: &Request, _ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&ATTRIBUTES_TTL, &self.attr());
    }

    fn setattr(
        &self,
        _request: &Request,
        _ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if size.is_some_and(|s| s != self.size_bytes) {
            Counters::add(&self.counters.refused, 1);
            reply.error(Errno::EPERM);
            return;
        }
        let time = |t| match t {
            TimeOrNow::SpecificTime(t) => t,
            TimeOrNow::Now => SystemTime::now(),
        };
        {
            let mut a = self.attributes.lock().unwrap_or_else(PoisonError::into_inner);
            a.mode = mode.map_or(a.mode, |m| (m & 0o777) as u16);
            a.uid = uid.unwrap_or(a.uid);
            a.gid = gid.unwrap_or(a.gid);
            a.atime = atime.map_or(a.atime, time);
            a.mtime = mtime.map_or(a.mtime, time);
            a.ctime = ctime.unwrap_or_else(SystemTime::now);
        }
        reply.attr(&ATTRIBUTES_TTL, &self.attr());
    }

    fn open(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // Direct I/O: the page cache would be a second, unbounded cache of the same data in front of ours, and would
        // answer a write before the volume has seen it.
        let mut flags = FopenFlags::FOPEN_DIRECT_IO;
        flags.set(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES, self.options.parallel_direct_writes);
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        Counters::add(&self.counters.reads, 1);
        let window = read_window(offset, size as usize, self.size_bytes, self.request_bytes_max);
        if window.len == 0 {
            reply.data(&[]);
            return;
        }
        let op = Op::Read { offset: window.offset, len: window.len };
        self.submit(op, origin(request, false), move |result, counters| match result {
            Ok(Reply::Data(data)) => match data.get(window.skip..window.skip + window.take) {
                Some(bytes) => {
                    Counters::add(&counters.read_bytes, bytes.len() as u64);
                    reply.data(bytes);
                }
                None => reply.error(Errno::EIO),
            },
            Ok(_) => reply.error(Errno::EIO),
            Err(e) => reply.error(errno(&e)),
        });
    }

    fn write(
        &self,
        request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        Counters::add(&self.counters.writes, 1);
        let bytes = match write_len(offset, data.len(), self.size_bytes) {
            Ok(0) => return reply.written(0),
            Ok(len) => &data[..len],
            Err(refusal) => return reply.error(self.refuse(refusal)),
        };
        // O_DSYNC of the file or RWF_DSYNC of the call; O_SYNC contains its bit.
        let fua = flags.0 & libc::O_DSYNC != 0;
        Counters::add(&self.counters.writes_durable, u64::from(fua));
        let origin = origin(request, fua);
        if !is_aligned(offset, bytes.len() as u64) {
            Counters::add(&self.counters.writes_unaligned, 1);
            return match self.write_unaligned(offset, bytes, fua, origin) {
                Ok(written) => {
                    Counters::add(&self.counters.write_bytes, written as u64);
                    reply.written(written as u32);
                }
                Err(e) => reply.error(e),
            };
        }
        let written = bytes.len() as u32;
        let op = Op::Write { offset, data: BufMut::copy_of(bytes).freeze(), fua };
        let inside = self.gate.enter();
        self.submit(op, origin, move |result, counters| {
            drop(inside);
            match result {
                Ok(_) => {
                    Counters::add(&counters.write_bytes, u64::from(written));
                    reply.written(written);
                }
                Err(e) => reply.error(errno(&e)),
            }
        });
    }

    fn flush(&self, request: &Request, _ino: INodeNo, _fh: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        Counters::add(&self.counters.flushes, 1);
        self.submit_plain(Op::Flush, origin(request, true), reply);
    }

    fn fsync(&self, request: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        Counters::add(&self.counters.flushes, 1);
        self.submit_plain(Op::Flush, origin(request, true), reply);
    }

    fn fallocate(
        &self,
        request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        // A loop device sends the first for a discard and for a write-zeroes that may unmap, the second for one that must
        // not; of both the caller may expect that zeroes are read afterwards.
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
        let unmap = match mode {
            PUNCH => true,
            ZERO => false,
            _ => {
                Counters::add(&self.counters.refused, 1);
                return reply.error(Errno::EOPNOTSUPP);
            }
        };
        let counter = if unmap { &self.counters.discards } else { &self.counters.zeroes };
        Counters::add(counter, 1);
        match zero_len(offset, length, self.size_bytes) {
            Ok(0) => reply.ok(),
            Ok(len) => {
                let op = Op::Zero { offset, len, unmap, fua: false };
                self.submit_plain(op, origin(request, false), reply);
            }
            Err(refusal) => reply.error(self.refuse(refusal)),
        }
    }

    fn lseek(
        &self,
        request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        Counters::add(&self.counters.seeks, 1);
        let found = match (u64::try_from(offset), whence) {
            (Ok(from), libc::SEEK_DATA) => self.seek(from, false, origin(request, false)),
            (Ok(from), libc::SEEK_HOLE) => self.seek(from, true, origin(request, false)),
            (Err(_), libc::SEEK_DATA | libc::SEEK_HOLE) => Err(Errno::ENXIO),
            _ => Err(Errno::EINVAL),
        };
        match found {
            Ok(offset) => reply.offset(offset as i64),
            Err(e) => reply.error(e),
        }
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        // The loop driver takes the block size given here as the granularity of discards.
        let block = BLOCK_BYTES as u32;
        reply.statfs(self.size_bytes / BLOCK_BYTES, 0, 0, 1, 0, block, 255, block);
    }
}
