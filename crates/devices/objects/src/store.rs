//! What a vault asks of an object store, and what the store answers. Whoever carries requests out may do so in any order, and carries out
//! each at most as often as it is told to: the vault itself asks again after a failure.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

/// Most names that a page of a [`Request::List`] may have.
pub const PAGE_NAMES_MAX: usize = 1000;

/// One request to the store. Names are relative to the volume's prefix.
#[derive(Clone, PartialEq, Eq)]
pub enum Request {
    /// Make an object that does not exist yet (`If-None-Match: *`), wholly or not at all. Answer: [`Answer::Created`]. It must not be sent
    /// again by whoever carries it out: an answer that was lost is [`StoreError::Unknown`].
    Create {
        /// The object's name.
        name: String,
        /// Its bytes.
        bytes: Arc<Vec<u8>>,
    },
    /// Read a part of an object. Answer: [`Answer::Object`] with what there is of the range, which may end behind the object's end.
    Get {
        /// The object's name.
        name: String,
        /// First byte.
        from: u64,
        /// How many bytes, at least 1.
        len: u64,
    },
    /// The objects whose names begin with a prefix, in the order of the bytes of their names, one page. Answer: [`Answer::Page`].
    List {
        /// How their names begin.
        prefix: String,
        /// Only names behind this one; empty for all.
        after: String,
    },
    /// Delete an object; one that is not there counts as deleted. Answer: [`Answer::Deleted`].
    Delete {
        /// The object's name.
        name: String,
    },
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create { name, bytes } => write!(f, "create {name} of {} bytes", bytes.len()),
            Self::Get { name, from, len } => write!(f, "get {name} from {from}, {len} bytes"),
            Self::List { prefix, after } => write!(f, "list {prefix} after {after}"),
            Self::Delete { name } => write!(f, "delete {name}"),
        }
    }
}

impl Request {
    /// What kind of request it is, in one word.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Create { .. } => "create",
            Self::Get { .. } => "get",
            Self::List { .. } => "list",
            Self::Delete { .. } => "delete",
        }
    }

    /// The name or prefix that it is about.
    pub fn name(&self) -> &str {
        match self {
            Self::Create { name, .. } | Self::Get { name, .. } | Self::Delete { name } => name,
            Self::List { prefix, .. } => prefix,
        }
    }
}

/// What a store answers to a request that it has carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The object is there, by this request.
    Created,
    /// A part of an object.
    Object {
        /// The range that was asked for, as far as the object has it. No bytes where the range lies behind its end.
        bytes: Vec<u8>,
        /// Length of the whole object in bytes.
        size: u64,
    },
    /// A page of names.
    Page {
        /// The names, ascending, at most [`PAGE_NAMES_MAX`], relative to the volume's prefix.
        names: Vec<String>,
        /// Whether more follow.
        more: bool,
    },
    /// The object is not there any more.
    Deleted,
}

/// Why a store did not carry out a request, as far as is known.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StoreError {
    /// A create: an object of this name is there (412, or 409 where the store says that two creates met).
    #[error("the object is there already")]
    Exists,
    /// A get: no object of this name is there (404, `NoSuchKey`).
    #[error("no such object")]
    Missing,
    /// Whether it was carried out, or still will be, is not known: no answer in time, the connection broke, 500.
    #[error("no answer: {0}")]
    Unknown(String),
    /// It was not carried out, for now: 503, 429, no connection.
    #[error("refused for now: {0}")]
    Busy(String),
    /// It was not carried out, and will not be without somebody's help: another 4xx.
    #[error("refused: {0}")]
    Refused(String),
    /// There is no such bucket.
    #[error("the bucket does not exist: {0}")]
    NoBucket(String),
    /// These credentials may not do this (401, 403).
    #[error("permission denied: {0}")]
    Denied(String),
    /// The store has no room, or a quota is used up.
    #[error("no room: {0}")]
    Full(String),
}

impl StoreError {
    /// Whether it may pass by itself.
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Unknown(_) | Self::Busy(_))
    }
}
