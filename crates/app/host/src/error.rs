//! Why a volume could not be made, opened or stopped.

use std::io;
use std::path::{Path, PathBuf};

use forebay_block::{IoError, words_of};
use forebay_device::{CheckpointError, Lack, OpenError};
use forebay_engine::{CommonError, MarkError, RecoveryError};
use forebay_format::FormatError;
use forebay_format::pairing::Refusal;
use forebay_format::replay::DamagedGroup;
use forebay_guard::{Foreign, SideFile};
use forebay_policy::size;
use thiserror::Error;

use crate::lost_label::PairedAgain;

/// What a failure means to who called; each class has an exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// It was tried and failed (exit code 1).
    Failed,
    /// It was refused for safety: foreign, stale, in use, or data would be lost (3).
    Refused,
    /// Corruption was found (4).
    Corrupt,
}

impl ErrorClass {
    /// The exit code that scripts see.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Refused => 3,
            Self::Corrupt => 4,
        }
    }
}

/// Why a volume could not be made, opened or stopped. Each message is one sentence that says what happened, to what,
/// and what to do.
#[derive(Debug, Error)]
pub enum HostError {
    /// A device could not be opened, or is in use.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Cache and backing do not belong together, or not any more (P6).
    #[error("{cache} with {backing}: {refusal}")]
    Pairing {
        /// The cache, as given.
        cache: String,
        /// The backing, as given.
        backing: String,
        /// Why.
        refusal: Refusal,
    },
    /// What is given as a cache is none.
    #[error("{cache} is not a Forebay cache; `forebay format` makes one")]
    NotACache {
        /// The cache, as given.
        cache: String,
    },
    /// What is given as a cache is none, and its backing had one.
    #[error(
        "{cache} is not a Forebay cache, but {backing} is paired with the cache {was}: name that one; if it is this one, it was \
         overwritten: put back a copy of it, or give up what it had with `forebay serve --no-cache --accept-stale`"
    )]
    CacheLost {
        /// The cache, as given.
        cache: String,
        /// The backing, as given.
        backing: String,
        /// Its cache, as of the last run.
        was: String,
    },
    /// A cache or a label was made by another release.
    #[error(
        "{what} has format version {version}, which this release does not know; use the release that made it"
    )]
    UnknownVersion {
        /// The cache, as given, or which label.
        what: String,
        /// Its version.
        version: u32,
    },
    /// Neither superblock, or neither copy of the label, is whole.
    #[error("{what} is damaged: {error}; `forebay check` tells more")]
    Damaged {
        /// What, and where.
        what: String,
        /// What is wrong with it.
        error: FormatError,
    },
    /// Neither copy of the label is whole.
    #[error(
        "the label {label} is damaged: {error}; put a copy of it back, or pair cache and backing again with `forebay pair`"
    )]
    LabelDamaged {
        /// Where it lies.
        label: String,
        /// What is wrong with it.
        error: FormatError,
    },
    /// The backing has its label, or never had one.
    #[error("{backing} has lost no label; serve it with its cache")]
    LabelNotLost {
        /// The backing, as given.
        backing: String,
    },
    /// A label is to be made anew, and nobody vouches for the backing.
    #[error(
        "{}; --lost-label pairs them again: it vouches that {} has run with no other cache, and not without one, since this \
         cache ran last, and that the cache did not fail in that run, or what was written then is overwritten", .found, .found.backing
    )]
    LabelUnvouched {
        /// What is known of the two.
        found: Box<PairedAgain>,
    },
    /// The cache is shorter than it was.
    #[error(
        "{cache} has {} but was made with {}: it was truncated; restore its size or the device",
        size::show_beside(*.found_bytes, *.wanted_bytes), size::show_beside(*.wanted_bytes, *.found_bytes)
    )]
    CacheTruncated {
        /// The cache, as given.
        cache: String,
        /// Bytes there are.
        found_bytes: u64,
        /// Bytes there must be.
        wanted_bytes: u64,
    },
    /// The backing is shorter than the volume.
    #[error(
        "{backing} has {} but the volume has {}: it was truncated, or is another backing",
        size::show_beside(*.found_bytes, *.wanted_bytes), size::show_beside(*.wanted_bytes, *.found_bytes)
    )]
    BackingTruncated {
        /// The backing, as given.
        backing: String,
        /// Bytes there are.
        found_bytes: u64,
        /// Bytes there must be.
        wanted_bytes: u64,
    },
    /// The backing's device can only write units larger than those of a log.
    #[error(
        "{backing} has logical blocks of {logical_block} bytes, and a backing has at most 4096; put it on a device with smaller blocks"
    )]
    BackingBlocks {
        /// The backing, as given.
        backing: String,
        /// What the device demands.
        logical_block: u32,
    },
    /// The volume ends within a block of its device.
    #[error(
        "the volume on {backing} has {volume_bytes} bytes, which is no multiple of {block}: its last block could not be written; move it to a device with smaller blocks, or give a smaller --logical-block if you gave one"
    )]
    VolumeEnd {
        /// The backing, as given.
        backing: String,
        /// Size of the volume.
        volume_bytes: u64,
        /// What it would have to be a multiple of.
        block: u32,
    },
    /// The cache's device can only write larger units than the log is made of.
    #[error(
        "{cache} was made for blocks of {align} bytes, its device now has {logical_block}; move it to a device with smaller blocks"
    )]
    CacheAlignment {
        /// The cache, as given.
        cache: String,
        /// Alignment of the log.
        align: u32,
        /// What the device demands.
        logical_block: u32,
    },
    /// A store on another machine is to be a cache.
    #[error(
        "{cache} cannot be a cache, which must lie on this host; a store on another machine can be a backing or a journal"
    )]
    RemoteCache {
        /// The cache, as given.
        cache: String,
    },
    /// Formatting would overwrite a cache that is in use by a volume.
    #[error("{cache} is the cache of {backing} {content}; --force overwrites it")]
    CacheUsed {
        /// The cache, as given.
        cache: String,
        /// Its backing, when it was paired.
        backing: String,
        /// What is in it.
        content: CacheContent,
    },
    /// Formatting would overwrite something that is no cache.
    #[error("{cache} holds data that is no Forebay cache; --force overwrites it")]
    ForeignData {
        /// The cache, as given.
        cache: String,
    },
    /// The backing belongs to another cache.
    #[error(
        "{backing} is paired with the cache {cache}, which may hold newer data; flush that cache and remove it from \
         the volume, or give --force to abandon what is in it"
    )]
    BackingPaired {
        /// The backing, as given.
        backing: String,
        /// Its cache, as of the last run.
        cache: String,
    },
    /// What is given as a backing is itself a cache.
    #[error(
        "{backing} is a Forebay cache; were cache and backing swapped? --force uses it as a backing all the same"
    )]
    BackingIsCache {
        /// The backing, as given.
        backing: String,
    },
    /// The backing's newest data may be in its cache.
    #[error(
        "{backing} is paired with the cache {cache}{}; serve it with that cache, or give --accept-stale to go on from what \
         the backing has (which makes that cache void, but not with --read-only)", match .content {
            Some(content) => format!(" {content}"),
            None => ", which is not at hand and may hold newer data".to_owned(),
        }
    )]
    WithoutItsCache {
        /// The backing, as given.
        backing: String,
        /// Its cache, as of the last run.
        cache: String,
        /// What is in it, if it is there.
        content: Option<CacheContent>,
    },
    /// Too small for a journal.
    #[error(
        "{journal} has {}, too little for the journal of this volume; the least is {}",
        size::show_beside(*.bytes, *.least_bytes), size::show_beside(*.least_bytes, *.bytes)
    )]
    JournalTooSmall {
        /// The journal, as given.
        journal: String,
        /// Bytes there are.
        bytes: u64,
        /// Bytes there must be.
        least_bytes: u64,
    },
    /// The journal cannot be written to.
    #[error(
        "the journal {journal} takes nothing ({error}); make room in its file system or repair it, or give another --journal or \
         another --write-policy, of which only journaled needs one"
    )]
    JournalTakesNothing {
        /// The journal, as given.
        journal: String,
        /// The system's answer.
        error: IoError,
    },
    /// What is given as a journal holds something else.
    #[error("{journal} holds data that is no journal; give another --journal, or empty it first")]
    NotAJournal {
        /// The journal, as given.
        journal: String,
    },
    /// The journal is another backing's.
    #[error("{journal} is the journal of another backing; give the right --journal")]
    ForeignJournal {
        /// The journal, as given.
        journal: String,
    },
    /// A committed group cannot be read any more.
    #[error(
        "{journal}: {error}; restore it from a copy, or serve the volume with its cache, which has the data, and --journal none"
    )]
    JournalDamaged {
        /// The journal, as given.
        journal: String,
        /// What is wrong.
        error: DamagedGroup,
    },
    /// The policy needs a journal, and there is no room for one.
    #[error(
        "--write-policy journaled needs a journal on the side of {backing}, and there is none or no room for one; give --journal LOCATION on \
         the same store, or format a volume that leaves room behind its end (--volume-size, 300M less than the device)"
    )]
    NoJournal {
        /// The backing, as given.
        backing: String,
    },
    /// The backing would be left in the middle of a group.
    #[error(
        "{backing} has not all of what its journal {journal} has committed (up to group {group}) and would stay inconsistent: \
         `forebay recover` it first, or give --journal none to lose that, too"
    )]
    HoldsGroups {
        /// The backing, as given.
        backing: String,
        /// Its journal.
        journal: String,
        /// The last committed group.
        group: u64,
    },
    /// The backing may be in the middle of a group.
    #[error(
        "the journal of {backing} is not found, and may hold what {backing} needs to be consistent: give --journal LOCATION, or \
         --journal none if it is lost"
    )]
    JournalMissing {
        /// The backing, as given.
        backing: String,
    },
    /// What would make the backing consistent is not to be written to it.
    #[error(
        "{backing} is not consistent before what its journal {journal} has committed is in its place, which --read-only does not do: \
         `forebay recover` it first, or serve it with its cache"
    )]
    UnappliedGroups {
        /// The backing, as given.
        backing: String,
        /// Its journal.
        journal: String,
    },
    /// The volume is read-only.
    #[error("volume '{volume}' is served read-only: {what}; serve it without --read-only first")]
    ReadOnly {
        /// Its name.
        volume: String,
        /// What was not done.
        what: &'static str,
    },
    /// Nothing on the backing's side says what it is.
    #[error(
        "{backing} has no label, so that nothing is known of it{}; nothing was changed",
        if *.among { ", nor whose member it is: name the members of one consistency group and nothing else" } else { "" }
    )]
    NoLabel {
        /// The backing, as given.
        backing: String,
        /// It was named among others.
        among: bool,
    },
    /// Nobody knows where this backing stands.
    #[error("{backing} {why}")]
    NothingToRecover {
        /// The backing, as given.
        backing: String,
        /// What is known, and what to do.
        why: String,
    },
    /// The backing may be written to by its owner.
    #[error(
        "{backing} was last run on host '{host_name}' with the cache {cache}, which has not stopped cleanly; if that \
         cache is lost or its host surely dead, give --takeover"
    )]
    OwnerMayLive {
        /// The backing, as given.
        backing: String,
        /// The host of its latest run.
        host_name: String,
        /// The cache of its latest run.
        cache: String,
    },
    /// The cache holds data that the backing lacks, so it cannot be given up or made smaller.
    #[error(
        "{cache} holds {} that its backing lacks; serve the volume and `forebay flush` it first", size::show(*.dirty_bytes)
    )]
    CacheDirty {
        /// The cache, as given.
        cache: String,
        /// How many bytes.
        dirty_bytes: u64,
    },
    /// Too small for a log.
    #[error(
        "a cache of {} is too small; the least is {}",
        size::show_beside(*.bytes, *.least_bytes), size::show_beside(*.least_bytes, *.bytes)
    )]
    CacheTooSmall {
        /// Bytes there would be.
        bytes: u64,
        /// Bytes there must be.
        least_bytes: u64,
    },
    /// A size that was given does not suit what is there.
    #[error("{path}: {why}")]
    Size {
        /// What it is about.
        path: String,
        /// What does not suit, and what to do.
        why: &'static str,
    },
    /// A file is to be larger than its file system has room for.
    #[error(
        "{path} needs {} more, and its file system has {} free; make room, give a smaller size, or choose another place",
        size::show(.lack.needed_bytes), size::show(.lack.free_bytes)
    )]
    NoRoom {
        /// The file.
        path: String,
        /// How much it needs, and how much there is.
        lack: Lack,
    },
    /// Somebody did not want to wait until it was done.
    #[error("told to stop before {path} was ready; {left}")]
    ToldToStop {
        /// What was to be made, or to become larger.
        path: String,
        /// What is there now.
        left: &'static str,
    },
    /// The engine found that acknowledged data is missing or unreadable in the log.
    #[error("{cache}: {error}")]
    Recovery {
        /// The cache, as given.
        cache: String,
        /// What was found.
        error: RecoveryError,
    },
    /// A device answered with an error.
    #[error("{doing} of {device}: {error}")]
    Device {
        /// What was being done, as a noun.
        doing: &'static str,
        /// On which device.
        device: String,
        /// Its answer.
        error: IoError,
    },
    /// The system refused.
    #[error("cannot {doing} {}: {}", .path.display(), words_of(.source))]
    System {
        /// What was tried.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The volume's thread has ended.
    #[error("volume '{volume}' has stopped")]
    Stopped {
        /// Its name.
        volume: String,
    },
    /// A control command failed.
    #[error("volume '{volume}': {error}")]
    Command {
        /// Its name.
        volume: String,
        /// What the engine answered.
        error: IoError,
    },
    /// There can be no consistency point, or it is not known whether there is.
    #[error("volume '{volume}': no consistency point was committed: {error}")]
    Mark {
        /// Its name.
        volume: String,
        /// Why.
        error: MarkError,
    },
    /// A checkpoint was not made, or not given up.
    #[error("volume '{volume}': {error}")]
    Checkpoint {
        /// Its name.
        volume: String,
        /// Why.
        error: CheckpointError,
    },
    /// A step towards a point of a consistency group was not taken.
    #[error("volume '{volume}': {error}")]
    Common {
        /// Its name.
        volume: String,
        /// Why.
        error: CommonError,
    },
    /// A backing that shares its points with others is treated alone.
    #[error(
        "{backing} is {member}, a member of the consistency group '{group}' of {members}: name the backings of all of them, so that they \
         are brought to the same point; --alone brings this one to its last point without the others"
    )]
    Member {
        /// The backing.
        backing: String,
        /// Name of the volume.
        member: String,
        /// Name of the consistency group.
        group: String,
        /// Names of all members.
        members: String,
    },
    /// Several backings cannot be brought to one point.
    #[error("{backing} {why}; nothing was changed")]
    NoCommonPoint {
        /// The backing that stands in the way.
        backing: String,
        /// Why.
        why: String,
    },
    /// A backing holds a point of which only the other members know whether it counts.
    #[error(
        "{backing} is a member of the consistency group '{group}' and holds a point that the other members of {members} may have \
         reached; run `forebay recover` with the backings of all of them first"
    )]
    HoldsPrepared {
        /// The backing.
        backing: String,
        /// Name of the consistency group.
        group: String,
        /// Names of all members.
        members: String,
    },
    /// This machine computes checksums wrongly.
    #[error("this machine computes CRC-32C wrongly: nothing can be stored safely on it")]
    Checksum,
}

/// What is in a cache that is about to be overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheContent {
    /// Nothing that the backing lacks.
    Clean,
    /// So many bytes that the backing lacks.
    Dirty(u64),
    /// The log could not be read.
    Unreadable,
}

impl std::fmt::Display for CacheContent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Clean => write!(f, "and holds nothing that the backing lacks"),
            Self::Dirty(bytes) => write!(f, "and holds {} that the backing lacks", size::show(*bytes)),
            Self::Unreadable => {
                write!(f, "and its log cannot be read, so that it may hold data that the backing lacks")
            }
        }
    }
}

impl HostError {
    /// What the failure means to who called.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Open(
                OpenError::InUse { .. }
                | OpenError::NotADevice { .. }
                | OpenError::ReadOnly { .. }
                | OpenError::Foreign(_),
            )
            | Self::Pairing { .. }
            | Self::NotACache { .. }
            | Self::CacheLost { .. }
            | Self::UnknownVersion { .. }
            | Self::CacheTruncated { .. }
            | Self::BackingTruncated { .. }
            | Self::CacheAlignment { .. }
            | Self::BackingBlocks { .. }
            | Self::VolumeEnd { .. }
            | Self::RemoteCache { .. }
            | Self::CacheUsed { .. }
            | Self::ForeignData { .. }
            | Self::BackingPaired { .. }
            | Self::BackingIsCache { .. }
            | Self::WithoutItsCache { .. }
            | Self::NotAJournal { .. }
            | Self::ForeignJournal { .. }
            | Self::NoJournal { .. }
            | Self::HoldsGroups { .. }
            | Self::UnappliedGroups { .. }
            | Self::ReadOnly { .. }
            | Self::JournalMissing { .. }
            | Self::LabelNotLost { .. }
            | Self::LabelUnvouched { .. }
            | Self::NoLabel { .. }
            | Self::NothingToRecover { .. }
            | Self::OwnerMayLive { .. }
            | Self::Mark { error: MarkError::Policy(_) | MarkError::ReadOnly, .. }
            | Self::Recovery { error: RecoveryError::Fenced, .. }
            | Self::Checkpoint {
                error:
                    CheckpointError::Unsupported
                    | CheckpointError::ReadOnly
                    | CheckpointError::Exists(_)
                    | CheckpointError::Fenced(_),
                ..
            }
            | Self::Common {
                error: CommonError::NoMember | CommonError::Mark(MarkError::Policy(_)), ..
            }
            | Self::Member { .. }
            | Self::NoCommonPoint { .. }
            | Self::HoldsPrepared { .. }
            | Self::CacheDirty { .. } => ErrorClass::Refused,
            Self::Open(OpenError::Damaged { .. })
            | Self::Damaged { .. }
            | Self::LabelDamaged { .. }
            | Self::JournalDamaged { .. }
            | Self::Recovery {
                error:
                    RecoveryError::LostRecord { .. }
                    | RecoveryError::LostSegment { .. }
                    | RecoveryError::Impossible { .. }
                    | RecoveryError::BehindBacking { .. },
                ..
            } => ErrorClass::Corrupt,
            Self::Open(_)
            | Self::CacheTooSmall { .. }
            | Self::JournalTooSmall { .. }
            | Self::JournalTakesNothing { .. }
            | Self::Size { .. }
            | Self::NoRoom { .. }
            | Self::ToldToStop { .. }
            | Self::Recovery { .. }
            | Self::Device { .. }
            | Self::System { .. }
            | Self::Stopped { .. }
            | Self::Command { .. }
            | Self::Mark { .. }
            | Self::Checkpoint { .. }
            | Self::Common { .. }
            | Self::Checksum => ErrorClass::Failed,
        }
    }

    /// An error of a file beside a backing.
    pub(crate) fn side_file(doing: &'static str, file: &SideFile, source: io::Error) -> Self {
        match Foreign::of(&source) {
            Some(_) => OpenError::of_side_file(doing, file.path(), source).into(),
            None => Self::system(doing, file.path(), source),
        }
    }

    /// A point cannot be declared yet, and can be by itself.
    pub const fn is_not_yet(&self) -> bool {
        matches!(
            self,
            Self::Mark { error: MarkError::NotConsistent | MarkError::TooMany, .. }
                | Self::Common {
                    error: CommonError::Mark(MarkError::NotConsistent | MarkError::TooMany),
                    ..
                }
        )
    }

    pub(crate) fn system(doing: &'static str, path: &Path, source: io::Error) -> Self {
        Self::System { doing, path: path.to_owned(), source }
    }
}
