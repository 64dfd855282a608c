//! File systems that benchmarks mount, and the programs that they call.

use std::os::unix::process::CommandExt;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::BenchError;

/// Longest wait for a file system that is busy when it is to be unmounted.
const BUSY_MAX: Duration = Duration::from_secs(20);
/// How often it is tried.
const BUSY_POLL: Duration = Duration::from_millis(50);
/// How often it is looked whether a program has ended.
const POLL: Duration = Duration::from_millis(20);

/// Runs a program that must end well, whatever signal comes to this one's process group: it may be one that cleans up.
pub(crate) fn call(program: impl AsRef<Path>, args: &[&str]) -> Result<String, BenchError> {
    let program = program.as_ref();
    said(program, apart(program, args).output())
}

/// Runs a program that takes its time and must end well. It is ended, too, when the benchmark is to end ([`BenchError::Stopped`]).
pub(crate) fn call_long(
    program: impl AsRef<Path>,
    args: &[&str],
    stopped: &AtomicBool,
) -> Result<String, BenchError> {
    let program = program.as_ref();
    let run = || -> io::Result<Output> {
        let mut child = apart(program, args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let process = match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
            Ok(process) => process,
            Err(e) => {
                child.kill().and_then(|()| child.wait())?;
                return Err(e.into());
            }
        };
        thread::scope(|scope| {
            let ends = scope.spawn(|| child.wait_with_output());
            while !ends.is_finished() {
                if stopped.load(Ordering::Relaxed) {
                    // If it has just ended by itself, so much the better.
                    let _ = pidfd_send_signal(&process, Signal::TERM);
                }
                thread::sleep(POLL);
            }
            ends.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    };
    match said(program, run()) {
        Err(_) if stopped.load(Ordering::Relaxed) => Err(BenchError::Stopped),
        said => said,
    }
}

/// A program in a process group of its own.
fn apart(program: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).process_group(0);
    command
}

fn said(program: &Path, output: io::Result<Output>) -> Result<String, BenchError> {
    let output = output.map_err(|e| BenchError::system(format!("run {}", program.display()), e))?;
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
            let _ = call("losetup", &["-d", device]);
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
