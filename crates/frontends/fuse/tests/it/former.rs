//! What a former user left on a loop device does not show on a volume, and what a volume's user adds does not stay.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, PoisonError};

use forebay_fuse::{AttachOptions, Attachment, FuseError};

use crate::memory::Behaviour;
use crate::{Served, able, run};

/// Other tests, and other programs of this machine, take free loop devices too.
const TRIES_MAX: usize = 50;

/// One at a time leaves something behind for its next user, which is to be itself.
static ALONE: Mutex<()> = Mutex::new(());

fn text(output: std::process::Output) -> String {
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A loop device as an ordinary user has it.
struct Former {
    device: PathBuf,
    _file: tempfile::NamedTempFile,
}

impl Drop for Former {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.device).status();
    }
}

impl Former {
    fn new() -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(16 << 20).unwrap();
        let device = text(run("losetup", &["--find", "--show", file.path().to_str().unwrap()]));
        Self { device: PathBuf::from(device), _file: file }
    }

    fn name(&self) -> &str {
        self.device.file_name().unwrap().to_str().unwrap()
    }

    /// One that another program has left there will do as well.
    fn add_partition(&self, number: &str, start: &str) {
        let _ = Command::new("addpart").arg(&self.device).args([number, start, "4096"]).output();
        assert!(partitions(self.name()) > 0);
    }

    /// Gives the device up, and says which one it was.
    fn leave(self) -> String {
        self.name().to_owned()
    }
}

fn attribute(name: &str, attribute: &str) -> PathBuf {
    Path::new("/sys/block").join(name).join("queue").join(attribute)
}

fn read(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    chosen.map_or(text.trim(), |(value, _)| value).to_owned()
}

fn partitions(name: &str) -> usize {
    let entries = fs::read_dir(Path::new("/sys/block").join(name)).unwrap();
    entries.filter(|e| e.as_ref().unwrap().path().join("partition").exists()).count()
}

/// If it is there.
fn remove_partition(name: &str, number: &str) {
    let _ = Command::new("delpart").args([&format!("/dev/{name}"), number]).output();
}

/// Lets `leave_behind` do something to a device, and attaches the volume to that very device. What is left on others on the way is undone by
/// `undo`.
fn attach_after(
    served: &Served,
    leave_behind: impl Fn(&Former),
    undo: impl Fn(&str),
) -> (String, Attachment, Vec<(&'static str, String)>) {
    for _ in 0..TRIES_MAX {
        let former = Former::new();
        leave_behind(&former);
        let name = former.leave();
        // The kernel makes some anew when it clears the device.
        let found = known(&name).map(|(a, ..)| (*a, read(&attribute(&name, a)))).collect();
        let attachment = served.attach(AttachOptions::default());
        if attachment.device_path().ends_with(&name) {
            return (name, attachment, found);
        }
        attachment.detach(false).unwrap();
        undo(&name);
    }
    panic!("no free loop device stays free for a moment");
}

/// What a former user may have set, and what a volume has instead.
const ATTRIBUTES: &[(&str, &str, &str)] = &[
    ("write_cache", "write through", "write back"),
    ("scheduler", "mq-deadline", "bfq"),
    ("max_sectors_kb", "4", "1024"),
    ("nr_requests", "8", "128"),
    ("nomerges", "2", "0"),
    ("rq_affinity", "0", "1"),
    ("add_random", "1", "0"),
    ("stable_writes", "1", "0"),
    ("rotational", "1", "0"),
    ("discard_max_bytes", "65536", "4294963200"),
    ("wbt_lat_usec", "70000", "0"),
    ("../bdi/strict_limit", "1", "0"),
    ("../bdi/max_ratio", "1", "100"),
    ("read_ahead_kb", "4", "128"),
];

/// Those of them that this kernel has, and whose values it knows.
fn known(name: &str) -> impl Iterator<Item = &'static (&'static str, &'static str, &'static str)> {
    ATTRIBUTES.iter().filter(move |(a, poison, _)| {
        let path = attribute(name, a);
        path.exists() && (*a != "scheduler" || fs::read_to_string(path).unwrap().contains(poison))
    })
}

fn poison(former: &Former) {
    let name = former.name();
    known(name).for_each(|(a, value, _)| drop(fs::write(attribute(name, a), value)));
    run("blockdev", &["--setro", former.device.to_str().unwrap()]);
}

fn cure(name: &str) {
    let defaults = [("scheduler", "none"), ("wbt_lat_usec", "-1"), ("max_sectors_kb", "1280")];
    let wanted = known(name).map(|(a, _, value)| (*a, *value)).chain(defaults);
    wanted.for_each(|(a, value)| drop(fs::write(attribute(name, a), value)));
    run("blockdev", &["--setrw", &format!("/dev/{name}")]);
}

#[test]
fn the_queue_of_a_former_user_changes_nothing() {
    if !able(&["losetup", "blockdev"]) {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let served = Served::new(Behaviour::of_size(8 << 20));
    let (name, attachment, found) = attach_after(&served, poison, cure);
    let setup = attachment.queue().clone();
    let shown: Vec<String> = ATTRIBUTES
        .iter()
        .filter(|(a, ..)| attribute(&name, a).exists() && (*a != "scheduler" || setup.reserved))
        .map(|(a, _, wanted)| (a, wanted, read(&attribute(&name, a))))
        .filter(|(_, wanted, shown)| *wanted != shown)
        .map(|(a, wanted, shown)| format!("{a} is '{shown}' and not '{wanted}'"))
        .collect();
    let device = File::options().read(true).write(true).open(attachment.device_path()).unwrap();
    let before = served.volume.seen().flushes.load(SeqCst);
    let mut written = Ok(());
    for page in 0..8 {
        written = written.and(device.write_all_at(&[7; 4096], page * 4096)).and(device.sync_all());
    }
    let flushes = served.volume.seen().flushes.load(SeqCst) - before;
    drop(device);
    let detached = attachment.detach(false);
    let put_back: Vec<String> = found
        .iter()
        .filter(|(a, _)| *a != "write_cache")
        .map(|(a, found)| (a, found, read(&attribute(&name, a))))
        .filter(|(_, found, shown)| *found != shown)
        .map(|(a, found, shown)| format!("{a} is '{shown}' and was '{found}'"))
        .collect();
    // Whatever is found, nothing is left for others.
    let former = Former::new();
    let write_cache = read(&attribute(former.name(), "write_cache"));
    let same = former.leave() == name;
    cure(&name);

    written.unwrap();
    detached.unwrap();
    assert_eq!(flushes, 8, "each flush arrives at the volume");
    assert!(shown.is_empty(), "{shown:?}");
    assert!(setup.refused.is_empty(), "{setup:?}");
    if same {
        assert!(put_back.is_empty(), "{put_back:?}");
        assert_eq!(write_cache, "write back", "but nobody else loses flushes by it");
    }
    served.end();
}

/// Makes a device anew, if nobody has it.
fn renew(name: &str) {
    const LOOP_CTL_ADD: libc::c_ulong = 0x4C80;
    const LOOP_CTL_REMOVE: libc::c_ulong = 0x4C81;
    let control = File::options().read(true).write(true).open("/dev/loop-control").unwrap();
    let number: libc::c_long = name.trim_start_matches("loop").parse().unwrap();
    // SAFETY: both ioctls take a number.
    unsafe {
        libc::ioctl(control.as_raw_fd(), LOOP_CTL_REMOVE, number);
        libc::ioctl(control.as_raw_fd(), LOOP_CTL_ADD, number);
    }
}

/// With `discard_max_bytes` at 0 a device loses its granularity too, and takes no other number any more.
#[test]
fn a_device_that_was_spoilt_for_good_is_made_anew() {
    if !able(&["losetup", "blkdiscard"]) {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let served = Served::new(Behaviour::of_size(8 << 20));
    let spoil = |former: &Former| fs::write(attribute(former.name(), "discard_max_bytes"), "0").unwrap();
    let (name, attachment, _) = attach_after(&served, spoil, renew);
    let setup = attachment.queue().clone();
    run("blkdiscard", &["-o", "4096", "-l", "8192", attachment.device_path().to_str().unwrap()]);
    attachment.detach(false).unwrap();
    assert_eq!(served.volume.seen().unmaps.load(SeqCst), 1, "{name}");
    assert!(setup.refused.is_empty(), "{setup:?}");
    served.end();
}

#[test]
fn partitions_of_a_former_user_are_gone() {
    if !able(&["losetup", "addpart"]) {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let served = Served::new(Behaviour::of_size(8 << 20));
    let forget = |name: &str| ["1", "5"].iter().for_each(|number| remove_partition(name, number));
    let leave = |former: &Former| {
        former.add_partition("1", "2048");
        former.add_partition("5", "8192");
    };
    let (name, attachment, _) = attach_after(&served, leave, forget);
    let found = partitions(&name);
    attachment.detach(false).unwrap();
    served.end();
    assert_eq!(found, 0, "partitions of another disk stand on the volume");
}

#[test]
fn a_device_with_a_partition_that_is_in_use_is_not_taken() {
    if !able(&["losetup", "addpart"]) {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let served = Served::new(Behaviour::of_size(8 << 20));
    let former = Former::new();
    former.add_partition("1", "2048");
    let partition = PathBuf::from(format!("{}p1", former.device.display()));
    let name = former.leave();
    // Somebody goes on with what he thinks is his disk.
    let Ok(open) = File::options().read(true).write(true).open(&partition) else {
        // Another program has got the device meanwhile, and has taken the partition away.
        return served.end();
    };
    let attachment = served.attach(AttachOptions::default());
    let taken = attachment.device_path().ends_with(&name);
    attachment.detach(false).unwrap();
    drop(open);
    remove_partition(&name, "1");
    served.end();
    assert!(!taken, "a former user writes to the volume");
}

/// Master boot record with one partition of 4 MiB from 1 MiB on.
fn partition_table() -> Vec<u8> {
    let mut table = vec![0; 512];
    table[446 + 4] = 0x83;
    table[446 + 8..446 + 12].copy_from_slice(&2048u32.to_le_bytes());
    table[446 + 12..446 + 16].copy_from_slice(&8192u32.to_le_bytes());
    table[510..].copy_from_slice(&[0x55, 0xAA]);
    table
}

#[test]
fn partitions_of_the_volume_appear_as_the_kernel_finds_them() {
    if !able(&["losetup"]) {
        return;
    }
    let served = Served::new(Behaviour::of_size(8 << 20));
    served.volume.poke(0, &partition_table());
    let plain = tempfile::NamedTempFile::new().unwrap();
    plain.as_file().write_all_at(&partition_table(), 0).unwrap();
    plain.as_file().set_len(8 << 20).unwrap();
    let arguments = ["--find", "--show", "--partscan", plain.path().to_str().unwrap()];
    let other = text(run("losetup", &arguments));
    // None on a kernel that is built without the format of this table.
    let expected = partitions(other.trim_start_matches("/dev/"));
    run("losetup", &["--detach", &other]);
    let attachment = served.attach(AttachOptions::default());
    let name = attachment.device_path().file_name().unwrap().to_str().unwrap().to_owned();
    assert_eq!(partitions(&name), expected);
    assert_eq!(fs::read_to_string(format!("/sys/block/{name}/loop/partscan")).unwrap().trim(), "1");
    attachment.detach(false).unwrap();
    served.end();
}

#[test]
fn a_mounted_partition_holds_the_device_and_goes_with_it() {
    if !able(&["mke2fs", "mount", "addpart"]) {
        return;
    }
    let served = Served::new(Behaviour::of_size(16 << 20));
    let attachment = served.attach(AttachOptions::default());
    let device = attachment.device_path().to_str().unwrap().to_owned();
    let name = device.trim_start_matches("/dev/").to_owned();
    run("addpart", &[&device, "1", "2048", "16384"]);
    let partition = format!("{device}p1");
    run("mke2fs", &["-q", "-t", "ext4", &partition]);
    let point = served.mount_point();
    run("mount", &[&partition, point.to_str().unwrap()]);
    fs::write(point.join("kept"), b"kept").unwrap();
    let busy = attachment.detach(false).unwrap_err();
    let says = |e: &FuseError| e.to_string().contains(&format!("mounted on {}", point.display()));
    assert!(matches!(busy, FuseError::Busy { .. }) && says(&busy), "{busy}");

    let open = File::open(point.join("kept")).unwrap();
    let busy = attachment.detach(true).unwrap_err();
    assert!(matches!(busy, FuseError::Busy { .. }) && busy.to_string().contains("files are open"), "{busy}");
    drop(open);
    attachment.detach(true).unwrap();
    assert!(!Path::new(&partition).exists(), "the partition stays for the next volume");
    assert_eq!(partitions(&name), 0);
    served.end();
}

/// As a killed daemon leaves it: nobody is there to take anything away but the kernel.
#[test]
fn partitions_go_with_the_last_user_of_a_device_that_nobody_detaches() {
    if !able(&["addpart"]) {
        return;
    }
    let served = Served::new(Behaviour::of_size(16 << 20));
    let attachment = served.attach(AttachOptions::default());
    let device = attachment.device_path().to_str().unwrap().to_owned();
    run("addpart", &[&device, "1", "2048", "16384"]);
    let partition = format!("{device}p1");
    let open = File::open(&partition).unwrap();
    drop(attachment);
    drop(open);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while Path::new(&partition).exists() {
        assert!(std::time::Instant::now() < deadline, "the partition stays for the next volume");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    served.end();
}
