//! Objects that are made once and say who is who: the volume, claims, fences.

use super::cursor::Reader;
use super::header::{Header, Identity, Kind, Stamp};
use super::{Damage, VOLUME_SECTORS_MAX};
use crate::face::{Claim, HOST_BYTES_MAX, Position, Writer};

/// The claim took the volume from an owner that had not released it.
const TAKEOVER: u32 = 1;

/// The object `volume`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VolumeMark {
    pub(crate) volume: [u8; 16],
    /// Size in sectors as of its creation.
    pub(crate) sectors: u64,
    pub(crate) stamp: Stamp,
}

impl VolumeMark {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let identity = Identity { volume: self.volume, at: Position::default() };
        Header::new(Kind::Volume, identity, self.stamp, self.sectors).encode(&[], 0)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Damage> {
        let (header, _) = Header::decode_any(bytes)?;
        if header.kind != Kind::Volume {
            return Err(Damage::Kind);
        }
        if header.volume_sectors == 0 || header.volume_sectors > VOLUME_SECTORS_MAX {
            return Err(Damage::Field("size of the volume"));
        }
        Ok(Self { volume: header.identity.volume, sectors: header.volume_sectors, stamp: header.stamp })
    }
}

/// The object `epoch/E`.
pub(crate) fn claim_bytes(volume: [u8; 16], claim: &Claim) -> Vec<u8> {
    let identity = Identity { volume, at: Position { epoch: claim.epoch, seq: 0 } };
    let stamp = Stamp { nonce: claim.writer.nonce, time_ns: claim.time_ns };
    let mut header = Header::new(Kind::Claim, identity, stamp, 0);
    header.flags = if claim.takeover { TAKEOVER } else { 0 };
    let mut end = claim.writer.host.len().min(HOST_BYTES_MAX);
    while !claim.writer.host.is_char_boundary(end) {
        end -= 1;
    }
    header.encode(&claim.writer.host.as_bytes()[..end], 0)
}

/// What the object `epoch/E` says.
pub(crate) fn claim_of(bytes: &[u8], volume: [u8; 16], epoch: u64) -> Result<Claim, Damage> {
    let identity = Identity { volume, at: Position { epoch, seq: 0 } };
    let (header, table) = Header::decode(bytes, Kind::Claim, &identity)?;
    let mut r = Reader::new(&table);
    let host = r.text(r.left().min(HOST_BYTES_MAX + 1), "host")?;
    r.end()?;
    let writer = Writer { nonce: header.stamp.nonce, host };
    Ok(Claim { epoch, writer, time_ns: header.stamp.time_ns, takeover: header.flags & TAKEOVER != 0 })
}

/// The object that ends the log of an owner, under the name of the first object of that log that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fence {
    pub(crate) identity: Identity,
    pub(crate) stamp: Stamp,
    /// The owner that ends it.
    pub(crate) by: u64,
}

impl Fence {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut header = Header::new(Kind::Fence, self.identity, self.stamp, 0);
        header.other.epoch = self.by;
        header.encode(&[], 0)
    }

    pub(crate) fn decode(bytes: &[u8], identity: &Identity) -> Result<Self, Damage> {
        let (header, _) = Header::decode(bytes, Kind::Fence, identity)?;
        Ok(Self { identity: header.identity, stamp: header.stamp, by: header.other.epoch })
    }
}
