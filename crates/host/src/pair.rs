//! A cache and its backing, claimed and known to belong together (P6).
//!
//! A run begins in three durable steps, so that whatever instant a crash picks, a stale copy of either side is told
//! from a crash; the table is in [`forebay_format::pairing`]:
//!
//! ```text
//!   label: intent g+1 ──► superblock: g+1 ──► label: committed g+1 ──► recovery, service
//! ```

use forebay_block::DeviceOp;
use forebay_device::{Clock, Device, DeviceSpec, Ring, open};
use forebay_engine::Role;
use forebay_format::checksum;
use forebay_format::label::{Label, LabelState, Phase};
use forebay_format::pairing::{Refusal, decide};
use forebay_format::superblock::{CacheState, SUPERBLOCK_OFFSETS, Superblock};

use crate::error::HostError;
use crate::identity::{fingerprint, host_id, host_name, wall_ns};
use crate::label::LabelPlace;
use crate::superblocks::Bench;

/// Puts decorators around the devices of a volume.
pub(crate) type Decorate<'a> = &'a mut dyn FnMut(Role, Box<dyn Device>) -> Box<dyn Device>;

/// Where the devices of a volume are.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    /// The cache.
    pub(crate) cache: DeviceSpec,
    /// The backing.
    pub(crate) backing: DeviceSpec,
}

/// See the module's documentation.
pub(crate) struct Pair {
    pub(crate) cache: Box<dyn Device>,
    pub(crate) backing: Box<dyn Device>,
    pub(crate) superblock: Superblock,
    pub(crate) label: Option<Label>,
    pub(crate) place: LabelPlace,
    names: (String, String),
}

impl Pair {
    /// Claims both devices and reads who they are. Nothing is written and nothing decided yet.
    pub(crate) fn open(
        ring: &Ring,
        clock: &Clock,
        places: &Places,
        mut decorate: Option<Decorate<'_>>,
    ) -> Result<Self, HostError> {
        if !checksum::self_test() {
            return Err(HostError::Checksum);
        }
        let mut opened = |role, spec| {
            let device = open(spec, ring)?;
            Ok::<_, HostError>(match &mut decorate {
                Some(decorate) => decorate(role, device),
                None => device,
            })
        };
        let mut cache = opened(Role::Cache, &places.cache)?;
        let mut backing = opened(Role::Backing, &places.backing)?;
        let bench = Bench { ring, clock };
        let superblock = bench.superblock(&mut *cache)?;
        let place = match superblock.has_label {
            true => LabelPlace::of(&*backing, places.backing.path(), superblock.volume_bytes),
            false => LabelPlace::Nowhere,
        };
        let label = place.read(&bench, &mut *backing)?;
        let names = (places.cache.to_string(), places.backing.to_string());
        let pair = Self { cache, backing, superblock, label, place, names };
        pair.check_fingerprint(places)?;
        let (found_bytes, wanted_bytes) = (pair.backing.info().size_bytes, pair.superblock.volume_bytes);
        if found_bytes < wanted_bytes {
            let backing = pair.names.1;
            return Err(HostError::BackingTruncated { backing, found_bytes, wanted_bytes });
        }
        Ok(pair)
    }

    fn refused(&self, refusal: Refusal) -> HostError {
        let (cache, backing) = self.names.clone();
        HostError::Pairing { cache, backing, refusal }
    }

    /// A backing without a label is known by its fingerprint alone.
    fn check_fingerprint(&self, places: &Places) -> Result<(), HostError> {
        if self.superblock.has_label {
            return Ok(());
        }
        let found = fingerprint(places.backing.path(), self.backing.info().size_bytes);
        if found == self.superblock.fingerprint {
            return Ok(());
        }
        let backing_name = format!("{}, {}", self.superblock.backing_name, self.superblock.fingerprint);
        Err(self.refused(Refusal::ForeignBacking { backing_name }))
    }

    /// Decides whether the two may run together; the number of the run that would be next.
    pub(crate) fn decide(&self, takeover: bool) -> Result<u64, HostError> {
        decide(&self.superblock, self.label.as_ref(), &host_id(), takeover).map_err(|r| self.refused(r))
    }

    /// Begins the next run durably. Returns whether the last one had stopped cleanly.
    pub(crate) fn begin_run(&mut self, bench: &Bench<'_>, takeover: bool) -> Result<bool, HostError> {
        let next = self.decide(takeover)?;
        let clean_stop = self.superblock.clean_stop;
        if let Some(label) = &mut self.label {
            label.generation = next;
            label.phase = Phase::Intent;
            label.in_use = true;
            label.time_ns = wall_ns();
            label.host_id = host_id();
            label.host_name = host_name();
            label.cache_name = self.names.0.clone();
        }
        self.write_label(bench)?;
        self.superblock.layout.generation = next;
        self.superblock.clean_stop = false;
        bench.write_superblock(&mut *self.cache, &mut self.superblock)?;
        if let Some(label) = &mut self.label {
            label.phase = Phase::Committed;
        }
        self.write_label(bench)?;
        Ok(clean_stop)
    }

    /// Says on both sides that the run is over; `clean` if the log ends with its own clean-stop mark.
    pub(crate) fn end_run(&mut self, bench: &Bench<'_>, clean: bool) -> Result<(), HostError> {
        // A retired cache has failed: its superblock is not touched again, and needs no mark.
        let marked = match self.superblock.state == CacheState::Paired && clean {
            true => {
                self.superblock.clean_stop = true;
                bench.write_superblock(&mut *self.cache, &mut self.superblock)
            }
            false => Ok(()),
        };
        if let Some(label) = &mut self.label {
            label.in_use = false;
            label.time_ns = wall_ns();
        }
        let labelled = self.write_label(bench);
        marked.and(labelled)
    }

    /// Removes the cache for good: afterwards the backing needs no Forebay. The backing must have everything.
    pub(crate) fn release(&mut self, bench: &Bench<'_>) -> Result<(), HostError> {
        if let Some(label) = &mut self.label {
            label.state = LabelState::Released;
            label.in_use = false;
        }
        self.write_label(bench)?;
        self.superblock.state = CacheState::Released;
        bench.write_superblock(&mut *self.cache, &mut self.superblock)?;
        // From here on the cache itself says that it is void, and the label has served its purpose.
        match self.label.take() {
            Some(_) => self.place.erase(bench, &mut *self.backing),
            None => Ok(()),
        }
    }

    /// What is to be written, one after the other, to make the log void although the cache has failed (P9). A label in
    /// a side file is written at once; `true` says that this has been done.
    pub(crate) fn retire(&mut self) -> (bool, Vec<(Role, DeviceOp)>) {
        let mut steps = Vec::new();
        let mut written = false;
        if let Some(label) = &mut self.label {
            label.state = LabelState::Retired;
            label.time_ns = wall_ns();
            match self.place.write_while_busy(&mut *self.backing, label) {
                Ok(Some(op)) => steps.push((Role::Backing, op)),
                Ok(None) => written = true,
                // The superblock may still work; if not, the engine is told that nothing did.
                Err(_) => {}
            }
        }
        self.superblock.state = CacheState::Retired;
        self.superblock.update += 1;
        let bytes = forebay_block::Buf::copy_of(&self.superblock.encode());
        for offset in SUPERBLOCK_OFFSETS {
            steps.push((Role::Cache, DeviceOp::Write { offset, bufs: vec![bytes.clone()], durable: true }));
        }
        (written, steps)
    }

    fn write_label(&mut self, bench: &Bench<'_>) -> Result<(), HostError> {
        match &mut self.label {
            Some(label) => self.place.write(bench, &mut *self.backing, label),
            None => Ok(()),
        }
    }
}
