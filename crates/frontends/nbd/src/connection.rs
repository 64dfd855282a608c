//! One client: negotiation, then requests until it leaves.

use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Instant;

use forebay_block::{BufMut, Criticality, ErrorKind, IoError, Op, Origin, Reply, words_of};

use crate::budget::MemoryBudget;
use crate::codec::{Request, command, command_flag};
use crate::complaints::Complaints;
use crate::counters::{RequestCounters, add};
use crate::export::{ExportTable, Served};
use crate::gate::Gate;
use crate::input::{Input, InputError};
use crate::limits::Limits;
use crate::negotiation::{Choice, Ending, Negotiation, Step, TlsPolicy};
use crate::outbox::{Frame, Outbox};
use crate::places::Full;
use crate::reception::Presence;
use crate::socket::Socket;
use crate::tls::{TlsIdentity, TlsSession};
use crate::transmission::{Session, Verdict};
use crate::transport::Transport;

/// Connections of all servers of the process that came so far: several servers may serve a volume.
static LANES: AtomicU64 = AtomicU64::new(0);

/// What all connections of a server share.
pub(crate) struct Context {
    pub(crate) exports: ExportTable,
    pub(crate) tls: Option<TlsIdentity>,
    pub(crate) limits: Limits,
    pub(crate) memory: Arc<MemoryBudget>,
    pub(crate) complaints: Complaints,
    pub(crate) stopping: AtomicBool,
}

/// A connection, as the server sees it.
pub(crate) struct Connection {
    pub(crate) id: u64,
    pub(crate) socket: Arc<Socket>,
    /// Set when transmission starts.
    pub(crate) serving: OnceLock<Arc<Serving>>,
    /// Why the server has closed it.
    cut: OnceLock<&'static str>,
}

/// The transmission phase of a connection: what its reader, its writer and the completions share.
pub(crate) struct Serving {
    pub(crate) session: Session,
    pub(crate) export: Arc<Served>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) counters: RequestCounters,
    pub(crate) secure: bool,
    outbox: Outbox,
}

/// How a connection ended.
#[derive(Debug)]
enum Departure {
    /// As the protocol has it.
    Regular(&'static str),
    /// The server stops.
    Stopping,
    /// The client got what it asked for in no other way.
    Refused(&'static str),
    /// The client broke the protocol, or the socket failed.
    Fault(String),
}

impl From<InputError> for Departure {
    fn from(error: InputError) -> Self {
        match error {
            InputError::Closed => Self::Regular("end of stream"),
            other => Self::Fault(other.to_string()),
        }
    }
}

impl Connection {
    pub(crate) fn new(id: u64, socket: Socket) -> Self {
        Self { id, socket: Arc::new(socket), serving: OnceLock::new(), cut: OnceLock::new() }
    }

    /// Closes it from outside.
    pub(crate) fn cut(&self, why: &'static str) {
        let _ = self.cut.set(why);
        self.socket.shut();
    }

    /// Serves the client until it leaves, breaks the protocol, or the server stops.
    pub(crate) fn run(&self, presence: &Presence) {
        let context = presence.context();
        let departure = match self.negotiate(presence) {
            Ok((transport, input, choice)) => self.serve(context, &transport, input, &choice),
            Err(departure) => departure,
        };
        self.socket.shut();
        let (id, peer) = (self.id, self.socket.peer());
        let departure = match self.cut.get() {
            Some(why) => Departure::Fault((*why).to_owned()),
            None => departure,
        };
        match departure {
            _ if context.stopping.load(Ordering::Relaxed) => {
                tracing::debug!(id, peer, "connection closed: server stops")
            }
            Departure::Stopping => tracing::debug!(id, peer, "connection closed: server stops"),
            Departure::Regular(how) => tracing::debug!(id, peer, "connection closed: {how}"),
            // Whoever can connect can do these again and again.
            _ if !context.complaints.may_say(Instant::now()) => {}
            Departure::Refused(why) => tracing::info!(id, peer, "connection refused: {why}"),
            Departure::Fault(what) => tracing::warn!(id, peer, "connection closed: {what}"),
        }
    }

    fn negotiate(&self, presence: &Presence) -> Result<(Transport, Input, Choice), Departure> {
        let context = presence.context();
        let deadline = Instant::now() + context.limits.handshake_timeout;
        let policy = context.tls.as_ref().map_or(TlsPolicy::Off, TlsIdentity::policy);
        let mut transport = Transport::Plain(Arc::clone(&self.socket));
        let mut input = Input::new(transport.clone(), deadline);
        let (mut out, mut message) = (Vec::new(), Vec::new());
        let mut negotiation = Negotiation::new(policy, &mut out);
        let send = |transport: &Transport, out: &mut Vec<u8>| -> Result<(), InputError> {
            self.socket.limit_waits(deadline)?;
            transport.send_all(&mut [IoSlice::new(out)])?;
            out.clear();
            Ok(())
        };
        loop {
            send(&transport, &mut out)?;
            message.resize(negotiation.needed(), 0);
            input.exact(&mut message)?;
            presence.got_on();
            let step = negotiation.take(&message, &context.exports, &mut out);
            if let Step::Serve(_) = step {
                // Before it is told that it may begin.
                presence.become_client().map_err(|full| Departure::Refused(full.as_str()))?;
            }
            send(&transport, &mut out)?;
            match (step, &context.tls) {
                (Step::StartTls, Some(identity)) => {
                    let session = TlsSession::accept(identity, Arc::clone(&self.socket), deadline, || {
                        presence.got_on();
                    })
                    .map_err(|e| tls_departure(&e))?;
                    transport = Transport::Tls(Arc::new(session));
                    input = Input::new(transport.clone(), deadline);
                    negotiation.secured();
                }
                (Step::Serve(choice), _) => {
                    input.without_deadline(context.limits.stall_timeout)?;
                    return Ok((transport, input, *choice));
                }
                (Step::End(ending), _) => return Err(ending.into()),
                (Step::Continue | Step::StartTls, _) => {}
            }
        }
    }

    fn serve(&self, context: &Context, transport: &Transport, input: Input, choice: &Choice) -> Departure {
        let Some(export) = context.exports.get(&choice.export.name) else {
            return Departure::Refused("there is no such export");
        };
        let limits = &context.limits;
        let memory = Arc::clone(&context.memory);
        let gate = Arc::new(Gate::new(limits.requests_in_flight_max, limits.bytes_in_flight_max, memory));
        let serving = Arc::new(Serving {
            session: Session::from(choice),
            export: Arc::clone(export),
            outbox: Outbox::new(transport.clone(), Arc::clone(&gate)),
            gate,
            counters: RequestCounters::default(),
            secure: transport.is_secure(),
        });
        let serving = self.serving.get_or_init(|| serving);
        let departure = thread::scope(|scope| {
            let writer = thread::Builder::new().name(format!("nbd-send-{}", self.id));
            if let Err(e) = writer.spawn_scoped(scope, || serving.outbox.run_writer()) {
                return Departure::Fault(format!("cannot start the connection's writer: {}", words_of(&e)));
            }
            let _finish = FinishOutbox(&serving.outbox);
            let lane = LANES.fetch_add(1, Ordering::Relaxed) + 1;
            let mut reader = Reader { serving, input, pid: self.socket.peer_pid(), lane };
            let departure = reader.run(&context.stopping);
            if matches!(departure, Departure::Fault(_)) {
                // No reply may keep a client's place that has broken the protocol.
                self.socket.shut();
            }
            serving.gate.wait_empty();
            match serving.outbox.has_stalled() {
                true => Departure::Fault("the client took no byte of its replies for too long".to_owned()),
                false => departure,
            }
        });
        transport.say_goodbye();
        departure
    }
}

/// Lets the writer end also if the reader panics: the scope waits for it.
struct FinishOutbox<'a>(&'a Outbox);

impl Drop for FinishOutbox<'_> {
    fn drop(&mut self) {
        self.0.finish();
    }
}

fn tls_departure(error: &io::Error) -> Departure {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => InputError::TimedOut.into(),
        _ => Departure::Fault(format!("TLS handshake failed: {}", words_of(error))),
    }
}

impl Full {
    const fn as_str(self) -> &'static str {
        match self {
            Self::All => "there are as many clients as there may be",
            Self::Source => "its address or user has its share of the clients",
            Self::Late => "it was too late with its handshake",
        }
    }
}

impl From<Ending> for Departure {
    fn from(ending: Ending) -> Self {
        match ending {
            Ending::Aborted => Self::Regular("negotiation ended by the client"),
            Ending::Refused(why) => Self::Refused(why),
            Ending::Malformed(error) => Self::Fault(format!("malformed negotiation: {error}")),
            Ending::OptionTooLong(len) => Self::Fault(format!("option of {len} bytes is too long")),
        }
    }
}

/// The reading side of the transmission phase.
struct Reader<'a> {
    serving: &'a Arc<Serving>,
    input: Input,
    pid: u32,
    /// Its number among all connections of the process.
    lane: u64,
}

impl Reader<'_> {
    fn run(&mut self, stopping: &AtomicBool) -> Departure {
        loop {
            if stopping.load(Ordering::Relaxed) {
                return Departure::Stopping;
            }
            let outcome =
                self.input.header::<{ Request::BYTES }>().map_err(Departure::from).and_then(|header| {
                    let request =
                        Request::decode(&header).map_err(|e| Departure::Fault(format!("request: {e}")))?;
                    self.take(request)
                });
            if let Err(departure) = outcome {
                return departure;
            }
        }
    }

    fn take(&mut self, request: Request) -> Result<(), Departure> {
        let serving = self.serving;
        serving.count_arrival(request.command);
        let carries_data = request.command == command::WRITE;
        match serving.session.judge(&request) {
            Verdict::Disconnect => return Err(Departure::Regular("disconnected by the client")),
            Verdict::Refuse(refusal) => {
                if carries_data {
                    self.skip_data(request.len as usize)?;
                }
                let head = serving.session.error(&request, refusal.error, refusal.reason);
                self.answer_at_once(head, true);
            }
            Verdict::Nothing => self.answer_at_once(serving.session.success(&request), false),
            Verdict::Write { fua } => {
                let ticket = self.enter(request, request.len as usize);
                let mut data = BufMut::zeroed(request.len as usize);
                if let Err(error) = self.input.exact(&mut data) {
                    ticket.abandon();
                    return Err(within_request(error));
                }
                serving.tally(|c| add(&c.bytes_written, u64::from(request.len)));
                self.submit(Op::Write { offset: request.offset, data: data.freeze(), fua }, ticket);
            }
            Verdict::Submit(op) => {
                let reply_bytes = match &op {
                    Op::Read { len, .. } => *len,
                    Op::Status { extents_max, .. } => extents_max * 8,
                    _ => 0,
                };
                let ticket = self.enter(request, reply_bytes);
                self.submit(op, ticket);
            }
        }
        Ok(())
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
        Ticket { serving: Some(Arc::clone(self.serving)), request, charge }
    }

    fn answer_at_once(&self, head: Vec<u8>, is_error: bool) {
        self.serving.enter(0);
        self.serving.post(Frame::new(head, None, 0), is_error);
    }

    fn submit(&self, op: Op, ticket: Ticket) {
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
        let service = &self.serving.export.export.service;
        service.submit(op, origin, Box::new(move |answer| ticket.settle(answer)));
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

impl Serving {
    /// Counts for the connection and for its export.
    fn tally(&self, count: impl Fn(&RequestCounters)) {
        count(&self.counters);
        count(&self.export.counters);
    }

    /// Waits for a place among the requests in flight.
    fn enter(&self, charge: usize) {
        self.gate.enter(charge, || self.tally(|c| add(&c.pauses, 1)));
    }

    fn count_arrival(&self, number: u16) {
        self.tally(|c| match number {
            command::READ => add(&c.reads, 1),
            command::WRITE => add(&c.writes, 1),
            command::FLUSH => add(&c.flushes, 1),
            command::TRIM => add(&c.trims, 1),
            command::WRITE_ZEROES => add(&c.zeroes, 1),
            command::BLOCK_STATUS => add(&c.statuses, 1),
            _ => {}
        });
    }

    fn post(&self, frame: Frame, is_error: bool) {
        if is_error {
            self.tally(|c| add(&c.errors, 1));
        }
        if self.outbox.post(frame) {
            self.tally(|c| add(&c.replies_deferred, 1));
        }
    }
}
