//! The label on the backing's side: which cache the backing is paired with, and since when.
//!
//! It lies in a side file, or behind the volume's end; never inside the volume, which stays a 1:1 image.

use crate::checksum::crc_with_hole;
use crate::copies;
use crate::cursor::{Reader, Writer, text_field, text_of};
use crate::{FormatError, logical_block};

/// Bytes of one copy.
pub const LABEL_COPY_BYTES: usize = 4096;
/// Bytes of the label: two copies, written in turn, so that a torn update leaves the other one.
pub const LABEL_BYTES: usize = 2 * LABEL_COPY_BYTES;
/// Label version of a volume with logical blocks of 512 bytes; this release writes and reads both.
pub const LABEL_VERSION: u32 = 1;
/// Label version of a volume with larger logical blocks.
pub const LABEL_VERSION_LOGICAL_BLOCK: u32 = 2;

const MAGIC: &[u8; 8] = b"FBLABEL\0";
const CRC_AT: usize = 12;
const HOST_NAME_BYTES: usize = 64;
const CACHE_NAME_BYTES: usize = 512;

/// What a backing is to its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum LabelState {
    /// Paired: the cache may hold newer data.
    Paired = 1,
    /// The cache was removed for good after everything was destaged: the backing is complete.
    Released = 2,
    /// The cache failed and was retired after everything was destaged: the backing is complete.
    Retired = 3,
}

/// How far the start of a run has come (P6): the label says that a run is to begin, then the superblock takes its
/// number, then the label confirms it. Whatever instant a crash picks, the two tell a stale copy from a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Phase {
    /// Run `generation` is about to begin; the superblock may have its number or the one before.
    Intent = 1,
    /// Run `generation` has begun; the superblock has its number.
    Committed = 2,
}

/// The label's contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Counts updates of the label; of two valid copies the larger is the newer.
    pub update: u64,
    /// Random identity of the backing.
    pub backing_id: [u8; 16],
    /// Identity of the cache that it is paired with.
    pub cache_id: [u8; 16],
    /// Number of the latest run.
    pub generation: u64,
    /// How far the start of that run has come.
    pub phase: Phase,
    /// What the backing is to its cache.
    pub state: LabelState,
    /// The latest run has not stopped cleanly (yet): on another host it may still be writing.
    pub in_use: bool,
    /// Size of the volume in bytes.
    pub volume_bytes: u64,
    /// Logical block of the volume in bytes, as in the superblock: for who serves the backing without its cache.
    pub logical_block: u32,
    /// Time of the latest update, nanoseconds since 1970.
    pub time_ns: u64,
    /// Identity of the host of the latest run (machine-id), zero if it has none.
    pub host_id: [u8; 16],
    /// Name of that host, for messages.
    pub host_name: String,
    /// Path of the cache, for messages.
    pub cache_name: String,
    /// The latest run that began with a journal on the backing's side ([`crate::journal`]), 0 if the one after it had none: the
    /// journal is to be believed if it is of that run or of a later one.
    pub journal_run: u64,
}

impl Label {
    /// Byte offset, within the label's region, of the copy that an update with this counter goes to.
    pub const fn copy_offset(update: u64) -> u64 {
        (update % 2) * LABEL_COPY_BYTES as u64
    }

    /// Whether this may be what has become of that other one during its run: a run ends itself, and may retire its cache; that
    /// another one has begun, another cache was paired, or the cache was left behind is somebody else's doing.
    pub fn is_of_the_run_of(&self, other: &Self) -> bool {
        (self.backing_id, self.cache_id, self.generation)
            == (other.backing_id, other.cache_id, other.generation)
            && (self.state == other.state || self.state == LabelState::Retired)
    }

    /// The bytes of one copy.
    pub fn encode(&self) -> [u8; LABEL_COPY_BYTES] {
        let mut out = [0; LABEL_COPY_BYTES];
        let mut w = Writer::new(&mut out);
        w.bytes(MAGIC);
        w.u32(logical_block::version(self.logical_block));
        w.skip(4);
        w.u64(self.update);
        w.bytes(&self.backing_id);
        w.bytes(&self.cache_id);
        w.u64(self.generation);
        w.u32(self.phase as u32);
        w.u32(self.state as u32);
        w.u32(u32::from(self.in_use));
        w.u32(logical_block::field(self.logical_block));
        w.u64(self.volume_bytes);
        w.u64(self.time_ns);
        w.bytes(&self.host_id);
        w.bytes(&text_field::<HOST_NAME_BYTES>(&self.host_name));
        w.bytes(&text_field::<CACHE_NAME_BYTES>(&self.cache_name));
        w.u64(self.journal_run);
        let crc = crc_with_hole(&out, CRC_AT);
        out[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads one copy.
    ///
    /// # Errors
    /// [`FormatError`] if it is none, or of an unknown version.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let bytes = bytes.get(..LABEL_COPY_BYTES).ok_or(FormatError::Truncated)?;
        let mut r = Reader::new(bytes);
        if r.bytes(8)? != MAGIC {
            return Err(FormatError::Magic);
        }
        let version = r.u32()?;
        if r.u32()? != crc_with_hole(bytes, CRC_AT) {
            return Err(FormatError::Checksum);
        }
        if !matches!(version, LABEL_VERSION | LABEL_VERSION_LOGICAL_BLOCK) {
            return Err(FormatError::Version(version));
        }
        let update = r.counter("update")?;
        let backing_id = r.array()?;
        let cache_id = r.array()?;
        let generation = r.counter("generation")?;
        let phase = match r.u32()? {
            1 => Phase::Intent,
            2 => Phase::Committed,
            _ => return Err(FormatError::Field("phase")),
        };
        let state = match r.u32()? {
            1 => LabelState::Paired,
            2 => LabelState::Released,
            3 => LabelState::Retired,
            _ => return Err(FormatError::Field("state")),
        };
        let in_use = r.u32()? & 1 != 0;
        let logical_block = logical_block::of(version, r.u32()?)?;
        Ok(Self {
            update,
            backing_id,
            cache_id,
            generation,
            phase,
            state,
            in_use,
            volume_bytes: r.volume_bytes()?,
            logical_block,
            time_ns: r.u64()?,
            host_id: r.array()?,
            host_name: text_of(r.bytes(HOST_NAME_BYTES)?),
            cache_name: text_of(r.bytes(CACHE_NAME_BYTES)?),
            journal_run: r.counter("journal_run")?,
        })
    }

    /// The newer valid copy of a label region as read ([`LABEL_BYTES`] long).
    ///
    /// # Errors
    /// [`FormatError::Version`] if either copy is from a later release; [`FormatError::Magic`] if there is no label; else what is wrong,
    /// if neither copy is valid.
    pub fn newest(region: &[u8]) -> Result<Self, FormatError> {
        let (a, b) = region.split_at_checked(LABEL_COPY_BYTES).ok_or(FormatError::Truncated)?;
        copies::newest(Self::decode(a), Self::decode(b), |copy| copy.update)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample() -> Label {
        Label {
            update: 3,
            backing_id: [0xB2; 16],
            cache_id: [0xC1; 16],
            generation: 4,
            phase: Phase::Committed,
            state: LabelState::Paired,
            in_use: false,
            volume_bytes: 1 << 30,
            logical_block: 512,
            time_ns: 1_700_000_000_000_000_002,
            host_id: [0xA0; 16],
            host_name: "db1".into(),
            cache_name: "/cache/c.img".into(),
            journal_run: 4,
        }
    }

    #[test]
    fn a_label_of_another_run_is_told() {
        let ours = sample();
        let retired = Label { update: 5, state: LabelState::Retired, ..sample() };
        let ended = Label { update: 5, in_use: false, time_ns: 9, ..sample() };
        assert!([&ours, &retired, &ended].iter().all(|label| label.is_of_the_run_of(&ours)));
        let others = [
            Label { backing_id: [1; 16], ..sample() },
            Label { cache_id: [1; 16], ..sample() },
            Label { generation: 5, ..sample() },
            Label { state: LabelState::Released, ..sample() },
        ];
        assert!(!others.iter().any(|label| label.is_of_the_run_of(&ours)));
        assert!(others[3].is_of_the_run_of(&others[3]), "a backing without its cache");
    }

    #[test]
    fn round_trip_newest_and_flips() {
        let a = sample();
        let b = Label { update: 4, generation: 5, ..sample() };
        let mut region = b.encode().to_vec();
        region.extend_from_slice(&a.encode());
        assert_eq!(Label::newest(&region), Ok(b));
        region[100] ^= 1;
        assert_eq!(Label::newest(&region), Ok(a.clone()));
        assert_eq!(Label::newest(&[0; LABEL_BYTES]), Err(FormatError::Magic));
        let good = a.encode();
        for at in 0..good.len() {
            let mut bad = good;
            bad[at] ^= 4;
            assert!(Label::decode(&bad).is_err(), "flip at {at}");
        }
    }
}
