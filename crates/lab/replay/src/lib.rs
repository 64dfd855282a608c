//! Replays traces of requests against the production engine and models of devices, in virtual time: what a volume with other
//! settings, another cache or another backing would have made of the same requests, without a device, and much sooner.
//!
//! [`Trace`] reads what `forebay serve --record-requests` writes ([`request_log`]), and what fio writes and other tools can be
//! converted to; [`replay`] runs the clients of some traces, each in a
//! closed loop, and says how fast they were and how far the backing was behind. Equal traces and set-ups give equal outcomes.
//! Data is not part of a trace: every block holds zeroes. What the processor needs is not counted.
#![forbid(unsafe_code)]

mod bad_trace;
mod client;
mod closed_loop;
mod device;
pub mod fuzzing;
pub mod request_log;
mod run;
mod trace;

pub use bad_trace::BadTrace;
pub use closed_loop::{Cache, Figures, Load, Volume, closed_loop};
pub use run::{Outcome, ReplayError, Setup, replay};
pub use trace::{Step, Trace};
