//! The journal on the backing's side: where it lies, and what the host does with it before a run, or without a cache.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use forebay_block::{Buf, DeviceOp, IoError};
use forebay_device::{
    Access, Device, DeviceSpec, OpenError, RemoteSpec, Ring, Sign, open, open_side_file, sync_entry,
};
use forebay_engine::Role;
use forebay_format::identities::Identities;
use forebay_format::journal::{Head, JOURNAL_RING_OFFSET};
use forebay_format::label::{LABEL_BYTES, Label};
use forebay_format::replay::{Replay, Step};
use forebay_format::{FormatError, Layout};
use forebay_guard::{FileRights, SideFile};

use crate::error::HostError;
use crate::label::{LabelPlace, beside, remove_durably, remove_side_file};
use crate::pair::Decorate;
use crate::superblocks::Bench;

/// Added to the name of a backing file, for the file with its journal.
pub const JOURNAL_SUFFIX: &str = ".journal";
/// Size of the ring of a journal that is made in a file; without the policy that wants it, the file takes no room for it.
const RING_BYTES: u64 = 128 << 20;
/// Pauses before what fails in a replay is tried again.
const REPLAY_WAITS_MS: [u64; 4] = [50, 100, 200, 400];

/// The size of a ring that a journal in a file has, and that is worth leaving room for behind a volume.
fn roomy_ring(segment_bytes: u64) -> u64 {
    RING_BYTES.max(4 * segment_bytes)
}

/// The largest volume in whole MiB that leaves room for label and journal on a device of `device_bytes`; `None` if that is none.
pub(crate) fn volume_that_leaves_room(device_bytes: u64, segment_bytes: u64) -> Option<u64> {
    let behind = LABEL_BYTES as u64 + JOURNAL_RING_OFFSET + roomy_ring(segment_bytes);
    let bytes = (device_bytes / 4096 * 4096).checked_sub(behind)? >> 20 << 20;
    (bytes > 0).then_some(bytes)
}

/// Bytes between the volume's end and the label at `label` that a ring can have; `None` if they are too few.
fn ring_behind(volume_bytes: u64, label: u64, segment_bytes: u64) -> Option<u64> {
    let ring = label.checked_sub(volume_bytes.next_multiple_of(4096) + JOURNAL_RING_OFFSET)?;
    (ring >= 2 * segment_bytes).then_some(ring)
}

/// So many bytes a store on another machine that is made has behind the volume: for its label, and for its journal if that has no
/// store of its own.
pub(crate) fn bytes_behind(backing: &DeviceSpec) -> u64 {
    let journal = match beside_remote(backing) {
        Some(_) => 0,
        None => JOURNAL_RING_OFFSET + roomy_ring(Layout::SEGMENT_BYTES_MAX.into()),
    };
    4096 + LABEL_BYTES as u64 + journal
}

/// Whether a journal finds its place on the backing's side by itself.
pub(crate) fn has_room(
    backing: &DeviceSpec,
    place: &LabelPlace,
    volume_bytes: u64,
    segment_bytes: u64,
) -> bool {
    match place {
        _ if beside_remote(backing).is_some() => true,
        LabelPlace::SideFile(_) => true,
        LabelPlace::Behind(label) => ring_behind(volume_bytes, *label, segment_bytes).is_some(),
        LabelPlace::Nowhere => false,
    }
}

/// The journal of its own that a store on another machine has.
fn beside_remote(backing: &DeviceSpec) -> Option<DeviceSpec> {
    backing.remote().and_then(|spec| spec.journal_beside()).map(DeviceSpec::Remote)
}

/// Where the user wants the journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum JournalChoice {
    /// Where there is room on the backing's side: in a file beside a backing file, where a store on another machine keeps it, or between the
    /// volume's end and the label.
    #[default]
    Auto,
    /// Nowhere.
    None,
    /// On this device, which must share the backing's fate; a file is made if there is none.
    At(DeviceSpec),
}

/// A journal that is open.
pub(crate) struct Journal {
    /// `None` if it lies on the backing's own device.
    device: Option<Box<dyn Device>>,
    /// Byte offset there.
    offset: u64,
    pub(crate) ring_bytes: u64,
    /// For messages.
    pub(crate) name: String,
    /// The file that was made for it, if there was none.
    made: Option<Location>,
}

impl Journal {
    /// Opens the journal if there is one, or room for one. A file is made only with `make`, and never for reading alone.
    pub(crate) fn open(
        bench: &Bench<'_>,
        choice: &JournalChoice,
        backing: (&dyn Device, &DeviceSpec, u64),
        segment_bytes: u64,
        (access, make): (Access, bool),
        decorate: &mut Option<Decorate<'_>>,
    ) -> Result<Option<Self>, HostError> {
        let (device, spec, volume_bytes) = backing;
        let place = LabelPlace::of(device, spec.path(), volume_bytes);
        let named = |journal| Location::Named(journal, FileRights::of_backing(spec.path()));
        let location = match (choice, beside_remote(spec), place) {
            (JournalChoice::None, ..) | (JournalChoice::Auto, None, LabelPlace::Nowhere) => return Ok(None),
            (JournalChoice::At(journal), ..) => named(journal.clone()),
            (JournalChoice::Auto, Some(journal), _) => named(journal),
            (JournalChoice::Auto, None, LabelPlace::Behind(end)) => {
                let offset = volume_bytes.next_multiple_of(4096);
                let ring = ring_behind(volume_bytes, end, segment_bytes);
                let name = format!("{} behind the volume's end", device.info().name);
                return Ok(ring.map(|ring_bytes| Self {
                    device: None,
                    offset,
                    ring_bytes,
                    name,
                    made: None,
                }));
            }
            (JournalChoice::Auto, None, LabelPlace::SideFile(label)) => {
                // Beside the label, and so beside the file itself, by whichever link it is given.
                Location::Beside(beside(&label.path().with_extension(""), JOURNAL_SUFFIX))
            }
        };
        let least_bytes = JOURNAL_RING_OFFSET + 2 * segment_bytes;
        let bytes = JOURNAL_RING_OFFSET + roomy_ring(segment_bytes);
        let mut new = false;
        if location.remote().is_none() {
            let found = Found::of(&location, least_bytes).map_err(|e| location.error("read", e))?;
            if found != Found::Whole && !make {
                return Ok(None);
            }
            found.make(&location, bytes).map_err(|e| HostError::JournalTakesNothing {
                journal: location.name(),
                error: IoError::of_system(e.raw_os_error().unwrap_or_default(), "making the file", None),
            })?;
            new = found == Found::Nothing;
        }
        let device = match (location.open(bench.ring, access), location.remote()) {
            // There is none yet of the store's own, and who only looks for it makes none.
            (Err(e), Some(_)) if e.is_missing() && !make && *choice == JournalChoice::Auto => {
                return Ok(None);
            }
            (Err(e), Some(journal)) if e.is_missing() && make => {
                new = journal.make(bytes)?;
                if new { location.open(bench.ring, access)? } else { return Err(e.into()) }
            }
            (opened, _) => opened?,
        };
        let (name, made) = (location.name(), new.then_some(location));
        let device = match decorate {
            Some(decorate) => decorate(Role::Journal, device),
            None => device,
        };
        let size = device.info().size_bytes / 4096 * 4096;
        match size.checked_sub(JOURNAL_RING_OFFSET).filter(|ring| *ring >= 2 * segment_bytes) {
            Some(ring_bytes) => Ok(Some(Self { device: Some(device), offset: 0, ring_bytes, name, made })),
            None => Err(HostError::JournalTooSmall { journal: name, bytes: size, least_bytes }),
        }
    }

    /// Carries out an operation on the journal.
    fn run(
        &mut self,
        bench: &Bench<'_>,
        backing: &mut dyn Device,
        doing: &'static str,
        op: DeviceOp,
    ) -> Result<Option<Buf>, HostError> {
        let op = op.moved(self.offset);
        match &mut self.device {
            Some(device) => bench.run(&mut **device, doing, op),
            None => bench.run(backing, doing, op),
        }
    }

    /// Byte offset of the journal on its device.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Its own device, if it has one.
    pub(crate) fn own(&mut self) -> Option<&mut Box<dyn Device>> {
        self.device.as_mut()
    }

    pub(crate) fn own_ref(&self) -> Option<&dyn Device> {
        self.device.as_deref()
    }

    /// The head, durable from here on, and what the journal is recognized by; `None` if there is none yet.
    pub(crate) fn head(
        &mut self,
        bench: &Bench<'_>,
        backing: &mut dyn Device,
    ) -> Result<Option<Head>, HostError> {
        let own = self.device.is_some();
        let name = self.name.clone();
        // What a process wrote that was killed may be volatile, and is believed from here on.
        self.run(bench, backing, "flushing", DeviceOp::Flush)?;
        let len = JOURNAL_RING_OFFSET as usize;
        let copies = self.run(bench, backing, "reading", DeviceOp::Read { offset: 0, len })?;
        let copies = copies.unwrap_or_else(|| Buf::zeroed(len));
        match Head::newest(&copies) {
            Ok(head) => {
                self.recognize_by(&[&head]);
                Ok(Some(head))
            }
            Err(FormatError::Magic) if !own || copies.iter().all(|b| *b == 0) => Ok(None),
            Err(FormatError::Magic) => Err(HostError::NotAJournal { journal: name }),
            Err(error) => Err(HostError::Damaged { what: format!("the journal {name}"), error }),
        }
    }

    /// Refuses a head of the backing's latest run that says what cannot be of its volume, or of this journal: its groups would go elsewhere.
    pub(crate) fn hold_rules(&self, head: &Head, label: Option<&Label>) -> Result<(), HostError> {
        let Some(label) = label.filter(|label| head.is_of(label)) else { return Ok(()) };
        let held = head.hold_against(label, self.ring_bytes);
        held.map_err(|error| HostError::Damaged { what: format!("the journal {}", self.name), error })
    }

    /// Applies what a crash has left, if the journal is that of the backing's latest run. Returns the head as it is then, and
    /// how many blocks were written.
    pub(crate) fn replay(
        &mut self,
        bench: &Bench<'_>,
        backing: &mut dyn Device,
        label: Option<&Label>,
        head: Head,
    ) -> Result<(Head, u64), HostError> {
        if head.tail == head.head || !label.is_some_and(|label| head.is_of(label)) {
            return Ok((head, 0));
        }
        let mut replay = Replay::new(head);
        self.carry_out(bench, backing, &mut replay)?;
        Ok((replay.head().clone(), replay.blocks_applied()))
    }

    /// Does what a replay says, until its end. What fails is tried again a few times, but for a flush: what it should have
    /// covered has to be written anew then, which the next start does.
    pub(crate) fn carry_out(
        &mut self,
        bench: &Bench<'_>,
        backing: &mut dyn Device,
        replay: &mut Replay,
    ) -> Result<(), HostError> {
        loop {
            const DOING: &str = "bringing the backing to a consistent state";
            let (on_journal, op) = match replay.step() {
                Step::End => return Ok(()),
                Step::Backing(op) => (false, op),
                Step::Journal(op) => (true, op),
            };
            let mut attempt = |wait: u64| {
                thread::sleep(Duration::from_millis(wait));
                match on_journal {
                    true => self.run(bench, backing, DOING, op.clone()),
                    false => bench.run(backing, DOING, op.clone()),
                }
            };
            let waits = if matches!(op, DeviceOp::Flush) { &[][..] } else { &REPLAY_WAITS_MS[..] };
            let read = waits.iter().fold(attempt(0), |outcome, wait| outcome.or_else(|_| attempt(*wait)))?;
            let done = replay.done(read.as_ref());
            done.map_err(|error| HostError::JournalDamaged { journal: self.name.clone(), error })?;
        }
    }

    /// Makes the head durable.
    pub(crate) fn write_head(
        &mut self,
        bench: &Bench<'_>,
        backing: &mut dyn Device,
        head: &Head,
    ) -> Result<(), HostError> {
        let (offset, bufs) = (Head::copy_offset(head.update), vec![head.encode()]);
        self.run(bench, backing, "writing", DeviceOp::Write { offset, bufs, durable: true }).map(drop)
    }

    /// Makes sure that the head can be written, before anything is changed: in a file of its own it may be a hole for which the file system has no
    /// room. What is written is what is there. With `whole` the same is made sure of the ring, where the file system can: the policy wants it.
    pub(crate) fn find_room(&mut self, bench: &Bench<'_>, whole: bool) -> Result<(), HostError> {
        let journal = self.name.clone();
        let Some(device) = &mut self.device else { return Ok(()) };
        if whole {
            let made = self.made.take();
            device.reserve().map_err(|e| {
                // What cannot be removed is found again, and holds nothing.
                let _ = made.as_ref().map(Location::remove_durably);
                let errno = e.raw_os_error().unwrap_or_default();
                let error = IoError::of_system(errno, "reserving its room", None);
                HostError::JournalTakesNothing { journal: journal.clone(), error }
            })?;
        }
        let head = bench.read(&mut **device, self.offset, JOURNAL_RING_OFFSET as usize)?;
        match bench.write(&mut **device, self.offset, head) {
            Err(HostError::Device { error, .. }) => Err(HostError::JournalTakesNothing { journal, error }),
            written => written,
        }
    }

    /// From now on a device of its own that was away and comes back must show a head of the run of one of these.
    pub(crate) fn recognize_by(&mut self, heads: &[&Head]) {
        let Some(device) = &mut self.device else { return };
        let run_of = |head: &Head| (head.backing_id, head.cache_id, head.generation);
        let runs: Vec<_> = heads.iter().map(|head| run_of(head)).collect();
        let is_ours = Arc::new(move |copies: &[u8]| {
            Head::newest(copies).is_ok_and(|head| runs.contains(&run_of(&head)))
        });
        device.recognize_by(Some(Sign { offset: self.offset, len: JOURNAL_RING_OFFSET as u32, is_ours }));
    }

    /// Whether somebody else's journal is in the place of this one.
    pub(crate) fn check_owner(&self, head: &Head, identities: &Identities) -> Result<(), HostError> {
        match head.backing_id == identities.superblock.backing_id || self.device.is_none() {
            true => Ok(()),
            // A backing that was paired anew has a new identity; its label knows no journal then.
            false if identities.label.as_ref().is_some_and(|label| label.journal_run == 0) => Ok(()),
            false => Err(HostError::ForeignJournal { journal: self.name.clone() }),
        }
    }
}

/// Where a journal of its own lies.
#[derive(Clone)]
enum Location {
    /// Where the user says; a file that is made there has these rights.
    Named(DeviceSpec, FileRights),
    /// In a file beside the backing.
    Beside(SideFile),
}

impl Location {
    /// The store on another machine, if it is one.
    fn remote(&self) -> Option<&dyn RemoteSpec> {
        match self {
            Self::Named(spec, _) => spec.remote().map(|spec| &**spec),
            Self::Beside(_) => None,
        }
    }

    /// For messages.
    fn name(&self) -> String {
        match self {
            Self::Named(spec, _) => spec.to_string(),
            Self::Beside(file) => file.path().display().to_string(),
        }
    }

    fn open(&self, ring: &Ring, access: Access) -> Result<Box<dyn Device>, OpenError> {
        match self {
            Self::Named(spec, _) => open(spec, ring, access),
            Self::Beside(file) => open_side_file(file, ring, access),
        }
    }

    fn open_file(&self, write: bool) -> io::Result<File> {
        match self {
            Self::Named(spec, _) => OpenOptions::new().read(true).write(write).open(spec.path()),
            Self::Beside(file) => file.open(write),
        }
    }

    fn create_file(&self) -> io::Result<File> {
        match self {
            Self::Named(spec, rights) => rights.create(spec.path()),
            Self::Beside(file) => file.create(),
        }
    }

    fn sync_entry(&self) -> io::Result<()> {
        match self {
            Self::Named(spec, _) => sync_entry(spec.path()),
            Self::Beside(file) => file.sync_entry(),
        }
    }

    fn remove_durably(&self) -> io::Result<()> {
        match self {
            Self::Named(DeviceSpec::Remote(spec), _) => spec.remove().map_err(io::Error::other),
            Self::Named(spec, _) => remove_durably(spec.path()),
            Self::Beside(file) => remove_side_file(file),
        }
    }

    fn error(&self, doing: &'static str, error: io::Error) -> HostError {
        match self {
            Self::Named(spec, _) => HostError::system(doing, spec.path(), error),
            Self::Beside(file) => HostError::side_file(doing, file, error),
        }
    }
}

/// What there is at the place of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    /// A file that is too short for a journal and all zeroes: who made it died before it had its size. It holds nothing.
    Unfinished,
    /// Anything else, which is to be opened and judged by what is in it.
    Whole,
}

impl Found {
    fn of(location: &Location, least_bytes: u64) -> io::Result<Self> {
        // What the user names may be a device, which is not to be opened here.
        if let Location::Named(spec, _) = location
            && fs::metadata(spec.path()).is_ok_and(|meta| !meta.is_file())
        {
            return Ok(Self::Whole);
        }
        let file = match location.open_file(false) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Self::Nothing),
            Err(e) => return Err(e),
        };
        if file.metadata()?.len() >= least_bytes {
            return Ok(Self::Whole);
        }
        let mut bytes = Vec::new();
        file.take(least_bytes).read_to_end(&mut bytes)?;
        Ok(if bytes.iter().all(|byte| *byte == 0) { Self::Unfinished } else { Self::Whole })
    }

    /// Makes a file of this size of it, durably, unless it is whole. What was not there is not there if that fails.
    fn make(self, location: &Location, bytes: u64) -> io::Result<()> {
        let finish = |file: File| {
            file.set_len(bytes)?;
            file.sync_all()?;
            location.sync_entry()
        };
        match self {
            Self::Nothing => {
                let file = location.create_file()?;
                finish(file).inspect_err(|_| {
                    // What cannot be removed is found unfinished by the next start.
                    let _ = location.remove_durably();
                })
            }
            Self::Unfinished => finish(location.open_file(true)?),
            Self::Whole => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_have_its_size_is_not_left_behind() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        let location = Location::Beside(beside(&directory.path().join(""), "journal"));
        assert!(Found::of(&location, 8192).unwrap().make(&location, i64::MAX as u64).is_err());
        assert_eq!(Found::of(&location, 8192).unwrap(), Found::Nothing);
        // One that somebody else has left is.
        fs::write(&path, "").unwrap();
        assert_eq!(Found::of(&location, 8192).unwrap(), Found::Unfinished);
        assert!(Found::Unfinished.make(&location, i64::MAX as u64).is_err());
        Found::Unfinished.make(&location, 8192).unwrap();
        assert_eq!(Found::of(&location, 8192).unwrap(), Found::Whole);
        assert!(Found::Nothing.make(&location, 8192).is_err(), "nothing is overwritten");
    }
}
