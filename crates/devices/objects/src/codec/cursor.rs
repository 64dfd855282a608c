//! Reading and appending little-endian fields.

use super::Damage;

/// Reads fields from the front of a slice; running out is [`Damage::Truncated`], never a panic.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(super) fn bytes(&mut self, n: usize) -> Result<&'a [u8], Damage> {
        let (head, rest) = self.rest.split_at_checked(n).ok_or(Damage::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Damage> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(Damage::Truncated)?;
        self.rest = rest;
        Ok(*head)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Damage> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Damage> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Damage> {
        self.array().map(u64::from_le_bytes)
    }

    /// A number that counts: no volume lives to see [`COUNTER_MAX`], and adding to it is safe.
    pub(super) fn counter(&mut self, field: &'static str) -> Result<u64, Damage> {
        self.u64().and_then(|n| if n <= COUNTER_MAX { Ok(n) } else { Err(Damage::Field(field)) })
    }

    /// So many bytes of text.
    pub(super) fn text(&mut self, n: usize, field: &'static str) -> Result<String, Damage> {
        String::from_utf8(self.bytes(n)?.to_vec()).map_err(|_| Damage::Field(field))
    }

    pub(super) const fn left(&self) -> usize {
        self.rest.len()
    }

    /// Whatever is left must be nothing.
    pub(super) fn end(&self) -> Result<(), Damage> {
        if self.rest.is_empty() { Ok(()) } else { Err(Damage::Field("length of the table")) }
    }
}

/// Largest epoch, sequence number and time that are read.
pub(crate) const COUNTER_MAX: u64 = u64::MAX >> 1;

pub(super) fn put_u16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_le_bytes());
}

pub(super) fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

pub(super) fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}
