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

use crate::remote::Process;

/// A process of this host, and the session that it opens an image by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Note {
    address: String,
    process: Process,
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
        Self { address: normalized(address).to_owned(), process: Process::own() }
    }

    pub(super) fn encode(&self) -> String {
        format!("1 {} {}", self.address, self.process)
    }

    pub(super) fn decode(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.split(' ').collect();
        let ["1", address, process @ ..] = &fields[..] else { return None };
        let process = Process::read(process)?;
        fields.iter().all(|field| !field.is_empty()).then(|| Self { address: (*address).to_owned(), process })
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
            Some(note) if !self.process.sees(&note.process) => Verdict::LivesIfHeardOf,
            Some(note) if note.process.is_there(began) => Verdict::Lives(Some(note.process.pid)),
            Some(_) => Verdict::Dead,
        }
    }
}

/// An address without the version of the protocol that some of the library's functions put before it.
pub(super) fn normalized(address: &str) -> &str {
    let bare = address.strip_prefix('[').and_then(|list| list.strip_suffix(']')).unwrap_or(address);
    let first = bare.split(',').next().unwrap_or(bare);
    ["v1:", "v2:", "any:"].iter().find_map(|version| first.strip_prefix(version)).unwrap_or(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(address: &str) -> Note {
        let process = Process { boot: "b0".to_owned(), pid_namespace: 7, pid: 42, began: 1000 };
        Note { address: address.to_owned(), process }
    }

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let own = Note::of_this_process("v2:10.0.0.1:0/77");
        let Note { address, process } = &own;
        assert_eq!((address.as_str(), process.pid), ("10.0.0.1:0/77", std::process::id()));
        assert!(process.began > 0 && process.pid_namespace > 0 && process.boot.len() > 30, "{own:?}");
        assert_eq!(Note::decode(&own.encode()), Some(own));
        for damaged in ["", "1", "2 a b 1 2 3", "1 a b 1 2", "1 a b 1 2 x", "1 a b 1 2 3 4", "1  b 1 2 3"] {
            assert_eq!(Note::decode(damaged), None, "{damaged}");
        }
    }

    #[test]
    fn only_the_dead_of_this_host_lose_their_lock_without_a_word() {
        let (me, owner) = (note("10.0.0.1:0/2"), "10.0.0.1:0/1");
        let (mut other_boot, mut container) = (note(owner), note(owner));
        "b1".clone_into(&mut other_boot.process.boot);
        container.process.pid_namespace = 8;
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
}
