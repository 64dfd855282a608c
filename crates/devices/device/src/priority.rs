//! I/O priority of what nobody waits for, as the kernel's I/O schedulers, virtio disks and loop devices below know it.
//!
//! What a request waits for has the daemon's own priority, which whoever runs it may choose (`ionice`), and which needs no
//! privilege. All else has the lowest of the best-effort class. The idle class is not for it: whoever fills the disk from elsewhere
//! would hold up destaging for as long as it likes, and so make the log full (P7). The real-time class would put Forebay before
//! everybody else on a shared disk, which is not its decision.
//!
//! Only reads and writes have one. io_uring refuses it with a flush or `fallocate`; through the page cache it is of no effect.

use forebay_block::Class;

/// Bits of an I/O priority below its class (`linux/ioprio.h`).
const CLASS_SHIFT: u32 = 13;
/// The best-effort class.
const BEST_EFFORT: u16 = 2;
/// The class of tasks to which the disk belongs when nobody else wants it.
const IDLE: u16 = 3;
/// The lowest level of a class.
const LEVEL_LOWEST: u16 = 7;

/// What the kernel is told with each class of operations; 0 is the calling thread's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Priorities {
    background: u16,
}

impl Priorities {
    /// Those beside the calling thread's own.
    pub(crate) fn of_thread() -> Self {
        /// `IOPRIO_WHO_PROCESS`: a thread, and 0 is the calling one.
        const WHO_THREAD: libc::c_int = 1;
        // SAFETY: ioprio_get takes numbers alone.
        let own = unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_THREAD, 0) };
        // What cannot be asked for has not been chosen either.
        Self::beside(u16::try_from(own).unwrap_or(0))
    }

    fn beside(own: u16) -> Self {
        let is_lower = own >> CLASS_SHIFT == IDLE;
        Self { background: if is_lower { 0 } else { BEST_EFFORT << CLASS_SHIFT | LEVEL_LOWEST } }
    }

    /// For operations of this class.
    pub(crate) const fn of(self, class: Class) -> u16 {
        match class {
            Class::Foreground => 0,
            Class::Background => self.background,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn background_is_the_lowest_that_does_not_starve_and_never_above_the_daemon() {
        const REAL_TIME: u16 = 1;
        for (own, background) in [
            (0, 0x4007),
            (BEST_EFFORT << CLASS_SHIFT, 0x4007),
            (REAL_TIME << CLASS_SHIFT | 4, 0x4007),
            (IDLE << CLASS_SHIFT, 0),
            (IDLE << CLASS_SHIFT | LEVEL_LOWEST, 0),
        ] {
            let priorities = Priorities::beside(own);
            let both = [Class::Foreground, Class::Background].map(|class| priorities.of(class));
            assert_eq!(both, [0, background], "beside {own:#x}");
        }
    }
}
