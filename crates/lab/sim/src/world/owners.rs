//! Who belongs to whom (P6): the host's part of a start, a stop and a retirement, and what happens to devices between the
//! lives. What is decided and written, and in which order, is production code; the bytes lie on the simulated devices, and
//! each write of them is a step at which a crash may come.

use forebay_block::Buf;
use forebay_engine::{Params, Role};
use forebay_format::identities::{Identities, Starter, Update};
use forebay_format::journal::Head;
use forebay_format::label::{LABEL_BYTES, Label, LabelState, Phase};
use forebay_format::pairing::Refusal;
use forebay_format::superblock::{CacheState, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock};
use forebay_format::{FormatError, Layout};

use super::World;
use crate::plan::{End, Round};
use crate::violation::{Interrupt, broken};

/// The host that all lives run on.
const HOST: [u8; 16] = [0x40; 16];
/// One that takes a backing over.
pub(super) const OTHER_HOST: [u8; 16] = [0x41; 16];
/// Wall-clock time of the world's beginning, nanoseconds since 1970.
const EPOCH_NS: u64 = 1_700_000_000_000_000_000;
/// From one run to the next, nanoseconds.
const RUN_NS: u64 = 1_000_000_000_000;

/// The production code that decides; the simulator's tests plant bugs in its place.
#[derive(Clone, Copy)]
pub struct Protocol {
    /// As [`Identities::pair`].
    pub pair: fn(&mut Identities) -> Vec<Update>,
    /// As [`Identities::begin_run`].
    pub begin_run: fn(&mut Identities, &Starter) -> Result<Vec<Update>, Refusal>,
    /// As [`Identities::retire`].
    pub retire: fn(&mut Identities, u64) -> Vec<Update>,
    /// As [`Identities::release`].
    pub release: fn(&mut Identities) -> Vec<Update>,
}

impl Default for Protocol {
    fn default() -> Self {
        Self {
            pair: Identities::pair,
            begin_run: Identities::begin_run,
            retire: Identities::retire,
            release: Identities::release,
        }
    }
}

/// Whether the log has been retired (P9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Retirement {
    /// No.
    #[default]
    None,
    /// The engine asked for it: it may be void from here on, and the backing has everything.
    Asked,
    /// The engine was told that it is done.
    Done,
}

/// What the two devices said of each other when a round had ended.
#[derive(Clone)]
pub struct Image {
    pub(super) identities: Identities,
    /// [`World::runs`] then.
    pub(super) runs: u64,
}

fn unreadable(what: &str, error: &FormatError) -> Interrupt {
    broken("P6", format!("the {what} cannot be read any more: {error}"))
}

impl World {
    /// Byte offset of the label on the backing: behind the volume's end.
    pub(super) fn label_offset(&self) -> u64 {
        self.shape.volume_bytes.next_multiple_of(4096)
    }

    pub(super) fn starter(&self) -> Starter {
        Starter {
            host_id: HOST,
            host_name: "simulated".to_owned(),
            cache_name: "cache".to_owned(),
            time_ns: EPOCH_NS + self.runs * RUN_NS,
            takeover: false,
            journal: self.shape.journal_bytes > 0,
            logical_block: None,
        }
    }

    /// The superblock that a reader of the cache believes.
    pub(crate) fn superblock(&self) -> Result<Superblock, FormatError> {
        let [a, b] = SUPERBLOCK_OFFSETS.map(|at| self.cache.media.read(at, SUPERBLOCK_BYTES));
        Superblock::newest(a, b)
    }

    /// What the devices durably say of each other: a copy of what is only volatile is none of a device that was there.
    fn durable_identities(&self) -> Result<Identities, FormatError> {
        let [a, b] = SUPERBLOCK_OFFSETS.map(|at| self.cache.media.read_durable(at, SUPERBLOCK_BYTES));
        let label = Label::newest(self.backing.media.read_durable(self.label_offset(), LABEL_BYTES));
        Ok(Identities { superblock: Superblock::newest(a, b)?, label: label.ok() })
    }

    /// The label that a reader of the backing believes.
    pub(super) fn label(&self) -> Result<Option<Label>, FormatError> {
        match Label::newest(self.backing.media.read(self.label_offset(), LABEL_BYTES)) {
            Ok(label) => Ok(Some(label)),
            Err(FormatError::Magic) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// What the devices say of each other.
    pub(super) fn identities(&self) -> Result<Identities, Interrupt> {
        let superblock = self.superblock().map_err(|e| unreadable("superblock", &e))?;
        let label = self.label().map_err(|e| unreadable("label", &e))?;
        Ok(Identities { superblock, label })
    }

    /// Makes the updates durable one after the other; a crash comes during the one numbered `crash_at`, from 1, which may
    /// land in part then.
    pub(super) fn carry_out(&mut self, updates: &[Update], crash_at: Option<u64>) -> Result<(), Interrupt> {
        for (update, number) in updates.iter().zip(1..) {
            self.steps += 1;
            let crashes = crash_at == Some(number);
            let Some((role, offset, bytes)) = self.place_of(update) else {
                if crashes {
                    return Err(Interrupt::Crash);
                }
                self.backing.media.flush(self.backing.media.flush_mark());
                continue;
            };
            let moment = (forebay_block::Nanos(0), number);
            self.trace.note(moment, &[10, role as u64, offset, u64::from(crashes)], || {
                let how = if crashes { "a crash during the" } else { "the" };
                (format!("host: {how} write of {}", words_of(update)), Vec::new())
            });
            self.trace.data(&bytes);
            let steps = self.steps;
            let device = self.device(role);
            if crashes {
                device.begin_alone(offset, bytes, steps);
                return Err(Interrupt::Crash);
            }
            device.write_alone(offset, bytes);
        }
        Ok(())
    }

    /// `None` for a flush.
    fn place_of(&self, update: &Update) -> Option<(Role, u64, Buf)> {
        Some(match update {
            Update::Flush => return None,
            Update::Superblock { offset, bytes } => (Role::Cache, *offset, bytes.clone()),
            Update::Label { offset, bytes } => (Role::Backing, self.label_offset() + offset, bytes.clone()),
            Update::NoLabel => (Role::Backing, self.label_offset(), Buf::zeroed(LABEL_BYTES)),
            Update::Journal => {
                let head = self.next_head.as_ref()?;
                (Role::Journal, self.journal_offset() + Head::copy_offset(head.update), head.encode())
            }
        })
    }

    /// Makes a new cache on the cache device and pairs it with the backing, as `forebay format --force` does. What lies in
    /// the segments stays there.
    pub(super) fn form_pair(&mut self, crash_at: Option<u64>) -> Result<(), Interrupt> {
        self.pairs += 1;
        self.consistency.points.part();
        self.forget_log();
        if self.superblock() != Err(FormatError::Magic) {
            let write = |at| self.cache.write_alone(at, Buf::zeroed(SUPERBLOCK_BYTES));
            SUPERBLOCK_OFFSETS.into_iter().for_each(write);
        }
        let mut cache_id = [0x5a; 16];
        let mut backing_id = [0xb5; 16];
        cache_id[8..].copy_from_slice(&self.pairs.to_le_bytes());
        backing_id[8..].copy_from_slice(&self.pairs.to_le_bytes());
        let s = self.shape;
        let layout = Layout {
            cache_id,
            generation: 0,
            align: s.align,
            segment_bytes: s.segment_bytes,
            segment_count: s.segment_count,
        };
        let superblock = Superblock {
            update: 0,
            layout,
            backing_id,
            volume_bytes: s.volume_bytes,
            logical_block: 512,
            state: CacheState::Paired,
            clean_stop: true,
            has_label: true,
            created_ns: EPOCH_NS,
            backing_name: "backing".to_owned(),
            fingerprint: String::new(),
        };
        let label = Label {
            update: self.label().ok().flatten().map_or(0, |l| l.update),
            backing_id,
            cache_id,
            generation: 0,
            phase: Phase::Committed,
            state: LabelState::Paired,
            in_use: false,
            volume_bytes: s.volume_bytes,
            logical_block: 512,
            time_ns: EPOCH_NS,
            host_id: HOST,
            host_name: "simulated".to_owned(),
            cache_name: "cache".to_owned(),
            journal_run: 0,
        };
        let mut identities = Identities { superblock, label: Some(label) };
        let updates = (self.protocol.pair)(&mut identities);
        self.carry_out(&updates, crash_at)?;
        self.layout = layout;
        self.runs += 1;
        Ok(())
    }

    /// What the host does at a start, and hands to the engine.
    ///
    /// # Errors
    /// A crash in it; a pair that is refused although it is one; a retired log that is accepted, or without which the
    /// backing lacks something.
    pub fn start(&mut self, round: &Round) -> Result<Params, Interrupt> {
        let crash_at = match round.end {
            End::CrashInStart { write, .. } => Some(write),
            _ => None,
        };
        let mut identities = self.identities()?;
        let mut clean_stop = identities.superblock.clean_stop;
        let crash_at = self.replay(&identities, crash_at)?;
        let mut begun = (self.protocol.begin_run)(&mut identities, &self.starter());
        if matches!(begun, Err(Refusal::CacheRetired)) && self.retirement != Retirement::None {
            self.check_backing()?;
            self.consistency.is_complete();
            // A new cache on the same device: what lies there is foreign to it.
            self.form_pair(None)?;
            identities = self.identities()?;
            self.replay(&identities, None)?;
            clean_stop = identities.superblock.clean_stop;
            begun = (self.protocol.begin_run)(&mut identities, &self.starter());
        } else if begun.is_ok() && self.retirement == Retirement::Done {
            return Err(broken("P6", "a cache starts that was retired"));
        }
        let updates = begun.map_err(|refusal| broken("P6", format!("a pair is refused: {refusal}")))?;
        self.carry_out(&updates, crash_at)?;
        if crash_at.is_some() {
            // Fewer writes than that: the crash comes before the log is read.
            return Err(Interrupt::Crash);
        }
        self.runs += 1;
        self.destaged = false;
        self.layout = identities.superblock.layout;
        self.identities = Some(identities);
        self.cache.layout = Some(self.layout);
        self.cache.start_round(&round.faults, round.schedule);
        self.storage().for_each(|device| device.start_round(&round.faults, round.schedule));
        self.stats.starts += 1;
        Ok(Params {
            layout: self.layout,
            volume_bytes: self.shape.volume_bytes,
            settings: round.settings,
            wall_offset_ns: EPOCH_NS + self.layout.generation * RUN_NS,
            clean_stop,
            journal: self.next_head.take(),
            prepared: self.next_prepared.take(),
            commits_in_place: self.shape.commits_in_place,
            journal_left: false,
            backing_depth: round.backing_depth,
            backing_unit_bytes: None,
            backing_forgets: false,
            read_only: false,
        })
    }

    /// The host's last words after a stop that came to its end.
    ///
    /// # Errors
    /// The crash.
    pub fn end_run(&mut self, crash_at: Option<u64>) -> Result<(), Interrupt> {
        let Some(mut identities) = self.identities.take() else { return Ok(()) };
        let updates = identities.end_run(true, self.starter().time_ns);
        self.carry_out(&updates, crash_at)
    }

    /// The engine wants its log retired. Errors of the devices hit these writes as any other; it is done if one of them
    /// gets through.
    pub fn retire(&mut self) -> bool {
        let written = self.retirement_updates().iter().fold(false, |done, update| {
            let Some((role, offset, bytes)) = self.place_of(update) else { return done };
            self.device(role).write_with_faults(offset, bytes).is_ok() || done
        });
        if written {
            self.retirement = Retirement::Done;
            self.stats.retired += 1;
        }
        written
    }

    /// The process ends while its log is being retired: the first `done` writes are there, and the next may be.
    pub fn leave_retirement(&mut self, done: u64) {
        let updates = self.retirement_updates();
        // The crash itself is the caller's.
        let _ = self.carry_out(&updates, Some(done + 1));
    }

    fn retirement_updates(&mut self) -> Vec<Update> {
        let time_ns = self.starter().time_ns;
        self.identities.as_mut().map(|i| (self.protocol.retire)(i, time_ns)).unwrap_or_default()
    }

    /// Remembers what the devices say of each other, if anything of the plan comes back to it.
    pub fn keep_image(&mut self) {
        if self.keeps_images
            && let Ok(identities) = self.durable_identities()
        {
            self.images.push(Image { identities, runs: self.runs });
        }
    }

    /// What must be refused is, and changes nothing.
    pub(super) fn expect_refusal(&mut self, identities: &Identities, what: &str) -> Result<(), Interrupt> {
        let mut tried = identities.clone();
        match (self.protocol.begin_run)(&mut tried, &self.starter()) {
            Ok(_) => Err(broken("P6", format!("{what} is accepted"))),
            Err(_) if tried != *identities => {
                Err(broken("P6", format!("{what} is refused, but not left alone")))
            }
            Err(_) => {
                self.stats.pairs_refused += 1;
                Ok(())
            }
        }
    }
}

fn words_of(update: &Update) -> String {
    match update {
        Update::Superblock { offset, bytes } => {
            let said = Superblock::decode(&bytes[..]);
            let words =
                said.map(|s| format!("run {}, {:?}, clean {}", s.layout.generation, s.state, s.clean_stop));
            format!("the superblock at {offset}: {}", words.unwrap_or_default())
        }
        Update::Label { offset, bytes } => {
            let said = Label::decode(&bytes[..]);
            let words = said.map(|l| format!("run {}, {:?}, {:?}", l.generation, l.phase, l.state));
            format!("the label at {offset}: {}", words.unwrap_or_default())
        }
        Update::NoLabel => "no label".to_owned(),
        Update::Flush => "nothing".to_owned(),
        Update::Journal => "the head of the journal".to_owned(),
    }
}
