//! Clients whose requests the volume's own thread fetches.

use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_block::{Feed, Fetched};
use forebay_device::{Ring, Seen, Watch};

/// Clients at a time whose requests the volume's thread fetches (P7): of more, threads of their own do better.
const FEEDS_MAX: usize = 16;

/// Counts the feeds that a volume has, or that are on their way to it.
#[derive(Clone, Debug, Default)]
pub(crate) struct FeedCount(Arc<AtomicUsize>);

/// A feed's place among them, until it is dropped.
struct FeedPlace(FeedCount);

impl Drop for FeedPlace {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A feed on its way to the volume's thread.
pub(crate) struct NewFeed {
    feed: Box<dyn Feed>,
    place: FeedPlace,
}

impl FeedCount {
    /// Gives a feed a place; `Err` gives it back if there is none.
    pub(crate) fn admit(&self, feed: Box<dyn Feed>) -> Result<NewFeed, Box<dyn Feed>> {
        let one_more = |count: usize| (count < FEEDS_MAX).then_some(count + 1);
        match self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more) {
            Ok(_) => Ok(NewFeed { feed, place: FeedPlace(self.clone()) }),
            Err(_) => Err(feed),
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
}

/// The feeds of a volume's thread.
#[derive(Default)]
pub(crate) struct Feeds {
    adopted: Vec<Adopted>,
    seen: Vec<Seen>,
}

impl Feeds {
    /// Begins to wait for one more.
    pub(crate) fn adopt(&mut self, ring: &Ring, new: NewFeed) {
        let NewFeed { feed, place } = new;
        let watch = ring.watch(feed.socket().as_raw_fd());
        self.adopted.push(Adopted { _place: place, feed, watch, ready: true, ends: false });
    }

    /// Whether one of them has something that has not been fetched.
    pub(crate) fn is_ready(&self) -> bool {
        self.adopted.iter().any(|adopted| adopted.ready)
    }

    /// Gives all of them up.
    pub(crate) fn give_up(&mut self, ring: &Ring) {
        self.adopted.drain(..).for_each(|adopted| ring.unwatch(adopted.watch));
    }

    /// Asks all that have something, each once.
    pub(crate) fn fetch(&mut self, ring: &Ring) {
        ring.take_seen(&mut self.seen);
        for Seen { watch, ends } in self.seen.drain(..) {
            if let Some(adopted) = self.adopted.iter_mut().find(|adopted| adopted.watch == watch) {
                adopted.ready = true;
                adopted.ends |= ends;
            }
        }
        let mut n = 0;
        while let Some(adopted) = self.adopted.get_mut(n) {
            if adopted.ready {
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
    }
}
