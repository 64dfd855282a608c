//! Who has a volume open, as each owner says of itself in its claim, and whether it is known to be dead.
//!
//! A daemon that is killed releases nothing. Its successor on the same host takes the volume from it without being told to, if that
//! process is not there any more, or was of an earlier boot. Everybody else needs `--takeover`. The old owner is fenced in any case: who is
//! taken for dead by mistake loses the volume, and no data.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::rbd::owner::{began, this_host};

/// A process, and where it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Process {
    /// The host's name, for a person.
    host_name: String,
    /// What tells the host from others.
    host: String,
    boot: String,
    /// Which processes can be seen where it runs.
    pid_namespace: u64,
    pid: u32,
    /// When it began, in ticks after the boot: numbers of processes are used again.
    began: u64,
}

impl Process {
    /// This one.
    pub(super) fn own() -> Self {
        let text = |path| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let pid = std::process::id();
        Self {
            host_name: text("/proc/sys/kernel/hostname"),
            host: this_host(),
            boot: text("/proc/sys/kernel/random/boot_id"),
            pid_namespace: fs::metadata("/proc/self/ns/pid").map_or(0, |meta| meta.ino()),
            pid,
            began: began(pid).unwrap_or(0),
        }
    }

    /// In a claim, which calls it the host.
    pub(super) fn encode(&self) -> String {
        let Self { host_name, host, boot, pid_namespace, pid, began } = self;
        format!("{host_name} {host} {boot} {pid_namespace} {pid} {began}")
    }

    pub(super) fn decode(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.split(' ').collect();
        let [host_name, host, boot, pid_namespace, pid, began] = fields[..] else { return None };
        Some(Self {
            host_name: host_name.to_owned(),
            host: host.to_owned(),
            boot: boot.to_owned(),
            pid_namespace: pid_namespace.parse().ok()?,
            pid: pid.parse().ok()?,
            began: began.parse().ok()?,
        })
    }

    /// Whether `other` is known to be dead here. `began` tells when a process began that can be seen, and is there.
    pub(super) fn knows_dead(&self, other: &Self, began: impl FnOnce(u32) -> Option<u64>) -> bool {
        let can_be_seen = self.pid_namespace == other.pid_namespace;
        let is_earlier = self.boot != other.boot;
        self.host == other.host && (is_earlier || can_be_seen && began(other.pid) != Some(other.began))
    }
}

/// The owner in a claim, in words for a person.
pub(super) fn words(host: &str) -> String {
    match Process::decode(host) {
        Some(Process { host_name, pid, .. }) => format!("process {pid} of {host_name}"),
        None => host.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_as_it_was_written() {
        let own = Process::own();
        assert!(own.pid == std::process::id() && own.began > 0 && !own.host.is_empty(), "{own:?}");
        let text = own.encode();
        assert!(text.len() <= forebay_objects::HOST_BYTES_MAX, "{text}");
        assert_eq!(Process::decode(&text), Some(own.clone()));
        assert_eq!(words(&text), format!("process {} of {}", own.pid, own.host_name));
        for other in ["", "db1", "a b c 1 2", "a b c 1 2 x", "a b c 1 2 3 4"] {
            assert_eq!((Process::decode(other), words(other)), (None, other.to_owned()));
        }
    }

    #[test]
    fn only_processes_of_this_host_are_known_to_be_dead() {
        let me = Process::decode("me m0 b0 7 1 10").unwrap();
        for (other, began, is_dead) in [
            ("me m0 b0 7 42 1000", Some(1000), false),
            ("me m0 b0 7 42 1000", Some(1001), true),
            ("me m0 b0 7 42 1000", None, true),
            ("me m0 b0 8 42 1000", None, false),
            ("me m0 b1 7 42 1000", Some(1000), true),
            ("me m0 b1 8 42 1000", None, true),
            ("me m1 b0 7 42 1000", None, false),
            ("me m1 b1 7 42 1000", None, false),
        ] {
            assert_eq!(
                me.knows_dead(&Process::decode(other).unwrap(), |_| began),
                is_dead,
                "{other} {began:?}"
            );
        }
    }
}
