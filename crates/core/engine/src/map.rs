//! What the volume's blocks are: which version of each is current, where it lies in the log, whether the backing lacks it.

use crate::map::index::Index;
use crate::map::segments::SegmentTable;
use forebay_policy::Replacement;

pub(crate) mod index;
pub(crate) mod member;
#[cfg(test)]
pub(crate) mod sample;
pub(crate) mod segments;

/// Segments of the log, the index of current versions, and the state of replacement.
pub(crate) struct Map {
    pub(crate) segments: SegmentTable,
    pub(crate) index: Index,
    pub(crate) replacement: Replacement,
}
