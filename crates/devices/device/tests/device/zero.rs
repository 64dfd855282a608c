//! Zeroing, and where the holes are.

use forebay_block::{Allocation, DeviceOp};
use forebay_device::Device;

use crate::harness::{Driver, LoopDevice, disk_directory, file, memory_directory};

const SIZE: u64 = 4 << 20;

fn zero_reads_as_zero(driver: &Driver, device: &mut dyn Device, unit: u64) {
    for unmap in [false, true] {
        driver.write(device, 0, &vec![0xaa; SIZE as usize], true);
        // From the middle of a file-system block to the middle of another.
        let (offset, len) = (unit, (2 << 20) + unit);
        driver.run(device, DeviceOp::Zero { offset, len, unmap }).unwrap();
        driver.run(device, DeviceOp::Flush).unwrap();
        let all = driver.read(device, 0, SIZE as usize);
        for (at, byte) in all.iter().enumerate() {
            let inside = (offset..offset + len).contains(&(at as u64));
            assert_eq!(*byte, if inside { 0 } else { 0xaa }, "byte {at}, unmap {unmap}");
        }
    }
}

#[test]
fn on_disk_tmpfs_and_mapped() {
    let driver = Driver::new();
    let disk = disk_directory();
    let mut device = driver.open_path(&file(&disk, "disk", SIZE));
    let unit = u64::from(device.info().logical_block);
    zero_reads_as_zero(&driver, &mut *device, unit);
    let Some(memory) = memory_directory() else { return };
    let mut device = driver.open_path(&file(&memory, "memory", SIZE));
    zero_reads_as_zero(&driver, &mut *device, 512);
    let path = file(&memory, "mapped", SIZE);
    let mut device = driver.open(&format!("pmem:{}", path.display()));
    zero_reads_as_zero(&driver, &mut *device, 512);
}

#[test]
fn on_a_loop_device() {
    let directory = disk_directory();
    let path = file(&directory, "loop", SIZE);
    let Some(block) = LoopDevice::new(&path, 512) else {
        return;
    };
    let driver = Driver::new();
    zero_reads_as_zero(&driver, &mut *driver.open_path(&block.path), 512);
}

#[test]
fn holes_are_reported() {
    let directory = disk_directory();
    let driver = Driver::new();
    let mut device = driver.open_path(&file(&directory, "sparse", SIZE));
    driver.write(&mut *device, 1 << 20, &vec![1; 64 << 10], true);
    driver.write(&mut *device, 2 << 20, &vec![1; 64 << 10], true);
    let mut at = 0;
    let mut data_bytes = 0;
    let survey = device.survey().unwrap();
    while at < SIZE {
        let extent = survey.at(at, SIZE);
        assert!(extent.len > 0);
        let holds = |place: u64| (at..at + extent.len).contains(&place);
        if extent.allocation == Allocation::Data {
            data_bytes += extent.len;
        } else {
            assert!(!holds(1 << 20) && !holds((2 << 20) + (64 << 10) - 1), "data at {at} is called a hole");
        }
        at += extent.len;
    }
    assert_eq!(at, SIZE);
    assert!(data_bytes < SIZE / 2, "holes are found");
    assert_eq!(survey.at(SIZE - 512, SIZE).len, 512);
    assert_eq!(survey.at(0, 4096).len, 4096, "no further than was asked for");
}
