//! The reference page says what the code does.

use forebay_nbd::negotiation::{OPTION_BYTES_MAX, OPTION_SKIP_BYTES_MAX};
use forebay_nbd::{Limits, MEMORY_BYTES, OVERDRAFT_BYTES};

#[test]
fn limits_are_documented_as_they_are() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/reference/nbd.md");
    let page = std::fs::read_to_string(path).unwrap();
    let limits = Limits::default();
    assert_eq!(limits.handshakes_max(), limits.connections_max / 2);
    assert_eq!(limits.waiting_max(), limits.handshakes_max() * 2);
    assert_eq!(limits.silence_max(), limits.handshake_timeout / 2);
    for row in [
        format!("| clients of a server | {} (", limits.connections_max),
        format!("of one user at a unix socket | {} (", limits.connections_per_source_max),
        format!("| requests in flight on a connection | {};", limits.requests_in_flight_max),
        format!("| bytes in flight on a connection | {} MiB;", limits.bytes_in_flight_max >> 20),
        format!("TLS included | {} s (", limits.handshake_timeout.as_secs()),
        format!("| a fortieth of that: {} ms |", limits.displaced_after().as_millis()),
        format!("of the daemon | {} MiB (", MEMORY_BYTES >> 20),
        format!("one request of up to {} MiB beyond", OVERDRAFT_BYTES >> 20),
        format!("of a reply that waits | {} s;", limits.stall_timeout.as_secs()),
        format!(
            "| length of an option | {} KiB; up to {} MiB is refused",
            OPTION_BYTES_MAX >> 10,
            OPTION_SKIP_BYTES_MAX >> 20
        ),
    ] {
        assert!(page.contains(&row), "docs/reference/nbd.md lacks: {row}");
    }
}
