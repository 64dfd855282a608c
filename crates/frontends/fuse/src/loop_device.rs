//! The kernel's loop devices: making one of a file, finding, clearing.
//!
//! A loop device keeps much from one use to the next, by whomever: partitions, the mark that it is read-only (`blockdev --setro`), and the
//! attributes of its queue ([`crate::queue`]). None of it may show on a volume.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::partitions;
use crate::queue::{self, Found};

const LOOP_CLR_FD: libc::c_ulong = 0x4C01;
const LOOP_GET_STATUS64: libc::c_ulong = 0x4C05;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LOOP_CTL_ADD: libc::c_ulong = 0x4C80;
const LOOP_CTL_REMOVE: libc::c_ulong = 0x4C81;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const BLKROSET: libc::c_ulong = 0x125D;
const BLKROGET: libc::c_ulong = 0x125E;

const FLAG_READ_ONLY: u32 = 1;
const FLAG_AUTOCLEAR: u32 = 4;
const FLAG_PARTITIONS: u32 = 8;
const FLAG_DIRECT_IO: u32 = 16;

/// Tries to get a free device that another program does not take in between.
const GET_FREE_TRIES_MAX: usize = 32;

/// How long a device that another program has just taken is left alone.
const TAKEN_PAUSE: Duration = Duration::from_millis(20);

/// How long a device may take to go away after its last close.
pub(crate) const CLEAR_PATIENCE: Duration = Duration::from_secs(5);

/// `struct loop_info64` of the kernel's `linux/loop.h`.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config` of the kernel's `linux/loop.h`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

impl LoopInfo {
    const fn new(flags: u32) -> Self {
        Self {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags,
            file_name: [0; 64],
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        }
    }
}

/// A loop device that was just made of a file. It clears itself when `file`, and every other opening of it, is closed.
pub(crate) struct LoopDevice {
    /// Number N of `/dev/loopN`.
    pub number: u32,
    /// The open device.
    pub file: File,
    /// Whether it does direct I/O on the file, as asked; without it each of its requests is waited for by its worker.
    pub direct_io: bool,
    /// Whether it can be written to, as the file can.
    pub writable: bool,
    /// Its attributes before it was made, some of which the kernel then makes anew.
    pub found: Found,
}

/// `loopN`, as under `/sys/block`.
pub(crate) fn device_name(number: u32) -> String {
    format!("loop{number}")
}

/// `/dev/loopN`.
pub(crate) fn device_path(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/loop{number}"))
}

/// Makes a loop device of the file at `path`, with sectors of `logical_block` bytes; read-only if the file is, and only then. The
/// kernel looks for partitions on it, and forgets them when the device is cleared, whoever added them and even if this process is no more.
///
/// # Errors
/// Of opening the file or of the loop driver.
pub(crate) fn configure(path: &Path, direct_io: bool, logical_block: u32) -> io::Result<LoopDevice> {
    let (backing, read_only) = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => (file, 0),
        Err(e) if e.raw_os_error() == Some(libc::EROFS) => (File::open(path)?, FLAG_READ_ONLY),
        Err(e) => return Err(e),
    };
    let direct = if direct_io { FLAG_DIRECT_IO } else { 0 };
    let mut config = LoopConfig {
        fd: backing.as_raw_fd() as u32,
        block_size: logical_block,
        info: LoopInfo::new(FLAG_AUTOCLEAR | FLAG_PARTITIONS | direct | read_only),
        reserved: [0; 8],
    };
    let control = open_control()?;
    let mut new = false;
    for _ in 0..GET_FREE_TRIES_MAX {
        let number = free_device(&control, new)?;
        let found = Found::look(&device_name(number));
        let fit = remove_former_partitions(number)? && queue::allow_flushes(&device_name(number));
        if !fit && renew(number).is_err() {
            new = true;
            continue;
        }
        let file = open_device(number, read_only != 0)?;
        // SAFETY: the argument points to a `loop_config` of the kernel's layout that lives until after the call; the kernel reads it.
        let rc = unsafe { libc::ioctl(file.as_raw_fd(), LOOP_CONFIGURE, &raw mut config) };
        if rc == 0 {
            if read_only == 0 {
                allow_writes(&file)?;
            }
            let direct_io = flags(&file)? & FLAG_DIRECT_IO != 0;
            return Ok(LoopDevice { number, file, direct_io, writable: read_only == 0, found });
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EBUSY) {
            return Err(error);
        }
        // It may be held for a moment by whoever puts right what its last user had set.
        thread::sleep(TAKEN_PAUSE);
    }
    Err(io::Error::from_raw_os_error(libc::EBUSY))
}

fn open_control() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open("/dev/loop-control")
}

/// Makes a device that stands on no file anew: whatever its former users have set goes with the old one.
///
/// # Errors
/// Of the loop driver; EBUSY if somebody has it open.
pub(crate) fn renew(number: u32) -> io::Result<()> {
    let control = open_control()?;
    for request in [LOOP_CTL_REMOVE, LOOP_CTL_ADD] {
        // SAFETY: both ioctls take a number.
        if unsafe { libc::ioctl(control.as_raw_fd(), request, libc::c_long::from(number)) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// A device that stands on no file: one that there is, or a `new` one that had no user before.
fn free_device(control: &File, new: bool) -> io::Result<u32> {
    const ANY_NUMBER: libc::c_long = -1;
    let request = if new { LOOP_CTL_ADD } else { LOOP_CTL_GET_FREE };
    // SAFETY: the one ioctl takes no argument that is used, the other a number.
    let number = unsafe { libc::ioctl(control.as_raw_fd(), request, ANY_NUMBER) };
    u32::try_from(number).map_err(|_| io::Error::last_os_error())
}

/// Takes away the partitions that a former user left on a device that stands on no file. False if one of them stays, which may be in use
/// by a mounted file system that would write to the volume.
fn remove_former_partitions(number: u32) -> io::Result<bool> {
    let name = device_name(number);
    let former = partitions::partitions_of(&name)?;
    if former.is_empty() {
        return Ok(true);
    }
    // As long as it is held so, nobody else can put the device on a file, whose partitions these then were.
    let disk = match OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(device_path(number)) {
        Ok(disk) => disk,
        Err(e) if e.raw_os_error() == Some(libc::EBUSY) => return Ok(false),
        Err(e) => return Err(e),
    };
    let removed = |partition: partitions::Partition| partitions::remove(&disk, partition.number).is_ok();
    Ok(backing_file(&name).is_none() && former.into_iter().all(removed))
}

/// Takes away the mark of a former user that the device is read-only, for which one needs CAP_SYS_ADMIN.
fn allow_writes(device: &File) -> io::Result<()> {
    let mut read_only: libc::c_int = 0;
    // SAFETY: the argument points to an integer that lives until after the call; the kernel writes it.
    let rc = unsafe { libc::ioctl(device.as_raw_fd(), BLKROGET, &raw mut read_only) };
    if rc == 0 && read_only == 0 {
        return Ok(());
    }
    read_only = 0;
    // SAFETY: likewise, and the kernel reads it.
    let rc = unsafe { libc::ioctl(device.as_raw_fd(), BLKROSET, &raw const read_only) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Opens `/dev/loopN`, for which the node may have to be made by udev first.
fn open_device(number: u32, read_only: bool) -> io::Result<File> {
    let deadline = Instant::now() + CLEAR_PATIENCE;
    loop {
        match OpenOptions::new().read(true).write(!read_only).open(device_path(number)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(5));
            }
            result => return result,
        }
    }
}

fn flags(device: &File) -> io::Result<u32> {
    let mut info = LoopInfo::new(0);
    // SAFETY: the argument points to a `loop_info64` of the kernel's layout that lives until after the call; the kernel fills it, and every bit
    // pattern is a valid value of its integers.
    let rc = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, &raw mut info) };
    if rc == 0 { Ok(info.flags) } else { Err(io::Error::last_os_error()) }
}

/// Whether something claims the device for itself: a mounted file system, also of another mount namespace, swap, a mapping.
///
/// # Errors
/// Of opening the device, other than that.
pub(crate) fn is_claimed(number: u32) -> io::Result<bool> {
    match OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(device_path(number)) {
        Ok(_) => Ok(false),
        Err(e) if e.raw_os_error() == Some(libc::EBUSY) => Ok(true),
        Err(e) => Err(e),
    }
}

/// The file that a loop device stands on, as the kernel shows it; `None` if on none.
pub(crate) fn backing_file(device_name: &str) -> Option<OsString> {
    let mut text = fs::read(format!("/sys/block/{device_name}/loop/backing_file")).ok()?;
    if text.last() == Some(&b'\n') {
        text.pop();
    }
    (!text.is_empty()).then(|| OsString::from_vec(text))
}

/// The loop devices that stand on the file at `path`.
///
/// # Errors
/// If `/sys` cannot be read.
pub(crate) fn on_file(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut deleted = path.as_os_str().to_owned();
    deleted.push(" (deleted)");
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/block")? {
        let name = entry?.file_name();
        let Some(name) = name.to_str().filter(|n| n.starts_with("loop")) else {
            continue;
        };
        if backing_file(name).is_some_and(|f| f == path.as_os_str() || f == deleted) {
            found.push(Path::new("/dev").join(name));
        }
    }
    Ok(found)
}

/// Clears a loop device; `false` if it is in use, and will be cleared when it is closed.
///
/// # Errors
/// Of opening the device or of the loop driver.
pub(crate) fn clear(device: &Path) -> io::Result<bool> {
    let name = device.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let before = backing_file(name);
    let file = File::open(device)?;
    // SAFETY: this ioctl takes no argument that is used.
    let rc = unsafe { libc::ioctl(file.as_raw_fd(), LOOP_CLR_FD, 0) };
    let error = io::Error::last_os_error();
    drop(file);
    // ENXIO: it went away by itself.
    if rc != 0 && error.raw_os_error() != Some(libc::ENXIO) {
        return Err(error);
    }
    Ok(backing_file(name) != before)
}

/// Waits until `/dev/loopN` stands no longer on the file `backing`; `false` if it still does after [`CLEAR_PATIENCE`].
pub(crate) fn wait_cleared(number: u32, backing: &Path) -> bool {
    let deadline = Instant::now() + CLEAR_PATIENCE;
    let name = device_name(number);
    while backing_file(&name).is_some_and(|f| f == backing.as_os_str()) {
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_structures_have_the_kernels_sizes() {
        assert_eq!(size_of::<LoopInfo>(), 232);
        assert_eq!(size_of::<LoopConfig>(), 304);
        assert_eq!(std::mem::offset_of!(LoopInfo, flags), 52);
        assert_eq!(std::mem::offset_of!(LoopConfig, info), 8);
    }

    #[test]
    fn nothing_stands_on_a_file_that_is_not_there() {
        if Path::new("/sys/block").exists() {
            assert_eq!(on_file(Path::new("/nowhere/at all")).unwrap(), Vec::<PathBuf>::new());
        }
    }
}
