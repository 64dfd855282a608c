//! Checked reading of big-endian fields from bytes that a stranger sent.

use super::DecodeError;

/// The part of a message that is still to be read.
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next `len` bytes. Nothing is allocated, so a length that lies costs nothing.
    pub(super) fn bytes(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(*head)
    }

    pub(super) fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_be_bytes)
    }

    /// A string that its length precedes.
    pub(super) fn string(&mut self) -> Result<&'a str, DecodeError> {
        let len = self.u32()? as usize;
        text(self.bytes(len)?)
    }

    /// Everything that is left.
    pub(super) fn remainder(self) -> &'a [u8] {
        self.rest
    }

    /// Refuses a message that is longer than what it says.
    pub(super) const fn end(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() { Ok(()) } else { Err(DecodeError::Trailing) }
    }
}

/// The protocol's strings are UTF-8 of at most 4096 bytes.
pub(super) fn text(bytes: &[u8]) -> Result<&str, DecodeError> {
    if bytes.len() > super::STRING_BYTES_MAX {
        return Err(DecodeError::StringTooLong);
    }
    std::str::from_utf8(bytes).map_err(|_| DecodeError::NotUtf8)
}

/// Appends a string preceded by its length, which the caller keeps within [`super::STRING_BYTES_MAX`].
pub(super) fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u32).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}
