//! Threads apart: with a file descriptor table of their own.
//!
//! A thread that may come to sleep on the daemon's own FUSE file or loop device must not hold the connection that
//! would wake it (see the crate's documentation). After SIGKILL the other threads go, the shared table closes, the kernel
//! aborts the connection, and the sleeper gets an error and goes, too.

use std::io;
use std::thread;

/// Runs `work` on a new thread, called `name`, which shares no file descriptor with the rest of the process but standard
/// input, output and error.
///
/// In `work` a descriptor that was opened elsewhere is closed, and its *number* may mean another file: nothing may be used
/// that was opened before (a log file least of all), and nothing that is opened there may leave.
///
/// # Errors
/// If the thread cannot be made. Failure to make the table (a kernel before 5.9) is the first argument of `work`.
pub(crate) fn spawn(
    name: &str,
    work: impl FnOnce(io::Result<()>) + Send + 'static,
) -> io::Result<thread::JoinHandle<()>> {
    thread::Builder::new().name(name.to_owned()).spawn(move || work(leave_descriptors()))
}

/// Gives the calling thread its own descriptor table, with nothing in it but 0, 1 and 2.
fn leave_descriptors() -> io::Result<()> {
    const FIRST: libc::c_uint = 3;
    // SAFETY: the call takes no pointers. The descriptors that it closes are closed in the calling thread's new table only; this thread
    // has just begun and owns none of them, so that no owner's descriptor becomes invalid where the owner lives.
    let rc =
        unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::sync::mpsc;

    #[test]
    fn a_thread_apart_has_none_of_the_others_descriptors() {
        let file = File::open("/proc/self/exe").unwrap();
        let fd = file.as_raw_fd();
        let (sender, receiver) = mpsc::channel();
        spawn("apart", move |left| {
            left.unwrap();
            let link = std::fs::read_link(format!("/proc/thread-self/fd/{fd}"));
            let _ = sender.send(link.map(|l| l.ends_with("exe")).unwrap_or(false));
        })
        .unwrap()
        .join()
        .unwrap();
        assert!(!receiver.recv().unwrap(), "the descriptor is still there");
        assert!(file.metadata().is_ok(), "and it is untouched where it was opened");
    }
}
