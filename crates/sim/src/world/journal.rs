//! The journal on the backing's side: the host's part at a start, and what a host without the cache would make of an image.

use forebay_block::{DeviceOp, Nanos};
use forebay_format::FormatError;
use forebay_format::identities::Identities;
use forebay_format::journal::{Head, JOURNAL_RING_OFFSET};
use forebay_format::label::{LABEL_BYTES, Label};
use forebay_format::replay::{Replay, Step};

use super::World;
use crate::media::{Data, View};
use crate::violation::{Interrupt, broken};

impl World {
    /// Byte offset of the journal on the backing: behind the label.
    pub(crate) fn journal_offset(&self) -> u64 {
        self.label_offset() + LABEL_BYTES as u64
    }

    /// Bytes of the journal.
    pub(super) fn journal_len(&self) -> u64 {
        match self.shape.journal_bytes {
            0 => 0,
            ring => JOURNAL_RING_OFFSET + ring,
        }
    }

    fn head_of(&self, image: &[u8]) -> Result<Option<Head>, Interrupt> {
        let copies = &image[self.journal_offset() as usize..][..JOURNAL_RING_OFFSET as usize];
        match Head::newest(copies) {
            Ok(head) => Ok(Some(head)),
            Err(FormatError::Magic) => Ok(None),
            Err(e) => Err(broken("P4", format!("the head of the journal cannot be read: {e}"))),
        }
    }

    /// What a host without the cache makes of a view of the backing; `None` if it leaves it as it is.
    pub(super) fn recovered(&self, view: View) -> Result<Option<Vec<u8>>, Interrupt> {
        if self.shape.journal_bytes == 0 {
            return Ok(None);
        }
        let (media, bytes) = (&self.backing.media, self.backing.media.end() as usize);
        let image = match view {
            View::Now => media.read(0, bytes),
            View::Durable => media.read_durable(0, bytes),
        };
        let label = Label::newest(&image[self.label_offset() as usize..][..LABEL_BYTES]);
        let head = self.head_of(image)?.filter(|head| label.is_ok_and(|label| head.is_of(&label)));
        let Some(head) = head.filter(|head| head.tail < head.head) else { return Ok(None) };
        let mut image = image.to_vec();
        let mut replay = Replay::new(head);
        loop {
            let (step, at) = match replay.step() {
                Step::End => return Ok(Some(image)),
                Step::Journal(op) => (op, self.journal_offset()),
                Step::Backing(op) => (op, 0),
            };
            let read = match step {
                DeviceOp::Read { offset, len } => {
                    Some(forebay_block::Buf::copy_of(&image[(at + offset) as usize..][..len]))
                }
                DeviceOp::Write { offset, bufs, .. } => {
                    let data = Data::Bufs(bufs).flat();
                    image[(at + offset) as usize..][..data.len()].copy_from_slice(&data);
                    None
                }
                DeviceOp::Zero { offset, len, .. } => {
                    image[(at + offset) as usize..][..len as usize].fill(0);
                    None
                }
                DeviceOp::Flush => None,
            };
            replay.done(read.as_ref()).map_err(|e| broken("P4", e.to_string()))?;
        }
    }

    /// What the host does before a run begins, or `forebay recover` in its place: groups that a crash left are applied.
    /// Returns during which of the host's writes after these the crash comes.
    pub(super) fn replay(
        &mut self,
        identities: &Identities,
        mut crash_at: Option<u64>,
    ) -> Result<Option<u64>, Interrupt> {
        self.next_head = None;
        if self.shape.journal_bytes == 0 {
            return Ok(crash_at);
        }
        // What a process wrote that was killed may be volatile, and is believed from here on.
        self.backing.media.flush(self.backing.media.flush_mark());
        let mut found = self.head_of(self.backing.media.read(0, self.backing.media.end() as usize))?;
        let ours = |head: &Head| identities.label.as_ref().is_some_and(|label| head.is_of(label));
        if let Some(head) = found.clone().filter(|head| ours(head) && head.tail < head.head) {
            let mut replay = Replay::new(head);
            loop {
                let (op, at) = match replay.step() {
                    Step::End => break,
                    Step::Journal(op) => (op, self.journal_offset()),
                    Step::Backing(op) => (op, 0),
                };
                let read = self.replay_step(op, at, &mut crash_at)?;
                replay.done(read.as_ref()).map_err(|e| broken("P4", e.to_string()))?;
            }
            self.stats.replays += 1;
            found = Some(replay.head().clone());
        }
        let generation = identities
            .superblock
            .layout
            .generation
            .max(identities.label.as_ref().map_or(0, |label| label.generation))
            + 1;
        self.next_head =
            Some(Head::for_run(found.as_ref(), identities, generation, self.shape.journal_bytes));
        Ok(crash_at)
    }

    fn replay_step(
        &mut self,
        op: DeviceOp,
        at: u64,
        crash_at: &mut Option<u64>,
    ) -> Result<Option<forebay_block::Buf>, Interrupt> {
        self.steps += 1;
        let (offset, data, durable) = match op {
            DeviceOp::Read { offset, len } => {
                return Ok(Some(forebay_block::Buf::copy_of(self.backing.media.read(at + offset, len))));
            }
            DeviceOp::Flush => {
                self.backing.media.flush(self.backing.media.flush_mark());
                return Ok(None);
            }
            DeviceOp::Write { offset, bufs, durable } => (offset, Data::Bufs(bufs), durable),
            DeviceOp::Zero { offset, len, .. } => (offset, Data::Zeroes(len as usize), false),
        };
        let crashes = *crash_at == Some(1);
        *crash_at = crash_at.map(|n| n - 1);
        self.trace.note((Nanos(0), self.steps), &[12, at + offset, u64::from(crashes)], || {
            let how = if crashes { "a crash during the" } else { "the" };
            (format!("host: {how} replay of {} bytes at {}", data.len(), at + offset), Vec::new())
        });
        if crashes {
            self.backing.begin_alone(at + offset, forebay_block::Buf::copy_of(&data.flat()), self.steps);
            return Err(Interrupt::Crash);
        }
        self.backing.media.write(at + offset, data, durable);
        Ok(None)
    }
}
