//! What is written is read back, on every sort of device, aligned as it likes or not.

use forebay_block::{Buf, DeviceOp, ErrorKind};
use forebay_device::{Device, DeviceKind, Survives};

use crate::harness::{
    Driver, LoopDevice, Random, disk_directory, file, file_content, memory_directory, skip,
};

pub const SIZE: u64 = 8 << 20;

/// Random writes, some of many small buffers at odd places in memory, and reads, held to a model.
pub fn exercise(driver: &Driver, device: &mut dyn Device, unit: u64) -> Vec<u8> {
    let mut random = Random(0x5eed_0001);
    let mut model = vec![0u8; SIZE as usize];
    for round in 0..20 {
        let mut ops = Vec::new();
        // One operation for each part of the device, so that those under way together do not overlap.
        for part in 0..16 {
            let part_bytes = SIZE / 16;
            let offset = part * part_bytes + random.below(part_bytes / 2 / unit) * unit;
            let len = ((1 + random.below(64)) * unit).min(part_bytes / 2) as usize;
            if random.below(3) == 0 {
                ops.push(DeviceOp::Read { offset, len });
                continue;
            }
            let data = random.bytes(len);
            model[offset as usize..offset as usize + len].copy_from_slice(&data);
            let bufs = match random.below(3) {
                0 => vec![Buf::copy_of(&data)],
                // A slice at a multiple of 512 of a larger buffer.
                1 => {
                    let lead = 512 * (1 + random.below(7)) as usize;
                    let whole = [vec![0xee; lead], data].concat();
                    vec![Buf::copy_of(&whole).slice(lead, len)]
                }
                _ => data.chunks(unit as usize).map(Buf::copy_of).collect(),
            };
            ops.push(DeviceOp::Write { offset, bufs, durable: round % 2 == 0 });
        }
        let asked = ops.clone();
        for (op, result) in asked.iter().zip(driver.run_all(device, ops)) {
            match (op, result.unwrap()) {
                (DeviceOp::Read { offset, len }, Some(data)) => {
                    assert_eq!(data[..], model[*offset as usize..*offset as usize + len]);
                }
                (DeviceOp::Write { .. }, None) => {}
                (op, got) => panic!("{op:?} answered with {got:?}"),
            }
        }
    }
    driver.run(device, DeviceOp::Flush).unwrap();
    assert_eq!(driver.read(device, 0, SIZE as usize)[..], model[..]);
    model
}

pub fn past_the_end_is_refused(driver: &Driver, device: &mut dyn Device) {
    for op in [
        DeviceOp::Read { offset: SIZE, len: 512 },
        DeviceOp::Read { offset: u64::MAX - 511, len: 512 },
        DeviceOp::Write { offset: SIZE - 512, bufs: vec![Buf::zeroed(1024)], durable: true },
        DeviceOp::Zero { offset: 0, len: SIZE + 512, unmap: true },
    ] {
        assert_eq!(driver.run(device, op.clone()).unwrap_err().kind, ErrorKind::Invalid, "{op:?}");
    }
}

#[test]
fn file_on_disk() {
    let directory = disk_directory();
    let path = file(&directory, "disk", SIZE);
    let driver = Driver::new();
    let mut device = driver.open_path(&path);
    let info = device.info().clone();
    println!("{info:?}");
    assert_eq!((info.kind, info.size_bytes), (DeviceKind::File, SIZE));
    assert!(info.physical_block >= info.logical_block && info.logical_block >= 512);
    if !info.direct {
        skip("the target directory's file system refuses direct I/O");
    }
    let model = exercise(&driver, &mut *device, u64::from(info.logical_block));
    past_the_end_is_refused(&driver, &mut *device);
    drop(device);
    assert_eq!(file_content(&path), model);
}

#[test]
fn file_on_tmpfs() {
    let Some(directory) = memory_directory() else {
        return;
    };
    let path = file(&directory, "memory", SIZE);
    let driver = Driver::new();
    let mut device = driver.open_path(&path);
    assert!(!device.info().direct);
    assert_eq!(device.info().survives, Survives::ProcessDeath);
    let model = exercise(&driver, &mut *device, 512);
    past_the_end_is_refused(&driver, &mut *device);
    assert_eq!(file_content(&path), model);
}

#[test]
fn mapped_tmpfs() {
    let Some(directory) = memory_directory() else {
        return;
    };
    let path = file(&directory, "memory", SIZE);
    let driver = Driver::new();
    let mut device = driver.open(&format!("pmem:{}", path.display()));
    assert_eq!((device.info().kind, device.info().survives), (DeviceKind::Mapped, Survives::ProcessDeath));
    let model = exercise(&driver, &mut *device, 512);
    past_the_end_is_refused(&driver, &mut *device);
    assert_eq!(file_content(&path), model);
}

#[test]
fn mapped_file_on_disk_says_that_it_is_not_dax() {
    let directory = disk_directory();
    let path = file(&directory, "disk", SIZE);
    let driver = Driver::new();
    let mut device = driver.open(&format!("pmem:{}", path.display()));
    let model = exercise(&driver, &mut *device, 512);
    let durability = device.info().durability;
    assert!(durability.contains("msync") || durability.contains("(DAX"), "{durability}");
    drop(device);
    assert_eq!(file_content(&path), model);
}

#[test]
fn loop_devices_with_both_sector_sizes() {
    let directory = disk_directory();
    for sector_bytes in [512, 4096] {
        let path = file(&directory, &format!("loop{sector_bytes}"), SIZE);
        let Some(block) = LoopDevice::new(&path, sector_bytes) else {
            return;
        };
        let driver = Driver::new();
        let mut device = driver.open_path(&block.path);
        let info = device.info();
        assert_eq!((info.kind, info.size_bytes), (DeviceKind::Block, SIZE));
        assert_eq!((info.logical_block, info.direct), (sector_bytes, true));
        exercise(&driver, &mut *device, u64::from(sector_bytes));
        past_the_end_is_refused(&driver, &mut *device);
        if sector_bytes == 4096 {
            // A narrow read is widened, a narrow write is refused: it would need a read first.
            let wide = driver.read(&mut *device, 4096, 4096);
            assert_eq!(driver.read(&mut *device, 4096 + 512, 1024)[..], wide[512..1536]);
            let op = DeviceOp::Write { offset: 512, bufs: vec![Buf::zeroed(512)], durable: false };
            assert_eq!(driver.run(&mut *device, op).unwrap_err().kind, ErrorKind::Invalid);
        }
    }
}

#[test]
fn more_buffers_than_one_system_call_takes() {
    let directory = disk_directory();
    let driver = Driver::new();
    let mut device = driver.open_path(&file(&directory, "many", SIZE));
    let unit = device.info().logical_block as usize;
    let data = Random(7).bytes(1500 * unit);
    let bufs = data.chunks(unit).map(Buf::copy_of).collect();
    driver.run(&mut *device, DeviceOp::Write { offset: 0, bufs, durable: true }).unwrap();
    assert_eq!(driver.read(&mut *device, 0, data.len())[..], data[..]);
}

#[test]
fn more_operations_than_the_ring_takes() {
    let directory = disk_directory();
    let driver = Driver::new();
    let mut device = driver.open_path(&file(&directory, "deep", SIZE));
    let write = |i: u64| DeviceOp::Write {
        offset: i * 4096,
        bufs: vec![Buf::copy_of(&[i as u8; 4096])],
        durable: false,
    };
    let results = driver.run_all(&mut *device, (0..1000).map(write).collect());
    assert!(results.iter().all(Result::is_ok));
    for i in 0..1000 {
        assert_eq!(driver.read(&mut *device, i * 4096, 4096)[..], [i as u8; 4096]);
    }
}

#[test]
fn a_file_whose_end_is_out_of_reach_of_direct_io_is_buffered() {
    let directory = disk_directory();
    let path = file(&directory, "odd", 1 << 20);
    let Some(block) = LoopDevice::new(&path, 4096) else {
        return;
    };
    let made = std::process::Command::new("mkfs.ext4").arg("-q").arg(&block.path).status();
    assert!(made.is_ok_and(|s| s.success()));
    let mount = tempfile::tempdir().unwrap();
    let mounted = std::process::Command::new("mount").arg(&block.path).arg(mount.path()).status();
    if !mounted.is_ok_and(|s| s.success()) {
        return skip("cannot mount");
    }
    let whole = file(&mount, "whole", 128 << 10);
    let odd = file(&mount, "odd", (128 << 10) + 512);
    let driver = Driver::new();
    assert!(driver.open_path(&whole).info().direct);
    {
        let mut device = driver.open_path(&odd);
        assert!(!device.info().direct);
        driver.write(&mut *device, 128 << 10, &[9; 512], true);
        assert_eq!(driver.read(&mut *device, 128 << 10, 512)[..], [9; 512]);
    }
    drop(driver);
    let mut unmounted = false;
    for _ in 0..100 {
        unmounted =
            std::process::Command::new("umount").arg(mount.path()).status().is_ok_and(|s| s.success());
        if unmounted {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(unmounted);
}

#[test]
fn a_file_grows_and_shrinks() {
    let directory = disk_directory();
    let driver = Driver::new();
    for scheme in ["", "pmem:"] {
        let path = file(&directory, "size", SIZE);
        let mut device = driver.open(&format!("{scheme}{}", path.display()));
        driver.write(&mut *device, SIZE - 4096, &[1; 4096], true);
        device.resize(2 * SIZE).unwrap();
        assert_eq!(device.info().size_bytes, 2 * SIZE);
        driver.write(&mut *device, 2 * SIZE - 4096, &[2; 4096], true);
        assert_eq!(driver.read(&mut *device, SIZE - 4096, 8192)[..], [[1; 4096], [0; 4096]].concat());
        device.resize(SIZE).unwrap();
        let op = DeviceOp::Read { offset: SIZE, len: 512 };
        assert_eq!(driver.run(&mut *device, op).unwrap_err().kind, ErrorKind::Invalid);
    }
}
