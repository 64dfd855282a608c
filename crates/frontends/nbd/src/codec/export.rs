//! Messages that choose an export and describe it: `EXPORT_NAME`, `INFO`, `GO`, `LIST`.

use super::DecodeError;
use super::cursor::{Cursor, put_string, text};

/// Transmission flags of an export.
pub mod export_flag {
    /// Set by every server of this century.
    pub const HAS_FLAGS: u16 = 1;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// `FLUSH` is supported.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The FUA flag of commands is supported.
    pub const SEND_FUA: u16 = 1 << 3;
    /// `TRIM` is supported.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// `WRITE_ZEROES` is supported.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The "don't fragment" flag of reads is supported.
    pub const SEND_DF: u16 = 1 << 7;
    /// Several connections see one coherent volume.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// The fast-zero flag of `WRITE_ZEROES` is understood.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Kinds of information about an export.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// The canonical name.
    pub const NAME: u16 = 1;
    /// A description for a person.
    pub const DESCRIPTION: u16 = 2;
    /// Limits of the size of requests.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Data of the options `INFO` and `GO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportRequest<'a> {
    /// The export's name; empty means the default export.
    pub name: &'a str,
    /// The kinds of [`info`] asked for, two bytes each.
    kinds: &'a [u8],
}

impl<'a> ExportRequest<'a> {
    /// Appends a request for `name` that asks for `kinds`.
    pub fn encode(name: &str, kinds: &[u16], out: &mut Vec<u8>) {
        put_string(out, name);
        out.extend_from_slice(&(kinds.len() as u16).to_be_bytes());
        for kind in kinds {
            out.extend_from_slice(&kind.to_be_bytes());
        }
    }

    /// Reads a request.
    ///
    /// # Errors
    /// Lengths that do not fit together, or a name that is no valid string.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(bytes);
        let name = cursor.string()?;
        let count = cursor.u16()?;
        let kinds = cursor.bytes(usize::from(count) * 2)?;
        cursor.end()?;
        Ok(Self { name, kinds })
    }

    /// Whether information of `kind` is asked for.
    pub fn asks_for(&self, kind: u16) -> bool {
        self.kinds.chunks_exact(2).any(|k| k == kind.to_be_bytes())
    }
}

/// Sizes of requests in bytes that an export takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Offsets and lengths are multiples of this.
    pub minimum: u32,
    /// Requests of this size and alignment are efficient.
    pub preferred: u32,
    /// Longest payload of a read or write.
    pub maximum: u32,
}

/// One piece of information about an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Info<'a> {
    /// Size in bytes and bits of [`export_flag`].
    Export {
        /// Size in bytes.
        size: u64,
        /// Bits of [`export_flag`].
        flags: u16,
    },
    /// The canonical name.
    Name(&'a str),
    /// A description for a person.
    Description(&'a str),
    /// Limits of requests.
    BlockSize(BlockSizes),
}

impl<'a> Info<'a> {
    /// Appends the payload of an `INFO` answer.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Export { size, flags } => {
                out.extend_from_slice(&info::EXPORT.to_be_bytes());
                out.extend_from_slice(&size.to_be_bytes());
                out.extend_from_slice(&flags.to_be_bytes());
            }
            Self::Name(name) => {
                out.extend_from_slice(&info::NAME.to_be_bytes());
                out.extend_from_slice(name.as_bytes());
            }
            Self::Description(description) => {
                out.extend_from_slice(&info::DESCRIPTION.to_be_bytes());
                out.extend_from_slice(description.as_bytes());
            }
            Self::BlockSize(sizes) => {
                out.extend_from_slice(&info::BLOCK_SIZE.to_be_bytes());
                for size in [sizes.minimum, sizes.preferred, sizes.maximum] {
                    out.extend_from_slice(&size.to_be_bytes());
                }
            }
        }
    }

    /// Reads the payload of an `INFO` answer; `None` for a kind that a client must ignore.
    ///
    /// # Errors
    /// A known kind whose fields are malformed.
    pub fn decode(bytes: &'a [u8]) -> Result<Option<Self>, DecodeError> {
        let mut cursor = Cursor::new(bytes);
        let decoded = match cursor.u16()? {
            info::EXPORT => Self::Export { size: cursor.u64()?, flags: cursor.u16()? },
            info::NAME => return text(cursor.remainder()).map(|name| Some(Self::Name(name))),
            info::DESCRIPTION => return text(cursor.remainder()).map(|d| Some(Self::Description(d))),
            info::BLOCK_SIZE => Self::BlockSize(BlockSizes {
                minimum: cursor.u32()?,
                preferred: cursor.u32()?,
                maximum: cursor.u32()?,
            }),
            _ => return Ok(None),
        };
        cursor.end()?;
        Ok(Some(decoded))
    }
}

/// Answer to `EXPORT_NAME`, after which transmission starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportReply {
    /// Size in bytes.
    pub size: u64,
    /// Bits of [`export_flag`].
    pub flags: u16,
}

impl ExportReply {
    /// Length in bytes where both sides agreed on no zeroes.
    pub const BYTES: usize = 10;
    /// Zero bytes that follow otherwise.
    pub const ZEROES: usize = 124;

    /// Appends the answer.
    pub fn encode(&self, no_zeroes: bool, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.size.to_be_bytes());
        out.extend_from_slice(&self.flags.to_be_bytes());
        if !no_zeroes {
            out.extend_from_slice(&[0; Self::ZEROES]);
        }
    }

    /// Reads the answer without its zeroes.
    ///
    /// # Errors
    /// Wrong length.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(bytes);
        let reply = Self { size: cursor.u64()?, flags: cursor.u16()? };
        cursor.end()?;
        Ok(reply)
    }
}

/// One export in the answer to `LIST`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerEntry<'a> {
    /// The export's name.
    pub name: &'a str,
    /// A description for a person; may be empty.
    pub description: &'a str,
}

impl<'a> ServerEntry<'a> {
    /// Appends the payload of a `SERVER` answer.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_string(out, self.name);
        out.extend_from_slice(self.description.as_bytes());
    }

    /// Reads the payload of a `SERVER` answer.
    ///
    /// # Errors
    /// Truncated, or strings that are not valid.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(bytes);
        let name = cursor.string()?;
        Ok(Self { name, description: text(cursor.remainder())? })
    }
}
