//! The named limits hold.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use forebay_nbd::codec::{Greeting, command, option};
use forebay_nbd::{Address, Limits, MemoryBudget};

use crate::client::Client;
use crate::interference::Behaviour;
use crate::serve::{Serve, Wish, eventually};

fn serve(limits: Limits) -> Serve {
    Serve::with(Wish { limits, ..Wish::default() })
}

/// Starts `count` requests of 64 KiB while the volume holds them back; returns how many it got.
fn reached(serve: &Serve, c: &mut Client, command: u16, count: u64) -> usize {
    serve.volume.behave(Behaviour::Hold);
    let data = vec![3; if command == command::WRITE { 65536 } else { 0 }];
    let before = serve.volume.seen().len();
    let mut stream = c.stream.try_clone().unwrap();
    std::thread::scope(|scope| {
        // A server at its limit does not read, so that sending may wait.
        scope.spawn(|| {
            for i in 0..count {
                c.start(command, 0, i * 65536, 65536, &data);
            }
        });
        eventually("reading pauses", || {
            serve.server.status().connections.iter().any(|c| c.counts.pauses > 0)
        });
        let reached = serve.volume.seen().len() - before;
        assert_eq!(serve.volume.held(), reached);
        serve.volume.behave(Behaviour::Regular);
        // What was held goes on, the rest follows; the replies must be read for the gate to open.
        let mut replies = vec![0; count as usize * if command == command::WRITE { 16 } else { 16 + 65536 }];
        serve.volume.release();
        stream.read_exact(&mut replies).unwrap();
        reached
    })
}

#[test]
pub(crate) fn requests_in_flight_are_limited() {
    let serve = serve(Limits { requests_in_flight_max: 5, ..Limits::default() });
    let mut c = serve.simple_client();
    assert_eq!(reached(&serve, &mut c, command::WRITE, 30), 5);
}

#[test]
pub(crate) fn bytes_in_flight_are_limited_for_writes_and_reads() {
    for command in [command::WRITE, command::READ] {
        let serve = serve(Limits { bytes_in_flight_max: 200_000, ..Limits::default() });
        let mut c = serve.simple_client();
        assert_eq!(reached(&serve, &mut c, command, 30), 3);
        // Longer than the limit, but alone.
        c.write(0, &vec![5; 1 << 20], 0).unwrap();
        assert_eq!(c.read(0, 1 << 20).unwrap(), vec![5; 1 << 20]);
    }
}

#[test]
pub(crate) fn clients_are_limited() {
    let serve = serve(Limits { connections_max: 3, ..Limits::default() });
    let mut three: Vec<Client> = (0..3).map(|_| serve.client()).collect();
    let mut fourth = serve.connect();
    fourth.send_option(option::EXPORT_NAME, b"vol");
    assert!(fourth.is_closed(), "it is told nothing of the volume");
    assert_eq!(serve.server.status().connections_refused, 1);
    three.pop();
    eventually("a place is free", || serve.server.status().connections.len() == 2);
    assert_eq!(serve.client().read(0, 512).unwrap().len(), 512);
    assert_eq!(three[0].read(0, 512).unwrap().len(), 512);
}

#[test]
pub(crate) fn one_source_of_clients_has_a_share() {
    let limits = Limits { connections_max: 4, connections_per_source_max: 2, ..Limits::default() };
    let serve = Serve::with(Wish { limits, tcp: true, ..Wish::default() });
    let of_user: Vec<Client> = (0..2).map(|_| serve.client()).collect();
    let mut third = serve.connect();
    third.send_option(option::EXPORT_NAME, b"vol");
    assert!(third.is_closed());
    // Whoever comes from elsewhere has room.
    let addresses = serve.server.addresses();
    let Address::Tcp { port, .. } = addresses[1] else { panic!("{addresses:?}") };
    let mut tcp = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let mut greeting = [0; Greeting::BYTES];
    tcp.read_exact(&mut greeting).unwrap();
    tcp.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x03vol").unwrap();
    tcp.read_exact(&mut [0; 10]).unwrap();
    assert_eq!(serve.server.status().connections_refused, 1);
    drop(of_user);
}

/// Many clients ask for far more than they read: what waits for them is bounded, others are served meanwhile, and they are closed.
#[test]
pub(crate) fn what_nobody_reads_is_bounded_and_ends() {
    const TOTAL: usize = 16 << 20;
    // What a client without anything in flight asks for goes, whatever is left.
    const POLITE: usize = 65536;
    let memory = Arc::new(MemoryBudget::new(TOTAL));
    let limits = Limits { stall_timeout: Duration::from_secs(2), ..Limits::default() };
    let serve = Serve::with(Wish { limits, memory: Arc::clone(&memory), ..Wish::default() });
    let mut silent: Vec<Client> = (0..10).map(|_| serve.client()).collect();
    let mut polite = serve.client();
    let mut most = 0;
    for _ in 0..32 {
        for client in &mut silent {
            client.start(command::READ, 0, 0, 1 << 20, &[]);
        }
        assert_eq!(polite.read(0, POLITE as u32).unwrap().len(), POLITE);
        most = most.max(memory.used());
    }
    let paused = || serve.server.status().connections.iter().filter(|c| c.counts.pauses > 0).count() >= 10;
    eventually("they have what they get", paused);
    most = most.max(memory.used());
    assert!(most > TOTAL / 2 && most <= TOTAL + POLITE, "{most} bytes");
    // One that is larger than what is left goes as well.
    assert_eq!(polite.read(0, 8 << 20).unwrap().len(), 8 << 20);
    eventually("they are closed", || serve.server.status().connections.len() == 1);
    assert_eq!(memory.used(), 0);
    assert_eq!(polite.read(0, 512).unwrap().len(), 512);
}

#[test]
pub(crate) fn who_does_not_go_on_with_a_request_is_closed() {
    let limits = Limits { stall_timeout: Duration::from_secs(1), ..Limits::default() };
    let serve = Serve::with(Wish { limits, ..Wish::default() });
    let (mut idle, mut begun) = (serve.client(), serve.client());
    begun.start(command::WRITE, 0, 0, 4096, &[0; 100]);
    // Not the client's own limit, which would come later.
    let closed = begun.stream.read(&mut [0]);
    assert!(closed.as_ref().map_or_else(|e| e.kind() != ErrorKind::WouldBlock, |n| *n == 0), "{closed:?}");
    assert_eq!(idle.read(0, 512).unwrap().len(), 512, "who is idle between requests is not");
}
