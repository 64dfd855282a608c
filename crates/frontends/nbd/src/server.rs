//! The server: its listening sockets, its connections, starting and stopping.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use forebay_block::{Clients, Frontend, words_of};
use forebay_guard::SocketRights;
use thiserror::Error;

use crate::address::Address;
use crate::budget::MemoryBudget;
use crate::complaints::Complaints;
use crate::connection::{Connection, Context};
use crate::counters::RequestCounts;
use crate::export::{Export, ExportTable};
use crate::limits::Limits;
use crate::listener::Listener;
use crate::lock::hold;
use crate::reception::Shared;
use crate::tls::{TlsError, TlsIdentity, TlsSettings};

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
    /// Who may connect to those that are unix sockets.
    pub socket: SocketRights,
    /// Limits.
    pub limits: Limits,
    /// The memory for what is under way, which several servers may share.
    pub memory: Arc<MemoryBudget>,
}

/// Why a server does not start.
#[derive(Debug, Error)]
pub enum ServerError {
    /// A live server has the address.
    #[error("{address} is in use by {holder}; stop it or choose another address")]
    InUse {
        /// The address.
        address: Address,
        /// Who, as far as is known.
        holder: String,
    },
    /// Another process or user stands in the way of a unix socket.
    #[error("{reason}")]
    Kept {
        /// One sentence.
        reason: String,
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
    /// A thread cannot be started, or what it needs.
    #[error("cannot start a thread: {}", words_of(.0))]
    Thread(io::Error),
}

/// State of a server.
#[derive(Clone, Debug)]
pub struct ServerStatus {
    /// Connections that had a place for their handshake since the start.
    pub connections_accepted: u64,
    /// Connections for which there was no place, be it to wait, for a handshake or as a client.
    pub connections_refused: u64,
    /// Connections that gave their place among the handshakes for another one, because they did not get on.
    pub connections_displaced: u64,
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

/// A running server. Dropping it stops it without grace.
pub struct NbdServer {
    shared: Arc<Shared>,
    listeners: Vec<Arc<Listener>>,
    reception: Mutex<Option<JoinHandle<()>>>,
}

impl NbdServer {
    /// Opens all addresses and starts to serve.
    ///
    /// # Errors
    /// Nothing is served if any part cannot be set up.
    pub fn start(config: ServerConfig) -> Result<Self, ServerError> {
        let exports = ExportTable::new(config.exports).map_err(|name| ServerError::ExportName { name })?;
        let tls = config.tls.as_ref().map(TlsIdentity::load).transpose()?;
        let context = Context {
            exports,
            tls,
            limits: config.limits,
            memory: config.memory,
            complaints: Complaints::default(),
            stopping: AtomicBool::new(false),
        };
        let shared = Arc::new(Shared::new(context).map_err(ServerError::Thread)?);
        let mut server = Self { shared, listeners: Vec::new(), reception: Mutex::default() };
        // From here on, an error drops `server`, which closes what is open.
        for address in &config.listen {
            server.listeners.extend(Listener::open(address, config.socket)?.into_iter().map(Arc::new));
        }
        for listener in &server.listeners {
            listener.set_nonblocking().map_err(ServerError::Thread)?;
        }
        let (shared, listeners) = (Arc::clone(&server.shared), server.listeners.clone());
        let thread = thread::Builder::new().name("nbd-accept".to_owned());
        let handle = thread.spawn(move || shared.receive(&listeners)).map_err(ServerError::Thread)?;
        *hold(&server.reception) = Some(handle);
        Ok(server)
    }

    /// Whether a server could listen at the address now.
    ///
    /// # Errors
    /// As [`NbdServer::start`] for that address.
    pub fn can_listen(address: &Address) -> Result<(), ServerError> {
        Listener::open(address, SocketRights::default())?.iter().for_each(Listener::close);
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
        let mut table = hold(&shared.table);
        shared.context.stopping.store(true, Ordering::SeqCst);
        table.places.turn_away_all();
        drop(table);
        for listener in &self.listeners {
            listener.close();
        }
        shared.ring();
        if let Some(reception) = hold(&self.reception).take() {
            let _ = reception.join();
        }
        for connection in hold(&shared.table).connections.values() {
            match connection.serving.get() {
                Some(_) => connection.shut_reading(),
                None => connection.shut(),
            }
        }
        let left = shared.wait_ended(grace);
        for connection in &left {
            connection.shut();
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
        let table = hold(&shared.table);
        let connections: Vec<_> = table.connections.values().map(|c| c.status()).collect();
        let connections_accepted = table.places.begun();
        drop(table);
        let exports = shared.context.exports.iter().map(|served| ExportStatus {
            name: served.name.clone(),
            connections: connections.iter().filter(|c| c.export.as_ref() == Some(&served.name)).count(),
            counts: served.counters.snapshot(),
        });
        ServerStatus {
            connections_accepted,
            connections_refused: shared.visits.refused(),
            connections_displaced: shared.visits.displaced(),
            exports: exports.collect(),
            connections,
        }
    }
}

impl Frontend for NbdServer {
    fn kind(&self) -> &'static str {
        "NBD server"
    }

    fn addresses(&self) -> Vec<String> {
        self.addresses().iter().map(ToString::to_string).collect()
    }

    fn clients(&self) -> Clients {
        let visits = &self.shared.visits;
        Clients { now: visits.clients(), refused: visits.refused(), displaced: visits.displaced() }
    }

    fn stop(&self, grace: Duration) -> Result<(), String> {
        match self.stop(grace) {
            0 => Ok(()),
            cut => Err(format!("{cut} connections still waited for answers, and were cut")),
        }
    }
}

impl Drop for NbdServer {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
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
