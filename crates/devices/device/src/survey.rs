//! Where a device has data and where holes, asked beside the thread that drives it: a file system may take its time to say.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use forebay_block::{Allocation, SECTOR_BYTES, StatusExtent};

/// What can be asked about a device's allocation, on any thread. It keeps a file open but claims nothing, and changes nothing.
#[derive(Debug)]
pub struct Survey {
    /// Where holes can be told.
    file: Option<File>,
    size_bytes: u64,
}

impl Survey {
    /// Of a device that cannot tell: everything is data.
    pub const fn unknown(size_bytes: u64) -> Self {
        Self { file: None, size_bytes }
    }

    /// Of a regular file.
    ///
    /// # Errors
    /// No more files can be opened.
    pub fn of_file(file: &File, size_bytes: u64) -> io::Result<Self> {
        Ok(Self { file: Some(file.try_clone()?), size_bytes })
    }

    /// What lies at byte `offset`, and how far it goes, at most up to `end`; both are multiples of 512. A hole is a hole for certain, at an
    /// instant of this call, and reads as zeroes; data is the answer to whatever is not known.
    pub fn at(&self, offset: u64, end: u64) -> StatusExtent {
        let end = end.min(self.size_bytes);
        let data = |to: u64| (Allocation::Data, to.next_multiple_of(SECTOR_BYTES));
        let (allocation, next) = match &self.file {
            Some(file) => match seek(file, offset, libc::SEEK_DATA) {
                // Sectors are the unit of the service: a hole that ends inside one is shorter, data longer.
                Ok(found) if found - found % SECTOR_BYTES > offset => {
                    (Allocation::Hole, found - found % SECTOR_BYTES)
                }
                Ok(found) if found > offset => data(found),
                Ok(_) => data(seek(file, offset, libc::SEEK_HOLE).unwrap_or(end)),
                // No data from here to the end of the file.
                Err(e) if e.raw_os_error() == Some(libc::ENXIO) => (Allocation::Hole, end),
                Err(_) => data(end),
            },
            None => data(end),
        };
        // It always leads on, also where a file has become shorter than it was.
        let next = next.min(end).max(offset + SECTOR_BYTES);
        StatusExtent { len: next - offset, allocation }
    }
}

/// Asks the file system where data or a hole lies.
fn seek(file: &File, at: u64, whence: libc::c_int) -> io::Result<u64> {
    let at = libc::off_t::try_from(at).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: lseek takes no pointers, and the descriptor is open. The position that it moves is used by nobody.
    let found = unsafe { libc::lseek(file.as_raw_fd(), at, whence) };
    u64::try_from(found).map_err(|_| io::Error::last_os_error())
}
