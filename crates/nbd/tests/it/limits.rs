//! The named limits hold.

use std::io::Read;
use std::os::unix::net::UnixStream;

use forebay_nbd::Limits;
use forebay_nbd::codec::command;

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
fn requests_in_flight_are_limited() {
    let serve = serve(Limits { requests_in_flight_max: 5, ..Limits::default() });
    let mut c = serve.simple_client();
    assert_eq!(reached(&serve, &mut c, command::WRITE, 30), 5);
}

#[test]
fn bytes_in_flight_are_limited_for_writes_and_reads() {
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
fn connections_are_limited() {
    let serve = serve(Limits { connections_max: 3, ..Limits::default() });
    let mut three: Vec<Client> = (0..3).map(|_| serve.client()).collect();
    let mut fourth = UnixStream::connect(serve.socket()).unwrap();
    assert_eq!(fourth.read(&mut [0]).unwrap(), 0, "closed without a greeting");
    assert_eq!(serve.server.status().connections_refused, 1);
    three.pop();
    eventually("a place is free", || serve.server.status().connections.len() == 2);
    assert_eq!(serve.client().read(0, 512).unwrap().len(), 512);
    assert_eq!(three[0].read(0, 512).unwrap().len(), 512);
}
