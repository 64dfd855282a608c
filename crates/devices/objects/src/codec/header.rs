//! The header that every object begins with.

use crc_fast::{CrcAlgorithm, Digest};

use super::cursor::{Reader, put_u16, put_u32, put_u64};
use super::{Damage, VOLUME_SECTORS_MAX};
use crate::face::Position;

/// Bytes of the header.
pub(crate) const HEADER_BYTES: usize = 128;
const MAGIC: &[u8; 8] = b"FBOBJECT";
const CRC_AT: usize = 8;
const VERSION: u16 = 1;
/// Longest table in bytes: none that is written is longer.
const TABLE_BYTES_MAX: u32 = 16 << 20;

/// What an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Volume = 1,
    Claim = 2,
    Log = 3,
    Fence = 4,
    Manifest = 5,
    ObjectPart = 6,
    ExtentPart = 7,
    Pointer = 8,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Volume,
        Self::Claim,
        Self::Log,
        Self::Fence,
        Self::Manifest,
        Self::ObjectPart,
        Self::ExtentPart,
        Self::Pointer,
    ];
}

/// Whose an object is and where it belongs. What is read must match what was looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) volume: [u8; 16],
    pub(crate) at: Position,
}

/// Who wrote an object, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) nonce: [u8; 16],
    /// Nanoseconds since 1970.
    pub(crate) time_ns: u64,
}

/// Every field of the header but for magic, version and checksum. What a field means depends on the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) identity: Identity,
    pub(crate) stamp: Stamp,
    pub(crate) volume_sectors: u64,
    pub(crate) flags: u32,
    /// Entries of the table.
    pub(crate) entries: u32,
    /// Entries of the table's second kind, or the number of a part.
    pub(crate) more: u32,
    /// Another place in the log, see the kinds.
    pub(crate) other: Position,
    pub(crate) payload_sectors: u32,
    /// CRC-32C of the checksums of all pieces.
    pub(crate) payload_crc: u32,
    /// Of the log: how many objects before it existed for certain.
    pub(crate) known: u64,
}

impl Header {
    /// A header in which only these say something.
    pub(crate) const fn new(kind: Kind, identity: Identity, stamp: Stamp, volume_sectors: u64) -> Self {
        Self {
            kind,
            identity,
            stamp,
            volume_sectors,
            flags: 0,
            entries: 0,
            more: 0,
            other: Position { epoch: 0, seq: 0 },
            payload_sectors: 0,
            payload_crc: 0,
            known: 0,
        }
    }

    /// Header and table, with their checksum.
    pub(crate) fn encode(&self, table: &[u8], room: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES + table.len() + room);
        out.extend_from_slice(MAGIC);
        put_u32(&mut out, 0);
        put_u16(&mut out, VERSION);
        put_u16(&mut out, self.kind as u16);
        out.extend_from_slice(&self.identity.volume);
        out.extend_from_slice(&self.stamp.nonce);
        put_u64(&mut out, self.identity.at.epoch);
        put_u64(&mut out, self.identity.at.seq);
        put_u64(&mut out, self.stamp.time_ns);
        put_u64(&mut out, self.volume_sectors);
        put_u32(&mut out, table.len() as u32);
        put_u32(&mut out, self.payload_sectors);
        put_u32(&mut out, self.flags);
        put_u32(&mut out, self.entries);
        put_u64(&mut out, self.other.epoch);
        put_u64(&mut out, self.other.seq);
        put_u32(&mut out, self.more);
        put_u32(&mut out, self.payload_crc);
        put_u64(&mut out, self.known);
        out.extend_from_slice(table);
        let crc = crc_of(&out);
        out[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads header and table of an object that must be of this kind and belong there; `bytes` may go on behind them. Gives the table, too.
    pub(crate) fn decode(bytes: &[u8], kind: Kind, identity: &Identity) -> Result<(Self, Vec<u8>), Damage> {
        let (header, table) = Self::decode_any(bytes)?;
        if header.identity != *identity {
            return Err(Damage::Foreign);
        }
        if header.kind != kind {
            return Err(Damage::Kind);
        }
        Ok((header, table))
    }

    /// Reads header and table of whatever object of whatever volume this is.
    pub(crate) fn decode_any(bytes: &[u8]) -> Result<(Self, Vec<u8>), Damage> {
        let whole = bytes.get(..head_bytes(bytes)?).ok_or(Damage::Truncated)?;
        let (header, table) = whole.split_at(HEADER_BYTES);
        let mut r = Reader::new(header);
        r.bytes(8)?;
        if r.u32()? != crc_of(whole) {
            return Err(Damage::Checksum);
        }
        let version = r.u16()?;
        if version != VERSION {
            return Err(Damage::Version(version));
        }
        let kind = r.u16()?;
        let kind = Kind::ALL.into_iter().find(|k| *k as u16 == kind).ok_or(Damage::Field("kind"))?;
        let volume = r.array()?;
        let nonce = r.array()?;
        let at = Position { epoch: r.counter("epoch")?, seq: r.counter("sequence number")? };
        let stamp = Stamp { nonce, time_ns: r.u64()? };
        let mut header = Self::new(kind, Identity { volume, at }, stamp, r.u64()?);
        r.u32()?;
        header.payload_sectors = r.u32()?;
        header.flags = r.u32()?;
        header.entries = r.u32()?;
        header.other =
            Position { epoch: r.counter("other epoch")?, seq: r.counter("other sequence number")? };
        header.more = r.u32()?;
        header.payload_crc = r.u32()?;
        header.known = r.u64()?;
        if header.volume_sectors > VOLUME_SECTORS_MAX {
            return Err(Damage::Field("size of the volume"));
        }
        Ok((header, table.to_vec()))
    }
}

/// How many bytes header and table of an object take, by its first [`HEADER_BYTES`] bytes.
pub(crate) fn head_bytes(bytes: &[u8]) -> Result<usize, Damage> {
    let header = bytes.get(..HEADER_BYTES).ok_or(Damage::Truncated)?;
    let mut r = Reader::new(header);
    if r.bytes(8)? != MAGIC {
        return Err(Damage::Magic);
    }
    let mut r = Reader::new(&header[80..84]);
    let table = r.u32()?;
    if table > TABLE_BYTES_MAX {
        return Err(Damage::Field("length of the table"));
    }
    Ok(HEADER_BYTES + table as usize)
}

/// CRC-32C of header and table, in which the checksum itself counts as zero.
fn crc_of(whole: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&whole[..CRC_AT]);
    digest.update(&[0; 4]);
    digest.update(&whole[CRC_AT + 4..]);
    digest.finalize() as u32
}

/// What an object says to be, if it is whole.
pub(crate) fn identity_of(bytes: &[u8]) -> Result<Identity, Damage> {
    Header::decode_any(bytes).map(|(header, _)| header.identity)
}
