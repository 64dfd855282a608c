//! The connections of an export: their threads, and how a lost one is got over. What all remote backings share is in
//! [`remote`](crate::remote).
//!
//! **A second connection.** It takes what somebody waits for, and the first one the rest; each is a line of its own. Both are to one
//! export, of which the server says that a flush over one covers what it has answered over the other (`CAN_MULTI_CONN`). They are used
//! together, as one session: when one is lost the other is ended, and both are made anew.
//!
//! **A server that is silent.** Who has not answered a request for so long as the export's `timeout` says is sent nothing more;
//! what it still answers counts, and when it ends the connection, or as much time has passed again, the connection is lost. That it is
//! waited for has a reason: a server that ends a connection has come to the end of what it had received over it.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use forebay_block::{BufMut, Class, DeviceOp, ErrorKind, IoError, words_of};
use forebay_nbd::codec::{NbdError, ReplyHeader, SimpleReply, command};

use crate::device::Sign;
use crate::nbd::handshake::{Stream, Terms, connect, read_alone};
use crate::nbd::requests::{Request, parts_of};
use crate::nbd::same::show_the_same;
use crate::nbd::uri::{NbdSpec, Server};
use crate::remote::{Ending, Exchange, Work};
use crate::ring::Waker;

/// Requests that are sent over a connection and not answered at a time; the rest waits in the queue, which is bounded by what the volume has
/// under way. An operation is one request, unless it is longer than the server takes.
pub(crate) const DEPTH_MAX: usize = 128;
/// Pause between two attempts to connect anew.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// A request that is not answered for so many times the limit is waited for in vain, even if the server answers others.
const STUCK_LIMITS: u32 = 5;
/// A server is given so long to do or drop what it has received from a connection that ended, before another one is used: an old
/// write must not come after a new one.
pub(crate) const SETTLE_PAUSE: Duration = Duration::from_secs(1);

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

/// The connections of a device, the one for what somebody waits for behind the other; or one alone.
pub(crate) type Streams = Arc<[Stream]>;

/// Shared by the device and its threads.
pub(crate) struct Connections {
    pub(crate) exchange: Exchange<Request>,
    /// Those in use; none or all.
    streams: Mutex<Streams>,
    /// Which line is for what somebody waits for.
    critical: usize,
    terms: Terms,
    /// For so long a server may be silent that owes an answer.
    timeout: Duration,
}

impl Connections {
    /// Starts the threads of new connections, one to each of the export's addresses.
    pub(crate) fn start(spec: &NbdSpec, first: Streams, terms: Terms, waker: Waker) -> io::Result<Arc<Self>> {
        let exchange = Exchange::new(first.len(), DEPTH_MAX, waker);
        let (critical, streams) = (first.len() - 1, Mutex::new(Arc::clone(&first)));
        let connections = Arc::new(Self { exchange, streams, critical, terms, timeout: spec.timeout });
        connections.exchange.begin();
        let (shared, spec) = (Arc::clone(&connections), spec.clone());
        thread::Builder::new().name("nbd-send".to_owned()).spawn(move || shared.run(&spec, first))?;
        Ok(connections)
    }

    /// Begins an operation, over the line of its class.
    pub(crate) fn submit(&self, tag: u64, op: DeviceOp, class: Class) {
        let line = match class {
            Class::Foreground => self.critical,
            Class::Background => 0,
        };
        self.exchange.submit(tag, line, parts_of(&self.terms, op));
    }

    /// Ends the connections, whatever is under way, and waits for a moment until the server knows.
    pub(crate) fn end(&self) {
        self.exchange.close();
        self.hold(Streams::default()).iter().for_each(Stream::shut_down);
    }

    /// These are in use from now on, and no more the ones that are returned.
    fn hold(&self, streams: Streams) -> Streams {
        std::mem::replace(&mut *self.streams.lock().unwrap_or_else(PoisonError::into_inner), streams)
    }

    /// The first sender's thread: some connections after the others, until the device is dropped.
    fn run(&self, spec: &NbdSpec, first: Streams) {
        let mut next = Some(first);
        while let Some(streams) = next.take().or_else(|| self.reconnect(spec)) {
            self.use_connections(spec, &streams);
            self.hold(Streams::default());
            if !self.exchange.lose() {
                return;
            }
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
        // The last word is each sender's own.
        if self.exchange.stop() {
            streams.iter().for_each(Stream::end_sending);
        }
    }

    fn send_over(&self, line: usize, stream: &Stream) {
        // As with reading.
        let _ = self.send_requests(line, stream);
        // Of a server that is silent the last answers are waited for.
        if self.exchange.is_closing() || !self.exchange.is_stopped() {
            stream.shut_down();
        }
    }

    fn send_requests(&self, line: usize, stream: &Stream) -> io::Result<()> {
        loop {
            let (cookie, request) = match self.exchange.next(line) {
                Work::Send(cookie, request) => (cookie, request),
                Work::Stop => return Ok(()),
                Work::Close => {
                    return stream.send(&mut [IoSlice::new(&Request::disconnect().header(0))], &|| false);
                }
            };
            let header = request.header(cookie);
            let mut parts: Vec<IoSlice<'_>> = Vec::with_capacity(1 + request.data.len());
            parts.push(IoSlice::new(&header));
            parts.extend(request.data.iter().map(|buf| IoSlice::new(buf)));
            stream.send(&mut parts, &|| !self.exchange.is_stopped())?;
        }
    }

    /// Whether the server owes an answer and has been silent for too long.
    fn is_silent(&self, line: usize, stream: &Stream) -> bool {
        self.exchange.owes_for(line).is_some_and(|owes_for| {
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
        if silent_since.get().is_none() && self.exchange.is_stopped() {
            silent_since.set(Some(Instant::now()));
        }
        if let Some(since) = silent_since.get() {
            return since.elapsed() < self.timeout && self.exchange.owes_for(line).is_some();
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
            let asked =
                self.exchange.of_sent(line, cookie, |request| (request.command, request.offset, request.len));
            let (asked, offset, len) = asked.ok_or_else(|| broken("an answer to no request"))?;
            let ending = match error.kind() {
                None if asked == command::READ => {
                    let mut data = BufMut::zeroed(len as usize);
                    stream.receive(&mut data, &waits_on)?;
                    Ending::Well(Some(data.freeze()))
                }
                None => Ending::Well(None),
                // The server goes away and has not done it; its successor will.
                Some(_) if error == NbdError::ESHUTDOWN => {
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
                Some(kind) => {
                    let offset = (asked != command::FLUSH).then_some(offset);
                    Ending::Failed(IoError::of_store(kind, "using an NBD export", error.to_string(), offset))
                }
            };
            self.exchange.end(line, cookie, ending);
        }
        Ok(())
    }

    /// New connections to the same export; `None` when the device is no longer wanted.
    fn reconnect(&self, spec: &NbdSpec) -> Option<Streams> {
        let mut unreached = None;
        let mut said = false;
        loop {
            let attempt = self.connect_anew(spec, &mut unreached);
            let pause = if attempt.is_ok() { SETTLE_PAUSE } else { RETRY_PAUSE };
            if !self.exchange.pause(pause) {
                return None;
            }
            // After the pause, when whoever had it meanwhile has done with it.
            let sign = self.exchange.sign();
            let shown = |stream: &Stream| self.shows(stream, sign.as_ref());
            let attempt = attempt.and_then(|streams| {
                streams.iter().try_for_each(shown)?;
                let are_one = show_the_same(&streams, &self.terms).map_err(|_| AWAY)?;
                are_one.then_some(streams).ok_or(OTHER)
            });
            match attempt {
                Ok(streams) => {
                    self.hold(Arc::clone(&streams));
                    self.exchange.settle();
                    return self.exchange.begin().then_some(streams);
                }
                Err(why) => {
                    if why != AWAY && !std::mem::replace(&mut said, true) {
                        let why = why.context;
                        tracing::warn!(%spec, "{why}; until the right one is back, all operations on it fail");
                    }
                    self.exchange.not_reached(&why);
                }
            }
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
