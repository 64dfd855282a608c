//! Objects of checkpoints: parts with the table of objects and the index, a head that is made last, and pointers to those with names.

use super::cursor::{Reader, put_u16, put_u32, put_u64};
use super::header::{Header, Identity, Kind, Stamp};
use super::{Damage, HEADER_BYTES, OBJECT_SECTORS_MAX};
use crate::face::{Named, Position};
use crate::index::CHUNK_SECTORS;
use crate::names::{CHECKPOINT_BYTES_MAX, is_checkpoint_name};

/// An owner whose log has ended, of which objects may be left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) epoch: u64,
    /// How many of its objects are part of the history.
    pub(crate) count: u64,
    /// Where its fence is.
    pub(crate) fence: u64,
}

/// The head of a checkpoint: it exists once all parts do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// The last object of the log that counts.
    pub(crate) identity: Identity,
    pub(crate) stamp: Stamp,
    pub(crate) volume_sectors: u64,
    /// When the last object of the log was written: nanoseconds since 1970.
    pub(crate) as_of_ns: u64,
    pub(crate) object_parts: u32,
    pub(crate) extent_parts: u32,
    pub(crate) ended: Vec<Ended>,
    pub(crate) named: Vec<Named>,
}

impl Manifest {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut table = Vec::new();
        put_u64(&mut table, self.as_of_ns);
        put_u32(&mut table, self.object_parts);
        put_u32(&mut table, self.extent_parts);
        for ended in &self.ended {
            put_u64(&mut table, ended.epoch);
            put_u64(&mut table, ended.count);
            put_u64(&mut table, ended.fence);
        }
        for named in &self.named {
            put_u64(&mut table, named.at.epoch);
            put_u64(&mut table, named.at.seq);
            put_u16(&mut table, named.name.len() as u16);
            table.extend_from_slice(named.name.as_bytes());
        }
        let mut header = Header::new(Kind::Manifest, self.identity, self.stamp, self.volume_sectors);
        header.entries = self.ended.len() as u32;
        header.more = self.named.len() as u32;
        header.encode(&table, 0)
    }

    pub(crate) fn decode(bytes: &[u8], identity: &Identity) -> Result<Self, Damage> {
        let (header, table) = Header::decode(bytes, Kind::Manifest, identity)?;
        let mut r = Reader::new(&table);
        let mut manifest = Self {
            identity: header.identity,
            stamp: header.stamp,
            volume_sectors: header.volume_sectors,
            as_of_ns: r.u64()?,
            object_parts: r.u32()?,
            extent_parts: r.u32()?,
            ended: Vec::new(),
            named: Vec::new(),
        };
        for _ in 0..header.entries {
            manifest.ended.push(Ended {
                epoch: r.counter("ended epoch")?,
                count: r.counter("ended count")?,
                fence: r.counter("fence")?,
            });
        }
        for _ in 0..header.more {
            let at = Position { epoch: r.counter("named epoch")?, seq: r.counter("named sequence number")? };
            let len = usize::from(r.u16()?);
            let name = r.text(len.min(CHECKPOINT_BYTES_MAX + 1), "name of a checkpoint")?;
            if !is_checkpoint_name(&name) {
                return Err(Damage::Field("name of a checkpoint"));
            }
            manifest.named.push(Named { name, at });
        }
        r.end()?;
        let is_ascending = |w: &[Ended]| w[0].epoch < w[1].epoch;
        if !manifest.ended.windows(2).all(is_ascending) {
            return Err(Damage::Field("ended epoch"));
        }
        if manifest.object_parts.checked_add(manifest.extent_parts).is_none() {
            return Err(Damage::Field("number of parts"));
        }
        Ok(manifest)
    }
}

/// An object of the log as a checkpoint knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObjectEntry {
    pub(crate) at: Position,
    /// Where its payload begins, in bytes.
    pub(crate) data_at: u32,
    pub(crate) sectors: u32,
}

const OBJECT_ENTRY_BYTES: usize = 24;

/// A part of a checkpoint's table of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectPart(pub(crate) Vec<ObjectEntry>);

impl ObjectPart {
    /// Most entries of a part.
    pub(crate) const ENTRIES_MAX: usize = 1 << 17;

    pub(crate) fn encode(&self, identity: Identity, stamp: Stamp, number: u32) -> Vec<u8> {
        let mut table = Vec::with_capacity(self.0.len() * OBJECT_ENTRY_BYTES);
        for entry in &self.0 {
            put_u64(&mut table, entry.at.epoch);
            put_u64(&mut table, entry.at.seq);
            put_u32(&mut table, entry.data_at);
            put_u32(&mut table, entry.sectors);
        }
        part(Kind::ObjectPart, identity, stamp, number, self.0.len(), &table)
    }

    pub(crate) fn decode(bytes: &[u8], identity: &Identity, number: u32) -> Result<Self, Damage> {
        let (entries, table) = read_part(bytes, Kind::ObjectPart, identity, number)?;
        let mut r = Reader::new(&table);
        let mut all = Vec::with_capacity((entries as usize).min(r.left() / OBJECT_ENTRY_BYTES));
        for _ in 0..entries {
            let at = Position { epoch: r.counter("epoch")?, seq: r.counter("sequence number")? };
            let entry = ObjectEntry { at, data_at: r.u32()?, sectors: r.u32()? };
            if entry.sectors > OBJECT_SECTORS_MAX || (entry.data_at as usize) < HEADER_BYTES {
                return Err(Damage::Field("object"));
            }
            all.push(entry);
        }
        r.end()?;
        Ok(Self(all))
    }
}

/// An extent as a checkpoint knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredExtent {
    /// First sector in its chunk.
    pub(crate) start: u16,
    pub(crate) sectors: u16,
    /// First sector in the payload.
    pub(crate) pos: u16,
    /// Which entry of the table of objects.
    pub(crate) object: u32,
}

const STORED_EXTENT_BYTES: usize = 10;
const CHUNK_BYTES: usize = 8;

/// A part of a checkpoint's index: chunks of the volume, ascending, and their extents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExtentPart(pub(crate) Vec<(u32, Vec<StoredExtent>)>);

impl ExtentPart {
    /// No chunk is added to a part of so many bytes.
    pub(crate) const BYTES_FULL: usize = 4 << 20;

    /// Bytes of a chunk with so many extents.
    pub(crate) const fn chunk_bytes(extents: usize) -> usize {
        CHUNK_BYTES + extents * STORED_EXTENT_BYTES
    }

    pub(crate) fn encode(&self, identity: Identity, stamp: Stamp, number: u32) -> Vec<u8> {
        let bytes = self.0.iter().map(|(_, extents)| Self::chunk_bytes(extents.len())).sum();
        let mut table = Vec::with_capacity(bytes);
        for (chunk, extents) in &self.0 {
            put_u32(&mut table, *chunk);
            put_u32(&mut table, extents.len() as u32);
            for extent in extents {
                put_u16(&mut table, extent.start);
                put_u16(&mut table, extent.sectors);
                put_u16(&mut table, extent.pos);
                put_u32(&mut table, extent.object);
            }
        }
        part(Kind::ExtentPart, identity, stamp, number, self.0.len(), &table)
    }

    pub(crate) fn decode(bytes: &[u8], identity: &Identity, number: u32) -> Result<Self, Damage> {
        let (entries, table) = read_part(bytes, Kind::ExtentPart, identity, number)?;
        let mut r = Reader::new(&table);
        let mut all: Vec<(u32, Vec<StoredExtent>)> = Vec::new();
        for _ in 0..entries {
            let (chunk, count) = (r.u32()?, r.u32()?);
            if count == 0 || all.last().is_some_and(|(last, _)| *last >= chunk) {
                return Err(Damage::Field("chunk"));
            }
            let mut extents = Vec::with_capacity((count as usize).min(r.left() / STORED_EXTENT_BYTES));
            let mut end = 0;
            for _ in 0..count {
                let (start, sectors, pos, object) = (r.u16()?, r.u16()?, r.u16()?, r.u32()?);
                let next = u32::from(start) + u32::from(sectors);
                if sectors == 0 || u32::from(start) < end || next > CHUNK_SECTORS {
                    return Err(Damage::Field("extent"));
                }
                end = next;
                extents.push(StoredExtent { start, sectors, pos, object });
            }
            all.push((chunk, extents));
        }
        r.end()?;
        Ok(Self(all))
    }
}

fn part(kind: Kind, identity: Identity, stamp: Stamp, number: u32, entries: usize, table: &[u8]) -> Vec<u8> {
    let mut header = Header::new(kind, identity, stamp, 0);
    header.entries = entries as u32;
    header.more = number;
    header.encode(table, 0)
}

fn read_part(bytes: &[u8], kind: Kind, identity: &Identity, number: u32) -> Result<(u32, Vec<u8>), Damage> {
    let (header, table) = Header::decode(bytes, kind, identity)?;
    if header.more != number {
        return Err(Damage::Foreign);
    }
    Ok((header.entries, table))
}

/// The object `checkpoint/NAME/E-S`, by which a reader finds a named checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pointer {
    pub(crate) identity: Identity,
    pub(crate) stamp: Stamp,
    pub(crate) name: String,
}

impl Pointer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        Header::new(Kind::Pointer, self.identity, self.stamp, 0).encode(self.name.as_bytes(), 0)
    }

    pub(crate) fn decode(bytes: &[u8], identity: &Identity) -> Result<Self, Damage> {
        let (header, table) = Header::decode(bytes, Kind::Pointer, identity)?;
        let mut r = Reader::new(&table);
        let name = r.text(r.left().min(CHECKPOINT_BYTES_MAX + 1), "name of a checkpoint")?;
        r.end()?;
        if !is_checkpoint_name(&name) {
            return Err(Damage::Field("name of a checkpoint"));
        }
        Ok(Self { identity: header.identity, stamp: header.stamp, name })
    }
}
