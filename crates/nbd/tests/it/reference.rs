//! The reference page says what the code does.

use forebay_nbd::Limits;
use forebay_nbd::negotiation::{OPTION_BYTES_MAX, OPTION_SKIP_BYTES_MAX};

#[test]
fn limits_are_documented_as_they_are() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/nbd.md");
    let page = std::fs::read_to_string(path).unwrap();
    let limits = Limits::default();
    for row in [
        format!("| connections of a server | {};", limits.connections_max),
        format!("| requests in flight on a connection | {};", limits.requests_in_flight_max),
        format!("| bytes in flight on a connection | {} MiB;", limits.bytes_in_flight_max >> 20),
        format!("TLS included | {} s |", limits.handshake_timeout.as_secs()),
        format!(
            "| length of an option | {} KiB; up to {} MiB is refused",
            OPTION_BYTES_MAX >> 10,
            OPTION_SKIP_BYTES_MAX >> 20
        ),
    ] {
        assert!(page.contains(&row), "docs/reference/nbd.md lacks: {row}");
    }
}
