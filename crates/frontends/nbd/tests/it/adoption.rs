//! Clients whose requests the volume's thread fetches, and those that it does not: all other tests are of the former.

use std::time::Duration;

use forebay_nbd::Limits;
use forebay_nbd::codec::command;

use crate::interference::Behaviour;
use crate::serve::{Serve, Wish, apart, eventually};
use crate::{hostile, lifecycle, limits, transmission};

#[test]
fn who_is_read_by_a_thread_of_its_own_is_served_alike() {
    apart(|| {
        transmission::what_is_written_is_read_on_every_connection();
        transmission::zeroes_trims_and_status_agree();
        transmission::flags_reach_the_volume();
        transmission::what_cannot_be_is_refused_and_the_connection_goes_on();
        transmission::requests_of_no_bytes_succeed();
        transmission::errors_of_the_volume_are_told();
        transmission::disconnecting_waits_for_what_is_under_way();
        transmission::replies_stay_whole_while_the_socket_fills_and_drains();
        hostile::a_request_without_its_magic_number_closes_the_connection();
        hostile::a_client_that_leaves_within_a_message_is_forgotten();
        hostile::a_half_closed_client_gets_its_replies();
        lifecycle::stopping_lets_requests_under_way_finish();
        limits::requests_in_flight_are_limited();
        limits::bytes_in_flight_are_limited_for_writes_and_reads();
        limits::who_does_not_go_on_with_a_request_is_closed();
    });
}

/// Small writes, and large ones between them that the volume's thread leaves to the connection's own.
#[test]
fn a_client_comes_and_goes_between_the_threads() {
    let serve = Serve::new();
    let mut c = serve.client();
    for round in 0..3u8 {
        for n in 0..200u64 {
            c.write(n * 4096, &[n as u8 ^ round; 4096], 0).unwrap();
        }
        c.write(1 << 20, &vec![round; 1 << 20], 0).unwrap();
        assert_eq!(c.read(1 << 20, 1 << 20).unwrap(), vec![round; 1 << 20]);
        for n in 0..200u64 {
            assert_eq!(c.read(n * 4096, 4096).unwrap(), vec![n as u8 ^ round; 4096]);
        }
    }
    assert!(serve.volume.adopted() >= 3, "{} times", serve.volume.adopted());
}

/// What the volume's thread has no room for waits on the connection's own, and nothing is lost or done twice.
#[test]
fn what_finds_no_room_waits_elsewhere() {
    let serve = Serve::new();
    let mut c = serve.client();
    for n in 0..400u64 {
        serve.volume.behave(if n % 70 == 69 { Behaviour::Full } else { Behaviour::Regular });
        c.write(n * 512, &[n as u8; 512], 0).unwrap();
    }
    serve.volume.behave(Behaviour::Regular);
    for n in 0..400u64 {
        assert_eq!(c.read(n * 512, 512).unwrap(), vec![n as u8; 512]);
    }
    assert_eq!(serve.volume.seen().len(), 800);
    assert!(serve.volume.adopted() > 3, "{} times", serve.volume.adopted());
}

/// Requests in pieces of any length, at whatever pace.
#[test]
fn a_request_may_come_in_pieces() {
    let serve = Serve::new();
    let mut c = serve.client();
    for (n, piece) in [1usize, 7, 27, 28, 29, 100, 4123, 5000].into_iter().enumerate() {
        let mut bytes = Vec::new();
        for k in 0..3u64 {
            let request = forebay_nbd::codec::Request {
                flags: 0,
                command: command::WRITE,
                cookie: k,
                offset: k * 4096,
                len: 4096,
            };
            request.encode(&mut bytes);
            bytes.extend([n as u8 + 1; 4096]);
        }
        for part in bytes.chunks(piece) {
            c.send(part);
            if piece > 20 {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        (0..3).for_each(|_| c.finish(0).outcome.unwrap().clear());
        assert_eq!(c.read(0, 3 * 4096).unwrap(), vec![n as u8 + 1; 3 * 4096]);
    }
    assert!(serve.volume.adopted() <= 2, "only who sends single bytes has left");
}

/// Who sends byte by byte is left to its own thread, and who sends a request in a few pieces is not.
#[test]
fn who_sends_in_many_pieces_is_read_by_a_thread_of_its_own() {
    for (piece, adopted) in [(7, 1), (1, 2)] {
        let serve = Serve::new();
        let mut c = serve.client();
        let request =
            forebay_nbd::codec::Request { flags: 0, command: command::WRITE, cookie: 7, offset: 0, len: 512 };
        let mut header = Vec::new();
        request.encode(&mut header);
        for part in header.chunks(piece) {
            c.send(part);
            std::thread::sleep(Duration::from_millis(2));
        }
        c.send(&[1; 512]);
        c.finish(0).outcome.unwrap();
        // Where it has left it comes back.
        for n in 0..70 {
            c.write(0, &[n; 512], 0).unwrap();
        }
        assert_eq!(serve.volume.adopted(), adopted, "pieces of {piece} bytes");
    }
}

/// The connection ends, and neither its volume nor other connections.
#[test]
fn a_panic_in_the_volumes_thread_ends_one_connection() {
    let serve = Serve::new();
    let (mut other, mut c) = (serve.client(), serve.client());
    c.write(0, &[1; 512], 0).unwrap();
    other.write(512, &[2; 512], 0).unwrap();
    serve.volume.behave(Behaviour::Panic);
    c.start(command::WRITE, 0, 0, 512, &[3; 512]);
    eventually("it is closed", || serve.server.status().connections.len() == 1);
    serve.volume.behave(Behaviour::Regular);
    assert_eq!(other.read(0, 1024).unwrap(), [vec![1; 512], vec![2; 512]].concat());
}

/// A server stops although the volume's thread, which has its client, does nothing.
#[test]
fn a_server_stops_beside_a_volume_that_hangs() {
    let limits = Limits { stall_timeout: Duration::from_secs(3600), ..Limits::default() };
    let serve = Serve::with(Wish { limits, ..Wish::default() });
    let mut c = serve.client();
    c.write(0, &[1; 512], 0).unwrap();
    let hanging = serve.volume.hang();
    let cut = serve.server.stop(Duration::from_secs(60));
    drop(hanging);
    assert_eq!((cut, c.is_closed()), (0, true));
}
