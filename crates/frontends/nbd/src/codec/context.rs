//! Metadata contexts, by which a client asks for block status.

use super::DecodeError;
use super::cursor::{Cursor, put_string, text};

/// The context that tells data from holes.
pub const BASE_ALLOCATION: &str = "base:allocation";

/// The number by which this server's block status answers name [`BASE_ALLOCATION`].
pub const BASE_ALLOCATION_ID: u32 = 1;

/// Data of the options `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextRequest<'a> {
    /// The export that the contexts belong to.
    pub export: &'a str,
    /// Number of queries.
    pub query_count: u32,
    queries: &'a [u8],
}

impl<'a> ContextRequest<'a> {
    /// Appends a request about `export`.
    pub fn encode(export: &str, queries: &[&str], out: &mut Vec<u8>) {
        put_string(out, export);
        out.extend_from_slice(&(queries.len() as u32).to_be_bytes());
        for query in queries {
            put_string(out, query);
        }
    }

    /// Reads a request and checks all of it.
    ///
    /// # Errors
    /// Lengths that do not fit together, or strings that are not valid.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(bytes);
        let export = cursor.string()?;
        let query_count = cursor.u32()?;
        let queries = cursor.remainder();
        let mut check = Cursor::new(queries);
        for _ in 0..query_count {
            check.string()?;
        }
        check.end()?;
        Ok(Self { export, query_count, queries })
    }

    /// The queries, in order.
    pub fn queries(&self) -> impl Iterator<Item = &'a str> {
        let mut cursor = Cursor::new(self.queries);
        (0..self.query_count).map_while(move |_| cursor.string().ok())
    }
}

/// One context in an answer to [`ContextRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextReply<'a> {
    /// Number that block status answers will carry.
    pub id: u32,
    /// The context's name.
    pub name: &'a str,
}

impl<'a> ContextReply<'a> {
    /// Appends the payload of a `META_CONTEXT` answer.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id.to_be_bytes());
        out.extend_from_slice(self.name.as_bytes());
    }

    /// Reads the payload of a `META_CONTEXT` answer.
    ///
    /// # Errors
    /// Truncated, or a name that is no valid string.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(bytes);
        let id = cursor.u32()?;
        Ok(Self { id, name: text(cursor.remainder())? })
    }
}
