//! Where the tests keep caches and backings, and how they open volumes on them.

use std::path::{Path, PathBuf};

use forebay_device::DeviceSpec;
use forebay_host::{
    Ending, FormatOptions, Formatted, HostError, JournalChoice, Volume, VolumeConfig, format,
};
use tempfile::TempDir;

pub const MIB: u64 = 1 << 20;

/// A directory with a cache and a backing, made or not.
pub struct Place {
    pub directory: TempDir,
    pub pmem: bool,
}

impl Place {
    /// On a disk file system.
    pub fn new() -> Self {
        Self { directory: TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap(), pmem: false }
    }

    /// With a mapped cache on tmpfs.
    pub fn pmem() -> Option<Self> {
        let directory = TempDir::new_in("/dev/shm");
        if directory.is_err() {
            eprintln!("SKIP: no tmpfs at /dev/shm");
            assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "no tmpfs at /dev/shm");
        }
        Some(Self { directory: directory.ok()?, pmem: true })
    }

    /// Made, with a cache and a sparse backing of these sizes.
    pub fn formatted(cache_bytes: u64, backing_bytes: u64) -> Self {
        let place = Self::new();
        place.format(cache_bytes, backing_bytes).unwrap();
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn spec(&self, name: &str) -> DeviceSpec {
        match self.pmem && name == "cache" {
            true => DeviceSpec::Pmem(self.path(name)),
            false => DeviceSpec::Path(self.path(name)),
        }
    }

    pub fn options(&self, cache_bytes: u64, backing_bytes: u64) -> FormatOptions {
        FormatOptions {
            cache: self.spec("cache"),
            backing: self.spec("backing"),
            cache_bytes: Some(cache_bytes),
            backing_bytes: Some(backing_bytes),
            volume_bytes: None,
            align: None,
            logical_block: None,
            force: false,
            journal: JournalChoice::Auto,
        }
    }

    pub fn format(&self, cache_bytes: u64, backing_bytes: u64) -> Result<Formatted, HostError> {
        format(&self.options(cache_bytes, backing_bytes), &mut |_, _| {})
    }

    pub fn config(&self) -> VolumeConfig {
        VolumeConfig::new("test", Some(self.spec("cache")), self.spec("backing"))
    }

    pub fn plain_config(&self) -> VolumeConfig {
        VolumeConfig::new("test", None, self.spec("backing"))
    }

    pub fn open(&self) -> Volume {
        Volume::open(self.config()).unwrap()
    }

    /// Serves for a moment and ends.
    pub fn run(&self, ending: Ending) {
        self.open().end(ending).unwrap();
    }

    /// Why a volume cannot be opened.
    pub fn refusal(&self) -> HostError {
        refusal(self.config())
    }

    pub fn copy(&self, from: &str, to: &str) {
        std::fs::copy(self.path(from), self.path(to)).unwrap();
    }

    pub fn content(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }
}

pub fn refusal(config: VolumeConfig) -> HostError {
    match Volume::open(config) {
        Ok(_) => panic!("the volume was opened"),
        Err(e) => e,
    }
}

pub fn sparse(path: &Path, bytes: u64) {
    std::fs::File::create(path).unwrap().set_len(bytes).unwrap();
}
