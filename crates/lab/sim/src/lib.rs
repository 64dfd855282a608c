//! A world in which every crash can be replayed: runs the production engine against simulated devices, time and
//! faults, with an oracle that knows what each promise allows (`docs/design/promises.md`). `docs/design/testing.md`
//! describes it.
//!
//! A seed becomes a [`plan::Plan`]; a [`run::Simulator`] runs it. Equal plans give equal histories, byte for byte.
#![forbid(unsafe_code)]

mod answers;
pub mod campaign;
pub mod consistency;
pub mod device;
pub mod emulated;
pub mod explore;
pub mod fault;
pub mod generate;
pub mod in_order;
pub mod life;
pub mod media;
pub mod oracle;
pub mod order;
pub mod plan;
mod plan_text;
pub mod points;
pub mod random;
pub mod run;
mod second_opinion;
pub mod shrink;
pub mod small_worlds;
pub mod stamp;
pub mod subject;
pub mod sweep;
pub mod trace;
pub mod violation;
mod wall;
pub mod world;

pub use plan_text::PlanError;
