//! What the bytes of a file or block device end up on, as far as the kernel tells.
//!
//! ```text
//!  file ─► its file system ─► block device ─► partition of ─► disk ─► loop device ─► file ─► ...
//!                                                             disk ─► its parts (dm, md) ─► ...
//! ```
//!
//! Nothing here opens a device for writing, and nothing is guessed: where the chain leads to something that decides
//! for itself what a flush means, or out of sight, the answer is [`Ground::Unknown`].

use std::fs::{self, File};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::claim::Sort;

/// Loop devices on files, and devices made of devices, are followed this far.
const DEPTH_MAX: u32 = 8;

const ON_FUSE: &str = "unknown: the file lies on FUSE or virtiofs, whose server decides what a flush means; flushed after each durable write";
const ON_NETWORK: &str = "unknown: the file lies on a network file system, whose server decides what a flush means; flushed after each durable write";
const ON_OVERLAY: &str = "unknown: the file lies on an overlay, which does not tell what is below; flushed after each durable write";
const ON_FILE_SYSTEM: &str =
    "unknown: the file system does not tell which device it is on; flushed after each durable write";
const WITHOUT_BARRIERS: &str =
    "unknown: the file system is mounted with nobarrier, so that it does not flush its device";
const ON_DEVICE: &str = "unknown: the kernel does not tell what the block device keeps its data on";
const OUT_OF_SIGHT: &str = "unknown: the file below the loop device is out of sight";

/// What bytes end up on, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ground {
    /// A disk, which is trusted to honour flush and FUA (M1).
    Disk,
    /// Something that cannot be judged from here; the words for it.
    Unknown(&'static str),
    /// Main memory.
    Memory,
}

impl Ground {
    /// What an open file or block device stands on.
    pub(crate) fn of(file: &File, sort: Sort) -> io::Result<Self> {
        let meta = file.metadata()?;
        Ok(match sort {
            Sort::Block => of_device(meta.rdev(), DEPTH_MAX),
            Sort::File => of_file(file, FileSystem::of(file)?, meta.dev(), DEPTH_MAX),
        })
    }

    fn worse(self, other: Self) -> Self {
        match (self, other) {
            (Self::Memory, _) | (_, Self::Memory) => Self::Memory,
            (Self::Disk, other) => other,
            (unknown, _) => unknown,
        }
    }
}

/// A file system, by what is asked of it here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileSystem {
    /// tmpfs, ramfs, hugetlbfs.
    Memory,
    /// ext2, ext3, ext4.
    Ext,
    Xfs,
    Btrfs,
    /// FUSE and virtiofs.
    Fuse,
    Overlay,
    /// NFS, SMB, 9P, AFS, Ceph.
    Network,
    Other,
}

impl FileSystem {
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        let mut stat = MaybeUninit::<libc::statfs>::zeroed();
        // SAFETY: the descriptor is open and the buffer has the right type.
        if unsafe { libc::fstatfs(file.as_raw_fd(), stat.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: zero bytes are a valid statfs, and the call filled it in.
        Ok(Self::of_magic(unsafe { stat.assume_init() }.f_type as u32))
    }

    /// By the number in `statfs(2)`.
    fn of_magic(magic: u32) -> Self {
        match magic {
            0x0102_1994 | 0x8584_58f6 | 0x9584_58f6 => Self::Memory,
            0xef53 => Self::Ext,
            0x5846_5342 => Self::Xfs,
            0x9123_683e => Self::Btrfs,
            0x6573_5546 => Self::Fuse,
            0x794c_7630 => Self::Overlay,
            // nfs, smb, cifs, smb2, 9p, afs, afs (of the kernel), ceph
            0x6969 | 0x517b | 0xff53_4d42 | 0xfe53_4d42 | 0x0102_1997 | 0x5346_414f | 0x6b41_4653
            | 0x00c3_6400 => Self::Network,
            _ => Self::Other,
        }
    }

    /// Whether a direct write with `RWF_DSYNC` was seen to be durable here when io_uring says that it has ended, and
    /// to tell its own failure. The table is in `docs/design/media-assumptions.md`; what is not in it is flushed.
    pub(crate) fn honours_dsync(self) -> bool {
        match self {
            // There is nothing to wait for in memory.
            Self::Ext | Self::Xfs | Self::Memory => true,
            // btrfs takes a checksummed file's direct writes through the page cache, where a failure is told to one of
            // those who wait; the rest forgets the flag, or was not tried.
            Self::Btrfs | Self::Fuse | Self::Overlay | Self::Network | Self::Other => false,
        }
    }
}

/// `dev` is the device that the file's metadata names; anonymous for many file systems.
fn of_file(file: &File, system: FileSystem, dev: u64, depth: u32) -> Ground {
    match system {
        FileSystem::Memory => Ground::Memory,
        FileSystem::Fuse => Ground::Unknown(ON_FUSE),
        FileSystem::Overlay => Ground::Unknown(ON_OVERLAY),
        FileSystem::Network => Ground::Unknown(ON_NETWORK),
        FileSystem::Btrfs => {
            flushed(file).worse(of_btrfs(file, depth).unwrap_or(Ground::Unknown(ON_FILE_SYSTEM)))
        }
        FileSystem::Ext | FileSystem::Xfs | FileSystem::Other => match sysfs_of(dev) {
            Some(_) => flushed(file).worse(of_device(dev, depth)),
            None => Ground::Unknown(ON_FILE_SYSTEM),
        },
    }
}

/// A disk, if the file system that the file lies on flushes what it lies on. ext4, btrfs and others can be told not to.
fn flushed(file: &File) -> Ground {
    let options = mount_id(file).and_then(|id| {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let line = mounts.lines().find(|line| line.split(' ').next() == Some(&id.to_string()))?;
        line.rsplit(' ').next().map(str::to_owned)
    });
    let off = |options: String| options.split(',').any(|o| o == "nobarrier" || o == "barrier=0");
    if options.is_some_and(off) { Ground::Unknown(WITHOUT_BARRIERS) } else { Ground::Disk }
}

/// The number of the mount that a file was opened through.
fn mount_id(file: &File) -> Option<u64> {
    let mut stat = MaybeUninit::<libc::statx>::zeroed();
    let (fd, out) = (file.as_raw_fd(), stat.as_mut_ptr());
    // SAFETY: the path is an empty C string, as AT_EMPTY_PATH wants, and the result fits the buffer.
    let failed = unsafe { libc::statx(fd, c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_MNT_ID, out) };
    // SAFETY: zero bytes are a valid statx, and the call filled it in.
    let stat = unsafe { stat.assume_init() };
    (failed == 0 && stat.stx_mask & libc::STATX_MNT_ID != 0).then_some(stat.stx_mnt_id)
}

/// The worst of a btrfs's devices.
fn of_btrfs(file: &File, depth: u32) -> Option<Ground> {
    const FS_INFO_BYTES: usize = 1024;
    const BTRFS_IOC_FS_INFO: libc::Ioctl = 0x8400_941f_u32 as libc::Ioctl;
    const ID: std::ops::Range<usize> = 16..32;
    let mut info = [0u8; FS_INFO_BYTES];
    // SAFETY: the request writes FS_INFO_BYTES, which it has in its number, through the pointer.
    if unsafe { libc::ioctl(file.as_raw_fd(), BTRFS_IOC_FS_INFO, info.as_mut_ptr()) } != 0 {
        return None;
    }
    let hex: String = info.get(ID)?.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [hex.get(..8)?, hex.get(8..12)?, hex.get(12..16)?, hex.get(16..20)?, hex.get(20..)?];
    of_all(&Path::new("/sys/fs/btrfs").join(parts.join("-")).join("devices"), depth)
}

/// The worst of the devices that a directory of sysfs has links to; `None` if there are none.
fn of_all(links: &Path, depth: u32) -> Option<Ground> {
    let each = fs::read_dir(links).ok()?.map(|entry| {
        let directory = entry.and_then(|entry| fs::canonicalize(entry.path()));
        directory.map_or(Ground::Unknown(ON_DEVICE), |directory| of_directory(directory, depth))
    });
    each.reduce(Ground::worse)
}

/// What a block device stands on, by its number.
fn of_device(dev: u64, depth: u32) -> Ground {
    match sysfs_of(dev).and_then(|directory| fs::canonicalize(directory).ok()) {
        Some(directory) => of_directory(directory, depth),
        None => Ground::Unknown(ON_DEVICE),
    }
}

/// The same by its directory in sysfs.
fn of_directory(mut directory: PathBuf, depth: u32) -> Ground {
    let Some(depth) = depth.checked_sub(1) else {
        return Ground::Unknown(ON_DEVICE);
    };
    if directory.join("partition").exists() {
        directory.pop();
    }
    let name = directory.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let is = |kind: &str| name.strip_prefix(kind).is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()));
    if is("ram") || is("zram") || is("nullb") {
        return Ground::Memory;
    }
    if directory.join("loop").exists() {
        return below_loop(name, &directory, depth).unwrap_or(Ground::Unknown(OUT_OF_SIGHT));
    }
    if let Some(worst) = of_all(&directory.join("slaves"), depth) {
        return worst;
    }
    // Made by the driver of some hardware or bus, not by a program or out of nothing.
    match directory.join("device").exists() {
        true => Ground::Disk,
        false => Ground::Unknown(ON_DEVICE),
    }
}

/// What the file below a loop device stands on. Its path is as the one who set the loop device up saw it, and may be gone, or
/// another file's here: only the file of the right number counts.
fn below_loop(name: &str, directory: &Path, depth: u32) -> Option<Ground> {
    /// `struct loop_info64`: the file's device and number come first.
    #[repr(C)]
    struct Status {
        device: u64,
        inode: u64,
        rest: [u8; 216],
    }
    const LOOP_GET_STATUS64: libc::Ioctl = 0x4c05;
    let device = File::open(Path::new("/dev").join(name)).ok()?;
    let numbers = fs::read_to_string(directory.join("dev")).ok()?;
    let dev = device.metadata().ok()?.rdev();
    if numbers.trim_end() != format!("{}:{}", libc::major(dev), libc::minor(dev)) {
        return None;
    }
    let mut status = Status { device: 0, inode: 0, rest: [0; 216] };
    // SAFETY: the request writes a `struct loop_info64` of 232 bytes, which `Status` is as long as.
    if unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, &raw mut status) } != 0 {
        return None;
    }
    let path = fs::read_to_string(directory.join("loop/backing_file")).ok()?;
    let path = Path::new(path.trim_end_matches('\n'));
    let is_ours = |meta: &fs::Metadata| (meta.dev(), meta.ino()) == (status.device, status.inode);
    let Some(meta) = fs::metadata(path).ok().filter(is_ours) else {
        // A file that was removed is still on its device.
        return sysfs_of(status.device).map(|_| of_device(status.device, depth));
    };
    if meta.file_type().is_block_device() {
        return Some(of_device(meta.rdev(), depth));
    }
    let file = File::open(path).ok()?;
    file.metadata().ok().filter(is_ours)?;
    Some(of_file(&file, FileSystem::of(&file).ok()?, meta.dev(), depth))
}

/// A block device's directory in sysfs; `None` for the number of a file system that is not on one device.
pub(crate) fn sysfs_of(dev: u64) -> Option<PathBuf> {
    let path = PathBuf::from(format!("/sys/dev/block/{}:{}", libc::major(dev), libc::minor(dev)));
    path.exists().then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_seen_to_honour_dsync_is_flushed() {
        let trusted = [0xef53, 0x5846_5342, 0x0102_1994];
        let not =
            [0x6573_5546, 0x6969, 0x517b, 0xfe53_4d42, 0x794c_7630, 0x9123_683e, 0xf2f5_2010, 0x2fc1_2fc1, 0];
        assert!(trusted.iter().all(|magic| FileSystem::of_magic(*magic).honours_dsync()));
        assert!(!not.iter().any(|magic| FileSystem::of_magic(*magic).honours_dsync()));
    }

    #[test]
    fn the_worst_part_counts() {
        let unknown = Ground::Unknown(ON_DEVICE);
        assert_eq!(Ground::Disk.worse(unknown), unknown);
        assert_eq!(unknown.worse(Ground::Memory), Ground::Memory);
        assert_eq!(Ground::Memory.worse(Ground::Disk), Ground::Memory);
        assert_eq!(Ground::Disk.worse(Ground::Disk), Ground::Disk);
    }

    /// Of what this machine has, nothing of which is opened.
    #[test]
    fn disks_are_disks_and_memory_is_memory() {
        for entry in fs::read_dir("/sys/block").unwrap() {
            let path = fs::canonicalize(entry.unwrap().path()).unwrap();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let ground = of_directory(path.clone(), DEPTH_MAX);
            match () {
                () if name.starts_with("vd") || name.starts_with("nvme") || name.starts_with("sd") => {
                    assert_eq!(ground, Ground::Disk, "{name}");
                }
                () if name.starts_with("zram") || name.starts_with("ram") => {
                    assert_eq!(ground, Ground::Memory, "{name}");
                }
                () if name.starts_with("loop") && !path.join("loop").exists() => {
                    assert!(matches!(ground, Ground::Unknown(_)), "{name}");
                }
                () => {}
            }
        }
    }
}
