//! Starting servers for tests.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_nbd::{Address, Export, Limits, MemoryBudget, NbdServer, ServerConfig, TlsSettings};
use tempfile::TempDir;

use crate::client::Client;
use crate::interference::Interference;
use crate::memory::{MemoryVolume, Workers};

pub const MIB: u64 = 1 << 20;

/// A server of one volume `vol` on a unix socket in a directory of its own.
pub struct Serve {
    pub volume: Arc<Interference>,
    pub server: NbdServer,
    pub directory: TempDir,
}

/// What a test wants otherwise than usual.
pub struct Wish {
    pub size_bytes: u64,
    pub workers: Workers,
    pub limits: Limits,
    pub memory: Arc<MemoryBudget>,
    pub tls: Option<TlsSettings>,
    pub tcp: bool,
}

thread_local! {
    /// Where volumes carry out requests if a test wishes nothing.
    static WORKERS: Cell<Workers> = const { Cell::new(Workers::Thread) };
}

/// Runs a test on volumes whose thread fetches no requests.
pub fn apart(test: impl FnOnce()) {
    WORKERS.set(Workers::Apart);
    test();
    WORKERS.set(Workers::Thread);
}

impl Default for Wish {
    fn default() -> Self {
        Self {
            size_bytes: 8 * MIB,
            workers: WORKERS.get(),
            limits: Limits::default(),
            memory: Arc::default(),
            tls: None,
            tcp: false,
        }
    }
}

impl Serve {
    pub fn new() -> Self {
        Self::with(Wish::default())
    }

    pub fn with(wish: Wish) -> Self {
        let directory = TempDir::new().unwrap();
        let mut listen = vec![Address::Unix(directory.path().join("nbd.sock"))];
        if wish.tcp {
            listen.push("tcp:127.0.0.1:0".parse().unwrap());
        }
        let volume = Arc::new(Interference::new(MemoryVolume::new("vol", wish.size_bytes, wish.workers)));
        let server = NbdServer::start(ServerConfig {
            listen,
            exports: vec![Export::new(volume.clone())],
            tls: wish.tls,
            socket: Default::default(),
            limits: wish.limits,
            memory: wish.memory,
        })
        .unwrap();
        Self { volume, server, directory }
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("nbd.sock")
    }

    /// A connection after the greeting.
    pub fn connect(&self) -> Client {
        Client::connect(&self.socket())
    }

    /// A connection that chose `vol`, with all that can be negotiated.
    pub fn client(&self) -> Client {
        let mut client = self.connect();
        client.negotiate_all("vol");
        client
    }

    /// A connection that chose `vol` with simple replies.
    pub fn simple_client(&self) -> Client {
        let mut client = self.connect();
        client.go("vol").unwrap();
        client
    }
}

/// Waits until `condition` holds; a test that waits in vain fails.
pub fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// URI of a unix socket for libnbd and QEMU.
pub fn uri(socket: &Path, export: &str) -> String {
    format!("nbd+unix:///{export}?socket={}", socket.display())
}
