//! Entry points of the fuzz targets. Those of the format and the verifier are the very functions that the verifier's
//! tests run over the same seeds.

#[path = "../../crates/lab/verify/tests/verify/recovery.rs"]
pub mod recovery;
#[path = "../../crates/lab/verify/tests/verify/targets.rs"]
pub mod targets;
#[path = "../../crates/lab/verify/tests/verify/writer.rs"]
pub mod writer;

#[path = "../../crates/lab/record/tests/fuzz/targets.rs"]
pub mod recording;

// What a person writes: the binary has no library.
#[path = "../../crates/app/forebay/src/background_dirty.rs"]
pub mod background_dirty;
#[path = "../../crates/app/forebay/src/config.rs"]
pub mod config;
#[path = "../../crates/app/forebay/src/fuzzing.rs"]
pub mod forebay;
#[path = "../../crates/app/forebay/src/nearest.rs"]
pub mod nearest;
#[path = "../../crates/app/forebay/src/resident.rs"]
pub mod resident;
#[path = "../../crates/app/forebay/src/volume_name.rs"]
pub mod volume_name;

/// What the stamping client reads; its own tests run the same functions.
pub use forebay_stamp::fuzzing as stamp;

/// Both sides of the NBD protocol; the tests of `crates/frontends/nbd` run the same functions.
pub use forebay_nbd::fuzzing as nbd;

/// Rules that say who is critical, and the static probes of a program; the tests of `crates/watch/tracker` run the same functions.
pub use forebay_tracker::fuzzing as tracker;

/// Traces of requests; the tests of `crates/lab/replay` run the same functions.
pub use forebay_replay::fuzzing as replay;

/// Objects of volumes in object stores; the tests of `crates/devices/objects` run the same functions.
pub use forebay_objects::fuzzing as objects;

/// A line from a client of the control socket.
pub fn control_request(data: &[u8]) {
    let _ = forebay_control::parse_request(data);
}

/// A line from a daemon to its client.
pub fn control_line(data: &[u8]) {
    let _ = forebay_control::parse_line(data);
}

/// A file of `/proc`: locks, processes, mounts. The tests of each crate run its part.
pub fn proc_files(data: &[u8]) {
    forebay_device::fuzzing::proc_files(data);
    forebay_fuse::fuzzing::proc_files(data);
    forebay_bench::fuzzing::proc_files(data);
    forebay::proc_files(data);
}

/// A plan of the simulator; what is read is written as it was read.
pub fn plan(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(plan) = text.parse::<forebay_sim::plan::Plan>() {
        assert_eq!(plan.to_string().parse::<forebay_sim::plan::Plan>().ok().as_ref(), Some(&plan));
    }
}
