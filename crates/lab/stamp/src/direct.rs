//! A file or a block device, past the page cache where that is possible.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, OFlags};

use crate::target::{Failure, Target};

/// Direct I/O wants memory that starts at a multiple of this.
const ALIGN_BYTES: usize = 4096;

const ENODEV: i32 = 19;
const ENXIO: i32 = 6;
const ENOTCONN: i32 = 107;
const EINVAL: i32 = 22;

/// An open file or device.
pub(crate) struct DirectFile {
    file: File,
    size_bytes: u64,
    /// Requests go through here, for the sake of alignment.
    bounce: Vec<u8>,
}

impl DirectFile {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let open = |flags: OFlags| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).custom_flags(flags.bits() as i32).open(path)
        };
        // A file system that refuses direct I/O says so by EINVAL.
        let mut file = match open(OFlags::DIRECT) {
            Err(e) if e.raw_os_error() == Some(EINVAL) => open(OFlags::empty())?,
            opened => opened?,
        };
        let size_bytes = file.seek(SeekFrom::End(0))?;
        Ok(Self { file, size_bytes, bounce: Vec::new() })
    }

    /// Aligned memory of this length.
    fn aligned(bounce: &mut Vec<u8>, len: usize) -> &mut [u8] {
        if bounce.len() < len + ALIGN_BYTES {
            bounce.resize(len + ALIGN_BYTES, 0);
        }
        let start = bounce.as_ptr().align_offset(ALIGN_BYTES);
        &mut bounce[start..start + len]
    }
}

fn failure(e: io::Error) -> Failure {
    match e.raw_os_error() {
        None | Some(ENODEV | ENXIO | ENOTCONN) => Failure::Lost(e),
        Some(errno) => Failure::Refused(errno),
    }
}

impl Target for DirectFile {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> Result<(), Failure> {
        let bounce = Self::aligned(&mut self.bounce, bytes.len());
        self.file.read_exact_at(bounce, offset).map_err(failure)?;
        bytes.copy_from_slice(bounce);
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8], fua: bool) -> Result<(), Failure> {
        let bounce = Self::aligned(&mut self.bounce, bytes.len());
        bounce.copy_from_slice(bytes);
        self.file.write_all_at(bounce, offset).map_err(failure)?;
        if fua { self.flush() } else { Ok(()) }
    }

    fn zero(&mut self, offset: u64, len: u64, unmap: bool) -> Result<(), Failure> {
        let how = if unmap { FallocateFlags::PUNCH_HOLE } else { FallocateFlags::ZERO_RANGE };
        rustix::fs::fallocate(&self.file, how | FallocateFlags::KEEP_SIZE, offset, len)
            .map_err(|e| failure(e.into()))
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.file.sync_data().map_err(failure)
    }
}
