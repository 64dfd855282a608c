//! Servers of somebody else, beside which volumes are measured.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::BenchError;

/// Longest time until one serves.
const START_MAX: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(10);

/// See the module's documentation. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Other(Child);

impl Other {
    /// Starts it, and waits until it serves; nothing if it is not installed.
    ///
    /// # Errors
    /// [`BenchError`] if it does not serve.
    pub(crate) fn start(mut command: Command, serves: impl Fn() -> bool) -> Result<Option<Self>, BenchError> {
        let program = Path::new(command.get_program()).display().to_string();
        let doing = || format!("start {program}");
        // Whoever stops the benchmark from a terminal stops this process alone.
        let child = match command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0).spawn() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            child => child.map_err(|e| BenchError::system(doing(), e))?,
        };
        let mut other = Self(child);
        let until = Instant::now() + START_MAX;
        while !serves() {
            let ended = other.0.try_wait().map_err(|e| BenchError::system(doing(), e))?;
            if ended.is_some() || Instant::now() >= until {
                return Err(BenchError::Forebay(format!("{program} does not serve")));
            }
            thread::sleep(POLL);
        }
        Ok(Some(other))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // It has not been waited for, so that its pid is still its own.
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_not_there_is_no_error_and_one_that_ends_at_once_is() {
        assert!(Other::start(Command::new("no-such-server"), || false).unwrap().is_none());
        let ended = Other::start(Command::new("false"), || false).unwrap_err();
        assert_eq!(ended.to_string(), "false does not serve");
    }
}
