//! Volumes over real files: formatting, pairing, serving, dying, coming back.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod block;
mod client;
mod depth;
mod faults;
mod feeds;
mod format;
mod holes;
mod limits;
mod observer;
mod pairing;
mod place;
mod plain;
mod privacy;
mod recover;
mod remote;
mod resize;
mod stamp;
mod survive;
mod unfinished;
