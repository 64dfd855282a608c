//! What the rules say of each task, where the eBPF programs read it: a byte for each number that a task may have.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, Ordering};

use crate::tasks::Role;
use crate::wire::{ROLE_RATED, ROLE_SEEN, TIDS_MAX};

/// The programs' map `roles`. They store to it, too: that a task has written, and that it has ended.
pub(crate) struct Roles {
    base: NonNull<u8>,
}

// SAFETY: it owns its mapping, which no thread in particular has anything to do with.
unsafe impl Send for Roles {}

impl Roles {
    /// Maps the bytes of the map `fd`, which can be mapped and has [`TIDS_MAX`] of them.
    ///
    /// # Errors
    /// The system's.
    pub fn map(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base =
            unsafe { libc::mmap(ptr::null_mut(), TIDS_MAX, access, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { base })
    }

    /// A task's; `None` if no task can have this number.
    fn of(&self, tid: u32) -> Option<&AtomicU8> {
        let at = usize::try_from(tid).ok().filter(|at| *at < TIDS_MAX)?;
        // SAFETY: the byte lies within the mapping, which lives as long as `self`, and is accessed atomically alone, by the programs as well: a
        // byte is loaded and stored as a whole.
        Some(unsafe { AtomicU8::from_ptr(self.base.as_ptr().wrapping_add(at)) })
    }

    /// Says what the rules say of a task.
    pub fn set(&self, tid: u32, role: Role) {
        let Some(place) = self.of(tid) else { return };
        // Of whom nothing is to be said nothing is: the programs look no further at such tasks.
        if role != Role::default() || place.load(Ordering::Relaxed) != 0 {
            let rated = if role.rated { ROLE_RATED } else { 0 };
            place.store(role.critical.number() | ROLE_SEEN | rated, Ordering::Relaxed);
        }
    }
}

impl Drop for Roles {
    fn drop(&mut self) {
        // SAFETY: this mapping was made by `map` with this length, and no reference into it outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), TIDS_MAX) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Critical;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_task_has_the_byte_of_its_number() {
        let path = std::env::temp_dir().join(format!("forebay-roles-{}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.set_len(TIDS_MAX as u64).unwrap();
        let roles = Roles::map(file.as_fd()).unwrap();
        let last = TIDS_MAX as u32 - 1;
        let byte = |tid: u32| {
            let mut byte = [0];
            file.read_exact_at(&mut byte, u64::from(tid)).unwrap();
            byte[0]
        };
        let role = |critical| Role { critical, ruled: true, rated: false };
        roles.set(7, Role::default());
        assert_eq!(byte(7), 0, "nothing is known of it, and nothing is to be said");
        for tid in [0, 7, last] {
            roles.set(tid, role(Critical::Never));
            assert_eq!(byte(tid), ROLE_SEEN | 4, "{tid}");
        }
        roles.set(7, Role::default());
        assert_eq!((byte(6), byte(7), byte(8)), (0, ROLE_SEEN, 0), "what was said of it is taken back");
        roles.set(8, Role { rated: true, ..role(Critical::Yes) });
        roles.set(9, role(Critical::No));
        assert_eq!((byte(8), byte(9)), (ROLE_SEEN | ROLE_RATED | 1, ROLE_SEEN), "a rule speaks of both");
        for none in [last + 1, u32::MAX] {
            roles.set(none, role(Critical::Yes));
        }
        assert_eq!(byte(last), ROLE_SEEN | 4);
    }
}
