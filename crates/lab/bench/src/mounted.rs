//! File systems that benchmarks mount, and the programs that they call.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};
use std::{fs, io};

use rustix::process::{Pid, Signal, kill_process_group};

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

/// The same, with these variables in its environment.
pub(crate) fn call_in(
    environment: &[(String, String)],
    program: &Path,
    args: &[&str],
) -> Result<String, BenchError> {
    said(program, apart(program, args).envs(environment.iter().cloned()).output())
}

/// Runs a program that takes its time and must end well. It is ended with all that it has started, too, when the benchmark is to end
/// ([`BenchError::Stopped`]).
pub(crate) fn call_long(
    program: impl AsRef<Path>,
    args: &[&str],
    stopped: &AtomicBool,
) -> Result<String, BenchError> {
    let program = program.as_ref();
    let run = || -> io::Result<Output> {
        let mut child = apart(program, args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let group = Pid::from_child(&child);
        let pause = || {
            if stopped.load(Ordering::Relaxed) {
                // The child has not been waited for: the number is still its own. If all have just ended, so much the better.
                let _ = kill_process_group(group, Signal::TERM);
            }
            thread::sleep(POLL);
        };
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (stdout, stderr) = thread::scope(|scope| {
            // What it has started may hold its pipes for longer than it lives itself.
            let (stdout, stderr) = (scope.spawn(|| all_of(stdout)), scope.spawn(|| all_of(stderr)));
            while !(stdout.is_finished() && stderr.is_finished()) {
                pause();
            }
            (joined(stdout), joined(stderr))
        });
        let status = loop {
            match child.try_wait()? {
                Some(status) => break status,
                None => pause(),
            }
        };
        Ok(Output { status, stdout: stdout?, stderr: stderr? })
    };
    match said(program, run()) {
        Err(_) if stopped.load(Ordering::Relaxed) => Err(BenchError::Stopped),
        said => said,
    }
}

/// All that comes through a pipe.
fn all_of(pipe: Option<impl Read>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    pipe.map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut bytes))?;
    Ok(bytes)
}

fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
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

/// A loop device; dropping it takes it from its file.
pub(crate) struct LoopDevice(String);

impl LoopDevice {
    /// On a file; `direct` past the file's own page cache.
    pub(crate) fn on(file: &Path, direct: bool) -> Result<Self, BenchError> {
        let direct = if direct { "--direct-io=on" } else { "--direct-io=off" };
        let device = call("losetup", &["-f", "--show", direct, path(file)?])?;
        Ok(Self(device.trim().to_owned()))
    }

    pub(crate) fn path(&self) -> &Path {
        Path::new(&self.0)
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // One that is still in use goes with its last user.
        let _ = call("losetup", &["-d", &self.0]);
    }
}

/// A mounted file system; dropping it unmounts it.
pub(crate) struct Mounted {
    place: PathBuf,
    /// What goes with it.
    _device: Option<LoopDevice>,
}

impl Mounted {
    pub(crate) fn new(device: &Path, place: &Path) -> Result<Self, BenchError> {
        mount(device, place).map(|()| Self { place: place.to_owned(), _device: None })
    }

    /// The file system in a file.
    pub(crate) fn of_file(file: &Path, place: &Path) -> Result<Self, BenchError> {
        let device = LoopDevice::on(file, false)?;
        mount(device.path(), place)?;
        Ok(Self { place: place.to_owned(), _device: Some(device) })
    }
}

fn mount(device: &Path, place: &Path) -> Result<(), BenchError> {
    fs::create_dir_all(place).map_err(|e| BenchError::system(format!("make {}", place.display()), e))?;
    call("mount", &[path(device)?, path(place)?]).map(drop)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_has_started_ends_with_it_when_the_benchmark_is_to_end() {
        let dir = tempfile::tempdir().unwrap();
        let (begun, lived) = (dir.path().join("begun"), dir.path().join("lived"));
        let script = r#"(sleep 3; echo >"$2") & echo >"$1"; wait"#;
        let stopped = AtomicBool::new(false);
        let result = thread::scope(|scope| {
            scope.spawn(|| {
                while !begun.exists() {
                    thread::sleep(POLL);
                }
                stopped.store(true, Ordering::Relaxed);
            });
            let args = ["-c", script, "sh", path(&begun).unwrap(), path(&lived).unwrap()];
            call_long("sh", &args, &stopped)
        });
        assert!(matches!(result, Err(BenchError::Stopped)), "{result:?}");
        assert!(!lived.exists(), "the program's child has gone on to its end");
    }

    #[test]
    fn what_a_program_says_and_how_it_ends_is_told() {
        let call = |script| call_long("sh", &["-c", script], &AtomicBool::new(false));
        assert_eq!(call("echo all is well").unwrap(), "all is well\n");
        let failed = call("echo much is wrong >&2; exit 4").unwrap_err().to_string();
        assert!(failed.contains("sh failed: much is wrong"), "{failed}");
    }
}
