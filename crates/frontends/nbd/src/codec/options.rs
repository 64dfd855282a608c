//! Options of the negotiation and the headers of their answers.

use super::DecodeError;
use super::cursor::Cursor;
use super::greeting::IHAVEOPT;

const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

/// Numbers of the options.
pub mod option {
    /// Choose an export and start transmission; has no way to report an error.
    pub const EXPORT_NAME: u32 = 1;
    /// End the negotiation.
    pub const ABORT: u32 = 2;
    /// Ask for the names of all exports.
    pub const LIST: u32 = 3;
    /// Continue under TLS.
    pub const STARTTLS: u32 = 5;
    /// Ask about an export.
    pub const INFO: u32 = 6;
    /// Choose an export and start transmission.
    pub const GO: u32 = 7;
    /// Ask for structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Ask which metadata contexts there are.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose the metadata contexts of block status.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Kinds of answers to an option; those from 2^31 on are errors, whose payload is a message for a person.
pub mod option_reply {
    /// The option took effect, or its last answer has been sent.
    pub const ACK: u32 = 1;
    /// One export, answer to `LIST`.
    pub const SERVER: u32 = 2;
    /// One piece of information about an export.
    pub const INFO: u32 = 3;
    /// One metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// The server does not know the option.
    pub const ERR_UNSUP: u32 = 0x8000_0001;
    /// The server's settings forbid the option.
    pub const ERR_POLICY: u32 = 0x8000_0002;
    /// The option is malformed or comes at the wrong time.
    pub const ERR_INVALID: u32 = 0x8000_0003;
    /// The server demands TLS first.
    pub const ERR_TLS_REQD: u32 = 0x8000_0005;
    /// There is no such export.
    pub const ERR_UNKNOWN: u32 = 0x8000_0006;
    /// The server is stopping.
    pub const ERR_SHUTDOWN: u32 = 0x8000_0007;
    /// The option is longer than the server takes.
    pub const ERR_TOO_BIG: u32 = 0x8000_0009;
}

/// What precedes each option's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    /// One of [`option`], or something unknown.
    pub option: u32,
    /// Bytes of data that follow.
    pub len: u32,
}

impl OptionHeader {
    /// Length in bytes.
    pub const BYTES: usize = 16;

    /// Appends the header.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&IHAVEOPT.to_be_bytes());
        out.extend_from_slice(&self.option.to_be_bytes());
        out.extend_from_slice(&self.len.to_be_bytes());
    }

    /// Reads a header.
    ///
    /// # Errors
    /// Truncated, or another magic number: the stream cannot be followed any further.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(bytes);
        let magic = cursor.u64()?;
        if magic != IHAVEOPT {
            return Err(DecodeError::Magic(magic));
        }
        let header = Self { option: cursor.u32()?, len: cursor.u32()? };
        cursor.end()?;
        Ok(header)
    }
}

/// What precedes the data of each answer to an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionReplyHeader {
    /// The option that is answered.
    pub option: u32,
    /// One of [`option_reply`].
    pub kind: u32,
    /// Bytes of data that follow.
    pub len: u32,
}

impl OptionReplyHeader {
    /// Length in bytes.
    pub const BYTES: usize = 20;

    /// Appends the header.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
        out.extend_from_slice(&self.option.to_be_bytes());
        out.extend_from_slice(&self.kind.to_be_bytes());
        out.extend_from_slice(&self.len.to_be_bytes());
    }

    /// Reads a header.
    ///
    /// # Errors
    /// Truncated, or another magic number.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(bytes);
        let magic = cursor.u64()?;
        if magic != OPTION_REPLY_MAGIC {
            return Err(DecodeError::Magic(magic));
        }
        let header = Self { option: cursor.u32()?, kind: cursor.u32()?, len: cursor.u32()? };
        cursor.end()?;
        Ok(header)
    }

    /// Whether the answer is an error.
    pub const fn is_error(&self) -> bool {
        self.kind & 0x8000_0000 != 0
    }
}
