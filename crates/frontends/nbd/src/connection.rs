//! One client: negotiation, then requests until it leaves.

use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Instant;

use forebay_block::{Gathers, words_of};

use crate::budget::MemoryBudget;
use crate::codec::command;
use crate::complaints::Complaints;
use crate::counters::{RequestCounters, add};
use crate::desk::Desk;
use crate::export::{ExportTable, Served};
use crate::gate::Gate;
use crate::input::{Input, InputError};
use crate::limits::Limits;
use crate::negotiation::{Choice, Ending, Negotiation, Step, TlsPolicy};
use crate::outbox::{Frame, Outbox};
use crate::places::Full;
use crate::reader::Reader;
use crate::reception::Presence;
use crate::socket::Socket;
use crate::tls::{TlsIdentity, TlsSession};
use crate::transmission::Session;
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
    desk: Arc<Desk>,
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
pub(crate) enum Departure {
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
        Self {
            id,
            socket: Arc::new(socket),
            serving: OnceLock::new(),
            desk: Arc::default(),
            cut: OnceLock::new(),
        }
    }

    /// Closes it from outside.
    pub(crate) fn cut(&self, why: &'static str) {
        let _ = self.cut.set(why);
        self.shut();
    }

    /// Ends reading and writing.
    pub(crate) fn shut(&self) {
        self.socket.shut();
        self.desk.recall();
    }

    /// Ends reading.
    pub(crate) fn shut_reading(&self) {
        self.socket.shut_reading();
        self.desk.recall();
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
            let reader = Reader::new(Arc::clone(serving), input, self.socket.peer_pid(), lane);
            let departure = self.read(Box::new(reader), context);
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

    /// Takes requests until the connection ends: on this thread, or on the volume's while this one sleeps.
    fn read(&self, mut reader: Box<Reader>, context: &Context) -> Departure {
        loop {
            if let Some(departure) = reader.run(&context.stopping) {
                return departure;
            }
            match self.desk.lend(reader, context.limits.stall_timeout) {
                Some(back) => reader = back,
                None => return Departure::Fault("its requests could not be read any further".to_owned()),
            }
        }
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

impl Serving {
    /// Counts for the connection and for its export.
    pub(crate) fn tally(&self, count: impl Fn(&RequestCounters)) {
        count(&self.counters);
        count(&self.export.counters);
    }

    /// Waits for a place among the requests in flight.
    pub(crate) fn enter(&self, charge: usize) {
        self.gate.enter(charge, || self.tally(|c| add(&c.pauses, 1)));
    }

    pub(crate) fn count_arrival(&self, number: u16) {
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

    /// Sends an answer, together with those of the same round if there is one.
    pub(crate) fn post(self: &Arc<Self>, frame: Frame, is_error: bool) {
        if is_error {
            self.tally(|c| add(&c.errors, 1));
        }
        if self.outbox.post(frame, || Arc::clone(self) as Arc<dyn Gathers>) {
            self.tally(|c| add(&c.replies_deferred, 1));
        }
    }
}

impl Gathers for Serving {
    fn round_ends(&self) {
        match self.outbox.send_gathered() {
            0 => {}
            left => self.tally(|c| add(&c.replies_deferred, left as u64)),
        }
    }
}
