//! The binary as a user meets it, and the shape of the workspace.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed, and the panic says where")]

mod admission;
mod architecture;
mod control;
mod daemon;
mod emulated;
mod messages;
mod nbd_client;
mod other_users;
mod refusals;
mod request_record;
mod signals;
mod usage;
mod volume;
