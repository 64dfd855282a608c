//! Making a new volume under a prefix that has nothing else.

use std::sync::Arc;

use forebay_block::Nanos;
use thiserror::Error;

use crate::calls::{Calls, HEAD_GUESS_BYTES, Outcome};
use crate::codec::{Stamp, VOLUME_SECTORS_MAX, VolumeMark};
use crate::face::{Ailment, Effect, Limits, Writer};
use crate::names;
use crate::store::{Answer, Request, StoreError};

/// What a new volume is to be.
#[derive(Clone, Debug)]
pub struct CreateParams {
    /// Its identity: random bytes.
    pub volume: [u8; 16],
    /// Its size in bytes: a multiple of 512 up to 4 PiB.
    pub size_bytes: u64,
    /// Who makes it.
    pub writer: Writer,
    /// The time of day: nanoseconds since 1970.
    pub time_ns: u64,
    /// Of these, the pauses count.
    pub limits: Limits,
}

/// Why a volume was not made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CreateError {
    /// The size makes no sense.
    #[error("a volume has a size of whole sectors of 512 bytes, up to 4 PiB")]
    Size,
    /// There is a volume already.
    #[error("there is a volume already")]
    Exists,
    /// There is something else, as this object.
    #[error("there is something else: {0}")]
    Foreign(String),
    /// A request was refused, for a reason that does not pass by itself.
    #[error("{name}: {error}")]
    Store {
        /// What it was about.
        name: String,
        /// What the store said.
        error: StoreError,
    },
}

/// A volume that is being made; driven as a [`Vault`](crate::Vault).
#[derive(Clone, Debug)]
pub struct Creation {
    calls: Calls<()>,
    mark: VolumeMark,
    ended: Option<Result<(), CreateError>>,
}

impl Creation {
    /// Begins to make a volume.
    pub fn new(params: &CreateParams) -> Self {
        let mut calls = Calls::new(&params.limits);
        let sectors = params.size_bytes / 512;
        let stamp = Stamp { nonce: params.writer.nonce, time_ns: params.time_ns };
        let mark = VolumeMark { volume: params.volume, sectors, stamp };
        let is_size = params.size_bytes.is_multiple_of(512) && (1..=VOLUME_SECTORS_MAX).contains(&sectors);
        if is_size {
            calls.start((), Request::Get { name: names::VOLUME.to_owned(), from: 0, len: HEAD_GUESS_BYTES });
        }
        Self { calls, mark, ended: (!is_size).then_some(Err(CreateError::Size)) }
    }

    /// How it ended, once it has.
    pub const fn ended(&self) -> Option<&Result<(), CreateError>> {
        self.ended.as_ref()
    }

    /// What the store does not do.
    pub fn trouble(&self) -> Option<&Ailment> {
        self.calls.trouble()
    }

    /// Appends the requests to be carried out.
    pub fn poll(&mut self, now: Nanos, effects: &mut Vec<Effect>) {
        self.calls.poll(now, effects);
    }

    /// When [`Creation::poll`] must be called.
    pub fn deadline(&self) -> Option<Nanos> {
        self.calls.deadline()
    }

    /// Takes the store's answer to a request.
    pub fn answered(&mut self, now: Nanos, id: u64, result: Result<Answer, StoreError>) {
        let Some(((), outcome)) = self.calls.answered(now, id, result) else { return };
        self.ended = match outcome {
            Outcome::Missing => {
                self.calls.start((), Request::List { prefix: String::new(), after: String::new() });
                None
            }
            Outcome::Page { names, .. } => match names.first() {
                None => {
                    let bytes = Arc::new(self.mark.encode());
                    self.calls.start((), Request::Create { name: names::VOLUME.to_owned(), bytes });
                    None
                }
                Some(first) => Some(Err(CreateError::Foreign(first.clone()))),
            },
            Outcome::Created => Some(Ok(())),
            Outcome::Failed { name, error } => Some(Err(CreateError::Store { name, error })),
            _ => Some(Err(CreateError::Exists)),
        };
    }
}
