//! A cache device that is mapped into memory: persistent memory with DAX, or a file on tmpfs.
//!
//! Writes are stores past the CPU's caches and a fence; there is no system call in their way. Reads go through `pread`,
//! which answers with an error where a load from failed memory would kill the process.

use std::io::{self, ErrorKind as IoErrorKind};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::{self, NonNull};

use forebay_block::{Buf, BufMut, Class, DeviceOp, DeviceResult, ErrorKind, IoError, Nanos};

use crate::access::{Access, OpenError};
use crate::bounds::{NO_COMMIT, check_range};
use crate::claim::{Claimed, Sort, claim};
use crate::device::{Device, DeviceInfo, DeviceKind};
use crate::entry::sync_found_entry;
use crate::ground::Ground;
use crate::medium::Medium;
use crate::room;
use crate::stores::{Stores, fence};
use crate::survey::Survey;
use crate::transfer::system_error;

/// Unit in which the mapping is populated ahead of the first store to it.
const WINDOW_BYTES: usize = 2 << 20;
/// Zeroes are stored from a buffer of this size.
const ZERO_BYTES: usize = 64 << 10;

/// Operations in one turn of the volume's thread, which carries out each as it is submitted: in between it looks at what has come.
const DEPTH: usize = 32;

/// How a store becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sync {
    /// A fence: the memory itself is durable (DAX), or as durable as it will ever be (a file on tmpfs).
    Fence,
    /// `msync`: the mapping is of the page cache of an ordinary file, or of a block device, whatever that is made of.
    Msync,
}

/// See the module's documentation.
pub struct MappedDevice {
    info: DeviceInfo,
    claimed: Claimed,
    map: Mapping,
    sync: Sync,
    stores: Stores,
    zeroes: Buf,
    finished: Vec<(u64, DeviceResult)>,
}

impl MappedDevice {
    /// Opens, claims and maps a file.
    ///
    /// # Errors
    /// [`OpenError`]; a missing file is never created.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let failed = |doing| move |e| OpenError::system(doing, path, e);
        let claimed = claim(path, Access::ReadWrite)?;
        let medium = Medium::of(&claimed.file, claimed.sort).map_err(failed("look at"))?;
        if claimed.sort == Sort::File {
            sync_found_entry(path).map_err(failed("make durable the directory entry of"))?;
        }
        reserve(&claimed, medium.size_bytes).map_err(failed("reserve the space of"))?;
        let (map, dax) = Mapping::new(&claimed, medium.size_bytes).map_err(failed("map"))?;
        let sync = if dax || medium.is_mapped_memory() { Sync::Fence } else { Sync::Msync };
        let durability = match (medium.ground, sync) {
            (Ground::Memory, _) => "survives the death of the process only: the medium is main memory",
            (Ground::Unknown(words), _) => words,
            (Ground::Disk, Sync::Fence) => {
                "survives a power cut (DAX: stores past the CPU's caches, then a fence)"
            }
            (Ground::Disk, Sync::Msync) => {
                "survives a power cut; not DAX, so each durable write waits for msync"
            }
        };
        Ok(Self {
            info: DeviceInfo {
                name: path.display().to_string(),
                kind: DeviceKind::Mapped,
                several_ways: false,
                size_bytes: medium.size_bytes,
                logical_block: 512,
                native_block: 512,
                physical_block: if sync == Sync::Fence { 512 } else { medium.physical_block },
                unit_bytes: None,
                direct: sync == Sync::Fence,
                volatile_cache: !dax,
                forgets: false,
                atomic: false,
                depth: DEPTH,
                survives: medium.survives(),
                durability,
                billed: None,
            },
            claimed,
            map,
            sync,
            stores: Stores::detect(),
            zeroes: Buf::zeroed(ZERO_BYTES),
            finished: Vec::new(),
        })
    }

    /// The instruction set that copies into the mapping, for measurements.
    pub fn store_instructions(&self) -> &'static str {
        self.stores.name
    }

    /// Without the cancellation points of the C library's own.
    fn read(&self, mut rest: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !rest.is_empty() {
            match rustix::io::pread(&self.claimed.file, &mut *rest, offset) {
                Ok(0) => return Err(IoErrorKind::UnexpectedEof.into()),
                Ok(n) => (rest, offset) = (&mut rest[n..], offset + n as u64),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn carry_out(&mut self, op: DeviceOp) -> DeviceResult {
        check_range(&op, self.info.size_bytes)?;
        match op {
            DeviceOp::Read { offset, len } => {
                let mut buf = BufMut::for_overwriting(len);
                self.read(&mut buf, offset)
                    .map_err(|e| system_error(&e, "reading from a mapped device", Some(offset)))?;
                Ok(Some(buf.freeze()))
            }
            DeviceOp::Write { offset, bufs, durable } => {
                let len = bufs.iter().map(|b| b.len()).sum();
                let mut at = offset as usize;
                for buf in &bufs {
                    self.store(at, buf)?;
                    at += buf.len();
                }
                fence();
                if durable && self.sync == Sync::Msync {
                    self.map.sync(offset as usize, len).map_err(|e| sync_failed(&e))?;
                }
                Ok(None)
            }
            DeviceOp::Flush => {
                fence();
                if self.sync == Sync::Msync {
                    self.claimed.file.sync_data().map_err(|e| sync_failed(&e))?;
                }
                Ok(None)
            }
            DeviceOp::Zero { offset, len, .. } => {
                let zeroes = self.zeroes.clone();
                let (mut at, end) = (offset, offset + len);
                while at < end {
                    let part = (end - at).min(ZERO_BYTES as u64) as usize;
                    self.store(at as usize, &zeroes[..part])?;
                    at += part as u64;
                }
                fence();
                Ok(None)
            }
            DeviceOp::Commit(_) => Err(NO_COMMIT),
        }
    }

    fn store(&mut self, at: usize, data: &[u8]) -> Result<(), IoError> {
        if !at.is_multiple_of(512) || !data.len().is_multiple_of(512) {
            return Err(IoError::new(ErrorKind::Invalid, "writing less than a sector of a mapped device"));
        }
        let target = self.map.range(at, data.len());
        let target = target.map_err(|e| system_error(&e, "writing to a mapped device", Some(at as u64)))?;
        // SAFETY: `range` has checked that the bytes lie within the mapping and has populated them; the mapping starts
        // on a page and `at` is a multiple of 512, so the target is aligned; `data` is memory of a Buf, not of the
        // mapping, to which no reference exists anywhere.
        unsafe { self.stores.copy(data, target) };
        Ok(())
    }
}

fn sync_failed(e: &io::Error) -> IoError {
    system_error(e, "flushing a mapped device", None)
}

/// Allocates the holes of a file, because a store to a hole that gets no page kills the process.
fn reserve(claimed: &Claimed, size_bytes: u64) -> io::Result<()> {
    if claimed.sort == Sort::Block {
        return Ok(());
    }
    match room::reserve(&claimed.file, size_bytes, &|| false)? {
        true => Ok(()),
        false => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
    }
}

impl Device for MappedDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&mut self, tag: u64, op: DeviceOp, _class: Class, _now: Nanos) {
        let result = self.carry_out(op);
        self.finished.push((tag, result));
    }

    fn poll(&mut self, _now: Nanos, done: &mut Vec<(u64, DeviceResult)>) {
        done.append(&mut self.finished);
    }

    fn deadline(&self) -> Option<Nanos> {
        (!self.finished.is_empty()).then_some(Nanos(0))
    }

    fn survey(&self) -> io::Result<Survey> {
        match self.claimed.sort {
            Sort::File => Survey::of_file(&self.claimed.file, self.info.size_bytes),
            Sort::Block => Ok(Survey::unknown(self.info.size_bytes)),
        }
    }

    fn resize(&mut self, size_bytes: u64) -> io::Result<()> {
        if self.claimed.sort != Sort::File || !size_bytes.is_multiple_of(512) {
            return Err(IoErrorKind::Unsupported.into());
        }
        if !room::resize(&self.claimed.file, size_bytes)? {
            self.claimed.file.set_len(self.info.size_bytes)?;
            return Err(IoErrorKind::Unsupported.into());
        }
        (self.map, _) = Mapping::new(&self.claimed, size_bytes)?;
        self.info.size_bytes = size_bytes;
        Ok(())
    }
}

impl Drop for MappedDevice {
    fn drop(&mut self) {
        self.claimed.release();
    }
}

/// A shared, writable mapping of a whole file.
struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// Windows whose pages are known to be there.
    populated: Vec<bool>,
}

impl Mapping {
    /// Maps a file; also tells whether stores reach the medium without the page cache (DAX).
    fn new(claimed: &Claimed, size_bytes: u64) -> io::Result<(Self, bool)> {
        let len = usize::try_from(size_bytes).map_err(io::Error::other)?;
        let map = |flags| {
            let (access, fd) = (libc::PROT_READ | libc::PROT_WRITE, claimed.file.as_raw_fd());
            // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
            let base = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, fd, 0) };
            if base == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(base) }
        };
        let (base, dax) = match map(libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC) {
            Ok(base) => (base, Stores::REACH_MEMORY),
            Err(_) => (map(libc::MAP_SHARED)?, false),
        };
        let base = NonNull::new(base.cast()).ok_or(IoErrorKind::AddrNotAvailable)?;
        Ok((Self { base, len, populated: vec![false; len.div_ceil(WINDOW_BYTES)] }, dax))
    }

    /// The address of `len` bytes at `at`, all of whose pages can be stored to.
    fn range(&mut self, at: usize, len: usize) -> io::Result<*mut u8> {
        if len > 0 {
            if at.checked_add(len).is_none_or(|end| end > self.len) {
                return Err(IoErrorKind::InvalidInput.into());
            }
            for window in at / WINDOW_BYTES..=(at + len - 1) / WINDOW_BYTES {
                if !self.populated[window] {
                    self.populate(window)?;
                }
            }
        }
        Ok(self.base.as_ptr().wrapping_add(at))
    }

    /// Faults a window's pages in at once: cheaper than one by one, and a page that is not to be had (no space, failed
    /// memory) is an error instead of a signal.
    fn populate(&mut self, window: usize) -> io::Result<()> {
        let start = window * WINDOW_BYTES;
        let len = WINDOW_BYTES.min(self.len - start);
        let address = self.base.as_ptr().wrapping_add(start).cast();
        // SAFETY: the range lies within this mapping, which nothing refers to; populating changes no content.
        if unsafe { libc::madvise(address, len, libc::MADV_POPULATE_WRITE) } != 0 {
            let e = io::Error::last_os_error();
            // Linux before 5.14 does not know the advice; then the pages come one by one.
            if e.raw_os_error() != Some(libc::EINVAL) {
                return Err(e);
            }
        }
        self.populated[window] = true;
        Ok(())
    }

    /// Waits until a range is on the medium.
    fn sync(&self, at: usize, len: usize) -> io::Result<()> {
        const PAGE: usize = 4096;
        let start = at - at % PAGE;
        let len = (at + len - start).min(self.len - start);
        let address = self.base.as_ptr().wrapping_add(start).cast();
        // SAFETY: the range lies within this mapping; msync reads it and changes nothing.
        match unsafe { libc::msync(address, len, libc::MS_SYNC) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this mapping was made by `new` with this length, and no reference into it exists.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
