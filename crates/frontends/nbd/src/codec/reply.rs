//! Replies of the transmission phase: simple ones, and structured ones made of chunks.

use super::cursor::{Cursor, text};
use super::{DecodeError, NbdError};

const SIMPLE_MAGIC: u32 = 0x6744_6698;
const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Flags of a chunk.
pub mod chunk_flag {
    /// The last chunk of its reply.
    pub const DONE: u16 = 1;
}

/// Kinds of chunks; those from 2^15 on are errors.
pub mod chunk {
    /// Nothing but the end of a reply.
    pub const NONE: u16 = 0;
    /// Data of a read.
    pub const OFFSET_DATA: u16 = 1;
    /// Zeroes of a read.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents of one metadata context.
    pub const BLOCK_STATUS: u16 = 5;
    /// The request failed.
    pub const ERROR: u16 = 0x8001;
    /// The request failed at an offset.
    pub const ERROR_OFFSET: u16 = 0x8002;
}

/// Bits of an extent of `base:allocation`.
pub mod allocation_flag {
    /// Not allocated.
    pub const HOLE: u32 = 1;
    /// Reads as zeroes.
    pub const ZERO: u32 = 2;
}

/// A simple reply; the data of a successful read follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimpleReply {
    /// How it went.
    pub error: NbdError,
    /// The request's cookie.
    pub cookie: u64,
}

impl SimpleReply {
    /// Length in bytes.
    pub const BYTES: usize = 16;

    /// Appends the reply.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&SIMPLE_MAGIC.to_be_bytes());
        out.extend_from_slice(&self.error.0.to_be_bytes());
        out.extend_from_slice(&self.cookie.to_be_bytes());
    }
}

/// What precedes the payload of each chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHeader {
    /// Bits of [`chunk_flag`].
    pub flags: u16,
    /// One of [`chunk`].
    pub kind: u16,
    /// The request's cookie.
    pub cookie: u64,
    /// Bytes of payload that follow.
    pub len: u32,
}

impl ChunkHeader {
    /// Length in bytes.
    pub const BYTES: usize = 20;

    /// Appends the header.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&CHUNK_MAGIC.to_be_bytes());
        out.extend_from_slice(&self.flags.to_be_bytes());
        out.extend_from_slice(&self.kind.to_be_bytes());
        out.extend_from_slice(&self.cookie.to_be_bytes());
        out.extend_from_slice(&self.len.to_be_bytes());
    }
}

/// The head of either kind of reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyHeader {
    /// A simple reply.
    Simple(SimpleReply),
    /// A chunk of a structured reply.
    Chunk(ChunkHeader),
}

impl ReplyHeader {
    /// Bytes from which [`ReplyHeader::needed`] knows the kind.
    pub const MAGIC_BYTES: usize = 4;

    /// Length of the head that starts with `magic`.
    ///
    /// # Errors
    /// Another magic number, or fewer than four bytes.
    pub fn needed(magic: &[u8]) -> Result<usize, DecodeError> {
        match Cursor::new(magic).u32()? {
            SIMPLE_MAGIC => Ok(SimpleReply::BYTES),
            CHUNK_MAGIC => Ok(ChunkHeader::BYTES),
            other => Err(DecodeError::Magic(u64::from(other))),
        }
    }

    /// Reads a head.
    ///
    /// # Errors
    /// Truncated, or another magic number.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(bytes);
        let header = match cursor.u32()? {
            SIMPLE_MAGIC => {
                Self::Simple(SimpleReply { error: NbdError(cursor.u32()?), cookie: cursor.u64()? })
            }
            CHUNK_MAGIC => Self::Chunk(ChunkHeader {
                flags: cursor.u16()?,
                kind: cursor.u16()?,
                cookie: cursor.u64()?,
                len: cursor.u32()?,
            }),
            other => return Err(DecodeError::Magic(u64::from(other))),
        };
        cursor.end()?;
        Ok(header)
    }
}

/// One extent of a block status chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes.
    pub len: u32,
    /// Bits of [`allocation_flag`].
    pub flags: u32,
}

/// The payload of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkPayload<'a> {
    /// Nothing.
    None,
    /// Data from `offset` on.
    Data {
        /// Byte offset in the export.
        offset: u64,
        /// The data.
        data: &'a [u8],
    },
    /// `len` zero bytes from `offset` on.
    Hole {
        /// Byte offset in the export.
        offset: u64,
        /// Number of zero bytes.
        len: u32,
    },
    /// Extents of the context `id`, eight bytes each; see [`ChunkPayload::extents`].
    Status {
        /// The context's number.
        id: u32,
        /// The encoded extents.
        extents: &'a [u8],
    },
    /// The request failed.
    Error {
        /// How.
        error: NbdError,
        /// A message for a person.
        message: &'a str,
        /// Where, if known.
        offset: Option<u64>,
    },
}

impl<'a> ChunkPayload<'a> {
    /// Bytes of an `OFFSET_DATA` chunk before its data.
    pub const DATA_OFFSET_BYTES: usize = 8;

    /// Appends the payload of an `ERROR` chunk. The message is cut to what its length field can say.
    pub fn encode_error(error: NbdError, message: &str, out: &mut Vec<u8>) {
        let message = &message[..message.floor_char_boundary(super::STRING_BYTES_MAX)];
        out.extend_from_slice(&error.0.to_be_bytes());
        out.extend_from_slice(&(message.len() as u16).to_be_bytes());
        out.extend_from_slice(message.as_bytes());
    }

    /// Appends the payload of a `BLOCK_STATUS` chunk.
    pub fn encode_status(id: u32, extents: &[Extent], out: &mut Vec<u8>) {
        out.extend_from_slice(&id.to_be_bytes());
        for extent in extents {
            out.extend_from_slice(&extent.len.to_be_bytes());
            out.extend_from_slice(&extent.flags.to_be_bytes());
        }
    }

    /// Reads the payload of a chunk of `kind`.
    ///
    /// # Errors
    /// A kind that is unknown and no error, or malformed fields.
    pub fn decode(kind: u16, bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(bytes);
        match kind {
            chunk::NONE => cursor.end().map(|()| Self::None),
            chunk::OFFSET_DATA => Ok(Self::Data { offset: cursor.u64()?, data: cursor.remainder() }),
            chunk::OFFSET_HOLE => {
                let hole = Self::Hole { offset: cursor.u64()?, len: cursor.u32()? };
                cursor.end().map(|()| hole)
            }
            chunk::BLOCK_STATUS => {
                let id = cursor.u32()?;
                let extents = cursor.remainder();
                if extents.is_empty() || !extents.len().is_multiple_of(8) {
                    return Err(DecodeError::Truncated);
                }
                Ok(Self::Status { id, extents })
            }
            kind if kind & 0x8000 != 0 => {
                let error = NbdError(cursor.u32()?);
                let len = usize::from(cursor.u16()?);
                let message = text(cursor.bytes(len)?)?;
                let offset = if kind == chunk::ERROR_OFFSET { Some(cursor.u64()?) } else { None };
                Ok(Self::Error { error, message, offset })
            }
            other => Err(DecodeError::UnknownValue(u32::from(other))),
        }
    }

    /// The extents of a status payload's bytes.
    pub fn extents(bytes: &[u8]) -> impl Iterator<Item = Extent> {
        let mut cursor = Cursor::new(bytes);
        std::iter::from_fn(move || Some(Extent { len: cursor.u32().ok()?, flags: cursor.u32().ok()? }))
    }
}
