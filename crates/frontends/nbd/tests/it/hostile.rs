//! Clients that break the protocol, on purpose or not.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use forebay_nbd::Limits;
use forebay_nbd::codec::{Greeting, OptionHeader, Request, command, handshake_flag, option};

use crate::client::Client;
use crate::interference::Behaviour;
use crate::serve::{Serve, Wish, eventually};

/// The server still serves, and no connection but those in `but` is left.
fn assert_well(serve: &Serve, but: usize) {
    let mut c = serve.client();
    assert_eq!(c.read(0, 512).unwrap().len(), 512);
    drop(c);
    eventually("connections end", || serve.server.status().connections.len() == but);
}

#[test]
pub(crate) fn garbage_closes_the_connection() {
    let serve = Serve::new();
    let raw = |bytes: &[u8]| {
        let mut stream = UnixStream::connect(serve.socket()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        // The server may close before it has read everything.
        let _ = stream.write_all(bytes);
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        rest
    };
    assert_eq!(raw(&[0xff; 100]).len(), Greeting::BYTES, "unknown flags of the client");
    assert_eq!(raw(b"\0\0\0\x03GET / HTTP/1.1\r\n\r\n").len(), Greeting::BYTES, "no option");
    let mut huge = b"\0\0\0\x03".to_vec();
    OptionHeader { option: option::GO, len: u32::MAX }.encode(&mut huge);
    assert_eq!(raw(&huge).len(), Greeting::BYTES, "an option of 4 GiB");
    let mut long_name = b"\0\0\0\x03".to_vec();
    OptionHeader { option: option::EXPORT_NAME, len: 70_000 }.encode(&mut long_name);
    assert_eq!(raw(&long_name).len(), Greeting::BYTES, "a name that nobody has");
    assert_well(&serve, 0);
}

#[test]
pub(crate) fn a_request_without_its_magic_number_closes_the_connection() {
    let serve = Serve::new();
    for mut c in [serve.client(), serve.simple_client()] {
        c.send(&[0x55; Request::BYTES]);
        assert!(c.is_closed());
    }
    assert_well(&serve, 0);
}

#[test]
pub(crate) fn a_write_of_four_gibibytes_is_not_swallowed() {
    let serve = Serve::new();
    let mut c = serve.client();
    c.start(command::WRITE, 0, 0, u32::MAX - 511, &[]);
    assert!(c.is_closed());
    assert_well(&serve, 0);
}

#[test]
pub(crate) fn a_client_that_leaves_within_a_message_is_forgotten() {
    let serve = Serve::new();
    drop(UnixStream::connect(serve.socket()).unwrap());
    drop(serve.connect());
    let mut c = serve.client();
    c.send(&[0x25, 0x60, 0x95]);
    drop(c);
    let mut c = serve.client();
    c.start(command::WRITE, 0, 0, 4096, &[1; 100]);
    c.half_close();
    assert!(c.is_closed());
    let mut c = serve.client();
    c.start(command::WRITE, 0, 0, 4096, &[]);
    c.half_close();
    assert!(c.is_closed());
    assert_well(&serve, 0);
    assert!(serve.volume.seen().iter().all(|(op, _)| format!("{op:?}").starts_with("Read")), "no torn write");
}

#[test]
pub(crate) fn a_client_that_leaves_with_requests_under_way_does_not_hurt() {
    let serve = Serve::new();
    serve.volume.behave(Behaviour::Hold);
    let mut c = serve.client();
    for i in 0..4 {
        c.start(command::WRITE, 0, i * 4096, 4096, &[7; 4096]);
    }
    eventually("the writes arrive", || serve.volume.held() == 4);
    drop(c);
    serve.volume.behave(Behaviour::Regular);
    serve.volume.release();
    assert_well(&serve, 0);
    assert_eq!(serve.client().read(12288, 4096).unwrap(), vec![7; 4096]);
}

#[test]
pub(crate) fn a_half_closed_client_gets_its_replies() {
    let serve = Serve::new();
    serve.volume.behave(Behaviour::Hold);
    let mut c = serve.client();
    let cookie = c.start(command::READ, 0, 0, 1 << 20, &[]);
    c.half_close();
    eventually("the read arrives", || serve.volume.held() == 1);
    serve.volume.behave(Behaviour::Regular);
    serve.volume.release();
    let answered = c.finish(1 << 20);
    assert_eq!((answered.cookie, answered.outcome.unwrap().len()), (cookie, 1 << 20));
    assert!(c.is_closed());
}

#[test]
pub(crate) fn a_silent_or_slow_client_does_not_hold_its_place() {
    let limits = Limits { handshake_timeout: Duration::from_secs(1), ..Limits::default() };
    let serve = Serve::with(Wish { limits, ..Wish::default() });
    let mut silent = UnixStream::connect(serve.socket()).unwrap();
    let mut slow = Client::connect_with(&serve.socket(), handshake_flag::FIXED_NEWSTYLE);
    let dripping = std::thread::spawn(move || {
        let mut header = Vec::new();
        OptionHeader { option: option::GO, len: 60_000 }.encode(&mut header);
        slow.send(&header);
        // Each byte comes in time; all of them would not.
        let mut drip = |_: &usize| {
            std::thread::sleep(Duration::from_millis(20));
            slow.stream.write_all(&[0]).is_ok()
        };
        (0..1000).take_while(|i| drip(i)).count()
    });
    let mut rest = Vec::new();
    silent.read_to_end(&mut rest).unwrap();
    assert_eq!(rest.len(), Greeting::BYTES);
    assert!(dripping.join().unwrap() < 1000, "the server waited for every byte");
    // Once served, a client may be silent for longer.
    let mut idle = serve.client();
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(idle.read(0, 512).unwrap().len(), 512);
}

#[test]
pub(crate) fn a_client_that_does_not_read_stops_only_itself() {
    let serve = Serve::new();
    let mut deaf = serve.client();
    // Far more than the socket takes: the replies wait at the writer, the volume's thread does not.
    for _ in 0..32 {
        deaf.start(command::READ, 0, 0, 1 << 20, &[]);
    }
    let mut other = serve.client();
    for _ in 0..100 {
        assert_eq!(other.read(0, 4096).unwrap().len(), 4096);
    }
    eventually("its replies wait", || serve.server.status().connections[0].requests_in_flight == 32);
    for _ in 0..32 {
        assert_eq!(deaf.finish(0).outcome.unwrap().len(), 1 << 20);
    }
    // Each is more than a socket takes at once.
    eventually("all are counted", || serve.server.status().connections[0].counts.replies_deferred == 32);
}
