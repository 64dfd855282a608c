//! What the device's owner and the two threads of its connection share, and how a lost connection is got over.
//!
//! ```text
//!  submit ──► queue ──► sender thread ──► server ──► reader thread ──► done ──► poll
//!               ▲             │ the connection is lost: what was not answered is sent anew on the next one
//!               └─────────────┘
//! ```
//!
//! **A server that is silent.** Who has not answered a request for so long as the export's `timeout` says is sent nothing more;
//! what it still answers counts, and when it ends the connection, or as much time has passed again, the connection is lost. That it is
//! waited for has a reason: a server that ends a connection has come to the end of what it had received over it.
//!
//! **What a lost connection may have taken.** A server that was restarted may have lost what it had acknowledged and not made
//! durable. So if anything had been acknowledged since the last flush, every flush fails until its owner has learnt of one such
//! failure: as with a disk, whoever flushes writes anew what the failed flush was to cover.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use forebay_block::{Buf, BufMut, DeviceOp, DeviceResult, ErrorKind, IoError};
use forebay_nbd::codec::{NbdError, ReplyHeader, SimpleReply, command};

use crate::device::Sign;
use crate::nbd::handshake::{Stream, Terms, connect, read_alone};
use crate::nbd::requests::{Request, requests};
use crate::nbd::uri::NbdSpec;
use crate::ring::Waker;

/// Requests that are sent and not answered at a time; the rest waits in the queue, which is bounded by what the volume has
/// under way. An operation is one request, unless it is longer than the server takes.
pub(crate) const DEPTH_MAX: usize = 128;
/// Pause between two attempts to connect anew.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// While the server is away, operations wait for so long; then those that wait fail at each further attempt.
const AWAY_MAX: Duration = Duration::from_secs(5);
/// A request that is not answered for so many times the limit is waited for in vain, even if the server answers others.
const STUCK_LIMITS: u32 = 5;
/// A server is given so long to do or drop what it has received from a connection that ended, before another one is used: an old
/// write must not come after a new one.
pub(crate) const SETTLE_PAUSE: Duration = Duration::from_secs(1);

/// Why flushes fail that may have lost something.
const LOST: IoError = IoError::new(
    ErrorKind::Io,
    "flushing an NBD export whose connection was lost with writes that were not durable",
);
/// Why operations fail while there is no server.
const AWAY: IoError = IoError::new(ErrorKind::Io, "reaching an NBD server");
/// Why operations fail while there is something else in its place.
const OTHER: IoError = IoError::new(
    ErrorKind::Io,
    "what the NBD server offers since its connection was lost is not what was opened, or was taken over, and is not used",
);
/// Why they fail while it cannot be told.
const UNREAD: IoError = IoError::new(
    ErrorKind::Io,
    "what the NBD server offers since its connection was lost is not known to be what was opened, for the label or the journal's \
     head there cannot be read",
);

/// An operation under way.
struct Op {
    tag: u64,
    /// Requests that are not answered yet.
    left: usize,
    /// What each of its requests has read.
    read: Vec<Option<Buf>>,
    error: Option<IoError>,
    then_flush: bool,
    /// It is nothing but a flush, by which its owner learns what is durable.
    is_flush: bool,
}

/// A request that is sent, or being sent.
struct Sent {
    request: Request,
    /// Volatile writes that had been answered by then.
    covers: u64,
    since: Instant,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Request>,
    /// Requests that are sent and not answered, by cookie: in the order in which they were sent.
    sent: BTreeMap<u64, Sent>,
    cookie: u64,
    ops: HashMap<u64, Op>,
    op: u64,
    done: Vec<(u64, DeviceResult)>,
    /// Volatile writes that were answered since the device was opened.
    written: u64,
    /// So many of them are durable.
    flushed: u64,
    /// Some of them may be lost, and the owner has not learnt of it yet.
    lost: bool,
    /// A flush in `done` says so.
    telling: bool,
    /// The connection that is in use.
    stream: Option<Arc<Stream>>,
    /// Since when there is none.
    away_since: Option<Instant>,
    /// The reader has found the connection to be at its end, or the server to be silent: nothing more is sent.
    ended: bool,
    /// What an export must show that is connected to anew.
    sign: Option<Sign>,
    closing: bool,
}

impl State {
    fn submit(&mut self, terms: &Terms, tag: u64, asked: DeviceOp) {
        let is_flush = matches!(asked, DeviceOp::Flush);
        if is_flush && self.lost {
            self.telling = true;
            return self.done.push((tag, Err(LOST)));
        }
        self.op += 1;
        let is_read = matches!(asked, DeviceOp::Read { .. });
        let (all, then_flush) = requests(terms, self.op, asked);
        if all.is_empty() {
            return self.done.push((tag, Ok(is_read.then(|| Buf::zeroed(0)))));
        }
        let read = if is_read { vec![None; all.len()] } else { Vec::new() };
        let op = Op { tag, left: all.len(), read, error: None, then_flush, is_flush };
        self.ops.insert(self.op, op);
        self.queue.extend(all);
    }

    /// A request has come to its end.
    fn end(&mut self, request: &Request, covers: u64, result: Result<Option<Buf>, IoError>) {
        match (&result, request.command) {
            (Ok(_), command::FLUSH) => self.flushed = self.flushed.max(covers),
            (Ok(_), _) if request.is_volatile() => self.written += 1,
            _ => {}
        }
        let Some(op) = self.ops.get_mut(&request.op) else { return };
        op.left -= 1;
        match result {
            Ok(data) => {
                if let Some(place) = op.read.get_mut(request.part) {
                    *place = data;
                }
            }
            Err(error) => op.error = Some(error),
        }
        if op.left > 0 {
            return;
        }
        if op.then_flush && op.error.is_none() {
            (op.then_flush, op.left) = (false, 1);
            return self.queue.push_back(Request::flush(request.op));
        }
        if let Some(op) = self.ops.remove(&request.op) {
            self.telling |= op.is_flush && op.error == Some(LOST);
            self.done.push((op.tag, op.result()));
        }
    }

    /// The connection is lost.
    fn lose(&mut self) {
        (self.stream, self.ended) = (None, false);
        self.away_since = Some(Instant::now());
        if self.written > self.flushed {
            self.lost = true;
            self.flushed = self.written;
        }
        for sent in std::mem::take(&mut self.sent).into_values().rev() {
            self.queue.push_front(sent.request);
        }
        // A durable write that a flush has to end may be lost in part even where nothing else is.
        for op in self.ops.values_mut().filter(|op| op.then_flush) {
            op.error = Some(LOST);
        }
        let all = std::mem::take(&mut self.queue);
        for request in all {
            let ends_write = !self.ops.get(&request.op).is_none_or(|op| op.is_flush);
            if request.command == command::FLUSH && (self.lost || ends_write) {
                self.end(&request, 0, Err(LOST));
            } else {
                self.queue.push_back(request);
            }
        }
    }

    /// Whatever waits for a server fails.
    fn give_up(&mut self, why: &IoError) {
        for request in std::mem::take(&mut self.queue) {
            self.end(&request, 0, Err(why.clone()));
        }
    }
}

impl Op {
    fn result(self) -> DeviceResult {
        if let Some(error) = self.error {
            return Err(error);
        }
        let mut parts: Vec<Buf> = self.read.into_iter().flatten().collect();
        Ok(match parts.len() {
            0 | 1 => parts.pop(),
            _ => Some(Buf::copy_of(&parts.iter().map(|part| &part[..]).collect::<Vec<_>>().concat())),
        })
    }
}

/// Shared by the device and its threads.
pub(crate) struct Exchange {
    state: Mutex<State>,
    /// Something is to be sent, may be sent again, or the connection is to end.
    work: Condvar,
    terms: Terms,
    /// For so long a server may be silent that owes an answer.
    timeout: Duration,
    waker: Waker,
    /// The owner has been woken since it last looked.
    woken: AtomicBool,
}

impl Exchange {
    /// Starts the threads of a new connection.
    pub(crate) fn start(spec: &NbdSpec, first: Stream, terms: Terms, waker: Waker) -> io::Result<Arc<Self>> {
        let first = Arc::new(first);
        let state = Mutex::new(State { stream: Some(Arc::clone(&first)), ..State::default() });
        let work = Condvar::new();
        let (timeout, woken) = (spec.timeout, AtomicBool::new(false));
        let exchange = Arc::new(Self { state, work, terms, timeout, waker, woken });
        let (shared, spec) = (Arc::clone(&exchange), spec.clone());
        thread::Builder::new().name("nbd-send".to_owned()).spawn(move || shared.run(&spec, first))?;
        Ok(exchange)
    }

    /// A thread that panics with the lock held leaves a state that is whole: nothing in it can panic half-way.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn submit(&self, tag: u64, op: DeviceOp) {
        self.state().submit(&self.terms, tag, op);
        self.work.notify_one();
    }

    pub(crate) fn poll(&self, done: &mut Vec<(u64, DeviceResult)>) {
        // Before looking, so that what ends from now on wakes again.
        self.woken.store(false, Ordering::SeqCst);
        let mut state = self.state();
        done.append(&mut state.done);
        if std::mem::take(&mut state.telling) {
            state.lost = false;
        }
    }

    pub(crate) fn recognize_by(&self, sign: Option<Sign>) {
        self.state().sign = sign;
    }

    /// For how long there has been no connection.
    pub(crate) fn away(&self) -> Option<Duration> {
        self.state().away_since.map(|since| since.elapsed())
    }

    /// Requests that are not sent yet.
    pub(crate) fn waiting(&self) -> usize {
        self.state().queue.len()
    }

    /// Whether something has ended that was not polled.
    pub(crate) fn has_done(&self) -> bool {
        !self.state().done.is_empty()
    }

    /// Ends the connection, whatever is under way, and waits for a moment until the server knows.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closing = true;
        self.work.notify_one();
        let in_use = |state: &mut State| state.stream.is_some();
        let waited = self.work.wait_timeout_while(state, RETRY_PAUSE, in_use);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = &state.stream {
            stream.shut_down();
        }
    }

    fn tell_owner(&self) {
        if !self.woken.swap(true, Ordering::SeqCst) {
            self.waker.wake_always();
        }
    }

    /// The sender's thread: one connection after the other, until the device is dropped.
    fn run(self: Arc<Self>, spec: &NbdSpec, first: Arc<Stream>) {
        let mut next = Some(first);
        while let Some(stream) = next.take().or_else(|| self.reconnect(spec)) {
            self.use_connection(spec, &stream);
            let mut state = self.state();
            state.lose();
            self.work.notify_all();
            if state.closing {
                return;
            }
            drop(state);
            self.tell_owner();
        }
    }

    /// Sends and has answers read until the connection is lost or no longer wanted.
    fn use_connection(self: &Arc<Self>, spec: &NbdSpec, stream: &Arc<Stream>) {
        let reader = thread::Builder::new().name("nbd-read".to_owned()).spawn({
            let (shared, stream, spec) = (Arc::clone(self), Arc::clone(stream), spec.clone());
            move || {
                // Why it ended makes no difference: it is over, and tried anew.
                let _ = shared.read_answers(&spec, &stream);
                // Whoever sends just now must not wait for a server that may not take it any more.
                stream.shut_down();
                shared.state().ended = true;
                shared.work.notify_one();
            }
        });
        if let Ok(reader) = reader {
            // As above.
            let _ = self.send_requests(stream);
            // Of a server that is silent the last answers are waited for.
            if !self.state().ended {
                stream.shut_down();
            }
            let _ = reader.join();
        }
    }

    fn send_requests(&self, stream: &Stream) -> io::Result<()> {
        loop {
            let mut state = self.state();
            let idle = |state: &mut State| {
                !state.closing && !state.ended && (state.queue.is_empty() || state.sent.len() >= DEPTH_MAX)
            };
            state = self.work.wait_while(state, idle).unwrap_or_else(PoisonError::into_inner);
            if state.ended {
                return Ok(());
            }
            if state.closing {
                return stream.send(&mut [IoSlice::new(&Request::disconnect().header(0))], &|| true);
            }
            let Some(request) = state.queue.pop_front() else { continue };
            state.cookie += 1;
            let (cookie, covers) = (state.cookie, state.written);
            let header = request.header(cookie);
            // It is on the list before it is sent: its answer may come at once.
            let data = request.data.clone();
            state.sent.insert(cookie, Sent { request, covers, since: Instant::now() });
            drop(state);
            let mut parts: Vec<IoSlice<'_>> = Vec::with_capacity(1 + data.len());
            parts.push(IoSlice::new(&header));
            parts.extend(data.iter().map(|buf| IoSlice::new(buf)));
            stream.send(&mut parts, &|| !self.state().ended)?;
        }
    }

    /// Whether the server owes an answer and has been silent for too long.
    fn is_silent(&self, stream: &Stream) -> bool {
        let state = self.state();
        let owes_for = state.sent.first_key_value().map(|(_, oldest)| oldest.since.elapsed());
        owes_for.is_some_and(|owes_for| {
            owes_for.min(stream.still_for()) > self.timeout
                || owes_for > self.timeout.saturating_mul(STUCK_LIMITS)
        })
    }

    /// Whether the reader goes on; `silent_since`: since when nothing more is sent to a server that is silent.
    fn waits_on(&self, spec: &NbdSpec, stream: &Stream, silent_since: &Cell<Option<Instant>>) -> bool {
        if let Some(since) = silent_since.get() {
            return since.elapsed() < self.timeout && !self.state().sent.is_empty();
        }
        if self.is_silent(stream) {
            silent_since.set(Some(Instant::now()));
            self.state().ended = true;
            stream.end_sending();
            self.work.notify_one();
            let limit_s = self.timeout.as_secs_f64();
            tracing::warn!(%spec, limit_s, "the NBD server does not answer; its connection is ended, and a new one is tried");
        }
        true
    }

    fn read_answers(&self, spec: &NbdSpec, stream: &Stream) -> io::Result<()> {
        let broken = |why| io::Error::new(io::ErrorKind::InvalidData, why);
        let silent_since = Cell::new(None);
        let waits_on = || self.waits_on(spec, stream, &silent_since);
        // Asked after each answer, too: one request may be stuck while others are answered.
        while waits_on() {
            let mut head = [0; SimpleReply::BYTES];
            stream.receive(&mut head, &waits_on)?;
            let SimpleReply { error, cookie } = match ReplyHeader::decode(&head) {
                Ok(ReplyHeader::Simple(reply)) => reply,
                // Structured replies were not asked for.
                Ok(ReplyHeader::Chunk(_)) | Err(_) => return Err(broken("no simple reply")),
            };
            let asked = self.state().sent.get(&cookie).map(|sent| (sent.request.command, sent.request.len));
            let (asked, len) = asked.ok_or_else(|| broken("an answer to no request"))?;
            let result = match error.kind() {
                None if asked == command::READ => {
                    let mut data = BufMut::zeroed(len as usize);
                    stream.receive(&mut data, &waits_on)?;
                    Ok(Some(data.freeze()))
                }
                None => Ok(None),
                // The server goes away and has not done it; its successor will.
                Some(_) if error == NbdError::ESHUTDOWN => {
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
                Some(kind) => Err(IoError::new(kind, "using an NBD export")),
            };
            let mut state = self.state();
            if let Some(sent) = state.sent.remove(&cookie) {
                state.end(&sent.request, sent.covers, result);
            }
            drop(state);
            self.work.notify_one();
            self.tell_owner();
        }
        Ok(())
    }

    /// A new connection to the same export; `None` when the device is no longer wanted.
    fn reconnect(&self, spec: &NbdSpec) -> Option<Arc<Stream>> {
        let since = Instant::now();
        let mut said = false;
        loop {
            let attempt = self.connect_anew(spec);
            let pause = if attempt.is_ok() { SETTLE_PAUSE } else { RETRY_PAUSE };
            let waiting = self.work.wait_timeout_while(self.state(), pause, |state| !state.closing);
            let (state, _) = waiting.unwrap_or_else(PoisonError::into_inner);
            if state.closing {
                return None;
            }
            let sign = state.sign.clone();
            drop(state);
            // After the pause, when whoever had it meanwhile has done with it.
            let attempt = attempt.and_then(|stream| self.shows(&stream, sign).map(|()| stream));
            match attempt {
                Ok(stream) => {
                    let stream = Arc::new(stream);
                    let mut state = self.state();
                    (state.stream, state.away_since) = (Some(Arc::clone(&stream)), None);
                    drop(state);
                    return Some(stream);
                }
                Err(why) => {
                    if why != AWAY && !std::mem::replace(&mut said, true) {
                        let why = why.context;
                        tracing::warn!(%spec, "{why}; until the right one is back, all operations on it fail");
                    }
                    if since.elapsed() > AWAY_MAX {
                        self.state().give_up(&why);
                    }
                }
            }
            self.tell_owner();
        }
    }

    /// Connects to what has the size and the abilities of what was opened.
    fn connect_anew(&self, spec: &NbdSpec) -> Result<Stream, IoError> {
        let (stream, terms) = connect(spec).map_err(|_| AWAY)?;
        (terms == self.terms).then_some(stream).ok_or(OTHER)
    }

    /// Whether it shows that it is what was opened.
    fn shows(&self, stream: &Stream, sign: Option<Sign>) -> Result<(), IoError> {
        let Some(Sign { offset, len, is_ours }) = sign else { return Ok(()) };
        let bytes = read_alone(stream, &self.terms, offset, len).map_err(|_| UNREAD)?;
        is_ours(&bytes).then_some(()).ok_or(OTHER)
    }
}
