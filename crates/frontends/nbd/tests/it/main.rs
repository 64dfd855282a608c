//! The NBD server seen from outside: by a client of this crate's codec, by raw bytes, and by the usual tools.
#![expect(clippy::unwrap_used, reason = "a test that meets the unexpected fails")]

mod adoption;
mod client;
mod decoders;
mod hostile;
mod interference;
mod lifecycle;
mod limits;
mod memory;
mod negotiation;
mod reference;
mod serve;
mod tls;
mod tools;
mod transmission;
