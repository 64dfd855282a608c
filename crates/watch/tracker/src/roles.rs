//! What the rules say of each task, where the eBPF programs read it: a number of 16 bits for each that a task may have.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU16, Ordering};

use crate::tasks::Role;
use crate::wire::{ROLE_HEARD, ROLE_RATE_SHIFT, ROLE_SEEN, TIDS_MAX};

/// Bytes of the map.
const BYTES: usize = TIDS_MAX * size_of::<u16>();

/// The programs' map `roles`. They store to it, too: that a task has written, and that it has ended.
pub(crate) struct Roles {
    base: NonNull<u16>,
}

// SAFETY: it owns its mapping, which no thread in particular has anything to do with.
unsafe impl Send for Roles {}

impl Roles {
    /// Maps the map `fd`, which can be mapped and has [`TIDS_MAX`] numbers of 16 bits.
    ///
    /// # Errors
    /// The system's.
    pub fn map(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe { libc::mmap(ptr::null_mut(), BYTES, access, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { base })
    }

    /// A task's; `None` if no task can have this number.
    fn of(&self, tid: u32) -> Option<&AtomicU16> {
        let at = usize::try_from(tid).ok().filter(|at| *at < TIDS_MAX)?;
        // SAFETY: the number lies within the mapping, aligned as the pages are, which lives as long as `self`, and is accessed atomically alone, by the
        // programs as well: 16 bits are loaded and stored as a whole.
        Some(unsafe { AtomicU16::from_ptr(self.base.as_ptr().wrapping_add(at)) })
    }

    /// Says what the rules say of a task.
    pub fn set(&self, tid: u32, role: Role) {
        let Some(place) = self.of(tid) else { return };
        // Of whom nothing is to be said nothing is: the programs look no further at such tasks.
        if role != Role::default() || place.load(Ordering::Relaxed) != 0 {
            let heard = if role.heard { ROLE_HEARD } else { 0 };
            let said = u16::from(role.critical.number()) | ROLE_SEEN | heard;
            place.store(said | u16::from(role.rate) << ROLE_RATE_SHIFT, Ordering::Relaxed);
        }
    }
}

impl Drop for Roles {
    fn drop(&mut self) {
        // SAFETY: this mapping was made by `map` with this length, and no reference into it outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), BYTES) };
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
    fn a_task_has_the_place_of_its_number() {
        let path = std::env::temp_dir().join(format!("forebay-roles-{}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.set_len(BYTES as u64).unwrap();
        let roles = Roles::map(file.as_fd()).unwrap();
        let last = TIDS_MAX as u32 - 1;
        let said = |tid: u32| {
            let mut said = [0; 2];
            file.read_exact_at(&mut said, 2 * u64::from(tid)).unwrap();
            u16::from_ne_bytes(said)
        };
        let role = |critical| Role { critical, ruled: true, ..Role::default() };
        roles.set(7, Role::default());
        assert_eq!(said(7), 0, "nothing is known of it, and nothing is to be said");
        for tid in [0, 7, last] {
            roles.set(tid, role(Critical::Never));
            assert_eq!(said(tid), ROLE_SEEN | 4, "{tid}");
        }
        roles.set(7, Role::default());
        assert_eq!((said(6), said(7), said(8)), (0, ROLE_SEEN, 0), "what was said of it is taken back");
        roles.set(8, Role { rate: 7, heard: true, ..role(Critical::Yes) });
        roles.set(9, role(Critical::No));
        assert_eq!(
            (said(8), said(9)),
            (ROLE_SEEN | ROLE_HEARD | 7 << 8 | 1, ROLE_SEEN),
            "a rule speaks of both"
        );
        for none in [last + 1, u32::MAX] {
            roles.set(none, role(Critical::Yes));
        }
        assert_eq!(said(last), ROLE_SEEN | 4);
    }
}
