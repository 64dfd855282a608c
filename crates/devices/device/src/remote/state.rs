//! What an [`Exchange`](super::Exchange) knows, without threads and clocks.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use forebay_block::{DeviceResult, ErrorKind, IoError};

use crate::device::Sign;
use crate::remote::durability::Durability;
use crate::remote::operations::{Next, Operations, Place};
use crate::remote::{AWAY_MAX, Effect, Ending, Parts, Request};

/// Why flushes fail that may have lost something.
pub(super) const LOST: IoError = IoError::new(
    ErrorKind::Io,
    "flushing a store whose connection was lost with writes that were not durable",
);

/// A request in the queue.
struct Queued<R> {
    place: Place,
    request: R,
    /// It was sent in an earlier session, so that it may have been carried out.
    was_sent: bool,
}

/// A request that is sent, or being sent.
struct Sent<R> {
    place: Place,
    request: R,
    /// Volatile changes that had been answered by then.
    covered: u64,
    since: Instant,
}

/// A way to the store.
struct Line<R> {
    queue: VecDeque<Queued<R>>,
    /// What is sent and has not ended, by cookie: in the order in which it was sent.
    sent: BTreeMap<u64, Sent<R>>,
}

pub(super) struct State<R> {
    lines: Vec<Line<R>>,
    cookie: u64,
    operations: Operations,
    durability: Durability,
    /// There is a session.
    pub(super) in_session: bool,
    /// Nothing more is sent in it.
    pub(super) stopped: bool,
    /// Changes that were sent earlier may still be carried out by the store, and come from no session that goes on.
    unsettled: bool,
    /// Since when there is no session.
    pub(super) away_since: Option<Instant>,
    /// What a store must show that is reached anew.
    pub(super) sign: Option<Sign>,
    pub(super) closing: bool,
}

impl<R: Request> State<R> {
    pub(super) fn new(lines: usize) -> Self {
        let line = |_| Line { queue: VecDeque::new(), sent: BTreeMap::new() };
        Self {
            lines: (0..lines).map(line).collect(),
            cookie: 0,
            operations: Operations::default(),
            durability: Durability::default(),
            in_session: false,
            stopped: false,
            unsettled: false,
            away_since: None,
            sign: None,
            closing: false,
        }
    }

    pub(super) fn submit(&mut self, tag: u64, line: usize, parts: Parts<R>) {
        let is_flush = parts.requests.first().is_some_and(|first| first.effect() == Effect::Flushes);
        if is_flush && self.durability.is_lost() {
            self.durability.tell();
            return self.operations.fail(tag, LOST);
        }
        let Some(first) = self.operations.begin(tag, line, &parts) else { return };
        let queued = |(part, request)| Queued { place: first.of_part(part), request, was_sent: false };
        self.lines[line].queue.extend(parts.requests.into_iter().enumerate().map(queued));
    }

    /// The next request to be sent over a line, of which at most so many may be sent and not ended, and its cookie.
    pub(super) fn next(&mut self, line: usize, depth_max: usize, now: Instant) -> Option<(u64, R)> {
        if !self.has_next(line, depth_max) {
            return None;
        }
        let Queued { place, request, .. } = self.lines[line].queue.pop_front()?;
        self.cookie += 1;
        let sent =
            Sent { place, request: request.clone(), covered: self.durability.covered_now(), since: now };
        self.lines[line].sent.insert(self.cookie, sent);
        Some((self.cookie, request))
    }

    pub(super) fn has_next(&self, line: usize, depth_max: usize) -> bool {
        let Line { queue, sent } = &self.lines[line];
        !queue.is_empty() && sent.len() < depth_max
    }

    pub(super) fn sent(&self, line: usize, cookie: u64) -> Option<&R> {
        self.lines[line].sent.get(&cookie).map(|sent| &sent.request)
    }

    /// Since when the oldest request that is sent over a line has not ended.
    pub(super) fn owed_since(&self, line: usize) -> Option<Instant> {
        self.lines[line].sent.first_key_value().map(|(_, oldest)| oldest.since)
    }

    /// Requests that are not sent yet.
    pub(super) fn waiting(&self) -> usize {
        self.lines.iter().map(|line| line.queue.len()).sum()
    }

    /// A request that was sent has ended; one of an earlier session has not.
    pub(super) fn end(&mut self, line: usize, cookie: u64, ending: Ending) {
        let Some(Sent { place, request, covered, .. }) = self.lines[line].sent.remove(&cookie) else {
            return;
        };
        match (&ending, request.effect()) {
            (Ending::Well(_), Effect::Flushes) => self.durability.flushed(covered),
            (Ending::Well(_), Effect::ChangesVolatile) => self.durability.changed(),
            (Ending::Unknown(_), effect) => self.unsettled |= effect.changes(),
            _ => {}
        }
        self.ended(place, request.effect(), ending);
    }

    fn ended(&mut self, place: Place, effect: Effect, ending: Ending) -> Next {
        let result = match ending {
            Ending::Well(read) => Ok(read),
            Ending::Failed(error) | Ending::Unknown(error) => Err(error),
        };
        let next = self.operations.end(place, effect, result);
        if let Next::Flush(line, place) = next {
            let flush = Queued { place, request: R::flush(), was_sent: false };
            self.lines[line].queue.push_back(flush);
        }
        next
    }

    /// The session is lost.
    pub(super) fn lose(&mut self, now: Instant) {
        (self.in_session, self.stopped) = (false, false);
        self.away_since = Some(now);
        self.durability.lose();
        for Line { queue, sent } in &mut self.lines {
            for Sent { place, request, .. } in std::mem::take(sent).into_values().rev() {
                self.unsettled |= request.effect().changes();
                queue.push_front(Queued { place, request, was_sent: true });
            }
        }
        self.operations.spoil_volatile(&LOST);
        let is_lost = self.durability.is_lost();
        let fails = |operations: &Operations, queued: &Queued<R>| {
            queued.request.effect() == Effect::Flushes && (is_lost || operations.ends_write(queued.place))
        };
        for line in 0..self.lines.len() {
            for queued in std::mem::take(&mut self.lines[line].queue) {
                if !fails(&self.operations, &queued) {
                    self.lines[line].queue.push_back(queued);
                    continue;
                }
                let next = self.ended(queued.place, Effect::Flushes, Ending::Failed(LOST));
                if next == (Next::Ended { was_flush: true }) {
                    self.durability.tell();
                }
            }
        }
    }

    /// Nothing comes from an earlier session any more.
    pub(super) fn settle(&mut self) {
        self.unsettled = false;
    }

    /// A session begins.
    pub(super) fn begin(&mut self) {
        assert!(!self.unsettled, "an old write could come after a new one");
        (self.in_session, self.away_since) = (true, None);
    }

    /// Whatever waits for a store that has been away for too long fails.
    pub(super) fn give_up(&mut self, why: &IoError, now: Instant) {
        if self.away_since.is_none_or(|since| now.duration_since(since) <= AWAY_MAX) {
            return;
        }
        for line in 0..self.lines.len() {
            for Queued { place, request, was_sent } in std::mem::take(&mut self.lines[line].queue) {
                let ending = if was_sent { Ending::Unknown } else { Ending::Failed };
                self.ended(place, request.effect(), ending(why.clone()));
            }
        }
    }

    pub(super) fn poll(&mut self, done: &mut Vec<(u64, DeviceResult)>) {
        self.operations.take_done(done);
        self.durability.heard();
    }

    /// Whether something has ended that was not polled.
    pub(super) fn has_done(&self) -> bool {
        self.operations.has_done()
    }
}
