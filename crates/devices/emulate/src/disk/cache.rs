//! The volatile write cache: extents that are not yet on the medium.

use std::collections::VecDeque;

/// Extents that the cache can tell apart; more writes wait, however small they are.
const EXTENTS_MAX: usize = 512;
/// An extent that is so long is not added to: a flush waits for extents as they were, and must not run after a writer
/// that goes on for ever.
const EXTENT_BYTES_MAX: u64 = 512 << 10;

/// A range of cached writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// Number of the oldest write in it.
    oldest: u64,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct WriteCache {
    room_bytes: u64,
    bytes: u64,
    /// By age, but for what is being written to the medium.
    extents: VecDeque<Extent>,
    /// What is being written to the medium.
    leaving: Option<Extent>,
    newest: u64,
}

impl WriteCache {
    pub(crate) fn new(room_bytes: u64) -> Self {
        Self { room_bytes, bytes: 0, extents: VecDeque::new(), leaving: None, newest: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.extents.is_empty() && self.leaving.is_none()
    }

    /// Whether more than half of it is in use.
    pub(crate) fn is_crowded(&self) -> bool {
        self.bytes > self.room_bytes / 2 || self.extents.len() > EXTENTS_MAX / 2
    }

    /// Whether a write is not longer than the whole cache.
    pub(crate) fn could_hold(&self, len: u64) -> bool {
        len <= self.room_bytes
    }

    /// Whether a range is in the cache.
    pub(crate) fn holds(&self, offset: u64, len: u64) -> bool {
        let all = self.extents.iter().chain(&self.leaving);
        all.into_iter().any(|e| e.offset <= offset && offset + len <= e.offset + e.len)
    }

    /// Takes a write, if there is room.
    pub(crate) fn insert(&mut self, offset: u64, len: u64) -> bool {
        let covers = |e: &&mut Extent| e.offset <= offset && offset + len <= e.offset + e.len;
        if len == 0 || self.extents.iter_mut().find(covers).is_some() {
            self.newest += 1;
            return true;
        }
        if self.bytes + len > self.room_bytes || self.extents.len() >= EXTENTS_MAX {
            return false;
        }
        self.newest += 1;
        self.bytes += len;
        let before = |e: &&mut Extent| e.offset + e.len == offset && e.len < EXTENT_BYTES_MAX;
        match self.extents.iter_mut().find(before) {
            Some(extent) => extent.len += len,
            None => self.extents.push_back(Extent { offset, len, oldest: self.newest }),
        }
        true
    }

    /// Number of the last write that was taken.
    pub(crate) fn newest(&self) -> u64 {
        self.newest
    }

    /// Number of the oldest write that is not on the medium.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.extents.iter().chain(&self.leaving).map(|e| e.oldest).min()
    }

    /// What could be written to the medium, oldest first.
    pub(crate) fn extents(&self) -> impl Iterator<Item = &Extent> {
        self.extents.iter()
    }

    /// Begins to write the first `len_max` bytes of an extent of [`WriteCache::extents`].
    pub(crate) fn take(&mut self, at: usize, len_max: u64) -> Option<Extent> {
        let extent = self.extents.get_mut(at)?;
        let mut taken = *extent;
        if extent.len > len_max {
            taken.len = len_max;
            extent.offset += len_max;
            extent.len -= len_max;
        } else {
            self.extents.remove(at);
        }
        self.leaving = Some(taken);
        Some(taken)
    }

    /// What was taken is on the medium.
    pub(crate) fn written(&mut self) {
        self.bytes -= self.leaving.take().map_or(0, |e| e.len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_that_go_on_become_one_extent_and_overwrites_none() {
        let mut cache = WriteCache::new(1 << 20);
        for i in 0..10 {
            assert!(cache.insert(i * 4096, 4096));
        }
        assert!(cache.insert(8192, 4096));
        assert_eq!(cache.extents().map(|e| (e.offset, e.len)).collect::<Vec<_>>(), [(0, 40960)]);
        assert!(cache.holds(4096, 8192) && !cache.holds(36864, 8192));
        assert_eq!((cache.newest(), cache.oldest()), (11, Some(1)));
    }

    #[test]
    fn room_comes_back_when_it_is_on_the_medium() {
        let mut cache = WriteCache::new(12288);
        assert!(cache.insert(0, 8192) && cache.insert(1 << 20, 4096) && cache.is_crowded());
        assert!(!cache.insert(1 << 21, 512));
        let first = cache.take(0, 4096).unwrap();
        assert_eq!((first.offset, first.len), (0, 4096));
        assert!(!cache.insert(1 << 21, 512) && cache.holds(0, 4096));
        cache.written();
        assert!(cache.insert(1 << 21, 512) && !cache.holds(0, 4096));
        assert_eq!(cache.oldest(), Some(1), "the rest of the first write");
        cache.take(0, 4096).unwrap();
        cache.written();
        assert_eq!(cache.oldest(), Some(2));
    }

    #[test]
    fn a_writer_that_goes_on_does_not_hold_up_a_flush() {
        let mut cache = WriteCache::new(8 << 20);
        let covers = (0..200).find_map(|i| {
            cache.insert(i * 4096, 4096);
            (i == 100).then(|| cache.newest())
        });
        for i in 201..1000 {
            cache.insert(i * 4096, 4096);
        }
        let mut taken = 0;
        while cache.oldest() <= covers {
            taken += cache.take(0, u64::MAX).unwrap().len;
            cache.written();
        }
        assert!(taken <= EXTENT_BYTES_MAX + 4096);
    }
}
