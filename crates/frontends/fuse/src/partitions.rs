//! Partitions of a block device: finding them, and taking away what a former user left.
//!
//! A loop device keeps the partitions that somebody has added to it (`partprobe`, `partx`) from one use to the next, unless it was
//! made with the flag that lets the kernel look for partitions. They would stand on the next volume, with sizes and places of another one.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

const BLKPG: libc::c_ulong = 0x1269;
const BLKPG_DEL_PARTITION: libc::c_int = 2;

/// `struct blkpg_ioctl_arg` of the kernel's `linux/blkpg.h`.
#[repr(C)]
struct BlkpgArgument {
    op: libc::c_int,
    flags: libc::c_int,
    data_len: libc::c_int,
    data: *mut BlkpgPartition,
}

/// `struct blkpg_partition` of the same.
#[repr(C)]
struct BlkpgPartition {
    start: libc::c_longlong,
    length: libc::c_longlong,
    number: libc::c_int,
    device_name: [u8; 64],
    volume_name: [u8; 64],
}

/// A partition, as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Partition {
    /// Its number on the disk, from 1.
    pub number: u32,
    /// Major and minor number.
    pub device: (u32, u32),
    /// `/dev/loopNpM`.
    pub path: PathBuf,
}

/// The partitions of the block device `disk` (as under `/sys/block`).
///
/// # Errors
/// If `/sys` cannot be read.
pub(crate) fn partitions_of(disk: &str) -> io::Result<Vec<Partition>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(Path::new("/sys/block").join(disk))? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(disk.as_bytes()) {
            found.extend(partition_at(&entry.path()));
        }
    }
    Ok(found)
}

/// The partition that this directory of `/sys` tells of; `None` if it tells of something else, or the partition has just gone.
fn partition_at(directory: &Path) -> Option<Partition> {
    let read = |name: &str| fs::read_to_string(directory.join(name)).ok();
    let number = read("partition")?.trim().parse().ok()?;
    let device = read("dev")?;
    let (major, minor) = device.trim().split_once(':')?;
    let device = (major.parse().ok()?, minor.parse().ok()?);
    Some(Partition { number, device, path: Path::new("/dev").join(directory.file_name()?) })
}

/// Takes a partition of the open block device `disk` away. What is on the medium stays as it is.
///
/// # Errors
/// EBUSY if somebody has it open.
pub(crate) fn remove(disk: &File, number: u32) -> io::Result<()> {
    let mut partition = BlkpgPartition {
        start: 0,
        length: 0,
        number: libc::c_int::try_from(number).map_err(|_| io::ErrorKind::InvalidInput)?,
        device_name: [0; 64],
        volume_name: [0; 64],
    };
    let mut argument = BlkpgArgument {
        op: BLKPG_DEL_PARTITION,
        flags: 0,
        data_len: size_of::<BlkpgPartition>() as libc::c_int,
        data: &raw mut partition,
    };
    // SAFETY: the argument points to a `blkpg_ioctl_arg` of the kernel's layout, and that to a `blkpg_partition`; both live until after the
    // call, and the kernel reads them.
    let rc = unsafe { libc::ioctl(disk.as_raw_fd(), BLKPG, &raw mut argument) };
    let error = io::Error::last_os_error();
    // ENXIO: it has just gone.
    if rc == 0 || error.raw_os_error() == Some(libc::ENXIO) { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_structures_have_the_kernels_sizes() {
        assert_eq!(size_of::<BlkpgArgument>(), 24);
        assert_eq!(size_of::<BlkpgPartition>(), 152);
        assert_eq!(std::mem::offset_of!(BlkpgPartition, number), 16);
    }

    #[test]
    fn what_is_no_partition_is_not_taken_for_one() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(partition_at(dir.path()), None);
        let of_disk = dir.path().join("loop7p3");
        fs::create_dir(&of_disk).unwrap();
        fs::write(of_disk.join("dev"), "259:12\n").unwrap();
        assert_eq!(partition_at(&of_disk), None);
        fs::write(of_disk.join("partition"), "3\n").unwrap();
        let expected = Partition { number: 3, device: (259, 12), path: PathBuf::from("/dev/loop7p3") };
        assert_eq!(partition_at(&of_disk), Some(expected));
    }
}
