//! Owned, 4 KiB-aligned I/O buffers.
//!
//! An operation in flight owns its buffer, or shares it read-only, until its completion. A buffer's storage starts
//! on a page boundary, so that a slice at a multiple of the device's alignment can be handed to O_DIRECT as it is.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct Page([u8; 4096]);

/// A buffer with one owner, which may write to it. Becomes a shared [`Buf`] by [`BufMut::freeze`].
pub struct BufMut {
    pages: Box<[Page]>,
    len: usize,
}

impl BufMut {
    /// A buffer of `len` bytes, all zero, whose first byte lies on a 4 KiB boundary.
    ///
    /// # Panics
    /// If memory is exhausted: buffers are bounded by the limits of the queues that hold them (P7).
    pub fn zeroed(len: usize) -> Self {
        #[expect(clippy::expect_used, reason = "allocation failure of a bounded buffer has no recovery")]
        let pages = <[Page]>::new_box_zeroed_with_elems(len.div_ceil(4096)).expect("out of memory");
        Self { pages, len }
    }

    /// A buffer that holds a copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut pages: Vec<Page> = Vec::with_capacity(bytes.len().div_ceil(4096));
        let (whole, rest) = bytes.as_chunks::<4096>();
        // Without zeroing first what is overwritten at once.
        pages.extend(whole.iter().map(|page| Page(*page)));
        if !rest.is_empty() {
            let mut last = Page([0; 4096]);
            last.0[..rest.len()].copy_from_slice(rest);
            pages.push(last);
        }
        Self { pages: pages.into_boxed_slice(), len: bytes.len() }
    }

    /// The whole pages behind the buffer, of which `len` bytes count; direct I/O may read or write past the
    /// end of the data up to the page's end.
    pub fn padded_mut(&mut self) -> &mut [u8] {
        self.pages.as_mut_bytes()
    }

    /// Gives up the right to write, for the right to share.
    pub fn freeze(self) -> Buf {
        let len = self.len;
        Buf { pages: Arc::new(self.pages), start: 0, len }
    }
}

impl Deref for BufMut {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.pages.as_bytes()[..self.len]
    }
}

impl DerefMut for BufMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.pages.as_mut_bytes()[..self.len]
    }
}

impl fmt::Debug for BufMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufMut({} bytes)", self.len)
    }
}

/// A shared, immutable view of a buffer; cloning and slicing copy no data.
#[derive(Clone)]
pub struct Buf {
    pages: Arc<Box<[Page]>>,
    start: usize,
    len: usize,
}

impl Buf {
    /// A buffer of `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        BufMut::zeroed(len).freeze()
    }

    /// A buffer that holds a copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Self {
        BufMut::copy_of(bytes).freeze()
    }

    /// The bytes `start .. start + len` of this view, without a copy.
    ///
    /// # Panics
    /// If the range does not lie within the view.
    pub fn slice(&self, start: usize, len: usize) -> Self {
        assert!(start + len <= self.len, "slice {start}+{len} of a buffer of {} bytes", self.len);
        Self { pages: Arc::clone(&self.pages), start: self.start + start, len }
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.pages.as_bytes()[self.start..self.start + self.len]
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_is_page_aligned_and_slices_share_it() {
        let mut b = BufMut::zeroed(5000);
        assert_eq!(b.as_ptr() as usize % 4096, 0);
        assert_eq!(b.padded_mut().len(), 8192);
        b[4096] = 7;
        let b = b.freeze();
        assert_eq!(b.as_ptr() as usize % 4096, 0);
        let s = b.slice(4096, 904);
        assert_eq!(s[0], 7);
        assert_eq!(s.as_ptr(), b[4096..].as_ptr());
        for len in [0, 1, 4096, 5000, 8192] {
            let bytes: Vec<u8> = (0..len).map(|n| n as u8).collect();
            let mut copy = BufMut::copy_of(&bytes);
            assert_eq!(*copy, bytes[..]);
            assert!(copy.padded_mut()[len..].iter().all(|b| *b == 0));
        }
    }
}
