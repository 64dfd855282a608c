//! Where a benchmark puts the files of its devices.

use std::fs;
use std::path::{Path, PathBuf};

use crate::BenchError;

/// File systems that lie in memory on every Linux.
const MEMORY: &str = "/dev/shm";
/// What a directory there is called, before the number of its process.
const NAME: &str = "forebay-bench.";
/// Memory that is left to the program under the load, and to everybody else.
const MEMORY_LEFT: u64 = 4 << 30;

/// A directory of a benchmark's own. Dropping it removes it, whatever came out: files of gibibytes are not left behind.
pub struct Scratch {
    dir: PathBuf,
    in_memory: bool,
}

impl Scratch {
    /// In `out`, which lies on the device that is to be measured.
    ///
    /// # Errors
    /// [`BenchError::System`] if it cannot be made.
    pub fn within(out: &Path) -> Result<Self, BenchError> {
        Self::make(&out.join("scratch"), false)
    }

    /// For emulated devices, whose files take up to `bytes`: in memory, where a disk adds nothing to the models' times, and else in
    /// `out`. Once a tenth of the memory is written and not on the disk, the system makes every writer wait for it, synced or not.
    ///
    /// # Errors
    /// As [`Scratch::within`].
    pub fn for_emulated(out: &Path, bytes: u64) -> Result<Self, BenchError> {
        let memory = Path::new(MEMORY);
        remove_those_of_the_dead(memory);
        if free_bytes(memory) < bytes || available_bytes() < bytes + MEMORY_LEFT {
            return Self::within(out);
        }
        Self::make(&memory.join(format!("{NAME}{}", std::process::id())), true).or_else(|_| Self::within(out))
    }

    fn make(dir: &Path, in_memory: bool) -> Result<Self, BenchError> {
        let made = fs::create_dir_all(dir).and_then(|()| dir.canonicalize());
        let dir = made.map_err(|e| BenchError::system(format!("make {}", dir.display()), e))?;
        Ok(Self { dir, in_memory })
    }

    /// Its path, absolute.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// For the report: whether a disk's own times are among the figures.
    pub fn stands(&self) -> &'static str {
        match self.in_memory {
            true => "the devices' files are in memory",
            false => "the devices' files are on a disk, whose own times are among the figures",
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(e) = fs::remove_dir_all(&self.dir) {
            eprintln!("{} stays: {e}", self.dir.display());
        }
    }
}

/// What was killed could not remove its own.
fn remove_those_of_the_dead(memory: &Path) {
    for entry in fs::read_dir(memory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid =
            name.to_str().and_then(|name| name.strip_prefix(NAME)).and_then(|pid| pid.parse::<u32>().ok());
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
    fn a_directory_lies_in_memory_if_there_is_room_and_goes_with_its_owner() {
        let out = tempfile::tempdir().unwrap();
        let dead = Path::new(MEMORY).join(format!("{NAME}{}", u32::MAX));
        fs::create_dir_all(dead.join("deep")).unwrap();
        let dirs: Vec<PathBuf> = [0, u64::MAX / 2]
            .map(|bytes| {
                let scratch = Scratch::for_emulated(out.path(), bytes).unwrap();
                let dir = scratch.path().to_owned();
                fs::write(dir.join("file"), "x").unwrap();
                assert_eq!(
                    scratch.stands().contains("memory"),
                    bytes == 0 && available_bytes() >= MEMORY_LEFT
                );
                dir
            })
            .into();
        assert!(!dead.exists(), "the directory of a process that is gone stays");
        assert!(dirs[1].starts_with(out.path().canonicalize().unwrap()), "there is no room for all that");
        assert!(dirs.iter().all(|dir| !dir.exists()), "{dirs:?} stays");
        assert!(available_bytes() > 1 << 20, "this system has memory");
    }
}
