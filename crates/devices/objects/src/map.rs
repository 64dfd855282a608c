//! The objects of the log and what of them can be read: the table of objects, and the index into them.

use std::collections::BTreeMap;

use crate::codec::payload_bytes;
use crate::face::Position;
use crate::index::{Chunks, Index, Piece, Place};

/// An object of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) at: Position,
    /// Where its payload begins, in bytes.
    pub(crate) data_at: u32,
    /// Sectors of its payload.
    pub(crate) sectors: u32,
    /// Sectors of its payload that the index points to.
    pub(crate) live: u32,
    /// Reads that are under way.
    pub(crate) pins: u32,
    /// Named checkpoints that need it.
    pub(crate) holds: u32,
    /// Whether it is in the store; else it is in memory.
    pub(crate) is_stored: bool,
    /// Whether it is going to be deleted.
    pub(crate) is_doomed: bool,
}

impl Object {
    /// An object of the log that is in the store.
    pub(crate) const fn stored(at: Position, data_at: u32, sectors: u32) -> Self {
        Self { at, data_at, sectors, live: 0, pins: 0, holds: 0, is_stored: true, is_doomed: false }
    }

    /// One that is not there yet.
    pub(crate) const fn in_memory(at: Position) -> Self {
        Self { at, data_at: 0, sectors: 0, live: 0, pins: 0, holds: 0, is_stored: false, is_doomed: false }
    }

    /// Its length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.data_at) + payload_bytes(self.sectors)
    }

    /// Whether nothing in it is needed, and it waits for a checkpoint that does without it.
    const fn is_dead(&self) -> bool {
        self.live == 0 && self.holds == 0 && !self.is_doomed
    }
}

/// Sums over the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Objects that are stored.
    pub(crate) objects: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// Live sectors of all objects.
    pub(crate) live_sectors: u64,
    /// Bytes of stored objects of which nothing is needed, and that are not being deleted.
    pub(crate) dead_bytes: u64,
    /// Sectors of the payloads of stored objects that collection could empty: something in them is live, and no checkpoint holds them.
    pub(crate) used_sectors: u64,
    /// Of these, the live ones.
    pub(crate) used_live_sectors: u64,
    /// Of these objects, those with little data.
    pub(crate) small: u64,
}

impl Sums {
    fn change(&mut self, small_sectors: u32, object: &mut Object, change: impl FnOnce(&mut Object)) {
        self.count(small_sectors, object, -1);
        change(object);
        self.count(small_sectors, object, 1);
    }

    fn count(&mut self, small_sectors: u32, object: &Object, sign: i64) {
        let add = |sum: &mut u64, value: u64| *sum = sum.wrapping_add_signed(sign * value as i64);
        add(&mut self.live_sectors, object.live.into());
        if !object.is_stored {
            return;
        }
        add(&mut self.objects, 1);
        add(&mut self.bytes, object.bytes());
        if object.is_dead() {
            add(&mut self.dead_bytes, object.bytes());
        } else if object.live > 0 && object.holds == 0 {
            add(&mut self.used_sectors, object.sectors.into());
            add(&mut self.used_live_sectors, object.live.into());
            add(&mut self.small, u64::from(object.sectors < small_sectors));
        }
    }
}

/// See [`Map::snapshot`].
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    /// The last object of the log that counts.
    pub(crate) at: Position,
    pub(crate) chunks: Chunks,
    /// Objects in which something is live, in the order of the log.
    pub(crate) objects: Vec<u32>,
    /// Which of these an object is, by its row.
    pub(crate) ordinals: Vec<u32>,
    /// Objects in which nothing is live, and that no named checkpoint needs.
    pub(crate) dead: Vec<u32>,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct Map {
    pub(crate) index: Index,
    slots: Vec<Option<Object>>,
    free: Vec<u32>,
    by_place: BTreeMap<Position, u32>,
    sums: Sums,
    /// Objects with fewer sectors are small.
    small_sectors: u32,
}

/// What an object takes in memory, in bytes: a row, and an entry of the table by place at its usual filling.
const OBJECT_BYTES: u64 = size_of::<Option<Object>>() as u64 + 30;

impl Map {
    pub(crate) fn new(small_sectors: u32) -> Self {
        Self {
            index: Index::default(),
            slots: Vec::new(),
            free: Vec::new(),
            by_place: BTreeMap::new(),
            sums: Sums::default(),
            small_sectors,
        }
    }

    /// A row for an object of which nothing is known but its place.
    pub(crate) fn add(&mut self, object: Object) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as u32
        });
        self.by_place.insert(object.at, slot);
        self.slots[slot as usize] = Some(object);
        self.sums.count(self.small_sectors, &object, 1);
        slot
    }

    /// Forgets an object that nothing points to.
    pub(crate) fn remove(&mut self, slot: u32) {
        if let Some(object) = self.slots.get_mut(slot as usize).and_then(Option::take) {
            assert_eq!(object.live, 0, "object {} is forgotten while it is used", object.at);
            self.by_place.remove(&object.at);
            self.free.push(slot);
            self.sums.count(self.small_sectors, &object, -1);
        }
    }

    /// # Panics
    /// If the row is empty: the index points to rows that are there.
    pub(crate) fn object(&self, slot: u32) -> &Object {
        let row = self.slots.get(slot as usize).and_then(Option::as_ref);
        #[expect(clippy::expect_used, reason = "who names a row has a use of it, which keeps it")]
        row.expect("the row of an object that is used")
    }

    pub(crate) fn get(&self, slot: u32) -> Option<&Object> {
        self.slots.get(slot as usize)?.as_ref()
    }

    /// Whether an owner has an object here.
    pub(crate) fn has_of(&self, epoch: u64) -> bool {
        let place = |seq| Position { epoch, seq };
        self.by_place.range(place(0)..=place(u64::MAX)).next().is_some()
    }

    pub(crate) fn slot_of(&self, at: Position) -> Option<u32> {
        self.by_place.get(&at).copied()
    }

    /// All objects with their rows, in the order of the log.
    pub(crate) fn objects(&self) -> impl Iterator<Item = (u32, &Object)> {
        self.by_place.values().filter_map(|slot| Some((*slot, self.get(*slot)?)))
    }

    pub(crate) fn change(&mut self, slot: u32, change: impl FnOnce(&mut Object)) {
        if let Some(Some(object)) = self.slots.get_mut(slot as usize) {
            self.sums.change(self.small_sectors, object, change);
        }
    }

    pub(crate) fn sums(&self) -> Sums {
        self.sums
    }

    /// From now on a range of the volume lies there, or reads as zeroes.
    pub(crate) fn set(&mut self, start: u64, sectors: u64, place: Option<Place>) {
        let Self { index, slots, sums, small_sectors, .. } = self;
        index.set(start, sectors, place, &mut |slot, sectors| {
            if let Some(Some(object)) = slots.get_mut(slot as usize) {
                sums.change(*small_sectors, object, |object| object.live -= sectors);
            }
        });
        if let Some(place) = place {
            self.change(place.slot, |object| object.live += sectors as u32);
        }
    }

    /// The parts of a range that still lie in an object from a sector of its payload on: offset in the range, and sectors.
    pub(crate) fn still_there(&self, start: u64, sectors: u32, from: Place) -> Vec<(u32, u32)> {
        let pieces = self.index.pieces(start, sectors.into());
        let is_there = |piece: &Piece| piece.place == Some(from.plus((piece.start - start) as u32));
        pieces.iter().filter(|p| is_there(p)).map(|p| ((p.start - start) as u32, p.sectors as u32)).collect()
    }

    /// What a checkpoint as of an object of the log consists of: everything up to it is in the map, and nothing else.
    pub(crate) fn snapshot(&self, at: Position) -> Snapshot {
        let mut snapshot = Snapshot {
            at,
            chunks: self.index.snapshot(),
            objects: Vec::new(),
            ordinals: vec![u32::MAX; self.slots.len()],
            dead: Vec::new(),
        };
        for (slot, object) in self.objects() {
            if object.live > 0 {
                snapshot.ordinals[slot as usize] = snapshot.objects.len() as u32;
                snapshot.objects.push(slot);
            } else if object.is_dead() {
                snapshot.dead.push(slot);
            }
        }
        snapshot
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.index.memory_bytes() + self.slots.capacity() as u64 * OBJECT_BYTES
    }
}
