//! What the simulator writes: each 512-byte sector says where it belongs and which write it comes from.
//!
//! A stamp fills the whole sector with a progression that starts at (address, write number), so that a stale, torn,
//! misplaced or damaged sector is recognised by itself, whatever surrounds it.

/// Bytes of a sector, as an index.
pub const SECTOR: usize = 512;

/// Number of a write (or zero) in the history of a world; 0 is what the volume held before its first write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteNo(pub u32);

/// What a sector holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Content {
    /// Nothing but zeroes.
    Zero,
    /// The whole stamp of a write for the sector `sector` of the volume.
    Stamp {
        /// Sector of the volume for which it was written.
        sector: u64,
        /// The write it comes from.
        write: WriteNo,
    },
    /// Anything else: a record header, a torn or a damaged sector.
    Foreign,
}

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// Makes a stamp's first word differ from what formats tend to begin with; sectors take 24 bits, writes 32.
const MARK: u64 = 0xa5;

const fn word(sector: u64, write: WriteNo) -> u64 {
    (MARK << 56) | ((sector & 0xff_ffff) << 32) | write.0 as u64
}

/// Fills `data` (whole sectors) with the stamps of `write` for the volume's sectors from `first` on.
pub fn fill(data: &mut [u8], first: u64, write: WriteNo) {
    for (i, sector) in data.chunks_exact_mut(SECTOR).enumerate() {
        let mut value = word(first + i as u64, write);
        for bytes in sector.as_chunks_mut::<8>().0 {
            *bytes = value.to_le_bytes();
            value = value.wrapping_add(STEP);
        }
    }
}

/// Reads one sector.
pub fn read(sector: &[u8]) -> Content {
    let words = sector.as_chunks::<8>().0;
    let Some(first) = words.first().map(|w| u64::from_le_bytes(*w)) else {
        return Content::Foreign;
    };
    if first == 0 {
        return if words.iter().all(|w| *w == [0; 8]) { Content::Zero } else { Content::Foreign };
    }
    let mut expected = first;
    let mut difference = 0;
    for bytes in words {
        difference |= u64::from_le_bytes(*bytes) ^ expected;
        expected = expected.wrapping_add(STEP);
    }
    if difference != 0 || first >> 56 != MARK {
        return Content::Foreign;
    }
    Content::Stamp { sector: (first >> 32) & 0xff_ffff, write: WriteNo(first as u32) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_reads_back_and_any_damage_shows() {
        let mut data = vec![0; 2 * SECTOR];
        fill(&mut data, 77, WriteNo(5));
        assert_eq!(read(&data[SECTOR..]), Content::Stamp { sector: 78, write: WriteNo(5) });
        let other = {
            let mut d = vec![0; SECTOR];
            fill(&mut d, 77, WriteNo(6));
            d
        };
        let mut torn = data[..SECTOR].to_vec();
        torn[256..].copy_from_slice(&other[256..]);
        assert_eq!(read(&torn), Content::Foreign);
        for bit in [0, 63, 64, 4095] {
            let mut bad = data[..SECTOR].to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(read(&bad), read(&data[..SECTOR]), "bit {bit}");
        }
        assert_eq!(read(&[0; SECTOR]), Content::Zero);
    }
}
