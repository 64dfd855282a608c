//! An image of a file system with the files of a load, of which each measurement gets a copy.

use std::fs::File;
use std::path::PathBuf;

use super::Bench;
use super::contender::Contender;
use crate::BenchError;
use crate::daemon::Daemon;
use crate::mounted::{Mounted, call, path};

/// See the module's documentation.
pub(crate) struct Image {
    file: PathBuf,
    /// Where it, or its copy, is mounted.
    pub(crate) mount: PathBuf,
}

impl Image {
    /// An empty file system of so many bytes, mounted until what is returned is dropped.
    pub(crate) fn new(bench: &Bench<'_>, name: &str, bytes: u64) -> Result<(Self, Mounted), BenchError> {
        let image = Self {
            file: bench.store.join(format!("{name}.image")),
            mount: bench.options.scratch.join("mnt"),
        };
        let made = |e| BenchError::system(format!("make {}", image.file.display()), e);
        File::create(&image.file).and_then(|file| file.set_len(bytes)).map_err(made)?;
        call("mkfs.ext4", &["-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", path(&image.file)?])?;
        let mounted = Mounted::of_file(&image.file, &image.mount)?;
        Ok((image, mounted))
    }

    /// A copy on a volume, mounted.
    pub(crate) fn serve(
        &self,
        bench: &Bench<'_>,
        contender: Contender,
        rules: &str,
    ) -> Result<(Mounted, Daemon), BenchError> {
        let backing = self.file.with_extension("backing");
        // It is there from the second time on.
        let _ = std::fs::remove_file(&backing);
        call("cp", &["--sparse=always", path(&self.file)?, path(&backing)?])?;
        let (daemon, device) = contender.site(bench.plan, rules).serve(&bench.options.forebay, &backing)?;
        Ok((Mounted::new(&device, &self.mount)?, daemon))
    }
}
