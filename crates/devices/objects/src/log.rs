//! The writer's end of the log: writes are gathered into objects, which are created in their order, several at a time.
//!
//! ```text
//!  write, zero ──► open ── full, or a commit is asked for ──► sealed ── room among the flights ──► flying ── created ──► durable
//! ```
//!
//! - L1: an object counts as durable when it and all before it exist.
//! - L2: what is written after an object was sealed goes to a later one. Within the open object a sector that is written again is written
//!   in its place: objects appear wholly or not at all.
//! - L3: an object has the commit mark if a flush or a group ends with it; recovery takes the log up to the last one.
//! - L4: each object says how many objects before it exist for certain; the last one of an owner that releases the volume has no data, and
//!   says that all do. So a later opening notices one that is missing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use forebay_block::Commit;

use crate::codec::{Extent, ExtentKind, Identity, LogHead, Note, Span, Stamp, head_bytes, read_pieces};
use crate::face::{Limits, Position};
use crate::index::Place;
use crate::map::{Map, Object, Snapshot};

/// Most extents of an object.
const EXTENTS_MAX: usize = 8192;
/// What an extent without data counts for among the buffered bytes.
const BARE_CHARGE_BYTES: u64 = 64;

/// An object that is not sent yet.
#[derive(Clone, Debug)]
struct Batch {
    slot: u32,
    seq: u64,
    extents: Vec<Extent>,
    notes: Vec<Note>,
    data: Vec<u8>,
    /// What it counts for among the buffered bytes.
    charge: u64,
    commit: bool,
    released: bool,
}

impl Batch {
    fn sectors(&self) -> u32 {
        (self.data.len() / 512) as u32
    }
}

/// An object that is being created.
#[derive(Clone)]
struct Flight {
    slot: u32,
    bytes: Arc<Vec<u8>>,
    data_bytes: u64,
    charge: u64,
}

impl fmt::Debug for Flight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes.len())
    }
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    volume: [u8; 16],
    nonce: [u8; 16],
    epoch: u64,
    object_sectors: u32,
    flights_max: usize,
    atomic_bytes_max: u64,
    /// Size of the volume, as objects from now on say.
    pub(crate) volume_sectors: u64,
    next_seq: u64,
    open: Option<Batch>,
    /// Somebody waits for the commit that the open object is to bear.
    is_wanted: bool,
    sealed: VecDeque<Batch>,
    flying: BTreeMap<u64, Flight>,
    /// Objects that exist while one before them does not.
    early: BTreeSet<u64>,
    durable: u64,
    /// Data that was sealed since the last commit mark.
    uncommitted_bytes: u64,
    /// Whether the last sealed object has the mark.
    is_committed: bool,
    /// A group is being taken, which bears the mark at its end.
    is_in_group: bool,
    buffered_bytes: u64,
    wants_snapshot: bool,
    snapshot: Option<Snapshot>,
    pub(crate) commits_forced: u64,
}

impl Log {
    /// The log of an owner whose first object exists.
    pub(crate) fn new(
        volume: [u8; 16],
        nonce: [u8; 16],
        epoch: u64,
        volume_sectors: u64,
        limits: &Limits,
    ) -> Self {
        Self {
            volume,
            nonce,
            epoch,
            object_sectors: (limits.object_bytes / 512) as u32,
            flights_max: limits.flights_max,
            atomic_bytes_max: limits.atomic_bytes_max,
            volume_sectors,
            next_seq: 1,
            open: None,
            is_wanted: false,
            sealed: VecDeque::new(),
            flying: BTreeMap::new(),
            early: BTreeSet::new(),
            durable: 1,
            uncommitted_bytes: 0,
            is_committed: true,
            is_in_group: false,
            buffered_bytes: 0,
            wants_snapshot: false,
            snapshot: None,
            commits_forced: 0,
        }
    }

    pub(crate) const fn position(&self, seq: u64) -> Position {
        Position { epoch: self.epoch, seq }
    }

    /// How many objects exist without a gap.
    pub(crate) const fn durable(&self) -> u64 {
        self.durable
    }

    pub(crate) const fn buffered_bytes(&self) -> u64 {
        self.buffered_bytes
    }

    fn open(&mut self, map: &mut Map) -> &mut Batch {
        let (seq, epoch) = (self.next_seq, self.epoch);
        self.open.get_or_insert_with(|| {
            self.next_seq += 1;
            let at = Position { epoch, seq };
            Batch {
                slot: map.add(Object::in_memory(at)),
                seq,
                extents: Vec::new(),
                notes: Vec::new(),
                data: Vec::new(),
                charge: 0,
                commit: false,
                released: false,
            }
        })
    }

    /// Takes a client's write of whole sectors, at most as many as an object has.
    pub(crate) fn write(&mut self, map: &mut Map, start: u64, data: &[u8]) {
        let mut fresh = 0_usize;
        let mut at = 0_usize;
        // Sectors that lie in the open object already are written over there; what is between them is appended.
        for piece in map.index.pieces(start, data.len() as u64 / 512) {
            let len = piece.sectors as usize * 512;
            let open = self.open.as_mut();
            if let (Some(batch), Some(place)) = (open, piece.place)
                && place.slot == batch.slot
            {
                let from = place.pos as usize * 512;
                batch.data[from..from + len].copy_from_slice(&data[at..at + len]);
                self.append(map, start + fresh as u64 / 512, &data[fresh..at]);
                fresh = at + len;
            }
            at += len;
        }
        self.append(map, start + fresh as u64 / 512, &data[fresh..]);
    }

    fn append(&mut self, map: &mut Map, mut start: u64, mut data: &[u8]) {
        while !data.is_empty() {
            let object_sectors = self.object_sectors;
            let batch = self.open(map);
            let room = (object_sectors - batch.sectors()) as usize * 512;
            let (now, later) = data.split_at(data.len().min(room));
            let sectors = (now.len() / 512) as u32;
            let place = Place { slot: batch.slot, pos: batch.sectors() };
            batch.data.extend_from_slice(now);
            match batch.extents.last_mut() {
                Some(last)
                    if last.kind == ExtentKind::Data && last.start + u64::from(last.sectors) == start =>
                {
                    last.sectors += sectors;
                }
                _ => batch.extents.push(Extent { start, sectors, kind: ExtentKind::Data }),
            }
            batch.charge += now.len() as u64;
            let is_full = batch.sectors() == object_sectors || batch.extents.len() >= EXTENTS_MAX;
            map.set(start, sectors.into(), Some(place));
            self.buffered_bytes += now.len() as u64;
            if is_full {
                self.seal_full(map);
            }
            start += u64::from(sectors);
            data = later;
        }
    }

    /// A range reads as zeroes from now on.
    pub(crate) fn zero(&mut self, map: &mut Map, start: u64, sectors: u64) {
        if map.index.is_clear(start, sectors) {
            return;
        }
        map.set(start, sectors, None);
        let (mut at, mut left) = (start, sectors);
        while left > 0 {
            let part = left.min(u32::MAX.into()) as u32;
            let extents = &mut self.open(map).extents;
            match extents.last_mut() {
                Some(last)
                    if last.kind == ExtentKind::Zero
                        && last.start + u64::from(last.sectors) == at
                        && last.sectors.checked_add(part).is_some() =>
                {
                    last.sectors += part;
                }
                _ => self.push_bare(map, Extent { start: at, sectors: part, kind: ExtentKind::Zero }),
            }
            (at, left) = (at + u64::from(part), left - u64::from(part));
        }
    }

    /// Adds an extent that has no data in the object.
    fn push_bare(&mut self, map: &mut Map, extent: Extent) {
        let batch = self.open(map);
        batch.extents.push(extent);
        batch.charge += BARE_CHARGE_BYTES;
        let is_full = batch.extents.len() >= EXTENTS_MAX;
        self.buffered_bytes += BARE_CHARGE_BYTES;
        if is_full {
            self.seal_full(map);
        }
    }

    /// Carries out a group: data that is moved is not written again. Only the last object bears the commit mark. Gives how many objects
    /// must exist for it.
    pub(crate) fn group(&mut self, map: &mut Map, commit: &Commit) -> u64 {
        // Who waits for a commit mark has it before.
        self.seal_asked(map);
        self.is_in_group = true;
        for moved in &commit.moves {
            for piece in map.index.pieces(moved.from / 512, moved.len / 512) {
                let start = moved.to / 512 + (piece.start - moved.from / 512);
                match piece.place {
                    None => self.zero(map, start, piece.sectors),
                    Some(place) => {
                        let kind = ExtentKind::Linked(map.object(place.slot).at, place.pos);
                        map.set(start, piece.sectors, Some(place));
                        self.push_bare(map, Extent { start, sectors: piece.sectors as u32, kind });
                    }
                }
            }
        }
        for moved in &commit.moves {
            self.zero(map, moved.from / 512, moved.len / 512);
        }
        for (offset, len) in &commit.zeroes {
            self.zero(map, offset / 512, len / 512);
        }
        self.write(map, commit.head_offset / 512, &commit.head);
        self.is_in_group = false;
        self.commit(map)
    }

    /// Puts a note into the open object.
    pub(crate) fn note(&mut self, map: &mut Map, note: Note) {
        self.open(map).notes.push(note);
    }

    /// Writes copies of what still lies where it was copied from into an object of their own. Gives the bytes that were taken.
    pub(crate) fn copy(&mut self, map: &mut Map, copies: &[Copied]) -> u64 {
        self.seal_asked(map);
        let mut taken = 0;
        for copied in copies {
            let from = map.object(copied.from.slot).at;
            for (offset, sectors) in map.still_there(copied.start, copied.sectors, copied.from) {
                let object_sectors = self.object_sectors;
                let batch = self.open(map);
                let bytes = &copied.data[offset as usize * 512..(offset + sectors) as usize * 512];
                let place = Place { slot: batch.slot, pos: batch.sectors() };
                batch.data.extend_from_slice(bytes);
                batch.charge += bytes.len() as u64;
                let start = copied.start + u64::from(offset);
                let kind = ExtentKind::Moved(from, copied.from.pos + offset);
                batch.extents.push(Extent { start, sectors, kind });
                assert!(batch.sectors() <= object_sectors, "no more is copied than an object has room for");
                map.set(start, sectors.into(), Some(place));
                taken += bytes.len() as u64;
            }
        }
        self.buffered_bytes += taken;
        if self.open.is_some() {
            // Copies change nothing that a client sees: they commit themselves where nothing before them waits for a commit.
            self.seal(map, self.is_committed);
        }
        taken
    }

    /// Asks for a commit mark behind all that was written. Gives how many objects must exist for it; that many may exist already.
    pub(crate) fn ask_commit(&mut self, map: &mut Map) -> u64 {
        if self.open.is_none() && !self.is_committed {
            if let Some(last) = self.sealed.back_mut() {
                last.commit = true;
                self.committed(map);
            } else {
                // The last object is on its way without the mark.
                self.open(map);
            }
        }
        self.is_wanted = self.open.is_some();
        self.next_seq
    }

    /// Seals the open object with the mark, so that nothing is uncommitted. Gives how many objects must exist for it.
    pub(crate) fn commit(&mut self, map: &mut Map) -> u64 {
        let needed = self.ask_commit(map);
        self.seal_asked(map);
        needed
    }

    /// The same with an object of its own if need be, which says how large the volume is, and whether this owner releases it.
    pub(crate) fn commit_anyway(&mut self, map: &mut Map, released: bool) -> u64 {
        self.open(map).released = released;
        self.commit(map)
    }

    /// Seals the open object, with the mark if somebody waits for it.
    fn seal_asked(&mut self, map: &Map) {
        self.seal(map, self.is_wanted);
    }

    fn seal_full(&mut self, map: &Map) {
        let open_bytes = self.open.as_ref().map_or(0, |batch| batch.charge);
        let is_due = self.uncommitted_bytes + open_bytes >= self.atomic_bytes_max;
        let is_forced = is_due && !self.is_wanted && !self.is_in_group;
        self.commits_forced += u64::from(is_forced);
        self.seal(map, is_forced || self.is_wanted);
    }

    fn seal(&mut self, map: &Map, commit: bool) {
        let Some(mut batch) = self.open.take() else { return };
        batch.commit = commit;
        self.uncommitted_bytes += batch.charge;
        self.is_wanted = false;
        self.is_committed = false;
        self.sealed.push_back(batch);
        if commit {
            self.committed(map);
        }
    }

    /// The last object has the mark, and nothing is open: the index is the state as of it.
    fn committed(&mut self, map: &Map) {
        self.is_committed = true;
        self.uncommitted_bytes = 0;
        if std::mem::take(&mut self.wants_snapshot) {
            self.snapshot = Some(map.snapshot(self.position(self.next_seq - 1)));
        }
    }

    /// Asks for a snapshot as of the next commit mark, or of now if nothing is uncommitted.
    pub(crate) fn want_snapshot(&mut self, map: &Map) {
        if self.open.is_none() && self.is_committed {
            self.snapshot = Some(map.snapshot(self.position(self.next_seq - 1)));
        } else {
            self.wants_snapshot = true;
        }
    }

    /// The snapshot that was asked for, once.
    pub(crate) const fn take_snapshot(&mut self) -> Option<Snapshot> {
        self.snapshot.take()
    }

    /// The next object to be created, if there is room for its flight: its sequence number and bytes.
    pub(crate) fn take_off(&mut self, map: &mut Map, time_ns: u64) -> Option<(u64, Arc<Vec<u8>>)> {
        if self.flying.len() >= self.flights_max {
            return None;
        }
        if self.sealed.is_empty() && self.is_wanted {
            self.seal_asked(map);
        }
        // The last object is a witness of all others: it comes when they exist.
        let durable = self.durable;
        let batch = self.sealed.pop_front_if(|batch| !batch.released || batch.seq == durable)?;
        let stamp = Stamp { nonce: self.nonce, time_ns };
        let mut head = LogHead::new(self.identity(batch.seq), stamp, self.volume_sectors);
        (head.commit, head.released, head.known) = (batch.commit, batch.released, self.durable);
        (head.extents, head.notes) = (batch.extents, batch.notes);
        let bytes = Arc::new(head.encode(&batch.data));
        let data_bytes = batch.data.len() as u64;
        let data_at = head_bytes(&bytes).unwrap_or_default() as u32;
        map.change(batch.slot, |object| {
            object.data_at = data_at;
            object.sectors = (data_bytes / 512) as u32;
        });
        self.flying.insert(
            batch.seq,
            Flight { slot: batch.slot, bytes: Arc::clone(&bytes), data_bytes, charge: batch.charge },
        );
        Some((batch.seq, bytes))
    }

    /// An object exists.
    pub(crate) fn created(&mut self, map: &mut Map, seq: u64) {
        let Some(flight) = self.flying.remove(&seq) else { return };
        map.change(flight.slot, |object| object.is_stored = true);
        self.buffered_bytes -= flight.charge;
        self.early.insert(seq);
        while self.early.remove(&self.durable) {
            self.durable += 1;
        }
    }

    /// The data of sectors that are in memory.
    pub(crate) fn read(&self, place: Place, out: &mut [u8]) {
        let from = place.pos as usize * 512;
        let is_it = |batch: &&Batch| batch.slot == place.slot;
        if let Some(batch) = self.open.iter().chain(&self.sealed).find(is_it) {
            out.copy_from_slice(&batch.data[from..from + out.len()]);
            return;
        }
        let flight = self.flying.iter().find(|(_, flight)| flight.slot == place.slot);
        let Some((seq, flight)) = flight else {
            panic!("object {} is neither stored nor in memory", place.slot)
        };
        let span = Span::of((flight.data_bytes / 512) as u32, place.pos, (out.len() / 512) as u32);
        let at = head_bytes(&flight.bytes).unwrap_or_default() + span.from() as usize;
        let pieces = &flight.bytes[at..at + span.len() as usize];
        let Ok(data) = read_pieces(&self.identity(*seq), span, pieces) else {
            panic!("object {seq} has changed in memory")
        };
        let skip = span.offset_of(place.pos);
        out.copy_from_slice(&data[skip..skip + out.len()]);
    }

    pub(crate) const fn identity(&self, seq: u64) -> Identity {
        Identity { volume: self.volume, at: self.position(seq) }
    }
}

/// Data that collection has read, to be written into a new object.
#[derive(Clone, Debug)]
pub(crate) struct Copied {
    /// First sector in the volume.
    pub(crate) start: u64,
    pub(crate) sectors: u32,
    /// Where it was read.
    pub(crate) from: Place,
    pub(crate) data: Vec<u8>,
}
