//! Walks a record from instant to instant.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::disk::Disk;
use crate::entry::{Entry, Role};
use crate::reader::Reader;
use crate::survivor::VolumeCrash;

/// The images that the devices began with.
#[derive(Clone, Debug)]
pub struct Bases {
    /// The cache; `None` if there was none, or it was blank.
    pub cache: Option<PathBuf>,
    /// The backing.
    pub backing: PathBuf,
    /// The file beside the backing with its label; may not exist.
    pub label: PathBuf,
    /// The file beside the backing with its journal; may not exist.
    pub journal: PathBuf,
}

impl Bases {
    /// The files of each role; `None` of what was blank.
    fn open(&self) -> io::Result<[Option<File>; Role::ALL.len()]> {
        let beside = |path: &Path| match File::open(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        };
        let cache = self.cache.as_ref().map(File::open).transpose()?;
        Ok([cache, Some(File::open(&self.backing)?), beside(&self.label)?, beside(&self.journal)?])
    }
}

/// A volume's devices at an instant of a record. Instant N lies after entry N and before the next one; instant 0 is the
/// beginning.
#[derive(Debug)]
pub struct Replay {
    reader: Reader,
    disks: [Disk; Role::ALL.len()],
    next: Option<Entry>,
    instant: u64,
    time_ns: u64,
}

impl Replay {
    /// Starts at instant 0.
    ///
    /// # Errors
    /// As the system gives them; [`io::ErrorKind::InvalidData`] if the record is none, or damaged.
    pub fn open(record: &Path, bases: &Bases) -> io::Result<Self> {
        let [cache, backing, label, journal] = bases.open()?.map(Disk::new);
        Self::start(record, [cache?, backing?, label?, journal?])
    }

    /// Starts at instant 0 of the record of the run that came next when this one's process had died, or stopped, at this
    /// instant, and that began with these images.
    ///
    /// # Errors
    /// As [`Replay::open`].
    pub fn continued(&self, record: &Path, bases: &Bases) -> io::Result<Self> {
        let [cache, backing, label, journal] = bases.open()?;
        let left = |role: Role, now: Option<File>| self.disk(role).left(now.as_ref());
        let (cache, backing) = (left(Role::Cache, cache)?, left(Role::Backing, backing)?);
        Self::start(record, [cache, backing, left(Role::Label, label)?, left(Role::Journal, journal)?])
    }

    /// Starts at instant 0 of the record of the run that came after a crash at this instant.
    ///
    /// # Errors
    /// As [`Replay::open`].
    pub fn after(&self, crash: VolumeCrash, record: &Path) -> io::Result<Self> {
        let crashed = |role: Role| self.disk(role).crashed(crash.of(role));
        let [cache, backing, label, journal] = Role::ALL.map(crashed);
        Self::start(record, [cache?, backing?, label?, journal?])
    }

    fn start(record: &Path, disks: [Disk; Role::ALL.len()]) -> io::Result<Self> {
        let mut reader = Reader::open(record)?;
        let next = reader.next_entry()?;
        Ok(Self { reader, disks, next, instant: 0, time_ns: 0 })
    }

    /// Goes to the next instant; false at the end.
    ///
    /// # Errors
    /// As [`Replay::open`].
    pub fn step(&mut self) -> io::Result<bool> {
        let Some(entry) = self.next.take() else {
            return Ok(false);
        };
        (self.instant, self.time_ns) = (entry.number, entry.time_ns);
        self.disks[entry.role as usize].apply(entry)?;
        self.next = self.reader.next_entry()?;
        Ok(true)
    }

    /// Goes on to an instant that lies ahead, or to the end.
    ///
    /// # Errors
    /// As [`Replay::open`].
    pub fn go_to(&mut self, instant: u64) -> io::Result<()> {
        while self.instant < instant && self.step()? {}
        Ok(())
    }

    /// Where the replay is.
    pub fn instant(&self) -> u64 {
        self.instant
    }

    /// Everything of which somebody knew before this time, in nanoseconds of the monotonic clock, has its reason in
    /// the entries up to this instant: whatever was acknowledged earlier must survive a crash now.
    pub fn known_before_ns(&self) -> u64 {
        self.next.as_ref().map_or(self.time_ns, |next| next.time_ns)
    }

    /// The entry that leads to the next instant.
    pub fn next_entry(&self) -> Option<&Entry> {
        self.next.as_ref()
    }

    /// One of the devices.
    pub fn disk(&self, role: Role) -> &Disk {
        &self.disks[role as usize]
    }

    /// The same, for tests that break it.
    pub fn disk_mut(&mut self, role: Role) -> &mut Disk {
        &mut self.disks[role as usize]
    }
}
