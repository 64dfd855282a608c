//! Files and block devices through io_uring.

use std::collections::VecDeque;
use std::io::{self, ErrorKind as IoErrorKind};
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;

use forebay_block::{Class, DeviceOp, DeviceResult, Nanos};

use forebay_guard::SideFile;

use crate::access::{Access, OpenError};
use crate::bounds::check_range;
use crate::claim::{Claimed, Sort, claim, claim_side_file};
use crate::device::{Device, DeviceInfo, DeviceKind};
use crate::entry::sync_found_entry;
use crate::ground::Ground;
use crate::medium::Medium;
use crate::priority::Priorities;
use crate::ring::{ClientId, Ring};
use crate::room;
use crate::survey::Survey;
use crate::syncs::Syncs;
use crate::transfer::{Alignment, DurableBy, Ended, Step, Transfer, ZeroWay};

/// Operations of one device in the kernel's hands at a time; the rest waits in the device's queue, which is bounded
/// by what the volume has under way.
const DEPTH_MAX: usize = 128;

/// A regular file or block device, driven by io_uring with direct I/O where that is to be had.
pub struct FileDevice {
    info: DeviceInfo,
    access: Access,
    align: Alignment,
    claimed: Claimed,
    ring: Ring,
    client: ClientId,
    queue: VecDeque<Box<Transfer>>,
    in_ring: usize,
    finished: Vec<(u64, DeviceResult)>,
    mail: Vec<(Box<Transfer>, i32)>,
    /// The first way to zero that is not known to fail here.
    zero_way: ZeroWay,
    durable_by: DurableBy,
    priorities: Priorities,
    syncs: Syncs,
}

impl FileDevice {
    /// Opens and claims a file or block device.
    ///
    /// # Errors
    /// [`OpenError`]; a missing file is never created.
    pub fn open(path: &Path, ring: &Ring, access: Access) -> Result<Self, OpenError> {
        Self::of(claim(path, access)?, path, ring, access)
    }

    /// The same of a file beside a backing.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_side_file(file: &SideFile, ring: &Ring, access: Access) -> Result<Self, OpenError> {
        Self::of(claim_side_file(file, access)?, file.path(), ring, access)
    }

    fn of(claimed: Claimed, path: &Path, ring: &Ring, access: Access) -> Result<Self, OpenError> {
        let failed = |doing| move |e| OpenError::system(doing, path, e);
        let mut medium = Medium::of(&claimed.file, claimed.sort).map_err(failed("look at"))?;
        if medium.direct.is_some() && set_direct(claimed.file.as_raw_fd()).is_err() {
            medium.direct = None;
        }
        if claimed.sort == Sort::File {
            sync_found_entry(path).map_err(failed("make durable the directory entry of"))?;
        }
        let client = ring.join().map_err(failed("open"))?;
        Ok(Self {
            info: info(path, claimed.sort, &medium),
            access,
            align: medium.direct.unwrap_or(Alignment { offset: 1, memory: 1 }),
            claimed,
            ring: ring.clone(),
            client,
            queue: VecDeque::new(),
            in_ring: 0,
            finished: Vec::new(),
            mail: Vec::new(),
            zero_way: ZeroWay::Punch,
            durable_by: medium.durable_by(),
            priorities: Priorities::of_thread(),
            syncs: Syncs::default(),
        })
    }

    fn fd(&self) -> RawFd {
        self.claimed.file.as_raw_fd()
    }

    fn start_or_queue(&mut self, transfer: Box<Transfer>) {
        if self.in_ring < DEPTH_MAX {
            self.in_ring += 1;
            self.ring.start(self.client, self.fd(), transfer);
        } else {
            self.queue.push_back(transfer);
        }
    }

    /// Starts the `fdatasync` that somebody waits for, unless one is under way.
    fn sync_if_wanted(&mut self) {
        if self.syncs.begin() {
            let sync = Transfer::shared_sync(self.syncs.seen());
            self.ring.start(self.client, self.fd(), Box::new(sync));
        }
    }

    /// Takes in the end of a transfer.
    fn ended(&mut self, transfer: &Transfer, result: DeviceResult, done: &mut Vec<(u64, DeviceResult)>) {
        let (tag, seen) = (transfer.tag(), transfer.seen());
        match transfer.ended() {
            // It had no place among the others.
            Ended::Synced => return self.syncs.ended(result, done),
            Ended::Written if result.is_ok() => self.syncs.written(tag, seen),
            Ended::Flushed => done.push((tag, self.syncs.flush_ended(seen, result))),
            Ended::Written | Ended::Other => done.push((tag, result)),
        }
        self.in_ring -= 1;
        if let Some(next) = self.queue.pop_front() {
            self.start_or_queue(next);
        }
    }
}

/// Direct I/O is switched on after opening, so that the claim comes first whatever the file system says to O_DIRECT.
fn set_direct(fd: RawFd) -> io::Result<()> {
    // SAFETY: F_GETFL takes no pointer; the descriptor is open.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: F_SETFL takes no pointer; the descriptor is open.
    match unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_DIRECT) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn info(path: &Path, sort: Sort, medium: &Medium) -> DeviceInfo {
    let durability = match (medium.ground, medium.direct.is_some()) {
        (Ground::Memory, _) => "survives the death of the process only: the medium is main memory",
        (Ground::Unknown(words), _) => words,
        (Ground::Disk, true) => "survives a power cut",
        (Ground::Disk, false) => "survives a power cut; through the page cache, as direct I/O is refused",
    };
    DeviceInfo {
        name: path.display().to_string(),
        kind: if sort == Sort::Block { DeviceKind::Block } else { DeviceKind::File },
        several_ways: false,
        size_bytes: medium.size_bytes,
        logical_block: medium.direct.map_or(512, |a| a.offset as u32),
        native_block: medium.native_block,
        physical_block: medium.physical_block,
        unit_bytes: None,
        direct: medium.direct.is_some(),
        depth: medium.queue_depth.map_or(DEPTH_MAX, |depth| depth.clamp(1, DEPTH_MAX)),
        volatile_cache: medium.volatile_cache || medium.direct.is_none(),
        forgets: false,
        atomic: false,
        survives: medium.survives(),
        durability,
        billed: None,
    }
}

impl Device for FileDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&mut self, tag: u64, op: DeviceOp, class: Class, _now: Nanos) {
        if matches!(op, DeviceOp::Flush) {
            if !self.access.writes() {
                // Nothing is written, and file systems that are always read-only know no fsync.
                return self.finished.push((tag, Ok(None)));
            }
            if let Some(e) = self.syncs.flush_begins() {
                return self.finished.push((tag, Err(e)));
            }
            if self.durable_by == DurableBy::Sync {
                // One at a time, so that it is known whom a failure belongs to.
                self.syncs.written(tag, self.syncs.seen());
                return self.sync_if_wanted();
            }
        }
        let seen = self.syncs.seen();
        let transfer = check_range(&op, self.info.size_bytes)
            .and_then(|()| Transfer::new(tag, op, self.align, self.zero_way, self.durable_by, seen))
            .map(|transfer| transfer.with_priority(self.priorities.of(class)));
        match transfer {
            Ok(transfer) if transfer.is_empty() => self.finished.push((tag, transfer.empty_result())),
            Ok(transfer) => self.start_or_queue(Box::new(transfer)),
            Err(e) => self.finished.push((tag, Err(e))),
        }
    }

    fn poll(&mut self, _now: Nanos, done: &mut Vec<(u64, DeviceResult)>) {
        done.append(&mut self.finished);
        let mut mail = std::mem::take(&mut self.mail);
        self.ring.take_mail(self.client, &mut mail);
        for (mut transfer, result) in mail.drain(..) {
            let step = transfer.advance(result);
            if let Some(way) = transfer.zero_way() {
                self.zero_way = self.zero_way.max(if way == ZeroWay::Write { way } else { ZeroWay::Punch });
            }
            match step {
                Step::Again => self.ring.start(self.client, self.fd(), transfer),
                Step::Done(result) => self.ended(&transfer, result, done),
            }
        }
        self.mail = mail;
        self.sync_if_wanted();
    }

    fn waiting(&self) -> usize {
        self.queue.len()
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
        if self.claimed.sort != Sort::File {
            return Err(IoErrorKind::Unsupported.into());
        }
        if !size_bytes.is_multiple_of(u64::from(self.info.logical_block)) {
            return Err(IoErrorKind::InvalidInput.into());
        }
        room::resize(&self.claimed.file, size_bytes)?;
        self.info.size_bytes = size_bytes;
        Ok(())
    }

    fn reserve(&self) -> io::Result<()> {
        match self.claimed.sort {
            Sort::File => room::reserve_whole(&self.claimed.file),
            Sort::Block => Ok(()),
        }
    }
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        if self.ring.leave(self.client) {
            self.claimed.release();
        }
    }
}
