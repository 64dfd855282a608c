//! Making checkpoints: parts with the table of objects and the index as of an object of the log, then a head.
//!
//! ```text
//!  idle ──► wanted ── commit mark ──► waits ── the log up to it exists ──► parts ──► head ──► made
//! ```
//!
//! - C1: a checkpoint is of a commit mark, and its head is created when that and all parts exist.
//! - C2: an object of the log is deleted only when a checkpoint exists that was made when it was dead already, and no named one needs it.
//! - C3: the head of a checkpoint that has a name, or had one until a note that is not durable, is not deleted.

use std::sync::Arc;

use crate::calls::Calls;
use crate::codec::{ExtentPart, Identity, Manifest, ObjectEntry, ObjectPart, Stamp, StoredExtent};
use crate::face::{Limits, Position};
use crate::index::Packed;
use crate::jobs::{Indexing, Job};
use crate::log::Log;
use crate::map::{Map, Snapshot};
use crate::names;
use crate::state::State;
use crate::store::Request;

/// Parts that are created at a time.
const PARTS_MAX: u32 = 2;
/// How many times the bytes of a checkpoint the log behind it has at least, where its objects are not too many.
const LOG_PER_CHECKPOINT: u64 = 8;

/// A checkpoint that is being made.
#[derive(Clone, Debug)]
struct Making {
    snapshot: Snapshot,
    manifest: Manifest,
    /// The first chunk of each part of the index.
    cuts: Vec<u32>,
    asked: u32,
    done: u32,
    is_begun: bool,
    /// Objects and bytes of the log behind the newest checkpoint at the time of the snapshot.
    log: (u64, u64),
}

/// A checkpoint that exists.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) at: Position,
    /// What it needs of the log.
    pub(crate) objects: Vec<ObjectEntry>,
    /// What it and later ones do without.
    pub(crate) dead: Vec<u32>,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct Checkpoints {
    limits: Limits,
    /// The newest one.
    pub(crate) newest: Option<Position>,
    /// Whether this owner made it.
    pub(crate) is_own: bool,
    /// Objects of the log behind it, and their bytes.
    pub(crate) log_objects: u64,
    pub(crate) log_bytes: u64,
    is_wanted: bool,
    making: Option<Making>,
    pub(crate) bytes: u64,
}

impl Checkpoints {
    pub(crate) fn new(limits: &Limits, newest: Option<Position>, log: (u64, u64)) -> Self {
        Self {
            limits: limits.clone(),
            newest,
            is_own: false,
            log_objects: log.0,
            log_bytes: log.1,
            is_wanted: false,
            making: None,
            bytes: 0,
        }
    }

    pub(crate) const fn is_busy(&self) -> bool {
        self.is_wanted || self.making.is_some()
    }

    /// Whether one should be made.
    pub(crate) fn is_due(&self, map: &Map) -> bool {
        let sums = map.sums();
        let checkpoint = map.index.extents() * 10 + map.index.chunks() * 8 + sums.objects * 24;
        let worth = checkpoint * LOG_PER_CHECKPOINT;
        self.log_objects >= self.limits.log_objects_max
            || self.log_bytes >= self.limits.log_bytes_max.max(worth)
            || sums.dead_bytes >= (self.limits.log_bytes_max / 4).max(sums.live_sectors * 512 / 4).max(worth)
    }

    /// Begins one as of the next commit mark.
    pub(crate) fn want(&mut self, log: &mut Log, map: &Map) {
        self.is_wanted = true;
        log.want_snapshot(map);
    }

    /// Goes on. Gives the checkpoint that is wanted if it exists already.
    pub(crate) fn go_on(
        &mut self,
        state: &State,
        log: &mut Log,
        calls: &mut Calls<Job>,
        stamp: Stamp,
    ) -> Option<Made> {
        if let Some(snapshot) = log.take_snapshot() {
            self.is_wanted = false;
            if self.newest == Some(snapshot.at) {
                let objects = entries(&state.map, &snapshot);
                return Some(Made { at: snapshot.at, objects, dead: Vec::new() });
            }
            self.begin(state, snapshot, log.volume_sectors, stamp);
        }
        let making = self.making.as_mut()?;
        if log.durable() <= making.snapshot.at.seq {
            return None;
        }
        let manifest = &making.manifest;
        let all = manifest.object_parts + manifest.extent_parts;
        while making.asked < all.min(making.done + PARTS_MAX) {
            let number = making.asked;
            let bytes = making.part(&state.map, number);
            self.bytes += bytes.len() as u64;
            let name = names::part(making.snapshot.at, number);
            calls.start(Job::Index(Indexing::Part(number)), Request::Create { name, bytes: Arc::new(bytes) });
            making.asked += 1;
        }
        if making.done == all && !std::mem::replace(&mut making.is_begun, true) {
            let bytes = making.manifest.encode();
            self.bytes += bytes.len() as u64;
            let name = names::index(making.snapshot.at);
            calls.start(Job::Index(Indexing::Manifest), Request::Create { name, bytes: Arc::new(bytes) });
        }
        None
    }

    fn begin(&mut self, state: &State, snapshot: Snapshot, volume_sectors: u64, stamp: Stamp) {
        let mut cuts = Vec::new();
        let mut bytes = usize::MAX;
        for (number, chunk) in &snapshot.chunks {
            if bytes >= ExtentPart::BYTES_FULL {
                cuts.push(*number);
                bytes = 0;
            }
            bytes += ExtentPart::chunk_bytes(chunk.len());
        }
        let has_objects = |epoch| state.map.has_of(epoch) || epoch + 1 == snapshot.at.epoch;
        let manifest = Manifest {
            identity: Identity { volume: state.volume, at: snapshot.at },
            stamp,
            volume_sectors,
            as_of_ns: stamp.time_ns,
            object_parts: snapshot.objects.len().div_ceil(ObjectPart::ENTRIES_MAX) as u32,
            extent_parts: cuts.len() as u32,
            ended: state.ended.iter().filter(|ended| has_objects(ended.epoch)).copied().collect(),
            named: state.named.clone(),
        };
        let log = (self.log_objects, self.log_bytes);
        self.making = Some(Making { snapshot, manifest, cuts, asked: 0, done: 0, is_begun: false, log });
    }

    pub(crate) fn part_exists(&mut self) {
        if let Some(making) = &mut self.making {
            making.done += 1;
        }
    }

    /// The head exists.
    pub(crate) fn made(&mut self, state: &mut State) -> Option<Made> {
        let making = self.making.take()?;
        let at = making.snapshot.at;
        let manifest = &making.manifest;
        state.parts.insert(at, manifest.object_parts + manifest.extent_parts);
        self.newest = Some(at);
        self.is_own = true;
        self.log_objects -= making.log.0;
        self.log_bytes -= making.log.1;
        let objects = entries(&state.map, &making.snapshot);
        Some(Made { at, objects, dead: making.snapshot.dead })
    }
}

fn entry(map: &Map, slot: u32) -> ObjectEntry {
    let object = map.object(slot);
    ObjectEntry { at: object.at, data_at: object.data_at, sectors: object.sectors }
}

fn entries(map: &Map, snapshot: &Snapshot) -> Vec<ObjectEntry> {
    snapshot.objects.iter().map(|slot| entry(map, *slot)).collect()
}

impl Making {
    fn part(&self, map: &Map, number: u32) -> Vec<u8> {
        let (identity, stamp) = (self.manifest.identity, self.manifest.stamp);
        let Some(index) = number.checked_sub(self.manifest.object_parts) else {
            let from = number as usize * ObjectPart::ENTRIES_MAX;
            let slots = self.snapshot.objects.iter().skip(from).take(ObjectPart::ENTRIES_MAX);
            return ObjectPart(slots.map(|slot| entry(map, *slot)).collect()).encode(identity, stamp, number);
        };
        let from = self.cuts.get(index as usize).copied().unwrap_or(u32::MAX);
        let end = self.cuts.get(index as usize + 1).copied();
        let chunks = self.snapshot.chunks.range(from..).take_while(|(n, _)| end.is_none_or(|end| **n < end));
        let stored = |extent: &Packed| StoredExtent {
            start: extent.start() as u16,
            sectors: extent.sectors() as u16,
            pos: extent.place().pos as u16,
            object: self.snapshot.ordinals.get(extent.place().slot as usize).copied().unwrap_or(u32::MAX),
        };
        let part = chunks.map(|(n, chunk)| (*n, chunk.iter().map(stored).collect())).collect();
        ExtentPart(part).encode(identity, stamp, number)
    }
}
