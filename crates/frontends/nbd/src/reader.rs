//! The reading side of the transmission phase: on the connection's own thread, which waits for the client and at every limit, or on
//! the volume's, which takes only what makes nobody wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_block::{
    BlockService, BufMut, Completion, Criticality, ErrorKind, Fetched, IoError, Op, Origin, Reply,
};

use crate::codec::{Request, command, command_flag};
use crate::connection::{Departure, Serving};
use crate::counters::add;
use crate::input::{Input, InputError};
use crate::outbox::Frame;
use crate::socket::Socket;
use crate::transmission::Verdict;

/// Requests that a connection's own thread takes, none of which is longer than what is read ahead, before the volume's thread may.
/// So a client that the volume's thread has to give back again and again costs little more than one that it never gets.
const QUICK_MIN: u32 = 64;

/// Fetches in a row that find no more than another part of a request. Who sends in so small pieces costs the volume's thread more than
/// the requests do.
const PIECES_MAX: u32 = 8;

/// A request on its way to the volume.
struct Outgoing {
    op: Op,
    origin: Origin,
    done: Completion,
}

/// See the module's documentation.
pub(crate) struct Reader {
    serving: Arc<Serving>,
    input: Input,
    pid: u32,
    /// Its number among all connections of the process.
    lane: u64,
    /// The volume's thread has found no room for it.
    refused: Option<Outgoing>,
    /// Quick requests in a row that its own thread has taken.
    quick: u32,
    /// Fetches in a row that have taken none, and left a part of one.
    pieces: u32,
}

/// What became of the first request that has been read ahead.
enum Next {
    Taken,
    /// It is not here as a whole.
    Incomplete,
    /// It is one for the connection's own thread.
    Slow,
}

impl Reader {
    pub(crate) fn new(serving: Arc<Serving>, input: Input, pid: u32, lane: u64) -> Self {
        let quick = if input.can_be_polled() { QUICK_MIN } else { 0 };
        Self { serving, input, pid, lane, refused: None, quick, pieces: 0 }
    }

    pub(crate) fn service(&self) -> &Arc<dyn BlockService> {
        &self.serving.export.export.service
    }

    /// What becomes readable when the client sends something.
    pub(crate) fn socket(&self) -> &Arc<Socket> {
        self.input.socket()
    }

    /// How many bytes have come, if they end within a request.
    pub(crate) fn stops_within_request(&self) -> Option<u64> {
        self.input.has_part().then(|| self.input.received())
    }

    /// On the connection's own thread: takes requests until it ends, or until the volume's thread may take them (`None`).
    pub(crate) fn run(&mut self, stopping: &AtomicBool) -> Option<Departure> {
        if let Some(Outgoing { op, origin, done }) = self.refused.take() {
            self.service().submit(op, origin, done);
        }
        loop {
            if stopping.load(Ordering::Relaxed) {
                return Some(Departure::Stopping);
            }
            if self.quick >= QUICK_MIN && self.input.can_be_polled() {
                self.quick = 0;
                return None;
            }
            if let Err(departure) = self.step() {
                return Some(departure);
            }
        }
    }

    fn step(&mut self) -> Result<(), Departure> {
        let header = self.input.header::<{ Request::BYTES }>()?;
        let request = decode(&header)?;
        let quick = request.command != command::WRITE || Input::reads_ahead(request.len);
        self.quick = if quick { self.quick.saturating_add(1) } else { 0 };
        self.take(request)
    }

    fn take(&mut self, request: Request) -> Result<(), Departure> {
        self.serving.count_arrival(request.command);
        match self.serving.session.judge(&request) {
            Verdict::Disconnect => return Err(Departure::Regular("disconnected by the client")),
            Verdict::Refuse(refusal) => {
                if request.command == command::WRITE {
                    self.skip_data(request.len as usize)?;
                }
                let head = self.serving.session.error(&request, refusal.error, refusal.reason);
                self.serving.enter(0);
                self.serving.post(Frame::new(head, None, 0), true);
            }
            Verdict::Nothing => {
                self.serving.enter(0);
                self.serving.post(Frame::new(self.serving.session.success(&request), None, 0), false);
            }
            Verdict::Write { fua } => {
                let ticket = self.enter(request, request.len as usize);
                let mut data = BufMut::for_overwriting(request.len as usize);
                if let Err(error) = self.input.exact(&mut data) {
                    ticket.abandon();
                    return Err(within_request(error));
                }
                let Outgoing { op, origin, done } = self.write(&request, data, fua, ticket);
                self.service().submit(op, origin, done);
            }
            Verdict::Submit(op) => {
                let ticket = self.enter(request, reply_bytes(&op));
                let Outgoing { op, origin, done } = self.outgoing(op, ticket);
                self.service().submit(op, origin, done);
            }
        }
        Ok(())
    }

    /// On the volume's thread: takes what has come, as far as nobody has to wait for it, and nothing is wrong with it.
    pub(crate) fn fetch(&mut self) -> Fetched {
        let Ok(full) = self.input.read_now() else {
            return Fetched::Leaves;
        };
        let mut pieces = self.pieces + 1;
        self.pieces = 0;
        loop {
            match self.take_next() {
                Next::Taken => pieces = 0,
                Next::Slow => return Fetched::Leaves,
                Next::Incomplete if self.input.has_part() && pieces >= PIECES_MAX => return Fetched::Leaves,
                Next::Incomplete => break,
            }
        }
        self.pieces = if self.input.has_part() { pieces } else { 0 };
        if full { Fetched::Part } else { Fetched::All }
    }

    fn take_next(&mut self) -> Next {
        let Some(header) = self.input.ahead().first_chunk::<{ Request::BYTES }>() else {
            return Next::Incomplete;
        };
        // What is wrong with it is found and told by its own thread.
        let Ok(request) = Request::decode(header) else {
            return Next::Slow;
        };
        // Nor does an answer that costs the volume nothing cost its thread anything.
        let (op, fua) = match self.serving.session.judge(&request) {
            Verdict::Submit(op) => (Some(op), false),
            Verdict::Write { fua } if Input::reads_ahead(request.len) => (None, fua),
            _ => return Next::Slow,
        };
        let data_bytes = if op.is_none() { request.len as usize } else { 0 };
        let charge = op.as_ref().map_or(data_bytes, reply_bytes);
        let whole = Request::BYTES + data_bytes;
        if self.input.ahead().len() < whole {
            return Next::Incomplete;
        }
        if !self.serving.gate.try_enter(charge) {
            return Next::Slow;
        }
        // At once: whatever goes wrong from here on, it leaves the gate.
        let ticket = Ticket { serving: Some(Arc::clone(&self.serving)), request, charge };
        self.serving.count_arrival(request.command);
        let Outgoing { op, origin, done } = match op {
            Some(op) => self.outgoing(op, ticket),
            None => {
                let data = BufMut::copy_of(&self.input.ahead()[Request::BYTES..whole]);
                self.write(&request, data, fua, ticket)
            }
        };
        self.input.consume(whole);
        match self.service().try_submit(op, origin, done) {
            Ok(()) => Next::Taken,
            Err(refused) => {
                let (op, done) = *refused;
                self.refused = Some(Outgoing { op, origin, done });
                Next::Slow
            }
        }
    }

    /// Skips the data of a write that is refused; what is far longer than allowed is not worth it.
    fn skip_data(&mut self, len: usize) -> Result<(), Departure> {
        if len / 2 > self.serving.session.request_bytes_max {
            return Err(Departure::Fault(format!("write of {len} bytes is too long")));
        }
        self.input.skip(len).map_err(within_request)
    }

    /// Waits for a place among the requests in flight.
    fn enter(&self, request: Request, charge: usize) -> Ticket {
        self.serving.enter(charge);
        Ticket { serving: Some(Arc::clone(&self.serving)), request, charge }
    }

    fn write(&self, request: &Request, data: BufMut, fua: bool, ticket: Ticket) -> Outgoing {
        self.serving.tally(|c| add(&c.bytes_written, u64::from(request.len)));
        self.outgoing(Op::Write { offset: request.offset, data: data.freeze(), fua }, ticket)
    }

    fn outgoing(&self, op: Op, ticket: Ticket) -> Outgoing {
        let request = &ticket.request;
        let critical = self.serving.export.export.critical;
        let origin = Origin {
            // The only requests of which the protocol tells that somebody waits for them; of the others the user may.
            sync: critical || request.has(command_flag::FUA) || request.command == command::FLUSH,
            criticality: if critical { Criticality::Direct } else { Criticality::None },
            pid: self.pid,
            lane: self.lane,
            ..Origin::default()
        };
        Outgoing { op, origin, done: Box::new(move |answer| ticket.settle(answer)) }
    }
}

fn decode(header: &[u8]) -> Result<Request, Departure> {
    Request::decode(header).map_err(|e| Departure::Fault(format!("request: {e}")))
}

/// Bytes of data that the answer brings at most.
fn reply_bytes(op: &Op) -> usize {
    match op {
        Op::Read { len, .. } => *len,
        Op::Status { extents_max, .. } => extents_max * 8,
        _ => 0,
    }
}

/// The end of the stream lies within a request, even if no byte of its data came.
fn within_request(error: InputError) -> Departure {
    match error {
        InputError::Closed => InputError::Truncated.into(),
        other => other.into(),
    }
}

/// A request's place among those in flight. It is answered exactly once: by its completion, or with an error when
/// the volume loses the completion.
struct Ticket {
    serving: Option<Arc<Serving>>,
    request: Request,
    charge: usize,
}

impl Ticket {
    fn settle(mut self, answer: Result<Reply, IoError>) {
        self.answer(answer);
    }

    /// Gives up the place without an answer: the client left within the request.
    fn abandon(mut self) {
        if let Some(serving) = self.serving.take() {
            serving.gate.leave(self.charge);
        }
    }

    fn answer(&mut self, answer: Result<Reply, IoError>) {
        if let Some(serving) = self.serving.take() {
            let (head, data, is_error) = serving.session.reply(&self.request, answer);
            if let Some(data) = &data {
                serving.tally(|c| add(&c.bytes_read, data.len() as u64));
            }
            serving.post(Frame::new(head, data, self.charge), is_error);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.answer(Err(IoError::new(ErrorKind::Shutdown, "the volume dropped the request")));
    }
}
