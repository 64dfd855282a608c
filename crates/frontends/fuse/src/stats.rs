//! What has passed through an export.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Figures of an export since it was mounted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FuseStats {
    /// Read requests taken.
    pub reads: u64,
    /// Bytes of reads answered.
    pub read_bytes: u64,
    /// Write requests taken.
    pub writes: u64,
    /// Writes that asked to be durable before their answer (O_DSYNC); contained in `writes`.
    pub writes_durable: u64,
    /// Writes of parts of sectors, each of which had to read first and be alone; contained in `writes`.
    pub writes_unaligned: u64,
    /// Bytes of writes acknowledged.
    pub write_bytes: u64,
    /// fsync, fdatasync and close.
    pub flushes: u64,
    /// Holes punched (a discard, or a write-zeroes that may unmap).
    pub discards: u64,
    /// Ranges zeroed without giving up their space.
    pub zeroes: u64,
    /// Searches for data or holes.
    pub seeks: u64,
    /// Requests that were refused because of their shape: past the end, of parts of sectors (zeroing), changing the size.
    pub refused: u64,
    /// Requests that the volume answered with an error.
    pub errors: u64,
    /// Requests under way in the volume now.
    pub outstanding: u64,
}

/// The counters behind [`FuseStats`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub reads: AtomicU64,
    pub read_bytes: AtomicU64,
    pub writes: AtomicU64,
    pub writes_durable: AtomicU64,
    pub writes_unaligned: AtomicU64,
    pub write_bytes: AtomicU64,
    pub flushes: AtomicU64,
    pub discards: AtomicU64,
    pub zeroes: AtomicU64,
    pub seeks: AtomicU64,
    pub refused: AtomicU64,
    pub errors: AtomicU64,
    pub outstanding: AtomicU64,
}

impl Counters {
    pub fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Relaxed);
    }

    /// Counts a request as handed to the volume.
    pub fn begin(&self) {
        self.outstanding.fetch_add(1, Relaxed);
    }

    /// Counts a request as answered by the volume.
    pub fn end(&self, ok: bool) {
        self.outstanding.fetch_sub(1, Relaxed);
        if !ok {
            self.errors.fetch_add(1, Relaxed);
        }
    }

    pub fn snapshot(&self) -> FuseStats {
        FuseStats {
            reads: self.reads.load(Relaxed),
            read_bytes: self.read_bytes.load(Relaxed),
            writes: self.writes.load(Relaxed),
            writes_durable: self.writes_durable.load(Relaxed),
            writes_unaligned: self.writes_unaligned.load(Relaxed),
            write_bytes: self.write_bytes.load(Relaxed),
            flushes: self.flushes.load(Relaxed),
            discards: self.discards.load(Relaxed),
            zeroes: self.zeroes.load(Relaxed),
            seeks: self.seeks.load(Relaxed),
            refused: self.refused.load(Relaxed),
            errors: self.errors.load(Relaxed),
            outstanding: self.outstanding.load(Relaxed),
        }
    }
}
