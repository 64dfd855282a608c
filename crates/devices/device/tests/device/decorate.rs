//! Decorators do what they say, and nothing else.

use std::time::Instant;

use forebay_block::{Buf, Class, DeviceOp, ErrorKind, Nanos};
use forebay_device::Device;
use forebay_device::decorate::{
    Decoration, ErrorInjected, InjectHandle, Kinds, Measured, OpKind, Recorders, Role, Rule,
};
use forebay_record::{Bases, Cause, Crash, Fate, Replay};
use tempfile::TempDir;

use crate::harness::{Driver, Random, disk_directory, file, file_content};

fn base(driver: &Driver, directory: &TempDir) -> Box<dyn Device> {
    driver.open_path(&file(directory, "base", 1 << 20))
}

fn decorated(driver: &Driver, directory: &TempDir, text: &str) -> Box<dyn Device> {
    let decoration = text.parse::<Decoration>().unwrap();
    decoration.around(base(driver, directory), Role::Cache, &Recorders::default())
}

fn write(i: u64) -> DeviceOp {
    DeviceOp::Write { offset: i * 4096, bufs: vec![Buf::copy_of(&[i as u8; 4096])], durable: true }
}

#[test]
fn delay_adds_to_what_it_names_and_keeps_the_data() {
    let directory = disk_directory();
    let driver = Driver::new();
    let mut device = decorated(&driver, &directory, "delay:write:fixed=30ms:per-mib=256ms");
    let begun = Instant::now();
    let results = driver.run_all(&mut *device, (0..8).map(write).collect());
    assert!(results.iter().all(Result::is_ok));
    assert!(begun.elapsed().as_millis() >= 31, "30 ms and 1 ms for 4 KiB, all eight at the same time");
    assert_eq!(driver.read(&mut *device, 4096, 4096)[..], [1; 4096]);
    assert_eq!(device.deadline(), None);
}

#[test]
fn throttle_spreads_operations_and_bytes() {
    let directory = disk_directory();
    let driver = Driver::new();
    for text in ["throttle:iops=200", "throttle:bytes=800K"] {
        let mut device = decorated(&driver, &directory, text);
        let begun = Instant::now();
        driver.run_all(&mut *device, (0..20).map(write).collect());
        // Two operations pass on credit; the other 18 wait for 5 ms each.
        assert!(begun.elapsed().as_millis() >= 80, "{text}: {:?}", begun.elapsed());
        assert_eq!(device.deadline(), None);
    }
}

#[test]
fn injected_errors_hit_what_the_rule_names() {
    let directory = disk_directory();
    let driver = Driver::new();
    let mut device = decorated(&driver, &directory, "inject:write:enospc:every=3:after=1:times=2:from=4K");
    // The first write lies before the range, the second is spared; then each third fails, twice.
    let results = driver.run_all(&mut *device, (0..14).map(write).collect());
    let failed: Vec<usize> = (0..14).filter(|i| results[*i].is_err()).collect();
    assert_eq!(failed, [4, 7]);
    assert_eq!(results[4].as_ref().unwrap_err().kind, ErrorKind::NoSpace);
    assert_eq!(
        driver.read(&mut *device, 4 * 4096, 4096)[..],
        [0; 4096],
        "a failed write was not carried out"
    );
    assert!(driver.run(&mut *device, DeviceOp::Flush).is_ok());
}

#[test]
fn rules_are_switched_while_running_and_done_is_done() {
    let directory = disk_directory();
    let driver = Driver::new();
    let handle = InjectHandle::default();
    let mut device = ErrorInjected::new(base(&driver, &directory), handle.clone());
    assert!(driver.run(&mut device, write(1)).is_ok());
    handle.add(Rule { done: true, ..Rule::default() });
    assert!(driver.run(&mut device, write(2)).is_err());
    assert!(driver.run(&mut device, DeviceOp::Flush).is_err());
    assert_eq!(handle.fired(), 2);
    handle.set([]);
    assert_eq!(driver.read(&mut device, 2 * 4096, 4096)[..], [2; 4096]);
    handle.set([Rule { probability: 0.25, kinds: Kinds::only(OpKind::Read), ..Rule::default() }]);
    let reads = |i: u64| DeviceOp::Read { offset: i % 16 * 4096, len: 512 };
    let first: Vec<bool> =
        driver.run_all(&mut device, (0..400).map(reads).collect()).iter().map(|r| r.is_err()).collect();
    let hits = first.iter().filter(|hit| **hit).count();
    assert!((50..150).contains(&hits), "{hits} of 400 at a quarter");
    handle.set([Rule { probability: 0.25, kinds: Kinds::only(OpKind::Read), ..Rule::default() }]);
    let second = driver.run_all(&mut device, (0..400).map(reads).collect());
    assert!(first.iter().zip(&second).all(|(a, b)| *a == b.is_err()), "the seed repeats the sequence");
}

#[test]
fn statistics_count_by_kind() {
    let directory = disk_directory();
    let driver = Driver::new();
    let (mut device, statistics) = Measured::new(base(&driver, &directory));
    driver.run_all(&mut device, (0..10).map(write).collect());
    driver.read(&mut device, 0, 8192);
    let past = DeviceOp::Read { offset: 1 << 20, len: 512 };
    assert!(driver.run(&mut device, past).is_err());
    let writes = statistics.figures(OpKind::DurableWrite);
    assert_eq!((writes.operations, writes.errors, writes.bytes), (10, 0, 40960));
    assert!(writes.latency_ns_quantile(0.5) <= writes.latency_ns_quantile(0.99));
    assert!(writes.latency_ns_quantile(1.0) > 0);
    assert_eq!(writes.latency_ns_histogram().map(|(_, count)| count).sum::<u64>(), 10);
    let reads = statistics.figures(OpKind::Read);
    assert_eq!((reads.operations, reads.errors, reads.bytes), (2, 1, 8192));
    assert_eq!(statistics.figures(OpKind::Write).operations, 0);
}

/// In virtual time: nothing here depends on the machine's speed.
#[test]
fn delays_follow_the_clock_that_is_given() {
    let directory = disk_directory();
    let driver = Driver::new();
    let mut device = decorated(&driver, &directory, "delay:any:fixed=5ms");
    let mut done = Vec::new();
    device.submit(1, DeviceOp::Read { offset: 1 << 20, len: 512 }, Class::Foreground, Nanos(0));
    device.poll(Nanos(0), &mut done);
    assert_eq!((done.len(), device.deadline()), (0, Some(Nanos(5_000_000))));
    device.poll(Nanos(4_999_999), &mut done);
    assert_eq!(done.len(), 0);
    device.poll(Nanos(5_000_000), &mut done);
    assert_eq!((done.len(), device.deadline()), (1, None));
}

#[test]
fn a_recorded_device_can_be_rebuilt_from_its_record() {
    let directory = disk_directory();
    let driver = Driver::new();
    let (record, image) = (directory.path().join("record"), directory.path().join("image"));
    let path = file(&directory, "device", 1 << 20);
    file(&directory, "blank", 1 << 20);
    let decoration: Decoration = format!("record:file={}", record.display()).parse().unwrap();
    let recorders = Recorders::start([&decoration]).unwrap();
    assert!(Recorders::start([&decoration]).is_err(), "a record was overwritten");
    let mut device = decoration.around(driver.open_path(&path), Role::Cache, &recorders);
    let mut random = Random(7);
    let ops = (0..200u64).map(|i| {
        let offset = random.below(240) * 4096;
        match random.below(8) {
            0 => DeviceOp::Flush,
            1 => DeviceOp::Zero { offset, len: 8192, unmap: i % 2 == 0 },
            2 => DeviceOp::Read { offset, len: 4096 },
            _ => {
                let bufs = vec![Buf::copy_of(&random.bytes(4096)), Buf::copy_of(&[i as u8; 4096])];
                DeviceOp::Write { offset, bufs, durable: i % 3 == 0 }
            }
        }
    });
    for op in ops {
        driver.run(&mut *device, op).unwrap();
    }
    drop(device);
    let blank = directory.path().join("blank");
    let bases =
        Bases { cache: Some(blank.clone()), backing: blank.clone(), label: blank.clone(), journal: blank };
    let mut replay = Replay::open(&record, &bases).unwrap();
    replay.go_to(u64::MAX).unwrap();
    assert!(replay.instant() > 300 && recorders.failures().is_empty());
    let survivor = |fate| replay.disk(Role::Cache).survivor(Crash { cause: Cause::PowerCut, fate, seed: 1 });
    survivor(Fate::Kept).write_to(&image).unwrap();
    assert!(file_content(&image) == file_content(&path), "the image is not what the device holds");
    survivor(Fate::Dropped).write_to(&image).unwrap();
    assert!(file_content(&image) != file_content(&path), "everything was flushed");
}
