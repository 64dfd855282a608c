//! Durable writes to a file on FUSE, whose server keeps apart what was synced: the rest is gone when power is cut.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use forebay_block::{Buf, Class, DeviceOp, DeviceResult, ErrorKind};
use forebay_device::{Device, Survives};
use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry,
    ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use tempfile::TempDir;

use crate::harness::{Driver, skip};

const SIZE: u64 = 1 << 20;
const UNIT: u64 = 4096;
const TTL: Duration = Duration::from_secs(1);
const FILE: INodeNo = INodeNo(2);

/// What the server knows.
#[derive(Default)]
struct Store {
    /// As reads see it.
    bytes: Mutex<Vec<u8>>,
    /// What a power cut leaves.
    durable: Mutex<Vec<u8>>,
    syncs: AtomicU32,
    /// The next sync fails, and what it should have covered is never made durable.
    fails: AtomicBool,
}

#[derive(Clone)]
struct Server(Arc<Store>);

impl Server {
    fn attr(&self, ino: INodeNo) -> FileAttr {
        let is_file = ino == FILE;
        FileAttr {
            ino,
            size: if is_file { self.0.bytes.lock().unwrap().len() as u64 } else { 0 },
            blocks: 0,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if is_file { FileType::RegularFile } else { FileType::Directory },
            perm: 0o755,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            flags: 0,
            blksize: 4096,
        }
    }
}

impl Filesystem for Server {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // As libfuse has it. The kernel then carries direct writes out asynchronously, and forgets about RWF_DSYNC (Linux 6.18).
        config.add_capabilities(InitFlags::FUSE_ASYNC_DIO).map_err(|_| std::io::ErrorKind::Unsupported.into())
    }

    fn lookup(&self, _request: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name.to_str() {
            Some("file") => reply.entry(&TTL, &self.attr(FILE), Generation(0)),
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &self.attr(ino));
    }

    fn setattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<std::time::SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<std::time::SystemTime>,
        _chgtime: Option<std::time::SystemTime>,
        _bkuptime: Option<std::time::SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        reply.attr(&TTL, &self.attr(ino));
    }

    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let bytes = self.0.bytes.lock().unwrap();
        let end = bytes.len().min(offset as usize + size as usize);
        reply.data(bytes.get(offset as usize..end).unwrap_or_default());
    }

    fn write(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.0.bytes.lock().unwrap()[offset as usize..offset as usize + data.len()].copy_from_slice(data);
        reply.written(data.len() as u32);
    }

    fn flush(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn fsync(&self, _request: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let mut durable = self.0.durable.lock().unwrap();
        if self.0.fails.swap(false, Ordering::SeqCst) {
            return reply.error(Errno::EIO);
        }
        self.0.syncs.fetch_add(1, Ordering::SeqCst);
        durable.clone_from(&self.0.bytes.lock().unwrap());
        reply.ok();
    }

    fn fallocate(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        _mode: i32,
        reply: ReplyEmpty,
    ) {
        self.0.bytes.lock().unwrap()[offset as usize..(offset + length) as usize].fill(0);
        reply.ok();
    }
}

/// A file of this size on such a file system, unmounted when dropped.
pub struct Mounted {
    store: Arc<Store>,
    pub path: PathBuf,
    session: Option<BackgroundSession>,
    _directory: TempDir,
}

impl Mounted {
    pub fn new(bytes: u64) -> Option<Self> {
        let store = Arc::new(Store::default());
        *store.bytes.lock().unwrap() = vec![0; bytes as usize];
        *store.durable.lock().unwrap() = vec![0; bytes as usize];
        let directory = TempDir::new().unwrap();
        match fuser::spawn_mount(Server(Arc::clone(&store)), directory.path(), &Config::default()) {
            Ok(session) => {
                let path = directory.path().join("file");
                Some(Self { store, path, session: Some(session), _directory: directory })
            }
            Err(e) => {
                skip(&format!("cannot mount FUSE: {e}"));
                None
            }
        }
    }

    fn syncs(&self) -> u32 {
        self.store.syncs.load(Ordering::SeqCst)
    }

    /// Whether a power cut now would leave the block as full of this byte.
    fn has(&self, block: u64, byte: u8) -> bool {
        let at = (block * UNIT) as usize;
        self.store.durable.lock().unwrap()[at..at + UNIT as usize].iter().all(|b| *b == byte)
    }

    fn fail_next_sync(&self) {
        self.store.fails.store(true, Ordering::SeqCst);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            let _ = session.umount_and_join();
        }
    }
}

fn write(block: u64, byte: u8) -> DeviceOp {
    DeviceOp::Write { offset: block * UNIT, bufs: vec![Buf::copy_of(&[byte; UNIT as usize])], durable: true }
}

/// Submits writes at once, and looks at each end whether a power cut at that moment would leave it.
fn each_is_durable_at_its_end(driver: &Driver, device: &mut dyn Device, file: &Mounted, byte: u8) {
    const WRITES: u64 = 64;
    for block in 0..WRITES {
        device.submit(block, write(block, byte), Class::Foreground, driver.clock.now());
    }
    let (mut left, mut done) = (WRITES, Vec::new());
    loop {
        device.poll(driver.clock.now(), &mut done);
        for (block, result) in done.drain(..) {
            assert!(result.unwrap().is_none());
            assert!(file.has(block, byte), "block {block} was acknowledged and is lost by a power cut");
            left -= 1;
        }
        if left == 0 {
            return;
        }
        let now = driver.clock.now();
        let timeout = device.deadline().map(|at| Duration::from_nanos(at.since(now)));
        driver.ring.submit_and_wait(timeout, || true).unwrap();
    }
}

fn durable_at_once_and_one_by_one(file: &Mounted, spec: &str, is_direct: Option<bool>) {
    let driver = Driver::new();
    let mut device = driver.open(spec);
    if let Some(direct) = is_direct {
        assert_eq!(device.info().direct, direct);
    }
    assert_eq!(device.info().survives, Survives::Unknown, "nobody knows what the server does");
    assert!(device.info().durability.starts_with("unknown: the file lies on FUSE"));
    let before = file.syncs();
    each_is_durable_at_its_end(&driver, &mut *device, file, 1);
    let together = file.syncs() - before;
    assert!((1..=64).contains(&together), "{together} syncs for 64 writes");
    for block in 0..20 {
        driver.run(&mut *device, write(block, 2)).unwrap();
        assert!(file.has(block, 2), "block {block} is lost by a power cut");
    }
    assert_eq!(file.syncs() - before - together, 20, "one sync for each write that is alone");
}

#[test]
fn a_durable_direct_write_is_synced_before_it_ends() {
    let Some(file) = Mounted::new(SIZE) else { return };
    durable_at_once_and_one_by_one(&file, file.path.to_str().unwrap(), Some(true));
}

#[test]
fn a_durable_buffered_write_is_synced_before_it_ends() {
    let Some(file) = Mounted::new(SIZE + 512) else { return };
    durable_at_once_and_one_by_one(&file, file.path.to_str().unwrap(), Some(false));
}

#[test]
fn an_emulated_device_syncs_its_file() {
    let Some(file) = Mounted::new(SIZE) else { return };
    let driver = Driver::new();
    let mut device = driver.open(&format!("emulate:ssd-nvme:file={}", file.path.display()));
    each_is_durable_at_its_end(&driver, &mut *device, &file, 3);
}

#[test]
fn zeroes_are_durable_with_the_next_flush() {
    let Some(file) = Mounted::new(SIZE) else { return };
    let driver = Driver::new();
    let mut device = driver.open_path(&file.path);
    driver.run(&mut *device, write(5, 1)).unwrap();
    for unmap in [false, true] {
        driver.run(&mut *device, write(6, 1)).unwrap();
        driver.run(&mut *device, DeviceOp::Zero { offset: 5 * UNIT, len: 2 * UNIT, unmap }).unwrap();
        driver.run(&mut *device, DeviceOp::Flush).unwrap();
        assert!(file.has(5, 0) && file.has(6, 0));
    }
}

#[test]
fn a_sync_that_fails_fails_the_write_and_the_next_flush() {
    for bytes in [SIZE, SIZE + 512] {
        let Some(file) = Mounted::new(bytes) else { return };
        let driver = Driver::new();
        let mut device = driver.open_path(&file.path);
        let plain = DeviceOp::Write { offset: 0, bufs: vec![Buf::zeroed(UNIT as usize)], durable: false };
        driver.run(&mut *device, plain).unwrap();
        file.fail_next_sync();
        let failed = |result: DeviceResult| result.is_err_and(|e| e.kind == ErrorKind::Io);
        assert!(failed(driver.run(&mut *device, write(1, 1))));
        // The kernel has told it once; the plain write before may be gone with it.
        assert!(failed(driver.run(&mut *device, DeviceOp::Flush)));
        driver.run(&mut *device, DeviceOp::Flush).unwrap();
        driver.run(&mut *device, write(1, 2)).unwrap();
        assert!(file.has(1, 2));
    }
}

#[test]
fn a_mapped_file_is_synced_too() {
    let Some(file) = Mounted::new(SIZE) else { return };
    let driver = Driver::new();
    let mut device = driver.open(&format!("pmem:{}", file.path.display()));
    for block in 0..20 {
        driver.run(&mut *device, write(block, 4)).unwrap();
        assert!(file.has(block, 4), "block {block} is lost by a power cut");
    }
}
