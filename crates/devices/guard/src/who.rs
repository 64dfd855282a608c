//! Processes and users, in words.

use std::fmt;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

/// A process of this machine that holds or answers something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Who {
    /// Its number.
    pub pid: u32,
    /// Its user, if that is known.
    pub uid: Option<u32>,
}

impl Who {
    /// The process with this number, as far as `/proc` shows it.
    pub fn of(pid: u32) -> Self {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        // Real, effective, saved, of file systems.
        let effective = uids.and_then(|uids| uids.split_whitespace().nth(1));
        Self { pid, uid: effective.and_then(|uid| uid.parse().ok()) }
    }
}

/// `pid 12, flock, user nobody`, without what is not known.
impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pid {}", self.pid)?;
        let command = fs::read_to_string(format!("/proc/{}/comm", self.pid)).unwrap_or_default();
        // A process chooses its own name.
        let command = command.trim_end().escape_debug();
        if command.clone().next().is_some() {
            write!(f, ", {command}")?;
        }
        match self.uid {
            Some(uid) => write!(f, ", user {}", user_name(uid)),
            None => Ok(()),
        }
    }
}

/// The name of a user of `/etc/passwd`, else its number.
pub fn user_name(uid: u32) -> String {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let number = uid.to_string();
    name_in(&users, &number).map_or(number.clone(), str::to_owned)
}

/// The number of a group of `/etc/group`, or given as a number.
pub fn group_id(group: &str) -> Option<u32> {
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    group.parse().ok().or_else(|| id_in(&groups, group))
}

/// The first field of the line `name:x:id:...` with this id.
fn name_in<'a>(table: &'a str, id: &str) -> Option<&'a str> {
    table.lines().find(|line| line.split(':').nth(2) == Some(id))?.split(':').next()
}

fn id_in(table: &str, name: &str) -> Option<u32> {
    table.lines().find(|line| line.split(':').next() == Some(name))?.split(':').nth(2)?.parse().ok()
}

/// Who has locked this file with `flock`, from `/proc/locks`.
pub fn lock_holder(file: &File) -> Option<Who> {
    let meta = file.metadata().ok()?;
    let (dev, ino) = (meta.dev(), meta.ino());
    let exact = format!("{:02x}:{:02x}:{ino}", rustix::fs::major(dev), rustix::fs::minor(dev));
    holder_in(&fs::read_to_string("/proc/locks").ok()?, &exact, &format!(":{ino}")).map(Who::of)
}

/// The process that holds a lock on the file at `exact`, or if there is none on one at a place that ends with `inode`, in a text like
/// `1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF`.
pub fn holder_in(locks: &str, exact: &str, inode: &str) -> Option<u32> {
    let holders = || {
        locks.lines().filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            match fields[..] {
                [_, "FLOCK", _, "WRITE" | "READ", pid, place, ..] => Some((pid.parse().ok()?, place)),
                _ => None,
            }
        })
    };
    // Some file systems (btrfs) show another device number here than stat does.
    let found = holders().find(|(_, place)| *place == exact);
    found.or_else(|| holders().find(|(_, place)| place.ends_with(inode))).map(|(pid, _)| pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_have_names() {
        let table = "root:x:0:0:root:/root:/bin/sh\nbroken\nnobody:x:65534:65534::/:/bin/false\n";
        assert_eq!((name_in(table, "65534"), name_in(table, "7")), (Some("nobody"), None));
        assert_eq!((id_in(table, "nobody"), id_in(table, "broken")), (Some(65534), None));
        assert_eq!((user_name(0), group_id("root"), group_id("107")), ("root".into(), Some(0), Some(107)));
        assert_eq!((user_name(4_000_000_001), group_id("no such group")), ("4000000001".into(), None));
    }

    #[test]
    fn a_process_is_told_with_its_user() {
        let me = Who::of(std::process::id());
        assert_eq!(me.uid, Some(rustix::process::geteuid().as_raw()));
        let told = me.to_string();
        let user = user_name(rustix::process::geteuid().as_raw());
        assert!(
            told.starts_with(&format!("pid {}, ", me.pid)) && told.ends_with(&format!("user {user}")),
            "{told}"
        );
    }

    #[test]
    fn who_only_shares_a_lock_is_a_holder_too() {
        let locks = "1: POSIX  ADVISORY  WRITE 7 00:1c:9 0 EOF\n2: FLOCK  ADVISORY  READ 8 00:1c:9 0 EOF\n";
        assert_eq!(holder_in(locks, "00:1c:9", ":9"), Some(8));
        let file = tempfile::tempfile().unwrap();
        file.lock_shared().unwrap();
        assert_eq!(lock_holder(&file).map(|who| who.pid), Some(std::process::id()));
    }
}
