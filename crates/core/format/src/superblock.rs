//! The superblock: identity, geometry and state of a cache, in two copies.

use crate::checksum::crc_with_hole;
use crate::copies;
use crate::cursor::{Reader, Writer, text_field, text_of};
use crate::{FormatError, Layout, logical_block};

/// Bytes of one copy.
pub const SUPERBLOCK_BYTES: usize = 4096;
/// Byte offsets of the two copies on the cache device. An update writes the first, makes it durable, then the
/// second: a torn update leaves the other one.
pub const SUPERBLOCK_OFFSETS: [u64; 2] = [0, 512 << 10];
/// Format version of a volume with logical blocks of 512 bytes; this release writes and reads both.
pub const FORMAT_VERSION: u32 = 1;
/// Format version of a volume with larger logical blocks: a release that does not know of them must not serve it.
pub const FORMAT_VERSION_LOGICAL_BLOCK: u32 = 2;

const MAGIC: &[u8; 8] = b"FOREBAY\0";
const CRC_AT: usize = 12;
/// Bytes kept for the path or URL of the backing.
pub const BACKING_NAME_BYTES: usize = 512;
/// Bytes kept for a fingerprint of a backing that has no room for a label.
pub const FINGERPRINT_BYTES: usize = 256;

/// What a cache is to its volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum CacheState {
    /// Paired with its backing.
    Paired = 1,
    /// Removed for good from its volume after everything was destaged.
    Released = 2,
    /// Failed a durable write (P9); everything that it held was destaged, and its log must not be replayed.
    Retired = 3,
}

/// Identity, geometry and state of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Counts updates of the superblock; of two valid copies the larger is the newer.
    pub update: u64,
    /// Where the log lies, whose it is, and the number of the latest run.
    pub layout: Layout,
    /// Random identity of the backing, as in its label.
    pub backing_id: [u8; 16],
    /// Size of the volume in bytes.
    pub volume_bytes: u64,
    /// Logical block of the volume in bytes, as its clients are told: a power of two from 512 to 4096.
    pub logical_block: u32,
    /// What the cache is to its volume.
    pub state: CacheState,
    /// The latest run stopped cleanly.
    pub clean_stop: bool,
    /// The backing carries a label; if not, `fingerprint` identifies it.
    pub has_label: bool,
    /// Wall-clock time of `forebay format`, in nanoseconds since 1970.
    pub created_ns: u64,
    /// Path or URL of the backing, for messages.
    pub backing_name: String,
    /// What identifies a backing without a label; empty otherwise.
    pub fingerprint: String,
}

impl Superblock {
    /// The bytes of one copy.
    pub fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        let mut out = [0; SUPERBLOCK_BYTES];
        let mut w = Writer::new(&mut out);
        w.bytes(MAGIC);
        w.u32(logical_block::version(self.logical_block));
        w.skip(4);
        w.bytes(&self.layout.cache_id);
        w.bytes(&self.backing_id);
        w.u64(self.update);
        w.u64(self.layout.generation);
        w.u64(self.volume_bytes);
        w.u32(self.layout.align);
        w.u32(self.layout.segment_bytes);
        w.u32(self.layout.segment_count);
        w.u32(self.state as u32);
        w.u32(u32::from(self.clean_stop) | u32::from(self.has_label) << 1);
        w.u32(logical_block::field(self.logical_block));
        w.u64(self.created_ns);
        w.bytes(&text_field::<BACKING_NAME_BYTES>(&self.backing_name));
        w.bytes(&text_field::<FINGERPRINT_BYTES>(&self.fingerprint));
        let crc = crc_with_hole(&out, CRC_AT);
        out[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads one copy.
    ///
    /// # Errors
    /// [`FormatError`]; a version that is not known is told apart from a checksum that does not match.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let bytes = bytes.get(..SUPERBLOCK_BYTES).ok_or(FormatError::Truncated)?;
        let mut r = Reader::new(bytes);
        if r.bytes(8)? != MAGIC {
            return Err(FormatError::Magic);
        }
        let version = r.u32()?;
        if r.u32()? != crc_with_hole(bytes, CRC_AT) {
            return Err(FormatError::Checksum);
        }
        if !matches!(version, FORMAT_VERSION | FORMAT_VERSION_LOGICAL_BLOCK) {
            return Err(FormatError::Version(version));
        }
        let cache_id = r.array()?;
        let backing_id = r.array()?;
        let update = r.counter("update")?;
        let generation = r.counter("generation")?;
        let volume_bytes = r.volume_bytes()?;
        let layout = Layout {
            cache_id,
            generation,
            align: r.u32()?,
            segment_bytes: r.u32()?,
            segment_count: r.u32()?,
        };
        layout.validate()?;
        let state = match r.u32()? {
            1 => CacheState::Paired,
            2 => CacheState::Released,
            3 => CacheState::Retired,
            _ => return Err(FormatError::Field("state")),
        };
        let flags = r.u32()?;
        let logical_block = logical_block::of(version, r.u32()?)?;
        let created_ns = r.u64()?;
        Ok(Self {
            update,
            layout,
            backing_id,
            volume_bytes,
            logical_block,
            state,
            clean_stop: flags & 1 != 0,
            has_label: flags & 2 != 0,
            created_ns,
            backing_name: text_of(r.bytes(BACKING_NAME_BYTES)?),
            fingerprint: text_of(r.bytes(FINGERPRINT_BYTES)?),
        })
    }

    /// Of two copies as read, the one to believe: the newer of the valid ones.
    ///
    /// # Errors
    /// [`FormatError::Version`] if either copy is from a later release; [`FormatError::Magic`] if there is none; else what is wrong, if
    /// neither is valid.
    pub fn newest(a: &[u8], b: &[u8]) -> Result<Self, FormatError> {
        copies::newest(Self::decode(a), Self::decode(b), |copy| copy.update)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample() -> Superblock {
        Superblock {
            update: 9,
            layout: Layout {
                cache_id: [0xC1; 16],
                generation: 4,
                align: 512,
                segment_bytes: 1 << 20,
                segment_count: 63,
            },
            backing_id: [0xB2; 16],
            volume_bytes: 1 << 30,
            logical_block: 512,
            state: CacheState::Paired,
            clean_stop: true,
            has_label: true,
            created_ns: 1_700_000_000_000_000_000,
            backing_name: "/data/disk.img".into(),
            fingerprint: String::new(),
        }
    }

    #[test]
    fn round_trip_and_newest() {
        let a = sample();
        let mut b = sample();
        b.update = 10;
        b.clean_stop = false;
        assert_eq!(Superblock::decode(&a.encode()), Ok(a.clone()));
        assert_eq!(Superblock::newest(&a.encode(), &b.encode()), Ok(b.clone()));
        assert_eq!(Superblock::newest(&b.encode(), &a.encode()), Ok(b.clone()));
        assert_eq!(Superblock::newest(&[0; 4096], &a.encode()), Ok(a));
        assert_eq!(Superblock::newest(&[0; 4096], &[0; 4096]), Err(FormatError::Magic));
    }

    #[test]
    fn a_logical_block_of_its_own_is_another_version() {
        let version = |bytes: &[u8]| u32::from_le_bytes(bytes[8..12].try_into().unwrap());
        assert_eq!(version(&sample().encode()), FORMAT_VERSION);
        for logical_block in [1024, 2048, 4096] {
            let larger = Superblock { logical_block, ..sample() };
            assert_eq!(version(&larger.encode()), FORMAT_VERSION_LOGICAL_BLOCK);
            assert_eq!(Superblock::decode(&larger.encode()), Ok(larger));
        }
        let odd = Superblock { logical_block: 8192, ..sample() };
        assert_eq!(Superblock::decode(&odd.encode()), Err(FormatError::Field("logical_block")));
    }

    #[test]
    fn a_size_that_no_volume_has_is_refused() {
        for volume_bytes in [(1 << 30) + 1, (1 << 52) + 512, u64::MAX, u64::MAX - 511] {
            let bytes = Superblock { volume_bytes, ..sample() }.encode();
            assert_eq!(Superblock::decode(&bytes), Err(FormatError::Field("volume_bytes")));
            let label = crate::label::Label { volume_bytes, ..crate::label::tests::sample() };
            assert!(crate::label::Label::decode(&label.encode()).is_err());
        }
        let largest = Superblock { volume_bytes: 1 << 52, ..sample() };
        assert_eq!(Superblock::decode(&largest.encode()), Ok(largest));
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let good = sample().encode();
        for at in 0..good.len() {
            let mut bad = good;
            bad[at] ^= 0x10;
            assert!(Superblock::decode(&bad).is_err(), "flip at {at}");
        }
    }
}
