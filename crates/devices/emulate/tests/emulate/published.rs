//! What the models come to, beside what is published of the devices that they stand for. `docs/design/emulated-devices.md`
//! names the sources and has this table.

use crate::load::{DURABLE, GB, READ, WRITE, random_4k, sequential};

/// A figure: device, what, unit, the model's, the published one, and how far the two may be apart.
type Row = (&'static str, &'static str, &'static str, f64, f64, f64);

/// A random access takes overhead, average seek, half a turn and the transfer: all published.
fn accesses_a_second(overhead_ms: f64, seek_ms: f64, half_turn_ms: f64) -> f64 {
    1000.0 / (overhead_ms + seek_ms + half_turn_ms + 0.04)
}

fn disk(name: &'static str, end: u64, half_turn_ms: f64, seeks_ms: [f64; 2], rates: [f64; 2]) -> Vec<Row> {
    let [read, write] = seeks_ms.map(|seek_ms| accesses_a_second(0.2, seek_ms, half_turn_ms));
    let iops = |access| random_4k(name, access, 1, 4000).iops;
    let rate = |access, depth, start| sequential(name, access, depth, start, GB).mb_s;
    vec![
        (name, "random read 4 KiB, depth 1", "IOPS", iops(READ), read, 0.04),
        (name, "random durable write 4 KiB, depth 1", "IOPS", iops(DURABLE), write, 0.04),
        (name, "sequential read, outer edge", "MB/s", rate(READ, 1, 0), rates[0], 0.03),
        (name, "sequential read, inner edge", "MB/s", rate(READ, 1, end - 2 * GB), rates[1], 0.03),
        (name, "sequential write, outer edge", "MB/s", rate(WRITE, 4, 0), rates[0], 0.03),
    ]
}

fn sata() -> Vec<Row> {
    let name = "ssd-sata";
    let alone = random_4k(name, READ, 1, 20_000);
    let buffered = random_4k(name, WRITE, 1, 5_000).latency_us;
    let writes = random_4k(name, WRITE, 32, 400_000).iops;
    let rate = |access, gb| sequential(name, access, 4, 0, gb * GB).mb_s;
    vec![
        (
            name,
            "random read 4 KiB, depth 32",
            "IOPS",
            random_4k(name, READ, 32, 200_000).iops,
            72_000.0,
            0.05,
        ),
        (name, "random read 4 KiB, depth 1", "us", alone.latency_us, 110.0, 0.1),
        (name, "random read 4 KiB, depth 1, 99 %", "us", alone.latency_us_p99, 232.0, 0.1),
        (name, "random write 4 KiB, depth 1, in the buffer", "us", buffered, 52.0, 0.1),
        (name, "random write 4 KiB, depth 32, sustained", "IOPS", writes, 33_000.0, 0.05),
        (name, "sequential read, depth 4", "MB/s", rate(READ, 1), 500.0, 0.03),
        (name, "sequential write, depth 4, sustained", "MB/s", rate(WRITE, 4), 490.0, 0.03),
    ]
}

fn nvme() -> Vec<Row> {
    let name = "ssd-nvme";
    let reads = random_4k(name, READ, 128, 400_000).iops;
    let alone = random_4k(name, READ, 1, 20_000).latency_us;
    let buffered = random_4k(name, WRITE, 1, 5_000).latency_us;
    let writes = random_4k(name, WRITE, 32, 800_000).iops;
    let rate = |access, gb| sequential(name, access, 8, 0, gb * GB).mb_s;
    vec![
        (name, "random read 4 KiB, depth 128", "IOPS", reads, 279_500.0, 0.1),
        (name, "random read 4 KiB, depth 1", "us", alone, 85.0, 0.1),
        (name, "random write 4 KiB, depth 1, in the buffer", "us", buffered, 20.0, 0.1),
        (name, "random write 4 KiB, depth 32, sustained", "IOPS", writes, 30_500.0, 0.05),
        (name, "sequential read, depth 8", "MB/s", rate(READ, 4), 3_200.0, 0.03),
        (name, "sequential write, depth 8, sustained", "MB/s", rate(WRITE, 16), 600.0, 0.03),
    ]
}

fn others() -> Vec<Row> {
    let reads = random_4k("remote", READ, 32, 20_000).iops;
    let rate = |name, access| sequential(name, access, 8, 0, 2 * GB).mb_s;
    vec![
        ("remote", "random read 4 KiB, depth 32", "IOPS", reads, 3_000.0, 0.03),
        ("remote", "sequential read, depth 8", "MB/s", rate("remote", READ), 131.07, 0.03),
        ("nvdram", "sequential write, depth 8", "MB/s", rate("nvdram", WRITE), 19_200.0, 0.03),
    ]
}

#[test]
fn models_come_to_what_is_published() {
    let disks = [
        disk("hdd-10k", 600 * GB, 3.0, [3.8, 4.4], [135.0, 72.0]),
        disk("hdd-7k2", 4000 * GB, 4.16, [8.0, 8.4], [175.0, 83.0]),
    ];
    println!("| device | figure | | model | published | ratio |\n|---|---|---|---|---|---|");
    let mut apart = Vec::new();
    for (device, figure, unit, model, published, tolerance) in
        disks.into_iter().flatten().chain(sata()).chain(nvme()).chain(others())
    {
        let ratio = model / published;
        let digits = if published < 1000.0 { 1 } else { 0 };
        println!("| `{device}` | {figure} | {unit} | {model:.digits$} | {published:.digits$} | {ratio:.2} |");
        if (ratio - 1.0).abs() > tolerance {
            apart.push(format!("{device} {figure}: {ratio:.2} of what is published"));
        }
    }
    assert!(apart.is_empty(), "{apart:#?}");
}
