//! Sectors that say where they belong and when they were written, and a client that knows which ones it may find.

use std::collections::BTreeSet;
use std::ops::Range;

use forebay_block::{ErrorKind, IoError};

use crate::client::Client;

pub const SECTOR: u64 = 512;

/// The content of a sector: its number and the version, all over. Version 0 is a sector of zeroes.
fn stamp(sector: u64, version: u64) -> [u8; SECTOR as usize] {
    let mut bytes = [0; SECTOR as usize];
    if version > 0 {
        for (i, word) in bytes.chunks_exact_mut(8).enumerate() {
            let value = if i % 2 == 0 { sector } else { version };
            word.copy_from_slice(&value.to_le_bytes());
        }
    }
    bytes
}

/// The version of a sector; `None` if it is torn, or belongs elsewhere.
fn version_of(sector: u64, bytes: &[u8]) -> Option<u64> {
    let version = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
    (bytes == stamp(sector, version)).then_some(version)
}

/// A part of a volume that one client alone writes to, and what it may hold.
pub struct Territory {
    sectors: Range<u64>,
    /// For each sector the versions that it may have: one, but after a write that failed or was cut off two or more.
    allowed: Vec<BTreeSet<u64>>,
    version: u64,
    random: u64,
    /// Requests that were answered well, and with an error.
    pub good: u64,
    pub bad: u64,
}

impl Territory {
    pub fn new(sectors: Range<u64>, seed: u64) -> Self {
        let count = (sectors.end - sectors.start) as usize;
        Self {
            sectors,
            allowed: vec![BTreeSet::from([0]); count],
            version: 0,
            random: seed | 1,
            good: 0,
            bad: 0,
        }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % limit
    }

    fn may_be(&mut self, sector: u64) -> &mut BTreeSet<u64> {
        &mut self.allowed[(sector - self.sectors.start) as usize]
    }

    /// A range of up to `most` sectors.
    fn pick(&mut self, most: u64) -> Range<u64> {
        let count = self.sectors.end - self.sectors.start;
        let len = 1 + self.below(most.min(count));
        let mut start = self.sectors.start + self.below(count - len + 1);
        if self.below(2) == 0 {
            start = (start / 8 * 8).max(self.sectors.start);
        }
        start..start + len
    }

    /// One random request. An error is counted; `Err` means that the volume has stopped.
    pub fn step(&mut self, client: &Client) -> Result<(), IoError> {
        let most = [1, 8, 8, 16, 64, 512][self.below(6) as usize];
        let range = self.pick(most);
        let choice = self.below(20);
        let result = match choice {
            0..=6 => self.check(client, range),
            7..=8 => self.change(client, range, true),
            9 => client.flush(),
            _ => self.change(client, range, false),
        };
        match result {
            Ok(()) => self.good += 1,
            Err(e) if e.kind == ErrorKind::Shutdown => return Err(e),
            Err(_) => self.bad += 1,
        }
        Ok(())
    }

    fn change(&mut self, client: &Client, range: Range<u64>, zero: bool) -> Result<(), IoError> {
        self.version += 1;
        let version = if zero { 0 } else { self.version };
        let (offset, len) = (range.start * SECTOR, (range.end - range.start) * SECTOR);
        let result = if zero {
            let unmap = self.below(2) == 0;
            client.zero(offset, len, unmap)
        } else {
            let data: Vec<u8> = range.clone().flat_map(|s| stamp(s, version)).collect();
            client.write(offset, &data)
        };
        for sector in range {
            let allowed = self.may_be(sector);
            if result.is_ok() {
                allowed.clear();
            }
            allowed.insert(version);
        }
        result
    }

    /// Reads a range and holds it to what is allowed. What was found is the only thing allowed from then on.
    fn check(&mut self, client: &Client, range: Range<u64>) -> Result<(), IoError> {
        let data = client.read(range.start * SECTOR, ((range.end - range.start) * SECTOR) as usize)?;
        for (sector, bytes) in range.zip(data.chunks_exact(SECTOR as usize)) {
            let found = version_of(sector, bytes);
            let allowed = self.may_be(sector);
            let fits = found.is_some_and(|v| allowed.contains(&v));
            assert!(fits, "sector {sector}: {found:?} was read, allowed is {allowed:?}");
            *allowed = found.into_iter().collect();
        }
        Ok(())
    }

    /// Reads everything. Returns how many reads failed.
    pub fn check_all(&mut self, client: &Client) -> u64 {
        let mut failed = 0;
        let (start, end) = (self.sectors.start, self.sectors.end);
        for at in (start..end).step_by(128) {
            failed += u64::from(self.check(client, at..(at + 128).min(end)).is_err());
        }
        failed
    }

    /// Holds an image of the whole volume to what is allowed.
    pub fn check_image(&mut self, image: &[u8]) {
        for sector in self.sectors.clone() {
            let bytes = &image[(sector * SECTOR) as usize..((sector + 1) * SECTOR) as usize];
            let found = version_of(sector, bytes);
            let allowed = self.may_be(sector);
            assert!(
                found.is_some_and(|v| allowed.contains(&v)),
                "sector {sector}: {found:?}, allowed {allowed:?}"
            );
        }
    }
}

/// Divides a volume among clients, at borders that share a block.
pub fn divide(volume_bytes: u64, clients: u64, seed: u64) -> Vec<Territory> {
    let sectors = volume_bytes / SECTOR;
    let border = |i: u64| {
        if i == clients { sectors } else { sectors * i / clients }
    };
    (0..clients).map(|i| Territory::new(border(i)..border(i + 1), seed * 1000 + i)).collect()
}

/// Each client makes so many requests, all at the same time; ends early when the volume stops.
pub fn work(client: &Client, territories: &mut [Territory], steps: usize) {
    std::thread::scope(|scope| {
        for territory in territories {
            scope.spawn(move || {
                for _ in 0..steps {
                    if territory.step(client).is_err() {
                        return;
                    }
                }
            });
        }
    });
}
