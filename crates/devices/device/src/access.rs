//! What a device is opened for, and why it cannot be.

use std::io;
use std::path::{Path, PathBuf};

use forebay_block::words_of;
use forebay_guard::Foreign;
use thiserror::Error;

/// What a device is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading and writing.
    ReadWrite,
    /// Reading and writing, although another host may have it, which is surely dead: what can be taken away from there is, for good.
    TakeOver,
    /// Reading alone: nothing can be written through it, and what cannot be written to is opened all the same.
    ReadOnly,
    /// As reading alone, although another host may have it and write meanwhile: what is read may be of no single instant, and decides
    /// only what is not tried at all.
    Look,
}

impl Access {
    /// For writing, `takeover` if the user has said that another host that has it is dead.
    pub const fn to_write(takeover: bool) -> Self {
        if takeover { Self::TakeOver } else { Self::ReadWrite }
    }

    /// Whether it can be written to.
    pub const fn writes(self) -> bool {
        !matches!(self, Self::ReadOnly | Self::Look)
    }
}

/// Why a device could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// There is nothing at the path.
    #[error("{} does not exist (nothing is created silently: `truncate -s SIZE` or `forebay format` makes it)", .path.display())]
    Missing {
        /// The path.
        path: PathBuf,
    },
    /// Somebody else uses it (P6).
    #[error("{} is in use by {holder}", .path.display())]
    InUse {
        /// The path.
        path: PathBuf,
        /// Who, as far as can be found out.
        holder: String,
    },
    /// It is to be written to, and cannot be.
    #[error(
        "{} can only be read: {why}; make it writable, or look at what is on it with `forebay serve --read-only`", .path.display()
    )]
    ReadOnly {
        /// The path.
        path: PathBuf,
        /// How that is known.
        why: &'static str,
    },
    /// It is something that cannot be a device.
    #[error("{} is {what}, neither a regular file nor a block device", .path.display())]
    NotADevice {
        /// The path.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// An object that it is made of is missing or damaged.
    #[error(
        "{} is damaged: {object}: {what}; put the object back, or serve a checkpoint of the volume (`,checkpoint=NAME`)", .path.display()
    )]
    Damaged {
        /// The path.
        path: PathBuf,
        /// Which object.
        object: String,
        /// What is wrong with it.
        what: String,
    },
    /// Another user may have put it there.
    #[error(transparent)]
    Foreign(Foreign),
    /// The system refused.
    #[error("cannot {doing} {}: {}", .path.display(), words_of(.source))]
    System {
        /// What was tried.
        doing: &'static str,
        /// On which path.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

impl OpenError {
    /// Whether there is nothing to be opened.
    pub fn is_missing(&self) -> bool {
        match self {
            Self::Missing { .. } => true,
            Self::System { source, .. } => source.kind() == io::ErrorKind::NotFound,
            _ => false,
        }
    }

    pub(crate) fn system(doing: &'static str, path: &Path, source: io::Error) -> Self {
        Self::System { doing, path: path.to_owned(), source }
    }

    /// An error of a [`forebay_guard::SideFile`].
    pub fn of_side_file(doing: &'static str, path: &Path, source: io::Error) -> Self {
        match source.downcast::<Foreign>() {
            Ok(foreign) => Self::Foreign(foreign),
            Err(source) if source.kind() == io::ErrorKind::NotFound => {
                Self::Missing { path: path.to_owned() }
            }
            Err(source) => Self::System { doing, path: path.to_owned(), source },
        }
    }
}
