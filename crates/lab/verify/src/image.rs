//! Reading an image that may be too short, or on a medium with unreadable places.

use std::io;

use forebay_format::Layout;

use crate::Source;

/// Granularity in bytes at which an unreadable place is narrowed down.
const CHUNK_BYTES: usize = 4096;
/// Unreadable chunks after which the medium is given up.
const UNREADABLE_MAX: usize = 4096;

/// An image and what could not be read of it. Such places, and those behind its end, read as zeroes.
pub(crate) struct Image<'a> {
    source: &'a dyn Source,
    pub(crate) size: u64,
    /// Bytes read so far.
    pub(crate) bytes_read: u64,
    /// Chunks (offset, length) that could not be read, perhaps several times.
    unreadable: Vec<(u64, u64)>,
}

impl<'a> Image<'a> {
    pub(crate) fn new(source: &'a dyn Source) -> io::Result<Self> {
        Ok(Self { source, size: source.size()?, bytes_read: 0, unreadable: Vec::new() })
    }

    /// Fills `buf` from `offset` on.
    pub(crate) fn read(&mut self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let there = self.size.saturating_sub(offset).min(buf.len() as u64) as usize;
        let (there, missing) = buf.split_at_mut(there);
        missing.fill(0);
        if there.is_empty() {
            return Ok(());
        }
        self.bytes_read += there.len() as u64;
        if self.source.read_at(there, offset).is_ok() {
            return Ok(());
        }
        for (i, chunk) in there.chunks_mut(CHUNK_BYTES).enumerate() {
            let at = offset + (i * CHUNK_BYTES) as u64;
            if let Err(e) = self.source.read_at(chunk, at) {
                chunk.fill(0);
                self.note_unreadable(at, chunk.len() as u64, e)?;
            }
        }
        Ok(())
    }

    /// The bytes of segment `index`, in `buf`.
    pub(crate) fn read_segment(&mut self, layout: &Layout, index: u32, buf: &mut Vec<u8>) -> io::Result<()> {
        buf.resize(layout.segment_bytes as usize, 0);
        self.read(layout.segment_offset(index), buf)
    }

    fn note_unreadable(&mut self, offset: u64, len: u64, error: io::Error) -> io::Result<()> {
        self.unreadable.push((offset, len));
        if self.unreadable.len() > UNREADABLE_MAX { Err(error) } else { Ok(()) }
    }

    /// What could not be read: ranges (offset, length) in order, with a gap between any two.
    pub(crate) fn unreadable_ranges(&self) -> Vec<(u64, u64)> {
        let mut chunks = self.unreadable.clone();
        chunks.sort_unstable();
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for (offset, len) in chunks {
            match ranges.last_mut() {
                Some((o, l)) if offset <= *o + *l => *l = (*l).max(offset + len - *o),
                _ => ranges.push((offset, len)),
            }
        }
        ranges
    }
}
