//! What a 4 KiB durable append costs: on a mapped device against a plain copy, on a file against `pwritev2`.
//!
//! `cargo run --release -p forebay-device --example append -- pmem:/dev/shm/cache` (or a path; its content is lost)

use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

use forebay_block::{Buf, Class, DeviceOp};
use forebay_device::{Access, Clock, Device, DeviceSpec, Ring, open};

const APPEND_BYTES: usize = 4096;
const ROUND: Duration = Duration::from_millis(300);
const ROUNDS: usize = 5;

/// Runs `step` for a while; nanoseconds for each, the best of several rounds.
fn measure(mut step: impl FnMut()) -> f64 {
    let round = |step: &mut dyn FnMut()| {
        let begun = Instant::now();
        let mut steps = 0u32;
        while begun.elapsed() < ROUND {
            (0..64).for_each(|_| step());
            steps += 64;
        }
        begun.elapsed().as_nanos() as f64 / f64::from(steps)
    };
    (0..ROUNDS).map(|_| round(&mut step)).fold(f64::INFINITY, f64::min)
}

fn main() -> Result<(), Box<dyn Error>> {
    let spec: DeviceSpec = std::env::args().nth(1).ok_or("which device?")?.parse()?;
    let (ring, clock) = (Ring::new()?, Clock::start());
    let mut device = open(&spec, &ring, Access::ReadWrite)?;
    println!("{spec}: {}", device.info().durability);
    let span = device.info().size_bytes / APPEND_BYTES as u64;
    let data = Buf::copy_of(&[0x5a; APPEND_BYTES]);

    let mut memory = vec![1u8; (span as usize * APPEND_BYTES).min(64 << 20)];
    let mut at = 0;
    let copy_ns = measure(|| {
        memory[at..at + APPEND_BYTES].copy_from_slice(black_box(&data));
        at = (at + APPEND_BYTES) % memory.len();
    });

    let mut next = 0;
    let mut done = Vec::new();
    let mut append = |device: &mut dyn Device| {
        let offset = next % span * APPEND_BYTES as u64;
        next += 1;
        device.submit(
            next,
            DeviceOp::Write { offset, bufs: vec![data.clone()], durable: true },
            Class::Foreground,
            clock.now(),
        );
        loop {
            device.poll(clock.now(), &mut done);
            if let Some((_, result)) = done.pop() {
                return result.is_ok();
            }
            if ring.submit_and_wait(None, || true).is_err() {
                return false;
            }
        }
    };
    let appended = (0..span).all(|_| append(&mut *device));
    let append_ns = measure(|| {
        assert!(append(&mut *device), "a write failed");
    });
    assert!(appended, "a write failed");
    println!("copy to memory {copy_ns:8.0} ns");
    println!("durable append {append_ns:8.0} ns");
    println!("ratio          {:8.2}", append_ns / copy_ns);
    Ok(())
}
