//! Operations on a device (cache or backing), as the engine asks for them and devices carry them out.

use crate::{Buf, IoError};

/// One operation on a device. Offsets and lengths are bytes; both are multiples of the device's logical block
/// (the engine uses multiples of 512 on the cache and of 4096 on the backing, but for a backing whose size is no
/// multiple of 4096, whose last operation ends at its end).
#[derive(Clone, Debug)]
pub enum DeviceOp {
    /// Read `len` bytes at `offset`; completes with [`DeviceResult`] `Ok(Some(buf))`.
    Read {
        /// Byte offset on the device.
        offset: u64,
        /// Bytes to read.
        len: usize,
    },
    /// Write the concatenation of `bufs` at `offset`.
    Write {
        /// Byte offset on the device.
        offset: u64,
        /// The data, in order.
        bufs: Vec<Buf>,
        /// Complete only when the data would survive a power cut (FUA).
        durable: bool,
    },
    /// Make everything that completed before this was submitted survive a power cut.
    Flush,
    /// Make the range read as zeroes, freeing its space if `unmap` and the device can. Not durable until a flush.
    Zero {
        /// Byte offset on the device.
        offset: u64,
        /// Bytes to zero.
        len: u64,
        /// Whether the space may be given back.
        unmap: bool,
    },
    /// Take a group from the journal into its place and write the journal's head, wholly or not at all. Completes when that would
    /// survive a power cut. Only for a device that says that it can.
    ///
    /// An error means that nothing of it was carried out, or that the device carries out nothing more until it is opened anew.
    Commit(Box<Commit>),
}

/// What becomes visible at once by a [`DeviceOp::Commit`]. No two of its ranges overlap.
#[derive(Clone, Debug)]
pub struct Commit {
    /// Where the head of the journal is written.
    pub head_offset: u64,
    /// The head.
    pub head: Buf,
    /// What is moved, as of all operations that had completed before: what lay there reads as zeroes from then on.
    pub moves: Vec<Move>,
    /// Byte offset and length of what is to read as zeroes.
    pub zeroes: Vec<(u64, u64)>,
}

/// Bytes that are moved without being sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Byte offset where they lie, in the journal.
    pub from: u64,
    /// Byte offset where they go, on the backing.
    pub to: u64,
    /// How many.
    pub len: u64,
}

/// Whether somebody waits for a device operation (`docs/design/promises.md`, I/O priority). It decides about speed alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// A client's request waits for it, as far as is known.
    Foreground,
    /// Destaging, cleaning, writes that no request is known to wait for.
    Background,
}

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// It reads.
    Read,
    /// It writes data.
    Write,
    /// It makes durable what has completed.
    Flush,
    /// It zeroes, or discards.
    Zero,
    /// It commits a group.
    Commit,
}

impl OpKind {
    /// One word for a person.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Zero => "zero",
            Self::Commit => "commit",
        }
    }
}

impl DeviceOp {
    /// What it does.
    pub const fn kind(&self) -> OpKind {
        match self {
            Self::Read { .. } => OpKind::Read,
            Self::Write { .. } => OpKind::Write,
            Self::Flush => OpKind::Flush,
            Self::Zero { .. } => OpKind::Zero,
            Self::Commit(_) => OpKind::Commit,
        }
    }

    /// Whether it changes what the device holds.
    pub const fn changes(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::Zero { .. } | Self::Commit(_))
    }

    /// Where on the device, in bytes, of a commit its head; `None` for a flush.
    pub const fn offset(&self) -> Option<u64> {
        match self {
            Self::Read { offset, .. } | Self::Write { offset, .. } | Self::Zero { offset, .. } => {
                Some(*offset)
            }
            Self::Commit(commit) => Some(commit.head_offset),
            Self::Flush => None,
        }
    }

    /// How many bytes of the device it reads or changes; 0 for a flush.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Read { len, .. } => *len as u64,
            Self::Write { .. } => self.write_bytes(),
            Self::Zero { len, .. } => *len,
            Self::Commit(commit) => {
                commit.head.len() as u64 + commit.in_place().map(|(_, len)| len).sum::<u64>()
            }
            Self::Flush => 0,
        }
    }

    /// The same operation so many bytes further on, for what lies at an offset of its device: of a commit the journal, but not the
    /// places where its blocks go.
    #[must_use]
    pub fn moved(self, by: u64) -> Self {
        match self {
            Self::Read { offset, len } => Self::Read { offset: offset + by, len },
            Self::Write { offset, bufs, durable } => Self::Write { offset: offset + by, bufs, durable },
            Self::Zero { offset, len, unmap } => Self::Zero { offset: offset + by, len, unmap },
            Self::Flush => Self::Flush,
            Self::Commit(mut commit) => {
                commit.head_offset += by;
                commit.moves.iter_mut().for_each(|moved| moved.from += by);
                Self::Commit(commit)
            }
        }
    }

    /// Bytes that a write carries, of a commit its head; 0 for other operations.
    pub fn write_bytes(&self) -> u64 {
        match self {
            Self::Write { bufs, .. } => bufs.iter().map(|b| b.len() as u64).sum(),
            Self::Commit(commit) => commit.head.len() as u64,
            _ => 0,
        }
    }
}

impl Commit {
    /// Byte offset and length of what changes in place, on the backing.
    pub fn in_place(&self) -> impl Iterator<Item = (u64, u64)> {
        self.moves.iter().map(|moved| (moved.to, moved.len)).chain(self.zeroes.iter().copied())
    }
}

/// Outcome of a [`DeviceOp`]: the data for a read, `None` for the others. A short transfer is an error.
pub type DeviceResult = Result<Option<Buf>, IoError>;
