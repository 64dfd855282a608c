//! Reads a record from its beginning.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::path::Path;

use crate::entry::{Entry, HEAD_BYTES, Head, PAYLOAD_BYTES_MAX, check_file_head};

/// The entries of a record, one after the other; the record is a file, or whatever `R` reads.
///
/// The last entry of a process that was killed, or whose disk was full, may be incomplete: the record ends before it.
/// Anything else that is not as it was written is an error.
#[derive(Debug)]
pub struct Reader<R = BufReader<File>> {
    file: R,
    bytes_left: u64,
    next_number: u64,
    time_ns: u64,
}

impl Reader {
    /// Opens a record.
    ///
    /// # Errors
    /// As the system gives them; [`io::ErrorKind::InvalidData`] if this is no record of this version.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        Self::new(BufReader::with_capacity(1 << 20, file), bytes)
    }
}

impl<R: Read + Seek> Reader<R> {
    /// Reads a record of this length, from where `file` is.
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub fn new(mut file: R, bytes: u64) -> io::Result<Self> {
        let mut head = [0; HEAD_BYTES];
        if bytes < HEAD_BYTES as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "this is no record of devices"));
        }
        file.read_exact(&mut head)?;
        check_file_head(&head)?;
        Ok(Self { file, bytes_left: bytes - HEAD_BYTES as u64, next_number: 1, time_ns: 0 })
    }

    /// Number and time of every entry's beginning, without their data: how long the record is.
    ///
    /// # Errors
    /// As [`Reader::next_entry`].
    pub fn count(mut self) -> io::Result<u64> {
        while let Some(head) = self.head()? {
            self.file.seek_relative(i64::from(head.payload_bytes))?;
        }
        Ok(self.next_number - 1)
    }

    /// The next entry; `None` at the end.
    ///
    /// # Errors
    /// As the system gives them; [`io::ErrorKind::InvalidData`] if an entry before the end is damaged.
    pub fn next_entry(&mut self) -> io::Result<Option<Entry>> {
        let Some(head) = self.head()? else {
            return Ok(None);
        };
        let mut payload = vec![0; head.payload_bytes as usize];
        self.file.read_exact(&mut payload)?;
        head.entry(payload).map(Some)
    }

    /// The head of the next entry, if all of that entry is there.
    fn head(&mut self) -> io::Result<Option<Head>> {
        if self.bytes_left < HEAD_BYTES as u64 {
            return Ok(None);
        }
        let mut bytes = [0; HEAD_BYTES];
        self.file.read_exact(&mut bytes)?;
        let bad = |what: &str| {
            let what = format!("entry {} {what}", self.next_number);
            io::Error::new(io::ErrorKind::InvalidData, what)
        };
        let head = Head::decode(&bytes).ok_or_else(|| bad("does not match its checksum"))?;
        if head.number != self.next_number || u64::from(head.payload_bytes) > PAYLOAD_BYTES_MAX {
            return Err(bad("is not where it should be"));
        }
        let whole = HEAD_BYTES as u64 + u64::from(head.payload_bytes);
        if self.bytes_left < whole {
            self.bytes_left = 0;
            return Ok(None);
        }
        if head.time_ns < self.time_ns {
            return Err(bad("is older than the one before"));
        }
        self.time_ns = head.time_ns;
        self.bytes_left -= whole;
        self.next_number += 1;
        Ok(Some(head))
    }
}
