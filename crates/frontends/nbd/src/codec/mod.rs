//! The bytes of the NBD protocol, for both sides and without I/O.
//!
//! Fixed newstyle negotiation and transmission with simple and structured replies, as the protocol's public text
//! describes them (`doc/proto.md` of the NetworkBlockDevice project). Every message has an encoder and a decoder, so
//! that the server, a client and a fuzzer share one reading of the protocol. Decoders take bytes that a stranger
//! sent: they never panic and allocate nothing in proportion to a length that a message only claims.

mod context;
mod cursor;
mod error;
mod export;
mod greeting;
mod options;
mod reply;
mod request;

pub use context::{BASE_ALLOCATION, BASE_ALLOCATION_ID, ContextReply, ContextRequest};
pub use error::NbdError;
pub use export::{BlockSizes, ExportReply, ExportRequest, Info, ServerEntry, export_flag, info};
pub use greeting::{ClientFlags, Greeting, handshake_flag};
pub use options::{OptionHeader, OptionReplyHeader, option, option_reply};
pub use reply::{
    ChunkHeader, ChunkPayload, Extent, ReplyHeader, SimpleReply, allocation_flag, chunk, chunk_flag,
};
pub use request::{Request, command, command_flag};

use thiserror::Error;

/// Longest string that the protocol allows, in bytes.
pub const STRING_BYTES_MAX: usize = 4096;

/// Why bytes are not the message that they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The message ends before its last field.
    #[error("message is shorter than its fields")]
    Truncated,
    /// Bytes follow the last field.
    #[error("message is longer than its fields")]
    Trailing,
    /// The message does not start with its magic number.
    #[error("bad magic number {0:#x}")]
    Magic(u64),
    /// A string is longer than [`STRING_BYTES_MAX`].
    #[error("string is longer than 4096 bytes")]
    StringTooLong,
    /// A string is not UTF-8.
    #[error("string is not UTF-8")]
    NotUtf8,
    /// A field has a value that the protocol does not define.
    #[error("unknown value {0} in the message")]
    UnknownValue(u32),
}
