//! Backings on other machines: their addresses ([`RemoteSpec`]), how their owner is woken ([`Bell`]), and requests on their way to a store that
//! may go away, with what their owner may believe then. A kind whose library sends anew by itself needs nothing of the latter.
//!
//! ```text
//!  submit ──► queue ──► who sends ──► store ──► who receives ──► done ──► poll
//!               ▲           │ the session is lost: what was not answered is sent anew in the next one
//!               └───────────┘
//! ```
//!
//! A kind of store brings its [`Request`]s, and threads that take them from the [`Exchange`] ([`Exchange::next`]) and say how they ended
//! ([`Exchange::end`]). Its operations may be made of several requests, and of a flush behind them ([`Parts`]). Each *line* is a way to the
//! store with a queue of its own.
//!
//! **Sessions.** A session is what can be lost: a connection, or several that are used together. It begins
//! ([`Exchange::begin`]), may be told to send nothing more ([`Exchange::stop`]), and is lost ([`Exchange::lose`]).
//!
//! **What a lost session may have taken.** A store that was restarted may have lost what it had acknowledged and not made
//! durable. So if anything had been acknowledged since the last flush, every flush fails until its owner has learnt of one such
//! failure. As with a disk, whoever flushes writes anew what it has heard of as written until then.
//!
//! **What nobody knows the end of.** A request that was sent and not answered may have been carried out, or may be later
//! ([`Ending::Unknown`]). Its operation fails, or it is sent anew; in neither case does a flush count as covering what it wrote. While the
//! session goes on, what is written anew must come behind it by the store's own order; a kind whose store keeps none loses the session.
//! Another session may begin only when the kind has made sure that nothing comes from an earlier one any more ([`Exchange::settle`]).

mod address;
mod bell;
mod durability;
mod exchange;
mod operations;
mod process;
mod state;
#[cfg(test)]
mod tests;

use std::time::Duration;

use forebay_block::{Buf, IoError};

pub use self::address::RemoteSpec;
pub(crate) use self::bell::Bell;
pub(crate) use self::exchange::{Exchange, Work};
pub(crate) use self::process::{Process, began, host_name, this_host};

/// While a store is away, operations wait for so long; then those that wait fail at each further attempt to reach it.
const AWAY_MAX: Duration = Duration::from_secs(5);

/// What a request does to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It reads.
    Reads,
    /// It changes something that the store may keep in a volatile cache.
    ChangesVolatile,
    /// It changes something, durably.
    ChangesDurably,
    /// It makes durable what was answered before it was sent.
    Flushes,
}

impl Effect {
    const fn changes(self) -> bool {
        matches!(self, Self::ChangesVolatile | Self::ChangesDurably)
    }
}

/// What a kind of store takes at a time.
pub(crate) trait Request: Clone {
    /// One that flushes.
    fn flush() -> Self;

    /// What it does.
    fn effect(&self) -> Effect;
}

/// What an operation is made of. All requests have one effect; without any the operation has nothing to do.
#[derive(Debug)]
pub(crate) struct Parts<R> {
    /// The operation reads.
    pub(crate) reads: bool,
    /// In the order of what they read or write.
    pub(crate) requests: Vec<R>,
    /// A flush has to follow them, which makes them durable.
    pub(crate) then_flush: bool,
}

/// How a request has ended.
#[derive(Clone, Debug)]
pub(crate) enum Ending {
    /// Well, with what it has read.
    Well(Option<Buf>),
    /// The store has failed it: what it was to write may be there in part, and nothing more comes of it.
    Failed(IoError),
    /// Nobody knows: it may be carried out later.
    Unknown(IoError),
}
