//! A client for tests of a volume: it stamps every sector that it writes with address, round and sequence number, and
//! keeps for each sector what it may hold.
//!
//! A checksum of the data alone, as fio's `crc32c` is, does not notice a *stale* block, whose data was right once. Here
//! every write of a sector differs from all others, and the newest acknowledged one is known, so that whatever is
//! read is either right or wrong (promises P1, P2, P3 and P5). What is known outlives the daemon under test, and this
//! program, in a state file.
//!
//! With a record of the devices below the volume it also judges what a crash at any instant of a run would have left
//! ([`crashes()`]).
//!
//! The crate uses none of the others but the record's format, so that no mistake of theirs can hide one of theirs.
#![forbid(unsafe_code)]

mod acks;
mod crashes;
mod daemon;
mod direct;
mod expectation;
pub mod fuzzing;
mod history;
mod nbd;
mod order;
mod random;
mod report;
mod ring;
mod stamp;
mod state;
mod target;
mod verify;
mod worker;
mod write;

pub use crashes::{CrashOptions, CrashReport, bases, crashes, rebuild};
pub use expectation::{Expectation, Wrong};
pub use history::Promise;
pub use order::{Dependence, OrderOptions, OrderReport, order};
pub use report::{Allowed, Report};
pub use stamp::{Found, SECTOR_BYTES, Stamp, Version};
pub use state::State;
pub use target::{Failure, Target, TargetSpec};
pub use verify::{VerifyOptions, verify};
pub use write::{Mix, WriteOptions, write};
