//! Which part of the volume a request of the kernel means.

use forebay_block::SECTOR_BYTES;

/// A part of the volume made of whole sectors, and the bytes of it that were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadWindow {
    /// Byte offset in the volume, a multiple of 512.
    pub offset: u64,
    /// Bytes to read from there, a multiple of 512; 0 if nothing lies there.
    pub len: usize,
    /// Bytes to leave out at the window's start.
    pub skip: usize,
    /// Bytes to answer with.
    pub take: usize,
}

/// The sectors that hold the bytes `offset .. offset + len`, cut at the end of the volume, and at `request_bytes_max`
/// (a multiple of 512): an unaligned read of the greatest length is answered a little short, as any read may be.
pub(crate) fn read_window(offset: u64, len: usize, size_bytes: u64, request_bytes_max: usize) -> ReadWindow {
    let end = offset.saturating_add(len as u64).min(size_bytes);
    let start = offset - offset % SECTOR_BYTES;
    let skip = offset - start;
    if end <= offset {
        return ReadWindow { offset: start, len: 0, skip: 0, take: 0 };
    }
    let window = (end.next_multiple_of(SECTOR_BYTES) - start).min(request_bytes_max as u64);
    let take = (end - offset).min(window - skip);
    ReadWindow { offset: start, len: window as usize, skip: skip as usize, take: take as usize }
}

/// Why a request that changes data is not passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Not made of whole sectors (EINVAL).
    Unaligned,
    /// Begins at or after the end of the volume (ENOSPC).
    PastEnd,
}

/// Whether a range consists of whole sectors.
pub(crate) fn is_aligned(offset: u64, len: u64) -> bool {
    offset.is_multiple_of(SECTOR_BYTES) && len.is_multiple_of(SECTOR_BYTES)
}

/// How many bytes of a write at `offset` of `len` bytes lie within the volume.
pub(crate) fn write_len(offset: u64, len: usize, size_bytes: u64) -> Result<usize, Refusal> {
    match size_bytes.checked_sub(offset) {
        None | Some(0) if len > 0 => Err(Refusal::PastEnd),
        None => Ok(0),
        Some(room) => Ok(room.min(len as u64) as usize),
    }
}

/// How many bytes of a range to zero lie within the volume; whatever lies behind its end reads as nothing anyway.
pub(crate) fn zero_len(offset: u64, len: u64, size_bytes: u64) -> Result<u64, Refusal> {
    let end = offset.saturating_add(len).min(size_bytes);
    if !offset.is_multiple_of(SECTOR_BYTES) || !end.is_multiple_of(SECTOR_BYTES) {
        return Err(Refusal::Unaligned);
    }
    Ok(end.saturating_sub(offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 10 * 512;
    const MAX: usize = 4096;

    #[test]
    fn reads_of_any_shape_get_exactly_their_bytes() {
        let data: Vec<u8> = (0..SIZE).map(|i| (i % 251) as u8).collect();
        for offset in 0..SIZE + 600 {
            for len in [0, 1, 2, 511, 512, 513, 1024, 3000, 4096] {
                let w = read_window(offset, len, SIZE, MAX);
                assert!(w.offset.is_multiple_of(512) && w.len.is_multiple_of(512) && w.len <= MAX);
                assert!(w.len == 0 || w.offset + w.len as u64 <= SIZE);
                let wanted = data.get(offset as usize..).unwrap_or_default();
                let wanted = &wanted[..wanted.len().min(len)];
                assert!(wanted.len() - w.take < 512, "short by less than a sector");
                assert!(w.take == wanted.len() || w.len == MAX, "short only at the greatest length");
                let window =
                    if w.len == 0 { &[] } else { &data[w.offset as usize..w.offset as usize + w.len] };
                assert_eq!(&window[w.skip..w.skip + w.take], &wanted[..w.take]);
            }
        }
    }

    #[test]
    fn writes_end_at_the_end() {
        assert_eq!(write_len(0, 512, SIZE), Ok(512));
        assert_eq!(write_len(512, 4096, SIZE), Ok(4096));
        assert_eq!(write_len(SIZE - 512, 1024, SIZE), Ok(512));
        assert_eq!(write_len(SIZE, 512, SIZE), Err(Refusal::PastEnd));
        assert_eq!(write_len(SIZE + 512, 512, SIZE), Err(Refusal::PastEnd));
        assert_eq!(write_len(SIZE - 1, 100, SIZE), Ok(1));
        assert_eq!(write_len(SIZE, 0, SIZE), Ok(0));
    }

    #[test]
    fn zeroing_is_cut_at_the_end() {
        assert_eq!(zero_len(0, SIZE, SIZE), Ok(SIZE));
        assert_eq!(zero_len(512, u64::MAX - 512, SIZE), Ok(SIZE - 512));
        assert_eq!(zero_len(SIZE, 512, SIZE), Ok(0));
        assert_eq!(zero_len(SIZE + 1024, 512, SIZE), Ok(0));
        assert_eq!(zero_len(0, 100, SIZE), Err(Refusal::Unaligned));
        assert_eq!(zero_len(7, 512, SIZE), Err(Refusal::Unaligned));
    }
}
