//! Files of emulated memory, in memory.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A file system in memory, on every Linux.
const MEMORY: &str = "/dev/shm";
/// What a directory there is called, before the number of its process and its own.
const NAME: &str = "forebay-bench.";
/// Memory that is left to the program under the load, and to everybody else.
const MEMORY_LEFT: u64 = 1 << 30;

/// A directory in memory. Dropping it removes it.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// For files of so many `bytes`; `None` if there is no room for them.
    pub(crate) fn in_memory(bytes: u64) -> Option<Self> {
        let memory = Path::new(MEMORY);
        remove_those_of_the_dead(memory);
        if free_bytes(memory) < bytes || available_bytes() < bytes.saturating_add(MEMORY_LEFT) {
            return None;
        }
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = memory.join(format!("{NAME}{}.{number}", std::process::id()));
        // Everybody may write there: what somebody else has put in this place is not taken.
        DirBuilder::new().mode(0o700).create(&dir).ok()?;
        Some(Self(dir))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(e) = fs::remove_dir_all(&self.0) {
            eprintln!("{} stays: {}", self.0.display(), forebay_block::words_of(&e));
        }
    }
}

/// What was killed could not remove its own.
fn remove_those_of_the_dead(memory: &Path) {
    for entry in fs::read_dir(memory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let numbers = name.to_str().and_then(|name| name.strip_prefix(NAME)?.split_once('.'));
        let pid = numbers.and_then(|(pid, _)| pid.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Room on a file system; 0 if it is not there.
fn free_bytes(dir: &Path) -> u64 {
    rustix::fs::statvfs(dir).map_or(0, |s| s.f_bavail * s.f_frsize)
}

/// Memory that can be had without swapping; 0 if the system does not say.
fn available_bytes() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or_default() * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_in_memory_goes_with_its_owner_and_those_of_the_dead_with_the_next() {
        assert!(Scratch::in_memory(u64::MAX).is_none(), "there is no room for all that");
        let dead = Path::new(MEMORY).join(format!("{NAME}{}.0", u32::MAX));
        fs::create_dir_all(dead.join("deep")).unwrap();
        if let Some(scratch) = Scratch::in_memory(4096) {
            let dir = scratch.path().to_owned();
            fs::write(dir.join("file"), "x").unwrap();
            drop(scratch);
            assert!(!dir.exists());
        } else {
            assert!(available_bytes() < MEMORY_LEFT + 4096 || free_bytes(Path::new(MEMORY)) < 4096);
        }
        assert!(!dead.exists(), "the directory of a process that is gone stays");
        assert!(available_bytes() > 1 << 20, "this system has memory");
    }
}
