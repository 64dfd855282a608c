//! Pure choosers: they look at state and choose; the engine carries the choice out. Adding a policy touches one file.
#![forbid(unsafe_code)]

mod admission;
mod settings;

pub use admission::{Admission, AdmissionReason, Decision, WriteContext};
pub use settings::{Durability, OnFull, Settings, UnknownSetting, WritePolicy};
