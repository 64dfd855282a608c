//! Processes as claims on a store name them: what tells one from all others, and whether it is there.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::claim::has_ended;

/// A process of some host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) boot: String,
    /// Which processes can be seen where it runs.
    pub(crate) pid_namespace: u64,
    pub(crate) pid: u32,
    /// When it began, in ticks after the boot: numbers of processes are used again.
    pub(crate) began: u64,
}

impl Process {
    /// This one.
    pub(crate) fn own() -> Self {
        let pid = std::process::id();
        Self {
            boot: text_in("/proc/sys/kernel/random/boot_id"),
            pid_namespace: fs::metadata("/proc/self/ns/pid").map_or(0, |meta| meta.ino()),
            pid,
            began: began(pid).unwrap_or(0),
        }
    }

    /// What it is displayed as, cut at its spaces.
    pub(crate) fn read(fields: &[&str]) -> Option<Self> {
        let [boot, pid_namespace, pid, began] = fields else { return None };
        Some(Self {
            boot: (*boot).to_owned(),
            pid_namespace: pid_namespace.parse().ok()?,
            pid: pid.parse().ok()?,
            began: began.parse().ok()?,
        })
    }

    /// Whether another one of the same host can be seen from where this one is, if it is there.
    pub(crate) fn sees(&self, other: &Self) -> bool {
        (&self.boot, self.pid_namespace) == (&other.boot, other.pid_namespace)
    }

    /// Whether it is there, as `began` tells, which knows when a process began that can be seen, and is there.
    pub(crate) fn is_there(&self, began: impl FnOnce(u32) -> Option<u64>) -> bool {
        began(self.pid) == Some(self.began)
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { boot, pid_namespace, pid, began } = self;
        write!(f, "{boot} {pid_namespace} {pid} {began}")
    }
}

/// What tells this host from others: its machine id, or its name if it has none.
pub(crate) fn this_host() -> String {
    match text_in("/etc/machine-id") {
        id if id.is_empty() => host_name(),
        id => id,
    }
}

/// This host's name, for a person.
pub(crate) fn host_name() -> String {
    text_in("/proc/sys/kernel/hostname")
}

fn text_in(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// When a process began that is there and has not ended, in ticks after the boot.
pub(crate) fn began(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    if has_ended(&stat) {
        return None;
    }
    // "pid (name) state ..."; the 22nd field of all.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_there_has_begun_and_one_that_has_ended_has_not() {
        assert!(began(std::process::id()).is_some());
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        let limit = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while began(pid).is_some() {
            assert!(std::time::Instant::now() < limit, "an unreaped child is a zombie");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        child.wait().unwrap();
        assert_eq!(began(pid), None);
    }
}
