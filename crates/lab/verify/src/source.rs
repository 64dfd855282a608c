//! Where an image is read from.

use std::fs::File;
use std::io::{Error, ErrorKind, Result, Seek, SeekFrom};
use std::os::unix::fs::FileExt;

/// A cache image: anything that can be read at a byte offset.
pub trait Source {
    /// Size in bytes.
    ///
    /// # Errors
    /// What the device or file says.
    fn size(&self) -> Result<u64>;

    /// Fills `buf` from byte `offset` on.
    ///
    /// # Errors
    /// What the device or file says; [`ErrorKind::UnexpectedEof`] if it ends before.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()>;
}

impl Source for File {
    fn size(&self) -> Result<u64> {
        // The metadata of a block device has no size; the end of the file has.
        let mut file = self;
        file.seek(SeekFrom::End(0))
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.read_exact_at(buf, offset)
    }
}

impl Source for [u8] {
    fn size(&self) -> Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let part = self.get(start..).and_then(|rest| rest.get(..buf.len()));
        buf.copy_from_slice(part.ok_or(Error::from(ErrorKind::UnexpectedEof))?);
        Ok(())
    }
}

impl<S: Source + ?Sized> Source for &S {
    fn size(&self) -> Result<u64> {
        (**self).size()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        (**self).read_at(buf, offset)
    }
}

impl Source for Vec<u8> {
    fn size(&self) -> Result<u64> {
        self.as_slice().size()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.as_slice().read_at(buf, offset)
    }
}
