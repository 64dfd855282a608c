//! The cache engine: synchronous, sans-IO, deterministic. Events go in ([`Engine::handle`]), effects come out
//! ([`Engine::poll`]). It imports no runtime, clock, random source, file or frontend; the host runs it against
//! io_uring, the simulator against simulated devices and time.
#![forbid(unsafe_code)]

mod backing;
mod client;
mod engine;
mod failure;
mod groups;
mod interface;
mod locks;
mod log;
mod map;
mod mutation;
mod order;
mod pause;
mod plain;
mod reading;
mod staleness;
mod stop;
mod tables;
mod wakes;
mod watch;

pub use engine::Engine;
pub use groups::shared_points::HOLD_MS;
pub use interface::{
    Ailing, Ailment, Asked, Class, Command, CommonError, CommonState, CommonStep, Effect, Event, IoId,
    MarkError, Params, RecoveryError, RecoveryReport, RequestId, Role, State, Status, Trouble,
};
#[cfg(feature = "mutations")]
pub use mutation::Mutation;
pub use plain::PlainQueue;
pub use watch::{HUNG_AFTER_MS, SILENT_AFTER_MS, Watch};
