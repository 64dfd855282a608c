//! A backing whose label was lost or is damaged: what the cache and the journal know of it, and a new label if the user says so.
//!
//! The label says which cache was the last to run with the backing, and so that no other one has. Without it nobody can know: that is
//! what the user vouches for. Everything that can be checked is.

use std::fmt;

use forebay_device::{Access, Clock, Device, DeviceSpec, Ring, open};
use forebay_format::identities::Identities;
use forebay_format::journal::Head;
use forebay_format::label::{Label, LabelState, Phase};
use forebay_format::pairing::{Refusal, decide};
use forebay_format::superblock::{CacheState, Superblock};

use crate::error::{CacheContent, HostError};
use crate::format::cache_content;
use crate::identity::{host_id, host_name, wall_ns};
use crate::journal::{Journal, JournalChoice};
use crate::label::LabelPlace;
use crate::pair::carry_out;
use crate::superblocks::Bench;

/// What `forebay pair` is asked for.
#[derive(Clone, Debug)]
pub struct PairOptions {
    /// The cache.
    pub cache: DeviceSpec,
    /// The backing whose label is gone.
    pub backing: DeviceSpec,
    /// Where the journal of the last run lies.
    pub journal: JournalChoice,
    /// The user vouches that the backing has run with no other cache, and not without one, since.
    pub label_is_lost: bool,
}

/// What is known of a cache and a backing without a label.
#[derive(Clone, Debug)]
pub struct PairedAgain {
    /// The backing, as given.
    pub backing: String,
    /// The cache, as given.
    pub cache: String,
    /// The last run of the cache.
    pub generation: u64,
    /// It ended cleanly.
    pub clean_stop: bool,
    /// What is in the cache.
    pub content: CacheContent,
    /// Where the backing was when the two were paired first.
    pub backing_name: String,
    /// That is where it is now.
    pub is_in_place: bool,
    /// The journal beside the backing is of this cache's last run: the backing is the right one, and was run last with this cache.
    pub journal_agrees: bool,
    /// Where the label goes, or has gone.
    pub label: LabelPlace,
}

impl fmt::Display for PairedAgain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ended = if self.clean_stop { "ended cleanly" } else { "was cut off" };
        write!(
            f,
            "{} is a cache after its run {}, which {ended}, {}",
            self.cache, self.generation, self.content
        )?;
        match self.is_in_place {
            true => write!(f, "; {} is where its backing was", self.backing)?,
            false => write!(f, "; its backing was {}", self.backing_name)?,
        }
        match self.journal_agrees {
            true => write!(f, ", and the journal there is of that very run"),
            false => write!(f, ", and no journal of that run is there to confirm it"),
        }
    }
}

/// Looks at a cache and a backing without a label, and gives the backing a new one if the user vouches for it.
///
/// # Errors
/// [`HostError::LabelNotLost`] if there is a label, [`HostError::Pairing`] if the cache is of no use or the two cannot belong together,
/// [`HostError::LabelUnvouched`] without the user's word. Nothing has been changed then.
pub fn pair_again(options: &PairOptions) -> Result<PairedAgain, HostError> {
    let failed = |e| HostError::system("pair", options.cache.path(), e);
    let (ring, clock) = (Ring::new().map_err(failed)?, Clock::start());
    let bench = Bench { ring: &ring, clock: &clock };
    let mut cache = open(&options.cache, &ring, Access::ReadWrite)?;
    let mut backing = open(&options.backing, &ring, Access::ReadWrite)?;
    let names = (options.cache.to_string(), options.backing.to_string());
    let refused = |refusal| HostError::Pairing { cache: names.0.clone(), backing: names.1.clone(), refusal };
    let superblock = bench.superblock(&mut *cache)?;
    match superblock.state {
        CacheState::Paired => {}
        CacheState::Released => return Err(refused(Refusal::CacheReleased)),
        CacheState::Retired => return Err(refused(Refusal::CacheRetired)),
    }
    let (found_bytes, wanted_bytes) = (backing.info().size_bytes, superblock.volume_bytes);
    if found_bytes < wanted_bytes {
        return Err(HostError::BackingTruncated { backing: names.1.clone(), found_bytes, wanted_bytes });
    }
    if matches!(bench.find_superblock(&mut *backing), Ok(Some(_))) {
        return Err(HostError::BackingIsCache { backing: names.1.clone() });
    }
    let place = LabelPlace::of(&*backing, options.backing.path(), superblock.volume_bytes);
    if !superblock.has_label || place == LabelPlace::Nowhere {
        return Err(HostError::LabelNotLost { backing: names.1.clone() });
    }
    match place.read(&bench, &mut *backing) {
        Ok(None) | Err(HostError::LabelDamaged { .. }) => {}
        Ok(Some(label)) => {
            decide(&superblock, Some(&label), &host_id(), true).map_err(refused)?;
            return Err(HostError::LabelNotLost { backing: names.1.clone() });
        }
        Err(e) => return Err(e),
    }
    let journal_agrees = match journal_head(&bench, options, &mut *backing, &superblock)? {
        Some(head) if (head.backing_id, head.cache_id) != ids(&superblock) => {
            return Err(refused(Refusal::ForeignBacking { backing_name: superblock.backing_name }));
        }
        Some(head) if head.generation > superblock.layout.generation => {
            let (cache, backing) = (superblock.layout.generation, head.generation);
            return Err(refused(Refusal::StaleCache { cache, backing }));
        }
        Some(head) => head.generation == superblock.layout.generation,
        None => false,
    };
    let found = PairedAgain {
        generation: superblock.layout.generation,
        clean_stop: superblock.clean_stop,
        content: cache_content(&bench, &mut *cache, &superblock),
        is_in_place: superblock.backing_name == options.backing.place(),
        backing_name: superblock.backing_name.clone(),
        journal_agrees,
        label: place.clone(),
        backing: names.1.clone(),
        cache: names.0.clone(),
    };
    if !options.label_is_lost {
        return Err(HostError::LabelUnvouched { found: Box::new(found) });
    }
    let label = Some(new_label(&superblock, &names.0, journal_agrees));
    let mut identities = Identities { superblock, label };
    // Both copies, so that nothing is left of a damaged one.
    carry_out(&identities.label_again(), &bench, &mut *cache, &mut *backing, &place)?;
    Ok(found)
}

fn ids(superblock: &Superblock) -> ([u8; 16], [u8; 16]) {
    (superblock.backing_id, superblock.layout.cache_id)
}

/// The head of the journal, if there is one.
fn journal_head(
    bench: &Bench<'_>,
    options: &PairOptions,
    backing: &mut dyn Device,
    superblock: &Superblock,
) -> Result<Option<Head>, HostError> {
    let of = (&*backing, &options.backing, superblock.volume_bytes);
    match Journal::open(bench, &options.journal, of, 4096, (Access::ReadWrite, false), &mut None)? {
        Some(mut journal) => journal.head(bench, backing),
        None => Ok(None),
    }
}

/// The label that says that a run after the cache's last one was to begin and did not: so the next run has a number that no label
/// before had, and whatever is older than this cache is refused from then on.
fn new_label(superblock: &Superblock, cache: &str, journal_agrees: bool) -> Label {
    let generation = superblock.layout.generation;
    Label {
        update: 0,
        backing_id: superblock.backing_id,
        cache_id: superblock.layout.cache_id,
        generation: generation + 1,
        phase: Phase::Intent,
        state: LabelState::Paired,
        in_use: false,
        volume_bytes: superblock.volume_bytes,
        time_ns: wall_ns(),
        host_id: host_id(),
        host_name: host_name(),
        cache_name: cache.to_owned(),
        logical_block: superblock.logical_block,
        journal_run: if journal_agrees { generation } else { 0 },
    }
}
