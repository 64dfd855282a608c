//! What lies under an open file: sizes, alignments, and what durability means there.

use std::fs::{self, File};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use crate::claim::Sort;
use crate::device::Survives;
use crate::ground::{FileSystem, Ground, sysfs_of};
use crate::transfer::{Alignment, DurableBy};

/// Alignment that suits every device where the system does not say what it wants.
const CAUTIOUS: usize = 4096;

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct Medium {
    pub(crate) size_bytes: u64,
    /// What direct I/O demands; `None` if it is not to be had.
    pub(crate) direct: Option<Alignment>,
    /// As [`crate::DeviceInfo::native_block`].
    pub(crate) native_block: u32,
    pub(crate) physical_block: u32,
    /// Whether the device has such a cache; what goes through the page cache has one in any case.
    pub(crate) volatile_cache: bool,
    /// Requests that the block device's own queue holds, if it is one.
    pub(crate) queue_depth: Option<usize>,
    /// What it all ends up on.
    pub(crate) ground: Ground,
    /// `None` for a block device.
    file_system: Option<FileSystem>,
}

impl Medium {
    pub(crate) fn of(file: &File, sort: Sort) -> io::Result<Self> {
        let meta = file.metadata()?;
        let file_system = match sort {
            Sort::File => Some(FileSystem::of(file)?),
            // The node's own file system says nothing of the device.
            Sort::Block => None,
        };
        let mut told = true;
        let (size_bytes, direct, dev) = match sort {
            Sort::File if file_system == Some(FileSystem::Memory) => (meta.len(), None, meta.dev()),
            Sort::File => {
                let dio = dio_alignment(file)?;
                told = dio.told;
                (meta.len(), dio.align, meta.dev())
            }
            Sort::Block => {
                let logical = ioctl_u32(file, BLKSSZGET)? as usize;
                let memory = dio_alignment(file)?.align.map_or(logical, |a| a.memory);
                (block_size_bytes(file)?, Some(Alignment { offset: logical, memory }), meta.rdev())
            }
        };
        // The end of a file that is no multiple of the alignment is out of reach of direct I/O.
        let direct = direct.filter(|a| size_bytes.is_multiple_of(a.offset as u64));
        let queue = QueueDirectory::of(dev);
        let logical = direct.map_or(512, |a| a.offset as u32);
        // A file system that does not say mostly means its disk's; one on no disk of its own (btrfs) keeps to larger blocks.
        let native = if told { logical } else { queue.number("logical_block_size").unwrap_or(logical) };
        let physical = match sort {
            Sort::Block => ioctl_u32(file, BLKPBSZGET)?,
            Sort::File => queue.number("physical_block_size").unwrap_or(CAUTIOUS as u32),
        };
        Ok(Self {
            size_bytes,
            direct,
            native_block: native.min(logical),
            physical_block: physical.max(logical),
            queue_depth: match sort {
                Sort::Block => queue.number("nr_requests").map(|n| n as usize),
                Sort::File => None,
            },
            volatile_cache: queue.text("write_cache").is_none_or(|t| t != "write through"),
            ground: Ground::of(file, sort)?,
            file_system,
        })
    }

    /// What a durable write outlives.
    pub(crate) fn survives(&self) -> Survives {
        match self.ground {
            Ground::Disk => Survives::PowerCut,
            Ground::Unknown(_) => Survives::Unknown,
            Ground::Memory => Survives::ProcessDeath,
        }
    }

    /// How a write through io_uring becomes durable.
    pub(crate) fn durable_by(&self) -> DurableBy {
        let direct = self.direct.is_some();
        match self.file_system {
            Some(FileSystem::Memory) => DurableBy::Flag,
            // Without direct I/O, a failure of the page cache is told to one of those who wait.
            None if direct => DurableBy::Flag,
            Some(file_system) if direct && file_system.honours_dsync() => DurableBy::Flag,
            _ => DurableBy::Sync,
        }
    }

    /// Whether the file lies in memory that is mapped as it is, so that there is nothing to sync.
    pub(crate) fn is_mapped_memory(&self) -> bool {
        self.file_system == Some(FileSystem::Memory)
    }
}

const BLKSSZGET: libc::Ioctl = 0x1268;
const BLKPBSZGET: libc::Ioctl = 0x127b;
const BLKGETSIZE64: libc::Ioctl = 0x8008_1272;

fn ioctl_u32(file: &File, request: libc::Ioctl) -> io::Result<u32> {
    let mut value: u32 = 0;
    // SAFETY: both requests that come here write one 32-bit integer through the pointer.
    match unsafe { libc::ioctl(file.as_raw_fd(), request, &raw mut value) } {
        0 => Ok(value),
        _ => Err(io::Error::last_os_error()),
    }
}

fn block_size_bytes(file: &File) -> io::Result<u64> {
    let mut value: u64 = 0;
    // SAFETY: BLKGETSIZE64 writes one 64-bit integer through the pointer.
    match unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64, &raw mut value) } {
        0 => Ok(value),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What direct I/O on a file demands.
struct Dio {
    /// `None` if it is not to be had.
    align: Option<Alignment>,
    /// The file system says so; else it is what suits all.
    told: bool,
}

/// What direct I/O on this file demands, if the file system says; 4096 if it does not say.
fn dio_alignment(file: &File) -> io::Result<Dio> {
    let mut stat = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the path is an empty C string, as AT_EMPTY_PATH wants, and the result fits the buffer.
    let failed = unsafe {
        libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            stat.as_mut_ptr(),
        )
    };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zero bytes are a valid statx, and the call filled it in.
    let stat = unsafe { stat.assume_init() };
    if stat.stx_mask & libc::STATX_DIOALIGN == 0 {
        return Ok(Dio { align: Some(Alignment { offset: CAUTIOUS, memory: CAUTIOUS }), told: false });
    }
    let (offset, memory) = (stat.stx_dio_offset_align as usize, stat.stx_dio_mem_align as usize);
    let sane = |n: usize| n.is_power_of_two() && n <= CAUTIOUS;
    if !sane(offset) || !sane(memory) {
        return Ok(Dio { align: None, told: true });
    }
    Ok(Dio { align: Some(Alignment { offset: offset.max(512), memory }), told: true })
}

/// A block device's `queue` directory in sysfs; that of the whole disk for a partition.
struct QueueDirectory(Option<PathBuf>);

impl QueueDirectory {
    fn of(dev: u64) -> Self {
        let candidates = |d: PathBuf| [d.join("queue"), d.join("../queue")];
        Self(sysfs_of(dev).and_then(|d| candidates(d).into_iter().find(|q| q.exists())))
    }

    fn text(&self, attribute: &str) -> Option<String> {
        let path = self.0.as_ref()?.join(attribute);
        fs::read_to_string(path).ok().map(|t| t.trim_end().to_owned())
    }

    fn number(&self, attribute: &str) -> Option<u32> {
        self.text(attribute)?.parse().ok()
    }
}
