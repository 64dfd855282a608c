//! What crosses the wall between the engine and the world.

use std::fmt;

pub use forebay_block::Class;
use forebay_block::{Cause, DeviceOp, DeviceResult, ErrorKind, IoError, Op, OpKind, Origin, Reply, Seq};
use forebay_format::Layout;
use forebay_format::journal::{Group, Head};
use forebay_format::rules::Impossible;
use forebay_format::shared_point::Common;
use forebay_policy::{AdmissionReason, Ranges, ReasonCounts, Settings, WritePolicy};
use thiserror::Error;

/// Names a client's request until its [`Effect::Reply`]; chosen by the host, unique while outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Names a part of a request; grows with arrival, so that the order of keys is the order of arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PartKey(pub(crate) u64);

/// Names a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RunKey(pub(crate) u64);

/// Names a device operation until its [`Event::Io`]; chosen by the engine, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IoId(pub u64);

/// Which device an operation is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The small fast device with the log.
    Cache,
    /// The store behind it.
    Backing,
    /// The journal on the backing's side: its own device, or a region behind the volume's end.
    Journal,
}

/// How a volume starts.
#[derive(Clone, Debug)]
pub struct Params {
    /// Where the log lies and whose it is; `layout.generation` is this run's, already durable in the superblock.
    pub layout: Layout,
    /// Size of the volume in bytes, a multiple of 512; at most 2^52.
    pub volume_bytes: u64,
    /// The user's choices.
    pub settings: Settings,
    /// Wall-clock time in nanoseconds since 1970 at which the monotonic clock of the events read 0.
    pub wall_offset_ns: u64,
    /// Whether the superblock says that the last run stopped cleanly, so that clean copies may be trusted (hazard 1).
    pub clean_stop: bool,
    /// The head of the journal on the backing's side, of this run, durable, with no group left in it; `None` without a journal.
    /// Its ring holds at least twice a segment of the cache.
    pub journal: Option<Head>,
    /// The group that this head says is prepared and not committed.
    pub prepared: Option<Group>,
    /// The journal lies on the backing's own device, and that takes a [`DeviceOp::Commit`]: a group is in its place as soon as it is
    /// committed, and the backing alone is always at a group's end.
    pub commits_in_place: bool,
    /// The last run had a journal that this one has not: groups may be left in it, and what the log says of the order that the
    /// backing was kept in holds only with them.
    pub journal_left: bool,
    /// Operations that the backing takes at a time, at least 1. So many are started there; more wait in the backing's queue, where what
    /// somebody waits for goes first.
    pub backing_depth: usize,
    /// Destaging is best in whole and aligned pieces of so many bytes, as of the objects that the backing is made of; `None` where that makes
    /// no difference.
    pub backing_unit_bytes: Option<u64>,
    /// What the backing has completed is lost when this process dies, until it was flushed or if it was not written durably: whoever is
    /// told that the backing has a write is told so when that is durable (P1).
    pub backing_forgets: bool,
    /// The volume is only read: writes are refused, and nothing is asked of the devices that would change them. The generation is
    /// not durable then.
    pub read_only: bool,
}

/// What the world tells the engine.
#[derive(Debug)]
pub enum Event {
    /// A client's request; answered by one [`Effect::Reply`].
    Request {
        /// The host's name for it.
        id: RequestId,
        /// What is asked; within the volume and made of whole sectors, else it is answered with an error.
        op: Op,
        /// Who asks and why.
        origin: Origin,
    },
    /// A device operation has completed.
    Io {
        /// As in the [`Effect::Io`] (or [`Effect::RetireLog`]) that started it.
        id: IoId,
        /// Its outcome; for a read exactly the bytes asked for.
        result: DeviceResult,
    },
    /// Another host has taken over the backing, or the journal on its side, and the host knows it without an operation: as an
    /// operation of theirs that ends with [`ErrorKind::Fenced`].
    Fenced,
    /// A critical task waits for outstanding writes of these bytes: bypasses among them may go to the log instead (I/O
    /// inheritance). Only a hint (P8); not answered.
    Promote {
        /// Byte offset in the volume.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// A control command; answered by one [`Effect::CommandDone`].
    Command {
        /// The host's name for it (a separate space from requests).
        id: RequestId,
        /// What is asked.
        command: Command,
    },
}

/// Control commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Use these settings for writes that arrive from now on.
    Set(Settings),
    /// Use these ranges for the admission policy `range`.
    SetRanges(Ranges),
    /// Bytes a day that may be written to the cache before the admission policy `adaptive` tightens; 0: no budget.
    SetEndurance(u64),
    /// Declare a consistency point: what is acknowledged now, and nothing issued later. Answered by one [`Effect::Marked`] in
    /// place of [`Effect::CommandDone`], once the group that ends there is committed.
    Mark {
        /// The point's name, at most [`forebay_format::journal::POINT_LABEL_BYTES`] long; what is longer is cut.
        label: String,
    },
    /// A step towards a point that the members of a consistency group share. Answered by one [`Effect::CommonDone`] in place of
    /// [`Effect::CommandDone`].
    Common {
        /// Which round: it grows with each, and is the number of the point that it leads to. 0 only asks how things stand.
        round: u64,
        /// The run that began the round ([`CommonState::run`]); does not count for [`CommonStep::Begin`].
        run: u64,
        /// What is to be done.
        step: CommonStep,
    },
    /// Destage everything that was acknowledged before this, and make it durable on the backing.
    Destage,
    /// Refuse new requests, finish those under way, destage if asked, leave a durable clean-stop mark, then idle.
    Stop {
        /// Destage everything first; else dirty data stays in the cache.
        destage: bool,
    },
}

/// What the engine asks of the world. Effects of one [`crate::Engine::poll`] may be carried out in any order.
#[derive(Debug)]
pub enum Effect {
    /// Start this device operation and report its end as [`Event::Io`].
    Io {
        /// The engine's name for it.
        id: IoId,
        /// For which device.
        role: Role,
        /// What to do.
        op: DeviceOp,
        /// Whether somebody waits.
        class: Class,
    },
    /// Answer a client.
    Reply {
        /// The request's name.
        id: RequestId,
        /// The outcome.
        result: Result<Reply, IoError>,
    },
    /// A write is about to be answered with success: why it went where it went.
    Admitted {
        /// The request's name.
        id: RequestId,
        /// Why.
        reason: AdmissionReason,
        /// Bytes that it carried.
        bytes: u64,
    },
    /// Answer a control command.
    CommandDone {
        /// The command's name.
        id: RequestId,
        /// The outcome.
        result: Result<(), IoError>,
    },
    /// Answer [`Command::Mark`].
    Marked {
        /// The command's name.
        id: RequestId,
        /// The point's number: that of the group which ends there.
        result: Result<u64, MarkError>,
    },
    /// Answer [`Command::Common`].
    CommonDone {
        /// The command's name.
        id: RequestId,
        /// How things stand then.
        result: Result<CommonState, CommonError>,
    },
    /// Recovery has ended; on success the volume serves requests from now on. Exactly once.
    Recovered(Result<RecoveryReport, RecoveryError>),
    /// The cache failed a durable write (P9) and everything in the log is on the backing: record durably, in the
    /// backing's label and in the superblock, that the log is void, so that no restart replays it over newer data.
    /// Report as [`Event::Io`]: success if at least one of the two is durable.
    RetireLog {
        /// The engine's name for it.
        id: IoId,
    },
}

/// Why a consistency point was not declared, or is not committed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MarkError {
    /// The backing does not move in groups.
    #[error(
        "the write policy is {0}: only journaled moves the backing in groups, which can end at a point (set write-policy=journaled)"
    )]
    Policy(WritePolicy),
    /// What was acknowledged earlier is destaged in any order just now.
    #[error(
        "the backing is not consistent now, and so at no point; `forebay flush` brings it there, then try again"
    )]
    NotConsistent,
    /// There are too many already.
    #[error("too many points wait to be committed; try again later")]
    TooMany,
    /// The journal has failed for seconds.
    #[error("the backing or the journal on its side fails: the point may be committed later, or never")]
    Failing,
    /// The volume stops.
    #[error("the volume is stopping")]
    Stopping,
    /// The backing is somebody else's.
    #[error("another host has taken the backing over")]
    Fenced,
    /// Nothing is written.
    #[error("the volume is read-only")]
    ReadOnly,
    /// It shares its points with others.
    #[error("the volume is a member of a consistency group, whose points all members declare together")]
    Member,
}

/// A step towards a common point, in the order in which a round takes them (`docs/design/consistency.md`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommonStep {
    /// The round begins: nothing that an earlier one still asks for is done from here on. Answered when none of it is on its
    /// way.
    Begin,
    /// What an earlier round has left prepared is committed, or forgotten. Also ends a round.
    Settle {
        /// Number of the point.
        point: u64,
        /// Every member has it prepared or decided: it is committed. Else nobody has decided it.
        keep: bool,
    },
    /// Acknowledge what is under way and then nothing more for a while; answered when the point is cut there.
    Hold,
    /// All members have cut: go on. Answered well if nothing was acknowledged since.
    Release,
    /// Make the group that ends at the cut durable in the journal, and do not apply it.
    Prepare {
        /// The point's name.
        label: String,
        /// Who shares it; its points do not count.
        group: Common,
    },
}

/// How a member of a consistency group stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommonState {
    /// Which run answers.
    pub run: u64,
    /// The newest round that it knows: the next one has a larger number.
    pub round: u64,
    /// The common point at which the backing is, durably; 0 if it is at none.
    pub decided: u64,
    /// The common point that is prepared, durably, and not decided; 0 if there is none.
    pub prepared: u64,
}

/// Why a step towards a common point was not taken.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CommonError {
    /// No point can be declared.
    #[error(transparent)]
    Mark(#[from] MarkError),
    /// The volume shares its points with nobody.
    #[error("the volume is no member of a consistency group (group-ends is not common)")]
    NoMember,
    /// Another round has begun, or another run.
    #[error("another round has begun meanwhile")]
    Overtaken,
    /// A member took too long.
    #[error("writers were held back for as long as they may be, and the other members were not ready")]
    Expired,
    /// The point that is to be settled is not prepared.
    #[error("the volume has given the point up meanwhile, and went on without the other members")]
    GivenUp,
}

/// What recovery found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Last record that is part of the log.
    pub last_seq: Seq,
    /// Segments that hold the log.
    pub segments_live: u64,
    /// Segments read through because they had no valid summary.
    pub segments_scanned: u64,
    /// Blocks that the backing lacks.
    pub blocks_dirty: u64,
    /// Blocks kept as read cache.
    pub blocks_clean: u64,
    /// Records found torn at the log's end, never acknowledged, dropped.
    pub records_torn: u64,
}

/// Why recovery refused to go on: data that was acknowledged is missing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RecoveryError {
    /// A device answered with an error.
    #[error("cannot read the log: {0}")]
    Io(IoError),
    /// A later record proves that this one was durable, but it cannot be read back.
    #[error(
        "log record {seq} in segment {segment} was durable and is now damaged; run `forebay check` on the cache"
    )]
    LostRecord {
        /// The record.
        seq: u64,
        /// Physical number of the segment where it should be.
        segment: u32,
    },
    /// A segment that must be there is not.
    #[error("log segment with sequence number {segment_seq} is missing; run `forebay check` on the cache")]
    LostSegment {
        /// The segment's sequence number.
        segment_seq: u64,
    },
    /// Something in the log is whole, and says what no run of a volume writes.
    #[error(
        "log segment {segment} says what cannot be at byte {offset} of the cache: {what}; nothing was destaged: run `forebay check` on \
         the cache"
    )]
    Impossible {
        /// Physical number of the segment.
        segment: u32,
        /// Byte offset on the cache of what says so.
        offset: u64,
        /// The rule that it breaks.
        what: Impossible,
    },
    /// The backing is another host's.
    #[error("another host has taken the backing over")]
    Fenced,
    /// The backing has what the log should have, too: a write to the cache that was durable has been lost.
    #[error(
        "the log ends at record {last_seq}, but the backing has record {backing_seq}: the cache has lost writes; run \
         `forebay check` on the cache"
    )]
    BehindBacking {
        /// The log's last record.
        last_seq: u64,
        /// The newest record of which the journal on the backing's side speaks.
        backing_seq: u64,
    },
}

/// What the volume is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Recovering.
    Starting,
    /// Serving.
    Healthy,
    /// Serving without writing to the cache, because a durable write to it failed (P9).
    Degraded,
    /// Serving, but writers wait for destaging to make room.
    Full,
    /// Refusing new requests.
    Stopping,
    /// Stopped cleanly; nothing is outstanding.
    Stopped,
    /// Another host has taken the backing over (P6): every request is answered with an error, for good.
    Fenced,
}

/// What a device was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The device.
    pub role: Role,
    /// What it was to do.
    pub kind: OpKind,
    /// Where, in bytes; `None` for a flush. On the backing it is the place in the volume.
    pub offset: Option<u64>,
    /// How many bytes; 0 for a flush.
    pub len: u64,
}

impl Asked {
    /// The device is asked for this operation.
    pub fn new(role: Role, op: &DeviceOp) -> Self {
        Self { role, kind: op.kind(), offset: op.offset(), len: op.bytes() }
    }
}

/// What a device answered when it failed an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// What it was asked.
    pub asked: Asked,
    /// The stable kind of the error.
    pub kind: ErrorKind,
    /// What was being done, in words for a person.
    pub context: &'static str,
    /// What was answered, where it was the system or a store that failed it.
    pub cause: Option<Cause>,
}

impl Trouble {
    pub(crate) fn new(asked: Asked, error: &IoError) -> Self {
        Self { asked, kind: error.kind, context: error.context, cause: error.cause.clone() }
    }

    /// The error.
    pub fn error(&self) -> IoError {
        IoError { kind: self.kind, context: self.context, cause: self.cause.clone() }
    }
}

/// What was asked, where, and the whole answer; such as `write of 4096 bytes at byte 8192: writing to a device: no space left`.
impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Asked { kind, offset, len, .. } = self.asked;
        f.write_str(kind.name())?;
        if let Some(offset) = offset {
            write!(f, " of {len} bytes at byte {offset}")?;
        }
        // The place has been said.
        let cause = self.cause.clone().map(|cause| Cause { offset: None, ..cause });
        write!(f, ": {}", IoError { cause, ..self.error() })
    }
}

/// What ails a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ailment {
    /// It was given an operation and has not answered.
    Silent,
    /// It is not there, which the host knows without an operation: the connection to its server is lost, or something fails on the
    /// way, of which this is what is known.
    Away(Option<IoError>),
    /// It answers with this error.
    Failing(Trouble),
}

/// A device below the cache that does not do what it is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ailing {
    /// Which one: the backing, or the journal on its side.
    pub role: Role,
    /// What ails it now.
    pub ailment: Ailment,
    /// Since when nothing has gone right: wall-clock time in nanoseconds since 1970.
    pub since_ns: u64,
}

impl Status {
    /// What the backing, or the journal on its side, answers while it fails what it is given.
    pub fn backing_trouble(&self) -> Option<&Trouble> {
        match &self.ailing.as_ref()?.ailment {
            Ailment::Failing(trouble) => Some(trouble),
            Ailment::Silent | Ailment::Away(_) => None,
        }
    }
}

/// Figures of a volume, all since start unless said otherwise.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// See [`State`]; `None` only in `Status::default()`.
    pub state: Option<State>,
    /// Bytes of the cache that hold log segments.
    pub cache_used_bytes: u64,
    /// Bytes of the cache that can hold log segments.
    pub cache_bytes: u64,
    /// Bytes that the backing lacks now; under `ordered` each version of a block counts that has to go there.
    pub dirty_bytes: u64,
    /// Bytes cached now, dirty and clean.
    pub cached_bytes: u64,
    /// Wall-clock time (ns since 1970) of the oldest write that the backing lacks, or a little before; `None` if it lacks none.
    pub oldest_dirty_ns: Option<u64>,
    /// Bytes that the backing and the journal on its side lack: what is lost with the cache. As `dirty_bytes` but under
    /// `journaled`, where it is an estimate.
    pub missing_bytes: u64,
    /// Wall-clock time (ns since 1970) before which they lack nothing, `None` if they lack nothing at all.
    pub oldest_missing_ns: Option<u64>,
    /// The backing alone is consistent, though stale (P4): the policy is `ordered` or `journaled`, and all that was acknowledged before it
    /// was chosen is on the backing.
    pub backing_consistent: bool,
    /// What ails the backing, or the journal on its side, now.
    pub ailing: Option<Ailing>,
    /// Wall-clock time (ns since 1970) at which the cache failed a durable write (P9); `None` if it has not.
    pub cache_failed_ns: Option<u64>,
    /// What the cache was asked and answered then.
    pub cache_trouble: Option<Trouble>,
    /// Wall-clock time (ns since 1970) from which on it was known that another host has taken the backing over (P6).
    pub fenced_ns: Option<u64>,
    /// Reads answered.
    pub reads: u64,
    /// Bytes read from the cache.
    pub read_bytes_hit: u64,
    /// Bytes read from the backing on behalf of clients.
    pub read_bytes_missed: u64,
    /// Writes (and zeroes) acknowledged.
    pub writes: u64,
    /// Flushes acknowledged.
    pub flushes: u64,
    /// Bytes of writes acknowledged.
    pub bytes_acknowledged: u64,
    /// Bytes of writes given to the cache, headers, summaries and those that failed included.
    pub bytes_to_cache: u64,
    /// Bytes of writes given to the backing, those that failed included, those that wait for it not.
    pub bytes_to_backing: u64,
    /// Bytes of writes given to the journal on the backing's side, those that failed included.
    pub bytes_to_journal: u64,
    /// Groups that were committed there.
    pub groups: u64,
    /// Groups under way or committed that have not been destaged.
    pub groups_waiting: u64,
    /// Groups that had to end where no point is although `group-ends` asks for one: nothing else made room for those who waited.
    pub groups_cut: u64,
    /// Consistency points that were committed.
    pub points: u64,
    /// Number of the point at which the backing alone is now, exactly; 0 if it is at none.
    pub backing_point: u64,
    /// Common point of the consistency group at which the backing is, 0 if it is at none.
    pub common_point: u64,
    /// Common point that is prepared on the backing's side and not decided, 0 if there is none.
    pub common_prepared: u64,
    /// The members of the consistency group should declare a point soon: the log wants room, or somebody waits.
    pub common_wanted: bool,
    /// Writes that entered the log.
    pub writes_admitted: u64,
    /// Writes that went to the backing without entering the cache.
    pub writes_bypassed: u64,
    /// How many of both there were for which reason; each write counts once, when it is acknowledged.
    pub reasons: ReasonCounts,
    /// Times writers were held back because the backing lacked nearly as much as `max-staleness` allows.
    pub holds: u64,
    /// Times writers waited for the backing to take what it has to take first, under `ordered`: the log fills with
    /// writes that depend on each other, or one that goes past the cache waits for its turn.
    pub paces: u64,
    /// Times a write had to wait because the log was full.
    pub stalls: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Blocks that failed their checksum when read from the cache.
    pub checksum_failures: u64,
    /// Failed operations of the backing, retried ones included.
    pub backing_errors: u64,
    /// Failed operations of the cache.
    pub cache_errors: u64,
    /// Log records written.
    pub records: u64,
    /// Memory of the index, slots and replacement state, in bytes.
    pub index_bytes: u64,
    /// Blocks in the index.
    pub index_blocks: u64,
    /// Requests under way.
    pub requests: u64,
    /// Operations that the backing carries out now.
    pub backing_outstanding: u64,
    /// Operations that wait for it now and that a client waits for.
    pub backing_waiting_critical: u64,
    /// Operations that wait for it now and that nobody is known to wait for.
    pub backing_waiting_noncritical: u64,
    /// Operations of the second kind that somebody came to wait for while they waited or were carried out.
    pub backing_promoted: u64,
    /// Operations that a client waits for and that the backing left for last: for their sake nothing was started for a while.
    pub backing_holds: u64,
    /// Journals that were found by the shape of their writes, from the first byte to the one behind the last, in order; at most 256.
    pub journals: Vec<(u64, u64)>,
}
