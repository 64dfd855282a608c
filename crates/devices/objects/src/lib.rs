//! A block volume made of immutable objects in a store that can create, get, list and delete objects, such as S3.
//!
//! It does no I/O: a [`Vault`] takes operations, answers of the store and the time, and tells what is to be done. `docs/design/object-volume.md`
//! has the rules and the bytes.
//!
//! # For whoever carries requests out
//!
//! ```text
//!        submit(now, tag, DeviceOp), command(now, tag, Command)          answered(now, id, Result<Answer, StoreError>)
//!  owner ────────────────────────────────────────────────────► Vault ◄──────────────────────────────── client of the store
//!        ◄────────────────────────────────────────────────────       ────────────────────────────────►
//!                 Done, Carried, Opened, Refused, Fenced      poll(now, &mut Vec<Effect>)   Request
//! ```
//!
//! - [`Vault::open`] begins an opening. [`Vault::poll`] gives effects: call it after every other call, and when [`Vault::deadline`] has come.
//! - Each [`Effect::Request`] is carried out once, at once and beside the others, by one exchange with the store without repetition. Its
//!   answer goes to [`Vault::answered`]. Repeating, pauses, and reading back what became of a create are the vault's.
//! - A create has the header `If-None-Match: *` and must be one `PUT`, whose bytes the store takes wholly or not at all. Multipart uploads
//!   are not used. The answers of a store map to [`StoreError`]: 412 and 409 are `Exists`; 404 `NoSuchKey` is `Missing`; 500, a timeout and
//!   a broken connection are `Unknown`, whatever the request; 503, 429 and a refused connection are `Busy`.
//! - A get asks for `bytes=FROM-(FROM+LEN-1)`; the size of the whole object stands in `Content-Range`. 416 is an object without bytes, with its
//!   size if it is known, else 0. An answer that is shorter than `Content-Length` is `Unknown`.
//! - A list asks for a page (`ListObjectsV2` with `start-after`), without a delimiter, and strips the volume's prefix off the names.
//! - [`Vault::room`] says how many operations [`Vault::submit`] takes. Operations are those of [`forebay_block::DeviceOp`], in multiples of
//!   512 bytes.
//! - Time is [`Nanos`](forebay_block::Nanos) that never goes back. The nonce and the time of day come in with [`OpenParams`].
//! - A new volume is made by [`Creation`], which is driven in the same way.
#![forbid(unsafe_code)]

mod calls;
mod checkpoint;
mod codec;
mod collect;
mod commands;
mod creation;
mod face;
pub mod fuzzing;
mod index;
mod jobs;
mod listing;
mod load;
mod log;
mod map;
pub mod model;
mod names;
mod open;
mod reads;
mod serve;
mod state;
mod store;
mod trash;
mod vault;
mod walk;

pub use creation::{CreateError, CreateParams, Creation};
pub use face::{
    Access, Ailment, Claim, Command, CommandError, Counters, Effect, Fault, Fenced, HOST_BYTES_MAX, Limits,
    Named, OpenError, OpenParams, Opened, Position, Takeover, Writer,
};
pub use listing::{Kept, ListError, named_in};
pub use store::{Answer, PAGE_NAMES_MAX, Request, StoreError};
pub use vault::Vault;
