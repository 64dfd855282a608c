//! What the tests share: places to put devices, and a driver.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use forebay_block::{Buf, Class, DeviceOp, DeviceResult};
use forebay_device::{Access, Clock, Device, DeviceSpec, Ring, open, run_alone};
use tempfile::TempDir;

/// Prints why a test is skipped; fails where nothing may be skipped.
pub fn skip(why: &str) {
    eprintln!("SKIP: {why}");
    assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "skipped in CI: {why}");
}

/// A directory on a disk file system.
pub fn disk_directory() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// A directory on tmpfs.
pub fn memory_directory() -> Option<TempDir> {
    let made = Path::new("/dev/shm").is_dir().then(|| TempDir::new_in("/dev/shm").unwrap());
    if made.is_none() {
        skip("no tmpfs at /dev/shm");
    }
    made
}

pub fn file(directory: &TempDir, name: &str, bytes: u64) -> PathBuf {
    let path = directory.path().join(name);
    File::create(&path).unwrap().set_len(bytes).unwrap();
    path
}

/// A loop device on a file, taken down when dropped.
pub struct LoopDevice {
    pub path: PathBuf,
}

impl LoopDevice {
    pub fn new(file: &Path, sector_bytes: u32) -> Option<Self> {
        Self::with(file, &["--sector-size", &sector_bytes.to_string()])
    }

    pub fn with(file: &Path, arguments: &[&str]) -> Option<Self> {
        let losetup = Command::new("losetup").args(["--find", "--show"]).args(arguments).arg(file).output();
        match losetup {
            Ok(out) if out.status.success() => {
                let path = String::from_utf8(out.stdout).unwrap();
                Some(Self { path: path.trim_end().into() })
            }
            other => {
                skip(&format!("no loop device: {other:?}"));
                None
            }
        }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.path).status();
    }
}

/// A ring, a clock, and what one does with a device.
pub struct Driver {
    pub ring: Ring,
    pub clock: Clock,
}

impl Driver {
    pub fn new() -> Self {
        Self { ring: Ring::new().unwrap(), clock: Clock::start() }
    }

    pub fn open(&self, spec: &str) -> Box<dyn Device> {
        open(&spec.parse::<DeviceSpec>().unwrap(), &self.ring, Access::ReadWrite).unwrap()
    }

    pub fn open_path(&self, path: &Path) -> Box<dyn Device> {
        self.open(path.to_str().unwrap())
    }

    pub fn run(&self, device: &mut dyn Device, op: DeviceOp) -> DeviceResult {
        run_alone(&self.ring, &self.clock, device, op)
    }

    pub fn read(&self, device: &mut dyn Device, offset: u64, len: usize) -> Buf {
        self.run(device, DeviceOp::Read { offset, len }).unwrap().unwrap()
    }

    pub fn write(&self, device: &mut dyn Device, offset: u64, data: &[u8], durable: bool) {
        let bufs = vec![Buf::copy_of(data)];
        assert!(self.run(device, DeviceOp::Write { offset, bufs, durable }).unwrap().is_none());
    }

    /// Runs many operations at a time and returns each one's outcome.
    pub fn run_all(&self, device: &mut dyn Device, ops: Vec<DeviceOp>) -> Vec<DeviceResult> {
        let count = ops.len();
        for (tag, op) in ops.into_iter().enumerate() {
            device.submit(tag as u64, op, Class::Foreground, self.clock.now());
        }
        let mut ended = HashMap::new();
        let mut done = Vec::new();
        while ended.len() < count {
            device.poll(self.clock.now(), &mut done);
            for (tag, result) in done.drain(..) {
                assert!(ended.insert(tag, result).is_none(), "{tag} ended twice");
            }
            if ended.len() < count {
                let now = self.clock.now();
                let timeout = device.deadline().map(|at| Duration::from_nanos(at.since(now)));
                self.ring.submit_and_wait(timeout, || true).unwrap();
            }
        }
        (0..count as u64).map(|tag| ended.remove(&tag).unwrap()).collect()
    }
}

/// A small pseudo-random generator (xorshift), so that a failure can be repeated.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.below(256) as u8).collect()
    }
}

pub fn file_content(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap()
}
