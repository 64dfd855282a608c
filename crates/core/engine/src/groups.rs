//! The policy `journaled`: groups in the journal on the backing's side, the points at which they end, and points shared with
//! other volumes.

pub(crate) mod journal;
pub(crate) mod points;
pub(crate) mod shared_points;
