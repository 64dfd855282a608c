//! The file system that the kernel sees: one regular file, which is its root.

use std::io;
use std::sync::PoisonError;
use std::time::{Duration, SystemTime};

use forebay_block::{BLOCK_BYTES, BufMut, Op, Reply};
use fuser::{Errno, FileHandle, Filesystem, FopenFlags, INodeNo, InitFlags, KernelConfig};
use fuser::{LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyLseek, ReplyOpen, ReplyStatfs};
use fuser::{ReplyWrite, Request, TimeOrNow, WriteFlags};

use crate::extent::{is_aligned, read_window, write_len, zero_len};
use crate::stats::Counters;
use crate::volume_file::{VolumeFile, errno, origin};

/// How long the kernel may keep the file's attributes. They change only by `setattr`, which tells it.
const ATTRIBUTES_TTL: Duration = Duration::from_secs(1);

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
        self.submit(op, origin, move |result, counters| match result {
            Ok(_) => {
                Counters::add(&counters.write_bytes, u64::from(written));
                reply.written(written);
            }
            Err(e) => reply.error(errno(&e)),
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
            // Writes wait for it in the kernel, so it is no background work.
            (Ok(from), libc::SEEK_DATA) => self.seek(from, false, origin(request, true)),
            (Ok(from), libc::SEEK_HOLE) => self.seek(from, true, origin(request, true)),
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
