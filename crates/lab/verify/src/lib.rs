//! The independent verifier of a cache image: `forebay check` and `forebay inspect`.
//!
//! It knows `SPEC.md` of the format crate and nothing of the engine, so that a mistake in one is found by the other. The image is
//! only read: first a survey finds the segments and what any record proves, then the chain of
//! records is followed segment by segment, each record and each data block being checked.
//!
//! Memory: one segment, and about 60 bytes for each extent of blocks that the log holds; never a function of what a
//! damaged field says.
//!
//! An image that an engine is writing to would be found torn in places that are only half written: the caller holds the lock
//! that keeps an engine away.
#![forbid(unsafe_code)]

mod chain;
mod check;
mod claims;
mod contents;
mod finding;
mod history;
mod identity;
mod image;
mod inspect;
mod records;
mod report;
mod source;
mod summaries;
mod superblocks;
mod survey;
mod text;

pub use check::{CheckError, check};
pub use finding::{FINDINGS_MAX, Finding, FindingKind, Severity};
pub use history::{BlockHistory, MENTIONS_MAX, Mention};
pub use inspect::{
    Constant, ExtentRow, InspectOptions, Inspection, RECORDS_SHOWN, RecordRow, SegmentRow, SegmentUse,
    SuperblockRow, constants, inspect,
};
pub use report::{BlockCounts, Geometry, Identity, LogFigures, Report, UseState};
pub use source::Source;
