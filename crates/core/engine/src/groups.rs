//! The policy `journaled`: the backing moves from group to group, never between (P4; FAST'13, section 3.2).
//!
//! A group is a stretch of the log, of which the newest version of each block goes to the journal on the backing's side,
//! wholly, before any of it is written in place. The log is in the order of acknowledgement; so whatever the log holds up to
//! some record is a state that the promise allows, and a group may end behind any record that is durable.
//!
//! ```text
//!  log:  ── on the backing ──┤ committed: in the journal, wholly ├── group under way ──┤ open group ──►
//!                         progress                           committed                last record
//!
//!  a group: blocks gathered ─► written to the ring ─► flushed ─► head: committed ─► destaged in place, as a set of `order`
//!                                                                                    ─► head: left behind
//! ```
//!
//! - Several committed groups may wait to be destaged; of a block that lies in several the newest goes. What a crash leaves
//!   of that is done again by [`forebay_format::replay`], before anything else is done to the backing, with or without
//!   the cache.
//! - So nothing newer than a group may be written in place over a block of it before the head durably leaves the group
//!   behind: a bypass waits for that, and a change of policy, too.
//! - Whatever is done in any order (after data was lost, or before the backing has caught up with a new policy) is done only
//!   when the head durably says that the backing is not consistent, and no group is left to be done again.
//!
//! | file | what it owns |
//! |---|---|
//! | [`ring`] | committed groups, and where they lie |
//! | [`open`] | what the next group would have, and takes |
//! | [`group`] | the group under way |
//! | [`commit`] | one that is in its place as soon as it is committed |
//! | [`head`] | what the medium says, and is to say |
//! | [`journal`] | these four, as one machine |
//! | [`points`] | points at which groups end |
//! | [`shared_points`] | points shared with other volumes |
//!
//! A backing that does several things wholly or not at all needs no replay: a group goes from the ring into its place with the head
//! that commits it ([`commit`]).
//!
//! All of them know the others by [`Facts`]. They ask for nothing: what is to be read, written or told is in their answers.

use forebay_block::{Nanos, Seq};
use forebay_policy::{GroupEnds, Settings, WritePolicy};

use crate::interface::{CommonError, MarkError, PartKey, RequestId};
use crate::map::Map;

mod commit;
mod group;
mod head;
pub(crate) mod journal;
mod open;
pub(crate) mod points;
mod ring;
pub(crate) mod shared_points;

/// What groups have to know of the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) now: Nanos,
    /// Added to an instant it gives the wall clock, in nanoseconds since 1970.
    pub(crate) wall_offset_ns: u64,
    pub(crate) settings: Settings,
    /// The run's generation.
    pub(crate) generation: u64,
    /// The volume serves requests.
    pub(crate) running: bool,
    /// The cache has failed.
    pub(crate) latched: bool,
    /// The backing, or the journal, has failed for so long that nobody should wait for it.
    pub(crate) given_up: bool,
    /// A stop waits for everything to be at rest.
    pub(crate) settling: bool,
    /// Destaging follows groups.
    pub(crate) journaled: bool,
    /// It is to cease to as soon as no group is left.
    pub(crate) leaving: bool,
    /// The order has been kept: the backing alone, with what is in the journal, is consistent.
    pub(crate) consistent: bool,
    /// Everything in records up to this one is on the backing.
    pub(crate) progress: Seq,
    /// The log's last record that is acknowledged.
    pub(crate) written: Seq,
    /// Its last one that survives a power cut.
    pub(crate) durable: Seq,
    /// What it durably says is clean.
    pub(crate) clean: Seq,
    /// Counts failed flushes of the backing.
    pub(crate) losses: u64,
    /// The last part of a request that has come.
    pub(crate) newest_part: PartKey,
}

impl Facts {
    pub(crate) fn wall_ns(&self) -> u64 {
        self.wall_offset_ns.saturating_add(self.now.0)
    }

    /// The backing moves only from point to point: nothing goes past the groups by choice.
    pub(crate) fn keeps_points(&self) -> bool {
        self.journaled
            && self.settings.group_ends != GroupEnds::Anywhere
            && self.settings.write_policy == WritePolicy::Journaled
            && !self.latched
    }

    /// The volume's points are shared, or would be.
    pub(crate) fn shares_points(&self) -> bool {
        self.settings.group_ends == GroupEnds::Common
            && self.settings.write_policy == WritePolicy::Journaled
            && self.journaled
            && !self.latched
    }
}

/// Wall-clock time, in nanoseconds since 1970, before which everything acknowledged is in records up to `upto`, or on the backing.
fn time_of(map: &Map, upto: Seq, facts: Facts) -> u64 {
    let later = map.segments().dirty_after(upto).next();
    later.map_or(facts.wall_ns(), |(seq, slot)| map.time_of_record(seq, slot.segment()))
}

/// What somebody is to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// A point is committed, or will not be: the command that declared it.
    Marked(RequestId, Result<u64, MarkError>),
    /// A step towards a common point: the command, which hears how things stand then.
    Common(RequestId, Result<(), CommonError>),
    /// The backing is at one more point.
    Point,
}

#[cfg(test)]
mod tests;
