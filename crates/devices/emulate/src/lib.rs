//! Models of storage devices that say when operations complete.
//!
//! A [`Model`] takes operations with the instant at which they are submitted and hands back the instants at which they
//! complete. It keeps no data, reads no clock and does no I/O: a simulator runs it in virtual time, an emulated device
//! of a real run lets real time pass until the model's time has come. Equal seeds and equal operations give equal
//! times, on every machine: the arithmetic is that of integers, and of floating-point operations that IEEE 754 defines
//! to the last bit.
//!
//! Queueing is real. A disk has one head that turns with the spindle and chooses among the commands that it knows; an
//! SSD has a controller, dies, a link and a buffer that fills; a remote store has a window and a link. What a request
//! costs follows from what else is under way.
//!
//! Where the figures come from, and how the models compare with what vendors publish, stands in
//! `docs/design/emulated-devices.md`.
//!
//! ```
//! use forebay_block::Nanos;
//! use forebay_emulate::{Access, Model, Operation, Settings};
//!
//! let settings: Settings = "hdd-10k".parse().unwrap();
//! let mut disk = Model::new(&settings, 600_000_000_000).unwrap();
//! disk.submit(1, Operation { access: Access::Read, offset: 300_000_000_000, len: 4096 }, Nanos(0));
//! let mut done = Vec::new();
//! while done.is_empty() {
//!     let next = disk.next_event().unwrap();
//!     disk.poll(next, &mut done);
//! }
//! let (tag, at) = done[0];
//! assert_eq!(tag, 1);
//! assert!(at.0 > 1_000_000 && at.0 < 20_000_000, "a seek and a part of a turn");
//! ```
#![forbid(unsafe_code)]

mod agenda;
mod disk;
mod flash;
mod machine;
mod memory;
mod model;
mod parameter;
mod random;
mod remote;
mod settings;
mod spread;

pub use disk::DiskSettings;
pub use flash::FlashSettings;
pub use machine::{Access, Operation};
pub use memory::MemorySettings;
pub use model::Model;
pub use parameter::{BadSetting, Parameter, Unit};
pub use remote::RemoteSettings;
pub use settings::{Kind, Settings};
