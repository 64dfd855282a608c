//! Writes a record while a volume runs.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::entry::{Brief, HEAD_BYTES, Head, Role, file_head};
use crate::monotonic_ns;

/// A record that is being written. Clones write to the same file.
///
/// An entry goes to the file in one step and before the call returns, so that nothing is held in memory, and the record
/// of a process that is killed ends with its last entry. If the file cannot be written the record ends there;
/// [`Recorder::failure`] says why, and what is recorded goes on as if nothing had happened.
#[derive(Clone, Debug)]
pub struct Recorder(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    file: File,
    bytes: u64,
    bytes_max: u64,
    entries: u64,
    ops: u64,
    last_ns: u64,
    failure: Option<String>,
}

impl Recorder {
    /// Starts a record in a new file, which will not become longer than `bytes_max`.
    ///
    /// # Errors
    /// As the system gives them; a file that exists is never overwritten.
    pub fn create(path: &Path, bytes_max: u64) -> io::Result<Self> {
        // It holds the data of the devices.
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
        let time_ns = monotonic_ns();
        file.write_all(&file_head(time_ns, wall))?;
        Ok(Self(Arc::new(Mutex::new(Inner {
            path: path.to_owned(),
            file,
            bytes: HEAD_BYTES as u64,
            bytes_max,
            entries: 0,
            ops: 0,
            last_ns: time_ns,
            failure: None,
        }))))
    }

    /// A device is there from now on.
    pub fn open(&self, role: Role, name: &str, size_bytes: u64) {
        self.lock().put(role, Brief::Open { size_bytes }, &[name.as_bytes()]);
    }

    /// A write is about to be submitted; the parts are what it writes, one after the other. Returns the number to
    /// tell its end with.
    pub fn write(&self, role: Role, offset: u64, durable: bool, parts: &[&[u8]]) -> u64 {
        self.begin(role, parts, |op| Brief::Write { op, offset, durable })
    }

    /// The same of a zero or discard.
    pub fn zero(&self, role: Role, offset: u64, len: u64, unmap: bool) -> u64 {
        self.begin(role, &[], |op| Brief::Zero { op, offset, len, unmap })
    }

    /// The same of a flush.
    pub fn flush(&self, role: Role) -> u64 {
        self.begin(role, &[], |op| Brief::Flush { op })
    }

    /// The operation has ended: with `errno` 0, or an error. To be told before anybody acts on it.
    pub fn end(&self, role: Role, op: u64, errno: u32) {
        self.lock().put(role, Brief::End { op, errno }, &[]);
    }

    /// Ends the record before its time: what comes next cannot be told in it.
    pub fn end_early(&self, why: &str) {
        self.lock().fail(why);
    }

    /// Why the record has ended before its time.
    pub fn failure(&self) -> Option<String> {
        self.lock().failure.clone()
    }

    fn begin(&self, role: Role, parts: &[&[u8]], what: impl FnOnce(u64) -> Brief) -> u64 {
        let mut inner = self.lock();
        inner.ops += 1;
        let op = inner.ops;
        inner.put(role, what(op), parts);
        op
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic while an entry was written leaves at worst an incomplete last entry, with which a record may end.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn put(&mut self, role: Role, what: Brief, parts: &[&[u8]]) {
        if self.failure.is_some() {
            return;
        }
        let mut head = Head::of(role, what, parts);
        let bytes = HEAD_BYTES as u64 + u64::from(head.payload_bytes);
        if self.bytes + bytes > self.bytes_max {
            let why = format!("it has reached its limit of {} bytes", self.bytes_max);
            return self.fail(&why);
        }
        self.last_ns = monotonic_ns().max(self.last_ns);
        head.number = self.entries + 1;
        head.time_ns = self.last_ns;
        match write_all(&mut self.file, &head.encode(), parts) {
            Ok(()) => {
                self.entries += 1;
                self.bytes += bytes;
            }
            Err(e) => self.fail(&e.to_string()),
        }
    }

    fn fail(&mut self, why: &str) {
        self.failure =
            Some(format!("the record {} ends with entry {}: {why}", self.path.display(), self.entries));
    }
}

fn write_all(file: &mut File, head: &[u8], parts: &[&[u8]]) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> =
        std::iter::once(head).chain(parts.iter().copied()).map(IoSlice::new).collect();
    let mut left = &mut slices[..];
    while !left.is_empty() {
        match file.write_vectored(left) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => IoSlice::advance_slices(&mut left, n),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
