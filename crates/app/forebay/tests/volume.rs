//! A volume in a directory of its own, and daemons on it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Size of the backings that tests make, in bytes.
pub const BACKING_BYTES: u64 = 64 << 20;

/// A directory with a cache and a backing, paired.
pub struct Place {
    dir: TempDir,
}

impl Place {
    /// A blank backing and a fresh cache.
    pub fn new() -> Self {
        let place = Self::with_backing();
        place.ok(&["format", "cache", "--size", "32M", "--backing", "backing"]);
        place
    }

    /// A blank backing alone.
    pub fn with_backing() -> Self {
        let place = Self { dir: TempDir::new().unwrap() };
        place.make_file("backing", BACKING_BYTES);
        place
    }

    /// A sparse file.
    pub fn make_file(&self, name: &str, bytes: u64) {
        File::create(self.path(name)).unwrap().set_len(bytes).unwrap();
    }

    /// The path of a file in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A command that runs in the directory.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.args(args).current_dir(self.dir.path()).env_remove("FOREBAY_LOG").stdin(Stdio::null());
        command
    }

    /// Runs a command that must succeed; returns its standard output.
    pub fn ok(&self, args: &[&str]) -> String {
        let output = self.command(args).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {}: {error}", output.status);
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command that must fail with one sentence; returns exit code and sentence.
    pub fn fails(&self, args: &[&str]) -> (i32, String) {
        let output = self.command(args).args(["--log", "off"]).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{args:?} succeeded");
        assert_eq!(error.lines().filter(|l| l.starts_with("error: ")).count(), 1, "{args:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{args:?}: {error}");
        assert!(output.stdout.is_empty(), "{args:?} failed and printed to standard output");
        (output.status.code().unwrap(), error)
    }

    /// Runs a command against the daemon's control socket.
    pub fn ask(&self, args: &[&str]) -> String {
        self.ok(&[args, &["--control", "control"]].concat())
    }

    /// The status of the volume `db` as JSON.
    pub fn status(&self) -> serde_json::Value {
        serde_json::from_str(&self.ask(&["status", "db", "--json"])).unwrap()
    }

    /// Serves cache and backing as `db`, with more flags.
    pub fn serve(&self, flags: &[&str]) -> Daemon {
        self.serve_plain(
            &[&["--name", "db", "--cache", "cache", "--backing", "backing", "--nbd", "unix:nbd"], flags]
                .concat(),
        )
    }

    /// Serves what the flags say; returns once the daemon is ready.
    pub fn serve_plain(&self, flags: &[&str]) -> Daemon {
        self.serve_with(flags, &[])
    }

    /// The same, with more in the environment.
    pub fn serve_with(&self, flags: &[&str], env: &[(&str, PathBuf)]) -> Daemon {
        self.start(&[&["--control", "control"], flags].concat(), env).0
    }

    /// The same, with the control sockets that the flags ask for; the line with which the daemon says that it is ready.
    pub fn start(&self, flags: &[&str], env: &[(&str, PathBuf)]) -> (Daemon, String) {
        let args = [&["serve"], flags].concat();
        let log = File::options().create(true).append(true).open(self.path("log")).unwrap();
        let mut command = self.command(&args);
        command.envs(env.iter().map(|(k, v)| (k, v))).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        assert!(ready.starts_with("ready"), "{ready:?}; log: {}", self.log());
        (Daemon { child }, ready)
    }

    /// Waits until the status of the volume `db` is so. The limit is there for one that never is.
    pub fn await_status(&self, is_so: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
        let limit = Instant::now() + Duration::from_secs(60);
        loop {
            let status = self.status();
            if is_so(&status) {
                return status;
            }
            assert!(Instant::now() < limit, "{status}; log: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until a daemon has logged these words. The limit is there for one that never does.
    pub fn await_log(&self, words: &str) {
        let limit = Instant::now() + Duration::from_secs(60);
        while !self.log().contains(words) {
            assert!(Instant::now() < limit, "'{words}' is not in the log: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What daemons have logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }
}

/// A running daemon; killed when dropped.
pub struct Daemon {
    child: Child,
}

impl Daemon {
    /// Asks it to stop cleanly and waits for its end.
    pub fn stop(mut self) -> ExitStatus {
        self.terminate();
        self.child.wait().unwrap()
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    /// Stops its threads, or has them go on.
    pub fn freeze(&self, frozen: bool) {
        let signal = if frozen { rustix::process::Signal::STOP } else { rustix::process::Signal::CONT };
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).unwrap();
    }

    /// Kills it at once.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for an end that it comes to by itself.
    pub fn wait(mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Bytes that tell where and in which round they were written.
pub fn pattern(offset: u64, round: u64, len: usize) -> Vec<u8> {
    let words = (0..len / 8).flat_map(|i| (offset.wrapping_mul(31) ^ (round << 48) ^ i as u64).to_le_bytes());
    words.collect()
}

/// Bytes of a file.
pub fn file_bytes(path: &Path, offset: u64, len: usize) -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    let mut data = vec![0; len];
    File::open(path).unwrap().read_exact_at(&mut data, offset).unwrap();
    data
}
