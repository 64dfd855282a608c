//! A device whose changes are recorded, so that what a crash could have left can be rebuilt from the record.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;

use forebay_block::{Class, DeviceOp, DeviceResult, Nanos};
use forebay_record::{Recorder, Role};

use super::{Decoration, pass_through};
use crate::checkpoints::{CheckpointChange, CheckpointDone};
use crate::device::{Away, Beside, Device};

/// Where a record goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordFile {
    /// A new file. Devices that name the same one share the record.
    pub path: PathBuf,
    /// The record ends before it becomes longer.
    pub bytes_max: u64,
}

/// The records that the devices of a volume write.
#[derive(Clone, Debug, Default)]
pub struct Recorders(HashMap<PathBuf, Recorder>);

impl Recorders {
    /// Starts the records that decorations ask for, each file once.
    ///
    /// # Errors
    /// The first file that cannot be made, with the system's answer.
    pub fn start<'a>(
        decorations: impl IntoIterator<Item = &'a Decoration>,
    ) -> Result<Self, (PathBuf, io::Error)> {
        let mut recorders = HashMap::new();
        for decoration in decorations {
            let Decoration::Record(file) = decoration else {
                continue;
            };
            if !recorders.contains_key(&file.path) {
                let recorder =
                    Recorder::create(&file.path, file.bytes_max).map_err(|e| (file.path.clone(), e))?;
                recorders.insert(file.path.clone(), recorder);
            }
        }
        Ok(Self(recorders))
    }

    /// The record in this file.
    pub(super) fn get(&self, file: &RecordFile) -> Option<&Recorder> {
        self.0.get(&file.path)
    }

    /// Why records have ended before their time.
    pub fn failures(&self) -> Vec<String> {
        self.0.values().filter_map(Recorder::failure).collect()
    }
}

/// See the module's documentation. Beginnings are recorded before the device within hears of an operation, ends before
/// its user does. Recording takes the time of a write into the page cache and changes nothing else, whatever becomes of
/// the record.
pub struct Recorded {
    inner: Box<dyn Device>,
    recorder: Recorder,
    role: Role,
    /// Numbers in the record of the operations under way, by tag.
    under_way: HashMap<u64, u64>,
    /// That of the write beside the device.
    beside: Option<u64>,
}

impl Recorded {
    /// Records a device.
    pub fn new(inner: Box<dyn Device>, recorder: Recorder, role: Role) -> Self {
        let info = inner.info();
        recorder.open(role, &info.name, info.size_bytes);
        Self { inner, recorder, role, under_way: HashMap::new(), beside: None }
    }
}

impl Device for Recorded {
    pass_through!(but beside);

    fn submit(&mut self, tag: u64, op: DeviceOp, class: Class, now: Nanos) {
        let number = match &op {
            DeviceOp::Read { .. } => None,
            DeviceOp::Write { offset, bufs, durable } => {
                let parts: Vec<&[u8]> = bufs.iter().map(|buf| &**buf).collect();
                Some(self.recorder.write(self.role, *offset, *durable, &parts))
            }
            DeviceOp::Flush => Some(self.recorder.flush(self.role)),
            DeviceOp::Zero { offset, len, unmap } => {
                Some(self.recorder.zero(self.role, *offset, *len, *unmap))
            }
            DeviceOp::Commit(_) => {
                self.recorder
                    .end_early("a group was committed in one operation, for which a record has no entry");
                None
            }
        };
        if let Some(number) = number {
            self.under_way.insert(tag, number);
        }
        self.inner.submit(tag, op, class, now);
    }

    fn poll(&mut self, now: Nanos, done: &mut Vec<(u64, DeviceResult)>) {
        let known = done.len();
        self.inner.poll(now, done);
        for (tag, result) in &done[known..] {
            if let Some(number) = self.under_way.remove(tag) {
                let errno = result.as_ref().err().map_or(0, |e| e.kind.errno());
                self.recorder.end(self.role, number, errno.unsigned_abs());
            }
        }
    }

    fn away(&self) -> Option<Away> {
        self.inner.away()
    }

    fn checkpoint(&mut self, change: CheckpointChange, done: CheckpointDone, now: Nanos) {
        self.inner.checkpoint(change, done, now);
    }

    fn deadline(&self) -> Option<Nanos> {
        self.inner.deadline()
    }

    fn beside(&mut self, what: Beside<'_>) {
        match what {
            Beside::Begins { offset, bytes } => {
                self.beside = Some(self.recorder.write(Role::Label, offset, true, &[bytes]));
            }
            Beside::Ended { well } => {
                if let Some(number) = self.beside.take() {
                    self.recorder.end(Role::Label, number, if well { 0 } else { EIO });
                }
            }
        }
        self.inner.beside(what);
    }
}

const EIO: u32 = 5;
