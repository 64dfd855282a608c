//! How closely emulated devices keep to their models in real time:
//!
//! `cargo run --release -p forebay-device --example emulated -- FILE` (its content is lost; 256 MiB are enough)

use std::collections::HashMap;
use std::error::Error;
use std::time::Duration;

use forebay_block::{Buf, Class, DeviceOp, Nanos};
use forebay_device::{Access, Clock, Device, DeviceSpec, EmulatedDevice, Ring};
use forebay_emulate::Kind;

/// How long each measurement takes.
const NANOS_MAX: u64 = 1_000_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("which file?")?;
    println!(
        "| device | operation | depth | latency us | of which the model's us | ratio |\n|---|---|---|---|---|---|"
    );
    for kind in Kind::ALL {
        for (name, reads, depth) in
            [("read", true, 1), ("write", false, 1), ("read", true, 16), ("write", false, 16)]
        {
            let text = format!("emulate:{}:file={path},sync=no", kind.as_str());
            let DeviceSpec::Emulate(spec) = text.parse()? else { return Err("not emulated".into()) };
            let ring = Ring::new()?;
            let mut device = EmulatedDevice::open(&spec, &ring, Access::ReadWrite)?;
            let lateness = device.lateness();
            random(&ring, &mut device, reads, depth)?;
            let count = lateness.operations().max(1) as f64 * 1e3;
            let (emulated, late) = (lateness.emulated_ns() as f64 / count, lateness.late_ns() as f64 / count);
            let ratio = (emulated + late) / emulated;
            println!(
                "| `{}` | {name} | {depth} | {:.1} | {emulated:.1} | {ratio:.3} |",
                kind.as_str(),
                emulated + late
            );
        }
    }
    Ok(())
}

/// Random operations of 4 KiB.
fn random(ring: &Ring, device: &mut dyn Device, reads: bool, depth: usize) -> Result<(), Box<dyn Error>> {
    let clock = Clock::start();
    let (blocks, data) = (device.info().size_bytes / 4096, Buf::zeroed(4096));
    let (mut tag, mut under_way, mut done) = (0u64, HashMap::new(), Vec::new());
    let mut now = clock.now();
    while now < Nanos(NANOS_MAX) {
        while under_way.len() < depth {
            tag += 1;
            let offset = tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) % blocks * 4096;
            let op = match reads {
                true => DeviceOp::Read { offset, len: 4096 },
                false => DeviceOp::Write { offset, bufs: vec![data.clone()], durable: false },
            };
            under_way.insert(tag, ());
            device.submit(tag, op, Class::Foreground, now);
        }
        let timeout = device.deadline().map(|at| Duration::from_nanos(at.since(now)));
        ring.submit_and_wait(timeout, || true)?;
        now = clock.now();
        device.poll(now, &mut done);
        for (tag, result) in done.drain(..) {
            result?;
            under_way.remove(&tag);
        }
        now = clock.now();
    }
    Ok(())
}
