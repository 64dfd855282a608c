//! States of a store that are kept under a name, for other hosts to read.

use thiserror::Error;

/// What is to become of a named checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckpointChange {
    /// All that the device has acknowledged gets this name, and is made durable for it. What only a cache has is not in it.
    Create(String),
    /// It is given up, and nobody can open it any more.
    Delete(String),
}

impl CheckpointChange {
    /// The name that it is about.
    pub fn name(&self) -> &str {
        match self {
            Self::Create(name) | Self::Delete(name) => name,
        }
    }
}

/// A named checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Its name.
    pub name: String,
    /// When it was named: nanoseconds since 1970.
    pub time_ns: u64,
}

/// Why a checkpoint was not made, or not given up.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CheckpointError {
    /// The device keeps none.
    #[error("its backing keeps no checkpoints: a volume in an object store (s3://) does")]
    Unsupported,
    /// The volume is only read here.
    #[error("it is served read-only; its checkpoints are changed where it is written")]
    ReadOnly,
    /// It cannot have this name.
    #[error("a checkpoint's name is 1 to 64 letters, digits, dots, dashes and underscores")]
    BadName,
    /// There is one of this name.
    #[error("there is a checkpoint '{0}'; choose another name, or delete that one first")]
    Exists(String),
    /// There is none of this name.
    #[error("there is no checkpoint '{0}'; `forebay checkpoint list` shows those that there are")]
    Missing(String),
    /// There are as many as there can be.
    #[error("it has 64 checkpoints, and no more are possible; delete one first")]
    TooMany,
    /// Another one is under way.
    #[error("another checkpoint is being made or given up; try again when that has ended")]
    Busy,
    /// Another host has the volume.
    #[error("{0}")]
    Fenced(String),
    /// The store has not carried it out in time.
    #[error("{0}. It may still be done when the store is well again: look with `forebay checkpoint list`")]
    Store(String),
}

/// Is called once when a change is durable, or was not made.
pub type CheckpointDone = Box<dyn FnOnce(Result<(), CheckpointError>) + Send>;
