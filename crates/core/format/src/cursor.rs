//! Reading and writing little-endian fields one after the other.

use forebay_block::SECTOR_BYTES;

use crate::{COUNTER_MAX, FormatError, VOLUME_BYTES_MAX};

/// Reads fields from the front of a slice; running out is [`FormatError::Truncated`], never a panic.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn bytes(&mut self, n: usize) -> Result<&'a [u8], FormatError> {
        let (head, rest) = self.rest.split_at_checked(n).ok_or(FormatError::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(FormatError::Truncated)?;
        self.rest = rest;
        Ok(*head)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, FormatError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, FormatError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, FormatError> {
        self.array().map(u64::from_le_bytes)
    }

    /// A number that grows by one: larger ones than [`COUNTER_MAX`] were never reached, and adding to them is safe.
    pub(crate) fn counter(&mut self, field: &'static str) -> Result<u64, FormatError> {
        self.u64().and_then(|v| counter(v, field))
    }

    /// The size of a volume: whole sectors, and no more than can be had.
    pub(crate) fn volume_bytes(&mut self) -> Result<u64, FormatError> {
        let fits = |bytes: &u64| *bytes <= VOLUME_BYTES_MAX && bytes.is_multiple_of(SECTOR_BYTES);
        Some(self.u64()?).filter(fits).ok_or(FormatError::Field("volume_bytes"))
    }
}

/// The value of a field that counts, see [`Reader::counter`].
pub(crate) fn counter(value: u64, field: &'static str) -> Result<u64, FormatError> {
    if value <= COUNTER_MAX { Ok(value) } else { Err(FormatError::Field(field)) }
}

/// Appends fields to a buffer of fixed size, which the caller made large enough.
pub(crate) struct Writer<'a> {
    buf: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(buf: &'a mut [u8]) -> Self {
        Self { buf, at: 0 }
    }

    /// # Panics
    /// If the buffer is too small: sizes are computed before they are written.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.buf[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    pub(crate) fn u16(&mut self, v: u16) {
        self.bytes(&v.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, v: u32) {
        self.bytes(&v.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, v: u64) {
        self.bytes(&v.to_le_bytes());
    }

    pub(crate) fn skip(&mut self, n: usize) {
        self.at += n;
    }
}

/// A text field of `N` bytes: UTF-8, cut at a character's boundary, padded with zeroes.
pub(crate) fn text_field<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [0; N];
    let mut end = text.len().min(N);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    field[..end].copy_from_slice(&text.as_bytes()[..end]);
    field
}

/// The text of a field written by [`text_field`].
pub(crate) fn text_of(field: &[u8]) -> String {
    let end = field.iter().position(|b| *b == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_little_endian_one_after_the_other_and_run_out() {
        let mut buf = [0xEE; 24];
        let mut w = Writer::new(&mut buf);
        w.u16(0x0201);
        w.u32(0x0605_0403);
        w.skip(1);
        w.u64(0x0F0E_0D0C_0B0A_0908);
        w.bytes(b"text");
        assert_eq!(buf[..6], [1, 2, 3, 4, 5, 6]);
        assert_eq!(buf[6..], [&[0xEE][..], &[8, 9, 10, 11, 12, 13, 14, 15], b"text", &[0xEE; 5]].concat());
        let mut r = Reader::new(&buf);
        assert_eq!((r.u16(), r.u32(), r.bytes(1)), (Ok(0x0201), Ok(0x0605_0403), Ok(&[0xEE][..])));
        assert_eq!((r.u64(), r.array()), (Ok(0x0F0E_0D0C_0B0A_0908), Ok(*b"text")));
        assert_eq!((r.u64(), r.bytes(6)), (Err(FormatError::Truncated), Err(FormatError::Truncated)));
        assert_eq!((r.bytes(5), r.bytes(0)), (Ok(&[0xEE; 5][..]), Ok(&[][..])));
    }

    #[test]
    fn numbers_have_their_limits() {
        let counter = |n: u64| Reader::new(&n.to_le_bytes()).counter("seq");
        assert_eq!(counter(COUNTER_MAX), Ok(COUNTER_MAX));
        assert_eq!(counter(COUNTER_MAX + 1), Err(FormatError::Field("seq")));
        let volume = |n: u64| Reader::new(&n.to_le_bytes()).volume_bytes();
        assert_eq!([0, 512, VOLUME_BYTES_MAX].map(volume), [0, 512, VOLUME_BYTES_MAX].map(Ok));
        for wrong in [1, 511, 513, VOLUME_BYTES_MAX + 512, u64::MAX] {
            assert_eq!(volume(wrong), Err(FormatError::Field("volume_bytes")), "{wrong}");
        }
    }

    #[test]
    fn texts_are_cut_at_a_character_and_padded() {
        assert_eq!(text_field::<4>("ab"), *b"ab\0\0");
        assert_eq!(text_field::<4>("abcde"), *b"abcd");
        assert_eq!(text_field::<4>("abc\u{20ac}"), *b"abc\0");
        for text in ["", "ab", "abcd"] {
            assert_eq!(text_of(&text_field::<4>(text)), text);
        }
    }
}
