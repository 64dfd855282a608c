//! Frontend: a volume as one regular file through FUSE ([`FuseExport`]), and a loop device on that file
//! ([`Attachment`]), so that the kernel has a block device of it.
//!
//! ```text
//!  file system ─ loopN ─ loop worker ──┐  asynchronous direct I/O         ┌─ reader thread ─┐
//!  other programs (qemu, dd, fio) ─────┴─► FILE (root of a FUSE mount) ──►├─ reader thread ─┴─► BlockService
//!                                                   ▲                                             │
//!                                                   └──── reply, sent on the volume's thread ◄────┘
//! ```
//!
//! **FILE is the mount point.** The root of the file system is itself a regular file, mounted upon the (empty) regular
//! file FILE. There is no directory, no name to look up and nothing else in the file system.
//!
//! **A request owns its data before anything else happens.** The payload is copied once, from the buffer of the reader
//! thread into a page-aligned buffer of its own, before the volume sees the request. (A well-known FUSE export of
//! another project shared one buffer between requests and corrupted data under a loop device.)
//!
//! **Death.** A daemon that dies must leave nobody in an uninterruptible sleep. The kernel aborts a FUSE connection, and
//! answers everything outstanding with an error, when the last descriptor of `/dev/fuse` is closed. Descriptors close
//! when the last thread that shares the descriptor table has gone; so a thread of the daemon that sleeps
//! uninterruptibly *on the daemon's own device* keeps the connection alive, for ever, after SIGKILL. Two rules
//! exclude that:
//!
//! 1. Nothing in the daemon touches FILE or its loop device but threads that have a descriptor table of their own
//!    (`apart`), which holds no `/dev/fuse`. Attaching and detaching here is done so.
//! 2. The daemon's threads must not wait in memory reclaim for write-back to their own device: [`become_io_flusher`].
//!
//! What a dead daemon leaves is cleaned up by [`clean_stale`], which [`FuseExport::mount`] calls.
//!
//! **Semantics of FILE.** Reads and writes may have any offset and length; those of whole 512-byte sectors are the fast
//! ones, others read first and are alone while they do. There is no page cache in between, as with O_DIRECT. A write past the end is
//! cut short at the end, and answered with ENOSPC if it begins there. fsync, fdatasync, close, and O_DSYNC writes are durable when they
//! return. Punching holes and zeroing ranges really zero (whole sectors only, else EINVAL; no other mode of fallocate). The size
//! cannot be changed (EPERM, also for O_TRUNC: use `dd conv=notrunc`). Shared memory maps are refused by the kernel (ENODEV).

mod apart;
mod attachment;
mod background_dirty;
mod connection;
mod error;
mod export;
mod extent;
mod filesystem;
pub mod fuzzing;
mod knobs;
mod loop_device;
mod mounts;
mod partitions;
mod queue;
mod reclaim;
mod stale;
mod stats;
mod volume_file;

pub use attachment::{AttachOptions, Attachment};
pub use error::FuseError;
pub use export::{FuseExport, FuseOptions};
pub use knobs::Knob;
pub use queue::{QueueLimits, QueueSetup};
pub use reclaim::become_io_flusher;
pub use stale::{Cleaned, clean_stale};
pub use stats::FuseStats;
