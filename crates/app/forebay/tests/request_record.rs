//! Requests that are recorded, and replayed.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};

use crate::nbd_client::NbdClient;
use crate::volume::{Place, pattern};

/// Long enough that a replay has something to make a log of.
const CHUNK: usize = 256 << 10;

const REPLAY: [&str; 6] = ["--revenue", "linear:1", "--penalty", "linear:0", "--values", "64K"];

fn replay(trace: &str) -> Vec<&str> {
    [&["tune", "journal", "--trace", trace], &REPLAY[..]].concat()
}

#[test]
fn what_clients_ask_for_is_recorded_and_can_be_replayed() {
    let place = Place::new();
    let rated = ["--critical", "--critical-rate", "1", "--record-requests", "requests"];
    let daemon = place.serve(&rated);
    let mut client = NbdClient::connect(&place.path("nbd"), "db");
    for block in 0..64 {
        client.write(block * CHUNK as u64, &pattern(block, 1, CHUNK));
    }
    client.read(8192, 4096);
    client.zero(0, 8192);
    client.flush();
    assert!(daemon.stop().success());
    let path = place.path("requests");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "forebay requests 1");
    assert!(lines[1].starts_with("0 begin 67108864 ") && lines[1].ends_with(" db"), "{}", lines[1]);
    let said = |wanted: &str| {
        lines
            .iter()
            .filter(|line| line.split_once(' ').is_some_and(|(_, said)| said.starts_with(wanted)))
            .count()
    };
    // The first one is all that the rate has for this second; a client's next request waits for the answer.
    for wanted in [
        "write 1 0 262144 sync critical=direct",
        "write 64 16515072 262144 sync critical=capped",
        "read 65 8192 4096 sync critical=direct",
    ] {
        assert_eq!(said(wanted), 1, "{wanted}: {text}");
    }
    assert_eq!(
        (said("zero 66 0 8192"), said("flush 67"), said("answer "), said("end 67 0")),
        (1, 1, 67, 1),
        "{text}"
    );
    assert_eq!(lines.len(), 2 + 2 * 67 + 1);

    place.ok(&replay("requests"));
    let figures = fs::read_to_string(place.path("forebay-tune/tune-journal.json")).unwrap();
    assert!(figures.contains("figures"), "{figures}");
    // A request before the rest was lost with the daemon.
    fs::write(place.path("cut"), &text[..text.len() / 2]).unwrap();
    place.ok(&replay("cut"));
}

#[test]
fn requests_that_come_by_the_file_are_recorded_too() {
    if !rustix::process::geteuid().is_root() || !std::path::Path::new("/dev/fuse").exists() {
        assert!(std::env::var_os("CI").is_none(), "needs root and /dev/fuse");
        eprintln!("SKIP: needs root and /dev/fuse");
        return;
    }
    let place = Place::new();
    let daemon = place.serve(&["--fuse", "volume", "--record-requests", "requests"]);
    let file = File::options().read(true).write(true).open(place.path("volume")).unwrap();
    file.write_all_at(&pattern(0, 1, 4096), 4096).unwrap();
    file.sync_all().unwrap();
    file.read_exact_at(&mut [0; 512], 8192).unwrap();
    drop(file);
    NbdClient::connect(&place.path("nbd"), "db").write(0, &pattern(0, 2, 512));
    assert!(daemon.stop().success());
    let text = fs::read_to_string(place.path("requests")).unwrap();
    let said = |kind: &str, range: &str| {
        let is_it = |line: &&str| {
            let mut words = line.splitn(4, ' ');
            words.nth(1) == Some(kind) && words.nth(1).is_some_and(|rest| rest.starts_with(range))
        };
        text.lines().find(is_it).unwrap_or_else(|| panic!("no {kind} of {range}: {text}")).to_owned()
    };
    assert!(!said("write", "4096 4096").contains("lane="));
    assert!(!said("read", "8192 512").contains("lane="));
    assert!(said("write", "0 512").contains("lane="));
    assert!(text.lines().any(|line| line.split(' ').nth(1) == Some("flush")), "{text}");
    assert!(text.lines().last().unwrap().ends_with(" 0"), "{text}");
}

#[test]
fn a_record_is_never_overwritten_and_one_that_is_none_is_refused() {
    let place = Place::new();
    fs::write(place.path("requests"), "precious").unwrap();
    // A record that a crash has left keeps no volume down.
    let daemon = place.serve(&["--record-requests", "requests"]);
    place.await_log("requests are not recorded in requests: it exists; move it away");
    NbdClient::connect(&place.path("nbd"), "db").write(0, &pattern(0, 2, 512));
    assert!(daemon.stop().success());
    assert_eq!(fs::read_to_string(place.path("requests")).unwrap(), "precious");
    let (code, error) = place.fails(&replay("requests"));
    assert_eq!(code, 2, "{error}");
    assert!(error.contains("requests cannot be replayed: line 1: a trace begins with"), "{error}");
    fs::write(place.path("requests"), "forebay requests 1\n0 begin 4096 1 db\n1 leap 1\n").unwrap();
    let (code, error) = place.fails(&replay("requests"));
    assert_eq!(code, 2, "{error}");
    assert!(error.contains("requests cannot be replayed: line 3: 'leap' is nothing that happens"), "{error}");
}
