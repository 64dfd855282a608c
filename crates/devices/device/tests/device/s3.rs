//! A volume in an object store as a device, against versitygw.
//!
//! The keys are where clients of stores look for them: in the environment. So each test starts a server, and then itself again with that.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use forebay_block::DeviceOp;
use forebay_device::{
    Access, CheckpointChange, CheckpointError, Device, DeviceKind, DeviceSpec, OpenError, Survives, open,
};
use tempfile::TempDir;

use crate::harness::{Driver, disk_directory};
use crate::round_trip::{SIZE, exercise, past_the_end_is_refused};

/// The server's directory, for the test that was started again.
const STORE: &str = "FOREBAY_TEST_STORE";

/// A server, killed when dropped.
struct Server {
    child: Child,
    port: u16,
    directory: TempDir,
}

impl Server {
    fn start() -> Option<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
        let built = root.join("target/versitygw");
        let made = Command::new(root.join("scripts/versitygw.sh")).arg(&built).stderr(Stdio::null()).status();
        if !made.is_ok_and(|status| status.success()) {
            // Go's modules come from somewhere else than all other packages. `tests/s3.sh` has another server as well.
            eprintln!("SKIP: versitygw cannot be built");
            return None;
        }
        let directory = disk_directory();
        for name in ["data", "beside", "data/bucket"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = Command::new(built.join("versitygw"))
            .args(["--port", &format!("127.0.0.1:{port}"), "--quiet", "posix", "--sidecar"])
            .args([directory.path().join("beside"), directory.path().join("data")])
            .envs([("ROOT_ACCESS_KEY", "test"), ("ROOT_SECRET_KEY", "hidden-secret")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(60), "versitygw does not listen");
            thread::sleep(Duration::from_millis(10));
        }
        Some(Self { child, port, directory })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The directory where a server keeps its objects. None if the test has been carried out with one, or cannot be.
fn store(test: &str) -> Option<PathBuf> {
    if let Some(directory) = std::env::var_os(STORE) {
        return Some(directory.into());
    }
    let server = Server::start()?;
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(STORE, server.directory.path().join("data"))
        .env("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{}", server.port))
        .envs([("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "hidden-secret")])
        .status()
        .unwrap();
    assert!(status.success(), "{test}: {status}");
    None
}

fn spec(text: &str) -> DeviceSpec {
    text.parse().unwrap()
}

fn make(text: &str) -> Result<bool, OpenError> {
    spec(text).remote().unwrap().make(SIZE)
}

impl Driver {
    fn refused(&self, text: &str, access: Access) -> String {
        let refused = open(&spec(text), &self.ring, access).err();
        refused.unwrap_or_else(|| panic!("{text} is opened")).to_string()
    }
}

/// Has a checkpoint made or given up.
fn checkpoint(
    driver: &Driver,
    device: &mut dyn Device,
    change: CheckpointChange,
) -> Result<(), CheckpointError> {
    let (sender, receiver) = channel();
    device.checkpoint(change, Box::new(move |result| sender.send(result).unwrap()), driver.clock.now());
    loop {
        device.poll(driver.clock.now(), &mut Vec::new());
        if let Ok(result) = receiver.try_recv() {
            return result;
        }
        driver.ring.submit_and_wait(Some(Duration::from_millis(10)), || true).unwrap();
    }
}

#[test]
fn a_checkpoint_is_kept_under_its_name() {
    let Some(_) = store("s3::a_checkpoint_is_kept_under_its_name") else { return };
    let driver = Driver::new();
    let volume = "s3://bucket/volumes/db";
    let names = || -> Vec<String> {
        let kept = spec(volume).remote().unwrap().checkpoints().unwrap().unwrap();
        assert!(kept.iter().all(|kept| kept.time_ns > 1_700_000_000_000_000_000), "{kept:?}");
        kept.into_iter().map(|kept| kept.name).collect()
    };
    let missing = spec(volume).remote().unwrap().checkpoints();
    assert!(matches!(missing, Err(OpenError::Missing { .. })));
    assert!(make(volume).unwrap() && names().is_empty());
    let mut device = driver.open(volume);
    let create = |name: &str| CheckpointChange::Create(name.to_owned());
    let delete = |name: &str| CheckpointChange::Delete(name.to_owned());
    driver.write(&mut *device, 4096, &[1; 4096], true);
    assert_eq!(checkpoint(&driver, &mut *device, create("one")), Ok(()));
    driver.write(&mut *device, 4096, &[2; 4096], true);
    for (change, error) in [
        (create("one"), CheckpointError::Exists("one".to_owned())),
        (create("a b"), CheckpointError::BadName),
        (delete("two"), CheckpointError::Missing("two".to_owned())),
    ] {
        assert_eq!(checkpoint(&driver, &mut *device, change), Err(error));
    }
    assert_eq!(checkpoint(&driver, &mut *device, create("two")), Ok(()));
    assert_eq!(names(), ["one", "two"]);
    let shows = |name: &str, byte| {
        let mut reader =
            open(&spec(&format!("{volume},checkpoint={name}")), &driver.ring, Access::ReadOnly).unwrap();
        assert_eq!(driver.read(&mut *reader, 4096, 4096)[..], [byte; 4096], "{name}");
        assert_eq!(checkpoint(&driver, &mut *reader, create("three")), Err(CheckpointError::ReadOnly));
    };
    shows("one", 1);
    shows("two", 2);
    assert_eq!(checkpoint(&driver, &mut *device, delete("one")), Ok(()));
    assert_eq!(names(), ["two"]);
    let told = driver.refused(&format!("{volume},checkpoint=one"), Access::ReadOnly);
    assert!(told.contains("no checkpoint named one"), "{told}");
    // One that is asked for when the volume is closed is made all the same, and the volume is free after that.
    let (sender, receiver) = channel();
    device.checkpoint(
        create("last"),
        Box::new(move |result| sender.send(result).unwrap()),
        driver.clock.now(),
    );
    let (sender, busy) = channel();
    device.checkpoint(
        create("more"),
        Box::new(move |result| sender.send(result).unwrap()),
        driver.clock.now(),
    );
    assert_eq!(busy.recv(), Ok(Err(CheckpointError::Busy)));
    drop(device);
    assert_eq!(receiver.recv(), Ok(Ok(())));
    let mut owner = driver.open(volume);
    assert_eq!(names(), ["last", "two"]);
    // Who has lost the volume makes none.
    let next = open(&spec(volume), &driver.ring, Access::TakeOver).unwrap();
    let lost = checkpoint(&driver, &mut *owner, create("late"));
    assert!(matches!(&lost, Err(CheckpointError::Fenced(_))), "{lost:?}");
    assert_eq!(names(), ["last", "two"]);
    drop((owner, next));
    let plain = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    plain.as_file().set_len(1 << 20).unwrap();
    let mut file = driver.open(plain.path().to_str().unwrap());
    assert_eq!(checkpoint(&driver, &mut *file, create("one")), Err(CheckpointError::Unsupported));
    assert_eq!(spec("rbd:pool/image").remote().unwrap().checkpoints().unwrap(), None);
}

#[test]
fn what_is_written_is_there_for_the_next_owner() {
    let Some(_) = store("s3::what_is_written_is_there_for_the_next_owner") else { return };
    let driver = Driver::new();
    let volume = "s3://bucket/volumes/db";
    assert!(matches!(open(&spec(volume), &driver.ring, Access::ReadWrite), Err(OpenError::Missing { .. })));
    assert!(make(volume).unwrap());
    assert!(!make(volume).unwrap(), "it is there");
    let mut device = driver.open(volume);
    let info = device.info().clone();
    assert_eq!((info.kind, info.size_bytes, info.logical_block), (DeviceKind::Remote, SIZE, 512));
    assert!(info.volatile_cache && info.survives == Survives::PowerCut);
    let mut model = exercise(&driver, &mut *device, 512);
    past_the_end_is_refused(&driver, &mut *device);
    driver.run(&mut *device, DeviceOp::Zero { offset: 4096, len: 3 << 20, unmap: true }).unwrap();
    model[4096..4096 + (3 << 20)].fill(0);
    driver.write(&mut *device, SIZE - 512, &[7; 512], true);
    model[SIZE as usize - 512..].fill(7);
    assert!(device.away().is_none() && device.waiting() == 0);
    drop(device);
    // Whoever has it had to be asked, if it had not been released.
    let mut device = driver.open(volume);
    assert_eq!(driver.read(&mut *device, 0, SIZE as usize)[..], model[..]);
    device.resize(SIZE + 4096).unwrap();
    assert_eq!(driver.read(&mut *device, SIZE, 4096)[..], [0; 4096]);
    drop(device);
    let mut reader = open(&spec(volume), &driver.ring, Access::ReadOnly).unwrap();
    assert_eq!(reader.info().size_bytes, SIZE + 4096);
    assert_eq!(driver.read(&mut *reader, 0, SIZE as usize)[..], model[..]);
    let write = DeviceOp::Write { offset: 0, bufs: vec![forebay_block::Buf::zeroed(512)], durable: true };
    assert!(driver.run(&mut *reader, write).is_err());
}

#[test]
fn an_owner_is_asked_for_and_fenced() {
    let Some(_) = store("s3::an_owner_is_asked_for_and_fenced") else { return };
    let driver = Driver::new();
    let volume = "s3://bucket/db";
    make(volume).unwrap();
    let mut first = driver.open(volume);
    driver.write(&mut *first, 0, &[1; 4096], true);
    let told = driver.refused(volume, Access::ReadWrite);
    assert!(told.contains("is in use by this process itself"), "{told}");
    driver.write(&mut *first, 4096, &[2; 4096], true);
    let mut second = open(&spec(volume), &driver.ring, Access::TakeOver).unwrap();
    assert_eq!(driver.read(&mut *second, 0, 4096)[..], [1; 4096]);
    assert_eq!(driver.read(&mut *second, 4096, 4096)[..], [2; 4096]);
    let late =
        DeviceOp::Write { offset: 0, bufs: vec![forebay_block::Buf::copy_of(&[3; 4096])], durable: true };
    let told = driver.run(&mut *first, late).unwrap_err().to_string();
    assert!(
        told.starts_with("writing to an object store at byte 0: ") && told.contains("taken the volume over"),
        "{told}"
    );
    let read = driver.run(&mut *first, DeviceOp::Read { offset: 0, len: 4096 });
    assert!(read.unwrap_err().to_string().contains("taken the volume over"));
    // The one that goes takes nothing from the one that stays.
    drop(first);
    driver.write(&mut *second, 0, &[4; 4096], true);
    drop(second);
    let mut third = driver.open(volume);
    assert_eq!(driver.read(&mut *third, 0, 4096)[..], [4; 4096]);
}

#[test]
fn what_the_store_says_is_told() {
    let Some(directory) = store("s3::what_the_store_says_is_told") else { return };
    let driver = Driver::new();
    let told = driver.refused("s3://absent/db", Access::ReadWrite);
    assert!(told.contains("404 NoSuchBucket"), "{told}");
    fs::create_dir_all(directory.join("bucket/taken")).unwrap();
    fs::write(directory.join("bucket/taken/by-something-else"), "x").unwrap();
    let told = make("s3://bucket/taken").unwrap_err().to_string();
    assert!(told.contains("there is something else: by-something-else"), "{told}");
    assert!(make("s3://bucket/made").unwrap());
    spec("s3://bucket/made").remote().unwrap().remove().unwrap();
    assert!(make("s3://bucket/made").unwrap(), "it is gone");
    let told = driver.refused("s3://bucket/made,checkpoint=none", Access::ReadOnly);
    assert!(told.contains("no checkpoint named none"), "{told}");
    let told = driver.refused("s3://bucket/made,checkpoint=none", Access::ReadWrite);
    assert!(told.contains("a checkpoint stays as it was"), "{told}");
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let told =
        driver.refused(&format!("s3://bucket/db,endpoint=http://{nobody},timeout=1s"), Access::ReadWrite);
    assert!(told.contains("Connection refused"), "{told}");
    assert!(!told.contains("hidden-secret") && !told.contains("Signature"), "{told}");
}
