//! What an owner is told to do beside operations, one command at a time.
//!
//! ```text
//!  name     ── commit, checkpoint ──► note ── durable ──► pointer ──► done
//!  unname   ── commit, note ── durable ──► its pointer goes ── gone ──► the checkpoint's objects are let go ──► done
//!  resize   ── an object with the new size ── durable ──► done
//!  release  ── nothing waits ──► an object that says so, the last one ── durable ──► done
//! ```
//!
//! - N1: a name counts until the note that gives it up is durable: whoever takes over may not find that note before, and needs what is named.
//! - N2: a checkpoint has the names as of its place in the log. So none is begun while a note is under way; one that waits for a mark gets it
//!   before the note.

use std::sync::Arc;

use forebay_block::Nanos;

use crate::calls::Calls;
use crate::checkpoint::{Checkpoints, Made};
use crate::codec::{Identity, Note, Pointer, Stamp, VOLUME_SECTORS_MAX};
use crate::face::{Command, CommandError, Effect, Position};
use crate::jobs::{Indexing, Job};
use crate::log::Log;
use crate::names;
use crate::state::State;
use crate::store::Request;
use crate::trash::Trash;

/// Most named checkpoints of a volume.
const NAMES_MAX: usize = 64;

#[derive(Clone, Debug)]
enum Stage {
    /// Until no other checkpoint is being made.
    ToName(String),
    Naming(String),
    Named(String, Position, u64),
    Pointing,
    Unnamed(String, Position, u64),
    /// Until readers cannot find it any more.
    Unpointing(Position),
    Resized(u64, u64),
    /// Until no operation waits.
    ToRelease,
    Releasing(u64),
}

#[derive(Clone, Debug)]
struct UnderWay {
    /// `None` when it was answered: it took too long.
    tag: Option<u64>,
    since: Nanos,
    stage: Stage,
}

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Commands {
    under_way: Option<UnderWay>,
    is_released: bool,
    effects: Vec<Effect>,
}

impl Commands {
    pub(crate) const fn is_released(&self) -> bool {
        self.is_released
    }

    pub(crate) fn is_releasing(&self) -> bool {
        matches!(self.stage(), Some(Stage::ToRelease | Stage::Releasing(_)))
    }

    /// Whether the names are to change: no further checkpoint is begun until that is durable.
    pub(crate) const fn is_naming(&self) -> bool {
        let Some(under_way) = &self.under_way else { return false };
        match under_way.stage {
            Stage::ToName(_) | Stage::Naming(_) | Stage::Named(..) | Stage::Unnamed(..) => true,
            Stage::Pointing
            | Stage::Unpointing(_)
            | Stage::Resized(..)
            | Stage::ToRelease
            | Stage::Releasing(_) => false,
        }
    }

    fn stage(&self) -> Option<&Stage> {
        self.under_way.as_ref().map(|under_way| &under_way.stage)
    }

    /// Takes a command.
    pub(crate) fn start(&mut self, now: Nanos, tag: u64, command: Command, state: &mut State, log: &mut Log) {
        match self.stage_of(command, state, log) {
            Ok(stage) => self.under_way = Some(UnderWay { tag: Some(tag), since: now, stage }),
            Err(error) => self.effects.push(Effect::Carried { tag, result: Err(error) }),
        }
    }

    fn stage_of(&self, command: Command, state: &mut State, log: &mut Log) -> Result<Stage, CommandError> {
        let invalid = |what| Err(CommandError::Invalid(what));
        if self.under_way.is_some() || self.is_released {
            return Err(CommandError::Busy);
        }
        match command {
            Command::Name(name) if !names::is_checkpoint_name(&name) => Err(CommandError::BadName),
            Command::Name(name) if state.named.iter().any(|named| named.name == name) => {
                Err(CommandError::NameTaken)
            }
            Command::Name(_) if state.named.len() >= NAMES_MAX => Err(CommandError::TooManyNames),
            Command::Name(name) => {
                // A checkpoint may wait for a mark, and the command for the checkpoint.
                log.commit(&mut state.map);
                Ok(Stage::ToName(name))
            }
            Command::Unname(name) => {
                let Some(named) = state.named.iter().find(|named| named.name == name).cloned() else {
                    return Err(CommandError::NoSuchName);
                };
                // A checkpoint may wait for a mark: the note is behind that.
                log.commit(&mut state.map);
                log.note(&mut state.map, Note::Unnamed(named.name.clone(), named.at));
                Ok(Stage::Unnamed(named.name, named.at, log.commit(&mut state.map)))
            }
            Command::Resize(bytes) => {
                let sectors = bytes / 512;
                if bytes % 512 != 0 || sectors < state.volume_sectors || sectors > VOLUME_SECTORS_MAX {
                    return invalid("a volume grows, by whole sectors of 512 bytes, up to 4 PiB");
                }
                log.volume_sectors = sectors;
                Ok(Stage::Resized(sectors, log.commit_anyway(&mut state.map, false)))
            }
            Command::Release => Ok(Stage::ToRelease),
        }
    }

    /// Goes on where that needs no answer of the store. `is_quiet`: no operation waits.
    pub(crate) fn go_on(
        &mut self,
        state: &mut State,
        log: &mut Log,
        checkpoints: &mut Checkpoints,
        is_quiet: bool,
    ) {
        let Some(under_way) = &mut self.under_way else { return };
        match &mut under_way.stage {
            Stage::ToName(name) if !checkpoints.is_busy() => {
                let name = std::mem::take(name);
                log.commit(&mut state.map);
                checkpoints.want(log, &state.map);
                under_way.stage = Stage::Naming(name);
            }
            Stage::ToRelease if is_quiet => {
                // Nothing is lost with the last object alone.
                log.commit(&mut state.map);
                under_way.stage = Stage::Releasing(log.commit_anyway(&mut state.map, true));
            }
            _ => {}
        }
    }

    /// A checkpoint exists.
    pub(crate) fn made(&mut self, made: &Made, state: &mut State, log: &mut Log) {
        let Some(UnderWay { stage, .. }) = &mut self.under_way else { return };
        if let Stage::Naming(name) = stage {
            let name = std::mem::take(name);
            // What it needs is kept before a later checkpoint can do without it.
            state.hold(made.at, &made.objects);
            let note = Note::Named(name.clone(), made.at);
            state.note(&note);
            log.note(&mut state.map, note);
            *stage = Stage::Named(name, made.at, log.commit(&mut state.map));
        }
    }

    /// So many objects of the log exist.
    pub(crate) fn durable(&mut self, durable: u64, state: &mut State, calls: &mut Calls<Job>, stamp: Stamp) {
        let Some(under_way) = &mut self.under_way else { return };
        match &under_way.stage {
            Stage::Named(name, at, needed) if *needed <= durable => {
                point(calls, Indexing::Pointer, state.volume, stamp, name, *at);
                under_way.stage = Stage::Pointing;
            }
            Stage::Unnamed(name, at, needed) if *needed <= durable => {
                state.note(&Note::Unnamed(name.clone(), *at));
                let request = Request::Delete { name: names::checkpoint(name, *at) };
                calls.start(Job::Index(Indexing::Unpointed), request);
                under_way.stage = Stage::Unpointing(*at);
            }
            Stage::Resized(sectors, needed) if *needed <= durable => {
                state.volume_sectors = *sectors;
                self.end();
            }
            Stage::Releasing(needed) if *needed <= durable => {
                self.is_released = true;
                self.end();
            }
            _ => {}
        }
    }

    /// Readers can find the checkpoint that was named.
    pub(crate) fn pointed(&mut self) {
        if matches!(self.stage(), Some(Stage::Pointing)) {
            self.end();
        }
    }

    /// Readers cannot find the checkpoint any more whose name was given up.
    pub(crate) fn unpointed(&mut self, state: &mut State, newest: Option<Position>, trash: &mut Trash) {
        let Some(Stage::Unpointing(at)) = self.stage() else { return };
        let at = *at;
        // Another name may keep the same state.
        if !state.is_named(at) {
            state.let_go(at);
            if newest != Some(at)
                && let Some(parts) = state.parts.remove(&at)
            {
                trash.add_checkpoint(at, parts);
            }
        }
        self.end();
    }

    fn end(&mut self) {
        if let Some(tag) = self.under_way.take().and_then(|under_way| under_way.tag) {
            self.effects.push(Effect::Carried { tag, result: Ok(()) });
        }
    }

    /// When the command was given that is not answered yet.
    pub(crate) fn since(&self) -> Option<Nanos> {
        self.under_way.as_ref().filter(|under_way| under_way.tag.is_some()).map(|under_way| under_way.since)
    }

    /// Answers the command with an error. It goes on.
    pub(crate) fn fail(&mut self, error: CommandError) {
        if let Some(tag) = self.under_way.as_mut().and_then(|under_way| under_way.tag.take()) {
            self.effects.push(Effect::Carried { tag, result: Err(error) });
        }
    }

    pub(crate) fn take_effects(&mut self, effects: &mut Vec<Effect>) {
        effects.append(&mut self.effects);
    }
}

/// Makes the object by which readers find a named checkpoint.
pub(crate) fn point(
    calls: &mut Calls<Job>,
    indexing: Indexing,
    volume: [u8; 16],
    stamp: Stamp,
    name: &str,
    at: Position,
) {
    let pointer = Pointer { identity: Identity { volume, at }, stamp, name: name.to_owned() };
    let request = Request::Create { name: names::checkpoint(name, at), bytes: Arc::new(pointer.encode()) };
    calls.start(Job::Index(indexing), request);
}
