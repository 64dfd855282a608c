//! Operations of devices that take long or fail, told in spans with device, kind, offset and length. The engine's figures say how a
//! device does; these lines say which operation it was. Slow ones have a line a second at most, failed ones each at level `debug`.

use foldhash::HashMap;
use forebay_block::{DeviceOp, DeviceResult, Nanos};
use forebay_engine::{Asked, Role};

/// An operation that takes so long, in milliseconds, is slow.
const SLOW_MS: u64 = 1000;
/// One line in so long, in milliseconds: a device at which every operation is slow fills no disk with lines.
const LINE_EVERY_MS: u64 = 1000;

/// An operation under way.
struct Started {
    asked: Asked,
    at: Nanos,
}

/// What has been given to a volume's devices and has not ended. Bounded by what may be under way.
#[derive(Default)]
pub(crate) struct Operations {
    started: HashMap<u64, Started>,
    /// When the last line was written.
    told_at: Option<Nanos>,
    /// Slow operations since, of which no line tells.
    untold: u64,
}

/// What is said of a slow operation: how long it took, in milliseconds, and how many more there were since the last line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slow {
    ms: u64,
    untold: u64,
}

impl Operations {
    /// The device is given this operation, under this tag.
    pub(crate) fn started(&mut self, tag: u64, role: Role, op: &DeviceOp, now: Nanos) {
        self.started.insert(tag, Started { asked: Asked::new(role, op), at: now });
    }

    /// The operation has ended: says so if it took long or failed.
    pub(crate) fn ended(&mut self, volume: &str, tag: u64, result: &DeviceResult, now: Nanos) {
        let Some(op) = self.started.remove(&tag) else { return };
        let slow = self.judge(now.since(op.at), now);
        let error = result.as_ref().err();
        if slow.is_none() && error.is_none() {
            return;
        }
        let Asked { role, kind, offset, len } = op.asked;
        let device = match role {
            Role::Cache => "cache",
            Role::Backing => "backing",
            Role::Journal => "journal",
        };
        let kind = kind.name();
        tracing::info_span!("operation", volume, device, kind, offset, len).in_scope(|| {
            if let Some(error) = error {
                tracing::debug!(%error, "failed");
            }
            if let Some(Slow { ms, untold }) = slow {
                tracing::info!(ms, untold, "took long");
            }
        });
    }

    /// What there is to say of an operation that took so long.
    fn judge(&mut self, took_ns: u64, now: Nanos) -> Option<Slow> {
        let ms = took_ns / 1_000_000;
        if ms < SLOW_MS {
            return None;
        }
        if self.told_at.is_some_and(|at| now < at.plus_ms(LINE_EVERY_MS)) {
            self.untold += 1;
            return None;
        }
        self.told_at = Some(now);
        Some(Slow { ms, untold: std::mem::take(&mut self.untold) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_tells_of_slow_operations() {
        let mut operations = Operations::default();
        let at = |ms| Nanos(0).plus_ms(ms);
        let mut judge = |took_ms: u64, now_ms| operations.judge(took_ms * 1_000_000, at(now_ms));
        assert_eq!(judge(999, 5000), None);
        assert_eq!(judge(1000, 5000), Some(Slow { ms: 1000, untold: 0 }));
        assert_eq!(judge(1500, 5100), None);
        assert_eq!(judge(1500, 5999), None);
        assert_eq!(judge(2000, 6000), Some(Slow { ms: 2000, untold: 2 }));
    }

    #[test]
    fn what_has_ended_is_forgotten() {
        let mut operations = Operations::default();
        for tag in 0..10 {
            operations.started(tag, Role::Backing, &DeviceOp::Flush, Nanos(0));
        }
        for tag in 0..10 {
            operations.ended("db", tag, &Ok(None), Nanos(1));
        }
        assert!(operations.started.is_empty());
    }
}
