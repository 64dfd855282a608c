//! Whose an image is, and whether its lock may be broken without being told to.
//!
//! The exclusive lock names its owner by the address of the client's session, which no two sessions share. A daemon that is killed
//! leaves it locked; librbd itself would wait for half a minute until the cluster has not heard of the owner. So each host leaves a note on the
//! image before it takes the lock, beside those of other hosts: the session's address, and the process. The lock is broken
//! without `--takeover` only if its owner is the session of such a note of this host, and
//!
//! - the process of the note is of this boot and can be seen from here, and there is none any more; or
//! - it cannot be seen from here (another boot, or a container's own processes), and the cluster does not hear of the owner
//!   any more. A copy of this host with the same machine id that is alive is heard of, and keeps its image.
//!
//! Breaking makes the cluster refuse everything that the old session may still have on its way.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::claim::has_ended;

/// A process of this host, and the session that it opens an image by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Note {
    address: String,
    boot: String,
    /// Which processes can be seen where it runs.
    pid_namespace: u64,
    pid: u32,
    /// When it began, in ticks after the boot: numbers of processes are used again.
    began: u64,
}

/// What is to be done about the owner of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It may write. The process, if it is one of this host.
    Lives(Option<u32>),
    /// It is of this host, and lives only if the cluster hears of it.
    LivesIfHeardOf,
    /// It writes no more, but for what is on its way.
    Dead,
}

impl Note {
    /// That of this process.
    pub(super) fn of_this_process(address: &str) -> Self {
        let pid = std::process::id();
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self {
            address: normalized(address).to_owned(),
            boot: boot.trim().to_owned(),
            pid_namespace: fs::metadata("/proc/self/ns/pid").map_or(0, |meta| meta.ino()),
            pid,
            began: began(pid).unwrap_or(0),
        }
    }

    pub(super) fn encode(&self) -> String {
        let Self { address, boot, pid_namespace, pid, began } = self;
        format!("1 {address} {boot} {pid_namespace} {pid} {began}")
    }

    pub(super) fn decode(text: &str) -> Option<Self> {
        let mut fields = text.split(' ');
        let mut next = || fields.next().filter(|field| !field.is_empty());
        if next()? != "1" {
            return None;
        }
        let (address, boot) = (next()?.to_owned(), next()?.to_owned());
        let (pid_namespace, pid, began) =
            (next()?.parse().ok()?, next()?.parse().ok()?, next()?.parse().ok()?);
        fields.next().is_none().then_some(Self { address, boot, pid_namespace, pid, began })
    }

    /// What is to be done about the owner of a lock, if `note` is the one that this host has left; this is the note of the process that asks.
    /// `began` tells when a process began that can be seen, and is there.
    pub(super) fn judge(
        &self,
        owner: &str,
        note: Option<&Self>,
        began: impl FnOnce(u32) -> Option<u64>,
    ) -> Verdict {
        match note {
            Some(note) if note.address != normalized(owner) => Verdict::Lives(None),
            None => Verdict::Lives(None),
            Some(note) if (&note.boot, note.pid_namespace) != (&self.boot, self.pid_namespace) => {
                Verdict::LivesIfHeardOf
            }
            Some(note) if began(note.pid) == Some(note.began) => Verdict::Lives(Some(note.pid)),
            Some(_) => Verdict::Dead,
        }
    }
}

/// What tells this host from others: its machine id, or its name if it has none.
pub(crate) fn this_host() -> String {
    let text = |path| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    match text("/etc/machine-id") {
        id if id.is_empty() => text("/proc/sys/kernel/hostname"),
        id => id,
    }
}

/// An address without the version of the protocol that some of the library's functions put before it.
pub(super) fn normalized(address: &str) -> &str {
    let bare = address.strip_prefix('[').and_then(|list| list.strip_suffix(']')).unwrap_or(address);
    let first = bare.split(',').next().unwrap_or(bare);
    ["v1:", "v2:", "any:"].iter().find_map(|version| first.strip_prefix(version)).unwrap_or(first)
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

    fn note(address: &str) -> Note {
        Note { address: address.to_owned(), boot: "b0".to_owned(), pid_namespace: 7, pid: 42, began: 1000 }
    }

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let own = Note::of_this_process("v2:10.0.0.1:0/77");
        assert_eq!((own.address.as_str(), own.pid), ("10.0.0.1:0/77", std::process::id()));
        assert!(own.began > 0 && own.pid_namespace > 0 && own.boot.len() > 30, "{own:?}");
        assert_eq!(Note::decode(&own.encode()), Some(own));
        for damaged in ["", "1", "2 a b 1 2 3", "1 a b 1 2", "1 a b 1 2 x", "1 a b 1 2 3 4", "1  b 1 2 3"] {
            assert_eq!(Note::decode(damaged), None, "{damaged}");
        }
    }

    #[test]
    fn only_the_dead_of_this_host_lose_their_lock_without_a_word() {
        let (me, owner) = (note("10.0.0.1:0/2"), "10.0.0.1:0/1");
        let other_boot = Note { boot: "b1".to_owned(), ..note(owner) };
        let container = Note { pid_namespace: 8, ..note(owner) };
        for (left, alive, verdict) in [
            (None, None, Verdict::Lives(None)),
            (Some(note("10.0.0.1:0/3")), None, Verdict::Lives(None)),
            (Some(note(owner)), Some(1000), Verdict::Lives(Some(42))),
            (Some(note(owner)), Some(1001), Verdict::Dead),
            (Some(note(owner)), None, Verdict::Dead),
            (Some(other_boot), None, Verdict::LivesIfHeardOf),
            (Some(container), Some(1000), Verdict::LivesIfHeardOf),
        ] {
            assert_eq!(me.judge(owner, left.as_ref(), |_| alive), verdict, "{left:?} {alive:?}");
        }
    }

    #[test]
    fn addresses_are_compared_without_their_protocol() {
        for (given, bare) in [
            ("10.0.0.1:0/5", "10.0.0.1:0/5"),
            ("v2:10.0.0.1:0/5", "10.0.0.1:0/5"),
            ("[v2:10.0.0.1:0/5,v1:10.0.0.1:0/5]", "10.0.0.1:0/5"),
            ("[fe80::1]:0/5", "[fe80::1]:0/5"),
            ("v1:[fe80::1]:0/5", "[fe80::1]:0/5"),
        ] {
            assert_eq!(normalized(given), bare);
        }
    }

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
