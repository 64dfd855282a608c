//! The block service: what every frontend offers and every volume provides.

use std::ops::Range;
use std::sync::Arc;

use crate::{Buf, ErrorKind, Feed, Gate, IoError, SECTOR_BYTES};

/// A request to a volume. Offsets and lengths are bytes and multiples of 512.
#[derive(Clone, Debug)]
pub enum Op {
    /// Read `len` bytes at `offset`.
    Read {
        /// Byte offset in the volume.
        offset: u64,
        /// Bytes to read.
        len: usize,
    },
    /// Write `data` at `offset`.
    Write {
        /// Byte offset in the volume.
        offset: u64,
        /// The data.
        data: Buf,
        /// Force unit access: durable before it is acknowledged, in every durability mode.
        fua: bool,
    },
    /// Everything acknowledged before this is durable once this is acknowledged.
    Flush,
    /// Make the range read as zeroes; `unmap` allows giving back its space (a discard is this with `unmap`: a
    /// discarded range reads as zeroes, so that no older version can come back, hazard 8).
    Zero {
        /// Byte offset in the volume.
        offset: u64,
        /// Bytes to zero; may be as long as the volume.
        len: u64,
        /// Whether the backing may give back the space.
        unmap: bool,
        /// Durable before it is acknowledged.
        fua: bool,
    },
    /// Which parts of the range are allocated. Background work: it gives way to reads and writes, unless its origin says that somebody waits.
    Status {
        /// Byte offset in the volume.
        offset: u64,
        /// Bytes asked about.
        len: u64,
        /// Extents that the asker has a use for, from 1; the volume's own limit is [`STATUS_EXTENTS_MAX`].
        extents_max: usize,
    },
}

/// Extents in one answer to [`Op::Status`] at most (P7).
pub const STATUS_EXTENTS_MAX: usize = 1024;

/// What is known about who issued a request and why. Hints may be wrong: they change speed, never data (P8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The issuer waits for it (`REQ_SYNC`, or a frontend that cannot tell and says so by leaving it false).
    pub sync: bool,
    /// What kind of data it carries.
    pub content: Content,
    /// Whether a request of an application waits for it, and how that is known.
    pub criticality: Criticality,
    /// Linux I/O priority as `ioprio_set(2)` encodes it; 0 if unknown.
    pub ioprio: u16,
    /// Process or thread that issued it; 0 if unknown.
    pub pid: u32,
    /// The connection that it came by: a volume takes from its connections in turns. All that name none, with 0, share one.
    pub lane: u64,
}

impl Origin {
    /// Whether the issuer of a write waits for it; `fua`: force unit access was asked for.
    pub const fn is_sync(&self, fua: bool) -> bool {
        self.sync || fua
    }

    /// Whether a request of an application is known to wait for a write; `fua` as above.
    pub const fn is_awaited(&self, fua: bool) -> bool {
        self.criticality.is_awaited(self.is_sync(fua))
    }
}

/// What kind of data a write carries, as far as it is known. Reports tell of it; nothing is decided by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Content {
    /// Nothing more is known of it.
    #[default]
    Data,
    /// A database's data.
    Database,
    /// The log of a database or the like.
    Log,
    /// The file system's journal.
    Journal,
    /// Other metadata of the file system (`REQ_META`).
    Metadata,
}

impl Content {
    /// All of them.
    pub const ALL: &[Self] = &[Self::Data, Self::Database, Self::Log, Self::Journal, Self::Metadata];

    /// The spelling in texts and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Database => "database",
            Self::Log => "log",
            Self::Journal => "journal",
            Self::Metadata => "metadata",
        }
    }
}

/// Whether a request of an application waits for a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Criticality {
    /// Nobody is known to wait for it.
    #[default]
    None,
    /// Its issuer works for a request.
    Direct,
    /// Its issuer holds something that a critical task waits for.
    Inherited,
    /// A critical task came to wait for the write itself after it was issued.
    Awaited,
    /// Its issuer works for a request, but has used up what it is allowed.
    Capped,
}

impl Op {
    /// Which bytes of the volume it changes, if any.
    pub fn changes(&self) -> Option<Range<u64>> {
        match self {
            Self::Write { offset, data, .. } => Some(*offset..offset.saturating_add(data.len() as u64)),
            Self::Zero { offset, len, .. } => Some(*offset..offset.saturating_add(*len)),
            Self::Read { .. } | Self::Flush | Self::Status { .. } => None,
        }
    }
}

impl Criticality {
    /// All of them.
    pub const ALL: &[Self] = &[Self::None, Self::Direct, Self::Inherited, Self::Awaited, Self::Capped];

    /// The spelling in texts.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Direct => "direct",
            Self::Inherited => "inherited",
            Self::Awaited => "awaited",
            Self::Capped => "capped",
        }
    }

    /// Whether a request of an application is known to wait for a write. An asynchronous one of a critical task keeps nobody waiting because
    /// of who issued it, but once somebody comes to wait for it (ATC'15, section 5).
    pub const fn is_awaited(self, sync: bool) -> bool {
        match self {
            Self::None | Self::Capped => false,
            Self::Direct | Self::Inherited => sync,
            Self::Awaited => true,
        }
    }
}

/// Answer to an [`Op`].
#[derive(Clone, Debug)]
pub enum Reply {
    /// A write, flush or zero is done.
    Done,
    /// The data of a read, exactly as long as asked for.
    Data(Buf),
    /// Answer to [`Op::Status`]: consecutive extents from the offset asked for, none of them empty, at most as many as asked for. They cover the range
    /// asked for, or its first part: the asker goes on behind it. Of a range that is not empty they cover at least one sector.
    Status(Vec<StatusExtent>),
}

/// A part of a volume and how it is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusExtent {
    /// Length in bytes.
    pub len: u64,
    /// How the part is allocated.
    pub allocation: Allocation,
}

/// How a part of a volume is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// Holds data, or nothing better is known.
    Data,
    /// Unallocated; reads as zeroes.
    Hole,
}

/// What a frontend needs to know of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Name, as exported.
    pub name: String,
    /// Size in bytes, a multiple of 512.
    pub size_bytes: u64,
    /// Writes are refused.
    pub read_only: bool,
    /// Longest read or write in bytes that the volume takes in one request.
    pub request_bytes_max: usize,
    /// Logical block in bytes, which block devices made of the volume have: a power of two from 512 to 4096. Only told to clients;
    /// requests may be any multiple of 512 all the same.
    pub logical_block: u32,
}

/// Called once with the outcome, on a thread of the volume: it must not block.
pub type Completion = Box<dyn FnOnce(Result<Reply, IoError>) + Send>;

/// A request that was not taken.
pub type Refused = (Op, Completion);

/// The one interface between frontends and volumes.
///
/// Requests may complete in any order. A request that starts after another was acknowledged sees its effect (P2).
pub trait BlockService: Send + Sync {
    /// Name, size and limits of the volume.
    fn info(&self) -> VolumeInfo;

    /// Starts a request. May block the caller while the volume's request queue is full (P7), which is how a slow
    /// volume slows its clients; `done` is called exactly once, also on error or shutdown.
    fn submit(&self, op: Op, origin: Origin, done: Completion);

    /// As [`BlockService::submit`], but gives back what would have to wait. For a [`Feed`], on the volume's own thread.
    ///
    /// # Errors
    /// The request, untouched, which [`BlockService::submit`] takes on another thread.
    fn try_submit(&self, op: Op, origin: Origin, done: Completion) -> Result<(), Box<Refused>> {
        let _ = origin;
        Err(Box::new((op, done)))
    }

    /// Has the volume's own thread fetch a client's requests.
    ///
    /// # Errors
    /// The feed, if the volume has no place for it: its own thread fetches them then.
    fn adopt(&self, feed: Box<dyn Feed>) -> Result<(), Box<dyn Feed>> {
        Err(feed)
    }

    /// The gate that every change of the volume passes, through whichever frontend it comes: for a frontend that reads, changes and
    /// writes back what it must not undo another one's change of.
    fn gate(&self) -> &Arc<Gate>;
}

impl<S: BlockService + ?Sized> BlockService for Arc<S> {
    fn info(&self) -> VolumeInfo {
        (**self).info()
    }

    fn submit(&self, op: Op, origin: Origin, done: Completion) {
        (**self).submit(op, origin, done);
    }

    fn try_submit(&self, op: Op, origin: Origin, done: Completion) -> Result<(), Box<Refused>> {
        (**self).try_submit(op, origin, done)
    }

    fn adopt(&self, feed: Box<dyn Feed>) -> Result<(), Box<dyn Feed>> {
        (**self).adopt(feed)
    }

    fn gate(&self) -> &Arc<Gate> {
        (**self).gate()
    }
}

/// Refuses what lies outside a volume of `size_bytes` or is not made of whole sectors.
///
/// # Errors
/// [`ErrorKind::Invalid`] with the reason.
pub fn check_bounds(op: &Op, size_bytes: u64) -> Result<(), IoError> {
    let (offset, len) = match op {
        Op::Read { offset, len } => (*offset, *len as u64),
        Op::Write { offset, data, .. } => (*offset, data.len() as u64),
        Op::Zero { offset, len, .. } | Op::Status { offset, len, .. } => (*offset, *len),
        Op::Flush => return Ok(()),
    };
    if !offset.is_multiple_of(SECTOR_BYTES) || !len.is_multiple_of(SECTOR_BYTES) {
        return Err(IoError::new(ErrorKind::Invalid, "request is not made of whole 512-byte sectors"));
    }
    match offset.checked_add(len) {
        Some(end) if end <= size_bytes => Ok(()),
        _ => Err(IoError::new(ErrorKind::Invalid, "request reaches past the end of the volume")),
    }
}
