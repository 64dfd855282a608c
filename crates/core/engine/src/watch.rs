//! Whether what lies below the cache answers: the backing, and the journal on its side.
//!
//! ```text
//!            nothing ends for SILENT_AFTER_MS,
//!            or one operation is under way for HUNG_AFTER_MS           one ends
//!  answers ──────────────────────────────────────────────► silent ─────────────► answers, or fails
//!     ▲  └──────── one ends with an error ──────────────► failing
//!     └─── one of the same kind succeeds, and for SETTLED_AFTER_MS none has failed ──┘
//! ```
//!
//! It is looked at when somebody asks for figures, with the time of the asking: nothing has to wake for it.

use forebay_block::{DeviceOp, DeviceResult, ErrorKind, Nanos, OpKind};

use crate::interface::{Ailing, Ailment, Asked, IoId, Role, Trouble};
use crate::tables::Table;

/// A device at which nothing has ended for so long, in milliseconds, is silent. A flush alone is given more.
pub const SILENT_AFTER_MS: u64 = 2000;
/// A device that has one operation under way for so long, in milliseconds, is silent, whatever else ends: a flush of a disk's
/// whole cache takes no longer.
pub const HUNG_AFTER_MS: u64 = 10_000;
/// A device that has failed is well again when it has not for so long, in milliseconds.
const SETTLED_AFTER_MS: u64 = 1000;
/// So long after the last failure, in milliseconds, an operation of any kind shows that it is well; longer than the longest
/// pause between two tries.
const ANY_KIND_AFTER_MS: u64 = 10_000;

/// Kinds of operations: each fails on its own, as writes do where there is no room.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Flush,
}

impl From<OpKind> for Kind {
    fn from(kind: OpKind) -> Self {
        match kind {
            OpKind::Read => Self::Read,
            OpKind::Write | OpKind::Zero | OpKind::Commit => Self::Write,
            OpKind::Flush => Self::Flush,
        }
    }
}

struct Started {
    asked: Asked,
    at: Nanos,
}

impl Started {
    fn kind(&self) -> Kind {
        self.asked.kind.into()
    }
}

/// A device that has failed, and may be well again.
struct Failing {
    kind: Kind,
    trouble: Trouble,
    since: Nanos,
    last: Nanos,
    /// An operation of the same kind has succeeded since, which shows that it is well.
    answered: bool,
    /// One of another kind has, which shows it where nothing of the same kind is asked any more.
    answered_else: bool,
}

/// What was started below the cache and has not ended, and how what ended went. Bounded by what may be under way there.
#[derive(Default)]
pub struct Watch {
    started: Table<IoId, Started>,
    last_ended: Option<Nanos>,
    failing: Option<Failing>,
}

impl Watch {
    /// An operation is given to a device below the cache.
    pub fn started(&mut self, id: IoId, role: Role, op: &DeviceOp, now: Nanos) {
        self.started.insert(id, Started { asked: Asked::new(role, op), at: now });
    }

    /// An operation has ended; those of the cache are none of its business. `retries`: what failed before has not gone right yet.
    pub fn ended(&mut self, id: IoId, result: &DeviceResult, now: Nanos, retries: bool) {
        let silent_since = if result.is_ok() { None } else { self.silence(now).map(|(_, since)| since) };
        let Some(started) = self.started.remove(&id) else { return };
        let kind = started.kind();
        self.last_ended = Some(now);
        let error = match result {
            Ok(_) => None,
            // These say something of the operation, not of the device.
            Err(e) if matches!(e.kind, ErrorKind::Unsupported | ErrorKind::Invalid) => None,
            Err(e) => Some(Trouble::new(started.asked, e)),
        };
        if let Some(trouble) = error {
            let failed_since = self.fails(now, retries).map(|failing| failing.since);
            let since = failed_since.or(silent_since).unwrap_or(now);
            self.failing =
                Some(Failing { kind, trouble, since, last: now, answered: false, answered_else: false });
        } else if let Some(failing) = &mut self.failing {
            failing.answered |= kind == failing.kind;
            failing.answered_else = true;
        }
    }

    /// What ails a device below the cache; `retries` as for [`Watch::ended`].
    pub fn ailing(&self, now: Nanos, retries: bool, wall_offset_ns: u64) -> Option<Ailing> {
        let fails = self.fails(now, retries);
        let (role, ailment, since) = match (self.silence(now), fails) {
            (Some((role, since)), fails) => {
                (role, Ailment::Silent, fails.map_or(since, |failing| failing.since.min(since)))
            }
            (None, Some(failing)) => {
                (failing.trouble.asked.role, Ailment::Failing(failing.trouble.clone()), failing.since)
            }
            (None, None) => return None,
        };
        Some(Ailing { role, ailment, since_ns: wall_offset_ns.saturating_add(since.0) })
    }

    /// What a device below the cache answered when it failed last, if it is not well again.
    pub(crate) fn trouble(&self, now: Nanos) -> Option<&Trouble> {
        self.fails(now, true).map(|failing| &failing.trouble)
    }

    fn fails(&self, now: Nanos, retries: bool) -> Option<&Failing> {
        let over = |failing: &Failing| {
            let settled = failing.answered && is_past(failing.last, SETTLED_AFTER_MS, now);
            let forgotten = failing.answered_else && is_past(failing.last, ANY_KIND_AFTER_MS, now);
            (settled || forgotten) && !retries
        };
        self.failing.as_ref().filter(|failing| !over(failing))
    }

    /// The device that is silent, and since when.
    fn silence(&self, now: Nanos) -> Option<(Role, Nanos)> {
        let silent = self.started.values().filter_map(|started| {
            let quiet_since = self.last_ended.map_or(started.at, |ended| ended.max(started.at));
            if is_past(started.at, HUNG_AFTER_MS, now) {
                return Some((started.asked.role, started.at));
            }
            let quiet = started.kind() != Kind::Flush && is_past(quiet_since, SILENT_AFTER_MS, now);
            quiet.then_some((started.asked.role, quiet_since))
        });
        silent.min_by_key(|(_, since)| *since)
    }
}

/// Whether so many milliseconds have passed since then.
fn is_past(then: Nanos, ms: u64, now: Nanos) -> bool {
    then.plus_ms(ms) <= now
}

#[cfg(test)]
mod tests {
    use forebay_block::IoError;

    use super::*;

    const READ: DeviceOp = DeviceOp::Read { offset: 0, len: 4096 };
    const ZERO: DeviceOp = DeviceOp::Zero { offset: 0, len: 4096, unmap: false };

    const ZEROES: Asked = Asked { role: Role::Backing, kind: OpKind::Zero, offset: Some(0), len: 4096 };
    const IO_ERROR: Ailment =
        Ailment::Failing(Trouble { asked: ZEROES, kind: ErrorKind::Io, context: "a test", cause: None });

    fn at(ms: u64) -> Nanos {
        Nanos(ms * 1_000_000)
    }

    fn eio() -> DeviceResult {
        Err(IoError::new(ErrorKind::Io, "a test"))
    }

    /// What ails it, and since when in milliseconds.
    fn told(watch: &Watch, ms: u64) -> Option<(Ailment, u64)> {
        watch.ailing(at(ms), false, 0).map(|ailing| (ailing.ailment, ailing.since_ns / 1_000_000))
    }

    #[test]
    fn who_answers_nothing_is_silent_until_something_ends() {
        let mut watch = Watch::default();
        assert_eq!(told(&watch, 100_000), None, "nothing is asked");
        watch.started(IoId(1), Role::Backing, &READ, at(500));
        assert_eq!(told(&watch, 2499), None);
        assert_eq!(told(&watch, 2500), Some((Ailment::Silent, 500)));
        watch.started(IoId(2), Role::Backing, &READ, at(3000));
        assert_eq!(told(&watch, 4000), Some((Ailment::Silent, 500)));
        watch.ended(IoId(1), &Ok(None), at(5000), false);
        assert_eq!(told(&watch, 6999), None, "it works, however slowly");
        assert_eq!(told(&watch, 7000), Some((Ailment::Silent, 5000)));
    }

    #[test]
    fn one_that_hangs_is_found_though_others_end() {
        let mut watch = Watch::default();
        watch.started(IoId(1), Role::Backing, &ZERO, at(0));
        for n in 2..20 {
            watch.started(IoId(n), Role::Backing, &READ, at(n * 1000));
            watch.ended(IoId(n), &Ok(None), at(n * 1000 + 1), false);
            assert_eq!(told(&watch, n * 1000 + 1).is_some(), n >= 10, "{n}");
        }
    }

    #[test]
    fn a_flush_may_take_its_time() {
        let mut watch = Watch::default();
        watch.started(IoId(1), Role::Journal, &DeviceOp::Flush, at(0));
        assert_eq!(told(&watch, 9999), None);
        assert_eq!(told(&watch, 10_000), Some((Ailment::Silent, 0)));
        assert_eq!(watch.ailing(at(10_000), false, 7).unwrap().role, Role::Journal);
    }

    #[test]
    fn who_fails_is_ill_until_the_same_goes_right_for_a_while() {
        let mut watch = Watch::default();
        let mut id = 0;
        let mut step = |watch: &mut Watch, op: &DeviceOp, result: DeviceResult, ms| {
            id += 1;
            watch.started(IoId(id), Role::Backing, op, at(ms));
            watch.ended(IoId(id), &result, at(ms), false);
        };
        let failing = Some((IO_ERROR, 100));
        step(&mut watch, &ZERO, eio(), 100);
        assert_eq!(told(&watch, 100), failing);
        step(&mut watch, &READ, Ok(None), 1500);
        assert_eq!(told(&watch, 3000), failing, "reads go on where writes fail");
        step(&mut watch, &ZERO, Ok(None), 3000);
        assert_eq!(told(&watch, 3000), None);
        assert!(watch.ailing(at(3000), true, 0).is_some(), "what failed is still to be repeated");
        step(&mut watch, &ZERO, eio(), 4000);
        step(&mut watch, &ZERO, Ok(None), 4100);
        assert_eq!(told(&watch, 4999), Some((IO_ERROR, 4000)));
        assert_eq!(told(&watch, 5000), None, "by itself, with nothing more to do");
        step(&mut watch, &READ, eio(), 6000);
        step(&mut watch, &ZERO, Ok(None), 15_999);
        assert!(told(&watch, 15_999).is_some());
        assert_eq!(told(&watch, 16_000), None, "nobody reads any more, or asks for anything");
    }

    #[test]
    fn a_silence_that_ends_in_errors_began_with_the_silence() {
        let mut watch = Watch::default();
        watch.started(IoId(1), Role::Backing, &ZERO, at(1000));
        watch.ended(IoId(1), &eio(), at(6000), true);
        assert_eq!(told(&watch, 6000), Some((IO_ERROR, 1000)));
        watch.started(IoId(2), Role::Backing, &ZERO, at(6000));
        watch.ended(IoId(2), &eio(), at(6500), true);
        assert_eq!(told(&watch, 9000), Some((IO_ERROR, 1000)));
    }

    #[test]
    fn what_a_device_cannot_do_is_no_ailment() {
        let mut watch = Watch::default();
        watch.started(IoId(1), Role::Backing, &ZERO, at(0));
        watch.ended(IoId(1), &Err(IoError::new(ErrorKind::Unsupported, "a test")), at(0), false);
        assert_eq!(told(&watch, 0), None);
    }
}
