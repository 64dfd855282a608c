//! Another host has taken over the backing, or the journal on its side (P6).
//!
//! ```text
//!                ┌─ an operation there ends with `Fenced`, or the host says so ─┐
//!  Running, Stopping ─────────────────────────────────────────────────────────► Fenced, for good
//!  Recovering ────────────────────────────────────────────────────────────────► recovery fails
//! ```
//!
//! The other host has begun with what the backing had then. What this one has acknowledged since is on its cache alone: there
//! are two truths (hazard 9), and only the other one goes on. So this one says nothing more that a client could take for the
//! volume:
//!
//! 1. From the instant at which it is known nothing is answered well: no write, no flush, no read, not even of what is cached.
//! 2. Whoever waits is answered at once, and whoever comes later.
//! 3. No operation is started any more, at no device. The log stays as it is, with what the backing lacks.

use forebay_block::{DeviceResult, ErrorKind, IoError};

use crate::engine::{Engine, Life};
use crate::interface::{Asked, Command, CommonError, Effect, MarkError, RecoveryError, RequestId, Role};
use crate::mutation::Mutation;

/// What clients are told.
pub(super) const FENCED: IoError = IoError::new(ErrorKind::Fenced, "request");

impl Engine {
    /// Whether nothing follows from the end of an operation, as the backing is another host's; it may be this end that says so.
    pub(super) fn is_fenced_by(&mut self, asked: Option<Asked>, result: &DeviceResult) -> bool {
        let below = asked.is_some_and(|asked| asked.role != Role::Cache);
        if below && result.as_ref().is_err_and(|error| error.kind == ErrorKind::Fenced) {
            self.fence();
        }
        self.life == Life::Fenced
    }

    /// The backing is another host's from here on.
    pub(super) fn fence(&mut self) {
        match self.life {
            _ if self.mutant(Mutation::IgnoresFence) => return,
            Life::RecoveryFailed | Life::Stopped | Life::Fenced => return,
            Life::New | Life::Recovering => return self.recovery_failed(RecoveryError::Fenced),
            Life::Running | Life::Stopping => (self.life, self.fenced_at) = (Life::Fenced, Some(self.now)),
        }
        self.fence_what_is_decided();
        let (requests, reads) = (self.requests.unanswered(), self.reading.unanswered());
        requests.into_iter().chain(reads).for_each(|id| self.fenced_request(id));
        let mut commands = self.commands.give_up();
        commands.extend(self.looking_ends.take().map(|(id, _)| id));
        if !self.mutant(Mutation::FenceForgetsCommands) {
            commands.into_iter().for_each(|id| self.fenced_done(id));
        }
        let mut told = self.points.give_up(&MarkError::Fenced.into());
        told.extend(self.common.give_up(&MarkError::Fenced.into()));
        self.groups_told(told);
    }

    /// What has been decided in this turn and not carried out is not carried out any more.
    fn fence_what_is_decided(&mut self) {
        let decided = std::mem::take(&mut self.effects);
        if self.mutant(Mutation::FenceLetsAnswersGo) {
            self.effects = decided;
            return;
        }
        for effect in decided {
            match effect {
                Effect::Reply { id, .. } => self.fenced_request(id),
                Effect::CommandDone { id, .. } => self.fenced_done(id),
                Effect::Marked { id, .. } => self.fenced_marked(id),
                Effect::CommonDone { id, .. } => self.fenced_common(id),
                Effect::Io { id, .. } | Effect::RetireLog { id } => self.forget_io(id),
                Effect::Admitted { .. } => {}
                recovered @ Effect::Recovered(_) => self.effects.push(recovered),
            }
        }
    }

    /// A command comes afterwards.
    pub(super) fn fenced_command(&mut self, id: RequestId, command: &Command) {
        match command {
            Command::Mark { .. } => self.fenced_marked(id),
            Command::Common { .. } => self.fenced_common(id),
            _ => self.fenced_done(id),
        }
    }

    fn fenced_request(&mut self, id: RequestId) {
        self.figures.errors += 1;
        self.effects.push(Effect::Reply { id, result: Err(FENCED) });
    }

    fn fenced_done(&mut self, id: RequestId) {
        self.effects.push(Effect::CommandDone { id, result: Err(FENCED) });
    }

    fn fenced_marked(&mut self, id: RequestId) {
        self.effects.push(Effect::Marked { id, result: Err(MarkError::Fenced) });
    }

    fn fenced_common(&mut self, id: RequestId) {
        self.effects.push(Effect::CommonDone { id, result: Err(CommonError::Mark(MarkError::Fenced)) });
    }
}
