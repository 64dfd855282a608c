//! What the models come to, beside what is published of the devices that they stand for. `docs/design/emulated-devices.md`
//! names the sources and has this table.

use crate::load::{DURABLE, GB, READ, WRITE, random_4k, sequential};

struct Row {
    device: &'static str,
    figure: &'static str,
    unit: &'static str,
    model: f64,
    published: f64,
    /// How far the two may be apart.
    tolerance: f64,
}

fn rows() -> Vec<Row> {
    let row = |device, figure, unit, model, published, tolerance| Row {
        device,
        figure,
        unit,
        model,
        published,
        tolerance,
    };
    let (savvio, es3, sata, nvme) = ("hdd-10k", "hdd-7k2", "ssd-sata", "ssd-nvme");
    // A random access takes overhead, average seek, half a turn and the transfer: all published.
    let disk = |overhead_ms: f64, seek_ms: f64, half_turn_ms: f64| {
        1000.0 / (overhead_ms + seek_ms + half_turn_ms + 0.04)
    };
    vec![
        row(
            savvio,
            "random read 4 KiB, depth 1",
            "IOPS",
            random_4k(savvio, READ, 1, 4000).iops,
            disk(0.2, 3.8, 3.0),
            0.04,
        ),
        row(
            savvio,
            "random durable write 4 KiB, depth 1",
            "IOPS",
            random_4k(savvio, DURABLE, 1, 4000).iops,
            disk(0.2, 4.4, 3.0),
            0.04,
        ),
        row(
            savvio,
            "sequential read, outer edge",
            "MB/s",
            sequential(savvio, READ, 1, 0, GB).mb_s,
            135.0,
            0.03,
        ),
        row(
            savvio,
            "sequential read, inner edge",
            "MB/s",
            sequential(savvio, READ, 1, 598 * GB, GB).mb_s,
            72.0,
            0.03,
        ),
        row(
            savvio,
            "sequential write, outer edge",
            "MB/s",
            sequential(savvio, WRITE, 4, 0, GB).mb_s,
            135.0,
            0.03,
        ),
        row(
            es3,
            "random read 4 KiB, depth 1",
            "IOPS",
            random_4k(es3, READ, 1, 4000).iops,
            disk(0.2, 8.0, 4.16),
            0.04,
        ),
        row(
            es3,
            "random durable write 4 KiB, depth 1",
            "IOPS",
            random_4k(es3, DURABLE, 1, 4000).iops,
            disk(0.2, 8.4, 4.16),
            0.04,
        ),
        row(es3, "sequential read, outer edge", "MB/s", sequential(es3, READ, 1, 0, GB).mb_s, 175.0, 0.03),
        row(
            es3,
            "sequential read, inner edge",
            "MB/s",
            sequential(es3, READ, 1, 3998 * GB, GB).mb_s,
            83.0,
            0.03,
        ),
        row(es3, "sequential write, outer edge", "MB/s", sequential(es3, WRITE, 4, 0, GB).mb_s, 175.0, 0.03),
        row(
            sata,
            "random read 4 KiB, depth 32",
            "IOPS",
            random_4k(sata, READ, 32, 200_000).iops,
            72_000.0,
            0.05,
        ),
        row(
            sata,
            "random read 4 KiB, depth 1",
            "us",
            random_4k(sata, READ, 1, 20_000).latency_us,
            110.0,
            0.1,
        ),
        row(
            sata,
            "random read 4 KiB, depth 1, 99 %",
            "us",
            random_4k(sata, READ, 1, 20_000).latency_us_p99,
            232.0,
            0.1,
        ),
        row(
            sata,
            "random write 4 KiB, depth 1, in the buffer",
            "us",
            random_4k(sata, WRITE, 1, 5_000).latency_us,
            52.0,
            0.1,
        ),
        row(
            sata,
            "random write 4 KiB, depth 32, sustained",
            "IOPS",
            random_4k(sata, WRITE, 32, 400_000).iops,
            33_000.0,
            0.05,
        ),
        row(sata, "sequential read, depth 4", "MB/s", sequential(sata, READ, 4, 0, GB).mb_s, 500.0, 0.03),
        row(
            sata,
            "sequential write, depth 4, sustained",
            "MB/s",
            sequential(sata, WRITE, 4, 0, 4 * GB).mb_s,
            490.0,
            0.03,
        ),
        row(
            nvme,
            "random read 4 KiB, depth 128",
            "IOPS",
            random_4k(nvme, READ, 128, 400_000).iops,
            279_500.0,
            0.1,
        ),
        row(nvme, "random read 4 KiB, depth 1", "us", random_4k(nvme, READ, 1, 20_000).latency_us, 85.0, 0.1),
        row(
            nvme,
            "random write 4 KiB, depth 1, in the buffer",
            "us",
            random_4k(nvme, WRITE, 1, 5_000).latency_us,
            20.0,
            0.1,
        ),
        row(
            nvme,
            "random write 4 KiB, depth 32, sustained",
            "IOPS",
            random_4k(nvme, WRITE, 32, 800_000).iops,
            30_500.0,
            0.05,
        ),
        row(
            nvme,
            "sequential read, depth 8",
            "MB/s",
            sequential(nvme, READ, 8, 0, 4 * GB).mb_s,
            3_200.0,
            0.03,
        ),
        row(
            nvme,
            "sequential write, depth 8, sustained",
            "MB/s",
            sequential(nvme, WRITE, 8, 0, 16 * GB).mb_s,
            600.0,
            0.03,
        ),
        row(
            "remote",
            "random read 4 KiB, depth 32",
            "IOPS",
            random_4k("remote", READ, 32, 20_000).iops,
            3_000.0,
            0.03,
        ),
        row(
            "remote",
            "sequential read, depth 8",
            "MB/s",
            sequential("remote", READ, 8, 0, GB).mb_s,
            131.07,
            0.03,
        ),
        row(
            "nvdram",
            "sequential write, depth 8",
            "MB/s",
            sequential("nvdram", WRITE, 8, 0, 4 * GB).mb_s,
            19_200.0,
            0.03,
        ),
    ]
}

#[test]
fn models_come_to_what_is_published() {
    println!("| device | figure | | model | published | ratio |\n|---|---|---|---|---|---|");
    let mut apart = Vec::new();
    for row in rows() {
        let ratio = row.model / row.published;
        let digits = if row.published < 1000.0 { 1 } else { 0 };
        println!(
            "| `{}` | {} | {} | {:.digits$} | {:.digits$} | {ratio:.2} |",
            row.device, row.figure, row.unit, row.model, row.published
        );
        if (ratio - 1.0).abs() > row.tolerance {
            apart.push(format!("{} {}: {:.2} of what is published", row.device, row.figure, ratio));
        }
    }
    assert!(apart.is_empty(), "{apart:#?}");
}
