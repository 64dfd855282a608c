//! The coordinator: takes events in, asks the rooms, gives effects out. It alone knows them all, does what they tell, asks the
//! policies, and hands operations to the devices (`docs/design/architecture.md`, Rooms of the engine). What concerns one room lies in
//! a file of that room's name below.

use std::num::NonZeroU64;

use forebay_block::{BLOCK_BYTES, BlockNo, DeviceOp, DeviceResult, ErrorKind, IoError, Nanos, Op};
use forebay_format::record::Consistent;
use forebay_format::{Layout, VOLUME_BYTES_MAX};
use forebay_policy::{
    BACKING_SLOTS_MAX, Demand, Durability, Endurance, Journals, Ranges, Roominess, Settings, Throttle,
    WritePolicy,
};

use crate::backing::destage::Destage;
use crate::backing::flushes::Flushes;
use crate::backing::queue::BackingQueue;
use crate::client::requests::Requests;
use crate::failure::Failure;
use crate::groups::journal::Journal;
use crate::groups::points::Points;
use crate::groups::shared_points::CommonPoints;
use crate::interface::{
    Asked, Class, Command, Effect, Event, IoId, Params, PartKey, RequestId, Role, RunKey, State, Status,
};
use crate::locks::Locks;
use crate::log::Log;
use crate::log::reclaim::Reclaim;
use crate::log::recovery::Recovery;
use crate::map::Map;
use crate::mutation::Planted;
use crate::order::Order;
use crate::reading::Reading;
use crate::reading::pieces::PieceKey;
use crate::staleness::Hold;
use crate::stop::Commands;
use crate::tables::Table;
use crate::wakes::Wakes;
use crate::watch::Watch;

mod clients;
mod destage;
mod failure;
mod fence;
mod flushes;
mod groups;
mod log;
mod map;
mod order;
mod planted;
mod queue;
mod read_only;
mod reads;
mod recovery;
#[cfg(test)]
mod scale;
mod staleness;
mod stop;
mod throttle;

/// Whose device operation it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IoOwner {
    Log(crate::log::Io),
    Piece(PieceKey),
    BypassWrite(PartKey),
    BypassFlush(PartKey),
    BackingFlush,
    DestageWrite(RunKey),
    DestageFlush,
    GroupWrite,
    GroupFlush,
    JournalHead,
    RetireLog,
}

/// How far the volume's life has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    New,
    Recovering,
    RecoveryFailed,
    Running,
    Stopping,
    Stopped,
    /// The backing is another host's, for good.
    Fenced,
}

/// A volume's cache engine. See the crate's documentation.
pub struct Engine {
    layout: Layout,
    volume_bytes: u64,
    settings: Settings,
    ranges: Ranges,
    journals: Journals,
    endurance: Endurance,
    roominess: Roominess,
    wall_offset_ns: u64,
    now: Nanos,
    life: Life,
    map: Map,
    locks: Locks,
    log: Log,
    requests: Requests,
    reading: Reading,
    flushes: Flushes,
    destage: Destage,
    order: Order,
    journal: Journal,
    points: Points,
    common: CommonPoints,
    hold: Hold,
    reclaim: Reclaim,
    demand: Demand,
    throttle: Throttle,
    /// What it was told last of how much room was made: that never shrinks.
    throttle_made: u64,
    failure: Failure,
    /// Since when the backing is another host's.
    fenced_at: Option<Nanos>,
    commands: Commands,
    /// No device is changed, see [`read_only`].
    read_only: bool,
    /// The command to stop a volume that is only read, and whether it asks for what that does not do.
    looking_ends: Option<(RequestId, bool)>,
    /// Until the volume serves.
    recovery: Option<Box<Recovery>>,
    figures: Status,
    planted: Planted,
    effects: Vec<Effect>,
    backing: BackingQueue,
    /// Operations that may be outstanding there.
    backing_slots: usize,
    wakes: Wakes,
    watch: Watch,
    ios: Table<IoId, (IoOwner, Option<Asked>)>,
    next_io: u64,
}

impl Engine {
    /// An engine that has not started; call [`Engine::poll`] to begin recovery.
    ///
    /// # Panics
    /// If the layout or the volume's size is one that the format does not allow: the host has validated both.
    pub fn new(params: Params) -> Self {
        Self::planted(params, Planted::default())
    }

    /// As [`Engine::new`], with planted bugs.
    fn planted(params: Params, planted: Planted) -> Self {
        let layout = params.layout;
        assert!(layout.validate().is_ok(), "the host validates the superblock");
        assert!(params.volume_bytes.is_multiple_of(512) && params.volume_bytes <= VOLUME_BYTES_MAX);
        let recovery = Recovery::new(layout, params.volume_bytes, params.clean_stop, planted);
        Self {
            layout,
            volume_bytes: params.volume_bytes,
            settings: params.settings,
            ranges: Ranges::default(),
            journals: Journals::default(),
            endurance: Endurance::default(),
            roominess: Roominess::default(),
            wall_offset_ns: params.wall_offset_ns,
            now: Nanos(0),
            life: Life::New,
            map: Map::new(&layout, planted),
            locks: Locks::default(),
            log: Log::new(layout, planted),
            requests: Requests::new(params.volume_bytes).in_front_of(params.backing_forgets),
            reading: Reading::new(layout, params.volume_bytes),
            flushes: Flushes::new(params.clean_stop),
            destage: Destage::of_units(
                params.backing_unit_bytes.and_then(|unit| NonZeroU64::new(unit / BLOCK_BYTES)),
            ),
            order: Order::new(&params.settings, params.journal.is_some(), params.journal_left),
            journal: Journal::new(params.journal, params.prepared).in_place(params.commits_in_place),
            points: Points::default(),
            common: CommonPoints::default(),
            hold: Hold::default(),
            reclaim: Reclaim::new(layout, planted),
            demand: Demand::default(),
            throttle: Throttle::default(),
            throttle_made: 0,
            failure: Failure::default(),
            fenced_at: None,
            commands: Commands::default(),
            read_only: params.read_only,
            looking_ends: None,
            recovery: Some(Box::new(recovery)),
            figures: Status::default(),
            planted,
            effects: Vec::new(),
            backing: BackingQueue::new(params.settings.scheduler.build()),
            backing_slots: params.backing_depth.clamp(1, BACKING_SLOTS_MAX),
            wakes: Wakes::default(),
            watch: Watch::default(),
            ios: Table::default(),
            next_io: 0,
        }
    }

    /// Takes one event in. Effects come from the next [`Engine::poll`]; handing in several events before one poll
    /// lets their writes share a batch.
    ///
    /// # Panics
    /// If an I/O is reported that was not asked for, or a read that succeeded with the wrong length: the world
    /// breaks its contract then, and going on would risk data.
    pub fn handle(&mut self, event: Event, now: Nanos) {
        self.now = self.now.max(now);
        match event {
            Event::Request { id, op, origin } => self.request_arrived(id, op, origin),
            Event::Io { id, result } => self.io_done(id, result),
            Event::Fenced => self.fence(),
            Event::Promote { .. } if self.life == Life::Fenced => {}
            Event::Promote { offset, len } => self.promote(offset, len),
            Event::Command { id, command } => self.command_arrived(id, command),
        }
    }

    /// Moves everything forward that can move, and appends what is to be done to `effects`.
    pub fn poll(&mut self, now: Nanos, effects: &mut Vec<Effect>) {
        self.now = self.now.max(now);
        match self.life {
            Life::New | Life::Recovering => self.recovery_step(),
            Life::RecoveryFailed | Life::Stopped | Life::Fenced => {}
            Life::Running | Life::Stopping if self.read_only => self.look_step(),
            Life::Running | Life::Stopping => self.run(),
        }
        if self.life != Life::Fenced {
            self.backing_start();
        }
        effects.append(&mut self.effects);
    }

    /// One round of everything that moves while the volume runs. The order matters only for speed: what frees room
    /// comes before what needs it.
    fn run(&mut self) {
        loop {
            let awaited = self.room_is_awaited();
            self.log_acknowledge();
            self.destage_retry_unreadable();
            self.order_step();
            self.journal_step();
            let progress = self.order.progress();
            self.requests_start_waiting();
            self.reclaim_step();
            self.log_form_batches();
            self.log_flush_if_wanted();
            self.destage_step();
            // Only now is it known whether what is still dirty can be read at all.
            let failure_moved = self.failure_step();
            // A command that moved on may have given the other parts something to do, and so may a failure, a set that is complete, or the
            // last group of a policy that is left.
            let left = self.order.is_leaving() && self.journal.is_empty();
            let moved = self.commands_step() || failure_moved || left || self.order.progress() != progress;
            // Whatever the later steps queued goes out in the same round.
            self.log_form_batches();
            self.log_flush_if_wanted();
            // For who has come to wait for room a group may end early.
            let hurries = self.room_is_awaited() && !awaited;
            if !(moved || hurries) || self.life == Life::Stopped {
                break;
            }
        }
    }

    /// When [`Engine::poll`] wants to be called even if no event arrives; `None` if never.
    pub fn next_wake(&self) -> Option<Nanos> {
        if !matches!(self.life, Life::Running | Life::Stopping) {
            return None;
        }
        if self.read_only {
            return self.backing.next_wake();
        }
        [
            self.log.next_wake(self.now),
            self.destage_next_wake(),
            self.throttle_next_wake(),
            self.order_next_wake(),
            self.journal_next_wake(),
            self.staleness_next_wake(),
            self.common_next_wake(),
            self.failure.next_wake(self.now),
            self.backing.next_wake(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn io_done(&mut self, id: IoId, result: DeviceResult) {
        #[expect(clippy::panic, reason = "an unknown completion means that device and engine disagree")]
        let Some((owner, asked)) = self.ios.remove(&id) else { panic!("completion of unknown {id:?}") };
        self.backing.ended(id);
        self.watch.ended(id, &result, self.now, self.retries());
        if self.is_fenced_by(asked, &result) {
            return;
        }
        let latched = self.failure.latched();
        match owner {
            IoOwner::Log(owner) => self.log_io_done(owner, result),
            IoOwner::Piece(key) => self.piece_read_done(key, result),
            IoOwner::BypassWrite(part) => self.bypass_write_done(part, result),
            IoOwner::BypassFlush(part) => self.bypass_flush_done(part, result),
            IoOwner::BackingFlush => self.backing_flush_done(result),
            IoOwner::DestageWrite(run) => self.destage_write_done(run, result),
            IoOwner::DestageFlush => self.destage_flush_done(result),
            IoOwner::GroupWrite => self.group_write_done(result),
            IoOwner::GroupFlush => self.group_flush_done(result),
            IoOwner::JournalHead => self.head_write_done(result),
            IoOwner::RetireLog => self.retire_done(result),
        }
        if !latched && self.failure.latched() {
            asked.into_iter().for_each(|asked| self.failure.was_asked(asked));
        }
    }

    /// Asks for a device operation; those of the backing stand in its queue first. The journal on its side writes one at a time.
    fn io(&mut self, role: Role, op: DeviceOp, class: Class, owner: IoOwner) {
        assert!(!(self.read_only && op.changes()), "a volume that is only read changes nothing");
        let id = self.new_io(owner, Some(Asked::new(role, &op)));
        match role {
            Role::Cache => self.figures.bytes_to_cache += op.write_bytes(),
            Role::Backing => return self.backing_push(id, op, class.into(), owner),
            Role::Journal => {
                self.figures.bytes_to_journal += op.write_bytes();
                self.watch.started(id, role, &op, self.now);
            }
        }
        self.effects.push(Effect::Io { id, role, op, class });
    }

    /// Names an operation; `asked`: what a device is asked, if it is one's.
    fn new_io(&mut self, owner: IoOwner, asked: Option<Asked>) -> IoId {
        self.next_io += 1;
        let id = IoId(self.next_io);
        self.ios.insert(id, (owner, asked));
        id
    }

    /// Something that the backing, or the journal on its side, has failed is to be tried again.
    fn retries(&self) -> bool {
        self.map.segments().dirty() > 0 && (self.destage.failures() > 0 || self.journal.failures() > 0)
    }

    /// The operation will not be carried out.
    fn forget_io(&mut self, id: IoId) {
        self.ios.remove(&id);
    }

    /// Device operations under way.
    fn ios_under_way(&self) -> usize {
        self.ios.len()
    }

    fn wall_ns(&self) -> u64 {
        self.wall_offset_ns.saturating_add(self.now.0)
    }

    /// Bytes of `block` that lie within the volume: 4096 but for the last block of an odd-sized one.
    fn bytes_within(&self, block: BlockNo, blocks: u64) -> u64 {
        (blocks * BLOCK_BYTES).min(self.volume_bytes - block.offset())
    }

    fn command_arrived(&mut self, id: RequestId, command: Command) {
        match command {
            command if self.life == Life::Fenced => self.fenced_command(id, &command),
            command if self.read_only => self.look_command(id, command),
            Command::Set(settings)
                if settings.write_policy == WritePolicy::Journaled && !self.journal.exists() =>
            {
                let error = IoError::new(
                    ErrorKind::Unsupported,
                    "write-policy journaled of a volume without a journal; serve it with --journal LOCATION on the backing's side",
                );
                self.effects.push(Effect::CommandDone { id, result: Err(error) });
            }
            Command::Set(settings) => {
                // What was written without its own durability must be flushed before the stricter mode begins to
                // promise it for what follows.
                if settings.durability == Durability::Write {
                    self.log.want_durable(self.log.written_upto());
                }
                self.follow(settings);
                self.order_follow_policy();
                self.effects.push(Effect::CommandDone { id, result: Ok(()) });
            }
            Command::SetRanges(ranges) => {
                self.ranges = ranges;
                self.effects.push(Effect::CommandDone { id, result: Ok(()) });
            }
            Command::SetEndurance(bytes) => {
                self.endurance.set(bytes);
                self.effects.push(Effect::CommandDone { id, result: Ok(()) });
            }
            Command::Mark { label } => self.mark_command(id, label),
            Command::Common { round, run, step } => self.common_command(id, round, run, step),
            Command::Destage => self.destage_command(id),
            Command::Stop { destage } => self.stop_command(id, destage),
        }
    }

    fn request_arrived(&mut self, id: RequestId, op: Op, origin: forebay_block::Origin) {
        let refusal = match self.life {
            Life::Running => forebay_block::check_bounds(&op, self.volume_bytes).err(),
            Life::Stopping | Life::Stopped => Some(IoError::new(ErrorKind::Shutdown, "request")),
            Life::Fenced => Some(fence::FENCED),
            _ => Some(IoError::new(ErrorKind::Io, "request before recovery has ended")),
        };
        if let Some(error) = refusal {
            self.figures.errors += 1;
            self.effects.push(Effect::Reply { id, result: Err(error) });
            return;
        }
        match op {
            op if self.read_only => self.look_at(id, op, origin),
            Op::Read { offset, len } => self.read_request(id, (offset, len), origin),
            Op::Write { offset, data, fua } => self.write_request(id, offset, data, fua, origin),
            Op::Zero { offset, len, unmap, fua } => self.zero_request(id, offset, len, unmap, fua, origin),
            Op::Flush => self.flush_request(id, origin),
            Op::Status { offset, len, extents_max } => self.status_request(id, offset, len, extents_max),
        }
    }

    /// [`Status::backing_consistent`] alone.
    pub fn backing_is_consistent(&self) -> bool {
        self.backing_consistent() > Consistent::No && matches!(self.life, Life::Running | Life::Stopping)
    }

    /// [`Status::backing_waiting_critical`] and [`Status::backing_waiting_noncritical`] alone.
    pub fn backing_waiting(&self) -> (usize, usize) {
        self.backing.waiting()
    }

    /// Figures as of `now`.
    pub fn status(&self, now: Nanos) -> Status {
        let state = match self.life {
            Life::New | Life::Recovering => State::Starting,
            Life::RecoveryFailed => State::Degraded,
            Life::Running if self.failure.latched() => State::Degraded,
            Life::Running if self.room_is_awaited() || self.throttle_next_wake().is_some() => State::Full,
            Life::Running => State::Healthy,
            Life::Stopping => State::Stopping,
            Life::Stopped => State::Stopped,
            Life::Fenced => State::Fenced,
        };
        let segment_bytes = u64::from(self.layout.segment_bytes);
        Status {
            state: Some(state),
            cache_bytes: segment_bytes * u64::from(self.layout.segment_count),
            cache_used_bytes: segment_bytes
                * (self.map.segments().count() - self.map.segments().free_count()) as u64,
            dirty_bytes: self.map.segments().dirty() * BLOCK_BYTES,
            cached_bytes: self.map.len() as u64 * BLOCK_BYTES,
            oldest_dirty_ns: self.map.oldest_dirty_ns(),
            missing_bytes: self.missing_bytes(),
            oldest_missing_ns: self
                .journal_missing()
                .map_or(self.map.oldest_dirty_ns(), |(_, oldest)| oldest),
            groups_waiting: self.journal.groups() as u64,
            backing_point: if self.backing_is_consistent() { self.journal.point() } else { 0 },
            backing_consistent: self.backing_is_consistent(),
            common_point: if self.backing_is_consistent() { self.journal.common_state().0 } else { 0 },
            common_prepared: self.journal.common_state().1,
            common_wanted: self.common_is_wanted() && self.life == Life::Running && self.common_presses(),
            ailing: self.watch.ailing(self.now.max(now), self.retries(), self.wall_offset_ns),
            fenced_ns: self.fenced_at.map(|at| self.wall_offset_ns.saturating_add(at.0)),
            cache_failed_ns: self.failure.since().map(|at| self.wall_offset_ns.saturating_add(at.0)),
            cache_trouble: self.failure.trouble(),
            index_bytes: self.map.bytes() as u64,
            index_blocks: self.map.len() as u64,
            requests: self.requests.len() as u64,
            backing_outstanding: self.backing.outstanding() as u64,
            backing_waiting_critical: self.backing.waiting().0 as u64,
            backing_waiting_noncritical: self.backing.waiting().1 as u64,
            backing_promoted: self.backing.promoted(),
            backing_holds: self.backing.holds(),
            journals: self.journals.found().collect(),
            ..self.figures
        }
    }

    /// The backing alone is consistent (P4), with the journal if there are groups in it, and what lies on its side says so.
    fn backing_consistent(&self) -> Consistent {
        match self.order.is_journaled() && !self.journal.says_consistent() {
            true => Consistent::No,
            false => self.order.consistent(),
        }
    }
}
