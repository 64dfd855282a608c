//! FUSE's limit of background requests, which stands between a loop device and the daemon.
//!
//! A loop device's requests are asynchronous, and FUSE counts them as requests in the background. At the limit (`max_background`) its one worker
//! sleeps, with whatever it carries. So the limit must be above the number of slots of the device's queue. The kernel may have given the connection less
//! than the daemon asked for, and root may change it while it is used: so it is read, and raised if need be.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;

use forebay_block::words_of;

use crate::knobs::Knob;

/// A FUSE connection's limits. Nobody else sees the file system that shows them: it is mounted nowhere.
pub(crate) struct Connection {
    _control: OwnedFd,
    directory: PathBuf,
}

impl Connection {
    /// Of the FUSE file system with this minor number. The calling thread alone may use it.
    ///
    /// # Errors
    /// If the kernel does not show the limits.
    pub fn open(minor: u32) -> io::Result<Self> {
        const CREATE: libc::c_uint = 6;
        // SAFETY: the name ends with NUL and lives until after the call.
        let context = unsafe { libc::syscall(libc::SYS_fsopen, c"fusectl".as_ptr(), 1) };
        let context = owned(context)?;
        let none = std::ptr::null::<libc::c_void>();
        // SAFETY: this command takes no key and no value.
        let rc = unsafe { libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), CREATE, none, none, 0) };
        if rc != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call takes no pointers, and the descriptor is open.
        let control = owned(unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), 1, 0) })?;
        // The thread may have a table of descriptors of its own.
        let directory = PathBuf::from(format!("/proc/thread-self/fd/{}/{minor}", control.as_raw_fd()));
        fs::metadata(&directory)?;
        Ok(Self { _control: control, directory })
    }

    /// Sees to it that each limit is more than `slots`; what was there and what is, with what the kernel refused.
    pub fn raise(&self, slots: u32) -> (Vec<Knob>, Vec<String>) {
        let (mut knobs, mut refused) = (Vec::new(), Vec::new());
        for name in ["max_background", "congestion_threshold"] {
            let path = self.directory.join(name);
            let Ok(before) = fs::read_to_string(&path).map(|text| text.trim().to_owned()) else { continue };
            let mut set = before.clone();
            if before.parse::<u32>().is_ok_and(|limit| limit <= slots) {
                set = (2 * slots).to_string();
                if let Err(e) = fs::write(&path, &set) {
                    refused.push(format!("fuse/{name}={set}: {}", words_of(&e)));
                    set.clone_from(&before);
                }
            }
            knobs.push(Knob { name: format!("fuse/{name}"), set, before });
        }
        (knobs, refused)
    }

    /// Puts back what was there.
    pub fn restore(&self, knobs: &[Knob]) {
        for knob in knobs.iter().filter(|knob| knob.set != knob.before) {
            let Some(name) = knob.name.strip_prefix("fuse/") else { continue };
            let _ = fs::write(self.directory.join(name), &knob.before);
        }
    }
}

fn owned(fd: libc::c_long) -> io::Result<OwnedFd> {
    match libc::c_int::try_from(fd) {
        // SAFETY: the kernel has just made this descriptor, and nobody else knows of it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection() -> (tempfile::TempDir, Connection) {
        let dir = tempfile::tempdir().unwrap();
        let control = OwnedFd::from(fs::File::open(dir.path()).unwrap());
        let directory = dir.path().to_owned();
        (dir, Connection { _control: control, directory })
    }

    #[test]
    fn limits_below_the_slots_are_raised_and_put_back() {
        let (dir, connection) = connection();
        fs::write(dir.path().join("max_background"), "12\n").unwrap();
        fs::write(dir.path().join("congestion_threshold"), "192\n").unwrap();
        let (knobs, refused) = connection.raise(128);
        let told: Vec<_> =
            knobs.iter().map(|k| (k.name.as_str(), k.set.as_str(), k.before.as_str())).collect();
        assert_eq!(told, [("fuse/max_background", "256", "12"), ("fuse/congestion_threshold", "192", "192")]);
        assert!(refused.is_empty());
        assert_eq!(fs::read_to_string(dir.path().join("max_background")).unwrap(), "256");
        connection.restore(&knobs);
        assert_eq!(fs::read_to_string(dir.path().join("max_background")).unwrap(), "12");
    }
}
