//! Copies into mapped persistent memory that go past the CPU's caches.
//!
//! A non-temporal store leaves the caches by itself, so that a fence is all that a durable write needs on DAX, and a
//! log that is written once and rarely read does not push useful data out of the caches.

/// Copies `source` to `target`, which is aligned to 64 bytes, and leaves nothing of it in the caches.
type Copy = unsafe fn(source: &[u8], target: *mut u8);

/// The best way that this CPU knows to copy past its caches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stores {
    copy: Copy,
    /// Name of the instruction set, for measurements.
    pub(crate) name: &'static str,
}

/// Alignment that targets have, and the unit of lengths, in bytes: the widest store.
pub(crate) const STORE_ALIGN: usize = 64;

impl Stores {
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn detect() -> Self {
        if std::arch::is_x86_feature_detected!("avx512f") {
            return Self { copy: x86::copy_avx512, name: "avx512" };
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            return Self { copy: x86::copy_avx2, name: "avx2" };
        }
        Self { copy: x86::copy_sse2, name: "sse2" }
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn detect() -> Self {
        Self { copy: plain, name: "plain" }
    }

    /// Whether [`Stores::copy`] and [`fence`] together make data leave the CPU.
    pub(crate) const REACH_MEMORY: bool = cfg!(target_arch = "x86_64");

    /// Copies `source` to `target`. A [`fence`] must follow before anyone may be told that it is there.
    ///
    /// # Safety
    /// `target` must be valid for writes of `source.len()` bytes, be aligned to [`STORE_ALIGN`], and not overlap with
    /// `source`, whose length must be a multiple of [`STORE_ALIGN`].
    pub(crate) unsafe fn copy(&self, source: &[u8], target: *mut u8) {
        debug_assert!(source.len().is_multiple_of(STORE_ALIGN) && target.addr().is_multiple_of(STORE_ALIGN));
        // SAFETY: as the caller's; `detect` has seen that the CPU has the instructions.
        unsafe { (self.copy)(source, target) }
    }
}

/// Orders the stores before it ahead of everything after it.
pub(crate) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 CPU has SSE.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn plain(source: &[u8], target: *mut u8) {
    // SAFETY: as the caller's.
    unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), target, source.len()) }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m128i, __m256i, __m512i, _mm_loadu_si128, _mm_stream_si128, _mm256_loadu_si256,
        _mm256_stream_si256, _mm512_loadu_si512, _mm512_stream_si512,
    };

    macro_rules! copy_past_caches {
        ($name:ident, $feature:literal, $vector:ty, $load:ident, $stream:ident) => {
            /// # Safety
            /// As [`super::Stores::copy`], and the CPU has the instructions.
            #[target_feature(enable = $feature)]
            pub(super) unsafe fn $name(source: &[u8], target: *mut u8) {
                const WIDTH: usize = size_of::<$vector>();
                for (i, part) in source.chunks_exact(WIDTH).enumerate() {
                    // SAFETY: `part` is one vector long; the target is as long as the source and aligned (caller).
                    unsafe { $stream(target.add(i * WIDTH).cast(), $load(part.as_ptr().cast())) };
                }
            }
        };
    }

    copy_past_caches!(copy_sse2, "sse2", __m128i, _mm_loadu_si128, _mm_stream_si128);
    copy_past_caches!(copy_avx2, "avx2", __m256i, _mm256_loadu_si256, _mm256_stream_si256);
    copy_past_caches!(copy_avx512, "avx512f", __m512i, _mm512_loadu_si512, _mm512_stream_si512);
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_block::BufMut;

    #[test]
    fn every_width_copies_every_byte() {
        let source: Vec<u8> = (0..4096u32).map(|i| (i * 7 % 251) as u8).collect();
        #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut, reason = "only x86-64 has several"))]
        let mut all = vec![Stores::detect()];
        #[cfg(target_arch = "x86_64")]
        {
            all.push(Stores { copy: x86::copy_sse2, name: "sse2" });
            if std::arch::is_x86_feature_detected!("avx2") {
                all.push(Stores { copy: x86::copy_avx2, name: "avx2" });
            }
        }
        for stores in all {
            let mut target = BufMut::zeroed(8192);
            // SAFETY: the target is page-aligned and twice as long as the source.
            unsafe { stores.copy(&source[1..=4032], target.as_mut_ptr()) };
            fence();
            assert_eq!(target[..4032], source[1..=4032], "{}", stores.name);
            assert!(target[4032..].iter().all(|b| *b == 0), "{} wrote past the end", stores.name);
        }
    }
}
