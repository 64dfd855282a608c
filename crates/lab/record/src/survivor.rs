//! The states in which a crash could have left a device.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::str::FromStr;

use rustix::fs::SeekFrom;

use crate::disk::{Disk, Progress, SECTOR_BYTES};
use crate::entry::Role;

/// What ended the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The process died: what has ended is there, what was under way may be.
    Kill,
    /// The power went: whatever is not settled may be there or not.
    PowerCut,
}

/// What becomes of operations whose outcome is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// All of them are there, the newest of each sector.
    Kept,
    /// None is.
    Dropped,
    /// Each as a whole is there or not, by chance.
    Halved,
    /// Each of their sectors is there or not, by chance.
    Torn,
}

/// A crash of a volume, whose devices meet fates of their own: they have caches of their own, and a backing may be in
/// another place, where the power stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VolumeCrash {
    /// What ended the run.
    pub cause: Cause,
    /// What becomes of what is open on the cache.
    pub cache: Fate,
    /// The same of the backing and its label.
    pub backing: Fate,
    /// Chance.
    pub seed: u64,
}

/// A crash: everything that decides what is left of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Crash {
    /// What ended the run.
    pub cause: Cause,
    /// What becomes of what is open.
    pub fate: Fate,
    /// Chance. With equal seeds an operation meets the same fate at whatever instant the crash comes.
    pub seed: u64,
}

impl Fate {
    /// Every fate.
    pub const ALL: [Self; 4] = [Self::Kept, Self::Dropped, Self::Halved, Self::Torn];

    /// One word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Dropped => "dropped",
            Self::Halved => "halved",
            Self::Torn => "torn",
        }
    }
}

impl FromStr for Fate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|f| f.as_str() == text);
        known.ok_or_else(|| "a fate is kept, dropped, halved or torn".into())
    }
}

impl Cause {
    /// One word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::PowerCut => "power-cut",
        }
    }
}

impl FromStr for Cause {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "kill" => Ok(Self::Kill),
            "power-cut" => Ok(Self::PowerCut),
            _ => Err("a cause is kill or power-cut".into()),
        }
    }
}

impl VolumeCrash {
    /// What it is to one of the devices.
    pub fn of(&self, role: Role) -> Crash {
        let fate = match role {
            Role::Cache => self.cache,
            Role::Backing | Role::Label | Role::Journal => self.backing,
        };
        Crash { cause: self.cause, fate, seed: self.seed }
    }
}

impl fmt::Display for VolumeCrash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (cause, cache, backing) = (self.cause.as_str(), self.cache.as_str(), self.backing.as_str());
        write!(f, "{cause}, cache {cache}, backing {backing}, seed {}", self.seed)
    }
}

/// SplitMix64's finalizer.
fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Crash {
    /// Whether chance keeps this.
    fn keeps(&self, op: u64, sector: u64) -> bool {
        mix(self.seed ^ mix(op ^ mix(sector.wrapping_add(0x9e37_79b9_7f4a_7c15)))) & 1 == 1
    }

    pub(crate) fn keeps_sector(&self, progress: Progress, op: u64, sector: u64) -> bool {
        if self.cause == Cause::Kill && progress == Progress::Done {
            return true;
        }
        match self.fate {
            Fate::Kept => true,
            Fate::Dropped => false,
            Fate::Halved => self.keeps(op, 0),
            Fate::Torn => self.keeps(op, sector),
        }
    }
}

/// A device as a crash has left it. Nothing is copied: what is settled is the disk's, and what has survived of the
/// rest lies above it, so that looking at every instant of a record costs no more than what is pending then.
#[derive(Debug)]
pub struct Survivor<'a> {
    disk: &'a Disk,
    above: BTreeMap<u64, &'a [u8]>,
}

impl Disk {
    /// What a crash at this instant leaves.
    pub fn survivor(&self, crash: Crash) -> Survivor<'_> {
        let mut above = BTreeMap::new();
        for p in self.pending() {
            let sectors = self.open_sectors(p);
            above.extend(sectors.filter(|(sector, _)| crash.keeps_sector(p.progress, p.op, *sector)));
        }
        Survivor { disk: self, above }
    }
}

impl Survivor<'_> {
    /// Reads a sector.
    ///
    /// # Errors
    /// As the system gives them.
    pub fn read(&self, sector: u64, bytes: &mut [u8; SECTOR_BYTES]) -> io::Result<()> {
        match self.above.get(&sector) {
            Some(data) => {
                bytes.copy_from_slice(data);
                Ok(())
            }
            None => self.disk.read_settled(sector, bytes),
        }
    }

    /// Sectors that are not settled and have survived, in ascending order.
    pub fn unsettled(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.above.iter().map(|(sector, data)| (*sector, *data))
    }

    /// Writes the whole device into a file, sparse where it is blank. A file that is there is replaced.
    ///
    /// # Errors
    /// As the system gives them.
    pub fn write_to(&self, path: &Path) -> io::Result<()> {
        let file = File::create(path)?;
        file.set_len(self.disk.size_bytes())?;
        if let Some(base) = self.disk.base() {
            copy_data(base, &file)?;
        }
        for (offset, page) in self.disk.settled_pages() {
            let len = (self.disk.size_bytes() - offset).min(page.len() as u64) as usize;
            file.write_all_at(&page[..len], offset)?;
        }
        for (sector, data) in &self.above {
            file.write_all_at(data, sector * SECTOR_BYTES as u64)?;
        }
        Ok(())
    }
}

/// Copies a file's data and leaves out its holes.
fn copy_data(from: &File, to: &File) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        at = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => return Ok(()),
            Err(e) => return Err(e.into()),
        };
        let end = rustix::fs::seek(from, SeekFrom::Hole(at))?;
        while at < end {
            let len = (end - at).min(buffer.len() as u64) as usize;
            from.read_exact_at(&mut buffer[..len], at)?;
            to.write_all_at(&buffer[..len], at)?;
            at += len as u64;
        }
    }
}
