//! The server: its listening sockets, its connections, starting and stopping.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use forebay_block::words_of;
use thiserror::Error;

use crate::address::Address;
use crate::connection::{Connection, Context};
use crate::counters::RequestCounts;
use crate::export::{Export, ExportTable};
use crate::limits::Limits;
use crate::listener::Listener;
use crate::lock::hold;
use crate::socket::Socket;
use crate::tls::{TlsError, TlsIdentity, TlsSettings};

/// Pause before accepting again when the system lacks the means for a further connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Time that connections have to end after they were cut at the end of [`NbdServer::stop`]'s grace.
const CUT_WAIT: Duration = Duration::from_secs(1);

/// What to serve, and where.
#[derive(Clone)]
pub struct ServerConfig {
    /// Addresses to listen on.
    pub listen: Vec<Address>,
    /// Volumes, each under its own name.
    pub exports: Vec<Export>,
    /// TLS, for all addresses; without it, only plain connections.
    pub tls: Option<TlsSettings>,
    /// Limits.
    pub limits: Limits,
}

/// Why a server does not start.
#[derive(Debug, Error)]
pub enum ServerError {
    /// A live server has the address.
    #[error("{address} is in use by another server; stop it or choose another address")]
    InUse {
        /// The address.
        address: Address,
    },
    /// The path of a unix socket is taken by something that is no socket, which is left alone.
    #[error("{} exists and is no socket; choose another path", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The system refuses the address.
    #[error("cannot listen on {address}: {}", words_of(.source))]
    Bind {
        /// The address.
        address: Address,
        /// Why.
        source: io::Error,
    },
    /// A volume's name is empty, too long, or used twice.
    #[error("`{name}` cannot name an export: names have 1 to 4096 bytes, and each is used once")]
    ExportName {
        /// The name.
        name: String,
    },
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A thread cannot be started.
    #[error("cannot start a thread: {}", words_of(.0))]
    Thread(io::Error),
}

/// State of a server.
#[derive(Clone, Debug)]
pub struct ServerStatus {
    /// Connections accepted since the start.
    pub connections_accepted: u64,
    /// Connections closed at once because of [`Limits::connections_max`].
    pub connections_refused: u64,
    /// The exports, in the order of their names.
    pub exports: Vec<ExportStatus>,
    /// The connections, oldest first.
    pub connections: Vec<ConnectionStatus>,
}

/// State of one export.
#[derive(Clone, Debug)]
pub struct ExportStatus {
    /// Its name.
    pub name: String,
    /// Connections that use it now.
    pub connections: usize,
    /// What was counted since the start, ended connections included.
    pub counts: RequestCounts,
}

/// State of one connection.
#[derive(Clone, Debug)]
pub struct ConnectionStatus {
    /// Number, unique within the server.
    pub id: u64,
    /// The client, for a person.
    pub peer: String,
    /// The client's process, if it came through a unix socket; else 0.
    pub pid: u32,
    /// The export; `None` during negotiation.
    pub export: Option<String>,
    /// Whether data travels under TLS.
    pub tls: bool,
    /// Requests under way or not yet answered.
    pub requests_in_flight: usize,
    /// Bytes of data of those requests.
    pub bytes_in_flight: usize,
    /// What was counted of it.
    pub counts: RequestCounts,
}

struct Shared {
    context: Context,
    connections: Mutex<BTreeMap<u64, Arc<Connection>>>,
    /// A connection ended.
    ended: Condvar,
    next_id: AtomicU64,
    refused: AtomicU64,
}

/// A running server. Dropping it stops it without grace.
pub struct NbdServer {
    shared: Arc<Shared>,
    listeners: Vec<Arc<Listener>>,
    acceptors: Mutex<Vec<JoinHandle<()>>>,
}

impl NbdServer {
    /// Opens all addresses and starts to serve.
    ///
    /// # Errors
    /// Nothing is served if any part cannot be set up.
    pub fn start(config: ServerConfig) -> Result<Self, ServerError> {
        let exports = ExportTable::new(config.exports).map_err(|name| ServerError::ExportName { name })?;
        let tls = config.tls.as_ref().map(TlsIdentity::load).transpose()?;
        let context = Context { exports, tls, limits: config.limits, stopping: AtomicBool::new(false) };
        let mut server = Self {
            shared: Arc::new(Shared {
                context,
                connections: Mutex::default(),
                ended: Condvar::new(),
                next_id: AtomicU64::new(1),
                refused: AtomicU64::new(0),
            }),
            listeners: Vec::new(),
            acceptors: Mutex::default(),
        };
        // From here on, an error drops `server`, which closes what is open.
        for address in &config.listen {
            server.listeners.extend(Listener::open(address)?.into_iter().map(Arc::new));
        }
        for listener in &server.listeners {
            let (shared, listener) = (Arc::clone(&server.shared), Arc::clone(listener));
            let thread = thread::Builder::new().name("nbd-accept".to_owned());
            let handle = thread.spawn(move || shared.accept_from(&listener)).map_err(ServerError::Thread)?;
            hold(&server.acceptors).push(handle);
        }
        Ok(server)
    }

    /// Whether a server could listen at the address now.
    ///
    /// # Errors
    /// As [`NbdServer::start`] for that address.
    pub fn can_listen(address: &Address) -> Result<(), ServerError> {
        Listener::open(address)?.iter().for_each(Listener::close);
        Ok(())
    }

    /// Where the server listens, with the ports that the kernel chose.
    pub fn addresses(&self) -> Vec<Address> {
        self.listeners.iter().filter_map(|l| l.address()).collect()
    }

    /// Stops: listens no longer, reads no further requests, lets those under way finish and their replies be sent
    /// for at most `grace`, then cuts what is left. Returns how many connections were cut. Stopping again does nothing.
    pub fn stop(&self, grace: Duration) -> usize {
        let shared = &self.shared;
        let connections = hold(&shared.connections);
        shared.context.stopping.store(true, Ordering::SeqCst);
        drop(connections);
        for listener in &self.listeners {
            listener.close();
        }
        for acceptor in hold(&self.acceptors).drain(..) {
            let _ = acceptor.join();
        }
        for connection in hold(&shared.connections).values() {
            match connection.serving.get() {
                Some(_) => connection.socket.shut_reading(),
                None => connection.socket.shut(),
            }
        }
        let left = shared.wait_ended(grace);
        for connection in &left {
            connection.socket.shut();
        }
        let stuck = if left.is_empty() { 0 } else { shared.wait_ended(CUT_WAIT).len() };
        if stuck > 0 {
            tracing::warn!(stuck, "connections still wait for their volume; they end when it answers");
        }
        left.len()
    }

    /// What the server does now, and what it has counted.
    pub fn status(&self) -> ServerStatus {
        let shared = &self.shared;
        let connections: Vec<_> = hold(&shared.connections).values().map(|c| c.status()).collect();
        let exports = shared.context.exports.iter().map(|served| ExportStatus {
            name: served.name.clone(),
            connections: connections.iter().filter(|c| c.export.as_ref() == Some(&served.name)).count(),
            counts: served.counters.snapshot(),
        });
        ServerStatus {
            connections_accepted: shared.next_id.load(Ordering::Relaxed) - 1,
            connections_refused: shared.refused.load(Ordering::Relaxed),
            exports: exports.collect(),
            connections,
        }
    }
}

impl Drop for NbdServer {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

impl Shared {
    fn stopping(&self) -> bool {
        self.context.stopping.load(Ordering::SeqCst)
    }

    fn accept_from(self: &Arc<Self>, listener: &Listener) {
        let mut failing = false;
        loop {
            let accepted = listener.accept();
            if self.stopping() {
                return;
            }
            match accepted {
                Ok(socket) => {
                    failing = false;
                    self.admit(socket);
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    if !failing {
                        tracing::warn!("cannot accept connections for now: {}", words_of(&error));
                    }
                    failing = true;
                    thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    }

    /// Gives an accepted connection its thread, or closes it if there are too many.
    fn admit(self: &Arc<Self>, socket: Socket) {
        let mut connections = hold(&self.connections);
        if self.stopping() {
            return;
        }
        if connections.len() >= self.context.limits.connections_max {
            drop(connections);
            let refused = self.refused.fetch_add(1, Ordering::Relaxed) + 1;
            // One line for each doubling: a client that tries again and again must not fill the log.
            if refused.is_power_of_two() {
                tracing::warn!(peer = socket.peer(), refused, "connection refused: too many connections");
            }
            return;
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let connection = Arc::new(Connection::new(id, socket));
        connections.insert(id, Arc::clone(&connection));
        drop(connections);
        let presence = Presence { shared: Arc::clone(self), id };
        let thread = thread::Builder::new().name(format!("nbd-recv-{id}"));
        let spawned = thread.spawn(move || connection.run(&presence.shared.context));
        if let Err(error) = spawned {
            tracing::warn!(id, "connection refused: cannot start its thread: {}", words_of(&error));
        }
    }

    /// Waits until no connection is left, but no longer than `wait`; returns those that are left.
    fn wait_ended(&self, wait: Duration) -> Vec<Arc<Connection>> {
        let deadline = Instant::now() + wait;
        let mut connections = hold(&self.connections);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if connections.is_empty() || left.is_zero() {
                return connections.values().map(Arc::clone).collect();
            }
            connections =
                self.ended.wait_timeout(connections, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A connection's place in the table, given up when its thread ends, however it ends.
struct Presence {
    shared: Arc<Shared>,
    id: u64,
}

impl Drop for Presence {
    fn drop(&mut self) {
        hold(&self.shared.connections).remove(&self.id);
        self.shared.ended.notify_all();
    }
}

impl Connection {
    fn status(&self) -> ConnectionStatus {
        let serving = self.serving.get();
        let (requests_in_flight, bytes_in_flight) = serving.map_or((0, 0), |s| s.gate.load());
        ConnectionStatus {
            id: self.id,
            peer: self.socket.peer().to_owned(),
            pid: self.socket.peer_pid(),
            export: serving.map(|s| s.export.name.clone()),
            tls: serving.is_some_and(|s| s.secure),
            requests_in_flight,
            bytes_in_flight,
            counts: serving.map(|s| s.counters.snapshot()).unwrap_or_default(),
        }
    }
}
