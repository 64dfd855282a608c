//! What is particular about disks.

use forebay_block::Nanos;
use forebay_emulate::{Access, Operation};

use crate::load::{DURABLE, GB, READ, Random, WRITE, model, random_4k, run, run_from, sequential};

#[test]
fn the_queue_gains_more_the_deeper_it_is() {
    println!(
        "| device | depth | random reads 4 KiB, IOPS | mean latency ms | 99 % ms | longest ms |\n|---|---|---|---|---|---|"
    );
    for disk in ["hdd-10k", "hdd-7k2"] {
        let (mut iops, mut latency) = (Vec::new(), Vec::new());
        for depth in [1, 2, 4, 8, 16, 32] {
            let outcome = random_4k(disk, READ, depth, 4000);
            let ms = [outcome.latency_us, outcome.latency_us_p99, outcome.latency_us_max].map(|us| us / 1e3);
            println!(
                "| `{disk}` | {depth} | {:.0} | {:.1} | {:.1} | {:.1} |",
                outcome.iops, ms[0], ms[1], ms[2]
            );
            iops.push(outcome.iops);
            latency.push(outcome.latency_us);
        }
        assert!(iops.is_sorted() && latency.is_sorted(), "{iops:?} {latency:?}");
        let gain = iops[5] / iops[0];
        assert!((1.8..3.0).contains(&gain), "shortest positioning time first gains {gain:.2} at depth 32");
        let in_order = random_4k(&format!("{disk},queue=1"), READ, 32, 4000);
        assert!((in_order.iops / iops[0] - 1.0).abs() < 0.1, "no choice, no gain but the hidden overhead");
    }
}

#[test]
fn nobody_waits_for_ever() {
    let patient = random_4k("hdd-10k,age-max=3600s", READ, 32, 20_000);
    let fair = random_4k("hdd-10k,age-max=200ms", READ, 32, 20_000);
    assert!(fair.latency_us_max < patient.latency_us_max / 2.0);
    // Behind those that are as old: with all 32 over age, the oldest has 31 before it at the longest.
    assert!(fair.latency_us_max < 200e3 + 32.0 * 20e3, "{}", fair.latency_us_max);
}

#[test]
fn a_turn_passes_between_durable_writes_in_a_row() {
    for (disk, turns_a_second) in [("hdd-10k", 10_000.0 / 60.0), ("hdd-7k2", 120.0)] {
        let mut disk = model(disk);
        let outcome =
            run(&mut disk, 1, 2000, |i| Operation { access: DURABLE, offset: i as u64 * 4096, len: 4096 });
        assert!((outcome.iops / turns_a_second - 1.0).abs() < 0.02, "{} of {turns_a_second}", outcome.iops);
    }
}

#[test]
fn the_write_cache_answers_at_once_until_it_is_full() {
    let mut disk = model("hdd-10k");
    let mut random = Random(5);
    let mut op = |_| Operation { access: WRITE, offset: random.below(100_000_000) * 4096, len: 4096 };
    let first = run_from(&mut disk, Nanos(0), 1, 200, &mut op);
    assert!(first.latency_us < 300.0, "{}", first.latency_us);
    let then = run_from(&mut disk, first.ended, 8, 6000, &mut op);
    let reads = random_4k("hdd-10k", READ, 1, 2000).iops;
    println!(
        "sustained cached writes: {:.0} IOPS, {:.1} times the reads at depth 1",
        then.iops,
        then.iops / reads
    );
    assert!((1.8..3.5).contains(&(then.iops / reads)));
    let without = random_4k("hdd-10k,write-cache=no", WRITE, 1, 1000);
    assert!(without.iops < reads);
}

#[test]
fn a_flush_waits_until_the_cache_is_on_the_medium() {
    let mut disk = model("hdd-10k");
    let mut random = Random(5);
    let mut write = |_| Operation { access: WRITE, offset: random.below(100_000_000) * 4096, len: 4096 };
    let filled = run_from(&mut disk, Nanos(0), 1, 100, &mut write).ended;
    let mut flush = |_| Operation { access: Access::Flush, offset: 0, len: 0 };
    let full = run_from(&mut disk, filled, 1, 1, &mut flush).ended.since(filled);
    let again = Nanos(filled.0 + full);
    let empty = run_from(&mut disk, again, 1, 1, &mut flush).ended.since(again);
    assert!(full > 200_000_000 && empty < 1_000_000, "{full} {empty}");
}

#[test]
fn reading_ahead_makes_a_slow_reader_a_sequential_one() {
    let slow = sequential("hdd-10k,read-ahead=0", READ, 1, 0, GB / 8).mb_s;
    let fast = sequential("hdd-10k", READ, 1, 0, GB / 8).mb_s;
    assert!(fast > slow * 3.0, "each command loses a turn: {slow} {fast}");
    // A reader that thinks between its reads finds them in the buffer, even if the head has stopped meanwhile.
    let (mut disk, mut now, mut hits) = (model("hdd-10k"), Nanos(0), 0);
    for i in 0..1000 {
        let read = Operation { access: READ, offset: i * 65536, len: 65536 };
        let ended = run_from(&mut disk, now, 1, 1, &mut |_| read).ended;
        hits += usize::from(ended.since(now) < 1_000_000);
        now = Nanos(ended.0 + 20_000_000);
    }
    assert!(hits > 900, "{hits}");
}

#[test]
fn a_part_of_a_larger_disk_is_short_stroked() {
    let whole = random_4k("hdd-10k", READ, 1, 2000);
    let settings = "hdd-10k,size=600G".parse().unwrap();
    let mut part = forebay_emulate::Model::new(&settings, 8 << 30).unwrap();
    let mut random = Random(9);
    let reads = run(&mut part, 1, 2000, |_| Operation {
        access: READ,
        offset: random.below(8 << 18) * 4096,
        len: 4096,
    });
    assert!(reads.iops > whole.iops * 1.4, "{} {}", reads.iops, whole.iops);
    let mut all = forebay_emulate::Model::new(&"hdd-10k".parse().unwrap(), 8 << 30).unwrap();
    let reads = run(&mut all, 1, 2000, |_| Operation {
        access: READ,
        offset: random.below(8 << 18) * 4096,
        len: 4096,
    });
    assert!(
        (reads.iops / whole.iops - 1.0).abs() < 0.05,
        "a small disk is a disk: {} {}",
        reads.iops,
        whole.iops
    );
    assert!(forebay_emulate::Model::new(&"hdd-10k,size=1G".parse().unwrap(), 8 << 30).is_err());
}
