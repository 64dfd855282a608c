//! Who has a volume open, as each owner says of itself in its claim, and whether it is known to be dead.
//!
//! A daemon that is killed releases nothing. Its successor on the same host takes the volume from it without being told to, if that
//! process is not there any more, or was of an earlier boot. Everybody else needs `--takeover`. The old owner is fenced in any case: who is
//! taken for dead by mistake loses the volume, and no data.

use crate::remote::{Process, host_name, this_host};

/// A process, and where it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    /// The host's name, for a person.
    host_name: String,
    /// What tells the host from others.
    host: String,
    process: Process,
}

impl Owner {
    /// This process.
    pub(super) fn own() -> Self {
        Self { host_name: host_name(), host: this_host(), process: Process::own() }
    }

    /// In a claim, which calls it the host.
    pub(super) fn encode(&self) -> String {
        format!("{} {} {}", self.host_name, self.host, self.process)
    }

    pub(super) fn decode(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.split(' ').collect();
        let [host_name, host, process @ ..] = &fields[..] else { return None };
        let process = Process::read(process)?;
        Some(Self { host_name: (*host_name).to_owned(), host: (*host).to_owned(), process })
    }

    /// Whether `other` is known to be dead here. `began` tells when a process began that can be seen, and is there.
    pub(super) fn knows_dead(&self, other: &Self, began: impl FnOnce(u32) -> Option<u64>) -> bool {
        let is_earlier = self.process.boot != other.process.boot;
        let is_gone = || self.process.sees(&other.process) && !other.process.is_there(began);
        self.host == other.host && (is_earlier || is_gone())
    }
}

/// The owner in a claim, in words for a person.
pub(super) fn words(host: &str) -> String {
    match Owner::decode(host) {
        Some(Owner { host_name, process, .. }) => format!("process {} of {host_name}", process.pid),
        None => host.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_as_it_was_written() {
        let own = Owner::own();
        assert!(
            own.process.pid == std::process::id() && own.process.began > 0 && !own.host.is_empty(),
            "{own:?}"
        );
        let text = own.encode();
        assert!(text.len() <= forebay_objects::HOST_BYTES_MAX, "{text}");
        assert_eq!(Owner::decode(&text), Some(own.clone()));
        assert_eq!(words(&text), format!("process {} of {}", own.process.pid, own.host_name));
        for other in ["", "db1", "a b c 1 2", "a b c 1 2 x", "a b c 1 2 3 4"] {
            assert_eq!((Owner::decode(other), words(other)), (None, other.to_owned()));
        }
    }

    #[test]
    fn only_processes_of_this_host_are_known_to_be_dead() {
        let me = Owner::decode("me m0 b0 7 1 10").unwrap();
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
                me.knows_dead(&Owner::decode(other).unwrap(), |_| began),
                is_dead,
                "{other} {began:?}"
            );
        }
    }
}
