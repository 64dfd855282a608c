//! Images of a Ceph cluster of one node, which `scripts/ceph-one-node.sh` starts: one cluster for all, since that takes a while.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forebay_block::{Class, DeviceOp, DeviceResult};
use forebay_device::{Access, Device, DeviceSpec, Survives, open};
use tempfile::TempDir;

use crate::harness::{Driver, skip};
use crate::round_trip::{SIZE, exercise, past_the_end_is_refused};

/// What another process is told to hold, in its environment.
const HOLD: &str = "FOREBAY_TEST_RBD_HOLD";
const OBJECT: u64 = 4 << 20;

/// A cluster, stopped when dropped.
struct Ceph {
    directory: TempDir,
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../scripts/ceph-one-node.sh")
}

impl Ceph {
    fn start() -> Option<Self> {
        let missing = ["ceph-mon", "ceph-osd", "rbd"].into_iter().find(|program| {
            !Command::new(program).arg("--version").stdout(Stdio::null()).status().is_ok_and(|s| s.success())
        });
        if let Some(program) = missing {
            skip(&format!("no {program}"));
            return None;
        }
        let cluster = Self { directory: TempDir::new().unwrap() };
        let up = Command::new(script()).arg("up").arg(cluster.directory.path()).output().unwrap();
        assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
        Some(cluster)
    }

    fn conf(&self) -> PathBuf {
        self.directory.path().join("ceph.conf")
    }

    /// What one of Ceph's programs says.
    fn run(&self, program: &str, arguments: &[&str]) -> Vec<u8> {
        let ran = Command::new(program).env("CEPH_CONF", self.conf()).args(arguments).output().unwrap();
        assert!(ran.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&ran.stderr));
        ran.stdout
    }

    /// A new image, as an address.
    fn image(&self, name: &str, more: &[&str]) -> String {
        self.run("rbd", &[&["create", name, "--size", &format!("{SIZE}B")], more].concat());
        self.address(name)
    }

    fn address(&self, name: &str) -> String {
        format!("rbd:rbd/{name},conf={},timeout=1s", self.conf().display())
    }

    /// What is in an image, by Ceph's own hands.
    fn content(&self, name: &str) -> Vec<u8> {
        self.run("rbd", &["export", "--no-progress", name, "-"])
    }

    /// The data objects of an image.
    fn objects(&self, name: &str) -> usize {
        let info = String::from_utf8(self.run("rbd", &["info", name])).unwrap();
        let prefix = info.lines().find_map(|line| line.trim().strip_prefix("block_name_prefix: ")).unwrap();
        let all = String::from_utf8(self.run("rados", &["--pool", "rbd", "ls"])).unwrap();
        all.lines().filter(|object| object.starts_with(prefix)).count()
    }

    /// Sends the OSD a signal.
    fn signal(&self, signal: &str) {
        let pid = std::fs::read_to_string(self.directory.path().join("osd.0.pid")).unwrap();
        let sent = Command::new("kill").args([signal, pid.trim()]).status().unwrap();
        assert!(sent.success());
    }
}

impl Drop for Ceph {
    fn drop(&mut self) {
        let _ = Command::new(script()).arg("down").arg(self.directory.path()).status();
    }
}

/// Another process that has an image open, until it is killed.
struct Holder(Child);

impl Holder {
    fn of(spec: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "rbd::holds_an_image_until_it_is_killed", "--nocapture", "--ignored"])
            .env(HOLD, spec)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut said = std::io::BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains("held") {
            line.clear();
            assert!(
                std::io::BufRead::read_line(&mut said, &mut line).unwrap() > 0,
                "it does not open the image"
            );
        }
        // It may go on to talk.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        Self(child)
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "another test runs it in a process of its own"]
fn holds_an_image_until_it_is_killed() {
    let Ok(spec) = std::env::var(HOLD) else { return };
    let driver = Driver::new();
    let mut device = driver.open(&spec);
    driver.write(&mut *device, 4096, &[7; 4096], true);
    println!("held");
    std::thread::sleep(Duration::from_secs(600));
}

fn try_open(driver: &Driver, spec: &str, access: Access) -> Result<Box<dyn Device>, String> {
    open(&spec.parse::<DeviceSpec>().unwrap(), &driver.ring, access).map_err(|e| e.to_string())
}

fn write(offset: u64, fill: u8) -> DeviceOp {
    DeviceOp::Write { offset, bufs: vec![forebay_block::Buf::copy_of(&[fill; 4096])], durable: true }
}

fn told(result: DeviceResult) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn images_of_a_cluster() {
    let Some(ceph) = Ceph::start() else { return };
    for (what, part) in [
        ("a round trip", round_trip as fn(&Ceph)),
        ("zeroes", zeroes_give_back_whole_objects),
        ("refusals", what_cannot_be_used_is_refused_in_one_sentence),
        ("making", an_image_is_made_where_there_is_none),
        ("one owner", an_image_has_one_owner),
        ("death", a_dead_process_of_this_host_leaves_no_lock),
        ("a takeover", who_is_taken_over_from_does_nothing_more),
        ("a full cluster", a_full_cluster_says_so_and_is_used_again),
        ("a silent OSD", what_a_silent_osd_does_later_undoes_nothing),
    ] {
        let begun = Instant::now();
        part(&ceph);
        eprintln!("{what}: {:.1} s", begun.elapsed().as_secs_f64());
    }
}

fn round_trip(ceph: &Ceph) {
    let spec = ceph.image("plain", &[]);
    let driver = Driver::new();
    let mut device = driver.open(&spec);
    let info = device.info().clone();
    assert_eq!(
        (info.size_bytes, info.logical_block, info.survives, info.unit_bytes),
        (SIZE, 512, Survives::Unknown, Some(OBJECT))
    );
    let model = exercise(&driver, &mut *device, 512);
    past_the_end_is_refused(&driver, &mut *device);
    assert!(ceph.content("plain") == model, "rbd export shows something else");
    drop(device);
    // It was closed, and its lock with it.
    let mut device = driver.open(&spec);
    assert!(driver.read(&mut *device, 0, SIZE as usize)[..] == model[..]);
    drop(device);
    let mut device = try_open(&driver, &spec, Access::ReadOnly).unwrap();
    assert!(driver.read(&mut *device, 0, SIZE as usize)[..] == model[..]);
}

fn zeroes_give_back_whole_objects(ceph: &Ceph) {
    let spec = ceph.image("zeroes", &[]);
    let driver = Driver::new();
    let mut device = driver.open(&spec);
    let zero = |offset, len, unmap| DeviceOp::Zero { offset, len, unmap };
    driver.write(&mut *device, 0, &vec![9; SIZE as usize], true);
    assert_eq!(ceph.objects("zeroes"), 2);
    // Small zeroes are zeroes, whether they may give something back or not.
    for (at, unmap) in [(512, true), (8192, false)] {
        driver.run(&mut *device, zero(at, 4096, unmap)).unwrap();
        let read = driver.read(&mut *device, at - 512, 4096 + 1024);
        assert!(read[512..512 + 4096].iter().all(|b| *b == 0) && read[0] == 9 && read[4608] == 9, "{at}");
    }
    // Pieces that make up an object, several at a time.
    let pieces = (0..64).map(|piece| zero(OBJECT + piece * (OBJECT / 64), OBJECT / 64, true)).collect();
    driver.run_all(&mut *device, pieces).into_iter().for_each(|result| drop(result.unwrap()));
    assert_eq!(ceph.objects("zeroes"), 1, "an object that is all zeroes stays");
    driver.run(&mut *device, zero(0, OBJECT, false)).unwrap();
    assert_eq!(ceph.objects("zeroes"), 1, "what must keep its room is given back");
    assert!(ceph.content("zeroes").iter().all(|b| *b == 0));
    driver.run(&mut *device, zero(0, OBJECT, true)).unwrap();
    assert_eq!(ceph.objects("zeroes"), 0);
}

fn what_cannot_be_used_is_refused_in_one_sentence(ceph: &Ceph) {
    let driver = Driver::new();
    let conf = ceph.conf().display().to_string();
    ceph.image("no-lock", &["--image-feature", "layering"]);
    ceph.image("cached", &[]);
    ceph.run("rbd", &["config", "image", "set", "rbd/cached", "rbd_cache", "true"]);
    for (spec, words) in [
        (
            format!("rbd:rbd/none,conf={conf}"),
            "there is no image 'none' (`rbd create --size SIZE rbd/none` makes one)",
        ),
        (format!("rbd:none/plain,conf={conf}"), "the cluster has no pool 'none'"),
        (format!("rbd:rbd/plain,namespace=none,conf={conf}"), "`rbd create --size SIZE rbd/none/plain`"),
        (format!("rbd:rbd/plain,conf={conf}.none"), "cannot be read: No such file or directory"),
        (format!("rbd:rbd/no-lock,conf={conf}"), "`rbd feature enable rbd/no-lock exclusive-lock`"),
        (format!("rbd:rbd/cached,conf={conf}"), "`rbd config image rm rbd/cached rbd_cache`"),
    ] {
        let told = try_open(&driver, &spec, Access::ReadWrite).err().unwrap();
        assert!(told.contains(words) && told.contains(&spec) && !told.contains('\n'), "{spec}: {told}");
    }
}

fn an_image_is_made_where_there_is_none(ceph: &Ceph) {
    let spec: DeviceSpec = ceph.address("made").parse().unwrap();
    let journal = spec.remote().unwrap().journal_beside().unwrap();
    let driver = Driver::new();
    assert!(open(&spec, &driver.ring, Access::ReadWrite).err().unwrap().is_missing());
    assert!(journal.make(SIZE).unwrap() && !journal.make(2 * SIZE).unwrap(), "what is there stays");
    let mut device = driver.open(&journal.to_string());
    assert_eq!(device.info().size_bytes, SIZE);
    driver.write(&mut *device, 0, &[1; 4096], true);
    drop(device);
    assert_eq!(ceph.content("made.journal")[..4096], [1; 4096]);
    journal.remove().unwrap();
    assert!(journal.open(&driver.ring, Access::ReadWrite).err().unwrap().is_missing());
}

fn an_image_has_one_owner(ceph: &Ceph) {
    let spec = ceph.image("owned", &[]);
    let driver = Driver::new();
    let mut device = driver.open(&spec);
    for access in [Access::ReadWrite, Access::ReadOnly] {
        let told = try_open(&driver, &spec, access).err().unwrap();
        assert!(told.contains("is in use by this process itself"), "{told}");
    }
    // A client that is no Forebay asks for the lock, and does not get it.
    let bench = ["bench", "--io-type", "write", "--io-size", "4K", "owned", "--io-total"];
    let stranger = |bytes: &str| {
        let mut command = Command::new("rbd");
        command
            .env("CEPH_CONF", ceph.conf())
            .args(bench)
            .arg(bytes)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    };
    assert!(!stranger("4K").status().unwrap().success(), "somebody else wrote to the image");
    driver.write(&mut *device, 0, &[1; 4096], true);
    drop(device);
    assert_eq!(ceph.content("owned")[..4096], [1; 4096]);
    assert!(stranger("4K").status().unwrap().success(), "it would not have written in any case");

    // It has the lock first.
    let mut stranger = Holder(stranger("1T").spawn().unwrap());
    let limit = Instant::now() + Duration::from_secs(60);
    while ceph.run("rbd", &["lock", "ls", "owned"]).is_empty() {
        assert!(Instant::now() < limit, "the stranger does not write");
    }
    let told = try_open(&driver, &spec, Access::ReadWrite).err().unwrap();
    assert!(
        told.contains("is in use by the Ceph client at 127.0.0.1:0/") && told.contains("give --takeover"),
        "{told}"
    );
    let mut device = try_open(&driver, &spec, Access::TakeOver).unwrap();
    driver.write(&mut *device, 0, &[2; 4096], true);
    assert!(!stranger.0.wait().unwrap().success(), "the stranger writes on");
}

fn a_dead_process_of_this_host_leaves_no_lock(ceph: &Ceph) {
    let spec = ceph.image("left", &[]);
    let mut holder = Holder::of(&spec);
    let driver = Driver::new();
    let told = try_open(&driver, &spec, Access::ReadWrite).err().unwrap();
    assert!(told.contains(&format!("another process of this host (process {})", holder.0.id())), "{told}");
    holder.kill();
    let begun = Instant::now();
    let mut device = driver.open(&spec);
    assert!(begun.elapsed() < Duration::from_secs(15), "the cluster was asked whether it hears of the dead");
    assert_eq!(driver.read(&mut *device, 4096, 4096)[..], [7; 4096]);
    driver.write(&mut *device, 4096, &[8; 4096], true);
}

fn who_is_taken_over_from_does_nothing_more(ceph: &Ceph) {
    let spec = ceph.image("taken", &[]);
    let driver = Driver::new();
    let mut first = driver.open(&spec);
    driver.write(&mut *first, 0, &[1; 4096], true);
    let mut second = try_open(&driver, &spec, Access::TakeOver).unwrap();
    assert_eq!(driver.read(&mut *second, 0, 4096)[..], [1; 4096]);
    let ops = vec![write(0, 2), DeviceOp::Read { offset: 0, len: 4096 }, DeviceOp::Flush, write(4096, 2)];
    for op in ops {
        let told = told(driver.run(&mut *first, op));
        assert!(told.contains("another client has taken over"), "{told}");
    }
    assert!(first.away().is_some() && second.away().is_none());
    driver.write(&mut *second, 0, &[3; 4096], true);
    drop(first);
    drop(second);
    let content = ceph.content("taken");
    assert!(content[..4096] == [3; 4096] && content[4096..].iter().all(|b| *b == 0));
}

fn a_full_cluster_says_so_and_is_used_again(ceph: &Ceph) {
    let spec = ceph.image("full", &[]);
    let driver = Driver::new();
    let mut device = driver.open(&spec);
    driver.write(&mut *device, 0, &[1; 4096], true);
    let ratios = |nearly: &str, almost: &str, full: &str| {
        for (ratio, value) in [("full", full), ("backfillfull", almost), ("nearfull", nearly)] {
            ceph.run("ceph", &["osd", &format!("set-{ratio}-ratio"), value]);
        }
    };
    ratios("0.0000001", "0.0000002", "0.0000003");
    let limit = Instant::now() + Duration::from_secs(60);
    // Until the OSD has looked. What takes no more room than before is written all the same.
    let mut end = 4096;
    let refused = loop {
        assert!(Instant::now() < limit && end < SIZE, "it does not become full");
        match driver.run(&mut *device, write(end, 2)) {
            Ok(_) => std::thread::sleep(Duration::from_millis(50)),
            Err(e) => break e,
        }
        end += 4096;
    };
    assert_eq!(
        refused.to_string(),
        format!("writing to an RBD image at byte {end}: no space left on the device")
    );
    assert_eq!(driver.read(&mut *device, 0, 4096)[..], [1; 4096]);
    ratios("0.85", "0.9", "0.95");
    while driver.run(&mut *device, write(end, 3)).is_err() {
        assert!(Instant::now() < limit, "it stays full");
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(device);
    let content = ceph.content("full");
    assert!(content[..4096] == [1; 4096] && content[end as usize..][..4096] == [3; 4096]);
}

fn what_a_silent_osd_does_later_undoes_nothing(ceph: &Ceph) {
    let spec = ceph.image("silent", &[]);
    let driver = Driver::new();
    let mut device = driver.open(&spec);
    driver.write(&mut *device, 0, &[1; 4096], true);
    driver.run(&mut *device, DeviceOp::Flush).unwrap();

    ceph.signal("-STOP");
    let late = driver.run_all(
        &mut *device,
        vec![write(0, 2), write(OBJECT, 2), DeviceOp::Read { offset: 4096, len: 4096 }],
    );
    for (result, words) in
        late.into_iter().zip(["writing to an RBD image at byte 0", "at byte 4194304", "reading an RBD image"])
    {
        let told = told(result);
        assert!(told.contains(words) && told.contains("no answer in time"), "{told}");
    }
    assert!(device.away().is_some_and(|away| away.lasts >= Duration::from_secs(1)), "{:?}", device.away());
    // While the writes may come later no flush succeeds, and what overlaps them is not written.
    for op in [DeviceOp::Flush, write(0, 3)] {
        let told = told(driver.run(&mut *device, op));
        assert!(told.contains("no answer in time"), "{told}");
    }

    // The same blocks are written anew, and the OSD goes on.
    let now = driver.clock.now();
    device.submit(1, write(0, 4), Class::Foreground, now);
    device.submit(2, write(OBJECT, 4), Class::Foreground, now);
    ceph.signal("-CONT");
    let mut done = Vec::new();
    while done.len() < 2 {
        device.poll(driver.clock.now(), &mut done);
        driver.ring.submit_and_wait(Some(Duration::from_millis(20)), || true).unwrap();
    }
    done.into_iter().for_each(|(tag, result)| assert!(result.is_ok(), "{tag}: {result:?}"));
    driver.run(&mut *device, DeviceOp::Flush).unwrap();
    assert!(device.away().is_none());
    let content = ceph.content("silent");
    assert!(content[..4096] == [4; 4096] && content[OBJECT as usize..][..4096] == [4; 4096]);
    drop(device);

    // Who dies with writes on their way leaves the lock, and whoever comes next ends them.
    let mut device = driver.open(&spec);
    ceph.signal("-STOP");
    driver.run(&mut *device, write(0, 5)).unwrap_err();
    drop(device);
    ceph.signal("-CONT");
    let told = try_open(&driver, &spec, Access::ReadWrite).err().unwrap();
    assert!(told.contains("is in use by this process itself"), "the lock was given back: {told}");
    let mut device = try_open(&driver, &spec, Access::TakeOver).unwrap();
    driver.write(&mut *device, 0, &[6; 4096], true);
    drop(device);
    assert_eq!(ceph.content("silent")[..4096], [6; 4096]);
}
