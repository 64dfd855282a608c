//! The state of a volume as its objects say it: a checkpoint, and the log behind it.

use std::collections::BTreeMap;

use crate::codec::{Ended, ExtentKind, ExtentPart, LogHead, Manifest, Note, OBJECT_SECTORS_MAX, ObjectEntry};
use crate::face::{Named, Position};
use crate::index::{CHUNK_SECTORS, Packed, Place};
use crate::map::{Map, Object};

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) volume: [u8; 16],
    pub(crate) volume_sectors: u64,
    pub(crate) map: Map,
    /// The last object of the log that counts.
    pub(crate) as_of: Position,
    /// When it was written: nanoseconds since 1970.
    pub(crate) time_ns: u64,
    pub(crate) named: Vec<Named>,
    /// Objects that named checkpoints need, by the state that each keeps.
    pub(crate) held: BTreeMap<Position, Vec<u32>>,
    /// How many parts the checkpoints have that are known.
    pub(crate) parts: BTreeMap<Position, u32>,
    /// Owners whose logs have ended, ascending.
    pub(crate) ended: Vec<Ended>,
}

impl State {
    /// A volume that was never written.
    pub(crate) fn empty(volume: [u8; 16], volume_sectors: u64, small_sectors: u32) -> Self {
        Self {
            volume,
            volume_sectors,
            map: Map::new(small_sectors),
            as_of: Position::default(),
            time_ns: 0,
            named: Vec::new(),
            held: BTreeMap::new(),
            parts: BTreeMap::new(),
            ended: Vec::new(),
        }
    }

    /// What the head of a checkpoint says.
    pub(crate) fn begin_with(&mut self, manifest: &Manifest) {
        self.volume_sectors = manifest.volume_sectors;
        self.as_of = manifest.identity.at;
        self.time_ns = manifest.as_of_ns;
        self.named.clone_from(&manifest.named);
        self.ended.clone_from(&manifest.ended);
    }

    /// What a part of the checkpoint's table of objects says; parts come in their order, before all extents.
    pub(crate) fn load_objects(&mut self, entries: &[ObjectEntry]) -> Result<(), &'static str> {
        for entry in entries {
            if self.map.slot_of(entry.at).is_some() {
                return Err("an object stands there twice");
            }
            self.map.add(stored(*entry));
        }
        Ok(())
    }

    /// What a part of the checkpoint's index says.
    pub(crate) fn load_extents(&mut self, part: &ExtentPart) -> Result<(), &'static str> {
        for (number, extents) in &part.0 {
            let base = u64::from(*number) * u64::from(CHUNK_SECTORS);
            let mut chunk = Vec::with_capacity(extents.len());
            if !self.map.index.is_clear(base, CHUNK_SECTORS.into()) {
                return Err("a part of the volume stands there twice");
            }
            for extent in extents {
                let (start, sectors) = (u32::from(extent.start), u32::from(extent.sectors));
                let place = Place { slot: extent.object, pos: extent.pos.into() };
                let object = self.map.get(place.slot).ok_or("an extent lies in no object")?;
                if place.pos + sectors > object.sectors
                    || base + u64::from(start + sectors) > self.volume_sectors
                {
                    return Err("an extent lies outside of its object or of the volume");
                }
                self.map.change(place.slot, |object| object.live += sectors);
                chunk.push(Packed::new(start, sectors, place));
            }
            self.map.index.load(*number, chunk);
        }
        Ok(())
    }

    /// Whether a state has a name.
    pub(crate) fn is_named(&self, at: Position) -> bool {
        self.named.iter().any(|named| named.at == at)
    }

    /// What a named checkpoint needs, which is kept from now on.
    pub(crate) fn hold(&mut self, named: Position, entries: &[ObjectEntry]) {
        if self.held.contains_key(&named) {
            return;
        }
        for entry in entries {
            let slot = self.map.slot_of(entry.at).unwrap_or_else(|| self.map.add(stored(*entry)));
            self.map.change(slot, |object| object.holds += 1);
            self.held.entry(named).or_default().push(slot);
        }
    }

    /// A named checkpoint needs nothing any more.
    pub(crate) fn let_go(&mut self, named: Position) {
        for slot in self.held.remove(&named).unwrap_or_default() {
            self.map.change(slot, |object| object.holds -= 1);
        }
    }

    /// What the next committed object of the log says.
    pub(crate) fn apply(&mut self, head: &LogHead, data_at: u32) -> Result<(), &'static str> {
        let at = head.identity.at;
        let sectors = head.payload_sectors();
        let slot = self.map.add(stored(ObjectEntry { at, data_at, sectors }));
        let mut pos = 0;
        for extent in &head.extents {
            let place = Place { slot, pos };
            match extent.kind {
                ExtentKind::Data => self.map.set(extent.start, extent.sectors.into(), Some(place)),
                ExtentKind::Zero => {
                    self.map.set(extent.start, extent.sectors.into(), None);
                    continue;
                }
                ExtentKind::Linked(from, from_pos) => {
                    let slot = self.map.slot_of(from).ok_or("it points to an object that is not there")?;
                    if from_pos + extent.sectors.min(OBJECT_SECTORS_MAX) > self.map.object(slot).sectors {
                        return Err("it points behind the end of an object");
                    }
                    let place = Place { slot, pos: from_pos };
                    self.map.set(extent.start, extent.sectors.into(), Some(place));
                    continue;
                }
                ExtentKind::Moved(from, from_pos) => {
                    if let Some(from) = self.map.slot_of(from) {
                        let from = Place { slot: from, pos: from_pos };
                        for (offset, sectors) in self.map.still_there(extent.start, extent.sectors, from) {
                            let start = extent.start + u64::from(offset);
                            self.map.set(start, sectors.into(), Some(place.plus(offset)));
                        }
                    }
                }
            }
            pos += extent.sectors;
        }
        for note in &head.notes {
            self.note(note);
        }
        self.volume_sectors = head.volume_sectors;
        self.as_of = at;
        self.time_ns = head.stamp.time_ns;
        Ok(())
    }

    /// A change of the list of named checkpoints. What they need is not looked at.
    pub(crate) fn note(&mut self, note: &Note) {
        match note {
            Note::Named(name, at) => self.named.push(Named { name: name.clone(), at: *at }),
            Note::Unnamed(name, at) => self.named.retain(|n| n.name != *name || n.at != *at),
        }
    }
}

fn stored(entry: ObjectEntry) -> Object {
    Object::stored(entry.at, entry.data_at, entry.sectors)
}
