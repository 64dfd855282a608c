//! What an application's volume stands on: emulated devices in files of the scratch directory.

use std::fs;
use std::path::{Path, PathBuf};

use forebay_device::DeviceSpec;
use forebay_format::Layout;
use forebay_host::{FormatOptions, HostError, JournalChoice, format};

use crate::BenchError;
use crate::daemon::Daemon;
use crate::scratch::Scratch;

/// The paper's ramdisk, written past the processor's caches.
pub(crate) const NVDRAM: &str = "nvdram";

/// An emulated device: its kind, and parameters if it is not as the kind is, `hdd-10k,write-cache=no`. It is not synced, so that what is measured is the
/// model's time and not that of the disk below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Emulated(String);

impl Emulated {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// As people call it.
    pub(crate) fn name(&self) -> &str {
        &self.0
    }

    /// Whether it is memory: with its file on a disk each access would take as long as the disk does.
    fn is_memory(&self) -> bool {
        self.0.split(',').next() == Some(NVDRAM)
    }

    /// It, with this file as its medium.
    pub(crate) fn at(&self, file: &Path) -> Result<DeviceSpec, BenchError> {
        let (kind, parameters) =
            self.0.split_once(',').map_or((self.0.as_str(), None), |(k, p)| (k, Some(p)));
        let mut text = format!("emulate:{kind}:file={},sync=no", file.display());
        if let Some(parameters) = parameters {
            text = format!("{text},{parameters}");
        }
        text.parse().map_err(|e: forebay_device::UnknownDevice| BenchError::Forebay(e.to_string()))
    }
}

/// Whether this names an emulated device, as [`crate::Options`] and [`crate::Contest`] have them.
///
/// # Errors
/// If not: what is wrong with it.
pub fn check_model(text: &str) -> Result<(), BenchError> {
    Emulated::new(text).at(Path::new("file")).map(drop)
}

/// Whether a cache may have so many bytes.
///
/// # Errors
/// If it is too small.
pub fn check_cache(bytes: u64) -> Result<(), BenchError> {
    let least_bytes =
        Layout::SEGMENTS_OFFSET + u64::from(Layout::SEGMENT_COUNT_MIN) * u64::from(Layout::SEGMENT_BYTES_MIN);
    match Layout::geometry_for(bytes) {
        Some(_) => Ok(()),
        None => Err(BenchError::Forebay(HostError::CacheTooSmall { bytes, least_bytes }.to_string())),
    }
}

/// What a volume stands on, and how it is set.
pub(crate) struct Site {
    /// The cache and its size; `None`: the backing as it is.
    pub(crate) cache: Option<(Emulated, u64)>,
    pub(crate) backing: Emulated,
    /// Flags of `forebay serve`.
    pub(crate) flags: Vec<(String, String)>,
}

impl Site {
    /// A daemon with an attached volume on the file `backing`, and the volume's block device. The cache lies beside it, anew; one that is
    /// memory lies in memory, if there is room.
    pub(crate) fn serve(&self, forebay: &Path, backing: &Path) -> Result<(Daemon, PathBuf), BenchError> {
        let memory = self.cache.as_ref().filter(|(model, _)| model.is_memory());
        let memory = memory.and_then(|(_, bytes)| Scratch::in_memory(*bytes));
        let cache_file = match &memory {
            Some(memory) => memory.path().join("cache"),
            None => backing.with_extension("cache"),
        };
        let mut label = backing.as_os_str().to_owned();
        label.push(forebay_host::LABEL_SUFFIX);
        for old in [cache_file.as_path(), Path::new(&label), &backing.with_extension("log")] {
            // It is there from the second time on.
            let _ = fs::remove_file(old);
        }
        let mut cache = None;
        if let Some((model, bytes)) = &self.cache {
            cache = Some(model.at(&cache_file)?);
            format_pair(&cache_file, backing, *bytes, None)?;
        }
        let scratch = backing.parent().unwrap_or(Path::new("."));
        let backing = self.backing.at(backing)?;
        let mut daemon = Daemon::start(&[], forebay, scratch, cache.as_ref(), &backing, true, &self.flags)?;
        daemon.memory = memory;
        let device = daemon.attach()?;
        Ok((daemon, device))
    }
}

/// Makes a cache of so many bytes for the backing, and the backing if its size is given.
pub(crate) fn format_pair(
    cache: &Path,
    backing: &Path,
    cache_bytes: u64,
    backing_bytes: Option<u64>,
) -> Result<(), BenchError> {
    let options = FormatOptions {
        cache: DeviceSpec::Path(cache.to_owned()),
        backing: DeviceSpec::Path(backing.to_owned()),
        cache_bytes: Some(cache_bytes),
        backing_bytes,
        volume_bytes: None,
        align: None,
        logical_block: None,
        force: false,
        journal: JournalChoice::Auto,
    };
    format(&options, &mut |_, _| {}).map_err(|e| BenchError::Forebay(e.to_string()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_of_a_model_stand_behind_the_file() {
        let spec = |text: &str| Emulated::new(text).at(Path::new("/f")).map(|spec| spec.to_string());
        assert_eq!(spec("hdd-10k").unwrap(), "emulate:hdd-10k:file=/f,sync=no");
        assert_eq!(
            spec("hdd-10k,write-cache=no,queue=4").unwrap(),
            "emulate:hdd-10k:file=/f,sync=no,queue=4,write-cache=no"
        );
        assert!(spec("tape").unwrap_err().to_string().contains("tape"));
        let memory = ["nvdram", "nvdram,latency=1us", "ssd-sata"].map(|text| Emulated::new(text).is_memory());
        assert_eq!(memory, [true, true, false]);
    }

    #[test]
    fn a_cache_that_nothing_can_be_made_of_is_told_with_the_least() {
        let refused = check_cache(1024).unwrap_err().to_string();
        assert_eq!(refused, "a cache of 1 KiB is too small; the least is 1.4 MiB");
        assert!(check_cache(1408 << 10).is_ok() && check_cache((1408 << 10) - 1).is_err());
    }
}
