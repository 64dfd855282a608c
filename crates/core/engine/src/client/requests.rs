//! Requests of clients: what is under way, from its arrival until its answer. The room's one state, [`Requests`].
//!
//! ```text
//!   request ──cut──► parts ──► waiting ──► log, or backing ──► the last part has ended: answered
//!   flush ─────────────────► flushes ──────────────────────► its record and its bypasses are durable: answered
//! ```
//!
//! Invariants:
//! - R1: A request is answered once, when its last part has ended; with the first error that one of its parts had.
//! - R2: A part holds its blocks from its start until its end, as `locks` says; a write of it to the backing holds them there until it
//!   has ended, whatever became of the part (hazard 4).
//! - R3: No part overtakes another on the same blocks (see `waiting`).
//!
//! It asks for nothing by itself: it says what is to be done next ([`Next`](crate::client::parts::Next)), and what is to be answered
//! ([`Answered`]).

use std::collections::BTreeMap;

use forebay_block::{IoError, Origin, Seq};
use forebay_policy::{AdmissionReason, Issuer};

use crate::client::cut::{Cut, ZERO_BLOCKS_LOGGED_MAX};
use crate::client::flushes::{Flush, Flushed, Flushes, Reached};
use crate::client::parts::{Part, PartState, Path, Payload};
use crate::client::reissue::Landing;
use crate::client::waiting::{Round, Waiting};
use crate::interface::{PartKey, RequestId};
use crate::locks::{BlockRange, Hold};
use crate::mutation::Planted;
use crate::tables::Table;

/// Which way a request goes, and whether somebody is known to wait for it.
#[derive(Clone, Copy)]
pub(crate) struct Way {
    path: Path,
    critical: bool,
    awaited: bool,
    issuer: Issuer,
}

impl Way {
    pub(crate) fn of(reason: AdmissionReason, origin: Origin, fua: bool) -> Self {
        let path = if reason.is_cached() { Path::Log } else { Path::Bypass };
        // Where the policy does not ask who waits, somebody does.
        let unawaited = matches!(
            reason,
            AdmissionReason::NotCritical | AdmissionReason::NotSynchronous | AdmissionReason::OverRate
        );
        let awaited = origin.is_awaited(fua);
        Self { path, critical: !unawaited || awaited, awaited, issuer: Issuer::of(&origin, fua) }
    }
}

/// What the acknowledgement of a part promises, as the settings are when it arrives, and what it depends on.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    /// It survives a power cut.
    pub(crate) durable: bool,
    /// It may come from the log although the part began as a bypass.
    pub(crate) reissuable: bool,
    /// The newest record that it depends on.
    pub(crate) after: Seq,
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

/// A request whose last part has ended.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) id: RequestId,
    pub(crate) error: Option<IoError>,
    /// Bytes of data that it carried.
    pub(crate) bytes: u64,
    /// Why it went where it went.
    pub(crate) reason: AdmissionReason,
    /// Parts of it are on the backing, and need a flush of it.
    pub(crate) bypassed: bool,
    /// It asked for forced unit access.
    pub(crate) fua: bool,
}

/// Requests under way.
pub(crate) struct Requests {
    requests: Table<RequestId, Request>,
    pub(super) parts: BTreeMap<PartKey, Part>,
    pub(super) waiting: Waiting,
    /// Backing writes of parts that were reissued to the log while these were in flight; their blocks are held on the
    /// backing.
    pub(super) landings: BTreeMap<PartKey, Landing>,
    /// A bypass waits until the log has room for its supersede record, or it needs none any more.
    supersede_waits: bool,
    flushes: Flushes,
    next_part: u64,
    pub(super) volume_bytes: u64,
    /// What the backing has and has not made durable is lost with this process.
    pub(super) backing_forgets: bool,
    pub(super) planted: Planted,
}

impl Requests {
    pub(crate) fn new(volume_bytes: u64) -> Self {
        Self {
            requests: Table::default(),
            parts: BTreeMap::new(),
            waiting: Waiting::default(),
            landings: BTreeMap::new(),
            supersede_waits: false,
            flushes: Flushes::default(),
            next_part: 0,
            volume_bytes,
            backing_forgets: false,
            planted: Planted::default(),
        }
    }

    /// With a backing that loses with this process what it has not made durable, or with one that keeps it.
    pub(crate) fn in_front_of(self, backing_forgets: bool) -> Self {
        Self { backing_forgets, ..self }
    }

    /// Plants a bug.
    #[cfg(feature = "mutations")]
    pub(crate) fn plant(&mut self, planted: Planted) {
        self.planted = planted;
    }

    pub(crate) fn len(&self) -> usize {
        self.requests.len() + self.flushes.len()
    }

    /// The requests and flushes that are not answered, in the order of their names.
    pub(crate) fn unanswered(&self) -> Vec<RequestId> {
        let mut ids: Vec<_> = self.requests.keys().copied().chain(self.flushes.ids()).collect();
        ids.sort_unstable();
        ids
    }

    /// Nothing is under way, locks held for clean copies included.
    pub(crate) fn is_idle(&self) -> bool {
        self.requests.is_empty() && self.parts.is_empty() && self.flushes.len() == 0
    }

    /// The part that arrived last.
    pub(crate) fn newest_part(&self) -> PartKey {
        PartKey(self.next_part)
    }

    /// Whether one of the parts up to `last` is under way.
    pub(crate) fn has_upto(&self, last: PartKey) -> bool {
        self.parts.first_key_value().is_some_and(|(first, _)| *first <= last)
    }

    /// The blocks of a part that is under way.
    pub(crate) fn range_of(&self, key: PartKey) -> Option<BlockRange> {
        self.parts.get(&key).map(|part| part.range)
    }

    /// Who asked for the part, and why it goes where it goes.
    pub(crate) fn issuer_of(&self, key: PartKey) -> Issuer {
        self.parts.get(&key).map_or_else(Issuer::default, |part| {
            let reason = self.requests.get(&part.request).map(|request| request.reason);
            Issuer { reason, ..part.issuer }
        })
    }

    // Requests.

    /// A request has come, whose parts arrive next.
    pub(crate) fn open(&mut self, id: RequestId, cut: &Cut, fua: bool, reason: AdmissionReason) {
        let reason = if cut.is_long && reason.is_cached() { AdmissionReason::LongZero } else { reason };
        let (parts, bytes) = (cut.parts.len() as u32, cut.data_bytes);
        self.requests.insert(id, Request { parts, bytes, reason, bypassed: false, fua, error: None });
    }

    /// A part of a request arrives. It is to be started, or to wait.
    pub(crate) fn arrive(
        &mut self,
        request: RequestId,
        (range, payload): (BlockRange, Payload),
        way: Way,
        terms: Terms,
    ) -> PartKey {
        self.next_part += 1;
        let key = PartKey(self.next_part);
        let too_long = matches!(payload, Payload::Zero { .. }) && range.count > ZERO_BLOCKS_LOGGED_MAX;
        let part = Part {
            request,
            range,
            payload,
            path: if too_long { Path::Bypass } else { way.path },
            hold: Hold::LogWrite,
            durable: terms.durable,
            written_durably: false,
            reissuable: terms.reissuable,
            critical: way.critical,
            awaited: way.awaited,
            issuer: way.issuer,
            supersedes: false,
            after: terms.after,
            losses: 0,
            state: PartState::Waiting,
            blocks: None,
            base_first: None,
            base_last: None,
            error: None,
        };
        self.parts.insert(key, part);
        key
    }

    /// The request, or a part of it, goes another way than was chosen at first.
    pub(super) fn turned(&mut self, id: RequestId, reason: AdmissionReason) {
        if let Some(request) = self.requests.get_mut(&id) {
            request.reason = reason;
        }
    }

    /// A part of the request is on the backing and needs a flush of it.
    pub(super) fn bypassed(&mut self, id: RequestId) {
        if let Some(request) = self.requests.get_mut(&id) {
            request.bypassed = true;
        }
    }

    /// A flush of the backing failed: requests under way, parts of which it may have lost, fail. A flush that comes
    /// before their acknowledgement would not be told of them.
    pub(crate) fn lose_bypasses(&mut self, error: &IoError) {
        for request in self.requests.values_mut().filter(|r| r.bypassed) {
            request.error.get_or_insert_with(|| error.clone());
        }
    }

    /// Counts a part as done; with the last one its request is answered (R1).
    pub(super) fn count(&mut self, id: RequestId, error: Option<IoError>) -> Option<Answered> {
        let request = self.requests.get_mut(&id)?;
        request.parts -= 1;
        request.error = request.error.take().or(error);
        if request.parts > 0 {
            return None;
        }
        let Request { bytes, reason, bypassed, fua, error, .. } = self.requests.remove(&id)?;
        Some(Answered { id, error, bytes, reason, bypassed, fua })
    }

    // Who waits.

    /// Whether a waiting part touches the same blocks: no part overtakes another there (R3).
    pub(crate) fn must_wait(&self, key: PartKey) -> bool {
        self.range_of(key).is_some_and(|range| self.waiting.overlaps(range))
    }

    /// The part that has just arrived waits.
    pub(crate) fn wait(&mut self, key: PartKey) {
        let Some(part) = self.parts.get(&key) else { return };
        let (critical, awaited) = (part.critical, part.awaited);
        self.waiting.add(key, part.range);
        if critical {
            self.lends(&[key], awaited);
        }
    }

    /// Everybody who waits is to be tried again: with [`Requests::next_waiting`] and [`Requests::tried`].
    pub(crate) fn round(&mut self) -> Round {
        self.supersede_waits = false;
        Round::default()
    }

    /// The next part that may be tried.
    pub(crate) fn next_waiting(&self, round: &mut Round) -> Option<PartKey> {
        self.waiting.next(round)
    }

    /// The part that was tried last has started or ended, or goes on waiting.
    pub(crate) fn tried(&mut self, round: &mut Round, has_started: bool) {
        self.waiting.tried(round, has_started);
    }

    /// Somebody waits for these parts, in the order of their keys; and so for what waits before them for the same blocks, or for those of one
    /// that does.
    pub(crate) fn are_awaited(&mut self, keys: &[PartKey]) {
        self.lends(keys, true);
    }

    /// These parts are critical, and so is what waits before them; it is known to be `awaited` only if they are.
    fn lends(&mut self, keys: &[PartKey], awaited: bool) {
        for key in keys.iter().copied().chain(self.waiting.in_the_way_of(keys)) {
            if let Some(part) = self.parts.get_mut(&key) {
                part.critical = true;
                part.awaited |= awaited;
            }
        }
    }

    fn waiting_criticals(&self) -> impl Iterator<Item = &Part> {
        self.waiting.iter().filter_map(|key| self.parts.get(&key)).filter(|p| p.critical)
    }

    /// A critical bypass waits.
    pub(crate) fn critical_bypass_waits(&self) -> bool {
        self.waiting_criticals().any(|p| p.path == Path::Bypass)
    }

    /// Whether a request is known to wait for the part.
    pub(crate) fn is_awaited(&self, key: PartKey) -> bool {
        self.parts.get(&key).is_some_and(|part| part.awaited)
    }

    /// The blocks of critical writes that wait.
    pub(crate) fn critical_waiting(&self) -> impl Iterator<Item = BlockRange> {
        self.waiting_criticals().map(|p| p.range)
    }

    /// Whether one more bypass may begin that ends with a supersede record, if the log has room for so many. It waits if not.
    pub(crate) fn may_supersede(&mut self, room: usize) -> bool {
        let promised = self.parts.values().filter(|part| part.supersedes).count();
        let has_room = promised < room;
        self.supersede_waits |= !has_room;
        has_room
    }

    /// A bypass waits until the log has room for its supersede record.
    pub(crate) fn supersede_waits(&self) -> bool {
        self.supersede_waits
    }

    /// Refuses the bypasses that wait for what only the backing could do.
    pub(crate) fn refuse_bypasses(&mut self, error: &IoError) -> Vec<Answered> {
        self.supersede_waits = false;
        let parts = &self.parts;
        let refused = self.waiting.take(|key| parts.get(&key).is_some_and(|p| p.path == Path::Bypass));
        refused.into_iter().filter_map(|key| self.end(key, Some(error.clone()))).collect()
    }

    // Flushes.

    /// A flush has come.
    pub(crate) fn flush(&mut self, flush: Flush) {
        self.flushes.add(flush);
    }

    /// How many requests with volatile bypasses had been acknowledged when the last flush came; `None` if none waits.
    pub(crate) fn flushes_asked(&self) -> Option<u64> {
        self.flushes.asked()
    }

    /// Who waits for the next flush of the backing: the most urgent of the clients that have asked.
    pub(crate) fn flush_issuer(&self) -> Issuer {
        self.flushes.issuer()
    }

    /// The flushes whose wait is over.
    pub(crate) fn flushed(&mut self, reached: &Reached) -> Vec<Flushed> {
        self.flushes.answer(reached)
    }

    /// A flush waits for a flush of the backing behind that with this number.
    pub(crate) fn flush_waits_for_backing(&self, epoch_done: u64) -> bool {
        self.flushes.waits_for_backing(epoch_done)
    }
}
