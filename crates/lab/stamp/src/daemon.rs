//! A `forebay serve` on images in a directory of its own.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::target::TargetSpec;

/// How often it is looked whether the daemon is ready.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Lines of a log that are repeated when something is wrong.
const LOG_LINES_MAX: usize = 6;

/// A running daemon on the files `cache` and `backing` of a directory; killed when dropped.
pub(crate) struct Daemon {
    child: Child,
    forebay: PathBuf,
    directory: PathBuf,
}

impl Daemon {
    /// Starts it and waits until it is ready.
    pub(crate) fn start(
        forebay: &Path,
        directory: &Path,
        flags: &[String],
        patience: Duration,
    ) -> io::Result<Self> {
        let ready = directory.join("ready");
        let child = Command::new(forebay)
            .args(["serve", "--name", "db", "--cache", "cache", "--backing", "backing"])
            .args(["--nbd", "unix:nbd", "--control", "control"])
            .args(flags)
            .current_dir(directory)
            .env_remove("FOREBAY_LOG")
            .stdin(Stdio::null())
            .stdout(File::create(&ready)?)
            .stderr(File::create(directory.join("log"))?)
            .spawn()?;
        let mut daemon = Self { child, forebay: forebay.to_owned(), directory: directory.to_owned() };
        let limit = Instant::now() + patience;
        while !fs::read_to_string(&ready)?.contains('\n') {
            if let Some(status) = daemon.child.try_wait()? {
                return Err(io::Error::other(format!("forebay does not start, {status}: {}", daemon.log())));
            }
            if Instant::now() > limit {
                return Err(io::Error::other(format!("forebay is not ready in time: {}", daemon.log())));
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(daemon)
    }

    /// How it is reached.
    pub(crate) fn target(&self) -> TargetSpec {
        TargetSpec::Nbd { socket: self.directory.join("nbd"), export: String::new() }
    }

    /// Has everything written to the backing.
    pub(crate) fn flush(&self) -> io::Result<()> {
        let output = Command::new(&self.forebay)
            .args(["flush", "db", "--control", "control"])
            .current_dir(&self.directory)
            .stdin(Stdio::null())
            .output()?;
        match output.status.success() {
            true => Ok(()),
            false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned())),
        }
    }

    /// Kills it.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    fn log(&self) -> String {
        let log = fs::read_to_string(self.directory.join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().rev().take(LOG_LINES_MAX).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("; ")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.kill();
    }
}
