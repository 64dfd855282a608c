//! Collection: what is live in objects that are mostly dead, or small, is copied into new ones. The old ones are dead then, and go with the
//! next checkpoint.
//!
//! ```text
//!  idle ── much is dead, or small ──► choose victims ──► find what is live in them, chunk by chunk ──► read ──► copy ──► idle
//! ```
//!
//! - G1: a copy names its source and is made only of what the index still has there. Recovery does the same in the same order, so that a
//!   copy never hides a newer write.
//! - G2: a victim is pinned until what is live in it was copied.
//! - G3: a victim that cannot be read whole is left as it is.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::calls::{Calls, Outcome};
use crate::codec::{Identity, Span, read_pieces};
use crate::face::Limits;
use crate::index::{CHUNK_SECTORS, Chunks, Place};
use crate::jobs::Job;
use crate::log::{Copied, Log};
use crate::map::{Map, Object, Sums};
use crate::names;
use crate::store::Request;

/// Victims of a round.
const VICTIMS_MAX: usize = 1024;
/// Live data of a round, in whole objects.
const ROUND_OBJECTS_MAX: u64 = 32;
/// Chunks of the index that are looked through at a time.
const CHUNKS_MAX: usize = 256;
/// Victims that are read at a time.
const READS_MAX: usize = 4;
/// Most victims that are remembered as damaged: with more, collection stops.
const DAMAGED_MAX: usize = 1024;

/// Consecutive sectors of the volume that lie in a victim.
#[derive(Clone, Copy, Debug)]
struct Live {
    start: u64,
    sectors: u32,
    pos: u32,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct Collect {
    utilization_min_percent: u64,
    small_objects_max: u64,
    object_sectors: u32,
    small_sectors: u32,
    /// The victims, and what was found to be live in them.
    victims: BTreeMap<u32, Vec<Live>>,
    /// The index when they were chosen, as far as it is not looked through yet.
    scan: Option<Chunks>,
    /// Victims that are not read yet.
    waiting: VecDeque<u32>,
    reading: BTreeSet<u32>,
    gathered: Vec<Copied>,
    gathered_sectors: u32,
    /// Victims that could not be read: they are not tried again.
    damaged: BTreeSet<u32>,
    /// The table of objects when no round was due or possible: it is not looked through again before it has changed.
    looked: Sums,
    pub(crate) bytes_moved: u64,
}

impl Collect {
    pub(crate) fn new(limits: &Limits) -> Self {
        let object_sectors = (limits.object_bytes / 512) as u32;
        Self {
            utilization_min_percent: limits.utilization_min_percent,
            small_objects_max: limits.small_objects_max as u64,
            object_sectors,
            small_sectors: object_sectors / 16,
            victims: BTreeMap::new(),
            scan: None,
            waiting: VecDeque::new(),
            reading: BTreeSet::new(),
            gathered: Vec::new(),
            gathered_sectors: 0,
            damaged: BTreeSet::new(),
            looked: Sums::default(),
            bytes_moved: 0,
        }
    }

    /// Whether it has something to do that waits for nothing.
    pub(crate) const fn is_scanning(&self) -> bool {
        self.scan.is_some()
    }

    /// Begins a round if one is due, and goes on with it.
    pub(crate) fn go_on(&mut self, map: &mut Map, log: &mut Log, calls: &mut Calls<Job>) {
        if self.victims.is_empty() && self.damaged.len() < DAMAGED_MAX {
            self.choose(map);
        }
        self.find();
        while self.reading.len() < READS_MAX
            && let Some(slot) = self.waiting.pop_front()
        {
            let object = map.object(slot);
            let Some(span) = self.span(slot, object) else {
                // Nothing is live in it any more.
                continue;
            };
            let (name, from) = (names::log(object.at), u64::from(object.data_at) + span.from());
            calls.start(Job::Collect(slot), Request::Get { name, from, len: span.len() });
            self.reading.insert(slot);
        }
        self.end(map, log);
    }

    /// Ends the round when all victims are read.
    fn end(&mut self, map: &mut Map, log: &mut Log) {
        if self.scan.is_none() && self.reading.is_empty() && self.waiting.is_empty() {
            self.write(map, log);
            for slot in std::mem::take(&mut self.victims).into_keys() {
                map.change(slot, |object| object.pins -= 1);
            }
        }
    }

    /// Whether a round is due, and then its victims: the emptiest objects, or the oldest small ones.
    fn choose(&mut self, map: &mut Map) {
        let sums = map.sums();
        if sums == self.looked {
            return;
        }
        self.looked = sums;
        let waste = sums.used_sectors.saturating_sub(sums.used_live_sectors);
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
            self.victims.insert(slot, Vec::new());
        }
        if !self.victims.is_empty() {
            self.scan = Some(map.index.snapshot());
        }
    }

    /// Looks for what is live in the victims, a part of the index at a time.
    fn find(&mut self) {
        let Some(chunks) = &mut self.scan else { return };
        for _ in 0..CHUNKS_MAX {
            let Some((number, chunk)) = chunks.pop_first() else {
                self.scan = None;
                self.waiting = self.victims.keys().copied().collect();
                return;
            };
            let base = u64::from(number) * u64::from(CHUNK_SECTORS);
            for extent in chunk.iter() {
                let Place { slot, pos } = extent.place();
                let Some(live) = self.victims.get_mut(&slot) else { continue };
                // Whoever wrote the victim may have made larger objects.
                for at in (0..extent.sectors()).step_by(self.object_sectors as usize) {
                    let start = base + u64::from(extent.start() + at);
                    let sectors = (extent.sectors() - at).min(self.object_sectors);
                    live.push(Live { start, sectors, pos: pos + at });
                }
            }
        }
    }

    /// What must be read of a victim.
    fn span(&self, slot: u32, object: &Object) -> Option<Span> {
        let live = self.victims.get(&slot)?;
        let from = live.iter().map(|live| live.pos).min()?;
        let end = live.iter().map(|live| live.pos + live.sectors).max()?;
        Some(Span::of(object.sectors, from, end - from))
    }

    /// Takes a victim as it was read.
    pub(crate) fn answered(
        &mut self,
        map: &mut Map,
        log: &mut Log,
        volume: [u8; 16],
        slot: u32,
        outcome: Outcome,
    ) {
        self.reading.remove(&slot);
        let object = *map.object(slot);
        let identity = Identity { volume, at: object.at };
        let read = match (outcome, self.span(slot, &object)) {
            (Outcome::Object { bytes, .. }, Some(span)) => {
                read_pieces(&identity, span, &bytes).ok().map(|data| (span, data))
            }
            _ => None,
        };
        match read {
            None => drop(self.damaged.insert(slot)),
            Some((span, data)) => {
                for live in self.victims.get(&slot).cloned().unwrap_or_default() {
                    let from = span.offset_of(live.pos);
                    let data = data[from..from + live.sectors as usize * 512].to_vec();
                    self.gather(map, log, slot, live, data);
                }
            }
        }
        self.end(map, log);
    }

    fn gather(&mut self, map: &mut Map, log: &mut Log, slot: u32, live: Live, data: Vec<u8>) {
        if self.gathered_sectors + live.sectors > self.object_sectors {
            self.write(map, log);
        }
        self.gathered_sectors += live.sectors;
        let from = Place { slot, pos: live.pos };
        self.gathered.push(Copied { start: live.start, sectors: live.sectors, from, data });
    }

    fn write(&mut self, map: &mut Map, log: &mut Log) {
        if self.gathered.is_empty() {
            return;
        }
        self.bytes_moved += log.copy(map, &self.gathered);
        self.gathered.clear();
        self.gathered_sectors = 0;
    }
}
