//! What a vault costs: bytes sent and requests for each byte written, memory for each extent, time for each write.

use std::time::Instant;

use forebay_block::{DeviceOp, Nanos};
use forebay_objects::{Access, Limits, Takeover};

use crate::random::Random;
use crate::world::{Host, volume, write};

fn host(model: &mut forebay_objects::model::Model, now: &mut Nanos) -> Host {
    let mut host = Host::open("host", Access::Own(Takeover::Never), Limits::default(), *now);
    host.settle(now, model);
    host
}

/// Writes so many blocks of 4 KiB at random places, with a flush after every so many.
fn scatter(
    host: &mut Host,
    model: &mut forebay_objects::model::Model,
    now: &mut Nanos,
    size: u64,
    blocks: u64,
    flush: u64,
) {
    let mut random = Random::new(1);
    for tag in 0..blocks {
        let block = random.below(size / 4096);
        host.vault.submit(*now, tag, write(block * 4096, &[tag as u8; 4096], false));
        if tag % flush == flush - 1 {
            host.vault.submit(*now, u64::MAX, DeviceOp::Flush);
            host.settle(now, model);
            host.done.clear();
        }
    }
}

#[test]
fn bytes_requests_and_room_are_bounded() {
    let size = 8 << 20;
    let (mut model, mut now) = (volume(size), Nanos(0));
    let mut host = host(&mut model, &mut now);
    let before = host.vault.counters();
    // Large writes: one byte for each byte, a request for each object of 4 MiB, and one for the commit mark that none of them has.
    for tag in 0..16_u64 {
        host.run(&mut now, &mut model, tag, write((tag % 8) << 20, &vec![tag as u8; 1 << 20], false))
            .unwrap();
    }
    host.run(&mut now, &mut model, 99, DeviceOp::Flush).unwrap();
    let counters = host.vault.counters();
    assert!(counters.bytes_up - before.bytes_up < 16 * (1 << 20) * 1002 / 1000);
    assert_eq!(counters.creates - before.creates, 5, "and one for the commit mark");
    // All overwritten many times in random order.
    scatter(&mut host, &mut model, &mut now, size, 40_960, 512);
    let counters = host.vault.counters();
    let stored: u64 = model.objects().values().map(|bytes| bytes.len() as u64).sum();
    let written = counters.bytes_written;
    println!(
        "{written} written, {} sent, {} moved, {} of checkpoints; {stored} stored; {} requests",
        counters.bytes_up,
        counters.bytes_moved,
        counters.bytes_checkpoints,
        counters.creates + counters.gets + counters.lists + counters.deletes
    );
    // 64 MiB may wait for the next checkpoint.
    assert!(stored < 2 * size + (64 << 20) + (16 << 20), "{stored}");
    assert!(counters.bytes_up < written * 5 / 2, "{counters:?}");
}

#[test]
fn an_extent_takes_less_than_16_bytes() {
    let size = 256 << 20;
    let (mut model, mut now) = (volume(size), Nanos(0));
    let mut host = host(&mut model, &mut now);
    scatter(&mut host, &mut model, &mut now, size, 50_000, 1000);
    let counters = host.vault.counters();
    let bytes = counters.index_bytes as f64 / counters.extents as f64;
    println!("{bytes:.1} bytes for each of {} extents", counters.extents);
    assert!(counters.extents > 30_000 && bytes < 16.0, "{bytes}");
}

/// `cargo test --release -p forebay-objects --test objects -- --ignored --nocapture time_of_a_write`
#[test]
#[ignore = "it measures time"]
fn time_of_a_write() {
    let size = 4 << 30;
    let (mut model, mut now) = (volume(size), Nanos(0));
    let mut host = host(&mut model, &mut now);
    for (flush, blocks) in [(1, 20_000), (16, 200_000), (1024, 200_000)] {
        let begun = Instant::now();
        scatter(&mut host, &mut model, &mut now, size, blocks, flush);
        let us = begun.elapsed().as_secs_f64() * 1e6 / blocks as f64;
        println!(
            "a flush after every {flush}: {us:.2} us for a write of 4 KiB, the store in memory included"
        );
    }
    let begun = Instant::now();
    let reads = 100_000_u64;
    let mut random = Random::new(2);
    for tag in 0..reads {
        let offset = random.below(size / 4096) * 4096;
        host.run(&mut now, &mut model, tag, DeviceOp::Read { offset, len: 4096 }).unwrap();
    }
    println!("{:.2} us for a read of 4 KiB", begun.elapsed().as_secs_f64() * 1e6 / reads as f64);
    let counters = host.vault.counters();
    println!("{:.1} bytes for each extent", counters.index_bytes as f64 / counters.extents as f64);
    assert!(counters.extents > 0);
}
