//! File systems that benchmarks mount, and the programs that they call.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::BenchError;

/// Longest wait for a file system that is busy when it is to be unmounted.
const BUSY_MAX: Duration = Duration::from_secs(20);
/// How often it is tried.
const BUSY_POLL: Duration = Duration::from_millis(50);

/// Runs a program that must end well.
pub(crate) fn call(program: impl AsRef<Path>, args: &[&str]) -> Result<String, BenchError> {
    let program = program.as_ref();
    let doing = || format!("run {}", program.display());
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| BenchError::system(doing(), e))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(BenchError::Forebay(format!("{} failed: {}", program.display(), said.trim())))
        }
    }
}

/// A path as an argument.
pub(crate) fn path(path: &Path) -> Result<&str, BenchError> {
    path.to_str().ok_or_else(|| BenchError::Forebay(format!("{} is not UTF-8", path.display())))
}

/// A mounted file system; dropping it unmounts it.
pub(crate) struct Mounted {
    place: PathBuf,
    /// A loop device that goes with it.
    device: Option<String>,
}

impl Mounted {
    pub(crate) fn new(device: &str, place: &Path, own: bool) -> Result<Self, BenchError> {
        fs::create_dir_all(place).map_err(|e| BenchError::system(format!("make {}", place.display()), e))?;
        call("mount", &[device, path(place)?])?;
        Ok(Self { place: place.to_owned(), device: own.then(|| device.to_owned()) })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A child of what has just been killed may keep it busy for a moment.
        let until = Instant::now() + BUSY_MAX;
        let unmount = || path(&self.place).and_then(|place| call("umount", &[place]));
        while let Err(e) = unmount() {
            if Instant::now() >= until || !e.to_string().contains("busy") {
                eprintln!("{} stays mounted: {e}", self.place.display());
                break;
            }
            thread::sleep(BUSY_POLL);
        }
        if let Some(device) = &self.device {
            let _ = Command::new("losetup").args(["-d", device]).status();
        }
    }
}

/// What is missing here to attach volumes and mount file systems on them, if anything is.
pub(crate) fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root can attach and mount".to_owned());
    }
    if !Path::new("/dev/fuse").exists() || !Path::new("/dev/loop-control").exists() {
        return Some("this kernel has no FUSE or no loop devices".to_owned());
    }
    call("mkfs.ext4", &["-V"]).err().map(|_| "mkfs.ext4 is missing".to_owned())
}
