//! Names that upper rooms give to what they have under way, where lower rooms hand them back.

/// Names a part of a client's request; grows with arrival, so that the order of keys is the order of arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PartKey(pub(crate) u64);
