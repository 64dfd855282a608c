//! A daemon of its own process, as users run it, for what is measured from outside.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use forebay_control::{Client, Request};
use forebay_device::DeviceSpec;
use rustix::process::Signal;
use serde_json::Value;

use crate::BenchError;
use crate::mounted::{call, path};
use crate::scratch::Scratch;

/// A running `forebay serve`. Dropping it stops it.
pub(crate) struct Daemon {
    child: Child,
    forebay: PathBuf,
    control: PathBuf,
    /// Where it serves NBD.
    pub(crate) nbd: PathBuf,
    attached: bool,
    /// Where its cache's file is, if that is emulated memory.
    pub(crate) memory: Option<Scratch>,
}

const NAME: &str = "bench";

impl Daemon {
    /// Serves `cache` and `backing`, or `backing` alone, by NBD and, if the system lets it, through FUSE; with these settings, and these
    /// variables in its environment.
    pub(crate) fn start(
        environment: &[(String, String)],
        forebay: &Path,
        scratch: &Path,
        cache: Option<&DeviceSpec>,
        backing: &DeviceSpec,
        fuse: bool,
        settings: &[(String, String)],
    ) -> Result<Self, BenchError> {
        let (nbd, control) = (scratch.join("nbd.sock"), scratch.join("control.sock"));
        let mut command = Command::new(forebay);
        command.envs(environment.iter().cloned());
        command.args(["--log", "error", "serve", "--name", NAME]);
        match cache {
            Some(cache) => command.args(["--cache", &cache.to_string()]),
            None => command.arg("--no-cache"),
        };
        command.args(["--backing", &backing.to_string()]);
        command.arg("--control").arg(&control);
        for (key, value) in settings {
            command.arg(format!("--{key}={value}"));
        }
        command.arg("--nbd").arg(format!("unix:{}", nbd.display()));
        if fuse {
            command.arg("--fuse").arg(scratch.join("volume"));
        }
        let doing = || format!("start {}", forebay.display());
        // Whoever stops the benchmark from a terminal stops this process alone, which takes the volume down when nothing is mounted on it.
        command.process_group(0);
        let mut child = command.stdout(Stdio::piped()).spawn().map_err(|e| BenchError::system(doing(), e))?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line).map_err(|e| BenchError::system(doing(), e))?;
        }
        let daemon = Self { child, forebay: forebay.to_owned(), control, nbd, attached: false, memory: None };
        match line.starts_with("ready") {
            true => Ok(daemon),
            false => {
                Err(BenchError::Forebay("the daemon did not become ready; see its message above".into()))
            }
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Destages everything and waits for it.
    pub(crate) fn flush(&self) -> Result<(), BenchError> {
        self.flusher()()
    }

    /// The same for another thread, which needs no program for it that takes its time to start.
    pub(crate) fn flusher(&self) -> impl FnOnce() -> Result<(), BenchError> + Send + 'static {
        let control = self.control.clone();
        move || {
            let flush = Request::Flush { volume: NAME.to_owned() };
            let answer = Client::connect(&control).and_then(|mut client| client.call(&flush, |_| {}));
            answer.map(drop).map_err(|e| BenchError::Forebay(e.to_string()))
        }
    }

    fn tell(&self, command: &str) -> Result<String, BenchError> {
        self.tell_with(command, &[])
    }

    fn tell_with(&self, command: &str, flags: &[&str]) -> Result<String, BenchError> {
        let args = [&[command, NAME], flags, &["--control", path(&self.control)?]].concat();
        Ok(call(&self.forebay, &args)?.trim().to_owned())
    }

    /// The volume's figures.
    pub(crate) fn status(&self) -> Result<Value, BenchError> {
        self.json("status")
    }

    /// What of the cache is dirty.
    pub(crate) fn dirty_share(&self) -> Result<f64, BenchError> {
        let status = self.status()?;
        let number = |key: &str| status.get(key).and_then(Value::as_f64);
        match (number("dirty_bytes"), number("cache_bytes")) {
            (Some(dirty), Some(cache)) if cache > 0.0 => Ok(dirty / cache),
            _ => Err(BenchError::Forebay("the status does not say what of the cache is dirty".into())),
        }
    }

    /// What a command says of the volume, as JSON.
    pub(crate) fn json(&self, command: &str) -> Result<Value, BenchError> {
        let text = self.tell_with(command, &["--json"])?;
        serde_json::from_str(&text)
            .map_err(|e| BenchError::Forebay(format!("what `forebay {command}` says is no JSON: {e}")))
    }

    /// Changes a setting of the volume.
    pub(crate) fn set(&self, key: &str, value: &str) -> Result<(), BenchError> {
        self.tell_with("set", &[&format!("{key}={value}")]).map(drop)
    }

    /// Makes a block device of the volume.
    pub(crate) fn attach(&mut self) -> Result<PathBuf, BenchError> {
        let path = self.tell("attach")?;
        self.attached = true;
        Ok(path.into())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.attached {
            // What is left of the device goes with the daemon.
            let _ = self.tell("detach");
        }
        // The child has not been waited for, so that its pid is still its own. If it has ended already, so much the better.
        let _ = rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), Signal::TERM);
        let _ = self.child.wait();
    }
}
