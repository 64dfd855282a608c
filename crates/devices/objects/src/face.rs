//! What a vault is told and what it tells.

use std::fmt;
use std::time::Duration;

use forebay_block::{Buf, ErrorKind, Nanos};
use thiserror::Error;

use crate::store::{Request, StoreError};

/// A place in the history of a volume: an object of the log. Later epochs come after earlier ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Which owner wrote it: owners are numbered from 1.
    pub epoch: u64,
    /// Which object of this owner, from 0.
    pub seq: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.seq)
    }
}

/// Who opens a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Writer {
    /// Unlike that of every other opening, ever: random bytes.
    pub nonce: [u8; 16],
    /// The host's name, for a person; at most [`HOST_BYTES_MAX`] bytes of it are kept.
    pub host: String,
}

/// Most bytes of a host's name.
pub const HOST_BYTES_MAX: usize = 255;

/// How an owner says that the volume is its own, by creating `epoch/E`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The owner's number.
    pub epoch: u64,
    /// The owner.
    pub writer: Writer,
    /// When it claimed the volume by its own clock: nanoseconds since 1970.
    pub time_ns: u64,
    /// Whether it took the volume from an owner that had not released it.
    pub takeover: bool,
}

/// What is done if the last owner has not released the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takeover {
    /// The opening is refused.
    Never,
    /// The volume is taken over from the owner with this nonce, of which the caller knows that it is dead.
    From([u8; 16]),
    /// The volume is taken over from whoever has it.
    Always,
}

/// What a volume is opened for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// To own it.
    Own(Takeover),
    /// To read its newest state that is durable as of now, without owning it. A writer that goes on may delete objects that are read.
    Latest,
    /// To read a named checkpoint, which no writer changes.
    Checkpoint(String),
}

/// Bounds of what a vault does at a time, and the shape of its objects (P7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Data of an object of the log, in bytes: a multiple of 4096 up to 16 MiB.
    pub object_bytes: u64,
    /// Objects of the log that are being created at a time.
    pub flights_max: usize,
    /// Data in memory that is not in the store yet, in bytes. Writes beyond that wait.
    pub buffered_bytes_max: u64,
    /// Operations that are not answered yet.
    pub ops_max: usize,
    /// Gets that are under way at a time.
    pub gets_max: usize,
    /// Data of writes between two commit points, in bytes. Where a client does not flush for longer, the vault sets a commit point by itself.
    pub atomic_bytes_max: u64,
    /// Objects of the log behind the newest checkpoint.
    pub log_objects_max: u64,
    /// Bytes of the log behind the newest checkpoint, if that makes at least eight times the bytes of a checkpoint.
    pub log_bytes_max: u64,
    /// Of the stored data in objects that are in use, the share in percent that must be live. Collection begins below that.
    pub utilization_min_percent: u64,
    /// Objects with less than a sixteenth of `object_bytes` that are left alone.
    pub small_objects_max: usize,
    /// For how long an owner answers reads without a sign that it is still the owner.
    pub look_interval: Duration,
    /// How long an operation waits for a sick store before it fails.
    pub patience: Duration,
    /// First pause after a failed request; it doubles up to `pause_max`.
    pub pause_min: Duration,
    /// Longest pause.
    pub pause_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            object_bytes: 4 << 20,
            flights_max: 8,
            buffered_bytes_max: 64 << 20,
            ops_max: 1024,
            gets_max: 64,
            atomic_bytes_max: 1 << 30,
            log_objects_max: 4096,
            log_bytes_max: 256 << 20,
            utilization_min_percent: 70,
            small_objects_max: 1024,
            look_interval: Duration::from_secs(1),
            patience: Duration::from_secs(60),
            pause_min: Duration::from_millis(50),
            pause_max: Duration::from_secs(5),
        }
    }
}

/// How a volume is opened.
#[derive(Clone, Debug)]
pub struct OpenParams {
    /// Who opens it.
    pub writer: Writer,
    /// What for.
    pub access: Access,
    /// Bounds.
    pub limits: Limits,
    /// The time of day at the `now` of [`Vault::open`](crate::Vault::open): nanoseconds since 1970.
    pub time_ns: u64,
}

/// What a vault wants done, or tells.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Carry out this request, and give its answer to [`Vault::answered`](crate::Vault::answered) with the same `id`. All requests that are
    /// told may be carried out at once, in any order.
    Request {
        /// Its number, used once.
        id: u64,
        /// What the store is to do.
        request: Request,
    },
    /// The volume is open: operations may be submitted.
    Opened(Opened),
    /// The volume cannot be opened. This is the last effect.
    Refused(OpenError),
    /// An operation has ended.
    Done {
        /// The tag that it was submitted with.
        tag: u64,
        /// Data for a read, else nothing; or why it failed.
        result: Result<Option<Buf>, Fault>,
    },
    /// A command has ended.
    Carried {
        /// The tag that it was given with.
        tag: u64,
        /// How.
        result: Result<(), CommandError>,
    },
    /// Another owner has the volume: nothing is written or read any more, and everything that waited has failed. Told once.
    Fenced(Fenced),
}

/// What is known of a volume that was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Identity of the volume.
    pub volume: [u8; 16],
    /// Its size in bytes.
    pub size_bytes: u64,
    /// This owner's number; 0 for a reader.
    pub epoch: u64,
    /// The last object of the log that is part of the volume's state.
    pub as_of: Position,
    /// When that was written, by its writer's clock: nanoseconds since 1970; 0 for a volume that was never written.
    pub time_ns: u64,
    /// From whom the volume was taken over, which had not released it.
    pub taken_from: Option<Claim>,
    /// Objects of the log that were read to find the state.
    pub objects_replayed: u64,
}

/// Why a volume is not opened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OpenError {
    /// There is no volume.
    #[error("no volume is here")]
    NoVolume,
    /// Its last owner has not released it.
    #[error("the volume is in use by {}, which opened it as owner {}", .0.writer.host, .0.epoch)]
    InUse(Claim),
    /// Another opening was quicker, or has taken the volume meanwhile.
    #[error("{} has just taken the volume, as owner {}", .0.writer.host, .0.epoch)]
    Lost(Claim),
    /// There is no checkpoint of this name.
    #[error("the volume has no checkpoint named {0}")]
    NoCheckpoint(String),
    /// What should be an object of this volume is none, or is damaged.
    #[error("{name}: {what}")]
    Corrupt {
        /// The object.
        name: String,
        /// What is wrong with it.
        what: String,
    },
    /// Its log changed again and again while it was read.
    #[error("the volume changes faster than it can be read; its owner may still be at work")]
    Unsettled,
    /// A request was refused, for a reason that does not pass by itself.
    #[error("{name}: {error}")]
    Store {
        /// What it was about.
        name: String,
        /// What the store said.
        error: StoreError,
    },
}

/// A failed operation.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{what}")]
pub struct Fault {
    /// The stable kind.
    pub kind: ErrorKind,
    /// What happened, and to which object, in words for a person.
    pub what: String,
}

/// Who has the volume now, as far as is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fenced {
    /// The new owner's claim, where it could be read.
    pub by: Option<Claim>,
}

impl fmt::Display for Fenced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.by {
            Some(by) => write!(f, "{} has taken the volume over, as owner {}", by.writer.host, by.epoch),
            None => write!(f, "another owner has taken the volume over"),
        }
    }
}

/// What an owner is told to do beside operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Keep the state of all operations that are done as a checkpoint of this name: 1 to 64 of `a-z A-Z 0-9 . _ -`.
    Name(String),
    /// Give up a named checkpoint.
    Unname(String),
    /// Grow the volume to so many bytes, a multiple of 512.
    Resize(u64),
    /// Make everything durable and release the volume, so that its next owner need not take it over. Nothing is taken after that.
    Release,
}

/// Why a command was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CommandError {
    /// It makes no sense as it is.
    #[error("{0}")]
    Invalid(&'static str),
    /// A checkpoint cannot have this name.
    #[error("a checkpoint's name is 1 to 64 letters, digits, dots, dashes and underscores")]
    BadName,
    /// There is a checkpoint of this name.
    #[error("a checkpoint of this name exists")]
    NameTaken,
    /// There is none.
    #[error("there is no checkpoint of this name")]
    NoSuchName,
    /// There are as many as a volume can have.
    #[error("the volume has 64 named checkpoints, and no more are possible")]
    TooManyNames,
    /// Another command is under way.
    #[error("another command is under way")]
    Busy,
    /// Another owner has the volume.
    #[error("{0}")]
    Fenced(Fenced),
    /// It was not done in time; it may be later.
    #[error("{0}")]
    Store(Fault),
}

/// What a store does not do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ailment {
    /// Since when no request of this kind has been carried out.
    pub since: Nanos,
    /// The kind of request, see [`Request::kind`].
    pub request: &'static str,
    /// The stable kind of what operations fail with meanwhile.
    pub kind: ErrorKind,
    /// It has answered, and will not do it without somebody's help. Else it may pass by itself.
    pub is_refusal: bool,
    /// What was asked, and what the store said last.
    pub what: String,
}

/// A named checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Its name.
    pub name: String,
    /// The state that it keeps.
    pub at: Position,
}

/// Counts since the opening, and what there is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Creates that were sent.
    pub creates: u64,
    /// Gets that were sent.
    pub gets: u64,
    /// Lists that were sent.
    pub lists: u64,
    /// Deletes that were sent.
    pub deletes: u64,
    /// Requests that failed and were sent again.
    pub retries: u64,
    /// Bytes of objects that were sent.
    pub bytes_up: u64,
    /// Bytes of objects that were received.
    pub bytes_down: u64,
    /// Data of writes that were submitted.
    pub bytes_written: u64,
    /// Data that collection has copied.
    pub bytes_moved: u64,
    /// Bytes of checkpoints.
    pub bytes_checkpoints: u64,
    /// Commit points that no client asked for, see [`Limits::atomic_bytes_max`].
    pub commits_forced: u64,
    /// Objects of the log in the store.
    pub objects: u64,
    /// Bytes of these objects.
    pub stored_bytes: u64,
    /// Data in them that can be read.
    pub live_bytes: u64,
    /// Extents in the index.
    pub extents: u64,
    /// Memory of index and table of objects, in bytes.
    pub index_bytes: u64,
    /// Data in memory that is not in the store yet, in bytes.
    pub buffered_bytes: u64,
    /// Objects of the log behind the newest checkpoint.
    pub log_objects: u64,
    /// Since when the store has not carried out some kind of request, if it does not.
    pub away_since: Option<Nanos>,
}
