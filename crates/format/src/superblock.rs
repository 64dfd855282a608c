//! The superblock: identity, geometry and state of a cache, in two copies.

use crate::checksum::crc_with_hole;
use crate::cursor::{Reader, Writer, text_field, text_of};
use crate::{FormatError, Layout};

/// Bytes of one copy.
pub const SUPERBLOCK_BYTES: usize = 4096;
/// Byte offsets of the two copies on the cache device. An update writes the first, makes it durable, then the
/// second: a torn update leaves the other one.
pub const SUPERBLOCK_OFFSETS: [u64; 2] = [0, 512 << 10];
/// Format version that this release writes and reads.
pub const FORMAT_VERSION: u32 = 1;

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
        w.u32(FORMAT_VERSION);
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
        w.u32(0);
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
        if version != FORMAT_VERSION {
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
        let _reserved = r.u32()?;
        let created_ns = r.u64()?;
        Ok(Self {
            update,
            layout,
            backing_id,
            volume_bytes,
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
    /// The first copy's error if neither is valid, unless only the second says that the version is unknown.
    pub fn newest(a: &[u8], b: &[u8]) -> Result<Self, FormatError> {
        match (Self::decode(a), Self::decode(b)) {
            (Ok(a), Ok(b)) => Ok(if b.update > a.update { b } else { a }),
            (Ok(one), Err(_)) | (Err(_), Ok(one)) => Ok(one),
            (Err(_), Err(e @ FormatError::Version(_))) => Err(e),
            (Err(e), Err(_)) => Err(e),
        }
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
