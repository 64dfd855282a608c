//! One owner (P6).

use std::process::Command;

use forebay_device::{Access, Device, DeviceSpec, OpenError, Ring, open};

use crate::harness::{Driver, LoopDevice, disk_directory, file, skip};

fn refusal(ring: &Ring, spec: &str) -> OpenError {
    match open(&spec.parse::<DeviceSpec>().unwrap(), ring, Access::ReadWrite) {
        Ok(_) => panic!("{spec} was opened"),
        Err(e) => e,
    }
}

#[test]
fn a_second_opening_is_refused_until_the_first_is_closed() {
    let directory = disk_directory();
    let path = file(&directory, "one", 1 << 20);
    let path = path.to_str().unwrap();
    let driver = Driver::new();
    for (first, second) in
        [(path.to_owned(), format!("pmem:{path}")), (format!("pmem:{path}"), path.to_owned())]
    {
        let mut device = driver.open(&first);
        driver.write(&mut *device, 0, &[1; 4096], true);
        let told = refusal(&driver.ring, &second).to_string();
        assert!(told.contains("in use by this process itself"), "{told}");
        drop(device);
        drop(driver.open(&second));
    }
}

#[test]
fn another_process_is_named_and_its_death_awaited() {
    let directory = disk_directory();
    let path = file(&directory, "one", 1 << 20);
    let held = Command::new("flock").arg("--no-fork").arg(&path).args(["sleep", "600"]).spawn();
    let Ok(mut holder) = held else {
        return skip("no flock(1)");
    };
    let driver = Driver::new();
    let spec = path.to_str().unwrap();
    let told = loop {
        // Until the other process has come to take its lock.
        match open(&spec.parse::<DeviceSpec>().unwrap(), &driver.ring, Access::ReadWrite) {
            Ok(device) => drop(device),
            Err(e) => break e.to_string(),
        }
    };
    assert!(told.contains(&format!("pid {}", holder.id())), "{told}");
    holder.kill().unwrap();
    drop(driver.open(spec));
    holder.wait().unwrap();
}

#[test]
fn a_mounted_or_claimed_block_device_is_refused() {
    let directory = disk_directory();
    let path = file(&directory, "disk", 4 << 20);
    let Some(block) = LoopDevice::new(&path, 512) else {
        return;
    };
    let driver = Driver::new();
    let spec = block.path.to_str().unwrap();
    let device = driver.open(spec);
    let told = refusal(&driver.ring, spec).to_string();
    assert!(told.contains("this process itself"), "{told}");
    drop(device);
    let made = Command::new("mkfs.ext4").arg("-q").arg(&block.path).status();
    let mount = tempfile::tempdir().unwrap();
    let mounted = Command::new("mount").arg(&block.path).arg(mount.path()).status();
    if !made.is_ok_and(|s| s.success()) || !mounted.is_ok_and(|s| s.success()) {
        return skip("cannot make and mount a file system");
    }
    let told = refusal(&driver.ring, spec).to_string();
    assert!(Command::new("umount").arg(mount.path()).status().unwrap().success());
    assert!(told.contains("mounted"), "{told}");
    drop(driver.open(spec));
}

#[test]
fn what_is_not_there_is_not_created() {
    let directory = disk_directory();
    let path = directory.path().join("absent");
    let driver = Driver::new();
    for scheme in ["", "pmem:"] {
        let error = refusal(&driver.ring, &format!("{scheme}{}", path.display()));
        assert!(matches!(error, OpenError::Missing { .. }), "{error}");
        assert!(!path.exists());
    }
    let error = refusal(&driver.ring, directory.path().to_str().unwrap());
    assert!(matches!(error, OpenError::NotADevice { what: "a directory", .. }), "{error}");
    let error = refusal(&driver.ring, "/dev/null");
    assert!(matches!(error, OpenError::NotADevice { .. }), "{error}");
}

#[test]
fn a_device_dropped_in_mid_flight_leaves_no_claim() {
    use forebay_block::{Buf, Class, DeviceOp, Nanos};
    let directory = disk_directory();
    let path = file(&directory, "busy", 8 << 20);
    {
        let driver = Driver::new();
        let mut device: Box<dyn Device> = driver.open_path(&path);
        for i in 0..64 {
            let bufs = vec![Buf::copy_of(&[7; 65536])];
            device.submit(
                i,
                DeviceOp::Write { offset: i * 65536, bufs, durable: true },
                Class::Foreground,
                Nanos(0),
            );
        }
        drop(device);
        let mut other = driver.open_path(&file(&directory, "other", 1 << 20));
        driver.write(&mut *other, 0, &[1; 4096], true);
    }
    let driver = Driver::new();
    let mut device = driver.open_path(&path);
    driver.read(&mut *device, 0, 4096);
}
