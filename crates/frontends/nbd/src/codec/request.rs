//! Requests of the transmission phase.

use super::DecodeError;
use super::cursor::Cursor;

const REQUEST_MAGIC: u32 = 0x2560_9513;

/// Numbers of the commands.
pub mod command {
    /// Read data.
    pub const READ: u16 = 0;
    /// Write the data that follows the request.
    pub const WRITE: u16 = 1;
    /// Finish what is under way and close; is not answered.
    pub const DISC: u16 = 2;
    /// Make every acknowledged write durable.
    pub const FLUSH: u16 = 3;
    /// The range's content is no longer needed.
    pub const TRIM: u16 = 4;
    /// Load the range into a cache.
    pub const CACHE: u16 = 5;
    /// Make the range read as zeroes.
    pub const WRITE_ZEROES: u16 = 6;
    /// Ask how the range is allocated.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of commands.
pub mod command_flag {
    /// Durable before it is answered.
    pub const FUA: u16 = 1;
    /// `WRITE_ZEROES` must not give back space.
    pub const NO_HOLE: u16 = 1 << 1;
    /// A read must be answered by one chunk.
    pub const DF: u16 = 1 << 2;
    /// `BLOCK_STATUS` wants one extent only.
    pub const REQ_ONE: u16 = 1 << 3;
    /// `WRITE_ZEROES` must fail if it would be as slow as writing.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// A request; the data of a write follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Bits of [`command_flag`].
    pub flags: u16,
    /// One of [`command`], or something unknown.
    pub command: u16,
    /// Chosen by the client; the reply repeats it.
    pub cookie: u64,
    /// Byte offset in the export.
    pub offset: u64,
    /// Bytes concerned.
    pub len: u32,
}

impl Request {
    /// Length in bytes.
    pub const BYTES: usize = 28;

    /// The request's bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&REQUEST_MAGIC.to_be_bytes());
        out.extend_from_slice(&self.flags.to_be_bytes());
        out.extend_from_slice(&self.command.to_be_bytes());
        out.extend_from_slice(&self.cookie.to_be_bytes());
        out.extend_from_slice(&self.offset.to_be_bytes());
        out.extend_from_slice(&self.len.to_be_bytes());
    }

    /// Reads a request.
    ///
    /// # Errors
    /// Truncated, or another magic number: the stream cannot be followed any further.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(bytes);
        let magic = cursor.u32()?;
        if magic != REQUEST_MAGIC {
            return Err(DecodeError::Magic(u64::from(magic)));
        }
        let request = Self {
            flags: cursor.u16()?,
            command: cursor.u16()?,
            cookie: cursor.u64()?,
            offset: cursor.u64()?,
            len: cursor.u32()?,
        };
        cursor.end()?;
        Ok(request)
    }

    /// Whether all bits of `flag` are set.
    pub const fn has(&self, flag: u16) -> bool {
        self.flags & flag == flag
    }
}
