//! What a device says of its medium, and what a durable write costs where the kernel's flag for it is trusted.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_block::{Buf, DeviceOp};
use forebay_device::{DeviceKind, Survives};
use tempfile::TempDir;

use crate::fuse::Mounted;
use crate::harness::{Driver, LoopDevice, disk_directory, file, file_content, memory_directory, skip};

const MIB: u64 = 1 << 20;

/// One of these tests at a time: they make file systems, beside tests that measure time.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ran(program: &str, arguments: &[&str]) -> bool {
    let out = Command::new(program).args(arguments).output();
    let well = out.as_ref().is_ok_and(|out| out.status.success());
    if !well {
        skip(&format!("{program} {arguments:?}: {out:?}"));
    }
    well
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A mount, undone when dropped.
struct Mount(TempDir);

impl Mount {
    fn new(arguments: &[&str]) -> Option<Self> {
        let at = TempDir::new().unwrap();
        let arguments = [arguments, &[text(at.path())]].concat();
        ran("mount", &arguments).then_some(Self(at))
    }

    /// A new file system on a device.
    fn of(kind: &str, device: &Path) -> Option<Self> {
        let program = format!("mkfs.{kind}");
        let quiet = if kind == "ext4" { "-qF" } else { "-qf" };
        ran(&program, &[quiet, text(device)]).then(|| Self::new(&[text(device)])).flatten()
    }

    /// A file all of whose blocks are written, so that a later write changes nothing else.
    fn file(&self) -> PathBuf {
        let path = self.0.path().join("file");
        fs::write(&path, vec![1; MIB as usize]).unwrap();
        fs::File::open(&path).unwrap().sync_all().unwrap();
        path
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        for _ in 0..100 {
            let out = Command::new("umount").arg(self.0.path()).output();
            if out.is_ok_and(|out| out.status.success()) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// What a path is said to survive, and in which words.
#[track_caller]
fn judge(spec: &str) -> (Survives, &'static str) {
    let driver = Driver::new();
    let device = driver.open(spec);
    println!("{spec}: {:?}, {}", device.info().survives, device.info().durability);
    (device.info().survives, device.info().durability)
}

#[track_caller]
fn check(path: &Path, survives: Survives, words: &str) {
    for scheme in ["", "pmem:"] {
        let (found, durability) = judge(&format!("{scheme}{}", path.display()));
        assert_eq!(found, survives, "{scheme}{}", path.display());
        assert!(durability.contains(words), "{durability}");
    }
}

/// What the tests' own directory stands on: a disk, unless they run in a container or the like.
fn own(disk: &TempDir) -> (Survives, &'static str) {
    let (survives, words) = judge(text(&file(disk, "own", MIB)));
    assert!(matches!(survives, Survives::PowerCut | Survives::Unknown), "{words}");
    (survives, words)
}

const GONE: (Survives, &str) = (Survives::ProcessDeath, "the medium is main memory");

#[test]
fn loop_devices_are_what_their_files_are() {
    let _turn = turn();
    let (disk, Some(memory)) = (disk_directory(), memory_directory()) else { return };
    let nested = |directory: &TempDir, (survives, words): (Survives, &str)| {
        let path = file(directory, "image", 4 * MIB);
        let Some(block) = LoopDevice::new(&path, 512) else { return };
        check(&block.path, survives, words);
        // A loop device on a loop device, and a partition.
        let Some(above) = LoopDevice::new(&block.path, 512) else { return };
        check(&above.path, survives, words);
        drop(above);
        drop(block);
        let Some(block) = LoopDevice::with(&path, &["--partscan"]) else { return };
        if ran("addpart", &[text(&block.path), "1", "2048", "4096"]) {
            check(&PathBuf::from(format!("{}p1", block.path.display())), survives, words);
            ran("delpart", &[text(&block.path), "1"]);
        }
    };
    nested(&disk, own(&disk));
    nested(&memory, GONE);
}

#[test]
fn a_loop_device_whose_file_is_out_of_sight_is_unknown_or_what_its_device_is() {
    let _turn = turn();
    let (disk, Some(memory)) = (disk_directory(), memory_directory()) else { return };
    for (directory, expected) in [(&disk, own(&disk).0), (&memory, Survives::Unknown)] {
        let path = file(directory, "image", 4 * MIB);
        let Some(block) = LoopDevice::new(&path, 512) else { return };
        // Another file under the same name is not the one.
        fs::remove_file(&path).unwrap();
        let wrong = format!("{} (deleted)", path.display());
        let elsewhere = if directory.path() == disk.path() { &memory } else { &disk };
        let _ = std::os::unix::fs::symlink(file(elsewhere, "other", MIB), wrong);
        assert_eq!(judge(text(&block.path)).0, expected);
    }
}

#[test]
fn files_are_what_their_file_systems_stand_on() {
    let _turn = turn();
    let (disk, Some(memory)) = (disk_directory(), memory_directory()) else { return };
    for kind in ["ext4", "xfs", "btrfs"] {
        for (directory, (survives, words)) in [(&disk, own(&disk)), (&memory, GONE)] {
            let Some(block) = LoopDevice::new(&file(directory, kind, 512 * MIB), 512) else { return };
            let Some(mount) = Mount::of(kind, &block.path) else { return };
            check(&mount.file(), survives, words);
        }
    }
    check(&file(&memory, "plain", MIB), GONE.0, GONE.1);
}

#[test]
fn a_file_system_that_does_not_flush_is_unknown() {
    let _turn = turn();
    let disk = disk_directory();
    for kind in ["ext4", "btrfs"] {
        let Some(block) = LoopDevice::new(&file(&disk, kind, 512 * MIB), 512) else { return };
        drop(Mount::of(kind, &block.path));
        let Some(mount) = Mount::new(&["-o", "nobarrier", text(&block.path)]) else { return };
        check(&mount.file(), Survives::Unknown, "nobarrier");
    }
}

#[test]
fn what_lies_below_an_overlay_is_unknown() {
    let _turn = turn();
    let (disk, Some(memory)) = (disk_directory(), memory_directory()) else { return };
    for directory in [&disk, &memory] {
        let part = |name: &str| {
            let path = directory.path().join(name);
            fs::create_dir(&path).unwrap();
            path.display().to_string()
        };
        let options = format!("lowerdir={},upperdir={},workdir={}", part("l"), part("u"), part("w"));
        let Some(mount) = Mount::new(&["-t", "overlay", "overlay", "-o", &options]) else { return };
        check(&mount.file(), Survives::Unknown, "unknown: the file lies on an overlay");
    }
}

#[test]
fn a_loop_device_on_fuse_is_unknown_like_its_file() {
    let _turn = turn();
    let Some(fuse) = Mounted::new(MIB) else { return };
    let words = "unknown: the file lies on FUSE";
    check(&fuse.path, Survives::Unknown, words);
    let Some(block) = LoopDevice::new(&fuse.path, 512) else { return };
    check(&block.path, Survives::Unknown, words);
}

#[test]
fn zram_is_memory() {
    let _turn = turn();
    let control = Path::new("/sys/class/zram-control");
    let Ok(number) = fs::read_to_string(control.join("hot_add")) else {
        return skip("no zram");
    };
    let number = number.trim();
    let sized = fs::write(format!("/sys/block/zram{number}/disksize"), "4M");
    sized.unwrap();
    check(&PathBuf::from(format!("/dev/zram{number}")), GONE.0, GONE.1);
    // The device may be looked at by others just then.
    for _ in 0..100 {
        if fs::write(control.join("hot_remove"), number).is_ok() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("zram{number} cannot be removed");
}

/// Flushes that a block device has carried out.
fn flushes(device: &Path) -> u64 {
    let name = device.file_name().unwrap().to_str().unwrap();
    let stat = fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap();
    stat.split_whitespace().nth(15).unwrap().parse().unwrap()
}

/// Durable writes of a test that counts flushes.
const WRITES: u64 = 40;

/// One flush for each of many durable writes, one after the other: none is forgotten, and there is no second one where the flag is
/// trusted. A file system may add `more` of its own.
#[track_caller]
fn one_flush_for_each(
    driver: &Driver,
    path: &Path,
    device: &Path,
    each: std::ops::RangeInclusive<u64>,
    more: u64,
) {
    let mut opened = driver.open_path(path);
    assert!(opened.info().direct, "{opened:?}", opened = opened.info());
    let before = flushes(device);
    for block in 0..WRITES {
        driver.write(&mut *opened, block * 4096, &[2; 4096], true);
    }
    let flushed = flushes(device) - before;
    println!("{}: {flushed} flushes for {WRITES} writes", path.display());
    assert!((each.start() * WRITES..=each.end() * WRITES + more).contains(&flushed), "{flushed}");
}

#[test]
fn a_durable_write_is_one_flush_where_the_flag_is_trusted() {
    let _turn = turn();
    let disk = disk_directory();
    let driver = Driver::new();
    let Some(block) = LoopDevice::new(&file(&disk, "block", MIB), 512) else { return };
    // A bare device has exactly that: a synchronous `pwritev2`, which also flushes by itself, would be two.
    one_flush_for_each(&driver, &block.path, &block.path, 1..=1, 0);
    // btrfs writes its log, and then the superblock that points to it.
    for (kind, each) in [("ext4", 1..=1), ("xfs", 1..=1), ("btrfs", 1..=3)] {
        let Some(block) = LoopDevice::new(&file(&disk, kind, 512 * MIB), 512) else { return };
        let Some(mount) = Mount::of(kind, &block.path) else { return };
        one_flush_for_each(&driver, &mount.file(), &block.path, each, WRITES / 2);
    }
}

#[test]
fn a_mapped_block_device_has_on_its_medium_what_was_acknowledged() {
    let _turn = turn();
    let (disk, Some(memory)) = (disk_directory(), memory_directory()) else { return };
    for directory in [&disk, &memory] {
        let path = file(directory, "block", MIB);
        let Some(block) = LoopDevice::new(&path, 512) else { return };
        let driver = Driver::new();
        let mut device = driver.open(&format!("pmem:{}", block.path.display()));
        assert_eq!(device.info().kind, DeviceKind::Mapped);
        driver.write(&mut *device, 0, &[1; 65536], true);
        assert!(file_content(&path)[..65536].iter().all(|b| *b == 1), "a forced write is on the medium");
        driver.write(&mut *device, 65536, &[2; 65536], false);
        driver.run(&mut *device, DeviceOp::Flush).unwrap();
        assert!(file_content(&path)[65536..131_072].iter().all(|b| *b == 2), "a flushed write is");
        let op = DeviceOp::Zero { offset: 0, len: 131_072, unmap: true };
        driver.run(&mut *device, op).unwrap();
        driver.run(&mut *device, DeviceOp::Flush).unwrap();
        assert!(file_content(&path)[..131_072].iter().all(|b| *b == 0), "flushed zeroes are");
    }
}

#[test]
fn a_buffered_file_is_durable_at_once() {
    let _turn = turn();
    // Its end is out of reach of direct I/O.
    let disk = disk_directory();
    let Some(block) = LoopDevice::new(&file(&disk, "image", 512 * MIB), 512) else { return };
    let Some(mount) = Mount::of("ext4", &block.path) else { return };
    let path = mount.file();
    fs::OpenOptions::new()
        .append(true)
        .open(&path)
        .and_then(|mut f| std::io::Write::write_all(&mut f, &[1; 100]))
        .unwrap();
    let driver = Driver::new();
    let mut device = driver.open_path(&path);
    assert!(!device.info().direct && device.info().volatile_cache);
    let before = flushes(&block.path);
    let bufs = || vec![Buf::copy_of(&[3; 4096])];
    for offset in (0..20).map(|block| block * 4096) {
        driver.run(&mut *device, DeviceOp::Write { offset, bufs: bufs(), durable: true }).unwrap();
    }
    assert!(flushes(&block.path) - before >= 20);
}
