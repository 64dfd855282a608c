//! Exclusive use of a file or block device (P6).

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use forebay_guard::{SideFile, Who, lock_holder};

use crate::access::{Access, OpenError};

/// How long a claim waits for a holder that is dying: its last I/O may take a while on a slow device.
const DYING_WAIT_MAX: Duration = Duration::from_secs(10);
/// How long it waits for one that seems alive: the signal that kills it may not have arrived.
const LIVING_WAIT_MAX: Duration = Duration::from_millis(300);
/// How often it looks.
const DYING_POLL: Duration = Duration::from_millis(20);

/// Whether a path is a regular file or a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sort {
    File,
    Block,
}

/// An open file that nobody else has open through [`claim`].
#[derive(Debug)]
pub(crate) struct Claimed {
    pub(crate) file: File,
    pub(crate) sort: Sort,
}

impl Claimed {
    /// Lets go of the claim at once, instead of when the last user of the open file is gone. Only for when no I/O is
    /// under way.
    pub(crate) fn release(&self) {
        // SAFETY: flock takes no pointers; the descriptor is open.
        unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_UN) };
    }
}

/// Opens `path` and claims it.
pub(crate) fn claim(path: &Path, access: Access) -> Result<Claimed, OpenError> {
    claim_by(path, || try_claim(path, access))
}

/// The same of a file beside a backing.
pub(crate) fn claim_side_file(file: &SideFile, access: Access) -> Result<Claimed, OpenError> {
    claim_by(file.path(), || {
        let opened = file.open(access.writes());
        let opened = opened.map_err(|e| OpenError::of_side_file("open", file.path(), e))?;
        lock_attempt(file.path(), opened, Sort::File)
    })
}

fn claim_by(path: &Path, attempt: impl Fn() -> Result<Attempt, OpenError>) -> Result<Claimed, OpenError> {
    let begun = Instant::now();
    loop {
        let (holder, dying) = match attempt()? {
            Attempt::Claimed(claimed) => return Ok(claimed),
            Attempt::Held { holder, dying } => (holder, dying),
        };
        if begun.elapsed() > if dying { DYING_WAIT_MAX } else { LIVING_WAIT_MAX } {
            return Err(OpenError::InUse { path: path.to_owned(), holder });
        }
        thread::sleep(DYING_POLL);
    }
}

enum Attempt {
    Claimed(Claimed),
    Held { holder: String, dying: bool },
}

fn try_claim(path: &Path, access: Access) -> Result<Attempt, OpenError> {
    let sort = sort_of(path)?;
    let exclusive = if sort == Sort::Block { libc::O_EXCL } else { 0 };
    let file = match open(path, exclusive, access) {
        Ok(file) => file,
        Err(e) if e.raw_os_error() == Some(libc::EBUSY) && sort == Sort::Block => {
            // Held exclusively. If it is by one of us, the lock says by whom.
            let file = open(path, 0, Access::ReadOnly).map_err(|e| OpenError::system("open", path, e))?;
            if lock(&file).is_err() {
                return Ok(held_by_lock(&file));
            }
            let holder = "the kernel or another program (mounted, swap, or part of a RAID or LVM set?)";
            return Ok(Attempt::Held { holder: holder.to_owned(), dying: false });
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(OpenError::Missing { path: path.to_owned() });
        }
        Err(e) => {
            let error = match access {
                // Only what can be read is worth saying this of.
                Access::ReadWrite | Access::TakeOver if open(path, 0, Access::ReadOnly).is_ok() => {
                    read_only(path, &e)
                }
                _ => None,
            };
            return Err(error.unwrap_or_else(|| OpenError::system("open", path, e)));
        }
    };
    // The kernel lets a block device that is set read-only be opened for writing, and fails every write.
    if sort == Sort::Block && access.writes() {
        let is_read_only = device_is_read_only(&file).map_err(|e| OpenError::system("look at", path, e))?;
        if is_read_only {
            return Err(OpenError::ReadOnly { path: path.to_owned(), why: "the device is set read-only" });
        }
    }
    lock_attempt(path, file, sort)
}

fn lock_attempt(path: &Path, file: File, sort: Sort) -> Result<Attempt, OpenError> {
    match lock(&file) {
        Ok(()) => Ok(Attempt::Claimed(Claimed { file, sort })),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(held_by_lock(&file)),
        Err(e) => Err(OpenError::system("lock", path, e)),
    }
}

fn open(path: &Path, flags: i32, access: Access) -> io::Result<File> {
    let write = access.writes();
    OpenOptions::new().read(true).write(write).custom_flags(flags | libc::O_CLOEXEC).open(path)
}

/// What an error of opening for writing means, if it is one of those of a thing that can only be read.
fn read_only(path: &Path, error: &io::Error) -> Option<OpenError> {
    let why = match error.raw_os_error() {
        Some(libc::EROFS) => "its file system is read-only",
        Some(libc::EACCES | libc::EPERM) => "it may not be written to",
        _ => return None,
    };
    Some(OpenError::ReadOnly { path: path.to_owned(), why })
}

fn device_is_read_only(file: &File) -> io::Result<bool> {
    const BLKROGET: libc::Ioctl = 0x125e;
    let mut value: libc::c_int = 0;
    // SAFETY: BLKROGET writes one `int` through the pointer.
    match unsafe { libc::ioctl(file.as_raw_fd(), BLKROGET, &raw mut value) } {
        0 => Ok(value != 0),
        _ => Err(io::Error::last_os_error()),
    }
}

fn lock(file: &File) -> io::Result<()> {
    let flock = |how: libc::c_int| {
        // SAFETY: flock takes no pointers; the descriptor is open.
        match unsafe { libc::flock(file.as_raw_fd(), how | libc::LOCK_NB) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    match flock(libc::LOCK_EX) {
        // Some network file systems lock exclusively only what is open for writing; this much keeps writers out.
        Err(e) if e.raw_os_error() == Some(libc::EBADF) => flock(libc::LOCK_SH),
        result => result,
    }
}

fn sort_of(path: &Path) -> Result<Sort, OpenError> {
    let kind = match fs::metadata(path) {
        Ok(meta) => meta.file_type(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(OpenError::Missing { path: path.to_owned() });
        }
        Err(e) => return Err(OpenError::system("look at", path, e)),
    };
    let what = match () {
        () if kind.is_file() => return Ok(Sort::File),
        () if kind.is_block_device() => return Ok(Sort::Block),
        () if kind.is_dir() => "a directory",
        () if kind.is_char_device() => "a character device",
        () => "a socket or pipe",
    };
    Err(OpenError::NotADevice { path: path.to_owned(), what })
}

fn held_by_lock(file: &File) -> Attempt {
    let Some(who) = lock_holder(file) else {
        // The lock was let go between the two looks, or /proc is hidden: look again for a while.
        return Attempt::Held { holder: "another process".to_owned(), dying: true };
    };
    let pid = who.pid;
    let own = pid == std::process::id();
    let dying = !own && is_dying(pid);
    let holder = match () {
        () if own => "this process itself (given twice?)".to_owned(),
        () if dying => {
            format!(
                "what is left of process {pid} (killed, with I/O unfinished, or a child of it holds the file)"
            )
        }
        () if is_strangers(who, file) => format!(
            "another process ({who}), which may read it and so lock it; end that process, and take the right to read the file from its user"
        ),
        () => format!("another process ({who})"),
    };
    Attempt::Held { holder, dying }
}

/// Whether a process is of a user who has no business with this file but that of reading it.
fn is_strangers(who: Who, file: &File) -> bool {
    let owner = file.metadata().map_or(0, |meta| meta.uid());
    who.uid.is_some_and(|uid| ![0, owner, rustix::process::geteuid().as_raw()].contains(&uid))
}

/// Whether a process is gone or on its way: then its claim ends by itself.
fn is_dying(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| has_ended(&stat))
        || is_being_killed(pid)
}

/// What `/proc/PID/stat` says of a process that is a zombie or exits.
pub(crate) fn has_ended(stat: &str) -> bool {
    const PF_EXITING: u64 = 4;
    // "pid (name) state ppid pgrp session tty tpgid flags ..."; the name may hold anything.
    let Some((_, rest)) = stat.rsplit_once(')') else {
        return true;
    };
    let mut fields = rest.split_whitespace();
    let state = fields.next().unwrap_or_default();
    let flags: u64 = fields.nth(5).and_then(|f| f.parse().ok()).unwrap_or(0);
    matches!(state, "Z" | "X" | "x") || flags & PF_EXITING != 0
}

/// Whether a SIGKILL is on its way to a process.
fn is_being_killed(pid: u32) -> bool {
    is_killed(&fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default())
}

/// What `/proc/PID/status` says of signals that have not been delivered.
pub(crate) fn is_killed(status: &str) -> bool {
    const SIGKILL_BIT: u64 = 1 << (libc::SIGKILL - 1);
    let pending = status.lines().filter_map(|line| match line.split_once(':') {
        Some(("SigPnd" | "ShdPnd", set)) => u64::from_str_radix(set.trim(), 16).ok(),
        _ => None,
    });
    pending.fold(0, |all, set| all | set) & SIGKILL_BIT != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_living_are_not_dying_and_the_dead_are() {
        assert!(!is_dying(std::process::id()));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        let begun = Instant::now();
        while !is_dying(pid) {
            assert!(begun.elapsed() < Duration::from_secs(60), "an unreaped child is a zombie");
            thread::sleep(Duration::from_millis(1));
        }
        child.wait().unwrap();
        assert!(is_dying(pid));
    }
}
