//! Guards against other users of the same machine.
//!
//! - [`FileRights`] and [`SideFile`]: files with a volume's data are for those who may use its backing, and what lies beside a backing
//!   is opened without following links.
//! - [`bind`] and [`Bound`]: a unix socket is private from its first moment, and never in the way of one that lives.
//! - [`connect`] and [`is_trusted`]: whoever answers on a socket is believed only as a certain user.
//! - [`Who`]: a process that holds or answers, in words.
//!
//! `docs/design/security.md` says what is held against whom.
#![forbid(unsafe_code)]

mod side_file;
mod socket;
mod turn;
mod who;

pub use side_file::{FileRights, Foreign, Privacy, SideFile};
pub use socket::{
    BindError, Bound, ROOT_DIRECTORY, SocketRights, abstract_holder, bind, can_bind, connect, is_trusted,
    peer, prepare_directory,
};
pub use turn::TurnError;
pub use who::{Who, group_id, holder_in, lock_holder, user_name};
