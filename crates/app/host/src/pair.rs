//! A cache and its backing, claimed and known to belong together (P6).
//!
//! What they say of each other and in which order that changes is decided in [`forebay_format::identities`]; here it is
//! read from the devices and written to them.

use forebay_block::DeviceOp;
use forebay_device::{Access, Clock, Device, DeviceInfo, DeviceSpec, Ring, open};
use forebay_engine::Role;
use forebay_format::checksum;
use forebay_format::identities::{Identities, Starter, Update};
use forebay_format::journal::{Group, Head};
use forebay_format::label::{Label, LabelState};
use forebay_format::logical_block::LOGICAL_BLOCK_MAX;
use forebay_format::pairing::{Refusal, decide};
use forebay_format::replay::Replay;

use crate::error::HostError;
use crate::identity::{fingerprint, host_id, host_name, wall_ns};
use crate::journal::{Journal, JournalChoice};
use crate::label::{BusyWrite, LabelPlace, SideWrite};
use crate::superblocks::Bench;

/// Refuses a backing whose blocks are larger than those of a log: none of them could be written.
pub(crate) fn check_blocks(backing: &DeviceInfo) -> Result<(), HostError> {
    if backing.logical_block <= LOGICAL_BLOCK_MAX {
        return Ok(());
    }
    Err(HostError::BackingBlocks { backing: backing.name.clone(), logical_block: backing.logical_block })
}

/// Refuses a volume that ends within a block of its backing or of its own: that block could never be written.
pub(crate) fn check_end(
    backing: &DeviceInfo,
    volume_bytes: u64,
    logical_block: u32,
) -> Result<(), HostError> {
    let block = logical_block.max(backing.logical_block);
    if volume_bytes.is_multiple_of(block.into()) {
        return Ok(());
    }
    Err(HostError::VolumeEnd { backing: backing.name.clone(), volume_bytes, block })
}

/// Puts decorators around the devices of a volume.
pub(crate) type Decorate<'a> = &'a mut dyn FnMut(Role, Box<dyn Device>) -> Box<dyn Device>;

/// Where the devices of a volume are.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    /// The cache.
    pub(crate) cache: DeviceSpec,
    /// The backing.
    pub(crate) backing: DeviceSpec,
    /// The journal.
    pub(crate) journal: JournalChoice,
    /// The logical block that the volume is to have from the next run on; `None` leaves it as it is.
    pub(crate) logical_block: Option<u32>,
}

/// See the module's documentation.
pub(crate) struct Pair {
    pub(crate) cache: Box<dyn Device>,
    pub(crate) backing: Box<dyn Device>,
    pub(crate) identities: Identities,
    pub(crate) journal: Option<Journal>,
    /// The head with which this run begins its journal.
    pub(crate) head: Option<Head>,
    /// The group that is prepared according to it.
    pub(crate) prepared: Option<Group>,
    /// The last run had a journal, and this one has none.
    pub(crate) journal_left: bool,
    /// Why this run has no journal although there is a place for one.
    pub(crate) without_journal: Option<String>,
    /// The consistency group that this run is a member of: its names, and which of the members this is.
    pub(crate) member: Option<(String, u32)>,
    /// The logical block that the volume is to have from this run on, if another one.
    logical_block: Option<u32>,
    choice: JournalChoice,
    place: LabelPlace,
    /// The backing was made by `format`, with room behind its volume: when the cache is removed, the label stays and says how large the
    /// volume is.
    is_made: bool,
    names: (String, String),
}

/// Says what `cache` is not, and what it should be as the label of its backing has it.
fn not_a_cache(cache: String, bench: &Bench<'_>, backing: &mut dyn Device, spec: &DeviceSpec) -> HostError {
    match LabelPlace::find(bench, backing, spec.path()) {
        Ok(Some((_, label))) if label.state == LabelState::Paired => {
            HostError::CacheLost { cache, backing: spec.to_string(), was: label.cache_name }
        }
        // What is not to be found out changes nothing about the cache.
        _ => HostError::NotACache { cache },
    }
}

impl Pair {
    /// Claims both devices and reads who they are. Nothing is written and nothing decided yet.
    pub(crate) fn open(
        ring: &Ring,
        clock: &Clock,
        places: &Places,
        access: Access,
        mut decorate: Option<Decorate<'_>>,
    ) -> Result<Self, HostError> {
        if !checksum::self_test() {
            return Err(HostError::Checksum);
        }
        let mut opened = |role, spec: &DeviceSpec| {
            let device = open(spec, ring, access)?;
            Ok::<_, HostError>(match &mut decorate {
                Some(decorate) => decorate(role, device),
                None => device,
            })
        };
        let mut cache = opened(Role::Cache, &places.cache)?;
        let mut backing = opened(Role::Backing, &places.backing)?;
        let bench = Bench { ring, clock };
        let superblock = match bench.superblock(&mut *cache) {
            Err(HostError::NotACache { cache }) => {
                return Err(not_a_cache(cache, &bench, &mut *backing, &places.backing));
            }
            found => found?,
        };
        let place = match superblock.has_label {
            true => LabelPlace::of(&*backing, places.backing.path(), superblock.volume_bytes),
            false => LabelPlace::Nowhere,
        };
        let label = place.read(&bench, &mut *backing)?;
        let names = (places.cache.to_string(), places.backing.to_string());
        let identities = Identities { superblock, label };
        identities.hold_rules().map_err(|error| HostError::Damaged {
            what: format!("the superblock of {} or the label of {}", names.0, names.1),
            error,
        })?;
        let logical_block = places.logical_block;
        let (journal, head, prepared, member, choice) = (None, None, None, None, places.journal.clone());
        let journal_left = false;
        let pair = Self {
            cache,
            backing,
            identities,
            journal,
            head,
            prepared,
            journal_left,
            without_journal: None,
            member,
            logical_block,
            choice,
            place,
            is_made: places.backing.remote().is_some_and(|spec| spec.is_made()),
            names,
        };
        pair.check_fingerprint(places)?;
        let (found_bytes, wanted_bytes) =
            (pair.backing.info().size_bytes, pair.identities.superblock.volume_bytes);
        if found_bytes < wanted_bytes {
            let backing = pair.names.1;
            return Err(HostError::BackingTruncated { backing, found_bytes, wanted_bytes });
        }
        check_blocks(pair.backing.info())?;
        let wanted_block = logical_block.unwrap_or(pair.identities.superblock.logical_block);
        check_end(pair.backing.info(), wanted_bytes, wanted_block)?;
        Ok(pair)
    }

    fn refused(&self, refusal: Refusal) -> HostError {
        let (cache, backing) = self.names.clone();
        HostError::Pairing { cache, backing, refusal }
    }

    /// A backing without a label is known by its fingerprint alone.
    fn check_fingerprint(&self, places: &Places) -> Result<(), HostError> {
        let superblock = &self.identities.superblock;
        if superblock.has_label {
            return Ok(());
        }
        let found = fingerprint(places.backing.path(), self.backing.info().size_bytes);
        if found == superblock.fingerprint {
            return Ok(());
        }
        let backing_name = format!("{}, {}", superblock.backing_name, superblock.fingerprint);
        Err(self.refused(Refusal::ForeignBacking { backing_name }))
    }

    /// Decides whether the two may run together; returns the next run's generation.
    pub(crate) fn decide(&self, takeover: bool) -> Result<u64, HostError> {
        let Identities { superblock, label } = &self.identities;
        decide(superblock, label.as_ref(), &host_id(), takeover).map_err(|r| self.refused(r))
    }

    /// Opens the journal for the run `generation`, and applies what a crash has left in it. The pair has been decided to be one.
    fn begin_journal(
        &mut self,
        bench: &Bench<'_>,
        places: &Places,
        (generation, access): (u64, Access),
        mut decorate: Option<Decorate<'_>>,
    ) -> Result<(), HostError> {
        let superblock = &self.identities.superblock;
        let (volume_bytes, segment_bytes) = (superblock.volume_bytes, superblock.layout.segment_bytes.into());
        let backing = (&*self.backing, &places.backing, volume_bytes);
        let journal =
            Journal::open(bench, &self.choice, backing, segment_bytes, (access, true), &mut decorate)?;
        let Some(mut journal) = journal else { return Ok(()) };
        let mut found = journal.head(bench, &mut *self.backing)?;
        if let Some(head) = found.take() {
            journal.check_owner(&head, &self.identities)?;
            let label = self.identities.label.as_ref();
            journal.hold_rules(&head, label)?;
            found = Some(journal.replay(bench, &mut *self.backing, label, head)?.0);
        }
        let mut head = Head::for_run(found.as_ref(), &self.identities, generation, journal.ring_bytes);
        if head.has_prepared() {
            let mut check = Replay::of_prepared(&head);
            journal.carry_out(bench, &mut *self.backing, &mut check)?;
            self.prepared = check.checked();
        } else if let Some((names, member)) = &self.member {
            // From here on nobody takes it for a volume of its own; points that it has shared with others are none of these.
            head.common.join(names, *member);
        }
        if let Some(found) = &found {
            journal.recognize_by(&[found, &head]);
        }
        self.head = Some(head);
        self.journal = Some(journal);
        Ok(())
    }

    /// Looks at the pair without beginning a run: neither device is written to, nor told to be, until it is closed. Returns the
    /// generation that the next run would have, and whether the last one had stopped cleanly.
    pub(crate) fn look(&mut self, takeover: bool) -> Result<(u64, bool), HostError> {
        let generation = self.decide(takeover)?;
        if let Some(label) = &self.identities.label {
            self.backing.recognize_by(self.place.sign(vec![label.clone()]));
            // What is in the journal and not in its place yet is in the log, too.
            self.journal_left = label.journal_run > 0;
        }
        Ok((generation, self.identities.superblock.clean_stop))
    }

    /// Begins the next run durably. Returns whether the last one had stopped cleanly.
    pub(crate) fn begin_run(
        &mut self,
        bench: &Bench<'_>,
        places: &Places,
        takeover: bool,
        journal_is_wanted: bool,
        decorate: Option<Decorate<'_>>,
    ) -> Result<bool, HostError> {
        let generation = self.decide(takeover)?;
        if let Some(label) = &self.identities.label {
            let begun = Label { generation, ..label.clone() };
            self.backing.recognize_by(self.place.sign(vec![label.clone(), begun]));
        }
        // Who does not ask for a journal is served without one if there can be none; the label says so, and the log has it all.
        let begun = self.begin_journal(bench, places, (generation, Access::to_write(takeover)), decorate);
        let begun = begun.and_then(|()| {
            self.journal.as_mut().map_or(Ok(()), |journal| journal.find_room(bench, journal_is_wanted))
        });
        if let Err(error) = begun {
            // What is prepared is the other members' business, too.
            if journal_is_wanted || self.choice != JournalChoice::Auto || self.prepared.is_some() {
                return Err(error);
            }
            (self.journal, self.head) = (None, None);
            self.without_journal = Some(error.to_string());
        }
        let had_one = self.identities.label.as_ref().is_some_and(|label| label.journal_run > 0);
        self.journal_left = had_one && self.journal.is_none();
        let clean_stop = self.identities.superblock.clean_stop;
        let starter = Starter {
            host_id: host_id(),
            host_name: host_name(),
            cache_name: self.names.0.clone(),
            time_ns: wall_ns(),
            takeover,
            journal: self.journal.is_some(),
            logical_block: self.logical_block,
        };
        let begun = self.identities.begin_run(&starter);
        let updates = begun.map_err(|refusal| self.refused(refusal))?;
        self.carry_out(bench, &updates)?;
        if let Some(label) = &self.identities.label {
            self.backing.recognize_by(self.place.sign(vec![label.clone()]));
        }
        if let (Some(journal), Some(head)) = (&mut self.journal, &self.head) {
            journal.recognize_by(&[head]);
        }
        Ok(clean_stop)
    }

    /// Says on both sides that the run is over; `clean` if the log ends with its own clean-stop mark.
    pub(crate) fn end_run(&mut self, bench: &Bench<'_>, clean: bool) -> Result<(), HostError> {
        let updates = self.identities.end_run(clean, wall_ns());
        let results = updates.iter().map(|update| self.carry_out(bench, std::slice::from_ref(update)));
        // One side that cannot be told is no reason not to tell the other.
        let results: Vec<_> = results.collect();
        results.into_iter().collect()
    }

    /// Removes the cache for good: afterwards the backing needs no Forebay. The backing must have everything.
    pub(crate) fn release(&mut self, bench: &Bench<'_>) -> Result<(), HostError> {
        let mut updates = self.identities.release();
        if self.is_made {
            updates.retain(|update| !matches!(update, Update::NoLabel));
        }
        self.carry_out(bench, &updates)
    }

    /// What is to be written to make the log void although the cache has failed (P9): operations, one after the other, and the label
    /// if it lies in a side file. It is enough if one place gets it.
    pub(crate) fn retire(&mut self) -> (Vec<(Role, DeviceOp)>, Option<SideWrite>) {
        let (mut steps, mut apart) = (Vec::new(), None);
        for update in self.identities.retire(wall_ns()) {
            match update {
                Update::Superblock { offset, bytes } => {
                    let bufs = vec![bytes];
                    steps.push((Role::Cache, DeviceOp::Write { offset, bufs, durable: true }));
                }
                Update::Label { offset, bytes } => {
                    match self.place.write_while_busy(&mut *self.backing, offset, bytes) {
                        BusyWrite::Op(op) => steps.push((Role::Backing, op)),
                        BusyWrite::Apart(write) => apart = Some(write),
                        BusyWrite::Nothing => {}
                    }
                }
                Update::NoLabel | Update::Flush | Update::Journal => {}
            }
        }
        (steps, apart)
    }

    /// Writes one update after the other, until one fails.
    fn carry_out(&mut self, bench: &Bench<'_>, updates: &[Update]) -> Result<(), HostError> {
        updates.iter().try_for_each(|update| match (update, &mut self.journal, &self.head) {
            (Update::Journal, Some(journal), Some(head)) => {
                journal.write_head(bench, &mut *self.backing, head)
            }
            _ => carry_out(
                std::slice::from_ref(update),
                bench,
                &mut *self.cache,
                &mut *self.backing,
                &self.place,
            ),
        })
    }
}

/// Writes one update after the other, until one fails.
pub(crate) fn carry_out(
    updates: &[Update],
    bench: &Bench<'_>,
    cache: &mut dyn Device,
    backing: &mut dyn Device,
    place: &LabelPlace,
) -> Result<(), HostError> {
    updates.iter().try_for_each(|update| match update {
        Update::Superblock { offset, bytes } => bench.write(cache, *offset, bytes.clone()),
        Update::Flush => {
            bench.run(backing, "flushing", DeviceOp::Flush)?;
            place.carry_out(bench, backing, update)
        }
        Update::Label { .. } | Update::NoLabel | Update::Journal => place.carry_out(bench, backing, update),
    })
}
