//! Entry points of the fuzz targets. Those of the format and the verifier are the very functions that the verifier's
//! tests run over the same seeds.

#[path = "../../crates/verify/tests/verify/targets.rs"]
pub mod targets;
#[path = "../../crates/verify/tests/verify/writer.rs"]
pub mod writer;

/// Both sides of the NBD protocol; the tests of `crates/nbd` run the same functions.
pub use forebay_nbd::fuzzing as nbd;

/// A line from a client of the control socket.
pub fn control_request(data: &[u8]) {
    let _ = forebay_control::parse_request(data);
}

/// A line from a daemon to its client.
pub fn control_line(data: &[u8]) {
    let _ = forebay_control::parse_line(data);
}
