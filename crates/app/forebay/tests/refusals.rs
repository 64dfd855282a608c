//! What is refused for safety (exit code 3) or fails (1), each with one clear sentence; and changes of a cache's size.

use std::fs;

use crate::nbd_client::NbdClient;
use crate::volume::{BACKING_BYTES, Place, pattern};

const SERVE: [&str; 9] =
    ["serve", "--name", "db", "--cache", "cache", "--backing", "backing", "--control", "second"];

#[test]
fn format_overwrites_nothing_that_it_is_not_told_to() {
    let place = Place::new();
    let format = ["format", "cache", "--size", "32M", "--backing", "backing"];
    let (code, error) = place.fails(&format);
    assert_eq!(code, 3, "{error}");
    assert!(error.contains("--force"), "{error}");
    place.ok(&[&format[..], &["--force"]].concat());

    place.make_file("photos", 32 << 20);
    fs::write(place.path("photos"), vec![7; 1 << 20]).unwrap();
    let before = fs::read(place.path("photos")).unwrap();
    let (code, error) = place.fails(&["format", "photos", "--size", "32M", "--backing", "backing"]);
    assert_eq!(code, 3, "{error}");
    assert_eq!(fs::read(place.path("photos")).unwrap(), before);
}

#[test]
fn format_says_what_is_missing() {
    let place = Place::with_backing();
    for (args, expected) in [
        (&["format", "cache", "--size", "32M", "--backing", "nowhere"][..], 1),
        (&["format", "cache", "--backing", "backing"], 1),
        (&["format", "cache", "--size", "4K", "--backing", "backing"], 2),
    ] {
        let (code, error) = place.fails(args);
        assert_eq!(code, expected, "{args:?}: {error}");
    }
    assert!(!place.path("nowhere").exists());
    place.ok(&["format", "cache", "--size", "32M", "--backing", "new", "--backing-size", "1M"]);
    assert_eq!(fs::metadata(place.path("new")).unwrap().len(), 1 << 20);
}

/// More than the file system has below the test: nothing is begun, and nothing is left.
#[test]
fn what_has_no_room_is_not_begun() {
    let place = Place::with_backing();
    for cache in ["new", "emulate:ssd-nvme:file=new"] {
        let (code, error) = place.fails(&["format", cache, "--size", "900T", "--backing", "backing"]);
        assert_eq!(code, 1, "{error}");
        assert!(error.contains("/new needs 900 TiB more, and its file system has "), "{error}");
        assert!(error.contains(" free; make room, give a smaller size"), "{error}");
        assert!(!place.path("new").exists() && !place.path("backing.forebay").exists());
    }
    // One that is there and sparse is left as it is.
    place.make_file("sparse", 8 << 40);
    fs::write(place.path("note"), "").unwrap();
    for args in [
        &["format", "sparse", "--backing", "backing"][..],
        &["format", "note", "--size", "8T", "--backing", "backing"],
    ] {
        let (code, error) = place.fails(args);
        assert_eq!(code, 1, "{error}");
        assert!(error.contains("needs 8 TiB more"), "{error}");
    }
    assert_eq!(fs::metadata(place.path("sparse")).unwrap().len(), 8 << 40);
    assert_eq!(fs::metadata(place.path("note")).unwrap().len(), 0);
    place.ok(&["format", "cache", "--size", "32M", "--backing", "backing"]);
    let before = fs::metadata(place.path("cache")).unwrap().len();
    let (code, error) = place.fails(&["grow", "cache", "--size", "900T"]);
    assert_eq!(code, 1, "{error}");
    assert!(error.contains("/cache needs 900 TiB more"), "{error}");
    assert_eq!(fs::metadata(place.path("cache")).unwrap().len(), before);
    // A backing is sparse: it is made, and what may come of it is said.
    let args = ["format", "cache2", "--size", "32M", "--backing", "large", "--backing-size", "1T"];
    let output = place.command(&args).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let warned = String::from_utf8(output.stderr).unwrap();
    let lacks = free_bytes(&place) < 1 << 40;
    assert_eq!(warned.contains("large is sparse and its file system has"), lacks, "{warned}");
}

fn free_bytes(place: &Place) -> u64 {
    let system = rustix::fs::statvfs(place.path("backing").as_path()).unwrap();
    system.f_bavail * system.f_frsize
}

#[test]
fn a_pair_in_use_is_refused() {
    let place = Place::new();
    let _daemon = place.serve(&[]);
    let (code, error) = place.fails(&SERVE);
    assert_eq!(code, 3, "{error}");
    assert!(error.contains("in use"), "{error}");
    place.make_file("backing2", BACKING_BYTES);
    place.ok(&["format", "cache2", "--size", "32M", "--backing", "backing2"]);
    let same_socket =
        ["serve", "--name", "db2", "--cache", "cache2", "--backing", "backing2", "--control", "control"];
    let (code, error) = place.fails(&same_socket);
    assert_eq!(code, 3, "{error}");
    let (code, error) = place.fails(&["grow", "cache", "--size", "64M"]);
    assert_eq!(code, 3, "{error}");
}

#[test]
fn foreign_stale_and_truncated_ones_are_refused() {
    let place = Place::new();
    place.make_file("backing2", BACKING_BYTES);
    place.ok(&["format", "cache2", "--size", "32M", "--backing", "backing2"]);
    let serve = |cache, backing| {
        place.fails(&["serve", "--name", "db", "--cache", cache, "--backing", backing, "--control", "second"])
    };
    for (cache, backing) in
        [("cache", "backing2"), ("cache2", "backing"), ("backing", "cache"), ("backing", "backing")]
    {
        let (code, error) = serve(cache, backing);
        assert_eq!(code, 3, "{cache} with {backing}: {error}");
    }
    let (code, error) = serve("cache", "nowhere");
    assert_eq!(code, 1, "{error}");

    fs::copy(place.path("cache"), place.path("old-cache")).unwrap();
    let daemon = place.serve(&[]);
    NbdClient::connect(&place.path("nbd"), "db").write(0, &pattern(0, 1, 4096));
    daemon.stop();
    let (code, error) = serve("old-cache", "backing");
    assert_eq!(code, 3, "{error}");
    assert!(error.contains("older copy"), "{error}");

    fs::File::options().write(true).open(place.path("cache")).unwrap().set_len(16 << 20).unwrap();
    let (code, error) = serve("cache", "backing");
    assert_eq!(code, 3, "{error}");
    assert!(error.contains("truncated"), "{error}");
}

#[test]
fn a_backing_without_its_cache_needs_consent() {
    let place = Place::new();
    let daemon = place.serve(&[]);
    NbdClient::connect(&place.path("nbd"), "db").write(0, &pattern(0, 1, 4096));
    daemon.kill();
    let alone = ["serve", "--name", "db", "--backing", "backing", "--no-cache", "--control", "second"];
    let (code, error) = place.fails(&alone);
    assert_eq!(code, 3, "{error}");
    assert!(error.contains("--accept-stale"), "{error}");
    place.serve_plain(&["--name", "db", "--backing", "backing", "--no-cache", "--accept-stale"]).stop();
    let (code, error) = place.fails(&SERVE);
    assert_eq!(code, 3, "the two went separate ways: {error}");
}

#[test]
fn a_cache_grows_with_its_data_and_shrinks_only_without() {
    let place = Place::new();
    let daemon = place.serve(&[]);
    let before = place.status()["cache_bytes"].as_u64().unwrap();
    NbdClient::connect(&place.path("nbd"), "db").write(4096, &pattern(4096, 1, 4096));
    daemon.stop();
    place.ok(&["grow", "cache", "--size", "64M"]);
    let shrink = ["shrink", "cache", "--backing", "backing", "--size", "24M"];
    let (code, error) = place.fails(&shrink);
    assert_eq!(code, 3, "{error}");
    assert!(error.contains("flush"), "{error}");

    let daemon = place.serve(&["--destage-on-stop"]);
    assert!(place.status()["cache_bytes"].as_u64().unwrap() > before);
    assert_eq!(NbdClient::connect(&place.path("nbd"), "db").read(4096, 4096), pattern(4096, 1, 4096));
    daemon.stop();
    place.ok(&shrink);
    let _daemon = place.serve(&[]);
    assert!(place.status()["cache_bytes"].as_u64().unwrap() < before);
    assert_eq!(NbdClient::connect(&place.path("nbd"), "db").read(4096, 4096), pattern(4096, 1, 4096));
}

#[test]
fn a_mistake_in_the_configuration_is_shown_where_it_is() {
    let place = Place::with_backing();
    fs::write(place.path("db.toml"), "[[volume]]\nname = \"db\"\nbakcing = \"backing\"\n").unwrap();
    let (code, error) = place.fails(&["serve", "--config", "db.toml"]);
    assert_eq!(code, 2, "{error}");
    assert!(error.contains("db.toml:3:1: ") && error.contains("did you mean `backing`?"), "{error}");
}

#[test]
fn check_finds_a_flipped_bit_and_inspect_tells_a_block_apart() {
    let place = Place::new();
    let daemon = place.serve(&[]);
    let mut client = NbdClient::connect(&place.path("nbd"), "db");
    client.write(8192, &pattern(8192, 1, 4096));
    client.write(8192, &pattern(8192, 2, 4096));
    // A record is proven durable by a later one; without that, damage of the last looks like a write torn by a crash.
    client.write(65536, &pattern(65536, 1, 4096));
    let (code, error) = place.fails(&["check", "cache"]);
    assert_eq!(code, 3, "{error}");
    assert!(error.contains("in use"), "{error}");
    daemon.kill();
    assert!(place.ok(&["check", "cache"]).contains("no damage was found"));
    let history: serde_json::Value =
        serde_json::from_str(&place.ok(&["inspect", "cache", "--block", "2", "--json"])).unwrap();
    assert_eq!((&history["block"], &history["state"]), (&2.into(), &"dirty".into()));
    let mentions = history["mentions"].as_array().unwrap();
    let current = mentions.iter().find(|m| m["current"] == true).unwrap();
    assert_eq!(current["checksum_ok"], true);
    let inspection: serde_json::Value =
        serde_json::from_str(&place.ok(&["inspect", "cache", "--json"])).unwrap();
    assert!(inspection["records"].as_array().unwrap().len() >= 2);
    assert!(place.ok(&["inspect", "cache"]).contains("SEGMENTS_OFFSET"));

    let mut image = fs::read(place.path("cache")).unwrap();
    let at = current["data_offset"].as_u64().unwrap() as usize + 100;
    image[at] ^= 4;
    fs::write(place.path("cache"), image).unwrap();
    let output = place.command(&["check", "cache", "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["verdict"], "corruption");
    assert_eq!(report["findings"][0]["block"], 2);
    let (code, error) = place.fails(&["check", "backing"]);
    assert_eq!(code, 3, "{error}");
}
