use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use super::*;

#[test]
fn timeout_ends_the_sleep() {
    let ring = Ring::new().unwrap();
    ring.submit_and_wait(Some(Duration::from_millis(1)), || true).unwrap();
}

#[test]
fn work_that_idle_sees_cancels_the_sleep() {
    let ring = Ring::new().unwrap();
    let begun = Instant::now();
    ring.submit_and_wait(Some(Duration::from_secs(60)), || false).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(30));
}

/// Each time that something comes it is told once, by a socket that was watched before or after it came; and not any more afterwards.
#[test]
fn a_watched_socket_wakes_the_ring_until_it_is_unwatched() {
    let ring = Ring::new().unwrap();
    let (near, mut far) = UnixStream::pair().unwrap();
    let mut told = Vec::new();
    let mut wait = |timeout| {
        ring.submit_and_wait(Some(timeout), || true).unwrap();
        told.clear();
        ring.take_seen(&mut told);
        told.clone()
    };
    far.write_all(b"before").unwrap();
    let watch = ring.watch(near.as_raw_fd());
    assert_eq!(wait(Duration::from_secs(60)), [Seen { watch, ends: false }]);
    (&near).read_exact(&mut [0; 6]).unwrap();
    for _ in 0..100 {
        assert_eq!(wait(Duration::from_millis(1)), [], "nothing has come");
        far.write_all(b"more").unwrap();
        assert_eq!(wait(Duration::from_secs(60)), [Seen { watch, ends: false }]);
        (&near).read_exact(&mut [0; 4]).unwrap();
    }
    let (other, mut beyond) = UnixStream::pair().unwrap();
    let second = ring.watch(other.as_raw_fd());
    beyond.write_all(b"x").unwrap();
    assert_eq!(wait(Duration::from_secs(60)), [Seen { watch: second, ends: false }]);
    ring.unwatch(watch);
    far.write_all(b"unseen").unwrap();
    assert_eq!(wait(Duration::from_millis(1)), []);
    drop(beyond);
    assert_eq!(wait(Duration::from_secs(60)), [Seen { watch: second, ends: true }], "its peer is gone");
}

/// Whether something comes before a watch ends, or between that and the next turn: nothing is left of it in the kernel.
#[test]
fn nothing_is_left_of_a_watch_that_has_ended() {
    for comes in [false, true] {
        let ring = Ring::new().unwrap();
        let (near, mut far) = UnixStream::pair().unwrap();
        let watch = ring.watch(near.as_raw_fd());
        ring.submit_and_wait(Some(Duration::ZERO), || true).unwrap();
        ring.unwatch(watch);
        if comes {
            far.write_all(b"in between").unwrap();
        }
        ring.submit_and_wait(Some(Duration::from_secs(60)), || true).unwrap();
        ring.submit_and_wait(Some(Duration::from_millis(1)), || true).unwrap();
        // Completions of the poll that come from now on would be seen here.
        far.write_all(b"later").unwrap();
        let mut reactor = ring.0.borrow_mut();
        reactor.sleep(Some(Duration::from_millis(20))).unwrap_err();
        assert_eq!(reactor.uring.completion().len(), 0);
        drop(reactor);
        (&near).read_exact(&mut vec![0; if comes { 15 } else { 5 }]).unwrap();
        drop(near);
        far.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(far.read(&mut [0]).unwrap(), 0, "the kernel has given its file up");
    }
}

/// The peer's last words and its end come in one.
#[test]
fn the_end_of_a_watched_socket_is_told_with_the_last_data() {
    let ring = Ring::new().unwrap();
    let (near, mut far) = UnixStream::pair().unwrap();
    let watch = ring.watch(near.as_raw_fd());
    ring.submit_and_wait(Some(Duration::ZERO), || true).unwrap();
    far.write_all(b"bye").unwrap();
    far.shutdown(std::net::Shutdown::Write).unwrap();
    ring.submit_and_wait(Some(Duration::from_secs(60)), || true).unwrap();
    let mut told = Vec::new();
    ring.take_seen(&mut told);
    assert_eq!(told, [Seen { watch, ends: true }]);
}

/// Without the announcement or the second look, the loop below sleeps over an item and the test hangs.
#[test]
fn no_wake_is_lost() {
    const ITEMS: u64 = 20_000;
    let ring = Ring::new().unwrap();
    let published = Arc::new(AtomicU64::new(0));
    let taken = Arc::new(AtomicU64::new(0));
    let producer = {
        let (waker, published, taken) = (ring.waker(), Arc::clone(&published), Arc::clone(&taken));
        std::thread::spawn(move || {
            for i in 1..=ITEMS {
                published.store(i, Ordering::Relaxed);
                waker.wake();
                if i % 7 == 0 {
                    while taken.load(Ordering::Relaxed) < i {
                        std::thread::yield_now();
                    }
                }
            }
        })
    };
    let mut seen = 0;
    while seen < ITEMS {
        let before = seen;
        seen = published.load(Ordering::Acquire);
        taken.store(seen, Ordering::Relaxed);
        if seen == before {
            let idle = || published.load(Ordering::Relaxed) == seen;
            ring.submit_and_wait(None, idle).unwrap();
        }
    }
    producer.join().unwrap();
}
