//! What is wrong with what was to be replayed.

use thiserror::Error;

/// What is wrong with a trace.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: {what}")]
pub struct BadTrace {
    /// From 1.
    pub line: usize,
    /// One sentence.
    pub what: String,
}
