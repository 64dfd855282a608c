//! Flushes of clients: each waits for a record of the log, and for a flush of the backing if bypasses were acknowledged before it.
//!
//! | log holds its record | cache has failed, log not void | backing flushed since | a flush of the backing failed | answer |
//! |---|---|---|---|---|
//! | any | any | any | yes | that error |
//! | no | for good | any | no | the cache's error |
//! | no | no | any | no | waits |
//! | yes | any | no | no | waits |
//! | yes | any | yes | no | done |
//!
//! A log that is void holds everything: all of it is on the backing.

use forebay_block::{IoError, Seq};
use forebay_policy::Issuer;

use crate::groups::points::Point;
use crate::interface::RequestId;

/// A flush that waits for what was acknowledged before it.
pub(crate) struct Flush {
    pub(crate) id: RequestId,
    /// The last record that it covers.
    pub(crate) log_upto: Seq,
    /// The consistency point that it is, if each flush is one.
    pub(crate) point: Point,
    /// Number of the backing's flush that it needs.
    pub(crate) backing_epoch: u64,
    /// Requests with volatile bypasses that had been acknowledged when it came.
    pub(crate) bypasses: u64,
    /// Who asked.
    pub(crate) issuer: Issuer,
}

/// How far things have come.
pub(crate) struct Reached {
    /// Records of the log that survive a power cut.
    pub(crate) durable_upto: Seq,
    /// The log is void, and the backing has everything.
    pub(crate) retired: bool,
    /// The cache has failed, and its log can never be void.
    pub(crate) lost: Option<IoError>,
    /// The last flush of the backing that succeeded.
    pub(crate) backing_epoch: u64,
    /// A flush of the backing has failed, and clients must be told.
    pub(crate) backing_error: Option<IoError>,
}

/// A flush whose wait is over.
pub(crate) struct Flushed {
    pub(crate) id: RequestId,
    pub(crate) log_upto: Seq,
    pub(crate) point: Point,
    pub(crate) error: Option<IoError>,
}

/// Flushes that wait, in the order in which they came.
#[derive(Default)]
pub(crate) struct Flushes {
    waiting: Vec<Flush>,
}

impl Flushes {
    pub(crate) fn add(&mut self, flush: Flush) {
        self.waiting.push(flush);
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Those who wait.
    pub(crate) fn ids(&self) -> impl Iterator<Item = RequestId> {
        self.waiting.iter().map(|flush| flush.id)
    }

    /// The most urgent of those who wait.
    pub(crate) fn issuer(&self) -> Issuer {
        Issuer::most_urgent(self.waiting.iter().map(|flush| flush.issuer))
    }

    /// How many requests with volatile bypasses had been acknowledged when the last of them came; `None` if none waits.
    pub(crate) fn asked(&self) -> Option<u64> {
        self.waiting.last().map(|flush| flush.bypasses)
    }

    /// One of them needs a flush of the backing behind that with this number.
    pub(crate) fn waits_for_backing(&self, epoch: u64) -> bool {
        self.waiting.iter().any(|flush| flush.backing_epoch > epoch)
    }

    /// Takes those out whose wait is over.
    pub(crate) fn answer(&mut self, reached: &Reached) -> Vec<Flushed> {
        let mut answered = Vec::new();
        for flush in std::mem::take(&mut self.waiting) {
            match reached.outcome(&flush) {
                Some(error) => {
                    let Flush { id, log_upto, point, .. } = flush;
                    answered.push(Flushed { id, log_upto, point, error });
                }
                None => self.waiting.push(flush),
            }
        }
        answered
    }
}

impl Reached {
    /// How the flush is answered, see the table; `None` as long as it waits.
    fn outcome(&self, flush: &Flush) -> Option<Option<IoError>> {
        let in_log = flush.log_upto <= self.durable_upto || self.retired;
        match (&self.backing_error, &self.lost) {
            (Some(error), _) => Some(Some(error.clone())),
            (None, Some(error)) if !in_log => Some(Some(error.clone())),
            _ => (in_log && flush.backing_epoch <= self.backing_epoch).then_some(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_block::ErrorKind;

    use super::*;

    fn flush(id: u64, log_upto: u64, backing_epoch: u64) -> Flush {
        let point = Point::at(Seq(log_upto));
        let issuer = Issuer { task: id as u32, ..Issuer::default() };
        Flush { id: RequestId(id), log_upto: Seq(log_upto), point, backing_epoch, bypasses: id, issuer }
    }

    fn error(context: &'static str) -> IoError {
        IoError::new(ErrorKind::Io, context)
    }

    /// The table above, row by row; the flush needs record 5 and the backing's second flush.
    #[test]
    fn is_answered_as_the_table_says() {
        enum Log {
            Behind,
            There,
            Void,
        }
        use Log::{Behind, There, Void};
        let waits = None;
        let done = Some(None);
        let cache = || Some(Some("cache"));
        let backing = || Some(Some("backing"));
        for (log, lost, epoch, fails, expected) in [
            (Behind, false, 1, false, waits),
            (Behind, false, 2, false, waits),
            (Behind, false, 2, true, backing()),
            (Behind, true, 1, false, cache()),
            (Behind, true, 2, false, cache()),
            (Behind, true, 2, true, backing()),
            (There, false, 1, false, waits),
            (There, false, 2, false, done),
            (There, false, 3, false, done),
            (There, false, 2, true, backing()),
            (There, true, 1, false, waits),
            (There, true, 2, false, done),
            (Void, false, 1, false, waits),
            (Void, false, 2, false, done),
            (Void, false, 1, true, backing()),
        ] {
            let reached = Reached {
                durable_upto: Seq(if matches!(log, There) { 5 } else { 4 }),
                retired: matches!(log, Void),
                lost: lost.then(|| error("cache")),
                backing_epoch: epoch,
                backing_error: fails.then(|| error("backing")),
            };
            let outcome = reached.outcome(&flush(1, 5, 2));
            let outcome = outcome.map(|error| error.map(|error| error.context));
            let log = match log {
                Behind => "behind",
                There => "there",
                Void => "void",
            };
            assert_eq!(outcome, expected, "log {log}, lost {lost}, epoch {epoch}, fails {fails}");
        }
    }

    #[test]
    fn those_that_wait_keep_their_order_and_are_answered_once() {
        let mut flushes = Flushes::default();
        assert_eq!(flushes.asked(), None);
        for (id, upto, epoch) in [(1, 5, 0), (2, 5, 1), (3, 6, 1), (4, 6, 2)] {
            flushes.add(flush(id, upto, epoch));
        }
        let mut answer = |durable, backing_epoch| -> (Vec<u64>, usize) {
            let reached = Reached {
                durable_upto: Seq(durable),
                retired: false,
                lost: None,
                backing_epoch,
                backing_error: None,
            };
            let answered = flushes.answer(&reached);
            assert!(answered.iter().all(|flushed| flushed.error.is_none()));
            (answered.iter().map(|flushed| flushed.id.0).collect(), flushes.len())
        };
        assert_eq!(answer(4, 1), (vec![], 4));
        assert_eq!(answer(6, 0), (vec![1], 3));
        assert_eq!(answer(6, 1), (vec![2, 3], 1));
        assert_eq!(answer(7, 1), (vec![], 1));
        assert_eq!(
            (flushes.asked(), flushes.waits_for_backing(1), flushes.waits_for_backing(2)),
            (Some(4), true, false)
        );
    }
}
