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

/// What a person writes on the command line: names of devices, decorations, addresses, settings.
pub fn texts(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(spec) = text.parse::<forebay_device::DeviceSpec>() {
        assert_eq!(spec.to_string().parse::<forebay_device::DeviceSpec>().as_ref(), Ok(&spec));
    }
    let _ = text.parse::<forebay_device::decorate::Decoration>();
    let _ = text.parse::<forebay_nbd::Address>();
    let _ = text.parse::<forebay_policy::WritePolicy>();
}

/// A plan of the simulator; what is read is written as it was read.
pub fn plan(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(plan) = text.parse::<forebay_sim::plan::Plan>() {
        assert_eq!(plan.to_string().parse::<forebay_sim::plan::Plan>().ok().as_ref(), Some(&plan));
    }
}
