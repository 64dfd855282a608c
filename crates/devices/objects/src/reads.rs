//! Reads of clients: what is in memory is copied at once, the rest is got from the store, checked, and put together.

use std::collections::BTreeMap;

use forebay_block::{Buf, BufMut, ErrorKind, Nanos};

use crate::calls::{Calls, Outcome};
use crate::codec::{Identity, Span, read_pieces};
use crate::face::Fault;
use crate::index::Place;
use crate::jobs::Job;
use crate::log::Log;
use crate::map::Map;
use crate::names;
use crate::store::Request;

/// What lies at most so far apart in one object is read by one get.
const GAP_SECTORS_MAX: u32 = 64;

/// Sectors of one object that are got together.
#[derive(Clone, Debug)]
struct Part {
    slot: u32,
    pos: u32,
    sectors: u32,
    /// Where what of it goes: byte in the buffer, sector in the payload, sectors.
    copies: Vec<(usize, u32, u32)>,
    is_done: bool,
}

#[derive(Debug)]
struct Reading {
    tag: u64,
    since: Nanos,
    buf: BufMut,
    parts: Vec<Part>,
    /// Parts that are not done.
    left: usize,
    fault: Option<Fault>,
}

/// A read that has ended.
#[derive(Clone, Debug)]
pub(crate) struct ReadDone {
    pub(crate) tag: u64,
    /// When it was submitted.
    pub(crate) since: Nanos,
    pub(crate) result: Result<Buf, Fault>,
}

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reads {
    next: u64,
    under_way: BTreeMap<u64, Reading>,
}

impl Reads {
    pub(crate) fn len(&self) -> usize {
        self.under_way.len()
    }

    /// When the oldest one was submitted.
    pub(crate) fn oldest(&self) -> Option<Nanos> {
        self.under_way.values().next().map(|reading| reading.since)
    }

    /// Starts a read of whole sectors. Gives it back if it is done.
    pub(crate) fn start(
        &mut self,
        map: &mut Map,
        log: Option<&Log>,
        calls: &mut Calls<Job>,
        (now, tag): (Nanos, u64),
        (start, len): (u64, usize),
    ) -> Option<ReadDone> {
        let mut buf = BufMut::zeroed(len);
        let mut parts: Vec<Part> = Vec::new();
        for piece in map.index.pieces(start, len as u64 / 512) {
            let at = (piece.start - start) as usize * 512;
            let (Some(place), sectors) = (piece.place, piece.sectors as u32) else { continue };
            if !map.object(place.slot).is_stored {
                if let Some(log) = log {
                    log.read(place, &mut buf[at..at + sectors as usize * 512]);
                }
                continue;
            }
            let joins = |part: &&mut Part| {
                let end = part.pos + part.sectors;
                part.slot == place.slot && (end..=end + GAP_SECTORS_MAX).contains(&place.pos)
            };
            if let Some(part) = parts.last_mut().filter(joins) {
                part.sectors = place.pos + sectors - part.pos;
                part.copies.push((at, place.pos, sectors));
            } else {
                let Place { slot, pos } = place;
                parts.push(Part { slot, pos, sectors, copies: vec![(at, pos, sectors)], is_done: false });
            }
        }
        let reading = Reading { tag, since: now, buf, left: parts.len(), parts, fault: None };
        if reading.left == 0 {
            return Some(reading.end());
        }
        let number = self.next;
        self.next += 1;
        for (index, part) in reading.parts.iter().enumerate() {
            map.change(part.slot, |object| object.pins += 1);
            let object = map.object(part.slot);
            let span = Span::of(object.sectors, part.pos, part.sectors);
            let (name, from) = (names::log(object.at), u64::from(object.data_at) + span.from());
            calls.start(Job::Read(number, index), Request::Get { name, from, len: span.len() });
        }
        self.under_way.insert(number, reading);
        None
    }

    /// Takes the answer of a get. Gives the read if it is done with it, and whether an object is gone that should be there.
    pub(crate) fn answered(
        &mut self,
        map: &mut Map,
        volume: [u8; 16],
        (number, index): (u64, usize),
        outcome: Outcome,
    ) -> (Option<ReadDone>, bool) {
        let Some(reading) = self.under_way.get_mut(&number) else { return (None, false) };
        let Some(part) = reading.parts.get_mut(index) else { return (None, false) };
        let object = *map.object(part.slot);
        map.change(part.slot, |object| object.pins -= 1);
        part.is_done = true;
        reading.left -= 1;
        let name = names::log(object.at);
        let mut is_gone = false;
        let fault = |kind, what| Some(Fault { kind, what });
        match outcome {
            Outcome::Object { bytes, .. } => {
                let span = Span::of(object.sectors, part.pos, part.sectors);
                match read_pieces(&Identity { volume, at: object.at }, span, &bytes) {
                    Ok(data) => {
                        for (at, pos, sectors) in &part.copies {
                            let (len, from) = (*sectors as usize * 512, span.offset_of(*pos));
                            reading.buf[*at..at + len].copy_from_slice(&data[from..from + len]);
                        }
                    }
                    Err(piece) => {
                        let one = Span { first: piece, sectors: 1 };
                        let offset = u64::from(object.data_at) + one.from();
                        let what = format!("{name}: the data at byte {offset} fails its checksum");
                        reading.fault = fault(ErrorKind::Corrupt, what);
                    }
                }
            }
            Outcome::Failed { name, error } => {
                reading.fault = fault(ErrorKind::Io, format!("{name}: {error}"))
            }
            _ => {
                is_gone = true;
                reading.fault =
                    fault(ErrorKind::Corrupt, format!("{name}: the object is gone from the store"));
            }
        }
        if reading.left > 0 {
            return (None, is_gone);
        }
        (self.under_way.remove(&number).map(Reading::end), is_gone)
    }

    /// Ends all reads that were submitted up to an instant with this fault.
    pub(crate) fn fail(
        &mut self,
        map: &mut Map,
        calls: &mut Calls<Job>,
        upto: Nanos,
        fault: &Fault,
        done: &mut Vec<ReadDone>,
    ) {
        while let Some(first) = self.under_way.first_entry()
            && first.get().since <= upto
        {
            let number = *first.key();
            let mut reading = first.remove();
            calls.drop_where(|job| matches!(job, Job::Read(n, _) if *n == number));
            for part in reading.parts.iter().filter(|part| !part.is_done) {
                map.change(part.slot, |object| object.pins -= 1);
            }
            reading.fault = Some(fault.clone());
            done.push(reading.end());
        }
    }
}

impl Clone for Reading {
    fn clone(&self) -> Self {
        let Self { tag, since, left, .. } = *self;
        let (parts, fault) = (self.parts.clone(), self.fault.clone());
        Self { tag, since, buf: BufMut::copy_of(&self.buf), parts, left, fault }
    }
}

impl Reading {
    fn end(self) -> ReadDone {
        let result = match self.fault {
            None => Ok(self.buf.freeze()),
            Some(fault) => Err(fault),
        };
        ReadDone { tag: self.tag, since: self.since, result }
    }
}
