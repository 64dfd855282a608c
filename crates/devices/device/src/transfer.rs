//! One operation on a file or block device on its way through io_uring, from the first submission to its end.
//!
//! ```text
//!            entry()                 advance(result)
//!  new ────────────────► kernel ───────────────────────► Step::Done
//!            ▲                              │
//!            └──────── Step::Again ◄────────┘   short transfer, EAGAIN, next chunk, next way to zero
//! ```
//!
//! A durable write is one transfer where the kernel's flag for it is trusted; else it is not over with its transfer, see
//! [`crate::syncs`].

use std::io;

use forebay_block::{Buf, BufMut, DeviceOp, DeviceResult, ErrorKind, IoError};
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{opcode, squeue};
use libc::iovec;

use crate::bounds::NO_COMMIT;
use crate::syncs::Seen;

/// Parts of one vectored write; the kernel's own limit (UIO_MAXIOV).
const IOVECS_MAX: usize = 1024;
/// Times that a transfer is started again because the kernel asked for it (EAGAIN, EINTR).
const RETRIES_MAX: u32 = 1000;
/// Bytes that one `fallocate` covers, so that a huge discard does not hold up a stop.
const ZERO_STEP_BYTES: u64 = 1 << 30;
/// Bytes of zeroes that one write carries where `fallocate` cannot help.
const ZERO_WRITE_BYTES: u64 = 1 << 20;
/// Bytes that one read or write moves at most: the kernel's limit is just below 2 GiB, and multiples of every
/// block size are wanted.
const MOVE_BYTES_MAX: usize = 1 << 30;

/// What the device demands of offsets, lengths and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Alignment {
    /// Of offsets and lengths, in bytes.
    pub(crate) offset: usize,
    /// Of addresses, in bytes.
    pub(crate) memory: usize,
}

/// How a range is made to read as zeroes, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ZeroWay {
    /// Give back the space.
    Punch,
    /// Keep the space.
    Range,
    /// Write zeroes.
    Write,
}

impl ZeroWay {
    fn next(self) -> Option<Self> {
        match self {
            Self::Punch => Some(Self::Range),
            Self::Range => Some(Self::Write),
            Self::Write => None,
        }
    }
}

/// How a write becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DurableBy {
    /// The kernel is told so with the write (`RWF_DSYNC`).
    Flag,
    /// By an `fdatasync` after it, see [`crate::syncs`].
    Sync,
}

enum Work {
    /// Reads into `buf` from its start on; the caller gets `len` bytes from `skip` on.
    Read {
        buf: BufMut,
        moved: usize,
        skip: usize,
        len: usize,
    },
    Write {
        data: Gather,
        durable: Option<DurableBy>,
    },
    Flush {
        /// It is for durable writes that have ended, and nobody has asked for it by name.
        shared: bool,
    },
    Zero {
        len: u64,
        done: u64,
        way: ZeroWay,
        zeroes: Option<Gather>,
    },
}

/// What to do after a completion.
pub(crate) enum Step {
    /// The operation has ended.
    Done(DeviceResult),
    /// Hand [`Transfer::entry`] to the kernel again.
    Again,
}

/// See the module's documentation.
pub(crate) struct Transfer {
    tag: u64,
    offset: u64,
    work: Work,
    retries: u32,
    seen: Seen,
    /// As [`crate::priority`] has it.
    io_priority: u16,
}

/// What a transfer that has ended was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// A write that needs an `fdatasync` to be durable.
    Written,
    /// A flush that was asked for.
    Flushed,
    /// The `fdatasync` of durable writes.
    Synced,
    /// Anything else.
    Other,
}

impl Transfer {
    /// Prepares an operation that lies within the device, bouncing what is not aligned as the device wants it.
    pub(crate) fn new(
        tag: u64,
        op: DeviceOp,
        align: Alignment,
        first_way: ZeroWay,
        durable_by: DurableBy,
        seen: Seen,
    ) -> Result<Self, IoError> {
        let (offset, work) = match op {
            DeviceOp::Read { offset, len } => {
                let skip = offset % align.offset as u64;
                let whole = (skip as usize + len).next_multiple_of(align.offset);
                let buf = BufMut::for_overwriting(whole);
                (offset - skip, Work::Read { buf, moved: 0, skip: skip as usize, len })
            }
            DeviceOp::Write { offset, bufs, durable } => {
                let data = Gather::aligned(bufs, align);
                check_multiple(offset, data.bytes as u64, align)?;
                (offset, Work::Write { data, durable: durable.then_some(durable_by) })
            }
            DeviceOp::Flush => (0, Work::Flush { shared: false }),
            DeviceOp::Zero { offset, len, unmap } => {
                check_multiple(offset, len, align)?;
                let way = if unmap { first_way } else { first_way.max(ZeroWay::Range) };
                (offset, Work::Zero { len, done: 0, way, zeroes: None })
            }
            DeviceOp::Commit(_) => return Err(NO_COMMIT),
        };
        Ok(Self { tag, offset, work, retries: 0, seen, io_priority: 0 })
    }

    /// An `fdatasync` for durable writes that have ended.
    pub(crate) fn shared_sync(seen: Seen) -> Self {
        Self { tag: 0, offset: 0, work: Work::Flush { shared: true }, retries: 0, seen, io_priority: 0 }
    }

    /// What the kernel is told of its reads and writes.
    pub(crate) fn with_priority(self, io_priority: u16) -> Self {
        Self { io_priority, ..self }
    }

    /// What has ended with this transfer.
    pub(crate) fn ended(&self) -> Ended {
        match self.work {
            Work::Write { durable: Some(DurableBy::Sync), .. } => Ended::Written,
            Work::Flush { shared: false } => Ended::Flushed,
            Work::Flush { shared: true } => Ended::Synced,
            Work::Read { .. } | Work::Write { .. } | Work::Zero { .. } => Ended::Other,
        }
    }

    /// The failures that there had been when it was submitted.
    pub(crate) fn seen(&self) -> Seen {
        self.seen
    }

    pub(crate) fn tag(&self) -> u64 {
        self.tag
    }

    /// The way to zero that this transfer has come down to; `None` for other operations.
    pub(crate) fn zero_way(&self) -> Option<ZeroWay> {
        match self.work {
            Work::Zero { way, .. } => Some(way),
            _ => None,
        }
    }

    /// Nothing is to be moved, so that the kernel need not be asked.
    pub(crate) fn is_empty(&self) -> bool {
        match &self.work {
            Work::Read { len, .. } => *len == 0,
            Work::Write { data, .. } => data.bytes == 0,
            Work::Flush { .. } => false,
            Work::Zero { len, .. } => *len == 0,
        }
    }

    /// The outcome of a transfer that [`Transfer::is_empty`].
    pub(crate) fn empty_result(&self) -> DeviceResult {
        Ok(matches!(self.work, Work::Read { .. }).then(|| Buf::zeroed(0)))
    }

    /// What to ask of the kernel now. The entry points into memory that this transfer owns.
    pub(crate) fn entry(&mut self, fd: Fd) -> squeue::Entry {
        let (offset, priority) = (self.offset, self.io_priority);
        match &mut self.work {
            Work::Read { buf, moved, .. } => {
                let at = offset + *moved as u64;
                let rest = &mut buf[*moved..];
                let len = rest.len().min(MOVE_BYTES_MAX) as u32;
                opcode::Read::new(fd, rest.as_mut_ptr(), len).offset(at).ioprio(priority).build()
            }
            Work::Write { data, durable } => {
                data.entry(fd, (offset, priority), *durable == Some(DurableBy::Flag))
            }
            Work::Flush { .. } => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
            Work::Zero { len, done, way, zeroes } => {
                let at = offset + *done;
                let rest = *len - *done;
                let mode = match way {
                    ZeroWay::Punch => libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                    ZeroWay::Range => libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE,
                    ZeroWay::Write => {
                        let bytes = rest.min(ZERO_WRITE_BYTES) as usize;
                        let gather = zeroes.insert(Gather::new(vec![Buf::zeroed(bytes)]));
                        return gather.entry(fd, (at, priority), false);
                    }
                };
                opcode::Fallocate::new(fd, rest.min(ZERO_STEP_BYTES)).offset(at).mode(mode).build()
            }
        }
    }

    /// Takes in what the kernel answered to the last entry: bytes moved or a negative errno.
    pub(crate) fn advance(&mut self, result: i32) -> Step {
        if matches!(-result, libc::EAGAIN | libc::EINTR) && self.retries < RETRIES_MAX {
            self.retries += 1;
            return Step::Again;
        }
        let at = self.offset;
        match &mut self.work {
            Work::Read { buf, moved, skip, len } => {
                let Ok(n) = usize::try_from(result) else {
                    return failed(result, "reading from a device", Some(at + *moved as u64));
                };
                *moved += n;
                if *moved >= *skip + *len {
                    let buf = std::mem::replace(buf, BufMut::zeroed(0)).freeze();
                    return Step::Done(Ok(Some(if buf.len() == *len {
                        buf
                    } else {
                        buf.slice(*skip, *len)
                    })));
                }
                if n == 0 {
                    let what = "reading from a device that has become shorter";
                    return Step::Done(Err(IoError::new(ErrorKind::Io, what)));
                }
                Step::Again
            }
            Work::Write { data, .. } => {
                let Ok(n) = usize::try_from(result) else {
                    return failed(result, "writing to a device", Some(at + data.done as u64));
                };
                if data.moved(n) {
                    return Step::Done(Ok(None));
                }
                if n == 0 {
                    return failed(-libc::ENOSPC, "writing to a device", Some(at + data.done as u64));
                }
                Step::Again
            }
            Work::Flush { .. } if result < 0 => failed(result, "flushing a device", None),
            Work::Flush { .. } => Step::Done(Ok(None)),
            Work::Zero { len, done, way, zeroes } => {
                if result < 0 {
                    let unable =
                        matches!(-result, libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS | libc::ENODEV);
                    match way.next() {
                        Some(next) if unable => *way = next,
                        _ => return failed(result, "zeroing a device", Some(at + *done)),
                    }
                    return Step::Again;
                }
                *done += match zeroes {
                    Some(_) => result as u64,
                    None => (*len - *done).min(ZERO_STEP_BYTES),
                };
                if *done == *len { Step::Done(Ok(None)) } else { Step::Again }
            }
        }
    }
}

fn check_multiple(offset: u64, len: u64, align: Alignment) -> Result<(), IoError> {
    let unit = align.offset as u64;
    if offset.is_multiple_of(unit) && len.is_multiple_of(unit) {
        return Ok(());
    }
    Err(IoError::new(ErrorKind::Invalid, "writing less than a logical block of the device"))
}

fn failed(result: i32, context: &'static str, offset: Option<u64>) -> Step {
    Step::Done(Err(IoError::of_system(-result, context, offset)))
}

/// An error of the operating system during `context`, at this byte offset of the device.
pub(crate) fn system_error(e: &io::Error, context: &'static str, offset: Option<u64>) -> IoError {
    IoError::of_system(e.raw_os_error().unwrap_or(libc::EIO), context, offset)
}

/// Data of a vectored write: the buffers, and the kernel's list of them.
struct Gather {
    /// Keeps alive what `parts` points to.
    _bufs: Vec<Buf>,
    parts: Vec<iovec>,
    /// First part that is not wholly written.
    first: usize,
    /// Bytes in all.
    bytes: usize,
    /// Bytes written.
    done: usize,
}

impl Gather {
    fn new(bufs: Vec<Buf>) -> Self {
        let parts = bufs.iter().filter(|b| !b.is_empty());
        let parts = parts.map(|b| iovec { iov_base: b.as_ptr() as *mut _, iov_len: b.len() }).collect();
        let bytes = bufs.iter().map(|b| b.len()).sum();
        Self { _bufs: bufs, parts, first: 0, bytes, done: 0 }
    }

    /// As [`Gather::new`], but through one aligned copy if a buffer does not lie as the device wants it.
    fn aligned(bufs: Vec<Buf>, align: Alignment) -> Self {
        let fits = |b: &Buf| {
            (b.as_ptr() as usize).is_multiple_of(align.memory) && b.len().is_multiple_of(align.offset)
        };
        if bufs.iter().all(fits) {
            return Self::new(bufs);
        }
        let mut bounce = BufMut::zeroed(bufs.iter().map(|b| b.len()).sum());
        let mut at = 0;
        for b in &bufs {
            bounce[at..at + b.len()].copy_from_slice(b);
            at += b.len();
        }
        Self::new(vec![bounce.freeze()])
    }

    /// What to write now, at this offset and with this I/O priority.
    fn entry(&mut self, fd: Fd, (offset, priority): (u64, u16), dsync: bool) -> squeue::Entry {
        let mut bytes = 0;
        let fits = |part: &&iovec| {
            bytes += part.iov_len;
            bytes <= MOVE_BYTES_MAX
        };
        let rest = &self.parts[self.first..];
        let count = rest.iter().take(IOVECS_MAX).take_while(fits).count().max(1).min(rest.len());
        let flags = if dsync { libc::RWF_DSYNC } else { 0 };
        let at = offset + self.done as u64;
        opcode::Writev::new(fd, rest.as_ptr(), count as u32)
            .offset(at)
            .rw_flags(flags)
            .ioprio(priority)
            .build()
    }

    /// Takes note of `n` more written bytes; true if that was all.
    fn moved(&mut self, mut n: usize) -> bool {
        self.done += n;
        while let Some(part) = self.parts.get_mut(self.first) {
            if n < part.iov_len {
                part.iov_base = part.iov_base.wrapping_byte_add(n);
                part.iov_len -= n;
                return false;
            }
            n -= part.iov_len;
            self.first += 1;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::syncs::Syncs;

    const SECTORS: Alignment = Alignment { offset: 512, memory: 512 };

    fn transfer(op: DeviceOp, align: Alignment) -> Result<Transfer, IoError> {
        Transfer::new(1, op, align, ZeroWay::Punch, DurableBy::Flag, Syncs::default().seen())
    }

    #[test]
    fn short_writes_go_on_where_they_stopped() {
        let bufs = vec![Buf::copy_of(&[1; 512]), Buf::copy_of(&[2; 1024])];
        let (first, second) = (bufs[0].as_ptr(), bufs[1].as_ptr());
        let mut gather = Gather::aligned(bufs, SECTORS);
        assert!(!gather.moved(100));
        assert_eq!(gather.parts[gather.first].iov_base as *const u8, first.wrapping_add(100));
        assert!(!gather.moved(412 + 1000));
        assert_eq!((gather.first, gather.done), (1, 1512));
        assert_eq!(gather.parts[1].iov_base as *const u8, second.wrapping_add(1000));
        assert!(gather.moved(24));
    }

    #[test]
    fn a_short_read_at_the_end_is_an_error_and_a_wide_one_is_cut() {
        let op = DeviceOp::Read { offset: 1024, len: 512 };
        let wide = Alignment { offset: 4096, memory: 4096 };
        let mut t = transfer(op, wide).unwrap();
        assert_eq!(t.offset, 0);
        assert!(matches!(t.advance(1024), Step::Again));
        match t.advance(512) {
            Step::Done(Ok(Some(buf))) => assert_eq!(buf.len(), 512),
            _ => panic!("1536 bytes cover what was asked for"),
        }
        let mut t = transfer(DeviceOp::Read { offset: 0, len: 4096 }, wide).unwrap();
        assert!(matches!(t.advance(1024), Step::Again));
        assert!(matches!(t.advance(0), Step::Done(Err(_))));
    }

    #[test]
    fn misplaced_memory_is_bounced_and_misplaced_offsets_are_refused() {
        let whole = Buf::copy_of(&[3; 1024]);
        let bufs = vec![whole.slice(100, 512), whole.slice(0, 512)];
        let gather = Gather::aligned(bufs, SECTORS);
        assert_eq!(gather.parts.len(), 1);
        assert_eq!(gather.parts[0].iov_base as usize % 4096, 0);
        let write = |offset, len| {
            let op = DeviceOp::Write { offset, bufs: vec![Buf::zeroed(len)], durable: false };
            transfer(op, SECTORS).err().map(|e| e.kind)
        };
        assert_eq!(write(512, 512), None);
        assert_eq!(write(100, 512), Some(ErrorKind::Invalid));
        assert_eq!(write(512, 100), Some(ErrorKind::Invalid));
    }

    /// io_uring refuses a priority with anything but reads and writes.
    #[test]
    fn the_kernel_is_told_the_priority_of_reads_and_writes_alone() {
        let bytes = |op| {
            let mut told = transfer(op, SECTORS).unwrap().with_priority(0x4007);
            // SAFETY: of an entry nothing but its bytes is wanted.
            let entry: [u8; 64] = unsafe { std::mem::transmute(told.entry(Fd(0))) };
            u16::from_ne_bytes([entry[2], entry[3]])
        };
        let write = DeviceOp::Write { offset: 0, bufs: vec![Buf::zeroed(512)], durable: true };
        assert_eq!(bytes(write), 0x4007);
        assert_eq!(bytes(DeviceOp::Read { offset: 0, len: 512 }), 0x4007);
        assert_eq!(bytes(DeviceOp::Flush), 0);
        assert_eq!(bytes(DeviceOp::Zero { offset: 0, len: 512, unmap: true }), 0);
    }

    #[test]
    fn zeroing_comes_down_to_writes() {
        let op = DeviceOp::Zero { offset: 0, len: 3 << 20, unmap: true };
        let mut t = transfer(op, SECTORS).unwrap();
        assert!(matches!(t.advance(-libc::EOPNOTSUPP), Step::Again));
        assert_eq!(t.zero_way(), Some(ZeroWay::Range));
        assert!(matches!(t.advance(-libc::EINVAL), Step::Again));
        assert_eq!(t.zero_way(), Some(ZeroWay::Write));
        for _ in 0..2 {
            let _ = t.entry(Fd(0));
            assert!(matches!(t.advance(1 << 20), Step::Again));
        }
        let _ = t.entry(Fd(0));
        assert!(matches!(t.advance(1 << 20), Step::Done(Ok(None))));
    }
}
