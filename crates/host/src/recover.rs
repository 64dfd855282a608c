//! Making a backing consistent without its cache (P4).

use std::path::Path;

use forebay_device::{Clock, DeviceSpec, Ring, open};
use forebay_format::journal::{Head, Moment};
use forebay_format::label::{Label, LabelState};
use forebay_format::replay::Replay;

use crate::error::HostError;
use crate::identity::host_id;
use crate::journal::{Journal, JournalChoice};
use crate::label::LabelPlace;
use crate::superblocks::Bench;

/// What is known of a backing without its cache.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// The backing, as given.
    pub backing: String,
    /// The volume's size in bytes.
    pub volume_bytes: u64,
    /// The cache that it is paired with, as of the last run; it may hold newer data.
    pub cache: String,
    /// What the backing is as of.
    pub moment: Moment,
    /// Groups in the journal that are still to be applied, oldest first; none after a recovery.
    pub waiting: Vec<Moment>,
    /// Blocks that were written.
    pub blocks_applied: u64,
}

/// Brings a backing to the last state that its journal has committed, without the cache. With `look` nothing is changed, and
/// the journal's groups are only listed.
///
/// # Errors
/// [`HostError`]; [`HostError::OwnerMayLive`] while its owner may write and not `takeover`, and
/// [`HostError::NothingToRecover`] if it is not known to be consistent. Nothing has been changed then.
pub fn recover(
    spec: &DeviceSpec,
    journal: &JournalChoice,
    takeover: bool,
    look: bool,
) -> Result<Recovered, HostError> {
    let ring = Ring::new().map_err(|e| HostError::system("open", spec.path(), e))?;
    let clock = Clock::start();
    let bench = Bench { ring: &ring, clock: &clock };
    let mut backing = open(spec, &ring)?;
    let unknown = |why: &str| HostError::NothingToRecover { backing: spec.to_string(), why: why.to_owned() };
    let Some((_, label)) = LabelPlace::find(&bench, &mut *backing, spec.path())? else {
        return Err(unknown("has no label: nothing is known of it, and nothing was changed"));
    };
    if label.state != LabelState::Paired {
        return Err(unknown("is complete: its cache was removed, and there is nothing to recover"));
    }
    if label.in_use && label.host_id != host_id() && !takeover && !look {
        let (host_name, cache) = (label.host_name, label.cache_name);
        return Err(HostError::OwnerMayLive { backing: spec.to_string(), host_name, cache });
    }
    let Some((mut journal, head)) = journal_of(&bench, &*backing, spec.path(), &label, journal)?
        .map(|mut journal| journal.head(&bench, &mut *backing).map(|head| (journal, head)))
        .transpose()?
        .and_then(|(journal, head)| Some((journal, head?)))
        .filter(|(_, head)| head.is_of(&label))
    else {
        return Err(unknown(
            "is not known to be consistent: no journal of its latest run was found. If that run had --write-policy ordered or \
             journaled with a journal elsewhere, give --journal; else only its cache can make it consistent",
        ));
    };
    if !head.consistent {
        return Err(unknown(
            "is not consistent without its cache: its last run wrote to it in any order (write-back), had not caught up with \
             a new write policy, or had lost data; serve it with its cache",
        ));
    }
    let mut replay = if look { Replay::check_only(head) } else { Replay::new(head) };
    journal.carry_out(&bench, &mut *backing, &mut replay)?;
    let head: &Head = replay.head();
    let mut waiting = if look { replay.moments().to_vec() } else { Vec::new() };
    if let Some(last) = waiting.last_mut() {
        // Since its commit the head may have given the point up, for something newer was written in place.
        last.clone_from(&head.committed);
    }
    Ok(Recovered {
        backing: spec.to_string(),
        volume_bytes: label.volume_bytes,
        cache: label.cache_name,
        moment: head.applied.clone(),
        waiting,
        blocks_applied: replay.blocks_applied(),
    })
}

/// The journal of a backing whose cache is not there.
pub(crate) fn journal_of(
    bench: &Bench<'_>,
    backing: &dyn forebay_device::Device,
    path: &Path,
    label: &Label,
    choice: &JournalChoice,
) -> Result<Option<Journal>, HostError> {
    Journal::open(bench, choice, (backing, path, label.volume_bytes), 4096, false, &mut None)
}
