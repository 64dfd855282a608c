//! Making a backing consistent without its cache (P4).

use std::path::Path;

use forebay_device::{Access, Clock, Device, DeviceSpec, Ring, open};
use forebay_format::journal::{Head, Moment};
use forebay_format::label::{Label, LabelState};
use forebay_format::replay::{Prepared, Replay};
use forebay_format::shared_point::{Common, newest_common, set_of};

use crate::error::{ErrorClass, HostError};
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
    /// What it knows of its consistency group.
    pub common: Common,
    /// Blocks that were written.
    pub blocks_applied: u64,
}

/// How a backing is recovered.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecoverOptions {
    /// Although the host of the last run has not stopped the volume cleanly: it is surely dead.
    pub takeover: bool,
    /// Change nothing, and only list the journal's groups.
    pub look: bool,
    /// A member of a consistency group is brought to its last point without the others, and shares none with them any more.
    pub alone: bool,
}

/// A backing that may be recovered.
struct Found {
    backing: Box<dyn Device>,
    journal: Journal,
    label: Label,
    head: Head,
    name: String,
}

impl Found {
    fn open(
        bench: &Bench<'_>,
        spec: &DeviceSpec,
        journal: &JournalChoice,
        options: RecoverOptions,
        (among, access): (bool, Access),
    ) -> Result<Self, HostError> {
        let mut backing = open(spec, bench.ring, access)?;
        let name = spec.to_string();
        let unknown = |why: &str| HostError::NothingToRecover { backing: name.clone(), why: why.to_owned() };
        let Some((place, label)) = LabelPlace::find(bench, &mut *backing, spec.path())? else {
            return Err(HostError::NoLabel { backing: name, among });
        };
        if label.state != LabelState::Paired {
            return Err(unknown("is complete: its cache was removed, and there is nothing to recover"));
        }
        if label.in_use && label.host_id != host_id() && !options.takeover && !options.look {
            let (host_name, cache) = (label.host_name, label.cache_name);
            return Err(HostError::OwnerMayLive { backing: name, host_name, cache });
        }
        backing.recognize_by(place.sign(vec![label.clone()]));
        let Some((journal, head)) = journal_of(bench, &*backing, spec, &label, journal, access)?
            .map(|mut journal| journal.head(bench, &mut *backing).map(|head| (journal, head)))
            .transpose()?
            .and_then(|(journal, head)| Some((journal, head?)))
            .filter(|(_, head)| head.is_of(&label))
        else {
            return Err(unknown(
                "is not known to be consistent: no journal of its latest run was found. If that run had --write-policy ordered or \
                 journaled with a journal elsewhere, give --journal; else only its cache can make it consistent",
            ));
        };
        journal.hold_rules(&head, Some(&label))?;
        if !head.consistent {
            return Err(unknown(
                "is not consistent without its cache: its last run wrote to it in any order (write-back), had not caught up with \
                 a new write policy, or had lost data; serve it with its cache",
            ));
        }
        Ok(Self { backing, journal, label, head, name })
    }

    /// Only reads the groups that a replay would apply, and the prepared one, and checks them.
    fn check(&mut self, bench: &Bench<'_>, prepared: bool) -> Result<(), HostError> {
        let end = if prepared { self.head.prepared } else { self.head.head };
        let mut check = Replay::check_only(Head { head: end, ..self.head.clone() });
        self.journal.carry_out(bench, &mut *self.backing, &mut check)
    }

    fn carry_out(
        mut self,
        bench: &Bench<'_>,
        mut replay: Replay,
        look: bool,
    ) -> Result<Recovered, HostError> {
        self.journal.carry_out(bench, &mut *self.backing, &mut replay)?;
        let head: &Head = replay.head();
        let mut waiting = if look { replay.moments().to_vec() } else { Vec::new() };
        if let Some(last) = waiting.last_mut() {
            // Since its commit the head may have given the point up, for something newer was written in place.
            last.clone_from(&head.committed);
        }
        Ok(Recovered {
            backing: self.name,
            volume_bytes: self.label.volume_bytes,
            cache: self.label.cache_name,
            moment: head.applied.clone(),
            waiting,
            common: head.common.clone(),
            blocks_applied: replay.blocks_applied(),
        })
    }
}

/// Brings a backing to the last state that its journal has committed, without the cache.
///
/// # Errors
/// [`HostError`]; [`HostError::OwnerMayLive`] while its owner may write and not `takeover`,
/// [`HostError::NoLabel`] or [`HostError::NothingToRecover`] if it is not known to be consistent, and [`HostError::Member`] if others have to be brought to the
/// same point. Nothing has been changed then.
pub fn recover(
    spec: &DeviceSpec,
    journal: &JournalChoice,
    options: RecoverOptions,
) -> Result<Recovered, HostError> {
    let ring = Ring::new().map_err(|e| HostError::system("open", spec.path(), e))?;
    let clock = Clock::start();
    let bench = Bench { ring: &ring, clock: &clock };
    let open = |access| {
        let found = Found::open(&bench, spec, journal, options, (false, access))?;
        match found.head.common == Common::default() || options.look || options.alone {
            true => Ok(found),
            false => Err(member_error(&found.name, &found.head.common)),
        }
    };
    // Who only looks takes nothing away from anybody.
    let takeover = options.takeover && !options.look;
    if takeover {
        refuse_early(|| open(Access::Look).map(drop))?;
    }
    let found = open(Access::to_write(takeover))?;
    let head = found.head.clone();
    let replay = match (options.look, head.common == Common::default()) {
        (true, _) => Replay::check_only(head),
        (false, true) => Replay::new(head),
        (false, false) => Replay::deciding(head, Prepared::Alone),
    };
    found.carry_out(&bench, replay, options.look)
}

/// Brings the backings of all members of a consistency group to the newest point that all of them have. Returns its number, and
/// each of them in the order of the members.
///
/// # Errors
/// As [`recover`], and [`HostError::NoCommonPoint`]. Nothing has been changed then, unless a device fails meanwhile: doing it again ends
/// at the same point.
pub fn recover_group(
    places: &[(DeviceSpec, JournalChoice)],
    takeover: bool,
) -> Result<(u64, Vec<Recovered>), HostError> {
    let first = places.first().map(|(spec, _)| spec.path()).unwrap_or(Path::new(""));
    let ring = Ring::new().map_err(|e| HostError::system("open", first, e))?;
    let clock = Clock::start();
    let bench = Bench { ring: &ring, clock: &clock };
    let options = RecoverOptions { takeover, ..RecoverOptions::default() };
    let open = |access| {
        let open = |(spec, journal): &(DeviceSpec, JournalChoice)| {
            Found::open(&bench, spec, journal, options, (true, access))
        };
        let mut found = places.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        found.sort_by_key(|found| found.head.common.member);
        let point = common_point(&found)?;
        Ok((found, point))
    };
    if takeover {
        refuse_early(|| open(Access::Look).map(drop))?;
    }
    let (mut found, point) = open(Access::to_write(takeover))?;
    for member in &mut found {
        let prepared = member.head.common.prepared == point;
        member.check(&bench, prepared)?;
    }
    let bring = |member: Found| {
        let applied = member.head.common.prepared == point;
        let prepared = if applied { Prepared::Applied } else { Prepared::Dropped };
        let replay = Replay::deciding(member.head.clone(), prepared);
        member.carry_out(&bench, replay, false)
    };
    Ok((point, found.into_iter().map(bring).collect::<Result<_, _>>()?))
}

/// What is refused once a volume was taken over is better refused before: its owner may be well, and would be cut off for nothing. A look
/// that fails decides nothing, for what is looked at may change meanwhile.
pub(crate) fn refuse_early(look: impl FnOnce() -> Result<(), HostError>) -> Result<(), HostError> {
    match look() {
        Err(error) if error.class() == ErrorClass::Refused => Err(error),
        _ => Ok(()),
    }
}

/// The newest point that all of these have, which are all members of one consistency group, in their order.
fn common_point(found: &[Found]) -> Result<u64, HostError> {
    let none = |backing: &str, why: String| HostError::NoCommonPoint { backing: backing.to_owned(), why };
    let heads = || found.iter().map(|found| &found.head.common);
    let ids: Vec<[u8; 16]> = found.iter().map(|found| found.head.backing_id).collect();
    for (n, member) in found.iter().enumerate() {
        let common = &member.head.common;
        if *common == Common::default() {
            return Err(none(
                &member.name,
                "is a member of no consistency group; recover it alone".to_owned(),
            ));
        }
        if let Some(other) = found.iter().find(|other| other.head.common.names != common.names) {
            let (ours, theirs) = (common.name(), other.head.common.name());
            let why =
                format!("is a member of the consistency group '{ours}', and {} of '{theirs}'", other.name);
            return Err(none(&member.name, why));
        }
        if common.member as usize != n || common.members().count() != found.len() {
            return Err(member_error(&member.name, common));
        }
        if common.points().next().is_some() && common.set != set_of(&ids) {
            let why =
                "has last shared its points with other backings than these; --alone recovers each by itself";
            return Err(none(&member.name, why.to_owned()));
        }
    }
    newest_common(heads()).ok_or_else(|| {
        let lost = found.iter().find(|found| found.head.common.points().next().is_none()).or(found.first());
        let why = "is at no point that all members have: there was none yet, or a member went on alone since the last one, as its log wanted \
                   room or all of it was to be destaged; serve them with their caches, or recover each by itself with --alone";
        none(lost.map_or("", |found| &found.name), why.to_owned())
    })
}

fn member_error(backing: &str, common: &Common) -> HostError {
    let member = common.members().nth(common.member as usize).unwrap_or("?").to_owned();
    let members = common.members().collect::<Vec<_>>().join(", ");
    HostError::Member { backing: backing.to_owned(), member, group: common.name().to_owned(), members }
}

/// The backing is to go on without its cache, although it holds a point that is not decided.
pub(crate) fn holds_prepared(backing: &DeviceSpec, common: &Common) -> HostError {
    let members = common.members().collect::<Vec<_>>().join(", ");
    HostError::HoldsPrepared { backing: backing.to_string(), group: common.name().to_owned(), members }
}

/// The journal of a backing whose cache is not there.
pub(crate) fn journal_of(
    bench: &Bench<'_>,
    backing: &dyn Device,
    spec: &DeviceSpec,
    label: &Label,
    choice: &JournalChoice,
    access: Access,
) -> Result<Option<Journal>, HostError> {
    Journal::open(bench, choice, (backing, spec, label.volume_bytes), 4096, (access, false), &mut None)
}

/// The journal that tells how the backing was left, with its head, of a backing that is about to go on without its cache. `None` if
/// its latest run had none, or the user has given it up.
pub(crate) fn journal_left(
    bench: &Bench<'_>,
    backing: &mut dyn Device,
    spec: &DeviceSpec,
    label: &Label,
    choice: &JournalChoice,
    access: Access,
) -> Result<Option<(Journal, Head)>, HostError> {
    if label.journal_run == 0 || *choice == JournalChoice::None {
        return Ok(None);
    }
    let missing = || HostError::JournalMissing { backing: spec.to_string() };
    let mut journal = journal_of(bench, backing, spec, label, choice, access)?.ok_or_else(missing)?;
    let head = journal.head(bench, backing)?;
    let ids = (label.backing_id, label.cache_id);
    let head = head.filter(|head| (head.backing_id, head.cache_id) == ids).ok_or_else(missing)?;
    journal.hold_rules(&head, Some(label))?;
    // One of an earlier run has been brought to its end by the start of the later one.
    Ok(head.is_of(label).then_some((journal, head)))
}
