//! Background writes must not take every slot of the queue.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant};

use forebay_fuse::{AttachOptions, QueueLimits};

use crate::memory::Behaviour;
use crate::{Served, able};

const SLOTS: u64 = 128;

/// Waits until `reached` says so; false if it does not within `seconds`.
fn within(seconds: u64, reached: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    while !reached() {
        if Instant::now() > deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(2));
    }
    true
}

/// Lets the flusher write as much as it can to a volume that answers nothing, then writes synchronously. Returns how many background
/// writes got through, and whether one with O_DIRECT and one as of an fsync did as well.
fn flood(attach: AttachOptions, unthrottled: bool, expected: u64) -> (u64, bool, bool) {
    let served = Served::new(Behaviour::of_size(64 << 20));
    let attachment = served.attach(attach);
    let device = attachment.device_path().to_owned();
    let name = device.file_name().unwrap().to_str().unwrap();
    let throttle = format!("/sys/block/{name}/queue/wbt_lat_usec");
    if unthrottled {
        std::fs::write(&throttle, "0").unwrap();
    }
    let file = OpenOptions::new().read(true).write(true).open(&device).unwrap();
    // Every other page, so that no two make one request.
    for page in 0..4096 {
        file.write_all_at(&[1; 4096], page * 8192).unwrap();
    }
    served.volume.stall(true);
    let arrived = || served.volume.seen().stalled.load(SeqCst);
    let flusher = thread::spawn(move || {
        // Write-back as the flusher thread does it: nobody waits for these.
        // SAFETY: the call takes no pointers, and the descriptor is open.
        unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
        file
    });
    // As many as there will be: with the reserve between a quarter and a half, by what else is active.
    within(20, || arrived() >= expected);
    thread::sleep(Duration::from_millis(300));
    let before = arrived();
    let path = device.clone();
    let direct = thread::spawn(move || {
        let file = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
        file.write_all_at(&forebay_block::BufMut::zeroed(4096), 4096).unwrap();
    });
    let direct_through = within(2, || arrived() > before);
    let direct_arrived = arrived();
    let path = device.clone();
    let cached = thread::spawn(move || {
        let file = OpenOptions::new().write(true).open(path).unwrap();
        let (page, len) = (40 << 20, 4096);
        file.write_all_at(&[2; 4096], page).unwrap();
        // Writes this page and waits for it, as fsync would if the file had no others.
        let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
            | libc::SYNC_FILE_RANGE_WRITE
            | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        // SAFETY: the call takes no pointers, and the descriptor is open.
        let rc = unsafe { libc::sync_file_range(file.as_raw_fd(), page as i64, len, flags) };
        assert_eq!(rc, 0);
    });
    let cached_through = within(2, || arrived() > direct_arrived);
    served.volume.stall(false);
    direct.join().unwrap();
    cached.join().unwrap();
    drop::<File>(flusher.join().unwrap());
    if unthrottled {
        std::fs::write(&throttle, "-1").unwrap();
    }
    attachment.detach(false).unwrap();
    served.end();
    (before, direct_through, cached_through)
}

/// Whether the kernel has the scheduler that keeps slots free.
fn has_scheduler() -> bool {
    let served = Served::new(Behaviour::of_size(1 << 20));
    let attachment = served.attach(AttachOptions::default());
    let setup = attachment.queue().clone();
    attachment.detach(false).unwrap();
    served.end();
    if !setup.reserved {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "missing: {setup:?}");
        eprintln!("SKIP: missing: {setup:?}");
    }
    setup.reserved
}

#[test]
fn a_synchronous_write_gets_through_a_flood_of_background_writes() {
    if !able(&[]) || !has_scheduler() {
        return;
    }
    let (background, direct, cached) = flood(AttachOptions::default(), false, SLOTS / 4);
    assert!(direct && cached, "{background} background writes are under way and a synchronous one waits");
    assert!((SLOTS / 4..=SLOTS / 2).contains(&background), "{background}");
}

/// Shows that the test above can fail: without the reserve there is nothing left for the synchronous write.
#[test]
fn without_the_reserve_and_the_throttle_it_does_not() {
    if !able(&[]) {
        return;
    }
    let queue = QueueLimits { reserve: false, ..QueueLimits::default() };
    let (background, direct, cached) =
        flood(AttachOptions { queue, ..AttachOptions::default() }, true, SLOTS);
    assert_eq!((background, direct, cached), (SLOTS, false, false));
}
