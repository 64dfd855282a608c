//! Durable writes where the kernel's own flag for them is not trusted: a write, and then an `fdatasync`, which those
//! share that have ended before it begins.
//!
//! ```text
//!  submit ──► kernel writes ──► written() ─► waiting ──► begin() ─► covered ──► ended() ─► done
//! ```
//!
//! The kernel tells a failure of the page cache to one `fdatasync` only, although others, under way or to come, would have
//! covered what is lost. So a failed one fails all that was under way with it, and the next flush (M9).

use forebay_block::{DeviceResult, IoError};

/// A durable write whose data the kernel has taken.
struct Written {
    tag: u64,
    seen: Seen,
}

/// Failures that there had been when an operation was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen(u64);

/// See the module's documentation. What it holds is bounded by what the volume has under way.
#[derive(Default)]
pub(crate) struct Syncs {
    /// For the next `fdatasync`.
    waiting: Vec<Written>,
    /// Of the one under way.
    covered: Vec<Written>,
    under_way: bool,
    failures: u64,
    last: Option<IoError>,
    /// A failure that no flush has told yet.
    untold: Option<IoError>,
}

impl Syncs {
    /// To be noted when an operation is submitted.
    pub(crate) fn seen(&self) -> Seen {
        Seen(self.failures)
    }

    /// The data of a durable write is with the kernel.
    pub(crate) fn written(&mut self, tag: u64, seen: Seen) {
        self.waiting.push(Written { tag, seen });
    }

    /// Whether an `fdatasync` is to be started now, for all that wait.
    pub(crate) fn begin(&mut self) -> bool {
        if self.under_way || self.waiting.is_empty() {
            return false;
        }
        self.under_way = true;
        self.covered.append(&mut self.waiting);
        true
    }

    /// The `fdatasync` that [`Syncs::begin`] has asked for has ended.
    pub(crate) fn ended(&mut self, result: DeviceResult, done: &mut Vec<(u64, DeviceResult)>) {
        self.under_way = false;
        if let Err(e) = result {
            self.untold = Some(e.clone());
            self.fail(e);
        }
        let covered = std::mem::take(&mut self.covered);
        done.extend(covered.into_iter().map(|write| (write.tag, self.outcome(write.seen))));
        // What waits was under way when it failed: a later one would find nothing left to write, and succeed.
        let lost = self.waiting.extract_if(.., |write| write.seen.0 != self.failures);
        let lost: Vec<u64> = lost.map(|write| write.tag).collect();
        done.extend(lost.into_iter().map(|tag| (tag, Err(self.lost()))));
    }

    /// A flush is asked for; the failure that it has to tell, if there is one.
    pub(crate) fn flush_begins(&mut self) -> Option<IoError> {
        self.untold.take()
    }

    /// A flush that had been asked for has ended; what it comes to.
    pub(crate) fn flush_ended(&mut self, seen: Seen, result: DeviceResult) -> DeviceResult {
        match result {
            Ok(_) => self.outcome(seen),
            Err(e) => {
                self.fail(e.clone());
                Err(e)
            }
        }
    }

    fn fail(&mut self, e: IoError) {
        self.failures += 1;
        self.last = Some(e);
    }

    fn outcome(&self, seen: Seen) -> DeviceResult {
        if seen.0 == self.failures { Ok(None) } else { Err(self.lost()) }
    }

    fn lost(&self) -> IoError {
        self.last.clone().unwrap_or(IoError::new(forebay_block::ErrorKind::Io, "flushing a device"))
    }
}

#[cfg(test)]
mod tests {
    use forebay_block::ErrorKind;

    use super::*;

    const ERROR: IoError = IoError::new(ErrorKind::Io, "flushing a device");

    fn ended(syncs: &mut Syncs, result: DeviceResult) -> Vec<(u64, bool)> {
        let mut done = Vec::new();
        syncs.ended(result, &mut done);
        done.into_iter().map(|(tag, result)| (tag, result.is_ok())).collect()
    }

    #[test]
    fn what_ended_before_it_began_shares_one_and_the_rest_the_next() {
        let mut syncs = Syncs::default();
        assert!(!syncs.begin());
        let seen = syncs.seen();
        syncs.written(1, seen);
        syncs.written(2, seen);
        assert!(syncs.begin());
        syncs.written(3, seen);
        assert!(!syncs.begin(), "one is under way");
        assert_eq!(ended(&mut syncs, Ok(None)), [(1, true), (2, true)]);
        assert!(syncs.begin());
        assert_eq!(ended(&mut syncs, Ok(None)), [(3, true)]);
        assert!(!syncs.begin());
    }

    #[test]
    fn a_failure_is_of_all_that_was_under_way_and_of_the_next_flush() {
        let mut syncs = Syncs::default();
        let seen = syncs.seen();
        syncs.written(1, seen);
        assert!(syncs.begin());
        syncs.written(2, seen);
        assert_eq!(ended(&mut syncs, Err(ERROR)), [(1, false), (2, false)]);
        // Submitted before the failure, written after it.
        syncs.written(3, seen);
        let after = syncs.seen();
        syncs.written(4, after);
        assert!(syncs.begin());
        assert_eq!(ended(&mut syncs, Ok(None)), [(3, false), (4, true)]);
        // A flush that was under way with it, the next one, and the one after.
        assert!(syncs.flush_ended(seen, Ok(None)).is_err());
        assert_eq!((syncs.flush_begins(), syncs.flush_begins()), (Some(ERROR), None));
        assert!(syncs.flush_ended(after, Ok(None)).is_ok());
    }

    #[test]
    fn a_failed_flush_fails_durable_writes_under_way() {
        let mut syncs = Syncs::default();
        let seen = syncs.seen();
        syncs.written(1, seen);
        assert!(syncs.begin());
        assert!(syncs.flush_ended(seen, Err(ERROR)).is_err());
        assert_eq!(ended(&mut syncs, Ok(None)), [(1, false)]);
        assert_eq!(syncs.flush_begins(), None, "it has been told");
    }
}
