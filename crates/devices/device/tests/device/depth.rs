//! What a device takes at a time: of so many operations none waits in it behind another. In front of it somebody knows which is urgent.

use forebay_block::{Buf, Class, DeviceOp, Nanos};
use forebay_device::Device;

use crate::harness::{Driver, LoopDevice, disk_directory, file, memory_directory};

const SIZE: u64 = 64 << 20;

fn write(block: u64) -> DeviceOp {
    DeviceOp::Write { offset: block * 4096, bufs: vec![Buf::zeroed(4096)], durable: false }
}

/// Fills the device to its depth, and then by one more; says how many wait in it then.
fn waits_behind_full(device: &mut dyn Device, time: Nanos) -> usize {
    let depth = device.info().depth as u64;
    assert_eq!(device.waiting(), 0);
    for tag in 0..depth {
        device.submit(tag, write(tag), Class::Foreground, time);
        assert_eq!(device.waiting(), 0, "operation {tag} of {depth}");
    }
    device.submit(depth, write(depth), Class::Foreground, time);
    device.waiting()
}

#[test]
fn nothing_waits_in_a_file_or_a_block_device() {
    let directory = disk_directory();
    let path = file(&directory, "backing", SIZE);
    let driver = Driver::new();
    let mut device = driver.open_path(&path);
    assert_eq!((device.info().depth, waits_behind_full(&mut *device, Nanos(0))), (128, 1));
    drop(device);
    let Some(block) = LoopDevice::new(&path, 512) else { return };
    let queue = format!("/sys/block/{}/queue/nr_requests", block.path.file_name().unwrap().display());
    let requests = std::fs::read_to_string(queue).unwrap().trim().parse::<usize>().unwrap();
    let mut device = driver.open_path(&block.path);
    assert_eq!(device.info().depth, requests.min(128));
    let more = waits_behind_full(&mut *device, Nanos(0));
    assert_eq!(more, usize::from(requests >= 128), "the kernel's own queue may be shorter");
}

#[test]
fn nothing_waits_in_memory() {
    let Some(directory) = memory_directory() else { return };
    let path = file(&directory, "backing", SIZE);
    let driver = Driver::new();
    let mut device = driver.open(&format!("pmem:{}", path.display()));
    assert_eq!((device.info().depth, waits_behind_full(&mut *device, Nanos(0))), (32, 0));
}

/// Disks and remote stores take so many and no more; for SSDs and memory the number is that of the interface.
#[test]
fn nothing_waits_in_front_of_an_emulated_device() {
    let directory = disk_directory();
    let driver = Driver::new();
    for (kind, depth, more) in [
        ("hdd-10k", 32, 1),
        ("hdd-7k2,queue=4", 4, 1),
        ("ssd-sata", 32, 0),
        // The file takes no more than that.
        ("ssd-nvme", 128, 1),
        ("remote", 64, 1),
        ("remote,window=1", 1, 1),
        ("remote,window=4096", 128, 1),
        ("nvdram", 32, 0),
    ] {
        let path = file(&directory, &kind.replace([',', '='], "-"), SIZE);
        let (kind, parameters) =
            kind.split_once(',').map_or((kind, String::new()), |(k, p)| (k, format!(",{p}")));
        let mut device = driver.open(&format!("emulate:{kind}:file={}{parameters}", path.display()));
        let found = (device.info().depth, waits_behind_full(&mut *device, driver.clock.now()));
        assert_eq!(found, (depth, more), "{kind}{parameters}");
    }
}
