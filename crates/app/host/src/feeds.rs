//! Clients whose requests the volume's own thread fetches.

use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use forebay_block::{Feed, Fetched, Nanos};
use forebay_device::{Ring, Seen, Watch};

/// Clients at a time whose requests the volume's thread fetches (P7): of more, threads of their own do better.
const FEEDS_MAX: usize = 16;

/// Who has been silent for so long makes room for who finds no place: 1 s.
const SILENT_NS: u64 = 1_000_000_000;

/// Counts the feeds that a volume has, or that are on their way to it.
#[derive(Clone, Debug, Default)]
pub(crate) struct FeedCount(Arc<Places>);

#[derive(Debug, Default)]
struct Places {
    taken: AtomicUsize,
    /// Somebody has found none.
    wanted: AtomicBool,
}

/// A feed's place among them, until it is dropped.
struct FeedPlace(FeedCount);

impl Drop for FeedPlace {
    fn drop(&mut self) {
        self.0.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A feed on its way to the volume's thread.
pub(crate) struct NewFeed {
    feed: Box<dyn Feed>,
    place: FeedPlace,
}

impl FeedCount {
    /// Gives a feed a place; `Err` gives it back if there is none. Then there may be one when it comes again.
    pub(crate) fn admit(&self, feed: Box<dyn Feed>) -> Result<NewFeed, Box<dyn Feed>> {
        let one_more = |count: usize| (count < FEEDS_MAX).then_some(count + 1);
        match self.0.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more) {
            Ok(_) => Ok(NewFeed { feed, place: FeedPlace(self.clone()) }),
            Err(_) => {
                self.0.wanted.store(true, Ordering::Relaxed);
                Err(feed)
            }
        }
    }
}

struct Adopted {
    // It goes before the place, so that who comes back to it finds the place free.
    _place: FeedPlace,
    feed: Box<dyn Feed>,
    watch: Watch,
    /// It has to be asked.
    ready: bool,
    /// Its client sends nothing more: it is asked until it leaves, for nothing will tell of its socket again.
    ends: bool,
    /// When it was last asked.
    asked: Nanos,
}

/// The feeds of a volume's thread.
pub(crate) struct Feeds {
    count: FeedCount,
    adopted: Vec<Adopted>,
    seen: Vec<Seen>,
}

impl Feeds {
    pub(crate) const fn new(count: FeedCount) -> Self {
        Self { count, adopted: Vec::new(), seen: Vec::new() }
    }

    /// Begins to wait for one more.
    pub(crate) fn adopt(&mut self, ring: &Ring, new: NewFeed) {
        let NewFeed { feed, place } = new;
        let watch = ring.watch(feed.socket().as_raw_fd());
        let (ready, ends, asked) = (true, false, Nanos::default());
        self.adopted.push(Adopted { _place: place, feed, watch, ready, ends, asked });
    }

    /// Whether one of them has something that has not been fetched.
    pub(crate) fn is_ready(&self) -> bool {
        self.adopted.iter().any(|adopted| adopted.ready)
    }

    /// Gives all of them up.
    pub(crate) fn give_up(&mut self, ring: &Ring) {
        self.adopted.drain(..).for_each(|adopted| ring.unwatch(adopted.watch));
    }

    /// Gives one up that has been silent for long, if somebody wants its place.
    fn make_room(&mut self, ring: &Ring, now: Nanos) {
        let longest = (0..self.adopted.len()).min_by_key(|n| self.adopted[*n].asked);
        if let Some(n) = longest
            && !self.adopted[n].ready
            && now.since(self.adopted[n].asked) > SILENT_NS
        {
            ring.unwatch(self.adopted.swap_remove(n).watch);
        }
    }

    /// Asks all that have something, each once. `now` is asked only if it matters.
    pub(crate) fn fetch(&mut self, ring: &Ring, now: impl FnOnce() -> Nanos) {
        ring.take_seen(&mut self.seen);
        for Seen { watch, ends } in self.seen.drain(..) {
            if let Some(adopted) = self.adopted.iter_mut().find(|adopted| adopted.watch == watch) {
                adopted.ready = true;
                adopted.ends |= ends;
            }
        }
        let wanted = self.count.0.wanted.load(Ordering::Relaxed);
        if !wanted && !self.is_ready() {
            return;
        }
        let now = now();
        let mut n = 0;
        while let Some(adopted) = self.adopted.get_mut(n) {
            if adopted.ready {
                adopted.asked = now;
                // What one client's feed does wrong is no other client's trouble.
                let fetched = catch_unwind(AssertUnwindSafe(|| adopted.feed.fetch()));
                adopted.ready = adopted.ends || matches!(fetched, Ok(Fetched::Part));
                if matches!(fetched, Ok(Fetched::Leaves) | Err(_)) {
                    ring.unwatch(adopted.watch);
                    self.adopted.swap_remove(n);
                    continue;
                }
            }
            n += 1;
        }
        if wanted {
            self.count.0.wanted.store(false, Ordering::Relaxed);
            self.make_room(ring, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::{AsFd, BorrowedFd};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;

    /// What comes says nothing.
    struct Listener(UnixStream);

    impl Feed for Listener {
        fn socket(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }

        fn fetch(&mut self) -> Fetched {
            let _ = self.0.read(&mut [0; 64]);
            Fetched::All
        }
    }

    fn listener() -> (Box<dyn Feed>, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        (Box::new(Listener(near)), far)
    }

    /// The one that has been silent for longest goes, after a second, if its place is wanted; and nobody else.
    #[test]
    fn who_is_silent_gives_up_a_place_that_is_wanted() {
        let ring = Ring::new().unwrap();
        let count = FeedCount::default();
        let mut feeds = Feeds::new(count.clone());
        let mut fars = Vec::new();
        for _ in 0..FEEDS_MAX {
            let (feed, far) = listener();
            feeds.adopt(&ring, count.admit(feed).ok().unwrap());
            fars.push(far);
        }
        let mut after = |ns, wanted: bool, says: usize| {
            if wanted {
                assert!(count.admit(listener().0).is_err());
            }
            fars[says].write_all(b"x").unwrap();
            ring.submit_and_wait(Some(Duration::from_secs(60)), || true).unwrap();
            feeds.fetch(&ring, || Nanos(ns));
            feeds.adopted.len()
        };
        let begun = 5 * SILENT_NS;
        assert_eq!(after(begun, true, 0), FEEDS_MAX, "nobody has been silent");
        assert_eq!(after(begun + SILENT_NS, true, 1), FEEDS_MAX, "nor for long");
        assert_eq!(after(begun + SILENT_NS + 1, false, 2), FEEDS_MAX, "nobody wants a place");
        assert_eq!(after(begun + SILENT_NS + 2, true, 3), FEEDS_MAX - 1);
        let asked = feeds.adopted.iter().filter(|adopted| adopted.asked.0 > begun).count();
        assert_eq!(asked, 3, "who has said something stays");
        assert!(count.admit(listener().0).is_ok());
    }
}
