//! What the device's owner and the threads of its connections share, two for each, and how a lost connection is got over.
//!
//! ```text
//!  submit ──► queue ──► sender thread ──► server ──► reader thread ──► done ──► poll
//!               ▲             │ the connection is lost: what was not answered is sent anew on the next one
//!               └─────────────┘
//! ```
//!
//! **A second connection.** It takes what somebody waits for, and the first one the rest; each has a queue of its own. Both are to one
//! export, of which the server says that a flush over one covers what it has answered over the other (`CAN_MULTI_CONN`). They are used
//! together: when one is lost the other is ended, and both are made anew.
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

use forebay_block::{Buf, BufMut, Class, DeviceOp, DeviceResult, ErrorKind, IoError, words_of};
use forebay_nbd::codec::{NbdError, ReplyHeader, SimpleReply, command};

use crate::device::Sign;
use crate::nbd::handshake::{Stream, Terms, connect, read_alone};
use crate::nbd::requests::{Request, requests};
use crate::nbd::same::show_the_same;
use crate::nbd::uri::{NbdSpec, Server};
use crate::ring::Waker;

/// Connections of a device.
const LINES_MAX: usize = 2;
/// Requests that are sent over a connection and not answered at a time; the rest waits in the queue, which is bounded by what the volume has
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
    /// Which connection it uses.
    line: usize,
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

/// What one connection has to do.
#[derive(Default)]
struct Line {
    queue: VecDeque<Request>,
    /// Requests that are sent and not answered, by cookie: in the order in which they were sent.
    sent: BTreeMap<u64, Sent>,
}

#[derive(Default)]
struct State {
    lines: [Line; LINES_MAX],
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
    /// The connections that are in use; none or all.
    streams: Streams,
    /// Since when there is none.
    away_since: Option<Instant>,
    /// A reader has found a connection to be at its end, or the server to be silent: nothing more is sent over any.
    ended: bool,
    /// What an export must show that is connected to anew.
    sign: Option<Sign>,
    closing: bool,
}

impl State {
    fn submit(&mut self, terms: &Terms, tag: u64, asked: DeviceOp, line: usize) {
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
        let op = Op { tag, line, left: all.len(), read, error: None, then_flush, is_flush };
        self.ops.insert(self.op, op);
        self.lines[line].queue.extend(all);
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
            return self.lines[op.line].queue.push_back(Request::flush(request.op));
        }
        if let Some(op) = self.ops.remove(&request.op) {
            self.telling |= op.is_flush && op.error == Some(LOST);
            self.done.push((op.tag, op.result()));
        }
    }

    /// The connections are lost.
    fn lose(&mut self) {
        (self.streams, self.ended) = (Streams::default(), false);
        self.away_since = Some(Instant::now());
        if self.written > self.flushed {
            self.lost = true;
            self.flushed = self.written;
        }
        for Line { queue, sent } in &mut self.lines {
            for sent in std::mem::take(sent).into_values().rev() {
                queue.push_front(sent.request);
            }
        }
        // A durable write that a flush has to end may be lost in part even where nothing else is.
        for op in self.ops.values_mut().filter(|op| op.then_flush) {
            op.error = Some(LOST);
        }
        for line in 0..LINES_MAX {
            for request in std::mem::take(&mut self.lines[line].queue) {
                let ends_write = !self.ops.get(&request.op).is_none_or(|op| op.is_flush);
                if request.command == command::FLUSH && (self.lost || ends_write) {
                    self.end(&request, 0, Err(LOST));
                } else {
                    self.lines[line].queue.push_back(request);
                }
            }
        }
    }

    /// Whatever waits for a server fails.
    fn give_up(&mut self, why: &IoError) {
        for line in 0..LINES_MAX {
            for request in std::mem::take(&mut self.lines[line].queue) {
                self.end(&request, 0, Err(why.clone()));
            }
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

/// The connections of a device, the one for what somebody waits for behind the other; or one alone.
pub(crate) type Streams = Arc<[Stream]>;

/// Shared by the device and its threads.
pub(crate) struct Exchange {
    state: Mutex<State>,
    /// Something is to be sent over this connection, may be sent again, or the connection is to end.
    work: [Condvar; LINES_MAX],
    /// Which connection is for what somebody waits for.
    critical: usize,
    terms: Terms,
    /// For so long a server may be silent that owes an answer.
    timeout: Duration,
    waker: Waker,
    /// The owner has been woken since it last looked.
    woken: AtomicBool,
}

impl Exchange {
    /// Starts the threads of new connections, one to each of the export's addresses.
    pub(crate) fn start(spec: &NbdSpec, first: Streams, terms: Terms, waker: Waker) -> io::Result<Arc<Self>> {
        let critical = first.len() - 1;
        let state = Mutex::new(State { streams: Arc::clone(&first), ..State::default() });
        let work = std::array::from_fn(|_| Condvar::new());
        let (timeout, woken) = (spec.timeout, AtomicBool::new(false));
        let exchange = Arc::new(Self { state, work, critical, terms, timeout, waker, woken });
        let (shared, spec) = (Arc::clone(&exchange), spec.clone());
        thread::Builder::new().name("nbd-send".to_owned()).spawn(move || shared.run(&spec, first))?;
        Ok(exchange)
    }

    /// A thread that panics with the lock held leaves a state that is whole: nothing in it can panic half-way.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn submit(&self, tag: u64, op: DeviceOp, class: Class) {
        let line = match class {
            Class::Foreground => self.critical,
            Class::Background => 0,
        };
        self.state().submit(&self.terms, tag, op, line);
        self.work[line].notify_one();
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
        self.state().lines.iter().map(|line| line.queue.len()).sum()
    }

    /// Whether something has ended that was not polled.
    pub(crate) fn has_done(&self) -> bool {
        !self.state().done.is_empty()
    }

    /// Ends the connections, whatever is under way, and waits for a moment until the server knows.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closing = true;
        self.wake_senders();
        let in_use = |state: &mut State| !state.streams.is_empty();
        let waited = self.work[0].wait_timeout_while(state, RETRY_PAUSE, in_use);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.streams.iter().for_each(Stream::shut_down);
    }

    fn wake_senders(&self) {
        self.work.iter().for_each(Condvar::notify_all);
    }

    fn tell_owner(&self) {
        if !self.woken.swap(true, Ordering::SeqCst) {
            self.waker.wake_always();
        }
    }

    /// The first sender's thread: some connections after the others, until the device is dropped.
    fn run(&self, spec: &NbdSpec, first: Streams) {
        let mut next = Some(first);
        while let Some(streams) = next.take().or_else(|| self.reconnect(spec)) {
            self.use_connections(spec, &streams);
            let mut state = self.state();
            state.lose();
            self.wake_senders();
            if state.closing {
                return;
            }
            drop(state);
            self.tell_owner();
        }
    }

    /// Sends and has answers read until a connection is lost or none is wanted any more.
    fn use_connections(&self, spec: &NbdSpec, streams: &[Stream]) {
        thread::scope(|scope| {
            let mut threads = Vec::new();
            for (line, stream) in streams.iter().enumerate() {
                let name = |name: &str| thread::Builder::new().name(name.to_owned());
                let read = move || {
                    // Why it ended makes no difference: it is over, and tried anew.
                    let _ = self.read_answers(spec, line, streams);
                    // Whoever sends just now must not wait for a server that may not take it any more.
                    stream.shut_down();
                    self.end_all(streams);
                };
                threads.push(name("nbd-read").spawn_scoped(scope, read));
                if line > 0 {
                    let send = move || self.send_over(line, stream);
                    threads.push(name("nbd-send").spawn_scoped(scope, send));
                }
            }
            // With a thread too few nothing is done by the others.
            if threads.iter().any(Result::is_err) {
                self.end_all(streams);
            }
            self.send_over(0, &streams[0]);
            for thread in threads.into_iter().flatten() {
                let _ = thread.join();
            }
        });
    }

    /// Nothing more is sent over any connection; what the server still answers counts.
    fn end_all(&self, streams: &[Stream]) {
        let mut state = self.state();
        state.ended = true;
        // The last word is each sender's own.
        if !state.closing {
            streams.iter().for_each(Stream::end_sending);
        }
        drop(state);
        self.wake_senders();
    }

    fn send_over(&self, line: usize, stream: &Stream) {
        // As with reading.
        let _ = self.send_requests(line, stream);
        let state = self.state();
        // Of a server that is silent the last answers are waited for.
        if state.closing || !state.ended {
            stream.shut_down();
        }
    }

    fn send_requests(&self, line: usize, stream: &Stream) -> io::Result<()> {
        loop {
            let mut state = self.state();
            let idle = |state: &mut State| {
                let Line { queue, sent } = &state.lines[line];
                !state.closing && !state.ended && (queue.is_empty() || sent.len() >= DEPTH_MAX)
            };
            state = self.work[line].wait_while(state, idle).unwrap_or_else(PoisonError::into_inner);
            if state.closing {
                drop(state);
                return stream.send(&mut [IoSlice::new(&Request::disconnect().header(0))], &|| false);
            }
            if state.ended {
                return Ok(());
            }
            let Some(request) = state.lines[line].queue.pop_front() else { continue };
            state.cookie += 1;
            let (cookie, covers) = (state.cookie, state.written);
            let header = request.header(cookie);
            // It is on the list before it is sent: its answer may come at once.
            let data = request.data.clone();
            state.lines[line].sent.insert(cookie, Sent { request, covers, since: Instant::now() });
            drop(state);
            let mut parts: Vec<IoSlice<'_>> = Vec::with_capacity(1 + data.len());
            parts.push(IoSlice::new(&header));
            parts.extend(data.iter().map(|buf| IoSlice::new(buf)));
            stream.send(&mut parts, &|| !self.state().ended)?;
        }
    }

    /// Whether the server owes an answer and has been silent for too long.
    fn is_silent(&self, line: usize, stream: &Stream) -> bool {
        let state = self.state();
        let owes_for = state.lines[line].sent.first_key_value().map(|(_, oldest)| oldest.since.elapsed());
        owes_for.is_some_and(|owes_for| {
            owes_for.min(stream.still_for()) > self.timeout
                || owes_for > self.timeout.saturating_mul(STUCK_LIMITS)
        })
    }

    /// Whether the reader goes on; `silent_since`: since when nothing more is sent to a server that is silent.
    fn waits_on(
        &self,
        spec: &NbdSpec,
        line: usize,
        streams: &[Stream],
        silent_since: &Cell<Option<Instant>>,
    ) -> bool {
        // When another connection has ended the answers over this one are waited for in the same way.
        if silent_since.get().is_none() && self.state().ended {
            silent_since.set(Some(Instant::now()));
        }
        if let Some(since) = silent_since.get() {
            return since.elapsed() < self.timeout && !self.state().lines[line].sent.is_empty();
        }
        if self.is_silent(line, &streams[line]) {
            silent_since.set(Some(Instant::now()));
            self.end_all(streams);
            let limit_s = self.timeout.as_secs_f64();
            tracing::warn!(%spec, limit_s, "the NBD server does not answer; its connection is ended, and a new one is tried");
        }
        true
    }

    fn read_answers(&self, spec: &NbdSpec, line: usize, streams: &[Stream]) -> io::Result<()> {
        let stream = &streams[line];
        let broken = |why| io::Error::new(io::ErrorKind::InvalidData, why);
        let silent_since = Cell::new(None);
        let waits_on = || self.waits_on(spec, line, streams, &silent_since);
        // Asked after each answer, too: one request may be stuck while others are answered.
        while waits_on() {
            let mut head = [0; SimpleReply::BYTES];
            stream.receive(&mut head, &waits_on)?;
            let SimpleReply { error, cookie } = match ReplyHeader::decode(&head) {
                Ok(ReplyHeader::Simple(reply)) => reply,
                // Structured replies were not asked for.
                Ok(ReplyHeader::Chunk(_)) | Err(_) => return Err(broken("no simple reply")),
            };
            let asked = self.state().lines[line]
                .sent
                .get(&cookie)
                .map(|sent| (sent.request.command, sent.request.len));
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
            if let Some(sent) = state.lines[line].sent.remove(&cookie) {
                state.end(&sent.request, sent.covers, result);
            }
            drop(state);
            self.work[line].notify_one();
            self.tell_owner();
        }
        Ok(())
    }

    /// New connections to the same export; `None` when the device is no longer wanted.
    fn reconnect(&self, spec: &NbdSpec) -> Option<Streams> {
        let since = Instant::now();
        let mut unreached = None;
        let mut said = false;
        loop {
            let attempt = self.connect_anew(spec, &mut unreached);
            let pause = if attempt.is_ok() { SETTLE_PAUSE } else { RETRY_PAUSE };
            let waiting = self.work[0].wait_timeout_while(self.state(), pause, |state| !state.closing);
            let (state, _) = waiting.unwrap_or_else(PoisonError::into_inner);
            if state.closing {
                return None;
            }
            let sign = state.sign.clone();
            drop(state);
            // After the pause, when whoever had it meanwhile has done with it.
            let shown = |stream: &Stream| self.shows(stream, sign.as_ref());
            let attempt = attempt.and_then(|streams| {
                streams.iter().try_for_each(shown)?;
                let are_one = show_the_same(&streams, &self.terms).map_err(|_| AWAY)?;
                are_one.then_some(streams).ok_or(OTHER)
            });
            match attempt {
                Ok(streams) => {
                    let mut state = self.state();
                    (state.streams, state.away_since) = (Arc::clone(&streams), None);
                    drop(state);
                    return Some(streams);
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

    /// Connects to what has the size and the abilities of what was opened, at each of its addresses. The log names the first that cannot
    /// be reached, unless it is `unreached` already.
    fn connect_anew<'a>(
        &self,
        spec: &'a NbdSpec,
        unreached: &mut Option<&'a Server>,
    ) -> Result<Streams, IoError> {
        let one = |server| {
            let (stream, terms) = connect(spec, server).map_err(|e| {
                if unreached.replace(server) != Some(server) {
                    let why = words_of(&e);
                    tracing::warn!(%spec, "the NBD server at {server} cannot be reached, which is tried again: {why}");
                }
                AWAY
            })?;
            (terms == self.terms).then_some(stream).ok_or(OTHER)
        };
        spec.servers().map(one).collect()
    }

    /// Whether it shows that it is what was opened.
    fn shows(&self, stream: &Stream, sign: Option<&Sign>) -> Result<(), IoError> {
        let Some(Sign { offset, len, is_ours }) = sign else { return Ok(()) };
        let bytes = read_alone(stream, &self.terms, *offset, *len).map_err(|_| UNREAD)?;
        is_ours(&bytes).then_some(()).ok_or(OTHER)
    }
}
