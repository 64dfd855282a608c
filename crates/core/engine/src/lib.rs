//! The cache engine: synchronous, sans-IO, deterministic. Events go in ([`Engine::handle`]), effects come out
//! ([`Engine::poll`]). It imports no runtime, clock, random source, file or frontend; the host runs it against
//! io_uring, the simulator against simulated devices and time.
#![forbid(unsafe_code)]

mod allocation;
mod bypass;
mod common;
mod destage;
mod engine;
mod failure;
mod gather;
mod index;
mod interface;
mod journal;
mod locks;
mod log;
mod mutation;
mod order;
mod points;
mod queue;
mod read;
mod read_only;
mod reclaim;
mod recovery;
mod reissue;
mod requests;
mod segments;
mod staleness;
mod stop;
mod tables;
mod watch;

pub use common::HOLD_MS;
pub use engine::Engine;
pub use interface::{
    Class, Command, CommonError, CommonState, CommonStep, Effect, Event, IoId, MarkError, Params,
    RecoveryError, RecoveryReport, RequestId, Role, State, Status, Trouble,
};
#[cfg(feature = "mutations")]
pub use mutation::Mutation;
pub use watch::{Ailing, Ailment, HUNG_AFTER_MS, SILENT_AFTER_MS, Watch};
