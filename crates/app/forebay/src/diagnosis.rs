//! The devices of a volume, and what is wrong with them, in words for a person.

use forebay_block::{Cause, ErrorKind};
use forebay_device::{DeviceInfo, DeviceKind};
use forebay_engine::{Role, Status, Trouble as Answer};
use forebay_host::VolumeHandle;
use forebay_policy::size;
use rustix::io::Errno;

/// A device as messages speak of it.
#[derive(Clone, Debug, Default)]
pub struct Named {
    /// As its user has given it.
    pub name: String,
    /// It is a store on another machine.
    pub is_remote: bool,
}

impl Named {
    fn of(device: &DeviceInfo) -> Self {
        Self { name: device.name.clone(), is_remote: device.kind == DeviceKind::Remote }
    }
}

/// The devices of a volume.
#[derive(Clone, Debug, Default)]
pub struct Names {
    pub cache: Named,
    pub backing: Named,
    pub journal: Named,
}

impl Names {
    pub fn of(volume: &VolumeHandle) -> Self {
        let backing = volume.backing();
        Self {
            cache: volume.cache().map(Named::of).unwrap_or_default(),
            backing: Named::of(backing),
            journal: Named::of(volume.journal().unwrap_or(backing)),
        }
    }

    pub fn get(&self, role: Role) -> &Named {
        match role {
            Role::Cache => &self.cache,
            Role::Backing => &self.backing,
            Role::Journal => &self.journal,
        }
    }
}

/// What a device below the cache is to the volume.
pub fn below(role: Role) -> &'static str {
    match role {
        Role::Journal => "the journal on the backing's side",
        Role::Backing | Role::Cache => "the backing",
    }
}

/// What the backing's side answered, which device it is, and what to do about it.
pub fn explain(answer: &Answer, names: &Names) -> String {
    let (device, Named { name, is_remote }) = (below(answer.asked.role), names.get(answer.asked.role));
    let errno = answer.cause.as_ref().and_then(Cause::errno);
    let remedy = match (errno.map(Errno::from_raw_os_error), answer.kind) {
        (Some(Errno::NOSPC), _) => {
            "the file system below has no room for what is not allocated yet; make room there, and it goes on by itself"
        }
        (Some(Errno::DQUOT), _) => {
            "a quota of the file system below is used up; raise it or make room, and it goes on by itself"
        }
        (Some(Errno::FBIG), _) => {
            "its file may not grow: raise the limit of the process (LimitFSIZE, ulimit -f) or of the file system, and restart"
        }
        (Some(Errno::ROFS), _) => {
            "the file system below is read-only; find out why and mount it for writing again"
        }
        (Some(Errno::NODEV | Errno::NXIO | Errno::STALE | Errno::NOTCONN | Errno::SHUTDOWN), _) => {
            "its device or file system is gone; bring it back, and restart if it does not go on by itself"
        }
        (_, ErrorKind::NoSpace) => "it is full; make room, and it goes on by itself",
        _ if *is_remote => "check the store; it is reached anew by itself",
        _ => "check the device",
    };
    format!("{device}: {} ({name}: {remedy})", answer.error())
}

/// What the cache was asked and answered when it failed, in brackets.
pub fn failed_cache(f: &Status, names: &Names) -> String {
    let name = &names.cache.name;
    f.cache_trouble.as_ref().map(|answer| format!(" ({name}: {answer})")).unwrap_or_default()
}

/// What is so when another host has taken the backing over, and what to do; so many bytes were on the cache alone.
pub fn fenced(dirty_bytes: u64) -> String {
    let lost = match dirty_bytes {
        0 => "the backing had everything that was written here".to_owned(),
        dirty => {
            let dirty = size::show(dirty);
            format!(
                "{dirty} that the backing lacks stay in the cache here, which is refused once the volume was served or formatted elsewhere"
            )
        }
    };
    format!(
        "another host has taken the backing over: every request ends with an error, so that nothing old is read and nothing is lost \
         unnoticed; {lost}. Stop this daemon, and use the volume on the other host"
    )
}

#[cfg(test)]
impl Names {
    /// Those of a volume with a store on another machine for its journal.
    pub fn of_a_test() -> Self {
        let named = |name: &str, is_remote| Named { name: name.to_owned(), is_remote };
        Self {
            cache: named("/dev/fast", false),
            backing: named("/dev/slow", false),
            journal: named("nbd://store/log", true),
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_block::{IoError, OpKind};
    use forebay_engine::Asked;

    use super::*;

    #[test]
    fn what_the_journal_answers_is_told_as_what_its_store_said() {
        let answer = |error: IoError| Answer {
            asked: Asked { role: Role::Journal, kind: OpKind::Write, offset: Some(8192), len: 4096 },
            kind: error.kind,
            context: error.context,
            cause: error.cause,
        };
        let told = |error| explain(&answer(error), &Names::of_a_test());
        let of_system = |errno| told(IoError::of_system(errno, "writing to a device", Some(8192)));
        let full = of_system(28);
        assert!(full.starts_with("the journal on the backing's side: writing to a device at "), "{full}");
        let failing = of_system(5);
        assert!(failing.contains("input/output error (nbd://store/log: check the store"), "{failing}");
        let busy = told(IoError::of_store(ErrorKind::Io, "writing an object", "HTTP 503 SlowDown", None));
        assert!(busy.contains(": HTTP 503 SlowDown (nbd://store/log: check the store"), "{busy}");
    }
}
