//! Applies the groups that a crash left in a journal (P4): the backing is then as of the last one that was committed.
//!
//! Like the engine it does no I/O itself: it says what is to be done and is told how it ended. Every group is read and
//! checked before the first of them is applied, so that a damaged journal changes nothing. A crash in the middle is
//! cured by beginning anew.

use forebay_block::{BLOCK_BYTES, BlockNo, Buf, DeviceOp};
use thiserror::Error;

use crate::FormatError;
use crate::checksum::block_checksum;
use crate::common::Common;
use crate::journal::{Group, GroupEntry, Head, Moment};

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

/// What is to become of a group that is prepared and not committed ([`crate::common`]).
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
mod tests {
    use forebay_block::Seq;
    use proptest::prelude::*;

    use super::*;
    use crate::journal::{GROUP_ENTRIES_MAX, JOURNAL_RING_OFFSET};

    const BLOCKS: u64 = 12;

    fn blank() -> Head {
        Head { update: 5, ..Head::new([1; 16], [2; 16], 1 << 20, 1 << 16) }
    }

    #[test]
    fn zeroes_are_joined_only_where_they_touch() {
        let mut replay = Replay::new(blank());
        [3, 4, 9].into_iter().for_each(|block| replay.zero(BlockNo(block)));
        let ranges = replay.writes.iter().filter_map(|write| match write {
            DeviceOp::Zero { offset, len, .. } => Some((*offset, *len)),
            _ => None,
        });
        assert_eq!(ranges.collect::<Vec<_>>(), [(3 * 4096, 2 * 4096), (9 * 4096, 4096)]);
        assert_eq!(replay.applied, 3);
    }

    #[test]
    fn what_changes_the_head_makes_a_newer_one_and_nothing_else_does() {
        let common = Common { prepared: 3, ..Common::default() };
        let forgotten = Replay::deciding(Head { prepared: 8192, common, ..blank() }, Prepared::Dropped);
        assert_eq!((forgotten.head, forgotten.phase), (Head { update: 6, ..blank() }, Phase::Head));
        let settled = Replay::deciding(blank(), Prepared::Dropped);
        assert_eq!((settled.head, settled.phase), (blank(), Phase::End));
        let mut applied = Replay::new(Head { head: 4096, ..blank() });
        applied.phase = Phase::Flush;
        applied.done(None).unwrap();
        assert_eq!((applied.head.update, applied.head.tail, applied.phase), (6, 4096, Phase::Head));
    }

    /// A journal and a volume in memory.
    #[derive(Clone)]
    struct Place {
        journal: Vec<u8>,
        volume: Vec<u8>,
    }

    impl Place {
        fn step(&mut self, step: Step) -> Option<Option<Buf>> {
            let (op, bytes) = match step {
                Step::End => return None,
                Step::Journal(op) => (op, &mut self.journal),
                Step::Backing(op) => (op, &mut self.volume),
            };
            Some(match op {
                DeviceOp::Read { offset, len } => Some(Buf::copy_of(&bytes[offset as usize..][..len])),
                DeviceOp::Write { offset, bufs, .. } => {
                    let mut at = offset as usize;
                    for buf in bufs {
                        bytes[at..at + buf.len()].copy_from_slice(&buf);
                        at += buf.len();
                    }
                    None
                }
                DeviceOp::Zero { offset, len, .. } => {
                    bytes[offset as usize..][..len as usize].fill(0);
                    None
                }
                DeviceOp::Flush => None,
            })
        }

        /// Replays until the end or for so many steps.
        fn replay(&mut self, steps: usize) -> Result<u64, DamagedGroup> {
            let mut replay =
                Replay::new(Head::newest(&self.journal[..JOURNAL_RING_OFFSET as usize]).unwrap());
            for _ in 0..steps {
                let Some(read) = self.step(replay.step()) else { break };
                replay.done(read.as_ref())?;
            }
            Ok(replay.blocks_applied())
        }
    }

    /// A journal with these groups, each of blocks with a fill byte (0: zeroes), from `tail` on; and the volume as it must be.
    fn world(groups: &[Vec<(u64, u8)>], tail: u64, ring_blocks: u64, odd: u64) -> (Place, Vec<u8>) {
        let volume_bytes = BLOCKS * BLOCK_BYTES - odd;
        let mut head = Head::new([1; 16], [2; 16], volume_bytes, ring_blocks * BLOCK_BYTES);
        (head.generation, head.update, head.consistent) = (3, 4, true);
        (head.tail, head.head) = (tail * BLOCK_BYTES, tail * BLOCK_BYTES);
        let volume = vec![0xEE; volume_bytes as usize];
        let mut place = Place { journal: vec![0; (JOURNAL_RING_OFFSET + head.ring_bytes) as usize], volume };
        let mut expected = place.volume.clone();
        for (n, blocks) in (1..).zip(groups) {
            let blocks: std::collections::BTreeMap<u64, u8> = blocks.iter().copied().collect();
            let seq = Seq(n);
            let data = |fill: u8| vec![fill; BLOCK_BYTES as usize];
            let entry = |(block, fill): (&u64, &u8)| GroupEntry {
                block: BlockNo(*block),
                seq,
                checksum: if *fill == 0 { 0 } else { block_checksum(BlockNo(*block), seq, &data(*fill)) },
                zero: *fill == 0,
            };
            let group = Group {
                cache_id: [2; 16],
                generation: 3,
                position: head.head,
                moment: Moment { group: n, seq, ..Moment::default() },
                entries: blocks.iter().map(entry).collect(),
            };
            let mut bytes = group.encode().to_vec();
            for (block, fill) in &blocks {
                if *fill > 0 {
                    bytes.extend(data(*fill));
                }
                let at = (*block * BLOCK_BYTES) as usize;
                let end = (at + BLOCK_BYTES as usize).min(expected.len());
                expected[at..end].fill(*fill);
            }
            for chunk in bytes.chunks(BLOCK_BYTES as usize) {
                let at = head.offset_of(head.head) as usize;
                place.journal[at..at + chunk.len()].copy_from_slice(chunk);
                head.head += BLOCK_BYTES;
            }
            head.committed = group.moment;
        }
        head.prepared = head.head;
        place.journal[..BLOCK_BYTES as usize].copy_from_slice(&head.encode());
        (place, expected)
    }

    fn groups() -> impl Strategy<Value = Vec<Vec<(u64, u8)>>> {
        let block = (0..BLOCKS, any::<u8>());
        proptest::collection::vec(proptest::collection::vec(block, 1..6), 1..5)
    }

    proptest! {
        /// Wherever the groups lie in the ring, and whenever a crash cuts a replay short, the next one ends with everything.
        #[test]
        fn groups_are_applied_in_their_order(
            groups in groups(), tail in 0u64..70, odd in prop::sample::select(vec![0u64, 512, 3584]), crash in 0usize..40
        ) {
            let (mut place, expected) = world(&groups, tail, 31, odd);
            place.replay(crash).unwrap();
            place.replay(usize::MAX).unwrap();
            prop_assert_eq!(&place.volume, &expected);
            let head = Head::newest(&place.journal[..JOURNAL_RING_OFFSET as usize]).unwrap();
            prop_assert_eq!((head.tail, head.applied), (head.head, head.committed));
            prop_assert_eq!(place.replay(usize::MAX).unwrap(), 0, "nothing is left to be done");
        }

        /// A flipped bit in any group is found before anything is changed.
        #[test]
        fn damage_changes_nothing(groups in groups(), tail in 0u64..70, at in any::<prop::sample::Index>()) {
            let (mut place, _) = world(&groups, tail, 31, 0);
            let head = Head::newest(&place.journal[..JOURNAL_RING_OFFSET as usize]).unwrap();
            let position = head.tail + at.index((head.head - head.tail) as usize) as u64;
            place.journal[head.offset_of(position) as usize] ^= 0x10;
            let before = place.volume.clone();
            prop_assert!(place.replay(usize::MAX).is_err());
            prop_assert_eq!(place.volume, before);
        }
    }

    /// A group that is whole and says what cannot be changes nothing.
    #[test]
    fn nonsense_with_right_checksums_changes_nothing() {
        type Forge = fn(&mut Group);
        let forgeries: [(&str, Forge); 8] = [
            ("another cache's", |g| g.cache_id = [9; 16]),
            ("of a later run", |g| g.generation = 4),
            ("of another place", |g| g.position += BLOCK_BYTES),
            ("behind the volume's end", |g| g.entries[0].block = BlockNo(BLOCKS)),
            ("of a later record", |g| g.entries[0].seq = Seq(g.moment.seq.0 + 1)),
            ("of no number", |g| g.moment.group = 0),
            ("as the one before", |g| g.moment.group = 1),
            ("longer than what is committed", |g| {
                g.entries = vec![GroupEntry { zero: false, ..g.entries[0] }; 1];
                g.entries.push(GroupEntry { block: BlockNo(g.entries[0].block.0 + 1), ..g.entries[0] });
            }),
        ];
        let (whole, expected) = world(&[vec![(1, 1)], vec![(2, 2)]], 29, 31, 0);
        whole.clone().replay(usize::MAX).unwrap();
        assert_ne!(whole.volume, expected);
        let head = Head::newest(&whole.journal[..JOURNAL_RING_OFFSET as usize]).unwrap();
        for (name, forge) in forgeries {
            let mut place = whole.clone();
            let at = head.offset_of(head.tail + 2 * BLOCK_BYTES) as usize;
            let mut group = Group::decode(&place.journal[at..][..BLOCK_BYTES as usize]).unwrap();
            forge(&mut group);
            let forged = group.encode();
            place.journal[at..at + forged.len()].copy_from_slice(&forged);
            assert!(place.replay(usize::MAX).is_err(), "{name}");
            assert!(place.volume == whole.volume, "{name}");
        }
    }

    /// Whenever it goes bad, it is told which group it is, and whether anything was applied.
    #[test]
    fn a_group_that_goes_bad_after_its_check_is_named() {
        let (whole, _) = world(&[vec![(1, 1)], vec![(2, 2)], vec![(3, 3)]], 29, 31, 0);
        let head = Head::newest(&whole.journal[..JOURNAL_RING_OFFSET as usize]).unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for (steps, block) in (0..20).flat_map(|steps| [(steps, 2), (steps, 3)]) {
            let (mut place, mut replay) = (whole.clone(), Replay::new(head.clone()));
            let mut done = 0;
            let error = loop {
                if done == steps {
                    place.journal[head.offset_of(head.tail + block * BLOCK_BYTES) as usize] ^= 0x10;
                }
                done += 1;
                let Some(read) = place.step(replay.step()) else { break None };
                if let Err(error) = replay.done(read.as_ref()) {
                    break Some(error);
                }
            };
            if let Some(error) = error {
                assert_eq!(error.group, 2, "{error}");
                assert!(error.applying || place.volume == whole.volume, "{error}");
                seen.insert((block, error.applying));
            }
        }
        assert_eq!(seen.len(), 4, "descriptor and data, before and after: {seen:?}");
    }

    /// Whatever is to become of a prepared group, at whichever step a crash cuts it short.
    #[test]
    fn a_prepared_group_is_applied_only_if_all_have_it() {
        let groups = [vec![(1, 1), (2, 2)], vec![(2, 7), (3, 0)]];
        let (committed, before) = world(&groups[..1], 29, 31, 0);
        let (whole, after) = world(&groups, 29, 31, 0);
        let mut place = Place { volume: committed.volume.clone(), ..whole.clone() };
        let mut head = Head::newest(&committed.journal[..JOURNAL_RING_OFFSET as usize]).unwrap();
        head.prepared = Head::newest(&whole.journal[..JOURNAL_RING_OFFSET as usize]).unwrap().head;
        head.common = crate::common::Common {
            decided: 4,
            prepared: 5,
            names: "shop data log".to_owned(),
            ..Default::default()
        };
        place.journal[..BLOCK_BYTES as usize].copy_from_slice(&head.encode());
        let rows =
            [(Prepared::Applied, &after, 5), (Prepared::Dropped, &before, 4), (Prepared::Alone, &before, 0)];
        for ((what, volume, decided), crash) in
            rows.into_iter().flat_map(|row| (0..14).map(move |n| (row, n)))
        {
            let mut place = place.clone();
            for steps in [crash, usize::MAX] {
                let found = Head::newest(&place.journal[..JOURNAL_RING_OFFSET as usize]).unwrap();
                let mut replay = Replay::deciding(found, what);
                for _ in 0..steps {
                    let Some(read) = place.step(replay.step()) else { break };
                    replay.done(read.as_ref()).unwrap();
                }
            }
            let end = Head::newest(&place.journal[..JOURNAL_RING_OFFSET as usize]).unwrap();
            assert_eq!(&place.volume, volume, "{what:?} {crash}");
            let group = if what == Prepared::Applied { 2 } else { 1 };
            assert_eq!((end.tail, end.prepared, end.committed.group), (end.head, end.head, group));
            assert_eq!((end.common.decided, end.common.prepared), (decided, 0));
        }
        // Whoever knows nothing of the others leaves it alone.
        place.replay(usize::MAX).unwrap();
        let head = Head::newest(&place.journal[..JOURNAL_RING_OFFSET as usize]).unwrap();
        assert!(place.volume == before && head.has_prepared());
        let mut replay = Replay::of_prepared(&head);
        while let Some(read) = place.step(replay.step()) {
            replay.done(read.as_ref()).unwrap();
        }
        let group = replay.checked().unwrap();
        assert_eq!((group.moment.group, group.entries.len()), (2, 2));
    }

    #[test]
    fn a_descriptor_may_be_longer_than_a_block() {
        let many: Vec<(u64, u8)> = (0..BLOCKS).map(|b| (b, 0)).collect();
        let (mut place, expected) = world(&[many], 3, 31, 512);
        assert_eq!(place.replay(usize::MAX), Ok(BLOCKS));
        assert_eq!(place.volume, expected);
        let entries: Vec<GroupEntry> = (0..400)
            .map(|b| GroupEntry { block: BlockNo(b), seq: Seq(1), checksum: 0, zero: true })
            .collect();
        let group =
            Group { cache_id: [2; 16], generation: 3, position: 0, moment: Moment::default(), entries };
        let bytes = group.encode();
        assert_eq!(bytes.len() as u64, Group::descriptor_bytes_of(&bytes[..4096]).unwrap());
        assert_eq!(Group::decode(&bytes), Ok(group));
    }

    /// A descriptor that claims to be longer than the journal is damaged, whoever looks at it.
    #[test]
    fn a_descriptor_does_not_reach_beyond_the_head() {
        for tail in [0, 29] {
            let (mut place, _) = world(&[vec![(1, 1)], vec![(2, 2)]], tail, 31, 0);
            let head = Head::newest(&place.journal[..JOURNAL_RING_OFFSET as usize]).unwrap();
            let last = head.head - 2 * BLOCK_BYTES;
            let begins = head.offset_of(last);
            let entries = begins as usize + 56;
            assert_eq!(place.journal[entries..][..4], 1u32.to_le_bytes());
            let committed = Moment { group: 1, ..head.committed.clone() };
            let common = Common { decided: 1, prepared: 2, ..Common::default() };
            let prepared = Head { head: last, prepared: head.head, committed, common, ..head.clone() };
            for more in [170, 512, 4096, GROUP_ENTRIES_MAX as u32] {
                place.journal[entries..][..4].copy_from_slice(&more.to_le_bytes());
                for mut replay in [
                    Replay::new(head.clone()),
                    Replay::check_only(head.clone()),
                    Replay::of_prepared(&prepared),
                    Replay::deciding(prepared.clone(), Prepared::Applied),
                ] {
                    let mut place = place.clone();
                    let before = place.clone();
                    let damage = loop {
                        let read = place.step(replay.step()).expect("not the end");
                        if let Err(damage) = replay.done(read.as_ref()) {
                            break damage;
                        }
                    };
                    assert_eq!((damage.group, damage.offset), (2, begins), "{damage:?}");
                    assert!(place.journal == before.journal && place.volume == before.volume);
                }
            }
        }
    }

    #[test]
    fn a_damaged_head_is_not_passed_over() {
        let (place, _) = world(&[vec![(1, 1)]], 0, 31, 0);
        let mut copies = place.journal[..JOURNAL_RING_OFFSET as usize].to_vec();
        let mut newer = Head::newest(&copies).unwrap();
        newer.update += 1;
        copies[BLOCK_BYTES as usize..].copy_from_slice(&newer.encode());
        assert_eq!(Head::newest(&copies), Ok(newer));
        for at in [BLOCK_BYTES as usize, BLOCK_BYTES as usize + 300, 3000] {
            let mut bad = copies.clone();
            bad[at] ^= 1;
            assert!(Head::newest(&bad).is_err(), "flip at {at}");
        }
        assert_eq!(Head::newest(&[0; JOURNAL_RING_OFFSET as usize]), Err(crate::FormatError::Magic));
    }
}
