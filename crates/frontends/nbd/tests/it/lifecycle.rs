//! Starting, stopping, addresses, and what is counted.

use std::io::Read;
use std::net::TcpStream;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use forebay_nbd::codec::{Greeting, NbdError, command};
use forebay_nbd::{Address, Export, Limits, NbdServer, ServerConfig, ServerError, SocketRights};
use tempfile::TempDir;

use crate::client::Client;
use crate::interference::Behaviour;
use crate::memory::{MemoryVolume, Workers};
use crate::serve::{MIB, Serve, Wish, eventually};

const GRACE: Duration = Duration::from_secs(30);

fn start(address: &str, names: &[&str]) -> Result<NbdServer, ServerError> {
    let export = |name: &&str| Export::new(Arc::new(MemoryVolume::new(name, MIB, Workers::Inline)));
    NbdServer::start(ServerConfig {
        listen: vec![address.parse().unwrap()],
        exports: names.iter().map(export).collect(),
        tls: None,
        socket: Default::default(),
        limits: Limits::default(),
        memory: std::sync::Arc::default(),
    })
}

#[test]
pub(crate) fn stopping_lets_requests_under_way_finish() {
    let serve = Serve::new();
    let mut c = serve.client();
    let mut handshaking = serve.connect();
    serve.volume.behave(Behaviour::Hold);
    let cookie = c.start(command::WRITE, 0, 0, 512, &[8; 512]);
    eventually("the write arrives", || serve.volume.held() == 1);
    serve.volume.behave(Behaviour::Regular);
    let cut = std::thread::scope(|scope| {
        let stopping = scope.spawn(|| serve.server.stop(GRACE));
        eventually("the socket goes", || !serve.socket().exists());
        assert!(handshaking.is_closed());
        serve.volume.release();
        assert_eq!(c.finish(0).cookie, cookie);
        assert!(c.is_closed());
        stopping.join().unwrap()
    });
    assert_eq!(cut, 0);
    assert!(serve.server.status().connections.is_empty());
    assert_eq!(serve.server.stop(GRACE), 0, "stopping again does nothing");
}

#[test]
pub(crate) fn stopping_does_not_wait_for_ever() {
    let serve = Serve::new();
    let mut c = serve.client();
    serve.volume.behave(Behaviour::Hold);
    c.start(command::WRITE, 0, 0, 512, &[8; 512]);
    eventually("the write arrives", || serve.volume.held() == 1);
    assert_eq!(serve.server.stop(Duration::from_millis(50)), 1);
    assert!(c.is_closed());
    // The volume's late answer finds nobody and ends the connection's thread.
    serve.volume.behave(Behaviour::Regular);
    serve.volume.release();
    eventually("the connection ends", || serve.server.status().connections.is_empty());
}

#[test]
pub(crate) fn stopping_does_not_wait_for_a_client_that_does_not_read() {
    let serve = Serve::new();
    let mut c = serve.client();
    for _ in 0..8 {
        c.start(command::READ, 0, 0, 1 << 20, &[]);
    }
    eventually("replies wait", || serve.server.status().connections[0].counts.replies_deferred > 0);
    assert_eq!(serve.server.stop(Duration::from_millis(50)), 1);
    eventually("the connection ends", || serve.server.status().connections.is_empty());
}

#[test]
pub(crate) fn a_dead_servers_socket_is_replaced_a_live_ones_is_not() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("nbd.sock");
    let address = format!("unix:{}", path.display());
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "what a dead server leaves");
    let server = start(&address, &["a"]).unwrap();
    Client::connect(&path).go("a").unwrap();
    assert!(matches!(start(&address, &["a"]), Err(ServerError::InUse { .. })));
    Client::connect(&path).go("a").unwrap();
    server.stop(GRACE);
    assert!(!path.exists());
    std::fs::write(&path, "precious").unwrap();
    assert!(matches!(start(&address, &["a"]), Err(ServerError::NotASocket { .. })));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

/// Who may connect is settled when the first one can, whatever the umask is; others cannot hold a start up by a lock.
#[test]
pub(crate) fn a_unix_socket_is_for_those_it_is_meant_for() {
    use std::os::unix::fs::PermissionsExt;
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("nbd.sock");
    let locked = std::fs::File::open(directory.path()).unwrap();
    locked.lock().unwrap();
    let own = rustix::process::getegid().as_raw();
    let group = SocketRights { mode: 0o660, group: Some(own) };
    for (socket, expected) in [(SocketRights::default(), 0o600), (group, 0o660)] {
        let volume = Arc::new(MemoryVolume::new("a", MIB, Workers::Inline));
        let server = NbdServer::start(ServerConfig {
            listen: vec![Address::Unix(path.clone())],
            exports: vec![Export::new(volume)],
            tls: None,
            socket,
            memory: std::sync::Arc::default(),
            limits: Limits::default(),
        });
        let server = server.unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, expected);
        Client::connect(&path).go("a").unwrap();
        server.stop(GRACE);
    }
}

#[test]
pub(crate) fn a_server_removes_only_its_own_socket() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("nbd.sock");
    let server = start(&format!("unix:{}", path.display()), &["a"]).unwrap();
    std::fs::remove_file(&path).unwrap();
    let _other = UnixListener::bind(&path).unwrap();
    server.stop(GRACE);
    assert!(path.exists());
}

#[test]
pub(crate) fn what_cannot_be_served_is_said() {
    let message = |result: Result<NbdServer, ServerError>| result.err().unwrap().to_string();
    assert!(message(start("unix:/nonexistent/nbd.sock", &["a"])).contains("unix:/nonexistent/nbd.sock"));
    assert!(message(start("tcp:256.0.0.1:0", &["a"])).contains("tcp:256.0.0.1:0"));
    for names in [&["a", "a"][..], &[""]] {
        assert!(matches!(start("tcp:127.0.0.1:0", names), Err(ServerError::ExportName { .. })));
    }
    let server = start("tcp:127.0.0.1:0", &["a"]).unwrap();
    let taken = server.addresses()[0].to_string();
    assert!(message(start(&taken, &["a"])).contains("in use"));
}

#[test]
pub(crate) fn tcp_is_served_and_a_stopped_port_is_free() {
    let serve = Serve::with(Wish { tcp: true, ..Wish::default() });
    let addresses = serve.server.addresses();
    let Address::Tcp { host, port } = &addresses[1] else { panic!("{addresses:?}") };
    let mut stream = TcpStream::connect((host.as_str(), *port)).unwrap();
    let mut greeting = [0; Greeting::BYTES];
    stream.read_exact(&mut greeting).unwrap();
    Greeting::decode(&greeting).unwrap();
    drop(stream);
    serve.server.stop(GRACE);
    drop(start(&addresses[1].to_string(), &["a"]).unwrap());
}

#[test]
pub(crate) fn requests_are_counted_for_connection_and_export() {
    let serve = Serve::new();
    let mut a = serve.client();
    let mut b = serve.client();
    a.write(0, &[1; 8192], 0).unwrap();
    a.read(0, 4096).unwrap();
    b.read(0, 512).unwrap();
    b.plain(command::FLUSH, 0, 0, 0).outcome.unwrap();
    assert_eq!(b.error(command::TRIM, 0, 1, 1), NbdError::EINVAL);
    b.plain(command::WRITE_ZEROES, 0, 0, 512).outcome.unwrap();
    b.plain(command::BLOCK_STATUS, 0, 0, 512).outcome.unwrap();
    let status = serve.server.status();
    assert_eq!(status.connections_accepted, 2);
    assert_eq!(status.exports[0].connections, 2);
    let [of_a, of_b] = [status.connections[0].counts, status.connections[1].counts];
    assert_eq!((of_a.writes, of_a.bytes_written, of_a.reads, of_a.bytes_read), (1, 8192, 1, 4096));
    assert_eq!((of_b.flushes, of_b.trims, of_b.zeroes, of_b.statuses, of_b.errors), (1, 1, 1, 1, 1));
    assert_eq!(status.connections[0].pid, std::process::id());
    drop((a, b));
    eventually("the clients leave", || serve.server.status().connections.is_empty());
    let counts = serve.server.status().exports[0].counts;
    assert_eq!((counts.reads, counts.bytes_read, counts.errors), (2, 4608, 1));
}
