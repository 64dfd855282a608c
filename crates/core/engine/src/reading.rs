//! Reading blocks, checked: what clients ask for, and what destaging and groups write elsewhere.
//!
//! ```text
//!                                                  ┌─ as it should be ──► taken
//!   versions ──those that lie together──► piece ──►│
//!   (or the backing's blocks)       one device read└─ damaged, or an error ──► again, block by block ──► … ──► somewhere else, or given up
//! ```
//!
//! A *piece* is one device read (`pieces`). What comes of it is for the one of two clients to say that asked for it, as they differ in
//! what they want of a block that cannot be read:
//!
//! | | a read (`reads`) | a gathering (`gathers`) |
//! |---|---|---|
//! | wants | the newest version, whatever that is by then | exactly the version that was chosen |
//! | tries again | the damaged block, wherever it is by then | each block of the piece |
//! | then | the backing, if the block is clean | the journal on the backing's side, if a group has it |
//! | else | an error | tells which block is bad |
//! | the segment | is pinned while a piece reads it | is pinned by whoever asked |
//!
//! Invariants:
//! - G1: What is handed on matches the checksum over its data, address and sequence number (P5), or came from the backing.
//! - G2: A segment is pinned as long as a piece of a read is under way in it (hazard 6).
//! - G3: Each question is answered once, when nothing of it is under way any more.

use forebay_block::{BlockNo, Buf, DeviceOp, DeviceResult, IoError, Seq};
use forebay_format::Layout;
use forebay_policy::Issuer;

use crate::interface::{Class, RequestId, Role};
use crate::map::Map;
use crate::map::member::{Bad, Member};
use crate::mutation::Planted;
use crate::reading::gathers::{Gathers, Wanted};
use crate::reading::pieces::{Client, Piece, PieceKey, Pieces};
use crate::reading::reads::{Reader, Reads};

pub(crate) mod gathers;
pub(crate) mod pieces;
pub(crate) mod reads;
#[cfg(test)]
mod tests;

/// A device read that is to be started.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) key: PieceKey,
    pub(crate) role: Role,
    pub(crate) op: DeviceOp,
    pub(crate) class: Class,
}

/// What was seen of the devices, to be counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Bytes read from the cache for clients.
    pub(crate) hit_bytes: u64,
    /// Bytes read from the backing for clients.
    pub(crate) missed_bytes: u64,
    pub(crate) cache_errors: u64,
    /// Errors of the backing, or of the journal on its side.
    pub(crate) backing_errors: u64,
    pub(crate) checksum_failures: u64,
}

/// A question that is answered.
#[derive(Debug)]
pub(crate) enum Told {
    Read(Reader, Result<Buf, IoError>),
    /// The blocks in their order, in as many buffers as there were device reads.
    Gathered(Wanted, Result<Vec<Buf>, Vec<Bad>>),
}

/// What follows from a step: to be counted, forgotten, started and told, in this order.
#[derive(Default)]
pub(crate) struct Step {
    pub(crate) seen: Seen,
    /// A clean copy that cannot be read: the index is to forget it. Later reads go the same way: the backing may show a bypass that is still
    /// under way, and a copy that can be read again would take them back behind it.
    pub(crate) unreadable: Option<BlockNo>,
    pub(crate) asked: Vec<Asked>,
    pub(crate) told: Option<Told>,
}

/// Reads and gatherings under way.
pub(crate) struct Reading {
    layout: Layout,
    volume_bytes: u64,
    pieces: Pieces,
    reads: Reads,
    gathers: Gathers,
    planted: Planted,
}

impl Reading {
    /// For a cache of this layout, and a volume of so many bytes.
    pub(crate) fn new(layout: Layout, volume_bytes: u64) -> Self {
        let (pieces, reads, gathers) = Default::default();
        Self { layout, volume_bytes, pieces, reads, gathers, planted: Planted::default() }
    }

    /// Plants a bug.
    #[cfg(feature = "mutations")]
    pub(crate) fn plant(&mut self, planted: Planted) {
        self.planted = planted;
    }

    /// No read is under way; gatherings may be.
    pub(crate) fn has_no_reads(&self) -> bool {
        self.reads.is_idle()
    }

    /// The reads of clients that are not answered, in the order of their names.
    pub(crate) fn unanswered(&self) -> Vec<RequestId> {
        let mut ids: Vec<_> = self.reads.clients().collect();
        ids.sort_unstable();
        ids
    }

    /// Reads the newest version of these bytes, of which there is at least one.
    pub(crate) fn read(
        &mut self,
        reader: (Reader, Issuer),
        (offset, len): (u64, usize),
        map: &mut Map,
    ) -> Step {
        let mut step = Step::default();
        self.begin_read(reader, offset, len, map, &mut step);
        step
    }

    /// Reads these versions, of which there is at least one; whoever asks has pinned their segments.
    pub(crate) fn gather(&mut self, wanted: Wanted, members: Vec<Member>) -> Step {
        let mut step = Step::default();
        self.begin_gathering(wanted, members, &mut step);
        step
    }

    /// The version that the piece has tried to read for the last time: the journal on the backing's side may have it.
    pub(crate) fn last_resort(&self, key: PieceKey) -> Option<(BlockNo, Seq)> {
        self.pieces.get(key).filter(|piece| piece.is_last_of_gathering()).map(|piece| {
            let version = piece.versions[0];
            (version.block, version.seq)
        })
    }

    /// For whom a piece is read; nobody in particular if it is for a gathering.
    pub(crate) fn issuer_of(&self, key: PieceKey) -> Issuer {
        match self.pieces.get(key).map(|piece| piece.client) {
            Some(Client::Read(job)) => self.reads.issuer_of(job),
            Some(Client::Gathering(..)) | None => Issuer::default(),
        }
    }

    /// A device read has ended. `elsewhere`: byte offset in the journal of the version that is its [`Reading::last_resort`], if it has that.
    pub(crate) fn ended(
        &mut self,
        key: PieceKey,
        result: DeviceResult,
        elsewhere: Option<u64>,
        map: &mut Map,
    ) -> Step {
        let mut step = Step::default();
        let Some(piece) = self.pieces.ended(key) else {
            return step;
        };
        match piece.client {
            Client::Read(job) => self.read_ended(job, piece, result, map, &mut step),
            Client::Gathering(gathering, first) => {
                self.gathering_ended((gathering, first), piece, result, elsewhere, &mut step);
            }
        }
        step
    }

    /// Starts a piece.
    fn start(&mut self, piece: Piece, (role, offset, bytes): (Role, u64, u64), step: &mut Step) {
        let class = match piece.client {
            Client::Read(_) => Class::Foreground,
            Client::Gathering(..) => Class::Background,
        };
        let key = self.pieces.start(piece);
        let op = DeviceOp::Read { offset, len: bytes as usize };
        step.asked.push(Asked { key, role, op, class });
    }
}
