//! What is particular about SSDs and remote stores.

use forebay_block::Nanos;
use forebay_emulate::{Access, Operation};

use crate::load::{DURABLE, READ, Random, WRITE, model, random_4k, run, run_from};

#[test]
fn latency_grows_with_depth_once_the_device_is_busy() {
    println!(
        "| device | depth | random reads 4 KiB, IOPS | mean latency us | 99 % us |\n|---|---|---|---|---|"
    );
    for device in ["ssd-sata", "ssd-nvme", "remote", "nvdram"] {
        let (mut iops, mut latency) = (Vec::new(), Vec::new());
        for depth in [1, 4, 16, 64, 256] {
            let outcome = random_4k(device, READ, depth, 40_000);
            println!(
                "| `{device}` | {depth} | {:.0} | {:.1} | {:.1} |",
                outcome.iops, outcome.latency_us, outcome.latency_us_p99
            );
            iops.push(outcome.iops);
            latency.push(outcome.latency_us);
        }
        let rises = |v: &[f64]| v.windows(2).all(|w| w[1] > w[0] * 0.99);
        assert!(rises(&iops) && rises(&latency), "{iops:?} {latency:?}");
    }
}

#[test]
fn the_buffer_is_fast_until_it_is_full() {
    let mut ssd = model("ssd-nvme");
    let mut op = |i| Operation { access: WRITE, offset: i as u64 * 131_072, len: 131_072 };
    let burst = run_from(&mut ssd, Nanos(0), 8, 1000, &mut op);
    let sustained = run_from(&mut ssd, burst.ended, 8, 20_000, &mut |i| op(i + 1000));
    println!("burst {:.0} MB/s, sustained {:.0} MB/s", burst.mb_s, sustained.mb_s);
    assert!(burst.mb_s > 3.0 * sustained.mb_s);
    let rested = Nanos(sustained.ended.0 + 2_000_000_000);
    let again = run_from(&mut ssd, rested, 8, 1000, &mut |i| op(i + 21_000));
    assert!((again.mb_s / burst.mb_s - 1.0).abs() < 0.02, "an idle drive empties its buffer");
}

#[test]
fn capacitors_are_what_makes_durable_writes_cheap() {
    let latency = |text, access| random_4k(text, access, 1, 2000).latency_us;
    assert_eq!(latency("ssd-nvme", DURABLE), latency("ssd-nvme", WRITE));
    assert!(latency("ssd-nvme,plp=no", DURABLE) > 2.0 * latency("ssd-nvme,plp=no", WRITE));
    for (text, waits) in [("ssd-nvme,plp=no", true), ("ssd-nvme", false)] {
        let mut ssd = model(text);
        let mut random = Random(3);
        let mut op = |_| Operation { access: WRITE, offset: random.below(1 << 24) * 4096, len: 4096 };
        let filled = run_from(&mut ssd, Nanos(0), 32, 4000, &mut op).ended;
        let flush = Operation { access: Access::Flush, offset: 0, len: 0 };
        let flushed = run_from(&mut ssd, filled, 1, 1, &mut |_| flush).ended;
        assert_eq!(flushed.since(filled) > 1_000_000, waits, "{text}: {} ns", flushed.since(filled));
    }
}

#[test]
fn reads_wait_for_dies_that_program() {
    let mut ssd = model("ssd-nvme");
    let mut random = Random(3);
    let mixed = run(&mut ssd, 2, 20_000, |i| {
        let access = if i % 2 == 0 { READ } else { WRITE };
        Operation { access, offset: random.below(1 << 24) * 4096, len: 4096 }
    });
    let alone = random_4k("ssd-nvme", READ, 1, 20_000);
    assert!(mixed.latency_us_p99 > alone.latency_us_p99);
}

#[test]
fn a_window_bounds_what_a_remote_store_does_at_a_time() {
    let rate = |window: u64, depth| {
        let text = format!("remote,window={window},iops=1000000,rate=10G,latency=1ms,latency-p99=1ms");
        random_4k(&text, READ, depth, 5000).iops
    };
    assert!((rate(8, 64) / 8000.0 - 1.0).abs() < 0.05, "{}", rate(8, 64));
    assert!((rate(64, 8) / 8000.0 - 1.0).abs() < 0.05);
    assert!(rate(64, 64) > 5.0 * rate(8, 64));
}
