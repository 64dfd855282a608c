//! The export and the loop device against a volume in memory. Needs root, `/dev/fuse` and loop devices.
#![expect(clippy::unwrap_used, reason = "a test ends at the first thing that goes wrong")]

mod attached;
mod death;
mod file;
mod former;
mod memory;
mod reserve;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use forebay_fuse::{AttachOptions, Attachment, FuseExport, FuseOptions};
use memory::{Behaviour, MemoryVolume};

/// Whether this machine can run the tests; says so if not, and fails in CI.
fn able(programs: &[&str]) -> bool {
    // SAFETY: the call takes no argument and cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    let mut missing: Vec<&str> = Vec::new();
    if !root {
        missing.push("root");
    }
    missing.extend(["/dev/fuse", "/dev/loop-control"].into_iter().filter(|p| !Path::new(p).exists()));
    missing.extend(programs.iter().filter(|p| Command::new(p).arg("--version").output().is_err()));
    if missing.is_empty() {
        return true;
    }
    assert!(std::env::var("CI").as_deref() != Ok("true"), "missing: {}", missing.join(", "));
    eprintln!("SKIP: missing: {}", missing.join(", "));
    false
}

/// A volume in memory, served as a file in a directory of its own.
struct Served {
    volume: MemoryVolume,
    export: FuseExport,
    dir: tempfile::TempDir,
}

impl Served {
    fn new(behaviour: Behaviour) -> Self {
        Self::with(behaviour, FuseOptions::default())
    }

    fn with(behaviour: Behaviour, options: FuseOptions) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let volume = MemoryVolume::start(behaviour);
        let export =
            FuseExport::mount(&dir.path().join("volume"), Arc::new(volume.clone()), options).unwrap();
        Self { volume, export, dir }
    }

    fn path(&self) -> &Path {
        self.export.path()
    }

    fn attach(&self, options: AttachOptions) -> Attachment {
        Attachment::attach(self.path(), options).unwrap()
    }

    /// A directory to mount a file system on.
    fn mount_point(&self) -> PathBuf {
        let point = self.dir.path().join("mounted");
        std::fs::create_dir_all(&point).unwrap();
        point
    }

    fn end(self) {
        self.export.unmount().unwrap();
        self.volume.stop();
        assert!(!self.dir.path().join("volume").exists(), "the file that was created is removed");
    }
}

/// Runs a program that must succeed.
fn run(program: &str, arguments: &[&str]) -> Output {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    output
}
