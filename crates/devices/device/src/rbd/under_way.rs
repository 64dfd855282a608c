//! Operations on an image, from when they are submitted until their outcome is known.
//!
//! **Every outcome is known in the end.** The session is told to give up no operation of its own ([`super::session`]): what an OSD has not
//! answered is sent to it again until it is. But whoever submits is not kept waiting: after the address's `timeout` an operation
//! fails for its owner, and is *given up*. What it was to change may still be changed, for as long as its real end is out. So:
//!
//! 1. **Nothing passes an operation that was given up.** What overlaps it waits for its real end, and a flush overlaps all that changes
//!    something. So what the owner writes anew comes after the old write, whatever becomes of that; nobody reads what may still
//!    change; and no flush succeeds while a write is out that may come later.
//! 2. What waits for that fails after `timeout`, too, and then has done nothing.
//! 3. Only if nothing is out is the image closed, and its lock released ([`UnderWay::is_idle`]). Else the lock stays, and whoever comes next breaks
//!    it: that makes every OSD refuse what is still on its way.
//!
//! Rule 1 holds between any two operations of which one changes something. Only where zeroes are made of more than was asked
//! ([`super::gather`]) does it ever make one wait that was not given up.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use forebay_block::{Buf, DeviceOp, DeviceResult, ErrorKind, IoError, Nanos};

use crate::rbd::gather::Gather;

/// Operations that librbd has at a time; the rest waits, bounded by what the volume has under way.
pub(crate) const DEPTH_MAX: usize = 128;

/// Why operations fail once the image is somebody else's, or nobody's.
pub(crate) const FENCED: IoError = IoError::new(
    ErrorKind::Fenced,
    "using an RBD image whose lock is lost, for another client has taken over or the image was deleted; nothing more is read \
     from it or written to it",
);
/// Why they fail once nobody knows what an earlier one has done.
pub(crate) const UNKNOWN: IoError = IoError::new(
    ErrorKind::Io,
    "using an RBD image on which an operation has ended without an outcome; restarting the volume ends the session with it",
);

/// The answer of a client that was blocklisted.
const BLOCKLISTED: i32 = libc::ESHUTDOWN;
/// The answer to a client that has the lock no more.
const UNLOCKED: i32 = libc::EROFS;
/// What an answer says that is none.
const NO_ANSWER: i32 = libc::ETIMEDOUT;

/// The bytes that an operation touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reach {
    from: u64,
    to: u64,
    changes: bool,
    is_flush: bool,
}

impl Reach {
    fn of(op: &DeviceOp) -> Self {
        let from = op.offset().unwrap_or(0);
        let changes = matches!(op, DeviceOp::Write { .. } | DeviceOp::Zero { .. });
        Self { from, to: from + op.bytes(), changes, is_flush: matches!(op, DeviceOp::Flush) }
    }

    /// Whether this one, which is out, must have ended before `next` may begin.
    fn holds_up(&self, next: &Self, given_up: bool) -> bool {
        match next.is_flush {
            true => given_up && self.changes,
            false => (self.changes || next.changes) && self.from < next.to && next.from < self.to,
        }
    }
}

/// An operation that librbd has.
struct Out {
    tag: u64,
    reach: Reach,
    since: Nanos,
    /// Its owner was told that it has failed.
    given_up: bool,
}

/// An operation that librbd does not have yet.
struct Waiting {
    tag: u64,
    op: DeviceOp,
    since: Nanos,
}

/// See the module's documentation.
pub(crate) struct UnderWay {
    timeout: Duration,
    last: u64,
    waiting: VecDeque<Waiting>,
    /// By number, which is the order in which they began.
    out: BTreeMap<u64, Out>,
    gather: Gather,
    done: Vec<(u64, DeviceResult)>,
    /// Why everything fails, and since when.
    over: Option<(IoError, Nanos)>,
}

impl UnderWay {
    pub(crate) fn new(timeout: Duration, object_bytes: u64) -> Self {
        Self {
            timeout,
            last: 0,
            waiting: VecDeque::new(),
            out: BTreeMap::new(),
            gather: Gather::new(object_bytes),
            done: Vec::new(),
            over: None,
        }
    }

    /// Takes in an operation that lies within the image.
    pub(crate) fn submit(&mut self, tag: u64, op: DeviceOp, now: Nanos) {
        if let Some((why, _)) = &self.over {
            self.done.push((tag, Err(why.clone())));
        } else if op.bytes() == 0 && !matches!(op, DeviceOp::Flush) {
            let empty = matches!(op, DeviceOp::Read { .. }).then(|| Buf::zeroed(0));
            self.done.push((tag, Ok(empty)));
        } else {
            self.waiting.push_back(Waiting { tag, op, since: now });
        }
    }

    /// An operation has failed before it came here.
    pub(crate) fn fail(&mut self, tag: u64, error: IoError) {
        self.done.push((tag, Err(error)));
    }

    /// The next operation that may begin, and its number.
    pub(crate) fn begin(&mut self) -> Option<(u64, DeviceOp)> {
        if self.out.len() >= DEPTH_MAX {
            return None;
        }
        let may_begin = |waiting: &Waiting| {
            let reach = Reach::of(&waiting.op);
            !self.out.values().any(|out| out.reach.holds_up(&reach, out.given_up))
        };
        let at = self.waiting.iter().position(may_begin)?;
        let Waiting { tag, op, since } = self.waiting.remove(at)?;
        let op = self.widened(op);
        self.last += 1;
        self.out.insert(self.last, Out { tag, reach: Reach::of(&op), since, given_up: false });
        Some((self.last, op))
    }

    /// Zeroes that complete an object are made of all of it. No write of it is out then: it would have made the object incomplete, and
    /// zeroes that completed it again would have waited for its end. Zeroes and reads that are out find zeroes in any order.
    fn widened(&mut self, op: DeviceOp) -> DeviceOp {
        let Reach { from, to, .. } = Reach::of(&op);
        match op {
            DeviceOp::Zero { unmap: true, .. } => {
                let (from, to) = self.gather.zeroed(from, to);
                DeviceOp::Zero { offset: from, len: to - from, unmap: true }
            }
            op => {
                if matches!(op, DeviceOp::Write { .. } | DeviceOp::Zero { .. }) {
                    self.gather.written(from, to);
                }
                op
            }
        }
    }

    /// librbd has answered, with a negative errno if it failed.
    pub(crate) fn end(&mut self, number: u64, answer: Result<Option<Buf>, i32>, now: Nanos) {
        let Some(Out { tag, reach, given_up, .. }) = self.out.remove(&number) else { return };
        if answer.is_err() && reach.changes {
            // It may have zeroed some of it, or none.
            self.gather.written(reach.from, reach.to);
        }
        match answer {
            Err(BLOCKLISTED | UNLOCKED) => self.end_all(FENCED, now),
            Err(NO_ANSWER) if reach.changes => self.end_all(UNKNOWN, now),
            _ => {}
        }
        if given_up {
            return;
        }
        let result = answer.map_err(|errno| match (&self.over, errno) {
            (Some((why, _)), BLOCKLISTED | UNLOCKED | NO_ANSWER) => why.clone(),
            _ => failure(&reach, errno),
        });
        self.done.push((tag, result));
    }

    /// The image was asked whether it is still this process's; the errno that it has answered.
    pub(crate) fn probed(&mut self, errno: Option<i32>, now: Nanos) {
        if matches!(errno, Some(BLOCKLISTED | UNLOCKED)) {
            self.end_all(FENCED, now);
        }
    }

    /// From now on everything fails.
    fn end_all(&mut self, why: IoError, now: Nanos) {
        let (why, _) = self.over.get_or_insert((why, now));
        let failed = self.waiting.drain(..).map(|waiting| (waiting.tag, Err(why.clone())));
        self.done.extend(failed);
    }

    /// Gives up what has taken too long.
    pub(crate) fn expire(&mut self, now: Nanos) {
        let timeout_ns = u64::try_from(self.timeout.as_nanos()).unwrap_or(u64::MAX);
        let is_late = |since: Nanos| now.since(since) >= timeout_ns;
        for out in self.out.values_mut().filter(|out| !out.given_up && is_late(out.since)) {
            out.given_up = true;
            self.done.push((out.tag, Err(failure(&out.reach, NO_ANSWER))));
        }
        let (done, waiting) = (&mut self.done, &mut self.waiting);
        waiting.retain(|waiting| {
            let late = is_late(waiting.since);
            if late {
                done.push((waiting.tag, Err(failure(&Reach::of(&waiting.op), NO_ANSWER))));
            }
            !late
        });
    }

    /// When something is to be given up.
    pub(crate) fn next_expiry(&self) -> Option<Nanos> {
        let out = self.out.values().filter(|out| !out.given_up).map(|out| out.since);
        let since = out.chain(self.waiting.iter().map(|waiting| waiting.since)).min()?;
        let timeout_ns = u64::try_from(self.timeout.as_nanos()).unwrap_or(u64::MAX);
        Some(Nanos(since.0.saturating_add(timeout_ns)))
    }

    /// Appends what has ended for its owner.
    pub(crate) fn take_done(&mut self, done: &mut Vec<(u64, DeviceResult)>) {
        done.append(&mut self.done);
    }

    pub(crate) fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Operations that librbd does not have yet.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Nothing is out, and everything that was has a known outcome.
    pub(crate) fn is_idle(&self) -> bool {
        self.out.is_empty() && self.over.is_none()
    }

    /// Why everything fails, if it does.
    pub(crate) fn over(&self) -> Option<&IoError> {
        self.over.as_ref().map(|(why, _)| why)
    }

    /// Since when the image is known to be away: somebody else's, or the oldest operation was given up that is still out.
    pub(crate) fn away_since(&self) -> Option<Nanos> {
        let oldest = self.out.values().filter(|out| out.given_up).map(|out| out.since).min();
        self.over.as_ref().map(|(_, since)| *since).or(oldest)
    }
}

fn failure(reach: &Reach, errno: i32) -> IoError {
    let context = match reach {
        Reach { is_flush: true, .. } => return IoError::of_system(errno, "flushing an RBD image", None),
        Reach { changes: true, .. } => "writing to an RBD image",
        _ => "reading an RBD image",
    };
    IoError::of_system(errno, context, Some(reach.from))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const OBJECT: u64 = 4 << 20;

    fn at(seconds: u64) -> Nanos {
        Nanos(seconds * SECOND)
    }

    fn write(offset: u64) -> DeviceOp {
        DeviceOp::Write { offset, bufs: vec![Buf::zeroed(4096)], durable: true }
    }

    fn read(offset: u64) -> DeviceOp {
        DeviceOp::Read { offset, len: 4096 }
    }

    fn zero(offset: u64, len: u64) -> DeviceOp {
        DeviceOp::Zero { offset, len, unmap: true }
    }

    fn two_seconds() -> UnderWay {
        UnderWay::new(Duration::from_secs(2), OBJECT)
    }

    /// The tags of what has ended well, and of what has failed.
    fn ended(all: &mut UnderWay) -> (Vec<u64>, Vec<u64>) {
        let mut done = Vec::new();
        all.take_done(&mut done);
        let (well, failed): (Vec<_>, Vec<_>) = done.into_iter().partition(|(_, result)| result.is_ok());
        let tags = |of: Vec<(u64, DeviceResult)>| of.into_iter().map(|(tag, _)| tag).collect();
        (tags(well), tags(failed))
    }

    fn begin_all(all: &mut UnderWay) -> Vec<u64> {
        std::iter::from_fn(|| all.begin()).map(|(number, _)| number).collect()
    }

    #[test]
    fn nothing_passes_a_write_that_was_given_up() {
        let mut all = two_seconds();
        all.submit(1, write(4096), at(0));
        assert_eq!((begin_all(&mut all), all.next_expiry()), (vec![1], Some(at(2))));
        all.expire(Nanos(2 * SECOND - 1));
        assert_eq!((ended(&mut all), all.away_since()), ((vec![], vec![]), None));
        all.expire(at(2));
        assert_eq!(ended(&mut all), (vec![], vec![1]));
        assert_eq!((all.away_since(), all.is_idle()), (Some(at(0)), false));

        // The same block, written anew or read, and a flush wait; another block does not.
        let others = [write(4096), read(4096), DeviceOp::Flush, write(8192), read(0)];
        for (n, op) in others.into_iter().enumerate() {
            all.submit(2 + n as u64, op, at(3));
        }
        assert_eq!((begin_all(&mut all), all.waiting()), (vec![2, 3], 3));
        all.end(2, Ok(None), at(3));
        all.end(3, Ok(Some(Buf::zeroed(4096))), at(3));
        assert_eq!(ended(&mut all), (vec![5, 6], vec![]));
        all.expire(at(4));
        assert_eq!((begin_all(&mut all), ended(&mut all)), (vec![], (vec![], vec![])));

        // Its real end is nobody's any more, and what waited comes after it.
        all.end(1, Ok(None), at(4));
        assert_eq!((ended(&mut all), all.away_since()), ((vec![], vec![]), None));
        assert_eq!(begin_all(&mut all), [4, 5], "the read waits for the new write in turn");
        all.end(4, Ok(None), at(4));
        assert_eq!(begin_all(&mut all), [6]);
        all.end(5, Ok(None), at(4));
        all.end(6, Ok(Some(Buf::zeroed(4096))), at(4));
        assert_eq!((ended(&mut all), all.is_idle()), ((vec![2, 4, 3], vec![]), true));
    }

    #[test]
    fn no_flush_succeeds_while_a_write_may_come_later() {
        let mut all = two_seconds();
        all.submit(1, zero(0, 4096), at(0));
        assert_eq!(begin_all(&mut all), [1]);
        all.expire(at(2));
        all.submit(2, DeviceOp::Flush, at(2));
        all.submit(3, write(0), at(2));
        assert!(begin_all(&mut all).is_empty());
        all.expire(at(4));
        // They have done nothing, and never will.
        assert_eq!((ended(&mut all), all.waiting(), all.next_expiry()), ((vec![], vec![1, 2, 3]), 0, None));
        all.submit(4, DeviceOp::Flush, at(5));
        all.end(1, Err(libc::EIO), at(5));
        assert_eq!(begin_all(&mut all), [2]);
    }

    #[test]
    fn a_flush_waits_for_no_write_that_is_answered_in_time_and_reads_hold_up_no_flush() {
        let mut all = two_seconds();
        all.submit(1, write(0), at(1));
        all.submit(2, read(4096), at(0));
        all.submit(3, DeviceOp::Flush, at(1));
        assert_eq!(begin_all(&mut all), [1, 2, 3]);
        all.expire(at(2));
        assert_eq!(ended(&mut all), (vec![], vec![2]));
        all.submit(4, DeviceOp::Flush, at(2));
        assert_eq!(begin_all(&mut all), [4]);
    }

    #[test]
    fn who_lost_the_lock_does_nothing_more() {
        for (answer, words) in [
            (libc::ESHUTDOWN, "taken over"),
            (libc::EROFS, "taken over"),
            (libc::ETIMEDOUT, "without an outcome"),
        ] {
            let mut all = two_seconds();
            all.submit(1, write(0), at(0));
            all.submit(2, write(0), at(0));
            assert_eq!(begin_all(&mut all), [1]);
            all.end(1, Err(answer), at(1));
            all.submit(3, read(8192), at(1));
            all.submit(4, DeviceOp::Flush, at(1));
            assert!(begin_all(&mut all).is_empty());
            let mut done = Vec::new();
            all.take_done(&mut done);
            assert_eq!(done.iter().map(|(tag, _)| *tag).collect::<Vec<_>>(), [2, 1, 3, 4]);
            for (_, result) in done {
                let told = result.unwrap_err().to_string();
                assert!(told.contains(words), "{answer}: {told}");
            }
            assert_eq!((all.away_since(), all.is_idle()), (Some(at(1)), false));
        }
        // A question that is refused is enough; one that fails otherwise tells nothing.
        let mut all = two_seconds();
        all.probed(Some(libc::EIO), at(1));
        all.probed(None, at(1));
        assert!(all.over().is_none());
        all.probed(Some(libc::ESHUTDOWN), at(2));
        assert_eq!((all.over(), all.away_since()), (Some(&FENCED), Some(at(2))));
        // Of a read it is known that it has changed nothing.
        let mut all = two_seconds();
        all.submit(1, read(0), at(0));
        begin_all(&mut all);
        all.end(1, Err(libc::ETIMEDOUT), at(1));
        assert_eq!((ended(&mut all), all.is_idle()), ((vec![], vec![1]), true));
    }

    #[test]
    fn an_errors_cause_and_place_are_told() {
        let mut all = two_seconds();
        for (tag, op) in [write(4096), read(8192), DeviceOp::Flush, write(0)].into_iter().enumerate() {
            all.submit(tag as u64, op, at(0));
        }
        for number in begin_all(&mut all) {
            all.end(number, Err(if number == 4 { libc::EDQUOT } else { libc::EPERM }), at(0));
        }
        let mut done = Vec::new();
        all.take_done(&mut done);
        let told: Vec<_> = done.into_iter().map(|(_, result)| result.unwrap_err()).collect();
        assert_eq!(told[3].kind, ErrorKind::NoSpace);
        assert_eq!(
            told.iter().map(ToString::to_string).collect::<Vec<_>>(),
            [
                "writing to an RBD image at byte 4096: operation not permitted",
                "reading an RBD image at byte 8192: operation not permitted",
                "flushing an RBD image: operation not permitted",
                "writing to an RBD image at byte 0: the disk quota is used up",
            ]
        );
    }

    #[test]
    fn so_many_are_out_and_the_rest_waits() {
        let mut all = two_seconds();
        for tag in 0..DEPTH_MAX as u64 + 2 {
            all.submit(tag, read(tag * 4096), at(0));
        }
        assert_eq!((begin_all(&mut all).len(), all.waiting()), (DEPTH_MAX, 2));
        all.end(1, Ok(None), at(0));
        assert_eq!((begin_all(&mut all).len(), all.waiting()), (1, 1));
    }

    #[test]
    fn what_has_nothing_to_do_has_ended() {
        let mut all = two_seconds();
        all.submit(1, DeviceOp::Read { offset: 0, len: 0 }, at(0));
        all.submit(2, zero(0, 0), at(0));
        assert_eq!((begin_all(&mut all), ended(&mut all)), (vec![], (vec![1, 2], vec![])));
    }

    #[test]
    fn zeroes_that_complete_an_object_are_made_of_all_of_it_and_a_write_there_waits() {
        let half = OBJECT / 2;
        let (mut all, mut begun) = (two_seconds(), Vec::new());
        all.submit(1, zero(0, half), at(0));
        all.submit(2, zero(half, half), at(0));
        while let Some((number, op)) = all.begin() {
            begun.push((number, op.offset(), op.bytes()));
        }
        assert_eq!(begun, [(1, Some(0), half), (2, Some(0), OBJECT)]);
        all.end(1, Ok(None), at(0));
        all.submit(3, write(0), at(0));
        assert!(begin_all(&mut all).is_empty());
        all.end(2, Ok(None), at(0));
        assert_eq!(begin_all(&mut all), [3]);

        // Zeroes that failed, and such as must keep their room, complete nothing.
        for fails in [true, false] {
            let mut all = two_seconds();
            all.submit(1, DeviceOp::Zero { offset: 0, len: half, unmap: fails }, at(0));
            begin_all(&mut all);
            all.end(1, if fails { Err(libc::EIO) } else { Ok(None) }, at(0));
            all.submit(2, zero(half, half), at(0));
            assert_eq!(all.begin().map(|(_, op)| (op.offset(), op.bytes())), Some((Some(half), half)));
        }
    }
}
