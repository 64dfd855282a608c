//! Reading a cache's two superblock copies.

use forebay_block::{Buf, DeviceOp, ErrorKind, IoError};
use forebay_device::{Clock, Device, Ring, run_alone, shows_in_background};
use forebay_format::FormatError;
use forebay_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock};

use crate::error::HostError;

/// Why a label that was written is not believed to be.
const TWO_DISKS: &str = "it was written at one of its addresses and is not at the other one, so that these are two disks; give two \
                         addresses of the same one";

/// Means to carry out single operations on a device that nothing else uses at the time.
pub(crate) struct Bench<'a> {
    pub(crate) ring: &'a Ring,
    pub(crate) clock: &'a Clock,
}

impl Bench<'_> {
    pub(crate) fn run(
        &self,
        device: &mut dyn Device,
        doing: &'static str,
        op: DeviceOp,
    ) -> Result<Option<Buf>, HostError> {
        let result = run_alone(self.ring, self.clock, device, op);
        result.map_err(|error| HostError::Device { doing, device: device.info().name.clone(), error })
    }

    pub(crate) fn read(&self, device: &mut dyn Device, offset: u64, len: usize) -> Result<Buf, HostError> {
        let read = self.run(device, "reading", DeviceOp::Read { offset, len })?;
        Ok(read.unwrap_or_else(|| Buf::zeroed(len)))
    }

    pub(crate) fn write(&self, device: &mut dyn Device, offset: u64, data: Buf) -> Result<(), HostError> {
        let op = DeviceOp::Write { offset, bufs: vec![data], durable: true };
        self.run(device, "writing", op).map(drop)
    }

    /// Refuses a backing that has two addresses of two disks: what was written at one of them is not at the other.
    pub(crate) fn prove(
        &self,
        device: &mut dyn Device,
        offset: u64,
        written: &[u8],
    ) -> Result<(), HostError> {
        let (doing, error) = match shows_in_background(self.ring, self.clock, device, offset, written) {
            Ok(true) => return Ok(()),
            Ok(false) => ("the label", IoError::new(ErrorKind::Io, TWO_DISKS)),
            Err(error) => ("reading the label", error),
        };
        Err(HostError::Device { doing, device: device.info().name.clone(), error })
    }

    /// The believable superblock of a cache, `None` if there is none.
    pub(crate) fn find_superblock(&self, cache: &mut dyn Device) -> Result<Option<Superblock>, HostError> {
        let name = cache.info().name.clone();
        let size_bytes = cache.info().size_bytes;
        let mut copy = |offset: u64| {
            if offset + SUPERBLOCK_BYTES as u64 > size_bytes {
                return Ok(Buf::zeroed(SUPERBLOCK_BYTES));
            }
            self.read(cache, offset, SUPERBLOCK_BYTES)
        };
        // One unreadable copy is what the other one is for.
        let (a, b) = match (copy(SUPERBLOCK_OFFSETS[0]), copy(SUPERBLOCK_OFFSETS[1])) {
            (Err(e), Err(_)) => return Err(e),
            (a, b) => {
                let or_nothing =
                    |copy: Result<Buf, HostError>| copy.unwrap_or_else(|_| Buf::zeroed(SUPERBLOCK_BYTES));
                (or_nothing(a), or_nothing(b))
            }
        };
        match Superblock::newest(&a, &b) {
            Ok(superblock) => Ok(Some(superblock)),
            Err(FormatError::Magic) => Ok(None),
            Err(FormatError::Version(version)) => Err(HostError::UnknownVersion { what: name, version }),
            Err(error) => Err(HostError::Damaged { what: format!("the superblock of {name}"), error }),
        }
    }

    /// The superblock of what must be a cache, checked against its device.
    pub(crate) fn superblock(&self, cache: &mut dyn Device) -> Result<Superblock, HostError> {
        let found = self.find_superblock(cache)?;
        let info = cache.info();
        let cache = info.name.clone();
        let superblock = found.ok_or_else(|| HostError::NotACache { cache: cache.clone() })?;
        let wanted_bytes = superblock.layout.cache_bytes();
        if info.size_bytes < wanted_bytes {
            return Err(HostError::CacheTruncated { cache, found_bytes: info.size_bytes, wanted_bytes });
        }
        let (align, logical_block) = (superblock.layout.align, info.logical_block);
        if align < logical_block {
            return Err(HostError::CacheAlignment { cache, align, logical_block });
        }
        Ok(superblock)
    }
}
