//! The NBD frontend of Forebay.
//!
//! Two parts that know nothing of each other's concerns: the protocol without I/O ([`codec`], [`negotiation`] and the
//! rules of the transmission phase), which a client, a fuzzer or a test uses as well as the server; and
//! [`NbdServer`], which serves volumes on unix and TCP sockets, with or without TLS, on plain threads.
//!
//! ```text
//!  client ──► reader: decode, judge, take a place at the gate ──► BlockService::submit
//!    ▲                                                                │
//!    └── socket ◄── the completion itself, on the volume's thread ◄───┘
//!           ▲             │ when the socket cannot take the reply at once, or under TLS
//!           └── writer thread
//! ```
//!
//! The reader is a thread of the connection, or the volume's own: that one takes small requests of which none has to wait (`desk`).
#![forbid(unsafe_code)]

mod address;
mod budget;
pub mod codec;
mod complaints;
mod connection;
mod counters;
mod desk;
mod export;
pub mod fuzzing;
mod gate;
mod input;
mod limits;
mod listener;
mod lock;
pub mod negotiation;
mod outbox;
mod places;
mod reader;
mod reception;
mod server;
mod socket;
mod tls;
mod transmission;
mod transport;

pub use address::{Address, AddressError};
pub use budget::{MEMORY_BYTES, MemoryBudget, OVERDRAFT_BYTES};
pub use counters::RequestCounts;
pub use export::{Catalog, Export, ExportDescription, REQUEST_BYTES_MAX};
pub use forebay_guard::SocketRights;
pub use limits::Limits;
pub use server::{ConnectionStatus, ExportStatus, NbdServer, ServerConfig, ServerError, ServerStatus};
pub use tls::{TlsError, TlsSettings};
