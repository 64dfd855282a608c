//! Owned, 4 KiB-aligned I/O buffers.
//!
//! An operation in flight owns its buffer, or shares it read-only, until its completion. A buffer's storage starts
//! on a page boundary, so that a slice at a multiple of the device's alignment can be handed to O_DIRECT as it is.

use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct Page([u8; 4096]);

/// Buffers of a page that a thread keeps for the next ones instead of giving them back, if it calls [`keep_pages`] (P7): of the size
/// of most requests, they come and go with every one.
const KEPT_MAX: usize = 32;

thread_local! {
    static KEPT: RefCell<Option<Vec<Box<[Page]>>>> = const { RefCell::new(None) };
}

/// From now on the calling thread keeps up to 32 buffers of up to 4096 bytes that are dropped on it, for its next ones. For threads
/// that make buffers and drop them all the time, of which there are few.
pub fn keep_pages() {
    KEPT.with_borrow_mut(|kept| {
        kept.get_or_insert_default();
    });
}

/// A buffer's storage. A single page goes to those that the thread keeps.
struct Pages(Box<[Page]>);

impl Pages {
    fn zeroed(count: usize) -> Self {
        #[expect(clippy::expect_used, reason = "allocation failure of a bounded buffer has no recovery")]
        Self(<[Page]>::new_box_zeroed_with_elems(count).expect("out of memory"))
    }

    /// A single page with whatever was in it.
    fn kept() -> Option<Self> {
        KEPT.try_with(|kept| kept.borrow_mut().as_mut()?.pop()).ok().flatten().map(Self)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.0.len() == 1 {
            let pages = std::mem::take(&mut self.0);
            // A thread that ends keeps nothing.
            let _ = KEPT.try_with(|kept| {
                if let Some(kept) = kept.borrow_mut().as_mut()
                    && kept.len() < KEPT_MAX
                {
                    kept.push(pages);
                }
            });
        }
    }
}

/// A buffer with one owner, which may write to it. Becomes a shared [`Buf`] by [`BufMut::freeze`].
pub struct BufMut {
    pages: Pages,
    len: usize,
}

impl BufMut {
    /// A buffer of `len` bytes, all zero, whose first byte lies on a 4 KiB boundary.
    ///
    /// # Panics
    /// If memory is exhausted: buffers are bounded by the limits of the queues that hold them (P7).
    pub fn zeroed(len: usize) -> Self {
        let mut buf = Self::for_overwriting(len);
        if buf.pages.0.len() == 1 {
            buf.pages.0[0].0.fill(0);
        }
        buf
    }

    /// A buffer of `len` bytes that are all to be overwritten: zeroes, or what another buffer held before.
    pub fn for_overwriting(len: usize) -> Self {
        let count = len.div_ceil(4096);
        let kept = if count == 1 { Pages::kept() } else { None };
        Self { pages: kept.unwrap_or_else(|| Pages::zeroed(count)), len }
    }

    /// A buffer that holds a copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Self {
        if (1..=4096).contains(&bytes.len()) {
            let mut buf = Self::for_overwriting(bytes.len());
            let page = buf.padded_mut();
            page[..bytes.len()].copy_from_slice(bytes);
            page[bytes.len()..].fill(0);
            return buf;
        }
        let mut pages: Vec<Page> = Vec::with_capacity(bytes.len().div_ceil(4096));
        let (whole, rest) = bytes.as_chunks::<4096>();
        // Without zeroing first what is overwritten at once.
        pages.extend(whole.iter().map(|page| Page(*page)));
        if !rest.is_empty() {
            let mut last = Page([0; 4096]);
            last.0[..rest.len()].copy_from_slice(rest);
            pages.push(last);
        }
        Self { pages: Pages(pages.into_boxed_slice()), len: bytes.len() }
    }

    /// The whole pages behind the buffer, of which `len` bytes count; direct I/O may read or write past the
    /// end of the data up to the page's end.
    pub fn padded_mut(&mut self) -> &mut [u8] {
        self.pages.0.as_mut_bytes()
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
        &self.pages.0.as_bytes()[..self.len]
    }
}

impl DerefMut for BufMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.pages.0.as_mut_bytes()[..self.len]
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
    pages: Arc<Pages>,
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
        &self.pages.0.as_bytes()[self.start..self.start + self.len]
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

    /// Whatever was in a page before, nothing of it is in the next buffer but where that is overwritten anyway; and few are kept.
    #[test]
    fn a_page_that_was_used_before_tells_nothing() {
        drop(BufMut::copy_of(&[7; 4096]));
        assert!(KEPT.with_borrow(Option::is_none), "a thread that did not ask for it keeps nothing");
        keep_pages();
        for len in [1, 512, 4096] {
            drop(BufMut::copy_of(&[7; 4096]));
            assert_eq!(BufMut::for_overwriting(len).padded_mut()[0], 7, "it is used again");
            assert!(BufMut::zeroed(len).padded_mut().iter().all(|b| *b == 0));
            drop(BufMut::copy_of(&[7; 4096]));
            let mut copy = BufMut::copy_of(&vec![1; len]);
            assert!(copy[..].iter().all(|b| *b == 1) && copy.padded_mut()[len..].iter().all(|b| *b == 0));
        }
        let many: Vec<BufMut> = (0..2 * KEPT_MAX).map(|_| BufMut::zeroed(4096)).collect();
        drop(many);
        assert_eq!(KEPT.with_borrow(|kept| kept.as_ref().map(Vec::len)), Some(KEPT_MAX));
    }
}
