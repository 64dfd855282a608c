//! Emulated devices keep their data and take the time of what they emulate: virtual time, that no other work of the machine is in.

use std::path::Path;
use std::time::{Duration, Instant};

use forebay_block::{Buf, Class, DeviceOp, Nanos};
use forebay_device::{Access, Device, DeviceKind, DeviceSpec, EmulatedDevice, Survives};

use crate::harness::{Driver, Random, disk_directory, file, file_content, memory_directory};

const SIZE: u64 = 64 << 20;

fn spec(kind: &str, path: &Path, more: &str) -> String {
    format!("emulate:{kind}:file={}{more}", path.display())
}

/// An emulated device in virtual time, so that no other work of the machine is in what it takes.
struct Timed {
    device: EmulatedDevice,
    now: Nanos,
}

impl Timed {
    fn open(driver: &Driver, spec: &str) -> Self {
        let Ok(DeviceSpec::Emulate(spec)) = spec.parse() else { panic!("{spec} is not an emulated device") };
        let device = EmulatedDevice::open(&spec, &driver.ring, Access::ReadWrite).unwrap();
        Self { device, now: Nanos(0) }
    }

    /// Nanoseconds until all of these have ended that were submitted at the same time.
    fn take(&mut self, driver: &Driver, ops: Vec<DeviceOp>) -> u64 {
        let (begun, count, mut done) = (self.now, ops.len(), Vec::new());
        for (tag, op) in (0..).zip(ops) {
            self.device.submit(tag, op, Class::Foreground, begun);
        }
        loop {
            self.device.poll(self.now, &mut done);
            if done.len() == count {
                assert!(done.iter().all(|(_, result)| result.is_ok()));
                return self.now.since(begun);
            }
            // The file takes real time, in which no other passes.
            driver.ring.submit_and_wait(Some(Duration::from_millis(1)), || true).unwrap();
            if let Some(due) = self.device.deadline() {
                self.now = Nanos(self.now.0.max(due.0) + 10_000);
            }
        }
    }

    /// How long it takes to read so many blocks of 4 KiB one after the other.
    fn reads(&mut self, driver: &Driver, mut place: impl FnMut(u64) -> u64) -> u64 {
        (0..60).map(|i| self.take(driver, vec![DeviceOp::Read { offset: place(i) * 4096, len: 4096 }])).sum()
    }
}

#[test]
fn data_is_in_the_file_and_nothing_else() {
    let directory = disk_directory();
    for kind in ["hdd-10k", "hdd-7k2", "ssd-sata", "ssd-nvme", "remote", "nvdram"] {
        for more in ["", ",sync=no"] {
            let path = file(&directory, &format!("{kind}-{}", more.len()), SIZE);
            let driver = Driver::new();
            let mut device = driver.open(&spec(kind, &path, more));
            let mut random = Random(17);
            let (data, other) = (random.bytes(8192), random.bytes(4096));
            driver.write(&mut *device, 4096, &data, true);
            driver.write(&mut *device, SIZE - 4096, &other, false);
            assert!(driver.run(&mut *device, DeviceOp::Flush).unwrap().is_none());
            assert_eq!(driver.read(&mut *device, 4096, 8192)[..], data);
            let zero = DeviceOp::Zero { offset: 4096, len: 4096, unmap: true };
            assert!(driver.run(&mut *device, zero).unwrap().is_none());
            assert!(driver.run(&mut *device, DeviceOp::Read { offset: SIZE, len: 512 }).is_err());
            assert_eq!(device.deadline(), None, "nothing is under way");
            drop(device);
            let content = file_content(&path);
            assert!(content[4096..8192].iter().all(|b| *b == 0), "{kind}{more}");
            assert!(content[8192..12288] == data[4096..], "{kind}{more}");
            assert!(content[SIZE as usize - 4096..] == other[..], "{kind}{more}");
        }
    }
}

#[test]
fn a_disk_is_slow_where_its_head_has_to_go_far() {
    let directory = disk_directory();
    let path = file(&directory, "disk", SIZE);
    let driver = Driver::new();
    let mut disk = Timed::open(&driver, &spec("hdd-7k2", &path, ""));
    let mut random = Random(3);
    let far = disk.reads(&driver, |_| random.below(SIZE / 4096));
    let near = disk.reads(&driver, |i| i);
    assert!(far > near * 4, "random {far} ns, sequential {near} ns");
    drop(disk);
    let mut slow = Timed::open(&driver, &spec("hdd-7k2", &path, ",rpm=600"));
    let mut random = Random(3);
    let slower = slow.reads(&driver, |_| random.below(SIZE / 4096));
    assert!(slower > far * 2, "600 rpm {slower} ns, 7200 rpm {far} ns");
}

#[test]
fn operations_at_the_same_time_share_the_device_instead_of_a_delay() {
    let directory = disk_directory();
    let path = file(&directory, "store", SIZE);
    let driver = Driver::new();
    let taken = |more: &str| {
        let spec = spec("remote", &path, &format!(",latency=20ms,latency-p99=20ms{more}"));
        let ops = (0..16).map(|i| DeviceOp::Read { offset: i * 4096, len: 4096 }).collect();
        Timed::open(&driver, &spec).take(&driver, ops)
    };
    let (wide, narrow) = (taken(",window=16"), taken(",window=1"));
    assert!(narrow > wide * 5, "one at a time {narrow} ns, sixteen {wide} ns");
}

#[test]
fn a_flush_costs_what_the_write_cache_holds() {
    let directory = disk_directory();
    let path = file(&directory, "disk", SIZE);
    let driver = Driver::new();
    let mut disk = Timed::open(&driver, &spec("hdd-7k2", &path, ",sync=no"));
    let mut random = Random(3);
    let writes = (0..100).map(|_| {
        let offset = random.below(SIZE / 4096) * 4096;
        DeviceOp::Write { offset, bufs: vec![Buf::zeroed(4096)], durable: false }
    });
    disk.take(&driver, writes.collect());
    let mut flush = || disk.take(&driver, vec![DeviceOp::Flush]);
    let (full, empty) = (flush(), flush());
    assert!(full > empty * 10, "{full} ns, {empty} ns");
}

/// In real time an end never comes before the model's.
#[test]
fn a_device_is_not_faster_than_its_model() {
    let directory = disk_directory();
    let path = file(&directory, "store", SIZE);
    let driver = Driver::new();
    let mut device = driver.open(&spec("remote", &path, ",latency=20ms,latency-p99=20ms"));
    let begun = Instant::now();
    driver.read(&mut *device, 0, 4096);
    assert!(begun.elapsed() >= Duration::from_millis(20), "{:?}", begun.elapsed());
}

#[test]
fn what_is_known_of_the_device_is_of_both() {
    let directory = disk_directory();
    let path = file(&directory, "a", SIZE);
    let driver = Driver::new();
    let info = |kind: &str, more: &str| driver.open(&spec(kind, &path, more)).info().clone();
    let disk = info("hdd-10k", ",sync=no");
    assert_eq!((disk.kind, disk.size_bytes, disk.survives), (DeviceKind::File, SIZE, Survives::ProcessDeath));
    assert!(disk.volatile_cache && disk.durability.contains("sync=no"));
    assert!(
        !info("ssd-nvme", ",sync=no").volatile_cache && info("ssd-nvme", ",sync=no,plp=no").volatile_cache
    );
    let plain = driver.open_path(&path).info().clone();
    assert_eq!(
        info("ssd-nvme", "").volatile_cache,
        plain.volatile_cache,
        "a flush that the file needs is not lost"
    );
    assert_eq!(
        (info("nvdram", "").survives, info("nvdram", "").durability),
        (plain.survives, plain.durability)
    );
    let Some(memory) = memory_directory() else { return };
    let path = file(&memory, "a", SIZE);
    let mapped = driver.open(&spec("nvdram", &path, "")).info().clone();
    assert_eq!((mapped.kind, mapped.survives), (DeviceKind::Mapped, Survives::ProcessDeath));
}

#[test]
fn a_file_can_grow_and_a_part_of_a_disk_cannot_outgrow_it() {
    let directory = disk_directory();
    let path = file(&directory, "disk", SIZE);
    let driver = Driver::new();
    let mut device = driver.open(&spec("hdd-10k", &path, ",size=96M"));
    device.resize(SIZE + (16 << 20)).unwrap();
    driver.write(&mut *device, SIZE, &[7; 4096], true);
    assert!(device.resize(SIZE * 2).is_err());
    assert_eq!(device.info().size_bytes, SIZE + (16 << 20));
}

/// In virtual time: the file answers at once, with an error, and the model's time has to come nevertheless.
#[test]
fn an_end_waits_for_the_models_time() {
    let directory = disk_directory();
    let path = file(&directory, "disk", SIZE);
    let driver = Driver::new();
    let Ok(DeviceSpec::Emulate(spec)) = spec("remote", &path, ",latency=5ms,latency-p99=5ms").parse() else {
        panic!("not an emulated device");
    };
    let mut device = EmulatedDevice::open(&spec, &driver.ring, Access::ReadWrite).unwrap();
    let mut done = Vec::new();
    device.submit(1, DeviceOp::Read { offset: SIZE, len: 512 }, Class::Foreground, Nanos(0));
    device.poll(Nanos(0), &mut done);
    let due = device.deadline().unwrap();
    assert!(due < Nanos(5_000_000) && due > Nanos(4_900_000), "woken a little early: {due:?}");
    device.poll(Nanos(4_999_999), &mut done);
    assert!(done.is_empty() && device.lateness().operations() == 0);
    device.poll(Nanos(5_000_500), &mut done);
    assert_eq!((done.len(), device.deadline()), (1, None));
    let lateness = device.lateness();
    assert_eq!((lateness.operations(), lateness.emulated_ns(), lateness.late_ns()), (1, 5_000_000, 500));
}
