//! Which writes enter the cache, and the reasons that `status` gives.

use crate::nbd_client::NbdClient;
use crate::volume::{Place, pattern};

const BLOCK: usize = 4096;

fn reason(place: &Place, name: &str) -> u64 {
    place.status()["writes_by_reason"][name].as_u64().unwrap_or_else(|| panic!("no reason '{name}'"))
}

#[test]
fn ranges_let_writes_in_and_are_changed_while_it_runs() {
    let place = Place::new();
    let daemon = place.serve(&["--admission", "range", "--ranges", "1M-2M"]);
    assert_eq!(place.status()["ranges"], "1048576-2097152");
    let mut client = NbdClient::connect(&place.path("nbd"), "db");
    client.write(1 << 20, &pattern(1, 1, BLOCK));
    client.write(0, &pattern(2, 1, BLOCK));
    assert_eq!((reason(&place, "range"), reason(&place, "out-of-range")), (1, 1));
    place.ask(&["set", "db", "ranges=0-4K"]);
    client.write(0, &pattern(3, 1, BLOCK));
    client.write(1 << 20, &pattern(4, 1, BLOCK));
    assert_eq!((reason(&place, "range"), reason(&place, "out-of-range")), (2, 2));
    assert_eq!(client.read(0, BLOCK), pattern(3, 1, BLOCK));
    assert_eq!(client.read(1 << 20, BLOCK), pattern(4, 1, BLOCK));
    let metrics = place.ask(&["status", "--prometheus"]);
    assert!(metrics.contains(r#"forebay_writes_by_reason_total{volume="db",reason="range"} 2"#), "{metrics}");
    assert!(place.ask(&["status", "db"]).contains("2 out-of-range, 2 range"));
    assert!(daemon.stop().success());
}

#[test]
fn requests_of_a_critical_export_are_critical_and_of_another_are_not() {
    for (flags, cached) in [(&["--critical"][..], true), (&[], false)] {
        let place = Place::new();
        let daemon = place.serve(&[&["--admission", "cp"], flags].concat());
        let mut client = NbdClient::connect(&place.path("nbd"), "db");
        client.write(0, &pattern(1, 1, BLOCK));
        let counts = (reason(&place, "direct"), reason(&place, "not-critical"));
        assert_eq!(counts, if cached { (1, 0) } else { (0, 1) });
        let status = place.status();
        assert_eq!(status["writes_admitted"], counts.0);
        assert_eq!(status["writes_bypassed"], counts.1);
        assert_eq!(client.read(0, BLOCK), pattern(1, 1, BLOCK));
        assert!(daemon.stop().success());
    }
}

/// A second's worth is saved up: the first write uses it, the next comes long before as much has been earned again.
#[test]
fn an_export_has_no_more_critical_bytes_than_its_rate() {
    let place = Place::new();
    let rated = ["--admission", "cp+pi+ioi", "--critical", "--critical-rate", "1"];
    let daemon = place.serve(&[&rated[..], &["--nbd", "unix:other"]].concat());
    let [mut client, mut other] =
        ["nbd", "other"].map(|socket| NbdClient::connect(&place.path(socket), "db"));
    client.write(0, &pattern(1, 1, BLOCK));
    client.write(0, &pattern(2, 1, BLOCK));
    // Zeroes count as what they are written over, and another address is none of another volume.
    client.zero(0, 512);
    other.write(4096, &pattern(3, 1, BLOCK));
    assert_eq!((reason(&place, "direct"), reason(&place, "over-rate")), (1, 3));
    assert_eq!(client.read(512, BLOCK - 512), pattern(2, 1, BLOCK)[512..]);
    assert!(daemon.stop().success());
    let (code, error) =
        place.fails(&["serve", "--name", "db", "--no-cache", "--backing", "backing", "--critical-rate", "1"]);
    assert_eq!(code, 2, "{error}");
    assert!(error.contains("--critical-rate is for volumes that are critical"), "{error}");
}

#[test]
fn what_is_refused_changes_nothing_of_what_came_with_it() {
    let place = Place::new();
    let flags = ["--admission", "adaptive", "--endurance", "10G", "--ranges", "1M-2M", "--journal", "none"];
    let daemon = place.serve(&flags);
    let set = ["set", "db", "endurance=1", "ranges=0-4K", "write-policy=journaled", "--control", "control"];
    let (_, error) = place.fails(&set);
    assert!(error.contains("without a journal"), "{error}");
    let status = place.status();
    assert_eq!(
        (&status["endurance_bytes_a_day"], &status["ranges"]),
        (&(10u64 << 30).into(), &"1048576-2097152".into())
    );
    assert!(daemon.stop().success());
}

#[test]
fn adaptive_takes_everything_until_the_endurance_budget_is_used_up() {
    let place = Place::new();
    let daemon = place.serve(&["--admission", "adaptive", "--endurance", "10G"]);
    let mut client = NbdClient::connect(&place.path("nbd"), "db");
    client.write(0, &pattern(1, 1, BLOCK));
    assert_eq!(
        (reason(&place, "roomy"), place.status()["endurance_bytes_a_day"].as_u64()),
        (1, Some(10 << 30))
    );
    place.ask(&["set", "db", "endurance=1"]);
    client.write(0, &pattern(2, 1, BLOCK));
    assert_eq!((reason(&place, "roomy"), reason(&place, "not-critical")), (1, 1));
    assert_eq!(client.read(0, BLOCK), pattern(2, 1, BLOCK));
    assert!(daemon.stop().success());
}

#[test]
fn without_a_cache_every_write_says_so() {
    let place = Place::with_backing();
    let daemon =
        place.serve_plain(&["--name", "db", "--backing", "backing", "--no-cache", "--nbd", "unix:nbd"]);
    NbdClient::connect(&place.path("nbd"), "db").write(0, &pattern(1, 1, BLOCK));
    assert_eq!(reason(&place, "no-cache"), 1);
    assert!(daemon.stop().success());
}
