//! Pieces: device reads of blocks that lie together, and their check.

use forebay_block::{BLOCK_BYTES, BlockNo, Buf};
use forebay_format::checksum::block_checksum;

use crate::map::member::Member;
use crate::reading::gathers::{self, GatherKey};
use crate::reading::reads::JobKey;
use crate::tables::Table;

/// Names a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PieceKey(u64);

/// Who asked for a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Client {
    Read(JobKey),
    /// From that member on.
    Gathering(GatherKey, usize),
}

/// One device read.
pub(super) struct Piece {
    pub(super) client: Client,
    pub(super) first: BlockNo,
    pub(super) count: u64,
    /// What it must bring: versions that lie one behind the other in one segment. None if it is read from the backing.
    pub(super) versions: Vec<Member>,
    /// Of these blocks: 1 for the first.
    pub(super) attempt: u32,
}

impl Piece {
    /// It reads the backing, which is believed.
    pub(super) fn is_of_backing(&self) -> bool {
        self.versions.is_empty()
    }

    /// Which of its versions are not what was read. A planted bug has them all taken for good.
    pub(super) fn damaged(&self, data: &Buf, unchecked: bool) -> Vec<usize> {
        let good = |n: usize, version: &Member| {
            let data = &data[n * BLOCK_BYTES as usize..][..BLOCK_BYTES as usize];
            block_checksum(version.block, version.seq, data) == version.checksum || unchecked
        };
        (0..self.versions.len()).filter(|n| !good(*n, &self.versions[*n])).collect()
    }

    /// It is the last attempt of a gathering to read one block of the cache.
    pub(super) fn is_last_of_gathering(&self) -> bool {
        matches!(self.client, Client::Gathering(..))
            && self.count == 1
            && self.attempt >= gathers::ATTEMPTS_MAX
    }
}

/// Whether a version lies `n` blocks behind the first of a piece, in the same segment.
pub(super) fn lies_behind(first: &Member, n: u64, version: &Member) -> bool {
    version.slot.segment() == first.slot.segment() && version.place == first.place + n * BLOCK_BYTES
}

/// Pieces under way.
#[derive(Default)]
pub(super) struct Pieces {
    under_way: Table<PieceKey, Piece>,
    next: u64,
}

impl Pieces {
    pub(super) fn start(&mut self, piece: Piece) -> PieceKey {
        self.next += 1;
        let key = PieceKey(self.next);
        self.under_way.insert(key, piece);
        key
    }

    pub(super) fn get(&self, key: PieceKey) -> Option<&Piece> {
        self.under_way.get(&key)
    }

    pub(super) fn ended(&mut self, key: PieceKey) -> Option<Piece> {
        self.under_way.remove(&key)
    }
}
