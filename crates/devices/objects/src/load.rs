//! Reading a checkpoint: its head, then the parts of its table of objects, then those of its index.

use crate::calls::{Calls, Outcome};
use crate::codec::{Damage, ExtentPart, Identity, Manifest, ObjectEntry, ObjectPart};
use crate::face::Position;
use crate::jobs::{Job, Step};
use crate::names;
use crate::state::State;
use crate::store::Request;

/// No part is longer.
const PART_BYTES_MAX: u64 = 17 << 20;
/// Parts that are read at a time.
const PARTS_MAX: u32 = 8;

/// What a part has brought.
pub(crate) enum Loaded {
    /// More is to come.
    Part,
    /// The checkpoint is whole.
    Whole,
    /// This object of it is gone: the checkpoint was given up while it was read, or the object is lost.
    Gone(String),
}

/// A checkpoint that is being read.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    at: Position,
    manifest: Option<Manifest>,
    /// Parts of the table of objects, in their order.
    objects: Vec<Option<Vec<ObjectEntry>>>,
    asked: u32,
    done: u32,
    /// Whether the index is read, too.
    with_index: bool,
}

/// What is wrong with an object of it.
pub(crate) type Wrong = (String, String);

impl Load {
    pub(crate) fn begin(at: Position, with_index: bool, calls: &mut Calls<Job>) -> Self {
        let request = Request::Get { name: names::index(at), from: 0, len: PART_BYTES_MAX };
        calls.start(Job::Open(Step::Manifest), request);
        Self { at, manifest: None, objects: Vec::new(), asked: 0, done: 0, with_index }
    }

    pub(crate) const fn at(&self) -> Position {
        self.at
    }

    /// The whole table of objects of a checkpoint that was read.
    pub(crate) fn objects(&self) -> impl Iterator<Item = &ObjectEntry> {
        self.objects.iter().flatten().flatten()
    }

    /// Takes the head.
    pub(crate) fn manifest(
        &mut self,
        state: &mut State,
        calls: &mut Calls<Job>,
        outcome: Outcome,
    ) -> Result<Loaded, Wrong> {
        let Outcome::Object { bytes, .. } = outcome else { return Ok(Loaded::Gone(names::index(self.at))) };
        let manifest = Manifest::decode(&bytes, &self.identity(state))
            .map_err(|damage| (names::index(self.at), damage.to_string()))?;
        // Parts come one after the other, so that what one claims is never believed before it is there.
        self.objects.resize_with(manifest.object_parts.min(PARTS_MAX) as usize, || None);
        if self.with_index {
            state.begin_with(&manifest);
        }
        state.parts.insert(self.at, manifest.object_parts + manifest.extent_parts);
        self.manifest = Some(manifest);
        Ok(self.ask(calls))
    }

    /// Takes a part.
    pub(crate) fn part(
        &mut self,
        state: &mut State,
        calls: &mut Calls<Job>,
        number: u32,
        outcome: Outcome,
    ) -> Result<Loaded, Wrong> {
        let Outcome::Object { bytes, .. } = outcome else {
            return Ok(Loaded::Gone(names::part(self.at, number)));
        };
        let wrong = |what: String| (names::part(self.at, number), what);
        let damaged = |damage: Damage| wrong(damage.to_string());
        let identity = self.identity(state);
        if number < self.object_parts() {
            let part = ObjectPart::decode(&bytes, &identity, number).map_err(damaged)?;
            let index = number as usize;
            if self.objects.len() <= index {
                self.objects.resize_with(index + 1, || None);
            }
            self.objects[index] = Some(part.0);
        } else {
            let part = ExtentPart::decode(&bytes, &identity, number).map_err(damaged)?;
            state.load_extents(&part).map_err(|what| wrong(what.to_owned()))?;
        }
        self.done += 1;
        if self.done == self.object_parts() && self.with_index {
            let all = std::mem::take(&mut self.objects);
            for entries in all.into_iter().flatten() {
                state.load_objects(&entries).map_err(|what| wrong(what.to_owned()))?;
            }
        }
        Ok(self.ask(calls))
    }

    fn object_parts(&self) -> u32 {
        self.manifest.as_ref().map_or(0, |manifest| manifest.object_parts)
    }

    const fn identity(&self, state: &State) -> Identity {
        Identity { volume: state.volume, at: self.at }
    }

    fn ask(&mut self, calls: &mut Calls<Job>) -> Loaded {
        let Some(manifest) = &self.manifest else { return Loaded::Part };
        let objects = manifest.object_parts;
        let all = if self.with_index { objects + manifest.extent_parts } else { objects };
        if self.done == all {
            return Loaded::Whole;
        }
        // Extents point to objects, which are read first.
        let end = if self.done < objects { objects } else { all };
        while self.asked < end.min(self.done + PARTS_MAX) {
            let name = names::part(self.at, self.asked);
            calls.start(
                Job::Open(Step::Part(self.asked)),
                Request::Get { name, from: 0, len: PART_BYTES_MAX },
            );
            self.asked += 1;
        }
        Loaded::Part
    }
}
