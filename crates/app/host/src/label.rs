//! Where a backing's label lies, and how it is read and written there.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_block::{Buf, DeviceOp};
use forebay_device::{Beside, Device, DeviceKind, Sign, sync_entry};
use forebay_format::FormatError;
use forebay_format::identities::Update;
use forebay_format::label::{LABEL_BYTES, Label};
use forebay_guard::{FileRights, SideFile};

use crate::error::HostError;
use crate::superblocks::Bench;

/// Added to the name of a backing file, for the file with its label.
pub const LABEL_SUFFIX: &str = ".forebay";

/// How a copy of the label gets where it belongs while the backing is busy.
pub(crate) enum BusyWrite {
    /// By an operation of the backing.
    Op(DeviceOp),
    /// By a thread that may wait for a file system; [`Beside::Ended`] is owed to the backing.
    Apart(SideWrite),
    /// Nowhere.
    Nothing,
}

/// A durable write to a side file.
pub(crate) struct SideWrite {
    file: SideFile,
    offset: u64,
    bytes: Buf,
}

impl SideWrite {
    /// Carries it out, however long the file system takes.
    pub(crate) fn carry_out(&self) -> io::Result<()> {
        write_durably(&self.file, self.offset, &self.bytes)
    }
}

/// Where a label lies. Never inside the volume, which stays a 1:1 image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LabelPlace {
    /// In a file beside the backing file.
    SideFile(SideFile),
    /// On the backing device, at this byte offset, behind the volume's end.
    Behind(u64),
    /// Nowhere: the volume fills its device. A fingerprint in the cache identifies it.
    Nowhere,
}

impl LabelPlace {
    /// Where the label of a backing lies if its volume has `volume_bytes`. On a device it is the very end, where it
    /// is found again without knowing the volume's size.
    pub(crate) fn of(backing: &dyn Device, path: &Path, volume_bytes: u64) -> Self {
        let info = backing.info();
        let room = info.size_bytes / 4096 * 4096;
        match (info.kind, room.checked_sub(LABEL_BYTES as u64)) {
            (DeviceKind::File | DeviceKind::Mapped, _) => {
                // Beside the file itself, so that it is found by whichever link the backing is given.
                let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
                Self::SideFile(beside(&path, LABEL_SUFFIX))
            }
            (DeviceKind::Block | DeviceKind::Remote, Some(end)) if volume_bytes <= end => Self::Behind(end),
            (DeviceKind::Block | DeviceKind::Remote, _) => Self::Nowhere,
        }
    }

    /// The label of a backing whose volume is not known, and where it lies.
    pub(crate) fn find(
        bench: &Bench<'_>,
        backing: &mut dyn Device,
        path: &Path,
    ) -> Result<Option<(Self, Label)>, HostError> {
        let place = Self::of(backing, path, 0);
        let label = place.read(bench, backing)?;
        // What a volume that fills its device holds at its end is its own business.
        let real = |label: &Label| match place {
            Self::Behind(end) => label.volume_bytes <= end,
            _ => true,
        };
        Ok(label.filter(real).map(|label| (place, label)))
    }

    /// What a backing that was away must show to be that of a run with one of these labels: one that somebody has put another disk
    /// in the place of, or has taken over meanwhile, is not written to (P6). A label in a side file, or none, shows nothing.
    pub(crate) fn sign(&self, ours: Vec<Label>) -> Option<Sign> {
        let Self::Behind(offset) = *self else { return None };
        let is_ours = Arc::new(move |region: &[u8]| {
            Label::newest(region).is_ok_and(|label| ours.iter().any(|ours| label.is_of_the_run_of(ours)))
        });
        Some(Sign { offset, len: LABEL_BYTES as u32, is_ours })
    }

    /// Reads the label; `None` if there is none.
    pub(crate) fn read(
        &self,
        bench: &Bench<'_>,
        backing: &mut dyn Device,
    ) -> Result<Option<Label>, HostError> {
        let (label, region) = match self {
            Self::SideFile(file) => {
                let region = read_side_file(file).map_err(|e| HostError::side_file("read", file, e))?;
                let Some(region) = region else { return Ok(None) };
                (file.path().display().to_string(), region)
            }
            Self::Behind(offset) => {
                let region = bench.read(backing, *offset, LABEL_BYTES)?;
                (format!("at the end of {}", backing.info().name), region.to_vec())
            }
            Self::Nowhere => return Ok(None),
        };
        match Label::newest(&region) {
            Ok(label) => Ok(Some(label)),
            // Behind the volume there may be anything; a side file is there for the label alone.
            Err(FormatError::Magic) if matches!(self, Self::Behind(_)) || region.iter().all(|b| *b == 0) => {
                Ok(None)
            }
            Err(FormatError::Version(version)) => {
                Err(HostError::UnknownVersion { what: format!("the label {label}"), version })
            }
            Err(error) => Err(HostError::LabelDamaged { label, error }),
        }
    }

    /// Makes an update of the label durable; others are none of its business.
    pub(crate) fn carry_out(
        &self,
        bench: &Bench<'_>,
        backing: &mut dyn Device,
        update: &Update,
    ) -> Result<(), HostError> {
        match (update, self) {
            (Update::Label { offset, bytes }, Self::SideFile(file)) => {
                let written = write_side_file(backing, file, *offset, bytes);
                written.map_err(|e| HostError::side_file("write the label", file, e))
            }
            (Update::Label { offset, bytes }, Self::Behind(start)) => {
                bench.write(backing, start + offset, bytes.clone())?;
                bench.prove(backing, start + offset, bytes)
            }
            (Update::Flush, Self::SideFile(file)) => {
                let synced = sync_side_file(file);
                synced.map_err(|e| HostError::side_file("make durable", file, e))
            }
            (Update::NoLabel, _) => self.erase(bench, backing),
            // A label on the device became durable with the rest of it.
            (Update::Flush | Update::Journal, _)
            | (Update::Label { .. }, Self::Nowhere)
            | (Update::Superblock { .. }, _) => Ok(()),
        }
    }

    /// How a copy of the label is to be written at this offset of its region while the backing is busy. Nothing of it is done yet,
    /// and the caller must not wait for it.
    pub(crate) fn write_while_busy(&self, backing: &mut dyn Device, offset: u64, bytes: Buf) -> BusyWrite {
        match self {
            Self::SideFile(file) => {
                backing.beside(Beside::Begins { offset, bytes: &bytes });
                BusyWrite::Apart(SideWrite { file: file.clone(), offset, bytes })
            }
            Self::Behind(start) => {
                let bufs = vec![bytes];
                BusyWrite::Op(DeviceOp::Write { offset: start + offset, bufs, durable: true })
            }
            Self::Nowhere => BusyWrite::Nothing,
        }
    }

    /// Removes every trace of the label.
    fn erase(&self, bench: &Bench<'_>, backing: &mut dyn Device) -> Result<(), HostError> {
        match self {
            Self::SideFile(file) => {
                // No label is as good as an empty one.
                backing.beside(Beside::Begins { offset: 0, bytes: &[0; LABEL_BYTES] });
                let removed = remove_side_file(file);
                backing.beside(Beside::Ended { well: removed.is_ok() });
                removed.map_err(|e| HostError::system("remove", file.path(), e))
            }
            Self::Behind(offset) => bench.write(backing, *offset, Buf::zeroed(LABEL_BYTES)),
            Self::Nowhere => Ok(()),
        }
    }
}

/// The file beside a backing with this added to its name.
pub(crate) fn beside(backing: &Path, suffix: &str) -> SideFile {
    let mut path = backing.as_os_str().to_owned();
    path.push(suffix);
    SideFile::new(PathBuf::from(path), FileRights::of_backing(backing))
}

fn read_side_file(file: &SideFile) -> io::Result<Option<Vec<u8>>> {
    let file = match file.open(false) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let mut region = Vec::with_capacity(LABEL_BYTES);
    file.take(LABEL_BYTES as u64).read_to_end(&mut region)?;
    // A crash while the file was made leaves it short; the missing copy was never written.
    region.resize(LABEL_BYTES, 0);
    Ok(Some(region))
}

/// A process that was killed may have written to the file, or made or removed it, and not come to make that durable.
fn sync_side_file(file: &SideFile) -> io::Result<()> {
    match file.open(false) {
        Ok(file) => file.sync_all()?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    file.sync_entry()
}

fn write_side_file(backing: &mut dyn Device, file: &SideFile, offset: u64, bytes: &[u8]) -> io::Result<()> {
    backing.beside(Beside::Begins { offset, bytes });
    let written = write_durably(file, offset, bytes);
    backing.beside(Beside::Ended { well: written.is_ok() });
    written
}

fn write_durably(side: &SideFile, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let (file, is_new) = side.open_or_create()?;
    if is_new {
        // Room for both copies: a full file system must not keep the second one, and with it a start, from being written.
        file.write_all_at(&[0; LABEL_BYTES], 0)?;
    }
    file.write_all_at(bytes, offset)?;
    file.sync_all()?;
    // Also if it was there before: who made it may have died before it came to this.
    side.sync_entry()
}

/// Removes a file that need not be there any more, if somebody was killed just after removing it.
pub(crate) fn remove_durably(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => sync_entry(path),
    }
}

/// The same of a side file.
pub(crate) fn remove_side_file(file: &SideFile) -> io::Result<()> {
    file.remove()?;
    file.sync_entry()
}

#[cfg(test)]
mod tests {
    use forebay_block::{Class, DeviceResult, Nanos};
    use forebay_device::{Clock, DeviceInfo, Ring, Survives};

    use super::*;

    /// An export with an address for what somebody waits for, which leads to the disk of this number.
    struct TwoAddresses {
        info: DeviceInfo,
        critical: usize,
        disks: [Vec<u8>; 2],
        done: Vec<(u64, DeviceResult)>,
    }

    impl Device for TwoAddresses {
        fn info(&self) -> &DeviceInfo {
            &self.info
        }

        fn submit(&mut self, tag: u64, op: DeviceOp, class: Class, _: Nanos) {
            let disk = &mut self.disks[if class == Class::Foreground { self.critical } else { 0 }];
            let mut read = None;
            match op {
                DeviceOp::Read { offset, len } => {
                    read = Some(Buf::copy_of(&disk[offset as usize..offset as usize + len]));
                }
                DeviceOp::Write { offset, bufs, .. } => {
                    disk[offset as usize..][..bufs[0].len()].copy_from_slice(&bufs[0]);
                }
                DeviceOp::Zero { .. } | DeviceOp::Flush | DeviceOp::Commit(_) => {}
            }
            self.done.push((tag, Ok(read)));
        }

        fn poll(&mut self, _: Nanos, done: &mut Vec<(u64, DeviceResult)>) {
            done.append(&mut self.done);
        }
    }

    #[test]
    fn a_label_that_is_not_seen_at_both_addresses_is_an_error() {
        let (ring, clock) = (Ring::new().unwrap(), Clock::start());
        let bench = Bench { ring: &ring, clock: &clock };
        let info = DeviceInfo {
            name: "nbd://one?critical=two".to_owned(),
            kind: DeviceKind::Remote,
            several_ways: true,
            size_bytes: 1 << 16,
            logical_block: 512,
            native_block: 512,
            physical_block: 4096,
            unit_bytes: None,
            direct: true,
            volatile_cache: true,
            forgets: false,
            atomic: false,
            depth: 128,
            survives: Survives::Unknown,
            durability: "unknown",
            billed: None,
        };
        let update = Update::Label { offset: 4096, bytes: Buf::copy_of(&[7; 4096]) };
        for (critical, several_ways, is_well) in [(0, true, true), (1, true, false), (1, false, true)] {
            let (info, done) = (DeviceInfo { several_ways, ..info.clone() }, Vec::new());
            let mut export =
                TwoAddresses { info, critical, disks: [vec![0; 1 << 16], vec![0; 1 << 16]], done };
            let written = LabelPlace::Behind(32768).carry_out(&bench, &mut export, &update);
            match written {
                Ok(()) => assert!(is_well, "{critical} {several_ways}"),
                Err(error) => {
                    let told = error.to_string();
                    assert!(!is_well && told.starts_with("the label of nbd://one?critical=two: "), "{told}");
                    assert!(told.contains("these are two disks"), "{told}");
                }
            }
        }
    }
}
