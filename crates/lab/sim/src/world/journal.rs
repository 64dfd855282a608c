//! The journal on the backing's side: the host's part at a start, and what a host without the cache would make of an image.

use forebay_block::{DeviceOp, Nanos};
use forebay_engine::Role;
use forebay_format::FormatError;
use forebay_format::identities::Identities;
use forebay_format::journal::{Group, Head, JOURNAL_RING_OFFSET};
use forebay_format::label::{LABEL_BYTES, Label};
use forebay_format::replay::{Prepared, Replay, Step};

use super::World;
use crate::consistency::Told;
use crate::media::{Changes, Data, View};
use crate::order::Held;
use crate::stamp::SECTOR;
use crate::violation::{Interrupt, broken};

impl World {
    /// Byte offset of the journal on its device: on the backing it lies behind the label.
    pub(crate) fn journal_offset(&self) -> u64 {
        if self.shape.journal_apart { 0 } else { self.label_offset() + LABEL_BYTES as u64 }
    }

    /// All that the journal's device holds from the journal on.
    fn journal_bytes(&self, view: View) -> &[u8] {
        let device = if self.shape.journal_apart { &self.journal } else { &self.backing };
        device.media.view(view, self.journal_offset(), self.journal_len() as usize)
    }

    /// Bytes of the journal.
    pub(super) fn journal_len(&self) -> u64 {
        match self.shape.journal_bytes {
            0 => 0,
            ring => JOURNAL_RING_OFFSET + ring,
        }
    }

    /// What a sector of the volume is without the cache, once the groups in the journal have been applied.
    pub(crate) fn held_by_backing(&self, sector: u64) -> Held {
        let replayed = self.consistency.held(sector).filter(|_| self.shape.journal_bytes > 0);
        replayed.unwrap_or_else(|| Held::of(self.backing.media.read(sector * SECTOR as u64, SECTOR)))
    }

    fn head_of(journal: &[u8]) -> Result<Option<Head>, Interrupt> {
        match Head::newest(&journal[..JOURNAL_RING_OFFSET as usize]) {
            Ok(head) => Ok(Some(head)),
            Err(FormatError::Magic) => Ok(None),
            Err(e) => Err(broken("P4", format!("the head of the journal cannot be read: {e}"))),
        }
    }

    /// Whether a host without the cache may learn something else from the journal, now that the backing has changed so.
    pub(super) fn may_tell_otherwise(&mut self, view: View, backing: &Changes) -> bool {
        let label = self.label_offset();
        let start = self.journal_offset();
        // What lies in the ring tells nothing as long as the head speaks of no group.
        let told = match self.consistency.replays(view) {
            true => self.journal_len(),
            false => JOURNAL_RING_OFFSET,
        };
        let apart = self.shape.journal_apart.then(|| self.journal.media.take_changes(view));
        backing.touch(label, label + LABEL_BYTES as u64)
            || apart.as_ref().unwrap_or(backing).touch(start, start + told)
    }

    /// What a host without the cache would learn from the journal in a view of the backing.
    pub(super) fn told(&self, view: View) -> Result<Told, Interrupt> {
        let label = Label::newest(self.backing.media.view(view, self.label_offset(), LABEL_BYTES));
        let journal = self.journal_bytes(view);
        let head = Self::head_of(journal)?.filter(|head| label.is_ok_and(|label| head.is_of(&label)));
        let mut told = Told::default();
        let Some(head) = head else { return Ok(told) };
        (told.consistent, told.moment) = (head.consistent, head.committed.clone());
        told.replays = head.tail < head.head || head.has_prepared();
        told.common = (head.common.decided, head.common.prepared);
        self.told_by(journal, &mut Replay::new(head.clone()), &mut told)?;
        if head.has_prepared() {
            // The committed groups are there already: only the prepared one is of interest.
            let whole = Head { tail: head.head, ..head };
            let mut check = Replay::of_prepared(&whole);
            self.told_by(journal, &mut check, &mut told)?;
            told.prepare(check.checked().map(|group| group.moment).unwrap_or_default());
            self.told_by(journal, &mut Replay::deciding(whole, Prepared::Applied), &mut told)?;
        }
        Ok(told)
    }

    fn told_by(&self, journal: &[u8], replay: &mut Replay, told: &mut Told) -> Result<(), Interrupt> {
        loop {
            let read = match replay.step() {
                Step::End => return Ok(()),
                Step::Journal(DeviceOp::Read { offset, len }) => {
                    Some(forebay_block::Buf::copy_of(&journal[offset as usize..][..len]))
                }
                Step::Backing(DeviceOp::Write { offset, bufs, .. }) => {
                    let mut first = offset as usize / SECTOR;
                    for data in &bufs {
                        told.put(first, data.chunks_exact(SECTOR).map(Held::of));
                        first += data.len() / SECTOR;
                    }
                    None
                }
                Step::Backing(DeviceOp::Zero { offset, len, .. }) => {
                    let sectors = len as usize / SECTOR;
                    told.put(offset as usize / SECTOR, std::iter::repeat_n(Held::Zero, sectors));
                    None
                }
                Step::Journal(_) | Step::Backing(_) => None,
            };
            replay.done(read.as_ref()).map_err(|e| broken("P4", e.to_string()))?;
        }
    }

    /// The volume says that the backing is at the point, or was a moment ago: that is durable there.
    ///
    /// # Errors
    /// A violation of P4.
    pub(crate) fn judge_marked(&mut self, number: u64, label: &str) -> Result<(), Interrupt> {
        let told = self.told(View::Durable)?;
        if !told.consistent || (told.moment.point, told.moment.label.as_str()) != (number, label) {
            let durable = (told.consistent, told.moment.point, told.moment.label);
            let message =
                format!("point {number} '{label}' is answered, but the journal durably says {durable:?}");
            return Err(broken("P4", message));
        }
        self.stats.points += 1;
        self.judge_order()
    }

    /// The volume says that the common point is prepared: that is durable, whatever becomes of it.
    ///
    /// # Errors
    /// A violation of P4.
    pub(crate) fn judge_prepared(&mut self, number: u64) -> Result<(), Interrupt> {
        let told = self.told(View::Durable)?;
        match told.prepared() {
            Some(moment) if told.common.1 == number => self.consistency.points.prepared(number, moment.group),
            // It has been given up meanwhile.
            _ if told.consistent && told.common.0 == 0 && told.moment.point == 0 => {}
            _ => {
                let durable = (told.consistent, told.common);
                let message =
                    format!("common point {number} is prepared, but the journal durably says {durable:?}");
                return Err(broken("P4", message));
            }
        }
        self.stats.common_prepared += 1;
        self.judge_order()
    }

    /// The volume says that the common point is decided, or forgotten.
    ///
    /// # Errors
    /// A violation of P4.
    pub(crate) fn judge_settled(&mut self, number: u64, keep: bool) -> Result<(), Interrupt> {
        let told = self.told(View::Durable)?;
        let (decided, prepared) = told.common;
        let as_said = match keep {
            true => told.consistent && decided == number && prepared == 0,
            false => decided != number,
        };
        if !as_said {
            let message = format!(
                "common point {number} is settled ({keep}), but the journal durably says {:?}",
                told.common
            );
            return Err(broken("P4", message));
        }
        self.stats.common_settled += 1;
        self.judge_order()
    }

    /// The group that is prepared in the journal.
    fn prepared_in(&self, head: &Head) -> Result<Option<Group>, Interrupt> {
        let mut replay = Replay::of_prepared(head);
        self.told_by(self.journal_bytes(View::Now), &mut replay, &mut Told::default())?;
        Ok(replay.checked())
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
        self.storage().for_each(|device| device.media.flush(device.media.flush_mark()));
        let mut found = Self::head_of(self.journal_bytes(View::Now))?;
        let ours = |head: &Head| identities.label.as_ref().is_some_and(|label| head.is_of(label));
        if let Some(head) = found.clone().filter(|head| ours(head) && head.tail < head.head) {
            let mut replay = Replay::new(head);
            loop {
                let (op, role) = match replay.step() {
                    Step::End => break,
                    Step::Journal(op) => (op.moved(self.journal_offset()), Role::Journal),
                    Step::Backing(op) => (op, Role::Backing),
                };
                let read = self.replay_step(op, role, &mut crash_at)?;
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
        let next = Head::for_run(found.as_ref(), identities, generation, self.shape.journal_bytes);
        self.next_prepared = if next.has_prepared() { self.prepared_in(&next)? } else { None };
        self.next_head = Some(next);
        Ok(crash_at)
    }

    fn replay_step(
        &mut self,
        op: DeviceOp,
        role: Role,
        crash_at: &mut Option<u64>,
    ) -> Result<Option<forebay_block::Buf>, Interrupt> {
        self.steps += 1;
        let (offset, data, durable) = match op {
            DeviceOp::Read { offset, len } => {
                return Ok(Some(forebay_block::Buf::copy_of(self.device(role).media.read(offset, len))));
            }
            DeviceOp::Flush => {
                let media = &mut self.device(role).media;
                media.flush(media.flush_mark());
                return Ok(None);
            }
            DeviceOp::Write { offset, bufs, durable } => (offset, Data::Bufs(bufs), durable),
            DeviceOp::Zero { offset, len, .. } => (offset, Data::Zeroes(len as usize), false),
            DeviceOp::Commit(_) => return Err(broken("wall", "a replay commits a group".to_owned())),
        };
        let crashes = *crash_at == Some(1);
        *crash_at = crash_at.map(|n| n - 1);
        self.trace.note((Nanos(0), self.steps), &[12, offset, u64::from(crashes)], || {
            let how = if crashes { "a crash during the" } else { "the" };
            (format!("host: {how} replay of {} bytes at {offset}", data.len()), Vec::new())
        });
        let steps = self.steps;
        let device = self.device(role);
        if crashes {
            device.begin_alone(offset, forebay_block::Buf::copy_of(&data.flat()), steps);
            return Err(Interrupt::Crash);
        }
        device.media.write(offset, data, durable);
        Ok(None)
    }
}
