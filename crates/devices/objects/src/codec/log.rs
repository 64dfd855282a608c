//! An object of the log: extents of the volume in the order in which they were written, and their data.

use super::cursor::{Reader, put_u16, put_u32, put_u64};
use super::header::{Header, Identity, Kind, Stamp};
use super::payload::write_pieces;
use super::{Damage, HEADER_BYTES, OBJECT_SECTORS_MAX};
use crate::face::Position;
use crate::names::{CHECKPOINT_BYTES_MAX, is_checkpoint_name};

/// Everything up to and with this object is to be part of the state.
const COMMIT: u32 = 1;
/// Its owner has released the volume with this object, its last one.
const RELEASED: u32 = 2;

const DATA: u32 = 0;
const ZERO: u32 = 1;
const MOVED: u32 = 2;
const LINKED: u32 = 3;

const NAMED: u16 = 0;
const UNNAMED: u16 = 1;

/// Bytes of an extent in the table.
pub(crate) const EXTENT_BYTES: usize = 16;

/// Consecutive sectors of the volume of which an object says the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// First sector in the volume.
    pub(crate) start: u64,
    pub(crate) sectors: u32,
    pub(crate) kind: ExtentKind,
}

/// What is said of an extent. The data of data and moved extents follows in the payload, in the order of the extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExtentKind {
    /// A client has written it.
    Data,
    /// It reads as zeroes.
    Zero,
    /// It is copied from this object, from this sector of its payload on. It counts only where that is still the newest version.
    Moved(Position, u32),
    /// Its data lies in this object, or an earlier one, from this sector of its payload on.
    Linked(Position, u32),
}

impl ExtentKind {
    /// Whether its data is in the payload of the object that says so.
    pub(crate) const fn has_data(self) -> bool {
        matches!(self, Self::Data | Self::Moved(..))
    }
}

/// A change of the list of named checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    Named(String, Position),
    Unnamed(String, Position),
}

/// What header and table of an object of the log say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogHead {
    pub(crate) identity: Identity,
    pub(crate) stamp: Stamp,
    pub(crate) volume_sectors: u64,
    pub(crate) commit: bool,
    pub(crate) released: bool,
    /// Of an owner's first object: the owner before, and how many of its objects count. Else nothing.
    pub(crate) before: Position,
    /// How many objects of this owner existed for certain, without a gap, when this one was sent.
    pub(crate) known: u64,
    pub(crate) extents: Vec<Extent>,
    pub(crate) notes: Vec<Note>,
}

impl LogHead {
    /// An object that says nothing.
    pub(crate) const fn new(identity: Identity, stamp: Stamp, volume_sectors: u64) -> Self {
        Self {
            identity,
            stamp,
            volume_sectors,
            commit: false,
            released: false,
            before: Position { epoch: 0, seq: 0 },
            known: 0,
            extents: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Sectors of data.
    pub(crate) fn payload_sectors(&self) -> u32 {
        self.extents.iter().filter(|e| e.kind.has_data()).map(|e| e.sectors).sum()
    }

    /// The whole object.
    ///
    /// # Panics
    /// If the data is not that of the extents.
    pub(crate) fn encode(&self, data: &[u8]) -> Vec<u8> {
        assert_eq!(
            data.len() as u64,
            u64::from(self.payload_sectors()) * 512,
            "data of {}",
            self.identity.at
        );
        let mut table = Vec::with_capacity(self.extents.len() * EXTENT_BYTES);
        for extent in &self.extents {
            put_u64(&mut table, extent.start);
            put_u32(&mut table, extent.sectors);
            match extent.kind {
                ExtentKind::Data => put_u32(&mut table, DATA),
                ExtentKind::Zero => put_u32(&mut table, ZERO),
                ExtentKind::Moved(from, pos) | ExtentKind::Linked(from, pos) => {
                    put_u32(&mut table, if extent.kind.has_data() { MOVED } else { LINKED });
                    put_u64(&mut table, from.epoch);
                    put_u64(&mut table, from.seq);
                    put_u32(&mut table, pos);
                    put_u32(&mut table, 0);
                }
            }
        }
        for note in &self.notes {
            let (kind, name, at) = match note {
                Note::Named(name, at) => (NAMED, name, at),
                Note::Unnamed(name, at) => (UNNAMED, name, at),
            };
            put_u16(&mut table, kind);
            put_u16(&mut table, name.len() as u16);
            put_u64(&mut table, at.epoch);
            put_u64(&mut table, at.seq);
            table.extend_from_slice(name.as_bytes());
        }
        let mut header = Header::new(Kind::Log, self.identity, self.stamp, self.volume_sectors);
        header.flags = if self.commit { COMMIT } else { 0 } | if self.released { RELEASED } else { 0 };
        header.entries = self.extents.len() as u32;
        header.more = self.notes.len() as u32;
        header.other = self.before;
        header.known = self.known;
        header.payload_sectors = self.payload_sectors();
        let mut payload = Vec::with_capacity(super::payload_bytes(header.payload_sectors) as usize);
        header.payload_crc = write_pieces(&self.identity, data, &mut payload);
        let mut out = header.encode(&table, payload.len());
        out.extend_from_slice(&payload);
        out
    }

    /// Reads header and table; `bytes` may go on behind them. `size` is the whole object's.
    pub(crate) fn decode(bytes: &[u8], size: u64, identity: &Identity) -> Result<Self, Damage> {
        let (header, table) = Header::decode(bytes, Kind::Log, identity)?;
        let mut head = Self::new(header.identity, header.stamp, header.volume_sectors);
        head.commit = header.flags & COMMIT != 0;
        head.released = header.flags & RELEASED != 0;
        head.before = header.other;
        head.known = header.known;
        let mut r = Reader::new(&table);
        head.extents = Vec::with_capacity((header.entries as usize).min(r.left() / EXTENT_BYTES));
        let mut payload = 0_u64;
        for _ in 0..header.entries {
            let extent = read_extent(&mut r, head.volume_sectors)?;
            if extent.kind.has_data() {
                payload += u64::from(extent.sectors);
            }
            head.extents.push(extent);
        }
        for _ in 0..header.more {
            head.notes.push(read_note(&mut r)?);
        }
        r.end()?;
        if payload != u64::from(header.payload_sectors) || payload > u64::from(OBJECT_SECTORS_MAX) {
            return Err(Damage::Field("sectors of data"));
        }
        if size != (HEADER_BYTES + table.len()) as u64 + super::payload_bytes(header.payload_sectors) {
            return Err(Damage::Truncated);
        }
        Ok(head)
    }
}

fn read_extent(r: &mut Reader<'_>, volume_sectors: u64) -> Result<Extent, Damage> {
    let (start, sectors, kind) = (r.u64()?, r.u32()?, r.u32()?);
    let kind = match kind {
        DATA => ExtentKind::Data,
        ZERO => ExtentKind::Zero,
        MOVED | LINKED => {
            let from = Position { epoch: r.counter("source")?, seq: r.counter("source")? };
            let pos = r.u32()?;
            r.u32()?;
            if pos >= OBJECT_SECTORS_MAX {
                return Err(Damage::Field("source"));
            }
            if kind == MOVED { ExtentKind::Moved(from, pos) } else { ExtentKind::Linked(from, pos) }
        }
        _ => return Err(Damage::Field("kind of extent")),
    };
    let is_inside = start.checked_add(u64::from(sectors)).is_some_and(|end| end <= volume_sectors);
    if sectors == 0 || !is_inside {
        return Err(Damage::Field("extent"));
    }
    Ok(Extent { start, sectors, kind })
}

fn read_note(r: &mut Reader<'_>) -> Result<Note, Damage> {
    let (kind, len) = (r.u16()?, usize::from(r.u16()?));
    let at = Position { epoch: r.counter("named epoch")?, seq: r.counter("named sequence number")? };
    let name = r.text(len.min(CHECKPOINT_BYTES_MAX + 1), "name of a checkpoint")?;
    if !is_checkpoint_name(&name) {
        return Err(Damage::Field("name of a checkpoint"));
    }
    match kind {
        NAMED => Ok(Note::Named(name, at)),
        UNNAMED => Ok(Note::Unnamed(name, at)),
        _ => Err(Damage::Field("kind of note")),
    }
}
