//! Where things lie in a cache region.

use crate::FormatError;

/// Where the log lies on the cache device and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Random identity of the cache, made by `forebay format`.
    pub cache_id: [u8; 16],
    /// Number of this run of the volume; grows with each start, and is in every record.
    pub generation: u64,
    /// Alignment of everything in the log, in bytes: 512 or 4096.
    pub align: u32,
    /// Size of a segment in bytes, a multiple of 4096.
    pub segment_bytes: u32,
    /// Number of segments.
    pub segment_count: u32,
}

impl Layout {
    /// Byte offset of segment 0; what lies before is kept for the superblocks.
    pub const SEGMENTS_OFFSET: u64 = 1 << 20;
    /// Fewest segments that a cache works with: the head, the reserve for records that make room, and the tail.
    pub const SEGMENT_COUNT_MIN: u32 = 6;
    /// Most segments of a cache.
    pub const SEGMENT_COUNT_MAX: u32 = 1 << 16;
    /// Smallest segment in bytes.
    pub const SEGMENT_BYTES_MIN: u32 = 64 << 10;
    /// Largest segment in bytes.
    pub const SEGMENT_BYTES_MAX: u32 = 64 << 20;

    /// Byte offset of segment `index` on the device.
    pub const fn segment_offset(&self, index: u32) -> u64 {
        Self::SEGMENTS_OFFSET + index as u64 * self.segment_bytes as u64
    }

    /// Bytes of the device that the cache uses.
    pub const fn cache_bytes(&self) -> u64 {
        self.segment_offset(self.segment_count)
    }

    /// Segment size and count that suit a device of `device_bytes`: about 500 segments, so that cleaning moves in
    /// steps of a fraction of a percent, within the limits. `None` if the device is too small.
    pub fn geometry_for(device_bytes: u64) -> Option<(u32, u32)> {
        let room = device_bytes.checked_sub(Self::SEGMENTS_OFFSET)?;
        let mut bytes = Self::SEGMENT_BYTES_MIN;
        while bytes < Self::SEGMENT_BYTES_MAX && (room / u64::from(bytes) > 768 || bytes < (1 << 20)) {
            if room / (u64::from(bytes) * 2) < u64::from(Self::SEGMENT_COUNT_MIN) * 2 {
                break;
            }
            bytes *= 2;
        }
        let count = (room / u64::from(bytes)).min(u64::from(Self::SEGMENT_COUNT_MAX)) as u32;
        (count >= Self::SEGMENT_COUNT_MIN).then_some((bytes, count))
    }

    /// Refuses geometry that cannot be.
    ///
    /// # Errors
    /// [`FormatError::Field`] that names the field.
    pub fn validate(&self) -> Result<(), FormatError> {
        if self.align != 512 && self.align != 4096 {
            return Err(FormatError::Field("align"));
        }
        if !(Self::SEGMENT_BYTES_MIN..=Self::SEGMENT_BYTES_MAX).contains(&self.segment_bytes)
            || !self.segment_bytes.is_multiple_of(4096)
        {
            return Err(FormatError::Field("segment_bytes"));
        }
        if !(Self::SEGMENT_COUNT_MIN..=Self::SEGMENT_COUNT_MAX).contains(&self.segment_count) {
            return Err(FormatError::Field("segment_count"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn geometry_suits_small_and_large_devices() {
        assert_eq!(Layout::geometry_for(1 << 20), None);
        for shift in 21..44 {
            let device = 1u64 << shift;
            let (bytes, count) = Layout::geometry_for(device).unwrap();
            let layout = Layout {
                cache_id: [0; 16],
                generation: 1,
                align: 512,
                segment_bytes: bytes,
                segment_count: count,
            };
            layout.validate().unwrap();
            assert!(layout.cache_bytes() <= device);
        }
        assert_eq!(Layout::geometry_for((8 << 30) + (1 << 20)), Some((16 << 20, 512)));
    }

    #[test]
    fn geometry_is_what_it_was() {
        const M: u64 = 1 << 20;
        let device = |segment_bytes: u64, count: u64| M + segment_bytes * count;
        assert_eq!(Layout::geometry_for(M - 1), None);
        assert_eq!(Layout::geometry_for(device(64 << 10, 6) - 1), None);
        for (bytes, (segment_bytes, segment_count)) in [
            (device(64 << 10, 6), (64 << 10, 6)),
            (device(64 << 10, 24) - 1, (64 << 10, 23)),
            (device(64 << 10, 24), (128 << 10, 12)),
            (device(512 << 10, 24) - 1, (512 << 10, 23)),
            (device(512 << 10, 24), (1 << 20, 12)),
            (device(1 << 20, 769) - 1, (1 << 20, 768)),
            (device(1 << 20, 769), (2 << 20, 384)),
            (device(32 << 20, 769), (64 << 20, 384)),
            (device(64 << 20, 1 << 16), (64 << 20, 1 << 16)),
            (device(64 << 20, (1 << 16) + 1), (64 << 20, 1 << 16)),
        ] {
            assert_eq!(
                Layout::geometry_for(bytes),
                Some((segment_bytes, segment_count)),
                "a device of {bytes} bytes"
            );
            let layout =
                Layout { cache_id: [0; 16], generation: 1, align: 512, segment_bytes, segment_count };
            assert_eq!(layout.cache_bytes(), device(segment_bytes.into(), segment_count.into()));
        }
    }

    #[test]
    fn a_layout_within_its_limits_is_accepted_and_others_are_refused_by_name() {
        let layout = Layout {
            cache_id: [0; 16],
            generation: 1,
            align: 512,
            segment_bytes: 64 << 10,
            segment_count: 6,
        };
        assert_eq!(layout.segment_offset(3), (1 << 20) + 3 * (64 << 10));
        for good in [
            layout,
            Layout { align: 4096, ..layout },
            Layout { segment_bytes: 64 << 20, ..layout },
            Layout { segment_bytes: (64 << 10) + 4096, ..layout },
            Layout { segment_count: 1 << 16, ..layout },
        ] {
            assert_eq!(good.validate(), Ok(()), "{good:?}");
        }
        for (bad, field) in [
            (Layout { align: 1024, ..layout }, "align"),
            (Layout { align: 0, ..layout }, "align"),
            (Layout { segment_bytes: (64 << 10) - 4096, ..layout }, "segment_bytes"),
            (Layout { segment_bytes: (64 << 20) + 4096, ..layout }, "segment_bytes"),
            (Layout { segment_bytes: (64 << 10) + 512, ..layout }, "segment_bytes"),
            (Layout { segment_count: 5, ..layout }, "segment_count"),
            (Layout { segment_count: (1 << 16) + 1, ..layout }, "segment_count"),
        ] {
            assert_eq!(bad.validate(), Err(FormatError::Field(field)), "{bad:?}");
        }
    }
}
