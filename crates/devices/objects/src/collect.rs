//! Collection: what is live in objects that are mostly dead, or small, is copied into new ones. The old ones are dead then, and go with the
//! next checkpoint.
//!
//! - G1: a copy names its source and is made only of what the index still has there. Recovery does the same in the same order, so that a
//!   copy never hides a newer write.
//! - G2: a victim is pinned until what is live in it was copied.
//! - G3: a victim that cannot be read whole is left as it is.

use std::collections::{BTreeSet, VecDeque};

use crate::calls::{Calls, Outcome};
use crate::codec::{ExtentKind, Identity, LogHead, Span, head_bytes, payload_bytes, read_pieces};
use crate::face::Limits;
use crate::index::Place;
use crate::jobs::Job;
use crate::log::{Copied, Log};
use crate::map::{Map, Object, Sums};
use crate::names;
use crate::store::Request;

/// Victims of a round.
const VICTIMS_MAX: usize = 1024;
/// Victims that are read at a time.
const READS_MAX: usize = 4;
/// Live data of a round, in whole objects.
const ROUND_OBJECTS_MAX: u64 = 8;

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct Collect {
    utilization_min_percent: u64,
    small_objects_max: u64,
    object_sectors: u32,
    small_sectors: u32,
    /// Victims that are not read yet.
    waiting: VecDeque<u32>,
    reading: BTreeSet<u32>,
    gathered: Vec<Copied>,
    /// Victims of which something is gathered: they are pinned.
    pinned: Vec<u32>,
    /// Victims that could not be read: they are not tried again.
    damaged: BTreeSet<u32>,
    /// The table of objects when no round was due or possible: it is not looked through again before it has changed.
    looked: Sums,
    pub(crate) bytes_moved: u64,
}

/// Most victims that are remembered as damaged: with more, collection stops.
const DAMAGED_MAX: usize = 1024;

impl Collect {
    pub(crate) fn new(limits: &Limits) -> Self {
        let object_sectors = (limits.object_bytes / 512) as u32;
        Self {
            utilization_min_percent: limits.utilization_min_percent,
            small_objects_max: limits.small_objects_max as u64,
            object_sectors,
            small_sectors: object_sectors / 16,
            waiting: VecDeque::new(),
            reading: BTreeSet::new(),
            gathered: Vec::new(),
            pinned: Vec::new(),
            damaged: BTreeSet::new(),
            looked: Sums::default(),
            bytes_moved: 0,
        }
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.reading.is_empty()
    }

    /// Begins a round if one is due, and reads on.
    pub(crate) fn go_on(&mut self, map: &mut Map, calls: &mut Calls<Job>) {
        if self.is_idle() && self.damaged.len() < DAMAGED_MAX {
            self.choose(map);
        }
        while self.reading.len() < READS_MAX
            && let Some(slot) = self.waiting.pop_front()
        {
            let object = map.object(slot);
            let (name, len) = (names::log(object.at), object.bytes());
            calls.start(Job::Collect(slot), Request::Get { name, from: 0, len });
            self.reading.insert(slot);
        }
    }

    /// Whether a round is due, and then its victims: the emptiest objects, or the oldest small ones.
    fn choose(&mut self, map: &mut Map) {
        let sums = map.sums();
        if sums == self.looked {
            return;
        }
        self.looked = sums;
        let waste = sums.used_sectors - sums.used_live_sectors;
        let is_wasteful = sums.used_live_sectors * 100 < sums.used_sectors * self.utilization_min_percent
            && waste >= u64::from(self.object_sectors);
        let is_scattered = sums.small > self.small_objects_max;
        if !is_wasteful && !is_scattered {
            return;
        }
        let is_victim = |object: &Object| {
            let is_empty = u64::from(object.live) * sums.used_sectors
                <= u64::from(object.sectors) * sums.used_live_sectors;
            let is_fit = if is_wasteful { is_empty } else { object.sectors < self.small_sectors };
            object.is_stored && object.live > 0 && object.holds == 0 && is_fit
        };
        let mut found: Vec<(u64, u32, u32)> = map
            .objects()
            .filter(|(slot, object)| is_victim(object) && !self.damaged.contains(slot))
            .map(|(slot, object)| {
                let share = u64::from(object.live) * 1024 / u64::from(object.sectors);
                (if is_wasteful { share } else { 0 }, slot, object.live)
            })
            .collect();
        // Equal ones stay in the order of the log.
        found.sort_by_key(|(share, ..)| *share);
        let mut room = u64::from(self.object_sectors) * ROUND_OBJECTS_MAX;
        for (_, slot, live) in found.into_iter().take(VICTIMS_MAX) {
            if u64::from(live) > room {
                break;
            }
            room -= u64::from(live);
            map.change(slot, |object| object.pins += 1);
            self.waiting.push_back(slot);
        }
    }

    /// Takes a victim as it was read. Gives whether it was found damaged or missing.
    pub(crate) fn answered(
        &mut self,
        map: &mut Map,
        log: &mut Log,
        volume: [u8; 16],
        slot: u32,
        outcome: Outcome,
    ) -> bool {
        self.reading.remove(&slot);
        self.pinned.push(slot);
        let copies = match outcome {
            Outcome::Object { bytes, size } => live_parts(map, volume, slot, &bytes, size),
            _ => None,
        };
        let is_damaged = copies.is_none();
        if is_damaged {
            self.damaged.insert(slot);
        }
        for copied in copies.into_iter().flatten() {
            let gathered: u32 = self.gathered.iter().map(|copied| copied.sectors).sum();
            if gathered + copied.sectors > self.object_sectors {
                self.write(map, log);
            }
            self.gathered.push(copied);
        }
        if self.is_idle() {
            self.write(map, log);
            for slot in self.pinned.drain(..) {
                map.change(slot, |object| object.pins -= 1);
            }
        }
        is_damaged
    }

    fn write(&mut self, map: &mut Map, log: &mut Log) {
        self.bytes_moved += log.copy(map, &self.gathered);
        self.gathered.clear();
    }
}

/// The data of an object that the index still has there; `None` if it is damaged.
fn live_parts(map: &Map, volume: [u8; 16], slot: u32, bytes: &[u8], size: u64) -> Option<Vec<Copied>> {
    let object = map.object(slot);
    let identity = Identity { volume, at: object.at };
    let head = LogHead::decode(bytes, size, &identity).ok()?;
    let payload = bytes.get(head_bytes(bytes).ok()?..)?;
    if head.payload_sectors() != object.sectors || payload.len() as u64 != payload_bytes(object.sectors) {
        return None;
    }
    let mut copies = Vec::new();
    let mut pos = 0;
    for extent in head.extents.iter().filter(|extent| extent.kind != ExtentKind::Zero) {
        let from = Place { slot, pos };
        for (offset, sectors) in map.still_there(extent.start, extent.sectors, from) {
            let span = Span::of(object.sectors, pos + offset, sectors);
            let at = span.from() as usize;
            let data = read_pieces(&identity, span, payload.get(at..at + span.len() as usize)?).ok()?;
            let skip = span.offset_of(pos + offset);
            copies.push(Copied {
                start: extent.start + u64::from(offset),
                sectors,
                from: from.plus(offset),
                data: data[skip..skip + sectors as usize * 512].to_vec(),
            });
        }
        pos += extent.sectors;
    }
    Some(copies)
}
