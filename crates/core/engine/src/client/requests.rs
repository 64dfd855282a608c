//! Client requests. A write or zero request consists of *parts*: block ranges that go one way each.
//!
//! ```text
//!            locks                base blocks read (only if the part covers a block in part)
//!  Waiting ─────────► ReadingBase ───────────────┬──► Appending ────────────────────────────► done
//!     ▲                                          └──► BypassWriting ─► BypassFlushing ─► Superseding
//!     └── the log has failed: begin again as a bypass                          └► AwaitingRetirement ─► done
//!                                                    (write-through) CopyingClean: answered, locks still held
//! ```
//! A bypass that somebody comes to wait for turns to Appending as long as it is not on the backing (see `reissue`).

use std::collections::{BTreeMap, VecDeque};

use forebay_block::{BLOCK_BYTES, BlockNo, Buf, BufMut, ErrorKind, IoError, Origin, Reply, Seq, blocks_of};
use forebay_format::record::{Extent, ExtentKind};
use forebay_policy::{Admission, AdmissionReason, Decision, Durability, OnFull, WriteContext, WritePolicy};

use crate::backing::flushes::flush_failed_error;
use crate::client::reissue::Landing;
use crate::engine::Engine;
use crate::groups::points::Point;
use crate::interface::{Class, Effect, PartKey, RequestId};
use crate::locks::{BlockRange, Hold};
use crate::log::{Append, AppendOwner};
use crate::mutation::Mutation;
use crate::tables::Table;
use crate::wakes::{Change, Sleeper};

/// Zeroes of more blocks than this (1 MiB) go to the backing directly: in the log they would cost a slot a block.
pub(crate) const ZERO_BLOCKS_LOGGED_MAX: u64 = 256;

/// What a part does to its range.
#[derive(Clone, Debug)]
pub(crate) enum Payload {
    /// Data, from byte `offset` of the volume.
    Data { offset: u64, data: Buf },
    /// Whole blocks of zeroes.
    Zero { unmap: bool },
}

/// Which way a part goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    Log,
    Bypass,
}

/// Which way a request goes, and whether somebody is known to wait for it.
#[derive(Clone, Copy)]
struct Way {
    path: Path,
    critical: bool,
    sync: bool,
}

impl Way {
    fn of(reason: AdmissionReason, origin: Origin, fua: bool) -> Self {
        let path = if reason.is_cached() { Path::Log } else { Path::Bypass };
        // Where the policy does not ask who waits, somebody does.
        let unawaited = matches!(
            reason,
            AdmissionReason::NotCritical | AdmissionReason::NotSynchronous | AdmissionReason::OverRate
        );
        Self { path, critical: !unawaited || origin.is_awaited(fua), sync: origin.is_sync(fua) }
    }
}

/// Where a part is; see the drawing above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartState {
    Waiting,
    ReadingBase { outstanding: u32 },
    Appending { pieces: u32 },
    BypassWriting,
    BypassFlushing { losses: u64 },
    Superseding,
    AwaitingRetirement,
    CopyingClean { pieces: u32 },
    Landing,
}

/// A block range of a request that goes one way.
pub(crate) struct Part {
    pub(crate) request: RequestId,
    pub(crate) range: BlockRange,
    pub(crate) payload: Payload,
    pub(crate) path: Path,
    pub(crate) hold: Hold,
    /// Its acknowledgement promises to survive a power cut: as the settings were when it arrived.
    pub(crate) durable: bool,
    /// Its write to the backing is durable when it ends: by promise, or for another reason.
    pub(crate) written_durably: bool,
    /// Its acknowledgement may come from the log although it began as a bypass: it does not promise that the backing has
    /// it, as the settings were when it arrived.
    pub(crate) reissuable: bool,
    /// A request is known to wait for it, or nothing is known.
    pub(crate) critical: bool,
    /// Its issuer waits for it: it was flagged synchronous, or asked for forced unit access.
    pub(crate) sync: bool,
    /// It is a bypass that ends with a supersede record, and holds its blocks until then.
    pub(crate) supersedes: bool,
    /// The newest record that it depends on: as things were when it arrived.
    pub(crate) after: Seq,
    /// Failed flushes of the backing when it was written there.
    pub(crate) losses: u64,
    pub(crate) state: PartState,
    /// The whole blocks, once base and payload are put together.
    pub(crate) blocks: Option<Buf>,
    base_first: Option<Buf>,
    base_last: Option<Buf>,
    error: Option<IoError>,
}

/// A request of a client that changes data.
struct Request {
    parts: u32,
    bytes: u64,
    /// Why it went where it went.
    reason: AdmissionReason,
    /// Parts of it are on the backing, and need a flush of it.
    bypassed: bool,
    /// Force unit access: whatever comes after its acknowledgement comes after it under `order = barrier`.
    fua: bool,
    error: Option<IoError>,
}

/// A flush that waits for what was acknowledged before it.
struct Flush {
    id: RequestId,
    log_upto: Seq,
    /// The consistency point that it is, if each flush is one.
    point: Point,
    backing_epoch: u64,
    /// Requests with volatile bypasses that had been acknowledged when it came.
    bypasses: u64,
}

/// Requests under way.
#[derive(Default)]
pub(crate) struct Requests {
    requests: Table<RequestId, Request>,
    pub(crate) parts: BTreeMap<PartKey, Part>,
    waiting: VecDeque<PartKey>,
    /// Backing writes of parts that were reissued to the log while these were in flight; their blocks are held on the
    /// backing.
    pub(crate) landings: BTreeMap<PartKey, Landing>,
    /// A bypass waits until the log has room for its supersede record, or it needs none any more.
    pub(crate) supersede_waits: bool,
    flushes: Vec<Flush>,
    next_part: u64,
}

impl Requests {
    pub(crate) fn len(&self) -> usize {
        self.requests.len() + self.flushes.len()
    }

    /// Nothing is under way, locks held for clean copies included.
    pub(crate) fn is_idle(&self) -> bool {
        self.requests.is_empty() && self.parts.is_empty() && self.flushes.is_empty()
    }

    /// The part that arrived last.
    pub(crate) fn newest_part(&self) -> PartKey {
        PartKey(self.next_part)
    }

    /// Whether one of the parts up to `last` is under way.
    pub(crate) fn has_upto(&self, last: PartKey) -> bool {
        self.parts.first_key_value().is_some_and(|(first, _)| *first <= last)
    }

    fn waiting_criticals(&self) -> impl Iterator<Item = &Part> {
        self.waiting.iter().filter_map(|key| self.parts.get(key)).filter(|p| p.critical)
    }

    /// Somebody waits for these parts, in the order of their keys; and so for what waits before them for the same blocks, or for those of one
    /// that does.
    pub(crate) fn are_awaited(&mut self, keys: &[PartKey]) {
        for key in keys {
            if let Some(part) = self.parts.get_mut(key) {
                part.critical = true;
            }
        }
        let mut awaited: Vec<BlockRange> = Vec::new();
        for key in self.waiting.iter().rev() {
            if let Some(part) = self.parts.get_mut(key)
                && (keys.binary_search(key).is_ok() || awaited.iter().any(|range| range.overlaps(part.range)))
            {
                part.critical = true;
                awaited.push(part.range);
            }
        }
    }

    /// A critical bypass waits.
    pub(crate) fn critical_bypass_waits(&self) -> bool {
        self.waiting_criticals().any(|p| p.path == Path::Bypass)
    }

    /// The blocks of critical writes that wait.
    pub(crate) fn critical_waiting(&self) -> impl Iterator<Item = BlockRange> {
        self.waiting_criticals().map(|p| p.range)
    }

    pub(crate) fn flush_waits_for_backing(&self, epoch_done: u64) -> bool {
        self.flushes.iter().any(|f| f.backing_epoch > epoch_done)
    }
}

impl Part {
    /// Whether somebody waits for what it asks of the backing.
    pub(crate) fn class(&self) -> Class {
        if self.critical { Class::Foreground } else { Class::Background }
    }

    fn covers_whole_blocks(&self, volume_bytes: u64) -> bool {
        match &self.payload {
            Payload::Zero { .. } => true,
            Payload::Data { offset, data } => {
                let end = offset + data.len() as u64;
                offset.is_multiple_of(BLOCK_BYTES) && (end.is_multiple_of(BLOCK_BYTES) || end == volume_bytes)
            }
        }
    }
}

impl Engine {
    pub(crate) fn write_request(&mut self, id: RequestId, offset: u64, data: Buf, fua: bool, origin: Origin) {
        if data.is_empty() {
            self.effects.push(Effect::Reply { id, result: Ok(Reply::Done) });
            return;
        }
        let bytes = data.len() as u64;
        let reason = self.choose((offset, bytes), blocks_of(offset, bytes).1, origin, fua);
        let way = Way::of(reason, origin, fua);
        self.open_request(id, 1, bytes, fua, reason);
        self.add_data_part(id, offset, data, fua, way);
    }

    /// A zero request is up to three parts: whole blocks in the middle, and at the ends parts of blocks, which are
    /// writes of zeroes.
    pub(crate) fn zero_request(
        &mut self,
        id: RequestId,
        offset: u64,
        len: u64,
        unmap: bool,
        fua: bool,
        origin: Origin,
    ) {
        let end = offset + len;
        let first = offset.next_multiple_of(BLOCK_BYTES).min(end);
        let whole_end = if end == self.volume_bytes { end } else { end - end % BLOCK_BYTES };
        let last = whole_end.max(first);
        if len == 0 {
            self.effects.push(Effect::Reply { id, result: Ok(Reply::Done) });
            return;
        }
        let (block, blocks) = blocks_of(first, last - first);
        let long = last > first && blocks > ZERO_BLOCKS_LOGGED_MAX;
        let edges = [(offset, first - offset), (last, end - last)];
        let entering = if long { edges.len() as u64 } else { blocks_of(offset, len).1 };
        let reason = self.choose((offset, len), entering, origin, fua);
        let way = Way::of(reason, origin, fua);
        let count = edges.iter().filter(|(_, n)| *n > 0).count() + usize::from(last > first);
        // A zero carries no data: counted, it would hide what the cache writes for each byte of a client.
        let of_all = if long && reason.is_cached() { AdmissionReason::LongZero } else { reason };
        self.open_request(id, count as u32, 0, fua, of_all);
        for (at, n) in edges {
            if n > 0 {
                self.add_data_part(id, at, Buf::zeroed(n as usize), fua, way);
            }
        }
        if last > first {
            let way = if long { Way { path: Path::Bypass, ..way } } else { way };
            self.add_part(id, BlockRange::new(block, blocks), Payload::Zero { unmap }, fua, way);
        }
    }

    /// Which way a write of these bytes goes, and why. So many blocks of it would enter the log.
    fn choose(
        &mut self,
        (offset, len): (u64, u64),
        entering: u64,
        origin: Origin,
        fua: bool,
    ) -> AdmissionReason {
        let in_range = self.ranges.touch(offset, len);
        let roomy = self.settings.admission == Admission::Adaptive && self.is_roomy();
        let (to_points, sync) = (self.points_are_kept(), origin.is_sync(fua));
        let context = WriteContext { origin, fua, in_range, roomy };
        match self.settings.admission.decide(&context) {
            Decision::Bypass(_) if to_points => AdmissionReason::GroupEnds,
            Decision::Cache(reason) if to_points => reason,
            Decision::Bypass(reason) => reason,
            Decision::Cache(_) if self.failure.latched() => AdmissionReason::CacheFailed,
            Decision::Cache(_) if self.settings.write_policy == WritePolicy::WriteThrough => {
                AdmissionReason::WriteThrough
            }
            Decision::Cache(_) if self.settings.on_full == OnFull::Bypass && !self.log_has_room() => {
                AdmissionReason::NoRoom
            }
            // Where an order is kept a bypass would wait for all before it, and everybody for the bypass.
            Decision::Cache(AdmissionReason::Reissued)
                if !self.order.keeps_versions() && entering > self.reissue_spare(sync) =>
            {
                AdmissionReason::NoRoom
            }
            Decision::Cache(AdmissionReason::Reissued) => AdmissionReason::Reissued,
            Decision::Cache(reason) => {
                self.demand.add(self.now.0, entering);
                reason
            }
        }
    }

    /// Whether the log has room for what nobody waits for, and the endurance budget lasts.
    fn is_roomy(&mut self) -> bool {
        let pressure = self.destage_pressure();
        // It counts the days, also those without room.
        let lasts = self.endurance.lasts(self.figures.bytes_to_cache, self.now.0 / 1_000_000_000);
        self.roominess.look(&pressure, self.now.0) && self.log_has_room() && lasts
    }

    fn open_request(&mut self, id: RequestId, parts: u32, bytes: u64, fua: bool, reason: AdmissionReason) {
        let request = Request { parts, bytes, reason, bypassed: false, fua, error: None };
        self.requests.requests.insert(id, request);
    }

    fn add_data_part(&mut self, id: RequestId, offset: u64, data: Buf, fua: bool, way: Way) {
        let (first, count) = blocks_of(offset, data.len() as u64);
        self.add_part(id, BlockRange::new(first, count), Payload::Data { offset, data }, fua, way);
    }

    fn add_part(&mut self, request: RequestId, range: BlockRange, payload: Payload, fua: bool, way: Way) {
        self.requests.next_part += 1;
        let key = PartKey(self.requests.next_part);
        let part = Part {
            request,
            range,
            payload,
            path: way.path,
            hold: Hold::LogWrite,
            durable: fua && !self.mutant(Mutation::ForgetsFua)
                || self.settings.durability == Durability::Write,
            written_durably: false,
            reissuable: self.settings.write_policy != WritePolicy::WriteThrough,
            critical: way.critical,
            sync: way.sync,
            supersedes: false,
            after: self.order_dependence(),
            losses: 0,
            state: PartState::Waiting,
            blocks: None,
            base_first: None,
            base_last: None,
            error: None,
        };
        self.requests.parts.insert(key, part);
        if self.must_wait(key) || !self.try_start(key) {
            self.requests.waiting.push_back(key);
            if way.critical {
                self.requests.are_awaited(&[key]);
            }
        }
    }

    /// Whether a waiting part touches the same blocks: no part overtakes another there.
    fn must_wait(&self, key: PartKey) -> bool {
        let Some(part) = self.requests.parts.get(&key) else {
            return false;
        };
        self.requests
            .waiting
            .iter()
            .any(|w| self.requests.parts.get(w).is_some_and(|w| w.range.overlaps(part.range)))
    }

    pub(crate) fn requests_start_waiting(&mut self) {
        // Segments become free when their last reader has gone, too.
        let room = self.requests.supersede_waits && self.log_room_for_supersedes() > 0;
        if self.wakes.is_awake(Sleeper::Parts) || room {
            self.wakes.tried(Sleeper::Parts, true);
            self.order.forget_bypass_waits();
            self.requests.supersede_waits = false;
            // Of those that go on waiting: no part overtakes another on the same blocks.
            let mut ahead: Vec<BlockRange> = Vec::new();
            let mut at = 0;
            while let Some(key) = self.requests.waiting.get(at).copied() {
                let range = self.requests.parts.get(&key).map(|part| part.range);
                if range.is_some_and(|r| ahead.iter().any(|a| a.overlaps(r))) || !self.try_start(key) {
                    ahead.extend(range);
                    at += 1;
                } else {
                    self.requests.waiting.remove(at);
                }
            }
        }
        self.flushes_answer();
    }

    /// Refuses the bypasses that wait for what only the backing could do.
    pub(crate) fn requests_refuse_bypasses(&mut self) {
        let bypass = |key: &PartKey| self.requests.parts.get(key).is_some_and(|p| p.path == Path::Bypass);
        let (refused, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.requests.waiting).into_iter().partition(bypass);
        self.requests.waiting = waiting.into();
        self.requests.supersede_waits = false;
        for key in refused {
            let error = IoError::new(ErrorKind::Shutdown, "write that waited for the backing");
            self.part_answer(key, Some(error));
        }
    }

    /// Takes the part's locks and begins; false if it must wait.
    fn try_start(&mut self, key: PartKey) -> bool {
        let volume_bytes = self.volume_bytes;
        let latched = self.failure.latched();
        let planted = self.planted;
        let Some(part) = self.requests.parts.get_mut(&key) else {
            return true;
        };
        if latched && part.path == Path::Log {
            part.path = Path::Bypass;
            let request = part.request;
            self.request_turned(request, AdmissionReason::CacheFailed);
        }
        let Some(part) = self.requests.parts.get_mut(&key) else {
            return true;
        };
        let whole = part.covers_whole_blocks(volume_bytes);
        part.hold = match part.path {
            Path::Log if whole => Hold::LogWrite,
            Path::Log if planted.is(Mutation::StaleBase) => Hold::LogWrite,
            Path::Log => Hold::Exclusive,
            Path::Bypass if planted.is(Mutation::BypassIgnoresDestage) => Hold::Exclusive,
            Path::Bypass => Hold::ExclusiveBacking,
        };
        let (range, hold, after, bypass) = (part.range, part.hold, part.after, part.path == Path::Bypass);
        match self.failure_gate(range) {
            crate::failure::Gate::Pass => {}
            crate::failure::Gate::Wait => return false,
            crate::failure::Gate::Refuse => {
                self.part_answer(key, Some(Self::log_failed_error()));
                return true;
            }
        }
        let supersedes = bypass && !self.failure.latched() && self.needs_supersede(range);
        if supersedes && !self.supersede_has_room()
            || bypass && !self.order_allows(key, after, range)
            || !self.locks.try_take(range, hold)
        {
            return false;
        }
        if let Some(part) = self.requests.parts.get_mut(&key) {
            part.supersedes = supersedes;
        }
        if whole {
            self.part_assemble(key)
        } else {
            self.part_read_base(key)
        }
        true
    }

    /// Reads the blocks that the part covers only partly.
    fn part_read_base(&mut self, key: PartKey) {
        let Some(part) = self.requests.parts.get_mut(&key) else {
            return;
        };
        let Payload::Data { offset, data } = &part.payload else {
            return;
        };
        let (offset, end) = (*offset, *offset + data.len() as u64);
        let last = BlockNo(part.range.end() - 1);
        let cut_first = !offset.is_multiple_of(BLOCK_BYTES);
        let cut_last = !end.is_multiple_of(BLOCK_BYTES) && end != self.volume_bytes;
        let mut bases = Vec::new();
        if cut_first {
            bases.push((part.range.first, true));
        }
        if cut_last && !(cut_first && part.range.count == 1) {
            bases.push((last, false));
        }
        part.state = PartState::ReadingBase { outstanding: bases.len() as u32 };
        for (block, is_first) in bases {
            self.read_base(key, block, is_first);
        }
    }

    /// A base block has been read (4096 bytes, zero beyond the volume's end).
    pub(crate) fn base_read(&mut self, key: PartKey, is_first: bool, result: Result<Buf, IoError>) {
        let Some(part) = self.requests.parts.get_mut(&key) else {
            return;
        };
        match result {
            Ok(buf) if is_first => part.base_first = Some(buf),
            Ok(buf) => part.base_last = Some(buf),
            Err(error) => part.error = Some(error),
        }
        let PartState::ReadingBase { outstanding } = &mut part.state else {
            return;
        };
        *outstanding -= 1;
        if *outstanding > 0 {
            return;
        }
        match part.error.take() {
            Some(error) => self.part_finish(key, Some(error)),
            None => self.part_assemble(key),
        }
    }

    /// Puts base and payload together into whole blocks and sends the part on its way.
    fn part_assemble(&mut self, key: PartKey) {
        let Some(part) = self.requests.parts.get_mut(&key) else {
            return;
        };
        if let Payload::Data { offset, data } = &part.payload {
            let bytes = (part.range.count * BLOCK_BYTES) as usize;
            part.blocks = Some(if data.len() == bytes {
                data.clone()
            } else {
                let mut whole = BufMut::zeroed(bytes);
                if self.planted.is(Mutation::ForgetsRestOfBlock) {
                    part.base_last = None;
                }
                if let Some(base) = part.base_first.take() {
                    whole[..base.len()].copy_from_slice(&base);
                }
                if let Some(base) = part.base_last.take() {
                    whole[bytes - 4096..][..base.len()].copy_from_slice(&base);
                }
                let at = (offset - part.range.first.offset()) as usize;
                whole[at..at + data.len()].copy_from_slice(data);
                whole.freeze()
            });
        }
        if self.failure.latched() && part.path == Path::Log {
            self.part_restart(key);
            return;
        }
        match part.path {
            Path::Log => self.part_append(key),
            Path::Bypass => self.bypass_begin(key),
        }
    }

    pub(crate) fn part_append(&mut self, key: PartKey) {
        let max = self.piece_blocks_max();
        let Some(part) = self.requests.parts.get_mut(&key) else {
            return;
        };
        let (durable, after) = (part.durable, part.after);
        let kind = if part.blocks.is_some() { ExtentKind::Data } else { ExtentKind::Zero };
        let appends =
            pieces(part.range, kind, part.blocks.as_ref(), max, (AppendOwner::Part(key), durable, after));
        part.state = PartState::Appending { pieces: appends.len() as u32 };
        if part.hold != Hold::LogWrite {
            // From here on the log keeps the order. While the part waits for room, the mark that one of its blocks is
            // lost may have to be moved out of its way.
            let (range, hold) = (part.range, part.hold);
            part.hold = Hold::LogWrite;
            self.release(range, hold);
            assert!(self.locks.try_take(range, Hold::LogWrite), "what was held alone can be shared");
        }
        for append in appends {
            self.log_append(append);
        }
    }

    /// One more piece of a part is under way: the log has split one.
    pub(crate) fn part_piece_split(&mut self, owner: AppendOwner) {
        let (AppendOwner::Part(key) | AppendOwner::CleanCopy(key)) = owner else {
            return;
        };
        let state = self.requests.parts.get_mut(&key).map(|p| &mut p.state);
        if let Some(PartState::Appending { pieces } | PartState::CopyingClean { pieces }) = state {
            *pieces += 1;
        }
    }

    pub(crate) fn part_piece_done(&mut self, key: PartKey) {
        let Some(part) = self.requests.parts.get_mut(&key) else {
            return;
        };
        let PartState::Appending { pieces } = &mut part.state else {
            return;
        };
        *pieces -= 1;
        if *pieces == 0 {
            let error = part.error.take();
            self.part_finish(key, error);
        }
    }

    /// A piece of a part that will never be in the log.
    pub(crate) fn part_piece_refused(&mut self, key: PartKey, error: IoError) {
        if let Some(part) = self.requests.parts.get_mut(&key) {
            part.error.get_or_insert(error);
        }
        self.part_piece_done(key);
    }

    /// The part has come to its end: its locks are given back and its request answered if it was the last.
    pub(crate) fn part_finish(&mut self, key: PartKey, error: Option<IoError>) {
        let Some(part) = self.requests.parts.get(&key) else {
            return;
        };
        self.release(part.range, part.hold);
        self.part_answer(key, error);
    }

    /// The part, which holds nothing any more, counts as done. A failed one whose write to the backing is still on its way
    /// does when that has landed: after an error was answered nothing of it may show that did not before (P2).
    pub(crate) fn part_answer(&mut self, key: PartKey, error: Option<IoError>) {
        if error.is_some()
            && self.requests.landings.contains_key(&key)
            && let Some(part) = self.requests.parts.get_mut(&key)
        {
            part.state = PartState::Landing;
            part.error = error;
        } else if let Some(part) = self.requests.parts.remove(&key) {
            self.part_counted(part.request, error);
        }
    }

    /// The write to the backing has landed that a failed part was waiting for.
    pub(crate) fn part_landed(&mut self, key: PartKey) {
        if let Some(part) = self.requests.parts.get_mut(&key)
            && part.state == PartState::Landing
        {
            let error = part.error.take();
            self.part_answer(key, error);
        }
    }

    /// Counts a part as done and answers the request with the last one.
    pub(crate) fn part_counted(&mut self, id: RequestId, error: Option<IoError>) {
        let Some(request) = self.requests.requests.get_mut(&id) else {
            return;
        };
        request.parts -= 1;
        request.error = request.error.take().or(error);
        if request.parts > 0 {
            return;
        }
        let Some(request) = self.requests.requests.remove(&id) else {
            return;
        };
        let result = match request.error {
            None => {
                if request.bypassed {
                    self.flushes.acknowledge();
                }
                self.figures.writes += 1;
                self.figures.bytes_acknowledged += request.bytes;
                if request.fua {
                    self.order.flushed(self.log.written_upto());
                }
                self.figures.reasons.count(request.reason);
                let (reason, bytes) = (request.reason, request.bytes);
                self.effects.push(Effect::Admitted { id, reason, bytes });
                match request.reason.is_cached() {
                    true => self.figures.writes_admitted += 1,
                    false => self.figures.writes_bypassed += 1,
                }
                Ok(Reply::Done)
            }
            Some(error) => {
                self.figures.errors += 1;
                Err(error)
            }
        };
        self.effects.push(Effect::Reply { id, result });
    }

    /// The request, or a part of it, goes another way than was chosen at first.
    pub(crate) fn request_turned(&mut self, id: RequestId, reason: AdmissionReason) {
        if let Some(request) = self.requests.requests.get_mut(&id) {
            request.reason = reason;
        }
    }

    /// A part of the request is on the backing and needs a flush of it.
    pub(crate) fn request_bypassed(&mut self, id: RequestId) {
        if let Some(request) = self.requests.requests.get_mut(&id) {
            request.bypassed = true;
        }
    }

    /// A flush of the backing failed: requests under way, parts of which it may have lost, fail. A flush that comes
    /// before their acknowledgement would not be told of them.
    pub(crate) fn requests_lose_bypasses(&mut self) {
        for request in self.requests.requests.values_mut().filter(|r| r.bypassed) {
            request.error.get_or_insert_with(flush_failed_error);
        }
    }

    pub(crate) fn release(&mut self, range: BlockRange, hold: Hold) {
        self.locks.release(range, hold);
        if !self.mutant(Mutation::ForgetsWaiters) {
            self.wakes.raise(Change::Released { lost: self.destage_has_lost() });
        }
    }

    /// Sends a part that the log will not take (any more) back to the start; it goes to the backing then.
    pub(crate) fn part_restart(&mut self, key: PartKey) {
        let Some(part) = self.requests.parts.get_mut(&key) else {
            return;
        };
        part.state = PartState::Waiting;
        part.path = Path::Bypass;
        part.blocks = None;
        let (range, hold, request) = (part.range, part.hold, part.request);
        self.request_turned(request, AdmissionReason::CacheFailed);
        self.release(range, hold);
        // Behind the parts that came before it, ahead of those that came after.
        let at = self.requests.waiting.partition_point(|k| *k < key);
        self.requests.waiting.insert(at, key);
    }

    pub(crate) fn flush_request(&mut self, id: RequestId) {
        let mut log_upto = self.log.written_upto();
        self.log_want_durable(log_upto);
        let mut backing_epoch = self.flushes.epoch_wanted();
        if self.mutant(Mutation::FlushForgetsLog) {
            log_upto = Seq(0);
        }
        if self.mutant(Mutation::FlushForgetsBacking) {
            backing_epoch = 0;
        }
        let bypasses = self.flushes.acknowledged();
        let point = self.point_now();
        self.requests.flushes.push(Flush { id, log_upto, point, backing_epoch, bypasses });
        self.backing_flush_if_wanted();
        self.flushes_answer();
    }

    /// Answers flushes whose wait is over.
    pub(crate) fn flushes_answer(&mut self) {
        // They stand in the order in which they came.
        let Some(bypasses) = self.requests.flushes.last().map(|f| f.bypasses) else {
            return;
        };
        let (retired, latched) = (self.failure.retired(), self.failure.latched());
        let lost = latched && !retired && self.failure.stuck();
        let (durable, epoch) = (self.log.durable_upto(), self.flushes.epoch_done());
        let backing_error = self.flushes.take_client_error(bypasses);
        let waiting = std::mem::take(&mut self.requests.flushes);
        for flush in waiting {
            let in_log = flush.log_upto <= durable || retired;
            let result = match &backing_error {
                Some(error) => Err(error.clone()),
                _ if !in_log && lost => Err(Self::log_failed_error()),
                _ if in_log && flush.backing_epoch <= epoch => Ok(Reply::Done),
                _ => {
                    self.requests.flushes.push(flush);
                    continue;
                }
            };
            match result.is_ok() {
                true => {
                    self.figures.flushes += 1;
                    if !self.mutant(Mutation::OrderForgetsBarrier) {
                        self.order.flushed(flush.log_upto);
                    }
                    self.points_flushed(flush.point);
                }
                false => self.figures.errors += 1,
            }
            self.effects.push(Effect::Reply { id: flush.id, result });
        }
    }
}

/// Cuts whole blocks into appends of at most `max` blocks.
pub(crate) fn pieces(
    range: BlockRange,
    kind: ExtentKind,
    data: Option<&Buf>,
    max: u32,
    (owner, durable, after): (AppendOwner, bool, Seq),
) -> Vec<Append> {
    let mut appends = Vec::new();
    let mut done = 0u64;
    while done < range.count {
        let count = (range.count - done).min(u64::from(max)) as u32;
        let bytes = |blocks: u64| (blocks * BLOCK_BYTES) as usize;
        appends.push(Append {
            extent: Some(Extent { block: range.first.plus(done), count, kind }),
            data: data.map(|d| d.slice(bytes(done), bytes(u64::from(count)))),
            owner,
            durable,
            after,
        });
        done += u64::from(count);
    }
    appends
}
