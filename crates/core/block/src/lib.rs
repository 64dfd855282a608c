//! The vocabulary that every other crate of Forebay shares: units of addressing, owned I/O buffers, the
//! requests of the block service, the operations of a device, and the errors of both.
//!
//! Nothing here does I/O. The crate exists so that frontends, engine and devices can speak of the
//! same things without knowing each other.
#![forbid(unsafe_code)]

mod buffer;
mod decimal;
mod error;
mod feed;
mod frontend;
mod gate;
mod io;
mod round;
mod service;
pub mod size;
pub mod time;
mod units;

pub use buffer::{Buf, BufMut, keep_pages};
pub use error::{Answer, Cause, ErrorKind, IoError, describe_errno, words_of};
pub use feed::{Feed, Fetched};
pub use frontend::{Clients, Frontend};
pub use gate::{Alone, Gate, Inside};
pub use io::{Class, Commit, DeviceOp, DeviceResult, Move, OpKind};
pub use round::{Gathers, Round};
pub use service::{
    Allocation, BlockService, Completion, Content, Criticality, Op, Origin, Refused, Reply,
    STATUS_EXTENTS_MAX, StatusExtent, VolumeInfo, check_bounds,
};
pub use units::{BLOCK_BYTES, BlockNo, Nanos, SECTOR_BYTES, Seq, blocks_of};
