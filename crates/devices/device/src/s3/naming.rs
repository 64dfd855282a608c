//! Named checkpoints of a volume in an object store.

use std::io;

use forebay_objects::{Command, CommandError, ListError, named_in};

use crate::access::OpenError;
use crate::checkpoints::{Checkpoint, CheckpointChange, CheckpointDone, CheckpointError};
use crate::s3::client::Client;
use crate::s3::credentials::Environment;
use crate::s3::uri::S3Spec;
use crate::s3::workers::Store;

/// A change that is under way.
pub(super) struct Naming {
    name: String,
    done: CheckpointDone,
}

impl Naming {
    /// With what the vault is to do.
    pub(super) fn begin(change: CheckpointChange, done: CheckpointDone) -> (Self, Command) {
        let name = change.name().to_owned();
        let command = match change {
            CheckpointChange::Create(name) => Command::Name(name),
            CheckpointChange::Delete(name) => Command::Unname(name),
        };
        (Self { name, done }, command)
    }

    pub(super) fn end(self, result: Result<(), CommandError>) {
        let Self { name, done } = self;
        done(result.map_err(|error| match error {
            CommandError::BadName => CheckpointError::BadName,
            CommandError::NameTaken => CheckpointError::Exists(name),
            CommandError::NoSuchName => CheckpointError::Missing(name),
            CommandError::TooManyNames => CheckpointError::TooMany,
            CommandError::Busy => CheckpointError::Busy,
            CommandError::Fenced(by) => CheckpointError::Fenced(by.to_string()),
            CommandError::Store(fault) => CheckpointError::Store(fault.what),
            CommandError::Invalid(why) => CheckpointError::Store(why.to_owned()),
        }));
    }
}

/// The names that there are, from the store alone. An address that names one of them is of the same volume.
pub(super) fn list(spec: &S3Spec) -> Result<Vec<Checkpoint>, OpenError> {
    let failed =
        |why: String| OpenError::system("list the checkpoints of", spec.as_path(), io::Error::other(why));
    let client = Client::new(spec, &Environment::own(), 1).map_err(failed)?;
    let found = named_in(|request| client.carry_out(request)).map_err(|error| match error {
        ListError::NoVolume => OpenError::Missing { path: spec.as_path().to_owned() },
        error => failed(error.to_string()),
    })?;
    Ok(found.into_iter().map(|kept| Checkpoint { name: kept.name, time_ns: kept.time_ns }).collect())
}
