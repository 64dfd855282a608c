//! What a cache and its backing say of each other, and every change of it, as durable writes in their order (P6).
//!
//! What is read may be there only for the moment: a process that was killed in a write has left it volatile. So it is made
//! durable before anything is built on it.
//!
//! Nothing is written here: whoever owns the devices carries out one [`Update`] after the other, each durable before the
//! next one begins. A crash between any two of them, or in the middle of one, leaves a pair that [`decide`] still
//! takes for a pair, while copies from before are refused.
//!
//! ```text
//!   a new pair:     label: paired ──► superblock
//!   a run begins:   flush ──► (superblock: g, if the last start crashed) ──►
//!                   label: intent g+1 ──► superblock: g+1 ──► (journal: g+1) ──► label: committed g+1 ──► recovery, service
//!   a run ends:     superblock: clean stop ──► label: not in use
//!   removed:        label: released, both copies ──► superblock: released ──► no label, unless it is kept to tell the volume's size
//!   retired (P9):   label: retired ──► superblock: retired; either alone is enough
//!   left behind:    label: released
//!   label lost:     flush ──► label: intent g+1, both copies
//! ```

use forebay_block::Buf;

use crate::FormatError;
use crate::label::{Label, LabelState, Phase};
use crate::pairing::{Refusal, decide};
use crate::superblock::{CacheState, SUPERBLOCK_OFFSETS, Superblock};

/// One step, durable when it is done.
#[derive(Clone, Debug)]
pub enum Update {
    /// Whatever has been written to the backing, and to the label wherever it lies, becomes durable.
    Flush,
    /// One copy of the superblock, at this byte offset of the cache device.
    Superblock {
        /// Byte offset.
        offset: u64,
        /// What is written.
        bytes: Buf,
    },
    /// One copy of the label, at this byte offset within the label's region.
    Label {
        /// Byte offset.
        offset: u64,
        /// What is written.
        bytes: Buf,
    },
    /// The label's whole region becomes zero, or its file goes.
    NoLabel,
    /// The journal's head says that this run has begun with nothing in it that is not applied.
    Journal,
}

impl Superblock {
    /// Counts an update; both copies, one after the other, so that a power cut leaves one whole.
    pub fn updates(&mut self) -> [Update; 2] {
        self.update += 1;
        let bytes = Buf::copy_of(&self.encode());
        SUPERBLOCK_OFFSETS.map(|offset| Update::Superblock { offset, bytes: bytes.clone() })
    }
}

impl Label {
    /// Counts an update, which goes to the copy whose turn it is.
    pub fn count_update(&mut self) -> Update {
        self.update += 1;
        Update::Label { offset: Self::copy_offset(self.update), bytes: Buf::copy_of(&self.encode()) }
    }

    /// The backing goes on without its cache, which must never be used with it again.
    pub fn leave_behind(&mut self) -> Update {
        self.state = LabelState::Released;
        self.in_use = false;
        self.count_update()
    }
}

/// Who begins a run, and when.
#[derive(Clone, Debug)]
pub struct Starter {
    /// Identity of the host.
    pub host_id: [u8; 16],
    /// Its name, for messages.
    pub host_name: String,
    /// Where the cache is now, for messages.
    pub cache_name: String,
    /// Wall-clock time, nanoseconds since 1970.
    pub time_ns: u64,
    /// Another host that has not stopped cleanly is surely dead.
    pub takeover: bool,
    /// The run has a journal on the backing's side.
    pub journal: bool,
    /// The volume's logical block in bytes from this run on; `None` leaves it as it is.
    pub logical_block: Option<u32>,
}

/// A cache's superblock and its backing's label, as they are now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identities {
    /// Of the cache.
    pub superblock: Superblock,
    /// Of the backing; `None` if it carries none.
    pub label: Option<Label>,
}

impl Identities {
    /// Superblock and label of one pair speak of one volume.
    ///
    /// # Errors
    /// [`FormatError::Field`] if they do not: nothing tells which of them is right.
    pub fn hold_rules(&self) -> Result<(), FormatError> {
        let Self { superblock, label: Some(label) } = self else { return Ok(()) };
        let paired =
            (label.cache_id, label.backing_id) == (superblock.layout.cache_id, superblock.backing_id);
        match paired && label.volume_bytes != superblock.volume_bytes {
            true => Err(FormatError::Field("volume_bytes")),
            false => Ok(()),
        }
    }

    /// Makes the two a pair.
    pub fn pair(&mut self) -> Vec<Update> {
        let mut updates = Vec::with_capacity(4);
        if let Some(label) = &mut self.label {
            // What was found of an older label may be what a killed process left while it erased one: a power cut would bring
            // back the other copy, with a higher number than the new label has.
            updates.extend([Update::Flush, label.count_update()]);
        }
        updates.extend(self.superblock.updates());
        updates
    }

    /// Gives the backing its label again, in both copies: what was there is damaged or lost.
    pub fn label_again(&mut self) -> Vec<Update> {
        let mut updates = vec![Update::Flush];
        if let Some(label) = &mut self.label {
            updates.extend([label.count_update(), label.count_update()]);
        }
        updates
    }

    /// Begins the next run, if the two may run together.
    ///
    /// # Errors
    /// The [`Refusal`]; nothing has changed then, and nothing is to be written.
    pub fn begin_run(&mut self, starter: &Starter) -> Result<Vec<Update>, Refusal> {
        let next = decide(&self.superblock, self.label.as_ref(), &starter.host_id, starter.takeover)?;
        let mut updates = Vec::with_capacity(8);
        updates.push(Update::Flush);
        if let Some(logical_block) = starter.logical_block {
            self.superblock.logical_block = logical_block;
        }
        if let Some(label) = &mut self.label {
            label.logical_block = self.superblock.logical_block;
            if label.phase == Phase::Intent {
                // The start of the run that the label speaks of crashed. The superblock takes its number first, durably: a
                // second crash at the same place must not leave the label two ahead. The number itself is not used
                // again, or today's backing would be taken for that of the run to come.
                self.superblock.layout.generation = label.generation;
                self.superblock.clean_stop = false;
                updates.extend(self.superblock.updates());
            }
            label.generation = next;
            label.phase = Phase::Intent;
            label.in_use = true;
            label.time_ns = starter.time_ns;
            label.host_id = starter.host_id;
            label.host_name.clone_from(&starter.host_name);
            label.cache_name.clone_from(&starter.cache_name);
            updates.push(label.count_update());
        }
        self.superblock.layout.generation = next;
        self.superblock.clean_stop = false;
        updates.extend(self.superblock.updates());
        if starter.journal {
            updates.push(Update::Journal);
        }
        if let Some(label) = &mut self.label {
            label.phase = Phase::Committed;
            label.journal_run = if starter.journal { next } else { 0 };
            updates.push(label.count_update());
        }
        Ok(updates)
    }

    /// The run is over; `clean` if the log ends with its own clean-stop mark. An update that fails does not keep the next
    /// one from being tried.
    pub fn end_run(&mut self, clean: bool, time_ns: u64) -> Vec<Update> {
        let mut updates = Vec::with_capacity(3);
        // A retired cache has failed: its superblock is not touched again, and needs no mark.
        if self.superblock.state == CacheState::Paired && clean {
            self.superblock.clean_stop = true;
            updates.extend(self.superblock.updates());
        }
        if let Some(label) = &mut self.label {
            label.in_use = false;
            label.time_ns = time_ns;
            updates.push(label.count_update());
        }
        updates
    }

    /// The cache is removed for good: afterwards the backing, which must have everything, needs no Forebay.
    pub fn release(&mut self) -> Vec<Update> {
        let mut updates = Vec::with_capacity(5);
        if let Some(label) = &mut self.label {
            // Both copies: a crash while they are erased must not leave the one that still says "paired".
            updates.extend([label.leave_behind(), label.leave_behind()]);
        }
        self.superblock.state = CacheState::Released;
        updates.extend(self.superblock.updates());
        // From here on the cache itself says that it is void, and the label has served its purpose.
        updates.extend(self.label.take().map(|_| Update::NoLabel));
        updates
    }

    /// The log is void although the cache has failed (P9). It is enough if one of these gets through.
    pub fn retire(&mut self, time_ns: u64) -> Vec<Update> {
        let mut updates = Vec::with_capacity(3);
        if let Some(label) = &mut self.label {
            label.state = LabelState::Retired;
            label.time_ns = time_ns;
            updates.push(label.count_update());
        }
        self.superblock.state = CacheState::Retired;
        updates.extend(self.superblock.updates());
        updates
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::label::LABEL_BYTES;
    use crate::label::tests::sample as label;
    use crate::superblock::tests::sample as superblock;

    const HOST: [u8; 16] = [0xA0; 16];

    fn starter() -> Starter {
        Starter {
            host_id: HOST,
            host_name: "db1".into(),
            cache_name: "/cache/c.img".into(),
            time_ns: 1,
            takeover: false,
            journal: false,
            logical_block: None,
        }
    }

    /// The bytes of both, as the devices have them.
    #[derive(Clone)]
    struct Medium {
        superblocks: [Vec<u8>; 2],
        label: Vec<u8>,
    }

    impl Medium {
        fn new(identities: &Identities) -> Self {
            let mut medium =
                Self { superblocks: [vec![0; 4096], vec![0; 4096]], label: vec![0; LABEL_BYTES] };
            identities.clone().pair().iter().for_each(|u| medium.write(u, &|_| true));
            medium
        }

        /// Writes those sectors that `lands` says.
        fn write(&mut self, update: &Update, lands: &dyn Fn(usize) -> bool) {
            let zeroes = [0; LABEL_BYTES];
            let (target, bytes): (_, &[u8]) = match update {
                Update::Superblock { offset, bytes } => {
                    let copy = SUPERBLOCK_OFFSETS.iter().position(|o| o == offset).unwrap();
                    (&mut self.superblocks[copy][..], &bytes[..])
                }
                Update::Label { offset, bytes } => (&mut self.label[*offset as usize..], &bytes[..]),
                Update::NoLabel => (&mut self.label[..], &zeroes),
                Update::Flush | Update::Journal => return,
            };
            for (sector, data) in bytes.chunks(512).enumerate().filter(|(s, _)| lands(*s)) {
                target[sector * 512..][..512].copy_from_slice(data);
            }
        }

        fn read(&self) -> Identities {
            let [a, b] = &self.superblocks;
            let label = Label::newest(&self.label).ok();
            Identities { superblock: Superblock::newest(a, b).unwrap(), label }
        }
    }

    fn torn(whole: usize, sector: usize) -> bool {
        match whole {
            0 => false,
            1 => sector.is_multiple_of(2),
            2 => !sector.is_multiple_of(2),
            _ => sector == 0,
        }
    }

    #[test]
    fn a_start_records_the_logical_block_on_both_sides() {
        let mut identities = Identities { superblock: superblock(), label: Some(label()) };
        let recorded = |identities: &Identities| {
            let medium = Medium::new(identities).read();
            (medium.superblock.logical_block, medium.label.unwrap().logical_block)
        };
        for (told, wanted) in [(None, 512), (Some(4096), 4096), (None, 4096), (Some(512), 512)] {
            identities.begin_run(&Starter { logical_block: told, ..starter() }).unwrap();
            assert_eq!(recorded(&identities), (wanted, wanted), "{told:?}");
        }
    }

    /// Crashes at every write of a start and of the next start and of the one after that, each in four ways.
    #[test]
    fn a_pair_starts_whatever_crashes_came_before() {
        let begun = Identities { superblock: superblock(), label: Some(label()) };
        for path in 0..(7 * 4_usize).pow(3) {
            let mut medium = Medium::new(&begun);
            for crash in [path % 28, path / 28 % 28, path / 28 / 28] {
                let updates = medium.read().begin_run(&starter());
                let updates = updates.unwrap_or_else(|e| panic!("path {path}: {e} {:?}", medium.read()));
                let (at, how) = ((crash / 4).min(updates.len() - 1), crash % 4);
                updates[..at].iter().for_each(|u| medium.write(u, &|_| true));
                medium.write(&updates[at], &|sector| torn(how, sector));
            }
            assert!(medium.read().begin_run(&starter()).is_ok(), "path {path}");
        }
    }

    /// The process is killed in a write, which is there, but not durably; the next start reads it, gets so far, and power
    /// fails.
    #[test]
    fn what_a_killed_process_left_is_not_built_upon() {
        let begun = Identities { superblock: superblock(), label: Some(label()) };
        for path in 0..7 * 8_usize {
            let (killed_at, got_to) = (path % 7, path / 7);
            let mut durable = Medium::new(&begun);
            let first = durable.read().begin_run(&starter()).unwrap();
            first.iter().take(killed_at).for_each(|u| durable.write(u, &|_| true));
            let mut seen = durable.clone();
            first.iter().skip(killed_at).take(1).for_each(|u| seen.write(u, &|_| true));
            for update in seen.read().begin_run(&starter()).unwrap().iter().take(got_to) {
                match update {
                    Update::Flush => durable.label.clone_from(&seen.label),
                    write => durable.write(write, &|_| true),
                }
            }
            assert!(durable.read().begin_run(&starter()).is_ok(), "killed at {killed_at}, got to {got_to}");
        }
    }

    /// Starts that crash at any write and starts that do not, in every order: a copy of one side from before a start that
    /// came through never runs with the other side as it is after it.
    #[test]
    fn copies_from_before_a_run_are_refused_after_it() {
        for path in 0..8_usize.pow(4) {
            let mut medium = Medium::new(&Identities { superblock: superblock(), label: Some(label()) });
            // What both sides were, and how many starts had come through.
            let mut instants = vec![(medium.read(), 0)];
            let mut runs = 0;
            for start in 0..4 {
                let updates = medium.read().begin_run(&starter()).unwrap();
                let most = path / 8_usize.pow(start) % 8;
                updates.iter().take(most).for_each(|u| medium.write(u, &|_| true));
                runs += usize::from(most >= updates.len());
                let now = medium.read();
                for (then, before) in instants.iter().filter(|(_, before)| *before < runs) {
                    let (superblock, label) = (then.superblock.clone(), then.label.clone());
                    let older_cache = Identities { superblock, ..now.clone() }.begin_run(&starter());
                    assert!(older_cache.is_err(), "path {path}, start {start}, cache of run {before}");
                    let older_backing = Identities { label, ..now.clone() }.begin_run(&starter());
                    assert!(older_backing.is_err(), "path {path}, start {start}, backing of run {before}");
                }
                instants.push((now, runs));
            }
        }
    }

    #[test]
    fn a_removed_cache_never_comes_back_in_an_older_copy() {
        let mut pair = Identities { superblock: superblock(), label: Some(label()) };
        pair.begin_run(&starter()).unwrap();
        let older = pair.superblock.clone();
        pair.end_run(true, 2);
        let begun = pair.clone();
        let updates = pair.release();
        for at in 0..updates.len() {
            for bits in 0..1_usize << 16 {
                // Every way to tear the erasing, a few for the others.
                if !matches!(updates[at], Update::NoLabel) && bits > 3 {
                    break;
                }
                let mut medium = Medium::new(&begun);
                updates[..at].iter().for_each(|u| medium.write(u, &|_| true));
                medium.write(&updates[at], &|sector| match updates[at] {
                    Update::NoLabel => bits >> sector & 1 == 1,
                    _ => torn(bits, sector),
                });
                if at > 1 {
                    let old = Identities { superblock: older.clone(), ..medium.read() };
                    assert!(old.clone().begin_run(&starter()).is_err(), "update {at}, {bits:#x}");
                }
                if at < 2 {
                    assert!(
                        medium.read().begin_run(&starter()).is_ok()
                            || medium.read().label.is_some_and(|l| l.state == LabelState::Released)
                    );
                }
            }
        }
    }

    #[test]
    fn either_mark_of_a_retired_cache_is_enough() {
        let begun = Identities { superblock: superblock(), label: Some(label()) };
        let updates = Medium::new(&begun).read().retire(2);
        for only in &updates {
            let mut medium = Medium::new(&begun);
            medium.write(only, &|_| true);
            assert_eq!(medium.read().begin_run(&starter()).err(), Some(Refusal::CacheRetired));
        }
    }

    /// Whatever of a new label a crash leaves, it is none or one with which the cache runs; and after it no copy of the cache from before
    /// an earlier run does, nor one from before the run that follows.
    #[test]
    fn a_label_that_is_given_again_refuses_older_copies() {
        let mut pair = Identities { superblock: superblock(), label: Some(label()) };
        let older = pair.superblock.clone();
        pair.begin_run(&starter()).unwrap();
        let copy = pair.superblock.clone();
        let next =
            Label { generation: copy.layout.generation + 1, phase: Phase::Intent, update: 0, ..label() };
        let lost = Identities { superblock: copy.clone(), label: None };
        let updates = Identities { label: Some(next.clone()), ..lost }.label_again();
        for (at, how) in (0..updates.len() * 4).map(|crash| (crash / 4, crash % 4)) {
            let mut medium = Medium::new(&pair);
            medium.label = vec![0; LABEL_BYTES];
            updates[..at].iter().for_each(|u| medium.write(u, &|_| true));
            medium.write(&updates[at], &|sector| torn(how, sector));
            let read = medium.read();
            if read.label.is_none() {
                continue;
            }
            let old = Identities { superblock: older.clone(), ..read.clone() };
            assert!(
                matches!(old.clone().begin_run(&starter()), Err(Refusal::StaleCache { .. })),
                "{at} {how}"
            );
            let mut again = read;
            again.begin_run(&starter()).unwrap();
            let mut old = Identities { superblock: copy.clone(), ..again };
            assert!(old.begin_run(&starter()).is_err(), "a copy of the cache from before the next run");
        }
    }

    #[test]
    fn a_refusal_changes_nothing() {
        let mut pair = Identities { superblock: superblock(), label: Some(label()) };
        pair.superblock.layout.generation -= 1;
        let before = pair.clone();
        assert!(matches!(pair.begin_run(&starter()), Err(Refusal::StaleCache { .. })));
        assert_eq!(pair, before);
    }
}
