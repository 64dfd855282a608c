//! The volume as a loop device: verified data under concurrency, and the life of an attachment.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;

use forebay_fuse::{AttachOptions, FuseError, FuseOptions};

use crate::memory::Behaviour;
use crate::{Served, able, run};

const MIB: u64 = 1 << 20;

/// A volume that takes its time and answers out of order.
fn slow(size_bytes: u64) -> Behaviour {
    Behaviour { threads: 8, delay_us_max: 300, ..Behaviour::of_size(size_bytes) }
}

/// Writes all of `target` in requests of mixed sizes and offsets, many at a time, reading back what was written in between and at
/// the end.
fn fio_verify(target: &Path, extra: &[&str]) {
    let filename = format!("--filename={}", target.display());
    let mut arguments = vec![
        "--name=verify",
        &filename,
        "--ioengine=io_uring",
        "--rw=randwrite",
        "--iodepth=32",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--verify_state_save=0",
        "--verify_backlog=100",
        "--randseed=4711",
        "--output-format=terse",
    ];
    arguments.extend_from_slice(extra);
    run("fio", &arguments);
}

const MIXED: &[&str] =
    &["--direct=1", "--size=64M", "--bsrange=512-1M", "--blockalign=512", "--verify_interval=512"];

fn verify_on_device(attach: AttachOptions, fuse: FuseOptions) {
    let served = Served::with(slow(64 * MIB), fuse);
    let attachment = served.attach(attach.clone());
    assert_eq!(attachment.direct_io(), attach.direct_io);
    fio_verify(attachment.device_path(), MIXED);
    attachment.detach(false).unwrap();
    let stats = served.export.stats();
    assert!(stats.writes > 0 && stats.reads > 0 && stats.errors == 0 && stats.refused == 0, "{stats:?}");
    served.end();
}

#[test]
fn mixed_sizes_at_depth_verify_with_direct_io() {
    if able(&["fio"]) {
        verify_on_device(AttachOptions::default(), FuseOptions::default());
    }
}

#[test]
fn mixed_sizes_at_depth_verify_with_one_reader_and_the_inode_lock() {
    if able(&["fio"]) {
        let fuse = FuseOptions { reader_threads: 1, parallel_direct_writes: false, ..FuseOptions::default() };
        verify_on_device(AttachOptions::default(), fuse);
    }
}

#[test]
fn mixed_sizes_at_depth_verify_without_direct_io() {
    if able(&["fio"]) {
        let attach = AttachOptions { direct_io: false, ..AttachOptions::default() };
        verify_on_device(attach, FuseOptions::default());
    }
}

#[test]
fn a_file_system_on_it_stays_whole() {
    if !able(&["fio", "mke2fs", "e2fsck", "mount"]) {
        return;
    }
    let served = Served::new(slow(192 * MIB));
    let attachment = served.attach(AttachOptions::default());
    let device = attachment.device_path().to_str().unwrap().to_owned();
    // Garbage below, so that whatever should have been zeroed and was not is seen.
    fs::File::options().write(true).open(&device).unwrap().write_all_at(&vec![0xA5; 192 << 20], 0).unwrap();
    run("mke2fs", &["-q", "-t", "ext4", "-E", "nodiscard", &device]);
    let point = served.mount_point();
    run("mount", &["-o", "discard", &device, point.to_str().unwrap()]);
    let many =
        ["--size=32M", "--bsrange=512-64k", "--blockalign=512", "--verify_interval=512", "--numjobs=2"];
    let directory = format!("--directory={}", point.display());
    let job = |more: &[&str]| {
        let mut arguments = vec![
            "--name=fs",
            &directory,
            "--rw=randwrite",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--verify_state_save=0",
            "--randseed=11",
            "--output-format=terse",
        ];
        arguments.extend(many);
        arguments.extend(more);
        run("fio", &arguments);
    };
    job(&["--ioengine=psync", "--fsync=16", "--filename_format=buffered.$jobnum"]);
    job(&["--ioengine=io_uring", "--direct=1", "--iodepth=16", "--filename_format=direct.$jobnum"]);
    fs::remove_file(point.join("buffered.0")).unwrap();
    let busy = attachment.detach(false).unwrap_err();
    assert!(matches!(&busy, FuseError::Busy { by, .. } if by.contains("mounted")), "{busy}");
    attachment.detach(true).unwrap();
    assert!(served.volume.seen().unmaps.load(SeqCst) > 0, "discards arrive");
    run("e2fsck", &["-fn", served.path().to_str().unwrap()]);

    // The same again, after a new attachment, from the medium alone.
    let attachment = served.attach(AttachOptions::default());
    run("mount", &[attachment.device_path().to_str().unwrap(), point.to_str().unwrap()]);
    job(&["--ioengine=psync", "--verify_only=1", "--numjobs=1", "--filename_format=direct.$jobnum"]);
    attachment.detach(true).unwrap();
    served.end();
}

#[test]
fn discards_and_zeroes_of_the_device_really_zero() {
    if !able(&["blkdiscard"]) {
        return;
    }
    let served = Served::new(Behaviour::of_size(16 * MIB));
    let attachment = served.attach(AttachOptions::default());
    let device = attachment.device_path().to_str().unwrap();
    served.volume.poke(0, &vec![9; 16 << 20]);
    run("blkdiscard", &["-o", "4096", "-l", "8192", device]);
    run("blkdiscard", &["-z", "-o", "1048576", "-l", "1048576", device]);
    assert_eq!(served.volume.seen().unmaps.load(SeqCst), 1);
    assert_eq!(served.volume.seen().zeroes.load(SeqCst), 1);
    assert_eq!(served.volume.peek(4095, 1), [9]);
    assert!(served.volume.peek(4096, 8192).iter().all(|b| *b == 0));
    assert_eq!(served.volume.peek(12288, 1), [9]);
    assert!(served.volume.peek(1 << 20, 1 << 20).iter().all(|b| *b == 0));
    attachment.detach(false).unwrap();
    served.end();
}

#[test]
fn written_back_on_detach_and_gone_after_it() {
    if !able(&[]) {
        return;
    }
    let served = Served::new(slow(16 * MIB));
    let attachment = served.attach(AttachOptions::default());
    let device = attachment.device_path().to_owned();
    let bytes = vec![0x5A; 4 << 20];
    // Buffered: it lies in the page cache of the device when detach begins.
    fs::File::options().write(true).open(&device).unwrap().write_all_at(&bytes, 0).unwrap();
    assert!(matches!(served.export.unmount(), Err(FuseError::Busy { .. })), "the loop device counts");
    served.volume.fail(true);
    let failed = attachment.detach(false);
    served.volume.fail(false);
    assert!(matches!(failed, Err(FuseError::System { .. })), "a failed write-back is told: {failed:?}");
    fs::File::options().write(true).open(&device).unwrap().write_all_at(&bytes, 0).unwrap();
    attachment.detach(false).unwrap();
    assert!(served.volume.peek(0, bytes.len()) == bytes);
    attachment.detach(false).unwrap();
    drop(served.attach(AttachOptions::default()));
    served.end();
}

#[test]
fn a_device_that_is_open_goes_when_it_is_closed() {
    if !able(&[]) {
        return;
    }
    let served = Served::new(Behaviour::of_size(MIB));
    let attachment = served.attach(AttachOptions::default());
    let open = fs::File::open(attachment.device_path()).unwrap();
    assert!(matches!(attachment.detach(false), Err(FuseError::StillOpen { .. })));
    drop(open);
    attachment.detach(false).unwrap();
    served.end();
}
