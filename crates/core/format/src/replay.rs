//! Applies the groups that a crash left in a journal (P4): the backing is then as of the last one that was committed.
//!
//! Like the engine it does no I/O itself: it says what is to be done and is told how it ended. Every group is read and
//! checked before the first of them is applied, so that a damaged journal changes nothing. A crash in the middle is
//! cured by beginning anew.

use forebay_block::{BLOCK_BYTES, BlockNo, Buf, DeviceOp};
use thiserror::Error;

use crate::FormatError;
use crate::checksum::block_checksum;
use crate::journal::{Group, GroupEntry, Head, Moment};
use crate::shared_point::Common;

/// Most bytes that are read or written at once.
const CHUNK_BYTES: u64 = 1 << 20;

/// What is to be done next, and nothing else meanwhile.
#[derive(Debug)]
pub enum Step {
    /// An operation on the journal; what it read is handed to [`Replay::done`].
    Journal(DeviceOp),
    /// An operation on the backing.
    Backing(DeviceOp),
    /// Everything has been done.
    End,
}

/// A group that was committed, and cannot be read any more.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("group {group} of the journal is damaged at byte {offset} ({what}); {}", outcome(*.applying))]
pub struct DamagedGroup {
    /// Its number.
    pub group: u64,
    /// Byte offset in the journal.
    pub offset: u64,
    /// What is wrong.
    pub what: String,
    /// It was whole when it was checked: what comes before it has been applied.
    pub applying: bool,
}

fn outcome(applying: bool) -> &'static str {
    match applying {
        false => "the backing was left as it is",
        true => {
            "it was whole when it was checked, and what comes before it has been applied: see to the journal's disk"
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Check,
    /// The head says that what was prepared is committed, before any of it is applied.
    Decide,
    Apply,
    Flush,
    Head,
    End,
}

/// See the module's documentation.
pub struct Replay {
    head: Head,
    phase: Phase,
    /// Where the next thing to be read lies.
    at: u64,
    /// The descriptor as far as it has been read, until it is whole.
    descriptor: Vec<u8>,
    group: Option<Group>,
    /// Where the group begins that was looked at last.
    begins: u64,
    /// Entries of the group that have been dealt with.
    entries: usize,
    /// What is to be written to the backing before more is read.
    writes: Vec<DeviceOp>,
    moments: Vec<Moment>,
    applied: u64,
    check_only: bool,
    /// The group that was checked last.
    checked: Option<Group>,
    /// The last group was prepared, and the head has not known what the backing is as of with it.
    takes_prepared: bool,
}

/// What is to become of a group that is prepared and not committed ([`crate::shared_point`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prepared {
    /// It is applied: every member of the consistency group has its own.
    Applied,
    /// It is forgotten: not every member has its own.
    Dropped,
    /// It is forgotten, and the backing goes on without the others: it is at no common point any more.
    Alone,
}

impl Replay {
    /// Begins with what the head of the journal says.
    pub fn new(head: Head) -> Self {
        let at = head.tail;
        let phase = if head.tail == head.head { Phase::End } else { Phase::Check };
        Self {
            head,
            phase,
            at,
            descriptor: Vec::new(),
            group: None,
            begins: at,
            entries: 0,
            writes: Vec::new(),
            moments: Vec::new(),
            applied: 0,
            check_only: false,
            checked: None,
            takes_prepared: false,
        }
    }

    /// As [`Replay::new`], and it is known what is to become of a group that is prepared.
    pub fn deciding(mut head: Head, prepared: Prepared) -> Self {
        let before = head.clone();
        let applied = prepared == Prepared::Applied && head.has_prepared();
        if applied {
            (head.head, head.common.decided) = (head.prepared, head.common.prepared);
        }
        if prepared == Prepared::Alone {
            head.common = Common::default();
        }
        head.forget_prepared();
        let changed = before != head;
        let mut replay = Self { takes_prepared: applied, ..Self::new(head) };
        if changed && replay.phase == Phase::End {
            replay.head.update += 1;
            replay.phase = Phase::Head;
        }
        replay
    }

    /// Only reads and checks the group that is prepared; [`Replay::checked`] has it then.
    pub fn of_prepared(head: &Head) -> Self {
        let (tail, end) = (head.head, head.prepared);
        Self::check_only(Head { tail, head: end, applied: head.committed.clone(), ..head.clone() })
    }

    /// Only reads and checks: changes nothing.
    pub fn check_only(head: Head) -> Self {
        Self { check_only: true, ..Self::new(head) }
    }

    /// The head as it is, or will be, once everything has been done.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// What the backing is as of with each group of the journal, as far as they have been read.
    pub fn moments(&self) -> &[Moment] {
        &self.moments
    }

    /// The last group that was found to be whole.
    pub fn checked(&mut self) -> Option<Group> {
        self.checked.take()
    }

    /// Blocks that were written to the backing.
    pub fn blocks_applied(&self) -> u64 {
        self.applied
    }

    /// What to do next.
    pub fn step(&mut self) -> Step {
        match self.phase {
            Phase::Check | Phase::Apply => match self.writes.pop() {
                Some(op) => Step::Backing(op),
                None => Step::Journal(self.read()),
            },
            Phase::Flush => Step::Backing(DeviceOp::Flush),
            Phase::Decide | Phase::Head => {
                let bufs = vec![self.head.encode()];
                Step::Journal(DeviceOp::Write {
                    offset: Head::copy_offset(self.head.update),
                    bufs,
                    durable: true,
                })
            }
            Phase::End => Step::End,
        }
    }

    fn read(&self) -> DeviceOp {
        let wanted = match &self.group {
            None if self.descriptor.is_empty() => BLOCK_BYTES,
            // It is one: the first block has been looked at.
            None => {
                let whole = Group::descriptor_bytes_of(&self.descriptor).unwrap_or(BLOCK_BYTES);
                whole - self.descriptor.len() as u64
            }
            Some(group) => {
                let rest = group.entries[self.entries..].iter().filter(|e| !e.zero);
                rest.count() as u64 * BLOCK_BYTES
            }
        };
        let len = wanted.min(CHUNK_BYTES).min(self.head.run_of(self.at)) as usize;
        DeviceOp::Read { offset: self.head.offset_of(self.at), len }
    }

    /// The step has ended well, and what it read.
    ///
    /// # Errors
    /// [`DamagedGroup`]: nothing has been changed then.
    pub fn done(&mut self, read: Option<&Buf>) -> Result<(), DamagedGroup> {
        match self.phase {
            Phase::Check | Phase::Apply => match read {
                Some(data) => self.take(data),
                None => {
                    self.go_on();
                    Ok(())
                }
            },
            Phase::Flush => {
                self.head.update += 1;
                self.head.tail = self.head.head;
                self.head.applied = self.head.committed.clone();
                self.phase = Phase::Head;
                Ok(())
            }
            Phase::Decide => {
                (self.at, self.phase) = (self.head.tail, Phase::Apply);
                Ok(())
            }
            Phase::Head | Phase::End => {
                self.phase = Phase::End;
                Ok(())
            }
        }
    }

    fn take(&mut self, data: &Buf) -> Result<(), DamagedGroup> {
        if self.group.is_none() {
            if self.descriptor.is_empty() {
                self.begins = self.at;
            }
            self.descriptor.extend_from_slice(data);
            let whole = Group::descriptor_bytes_of(&self.descriptor).map_err(|e| self.damage(e))?;
            if self.begins + whole > self.head.head {
                return Err(self.damage(FormatError::Field("entries")));
            }
            self.at += data.len() as u64;
            if self.descriptor.len() as u64 == whole {
                self.take_descriptor()?;
            }
        } else {
            self.take_data(data)?;
            self.at += data.len() as u64;
        }
        self.go_on();
        Ok(())
    }

    fn take_descriptor(&mut self) -> Result<(), DamagedGroup> {
        let descriptor = std::mem::take(&mut self.descriptor);
        let group = Group::decode(&descriptor).map_err(|e| self.damage(e))?;
        let ours = group.cache_id == self.head.cache_id && group.generation <= self.head.generation;
        let blocks = self.head.volume_bytes.div_ceil(BLOCK_BYTES);
        if !ours || group.position != self.begins || self.begins + group.bytes() > self.head.head {
            return Err(self.damage(FormatError::Field("cache, run or position")));
        }
        if group.entries.last().is_some_and(|e| e.block.0 >= blocks) {
            return Err(self.damage(FormatError::Field("block")));
        }
        // What is of a later group comes with it, and groups are counted.
        let moment = &group.moment;
        if moment.group <= self.group_before() || group.entries.iter().any(|e| e.seq > moment.seq) {
            return Err(self.damage(FormatError::Field("moment")));
        }
        if self.phase == Phase::Check {
            self.moments.push(group.moment.clone());
        }
        self.group = Some(group);
        self.entries = 0;
        self.pass_zeroes();
        Ok(())
    }

    /// Blocks of data as they follow in the journal.
    fn take_data(&mut self, data: &Buf) -> Result<(), DamagedGroup> {
        let mut at = 0;
        while at < data.len() {
            let Some(entry) = self.entry() else { return Err(self.damage(FormatError::Truncated)) };
            let block = data.slice(at, BLOCK_BYTES as usize);
            if block_checksum(entry.block, entry.seq, &block) != entry.checksum {
                let offset = self.head.offset_of(self.at + at as u64);
                return Err(DamagedGroup {
                    offset,
                    what: format!("block {}", entry.block),
                    ..self.damage("")
                });
            }
            if self.phase == Phase::Apply {
                self.write(entry.block, block);
            }
            at += BLOCK_BYTES as usize;
            self.entries += 1;
            self.pass_zeroes();
        }
        Ok(())
    }

    fn entry(&self) -> Option<GroupEntry> {
        self.group.as_ref().and_then(|g| g.entries.get(self.entries)).copied()
    }

    fn pass_zeroes(&mut self) {
        while let Some(entry) = self.entry().filter(|e| e.zero) {
            if self.phase == Phase::Apply {
                self.zero(entry.block);
            }
            self.entries += 1;
        }
    }

    fn within(&self, block: BlockNo) -> u64 {
        BLOCK_BYTES.min(self.head.volume_bytes - block.offset())
    }

    fn write(&mut self, block: BlockNo, data: Buf) {
        let data = data.slice(0, self.within(block) as usize);
        self.applied += 1;
        if let Some(DeviceOp::Write { offset, bufs, .. }) = self.writes.last_mut() {
            let bytes: usize = bufs.iter().map(|b| b.len()).sum();
            if *offset + bytes as u64 == block.offset() {
                return bufs.push(data);
            }
        }
        self.writes.push(DeviceOp::Write { offset: block.offset(), bufs: vec![data], durable: false });
    }

    fn zero(&mut self, block: BlockNo) {
        let within = self.within(block);
        self.applied += 1;
        match self.writes.last_mut() {
            Some(DeviceOp::Zero { offset, len, .. }) if *offset + *len == block.offset() => *len += within,
            _ => self.writes.push(DeviceOp::Zero { offset: block.offset(), len: within, unmap: true }),
        }
    }

    /// From one group to the next, and from one phase to the next.
    fn go_on(&mut self) {
        let over = self.group.as_ref().is_some_and(|g| self.entries == g.entries.len());
        if over && self.writes.is_empty() {
            self.checked = self.group.take();
            self.entries = 0;
        }
        if self.group.is_some() || self.at < self.head.head || !self.writes.is_empty() {
            return;
        }
        self.phase = match self.phase {
            Phase::Check if self.check_only => Phase::End,
            Phase::Check if self.takes_prepared => {
                self.head.update += 1;
                self.head.committed = self.moments.last().cloned().unwrap_or_default();
                Phase::Decide
            }
            Phase::Check => {
                self.at = self.head.tail;
                Phase::Apply
            }
            _ => Phase::Flush,
        };
    }

    /// Number of the group that comes before the one that is looked at.
    fn group_before(&self) -> u64 {
        let before = self.checked.as_ref().filter(|_| self.begins != self.head.tail);
        before.map_or(self.head.applied.group, |g| g.moment.group)
    }

    fn damage(&self, what: impl ToString) -> DamagedGroup {
        let group = self.group.as_ref().map_or(self.group_before() + 1, |g| g.moment.group);
        let (offset, applying) = (self.head.offset_of(self.begins), self.phase == Phase::Apply);
        DamagedGroup { group, offset, what: what.to_string(), applying }
    }
}

#[cfg(test)]
mod tests;
