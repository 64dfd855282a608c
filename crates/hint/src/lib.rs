//! Forebay's hint: the calling thread works for a request, so whatever it writes and waits for is awaited.
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! let critical = forebay_hint::Critical::begin()?;
//! // ... read the request, write, fsync, answer ...
//! drop(critical);
//! # Ok(())
//! # }
//! ```
//!
//! The hint stands in the thread's I/O priority (`ioprio_set(2)`), in bits that the kernel passes on with each write. It costs two
//! system calls, needs no privilege and no daemon, is inherited by threads and processes that are made, and does no harm where
//! there is no Forebay. `include/forebay.h` is the same for C.

use std::io;
use std::marker::PhantomData;

const WHO_PROCESS: libc::c_int = 1;
const CLASS_SHIFT: u32 = 13;
const HINT_SHIFT: u32 = 3;
const HINT_MASK: i64 = 1023 << HINT_SHIFT;
const HINT_CRITICAL: i64 = 763;
/// Best effort, level 4: what a thread has that never chose an I/O priority.
const DEFAULT: i64 = 2 << CLASS_SHIFT | 4;

/// While this lives, the thread that made it is critical.
#[derive(Debug)]
pub struct Critical {
    before: i64,
    /// It belongs to the thread that made it.
    thread: PhantomData<*const ()>,
}

impl Critical {
    /// Marks the calling thread.
    ///
    /// # Errors
    /// Of the system calls, as where a sandbox forbids them.
    pub fn begin() -> io::Result<Self> {
        let before = get()?;
        set(marked(before))?;
        Ok(Self { before, thread: PhantomData })
    }

    /// Leaves the thread marked, for good: what it executes, and whatever it starts, is critical.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Critical {
    fn drop(&mut self) {
        // What could be set can be set back; if not, a hint is wrong, which does no harm.
        let _ = set(self.before);
    }
}

fn marked(before: i64) -> i64 {
    let plain = if before >> CLASS_SHIFT == 0 { DEFAULT } else { before & !HINT_MASK };
    plain | HINT_CRITICAL << HINT_SHIFT
}

fn get() -> io::Result<i64> {
    // SAFETY: this system call takes integers alone.
    let value = unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, 0) };
    if value < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

fn set(value: i64) -> io::Result<()> {
    // SAFETY: this system call takes integers alone.
    let result = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0, value) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADERS: [&str; 2] =
        [include_str!("../include/forebay.h"), include_str!("../../tracker/bpf/tracker.h")];

    #[test]
    fn the_mark_is_there_as_long_as_its_owner() {
        let before = get().unwrap();
        let critical = Critical::begin().unwrap();
        assert_eq!(get().unwrap(), marked(before));
        assert_eq!(get().unwrap() >> HINT_SHIFT & 1023, HINT_CRITICAL);
        std::thread::spawn(move || assert_eq!(get().unwrap(), marked(before), "it is inherited"))
            .join()
            .unwrap();
        drop(critical);
        assert_eq!(get().unwrap(), before);
    }

    #[test]
    fn the_class_and_level_are_kept() {
        assert_eq!(marked(3 << CLASS_SHIFT | 7), 3 << CLASS_SHIFT | 763 << 3 | 7);
        assert_eq!(marked(0), 2 << CLASS_SHIFT | 763 << 3 | 4);
        assert_eq!(marked(marked(0)), marked(0));
    }

    #[test]
    fn c_and_the_tracker_say_the_same() {
        for header in HEADERS {
            let number = |suffix: &str| {
                let line =
                    header.lines().find(|l| l.split_whitespace().nth(1).is_some_and(|w| w.ends_with(suffix)));
                line.unwrap().split_whitespace().nth(2).unwrap().parse::<i64>().unwrap()
            };
            assert_eq!(number("_HINT_CRITICAL"), HINT_CRITICAL);
            assert_eq!(number("_HINT_SHIFT"), i64::from(HINT_SHIFT));
        }
    }
}
