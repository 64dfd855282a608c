//! The share of memory that a device's dirty pages may have before its write-back begins (FAST'17, section 4.4: 1%).
//!
//! Of all disks together the kernel begins to write back when they have a tenth of memory (`vm.dirty_background_ratio`); of a disk alone when it has more
//! than its `max_ratio` of that. A low `max_ratio` so begins write-back of the device early. Its flusher does that, whose writes nobody
//! waits for: the volume carries them out after all others.
//!
//! **It is lifted before writers wait by it.** Writers are throttled by their disk's share only once all disks together have more than halfway from the
//! limit where write-back begins to the one where writers wait. By then the first limit has started write-back of all disks, and the device's own is of
//! no use any more. So it is lifted while all disks together have as much as that first limit, and set again below it. Critical tasks keep the limits that
//! the system has. What was measured: `docs/results/2026-11-28-background-dirty.md`.
//!
//! **A memory cgroup has limits of its own**, of which the device has the same part. What they are nobody but the kernel knows: a writer in a cgroup
//! that is full of dirty pages may wait earlier.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// How often it is looked at. In a second a writer dirties gigabytes, from nothing to beyond the limit.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A device's part of the limit of all disks is told in millionths.
pub(crate) const WHOLE: u64 = 1_000_000;

/// Dirty memory of the machine, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    /// All that there is.
    pub total: u64,
    /// Dirty, or being written.
    pub dirty: u64,
    /// Where write-back of all disks begins.
    pub background: u64,
}

impl Memory {
    /// `None` where `/proc` does not tell.
    pub fn now() -> Option<Self> {
        let vmstat = fs::read_to_string("/proc/vmstat").ok()?;
        let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
        // SAFETY: the call takes a name of a constant.
        let page_kib = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()? >> 10;
        Some(Self {
            total: number(&meminfo, "MemTotal:")? / page_kib.max(1),
            dirty: number(&vmstat, "nr_dirty")? + number(&vmstat, "nr_writeback")?,
            background: number(&vmstat, "nr_dirty_background_threshold")?,
        })
    }

    /// What a device's part is to be for `share` millionths of memory; [`WHOLE`] where it would change nothing, or make somebody wait.
    pub fn ratio(&self, share: u32) -> u64 {
        if share == 0 || self.background == 0 || self.dirty >= self.background {
            return WHOLE;
        }
        let pages = u128::from(self.total) * u128::from(share) / 1_000_000;
        let ratio = pages * u128::from(WHOLE) / u128::from(self.background);
        u64::try_from(ratio).unwrap_or(WHOLE).clamp(1, WHOLE)
    }
}

/// A device's part as the kernel takes it, of which `whole` is all. With none of it each page would be written back at once.
pub(crate) fn in_units(ratio: u64, whole: u64) -> u64 {
    (ratio * whole / WHOLE).max(1)
}

fn number(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| (words.next() == Some(name)).then(|| words.next()?.parse().ok())?)
}

/// Holds a device to its share while it is attached.
pub(crate) struct BackgroundDirty {
    /// Its part of the limit, of which `whole` is all.
    attribute: PathBuf,
    whole: u64,
    /// Of memory, in millionths.
    share: u32,
    ratio: u64,
}

impl BackgroundDirty {
    /// The limit is set to `ratio` already.
    pub fn new(attribute: PathBuf, whole: u64, share: u32, ratio: u64) -> Self {
        Self { attribute, whole, share, ratio }
    }

    /// Looks at memory, sets or lifts the limit, and tells when to look again.
    pub fn look(&mut self) -> Duration {
        if let Some(memory) = Memory::now() {
            self.follow(memory.ratio(self.share));
        }
        LOOK_EVERY
    }

    /// Memory that can be dirtied changes all the time; an eighth more or less is not worth a change.
    fn follow(&mut self, ratio: u64) {
        let lifted = (ratio == WHOLE) != (self.ratio == WHOLE);
        if (lifted || ratio.abs_diff(self.ratio) > self.ratio / 8)
            && fs::write(&self.attribute, in_units(ratio, self.whole).to_string()).is_ok()
        {
            self.ratio = ratio;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: Memory = Memory { total: 1_000_000, dirty: 0, background: 50_000 };

    #[test]
    fn a_hundredth_of_memory_is_a_fifth_of_the_limit_of_all() {
        assert_eq!(MEMORY.ratio(10_000), 200_000);
        assert_eq!(MEMORY.ratio(0), WHOLE, "the system's own");
        assert_eq!(MEMORY.ratio(900_000), WHOLE, "the system's own limit is the lower one");
        assert_eq!(Memory { background: 0, ..MEMORY }.ratio(10_000), WHOLE);
    }

    /// Beyond it the kernel begins to make writers wait by their device's share.
    #[test]
    fn the_limit_is_lifted_before_anybody_waits_by_it() {
        for (dirty, ratio) in [(49_999, 200_000), (50_000, WHOLE), (80_000, WHOLE)] {
            assert_eq!(Memory { dirty, ..MEMORY }.ratio(10_000), ratio, "{dirty}");
        }
    }

    #[test]
    fn a_part_is_told_in_the_kernels_units() {
        assert_eq!(in_units(200_000, WHOLE), 200_000);
        for (ratio, percent) in [(WHOLE, 100), (200_000, 20), (19_999, 1), (1, 1)] {
            assert_eq!(in_units(ratio, 100), percent, "{ratio}");
        }
    }

    #[test]
    fn the_devices_limit_follows_what_can_be_dirtied() {
        let dir = tempfile::tempdir().unwrap();
        let attribute = dir.path().join("max_ratio_fine");
        let shown = || fs::read_to_string(&attribute).unwrap_or_default();
        let mut background = BackgroundDirty::new(attribute.clone(), WHOLE, 10_000, 200_000);
        for (ratio, wanted) in
            [(210_000, ""), (300_000, "300000"), (WHOLE, "1000000"), (290_000, "290000"), (289_000, "290000")]
        {
            background.follow(ratio);
            assert_eq!(shown(), wanted);
        }
    }

    #[test]
    fn this_machine_tells_of_its_memory() {
        let memory = Memory::now().unwrap();
        assert!(memory.total > memory.background, "{memory:?}");
        assert_eq!(number("nr_dirty_threshold 5\nnr_dirty 3\n", "nr_dirty"), Some(3));
    }
}
