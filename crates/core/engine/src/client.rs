//! What clients ask for: requests, the parts that these are cut into, and the ways that parts go.

pub(crate) mod allocation;
pub(crate) mod bypass;
pub(crate) mod cut;
pub(crate) mod flushes;
pub(crate) mod parts;
pub(crate) mod reissue;
pub(crate) mod requests;
#[cfg(test)]
mod tests;
pub(crate) mod waiting;
