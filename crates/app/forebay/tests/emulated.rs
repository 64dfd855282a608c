//! Volumes on emulated devices.

use std::time::{Duration, Instant};

use crate::nbd_client::NbdClient;
use crate::volume::{Place, file_bytes, pattern};

const CACHE: &str = "emulate:ssd-nvme:file=cache";
const BACKING: &str = "emulate:hdd-7k2:file=backing";

#[test]
fn an_emulated_pair_is_the_pair_of_its_files() {
    let place = Place::with_backing();
    place.ok(&["format", CACHE, "--size", "32M", "--backing", BACKING]);
    assert!(place.ok(&["check", CACHE]).contains("ok"));
    let daemon =
        place.serve_plain(&["--name", "db", "--cache", CACHE, "--backing", BACKING, "--nbd", "unix:nbd"]);
    let status = place.status();
    // As it was given, with the path of the file made absolute.
    let whole = |spec: &str, file: &str| {
        spec.replace(&format!("file={file}"), &format!("file={}", place.path(file).display()))
    };
    assert_eq!(status["cache"], whole(CACHE, "cache"));
    assert_eq!(status["backing"], whole(BACKING, "backing"));
    let mut client = NbdClient::connect(&place.path("nbd"), "db");
    client.write(1 << 20, &pattern(1 << 20, 1, 8192));
    assert_eq!(client.read(1 << 20, 8192), pattern(1 << 20, 1, 8192));
    daemon.kill();

    // The same pair under plain names.
    let daemon = place.serve(&[]);
    let mut client = NbdClient::connect(&place.path("nbd"), "db");
    assert_eq!(client.read(1 << 20, 8192), pattern(1 << 20, 1, 8192));
    place.ask(&["flush", "db"]);
    assert_eq!(file_bytes(&place.path("backing"), 1 << 20, 8192), pattern(1 << 20, 1, 8192));
    assert_eq!(daemon.stop().code(), Some(0));
}

#[test]
fn a_cache_hides_the_disk_that_is_seen_without_it() {
    let place = Place::new();
    // A turn takes 200 ms, and who waits for the disk waits for at least a part of one each time. A machine that is busy takes only longer.
    let backing = "emulate:hdd-7k2:file=backing,write-cache=no,rpm=300";
    let writes = |cache: &[&str]| -> (Duration, u64) {
        let flags = [&["--name", "db", "--backing", backing, "--nbd", "unix:nbd"], cache].concat();
        let daemon = place.serve_plain(&flags);
        let mut client = NbdClient::connect(&place.path("nbd"), "db");
        let begun = Instant::now();
        for i in 0..20u64 {
            let offset = i * 7919 % 8192 * 4096;
            client.write(offset, &pattern(offset, 1, 4096));
        }
        let elapsed = begun.elapsed();
        let admitted = place.status()["writes_admitted"].as_u64().unwrap();
        assert_eq!(daemon.stop().code(), Some(0));
        (elapsed, admitted)
    };
    let (_, admitted) = writes(&["--cache", "cache", "--destage-on-stop"]);
    assert_eq!(admitted, 20, "the cache answers for all of them");
    let (bare, admitted) = writes(&["--no-cache", "--accept-stale"]);
    assert_eq!(admitted, 0);
    assert!(bare > Duration::from_millis(500), "without a cache {bare:?}");
}
