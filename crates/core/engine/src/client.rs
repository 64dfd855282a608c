//! What clients ask for: requests, the ways that they go, and the locks that keep them apart.

pub(crate) mod allocation;
pub(crate) mod bypass;
pub(crate) mod gather;
pub(crate) mod read;
pub(crate) mod reissue;
pub(crate) mod requests;
