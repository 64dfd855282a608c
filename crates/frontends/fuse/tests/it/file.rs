//! The volume as a file, used directly.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;

use forebay_block::{BlockService, BufMut, Op, Origin};
use forebay_fuse::{FuseError, FuseExport, FuseOptions};

use crate::memory::{Behaviour, MemoryVolume, STATUS_BYTES_MAX};
use crate::{Served, able};

const MIB: u64 = 1 << 20;

fn open(served: &Served) -> File {
    OpenOptions::new().read(true).write(true).open(served.path()).unwrap()
}

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|e| e.raw_os_error())
}

#[test]
fn any_read_and_any_write_is_right() {
    if !able(&[]) {
        return;
    }
    let size = MIB + 512;
    let served = Served::new(Behaviour::of_size(size));
    let pattern: Vec<u8> = (0..size).map(|i| (i * 7 % 253) as u8).collect();
    let file = open(&served);
    assert_eq!(file.metadata().unwrap().len(), size);
    file.write_all_at(&pattern, 0).unwrap();
    assert_eq!(served.volume.peek(0, size as usize), pattern);
    for (offset, len) in
        [(0, 1), (1, 511), (100, 5000), (511, 2), (4096, 4096), (0, size as usize), (3, 600_000)]
    {
        let mut got = vec![0; len];
        file.read_exact_at(&mut got, offset).unwrap();
        assert_eq!(got, pattern[offset as usize..offset as usize + len], "{offset}+{len}");
    }
    let mut tail = vec![0; 4096];
    assert_eq!(file.read_at(&mut tail, size - 100).unwrap(), 100);
    assert_eq!(file.read_at(&mut tail, size).unwrap(), 0);
    assert_eq!(errno(file.write_at(&[1; 512], size)), Some(libc::ENOSPC));
    assert_eq!(errno(file.write_at(&[1; 5], size + 7)), Some(libc::ENOSPC));
    assert_eq!(file.write_at(&[1; 1024], size - 512).unwrap(), 512, "cut at the end");
    let stats = served.export.stats();
    assert_eq!((stats.refused, stats.outstanding), (2, 0));
    assert_eq!(stats.write_bytes, size + 512);

    let mut expected = served.volume.peek(0, size as usize);
    let pieces =
        [(0, 1), (1, 511), (100, 5000), (511, 2), (513, 510), (4096, 100), (3, 600_000), (size - 1, 1)];
    for (round, (offset, len)) in pieces.into_iter().enumerate() {
        let piece: Vec<u8> = (0..len).map(|i| (i * 3 + round as u64 + 1) as u8).collect();
        file.write_all_at(&piece, offset).unwrap();
        expected[offset as usize..(offset + len) as usize].copy_from_slice(&piece);
        assert!(served.volume.peek(0, size as usize) == expected, "{offset}+{len}");
    }
    let unaligned = served.export.stats().writes_unaligned - stats.writes_unaligned;
    assert_eq!(unaligned, pieces.len() as u64);
    drop(file);
    served.end();
}

#[test]
fn a_write_larger_than_a_request_may_lie_anywhere_in_memory() {
    if !able(&[]) {
        return;
    }
    let served = Served::new(Behaviour::of_size(8 * MIB));
    let file = open(&served);
    let memory: Vec<u8> = (0..4 * MIB + 4096).map(|i| (i * 31 % 251) as u8).collect();
    for skew in [1, 16, 511, 513, 4095] {
        let data = &memory[skew..skew + 4 * MIB as usize];
        file.write_all_at(data, 512).unwrap();
        assert!(served.volume.peek(512, data.len()) == data, "skew {skew}");
    }
    drop(file);
    served.end();
}

#[test]
fn durability_is_asked_for() {
    if !able(&[]) {
        return;
    }
    let served = Served::new(Behaviour::of_size(MIB));
    // A program that another test starts at this moment would close copies of the descriptors here, which flushes.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            const FIRST: libc::c_uint = 3;
            let (last, unshare) = (libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE);
            // SAFETY: the call takes no pointers. It closes descriptors in the table of this new thread only, which owns none of them.
            assert_eq!(unsafe { libc::syscall(libc::SYS_close_range, FIRST, last, unshare) }, 0);
            asks_for_durability(&served);
        });
    });
    served.end();
}

fn asks_for_durability(served: &Served) {
    let seen = served.volume.seen();
    let file = open(served);
    file.write_all_at(&[1; 512], 0).unwrap();
    assert_eq!(seen.last_pid.load(SeqCst), {
        // SAFETY: the call takes no argument and cannot fail.
        unsafe { libc::gettid() as u64 }
    });
    assert_eq!((seen.flushes.load(SeqCst), seen.fua_writes.load(SeqCst)), (0, 0));
    file.sync_data().unwrap();
    assert_eq!(seen.flushes.load(SeqCst), 1);
    file.sync_all().unwrap();
    assert_eq!(seen.flushes.load(SeqCst), 2);
    drop(file);
    assert_eq!(seen.flushes.load(SeqCst), 3, "close flushes, too");
    let flags = libc::O_DSYNC;
    let file = OpenOptions::new().write(true).custom_flags(flags).open(served.path()).unwrap();
    file.write_all_at(&[1; 512], 0).unwrap();
    assert_eq!(seen.fua_writes.load(SeqCst), 1);
    assert_eq!(served.export.stats().writes_durable, 1);
    drop(file);
}

#[test]
fn ranges_are_zeroed_and_holes_found() {
    if !able(&[]) {
        return;
    }
    let served = Served::new(Behaviour::of_size(MIB));
    let file = open(&served);
    file.write_all_at(&vec![7; MIB as usize], 0).unwrap();
    let allocate = |mode, offset, len| {
        // SAFETY: the call takes no pointers, and the descriptor is open.
        let rc = unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, len) };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    let seek = |offset, whence| {
        // SAFETY: the call takes no pointers, and the descriptor is open.
        let at = unsafe { libc::lseek(file.as_raw_fd(), offset, whence) };
        if at >= 0 { Ok(at) } else { Err(io::Error::last_os_error()) }
    };
    assert_eq!(seek(0, libc::SEEK_HOLE).unwrap(), MIB as i64);
    allocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 8192, 8192).unwrap();
    allocate(libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE, 65536, 4096).unwrap();
    let seen = served.volume.seen();
    assert_eq!((seen.unmaps.load(SeqCst), seen.zeroes.load(SeqCst)), (1, 1));
    assert!(served.volume.peek(8192, 8192).iter().all(|b| *b == 0));
    assert!(served.volume.peek(65536, 4096).iter().all(|b| *b == 0));
    assert_eq!(served.volume.peek(8191, 1), [7]);
    assert_eq!(served.volume.peek(16384, 1), [7]);
    assert_eq!(seek(0, libc::SEEK_HOLE).unwrap(), 8192);
    assert_eq!(seek(8193, libc::SEEK_HOLE).unwrap(), 8193);
    assert_eq!(seek(8193, libc::SEEK_DATA).unwrap(), 16384);
    assert_eq!(seek(20000, libc::SEEK_DATA).unwrap(), 20000);
    assert_eq!(errno(seek(MIB as i64, libc::SEEK_DATA)), Some(libc::ENXIO));
    assert_eq!(errno(allocate(0, 0, 4096)), Some(libc::EOPNOTSUPP));
    assert_eq!(errno(allocate(libc::FALLOC_FL_PUNCH_HOLE | 1, 100, 512)), Some(libc::EINVAL));
    drop(file);
    served.end();
}

/// The kernel keeps writers waiting while it searches: after 32 short answers it is told to go on from where they end.
#[test]
fn a_long_search_ends_early_and_misses_nothing() {
    if !able(&[]) {
        return;
    }
    let served = Served::new(Behaviour::of_size(3 * MIB));
    let file = open(&served);
    let seek = |offset: u64, whence| {
        // SAFETY: the call takes no pointers, and the descriptor is open.
        let at = unsafe { libc::lseek(file.as_raw_fd(), offset as i64, whence) };
        if at >= 0 { Ok(at as u64) } else { Err(io::Error::last_os_error()) }
    };
    let most = 32 * STATUS_BYTES_MAX;
    // Nothing but holes: a search for data ends where it might be, and a hole is found right there.
    assert_eq!(seek(0, libc::SEEK_DATA).unwrap(), most);
    assert_eq!(seek(most, libc::SEEK_HOLE).unwrap(), most);
    assert_eq!(errno(seek(3 * MIB - most, libc::SEEK_DATA)), Some(libc::ENXIO));
    // Nothing but data: the hole that is told of has no bytes.
    served.volume.poke(0, &vec![7; 3 * MIB as usize]);
    assert_eq!(seek(0, libc::SEEK_HOLE).unwrap(), most);
    assert_eq!(seek(most, libc::SEEK_DATA).unwrap(), most);
    assert_eq!(seek(3 * MIB - most, libc::SEEK_HOLE).unwrap(), 3 * MIB);
    drop(file);
    served.end();
}

#[test]
fn the_size_stands_and_errors_are_passed_on() {
    if !able(&[]) {
        return;
    }
    let served = Served::new(Behaviour::of_size(MIB));
    let file = open(&served);
    assert_eq!(errno(file.set_len(0)), Some(libc::EPERM));
    assert_eq!(errno(file.set_len(2 * MIB)), Some(libc::EPERM));
    file.set_len(MIB).unwrap();
    assert_eq!(errno(File::create(served.path())), Some(libc::EPERM), "O_TRUNC");
    fs::set_permissions(served.path(), fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::chown(served.path(), Some(12), Some(34)).unwrap();
    let meta = fs::metadata(served.path()).unwrap();
    assert_eq!((meta.mode() & 0o7777, meta.uid(), meta.gid()), (0o640, 12, 34));
    served.volume.fail(true);
    assert_eq!(errno(file.write_at(&[1; 512], 0)), Some(libc::EIO));
    assert_eq!(errno(file.read_at(&mut [1; 512], 0)), Some(libc::EIO));
    assert_eq!(errno(file.sync_all()), Some(libc::EIO));
    served.volume.fail(false);
    while served.export.stats().outstanding > 0 {
        thread::yield_now();
    }
    // A child that another test makes meanwhile has the file, too, until it begins its program, and flushes it then: one more that fails.
    let failed = served.volume.failed();
    assert!(failed >= 3, "{failed}");
    assert_eq!(served.export.stats().errors, failed);
    file.write_all_at(&[1; 512], 0).unwrap();
    drop(file);
    served.end();
}

#[test]
fn a_read_only_volume_cannot_be_written() {
    if !able(&[]) {
        return;
    }
    let served = Served::new(Behaviour { read_only: true, ..Behaviour::of_size(MIB) });
    assert_eq!(errno(OpenOptions::new().write(true).open(served.path())), Some(libc::EROFS));
    assert_eq!(fs::read(served.path()).unwrap().len() as u64, MIB);
    let attachment = served.attach(Default::default());
    assert_eq!(fs::read(attachment.device_path()).unwrap().len() as u64, MIB);
    attachment.detach(false).unwrap();
    served.end();
}

#[test]
fn writers_side_by_side_do_not_disturb_each_other() {
    if !able(&[]) {
        return;
    }
    let served = Served::new(Behaviour { threads: 6, delay_us_max: 200, ..Behaviour::of_size(8 * MIB) });
    thread::scope(|scope| {
        for writer in 0..8u8 {
            let file = open(&served);
            scope.spawn(move || {
                for round in 0..40u64 {
                    let at = (u64::from(writer) + 8 * (round % 10)) * 65536;
                    let bytes: Vec<u8> =
                        (0..65536u64).map(|i| (i * 13 + round + u64::from(writer)) as u8).collect();
                    file.write_all_at(&bytes, at).unwrap();
                    let mut got = vec![0; bytes.len()];
                    file.read_exact_at(&mut got, at).unwrap();
                    assert!(got == bytes, "writer {writer} round {round}");
                }
            });
        }
    });
    served.end();
}

#[test]
fn a_write_of_a_part_of_a_sector_undoes_nothing() {
    if !able(&[]) {
        return;
    }
    let served = Served::new(Behaviour { threads: 6, delay_us_max: 200, ..Behaviour::of_size(MIB) });
    for round in 1..120u8 {
        let write = |bytes: Vec<u8>, offset| {
            let file = open(&served);
            move || file.write_all_at(&bytes, offset).unwrap()
        };
        thread::scope(|scope| {
            scope.spawn(write(vec![round; 1024], 0));
            scope.spawn(write(vec![round; 200], 100));
            scope.spawn(write(vec![round; 300], 300));
            scope.spawn(write(vec![round; 512], 1024 + 256));
        });
        let got = served.volume.peek(0, 2048);
        assert!(got[..1024].iter().all(|b| *b == round), "round {round}");
        assert!(got[1280..1792].iter().all(|b| *b == round), "round {round}");
        assert!(got[1024..1280].iter().all(|b| *b == 0), "round {round}");
    }
    served.end();
}

#[test]
fn a_path_in_use_or_with_data_is_refused() {
    if !able(&[]) {
        return;
    }
    let served = Served::new(Behaviour::of_size(MIB));
    let volume = MemoryVolume::start(Behaviour::of_size(MIB));
    let mount = |path| FuseExport::mount(path, Arc::new(volume.clone()), FuseOptions::default()).err();
    assert!(matches!(mount(served.path()), Some(FuseError::InUse { .. })));
    let with_data = served.dir.path().join("precious");
    fs::write(&with_data, "data").unwrap();
    let error = mount(&with_data).unwrap().to_string();
    assert!(error.contains("not empty"), "{error}");
    assert_eq!(fs::read(&with_data).unwrap(), b"data");
    assert!(matches!(mount(served.dir.path()), Some(FuseError::Unsuitable { .. })));
    assert!(matches!(mount(&served.dir.path().join("no/such")), Some(FuseError::System { .. })));

    let file = open(&served);
    assert!(matches!(served.export.unmount(), Err(FuseError::Busy { .. })));
    file.write_all_at(&[1; 512], 0).unwrap();
    drop(file);
    volume.stop();
    served.end();
}

#[test]
fn dropping_an_export_ends_it_under_its_users() {
    if !able(&[]) {
        return;
    }
    let served = Served::new(Behaviour::of_size(MIB));
    let file = open(&served);
    served.volume.stall(true);
    let waiting = thread::spawn(move || errno(file.write_at(&[1; 512], 0)));
    while served.export.stats().outstanding == 0 {
        thread::yield_now();
    }
    drop(served.export);
    let error = waiting.join().unwrap();
    assert!(matches!(error, Some(libc::ECONNABORTED | libc::ENOTCONN | libc::EIO)), "{error:?}");
    assert!(!served.dir.path().join("volume").exists());
    served.volume.stop();
}

#[test]
fn an_existing_empty_file_is_kept() {
    if !able(&[]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("volume");
    fs::write(&path, "").unwrap();
    let volume = MemoryVolume::start(Behaviour::of_size(MIB));
    let export = FuseExport::mount(&path, Arc::new(volume.clone()), FuseOptions::default()).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), MIB);
    export.unmount().unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    volume.stop();
}

/// Parts of one sector written through two mounts, and whole sectors by another frontend: what was acknowledged stays.
#[test]
fn parts_of_sectors_undo_nobodys_writes_whichever_way_they_come() {
    const ROUNDS: u8 = 200;
    if !able(&[]) {
        return;
    }
    let served = Served::new(Behaviour { delay_us_max: 300, ..Behaviour::of_size(MIB) });
    let path = served.dir.path().join("second");
    let second = FuseExport::mount(&path, Arc::new(served.volume.clone()), FuseOptions::default()).unwrap();
    let peek = |at: u64| served.volume.peek(at as usize, 1)[0];
    // A byte of its own for each, again and again; it stays as it was acknowledged until it is written again.
    let write_byte = |path: &Path, at: u64| {
        let file = OpenOptions::new().write(true).open(path).unwrap();
        for value in 1..=ROUNDS {
            assert_eq!(peek(at), value - 1, "the byte at {at} went back");
            file.write_all_at(&[value], at).unwrap();
            assert_eq!(peek(at), value, "the byte at {at} is not there");
        }
    };
    let write_sectors = || {
        for value in 1..=ROUNDS {
            assert_eq!(peek(1023), value - 1, "a sector went back");
            let (sender, receiver) = std::sync::mpsc::channel();
            let op = Op::Write { offset: 512, data: BufMut::copy_of(&[value; 512]).freeze(), fua: false };
            let done = Box::new(move |result| sender.send(result).unwrap());
            served.volume.submit(op, Origin::default(), done);
            receiver.recv().unwrap().unwrap();
            assert_eq!(peek(1023), value, "a sector is not there");
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| write_byte(served.path(), 0));
        scope.spawn(|| write_byte(&path, 511));
        scope.spawn(write_sectors);
        scope.spawn(|| {
            let file = open(&served);
            (0..u64::from(ROUNDS)).for_each(|_| file.write_all_at(&[0], 600).unwrap());
        });
    });
    second.unmount().unwrap();
    served.end();
}
