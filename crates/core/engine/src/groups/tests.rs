//! What the tests of this room share.

use forebay_format::journal::Head;

use super::*;

/// A volume under `journaled` that is consistent, at rest, with everything durable up to record 10, and all of it on the backing up to
/// record 2.
pub(super) fn facts() -> Facts {
    let settings = Settings { write_policy: WritePolicy::Journaled, ..Settings::default() };
    Facts {
        now: Nanos(1_000_000_000),
        wall_offset_ns: 5_000_000_000,
        settings,
        generation: 3,
        running: true,
        latched: false,
        given_up: false,
        settling: false,
        journaled: true,
        leaving: false,
        consistent: true,
        progress: Seq(2),
        written: Seq(10),
        durable: Seq(10),
        clean: Seq(1),
        losses: 0,
        newest_part: PartKey(20),
    }
}

pub(super) fn with_ends(group_ends: GroupEnds) -> Facts {
    let facts = facts();
    Facts { settings: Settings { group_ends, ..facts.settings }, ..facts }
}

/// A head that says: consistent, as of record 2, and the ring is empty.
pub(super) fn head(ring_blocks: u64) -> Head {
    let mut head =
        Head { generation: 3, consistent: true, ..Head::new([1; 16], [2; 16], 1 << 20, ring_blocks << 12) };
    (head.applied.seq, head.committed.seq) = (Seq(2), Seq(2));
    head
}
