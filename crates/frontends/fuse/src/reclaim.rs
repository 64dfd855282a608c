//! Keeping the daemon out of a memory reclaim that waits for the daemon.
//!
//! Where the right for [`become_io_flusher`] is missing (CAP_SYS_RESOURCE, in most containers), a thread of the daemon that needs a page of
//! memory may be made to wait until a page of its own block device has been written, which only that thread can do. The kernel does so in a memory
//! cgroup of version 1 that daemon and writer share, once it is full (`folio_wait_writeback` in `shrink_folio_list`). Locked memory does not
//! keep it from that: the kernel also allocates for the daemon. So whoever attaches is told.

use std::io;

/// From the kernel's `linux/prctl.h`.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// Declares the calling thread, and those that it starts from now on, part of the I/O path: the kernel then never makes them
/// write back dirty pages, or wait for that, when they allocate memory (`PR_SET_IO_FLUSHER`). A daemon without it that
/// runs short of memory may wait for a write to its own block device, which only it could carry out.
///
/// Call it first in `main`, before other threads are started. Child processes inherit it.
///
/// # Errors
/// EPERM without CAP_SYS_RESOURCE; EINVAL before Linux 5.6.
pub fn become_io_flusher() -> io::Result<()> {
    // SAFETY: this prctl reads four integers and no memory.
    let rc = unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_started_later_are_flushers_too() {
        // Each test runs on a thread of its own, so that nothing else is affected.
        const CAP_SYS_RESOURCE: u32 = 24;
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let capabilities = status.lines().find_map(|l| l.strip_prefix("CapEff:")).unwrap().trim();
        let capable = u64::from_str_radix(capabilities, 16).unwrap() & (1 << CAP_SYS_RESOURCE) != 0;
        let result = become_io_flusher();
        if !capable {
            eprintln!("SKIP: needs CAP_SYS_RESOURCE, which not even root has in some containers");
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EPERM));
            return;
        }
        result.unwrap();
        const PR_GET_IO_FLUSHER: libc::c_int = 58;
        let get = || {
            // SAFETY: this prctl reads four integers and no memory.
            unsafe { libc::prctl(PR_GET_IO_FLUSHER, 0, 0, 0, 0) }
        };
        assert_eq!(std::thread::spawn(get).join().unwrap(), 1);
    }
}
