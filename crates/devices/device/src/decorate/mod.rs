//! Devices around devices, kept for good as tools of the tests: delay, throttle, error injection, recording,
//! statistics.
//!
//! Most can be given as text, innermost first ([`Decoration`]):
//!
//! ```text
//! delay:KIND:fixed=TIME[:per-mib=TIME]              every operation of the kind ends that much later
//! throttle[:bytes=SIZE][:iops=N]                    at most that much a second
//! inject:KIND:ERRNO[:every=N][:probability=P[:seed=S]][:after=N][:times=N][:once][:from=SIZE][:to=SIZE][:done]
//! record:file=PATH[:max=SIZE]                       all changes are recorded in a new file, see `forebay_record`
//! ```
//!
//! KIND is `read`, `write` (durable or not), `durable` (durable writes), `flush`, `zero` or `any`; ERRNO is `eio`,
//! `enospc`, `einval`, `eopnotsupp`, `erofs`, `fenced`; TIME takes `us`, `ms`, `s`; SIZE takes K, M, G, T. Of a rule's
//! conditions all must hold; `every=100` fails each hundredth matching operation, `after=10` spares the first ten,
//! `times=3` fails three and then no more, `once` is `times=1`, `done` carries the operation out before it fails it.
//! A record is shared by all devices of a volume that name its file; its path has no colon.
//!
//! A device given with its role in front (`cache:inject:write:eio:every=100`) is the business of who knows roles.

mod delay;
mod inject;
mod record;
mod spec;
mod statistics;
mod throttle;

use forebay_block::DeviceOp;

pub use delay::{Delay, Delayed};
pub use forebay_record::Role;
pub use inject::{ErrorInjected, InjectHandle, Rule};
pub use record::{RecordFile, Recorded, Recorders};
pub(crate) use spec::duration;
pub use spec::{BadDecoration, Decoration};
pub use statistics::{KindFigures, Measured, StatisticsHandle};
pub use throttle::{Rate, Throttled};

/// Kinds of operations that decorators tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// A read.
    Read,
    /// A write that need not be durable yet.
    Write,
    /// A durable write.
    DurableWrite,
    /// A flush.
    Flush,
    /// A zero or discard.
    Zero,
}

impl OpKind {
    /// Every kind, in the order of reports.
    pub const ALL: [Self; 5] = [Self::Read, Self::Write, Self::DurableWrite, Self::Flush, Self::Zero];

    /// The kind of an operation.
    pub const fn of(op: &DeviceOp) -> Self {
        match op {
            DeviceOp::Read { .. } => Self::Read,
            DeviceOp::Write { durable: false, .. } => Self::Write,
            DeviceOp::Write { durable: true, .. } | DeviceOp::Commit(_) => Self::DurableWrite,
            DeviceOp::Flush => Self::Flush,
            DeviceOp::Zero { .. } => Self::Zero,
        }
    }

    /// One word for reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::DurableWrite => "durable",
            Self::Flush => "flush",
            Self::Zero => "zero",
        }
    }
}

/// A set of [`OpKind`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds(u8);

impl Kinds {
    /// Every kind.
    pub const ANY: Self = Self(0b1_1111);
    /// Durable and other writes.
    pub const WRITES: Self = Self(0b0_0110);

    /// Only this kind.
    pub const fn only(kind: OpKind) -> Self {
        Self(1 << kind as u8)
    }

    /// Whether the set has this kind.
    pub const fn has(self, kind: OpKind) -> bool {
        self.0 & (1 << kind as u8) != 0
    }
}

/// First byte and number of bytes that an operation concerns; a flush concerns none.
pub(crate) fn range_of(op: &DeviceOp) -> (u64, u64) {
    match op {
        DeviceOp::Read { offset, len } => (*offset, *len as u64),
        DeviceOp::Write { offset, .. } => (*offset, op.write_bytes()),
        DeviceOp::Zero { offset, len, .. } => (*offset, *len),
        DeviceOp::Commit(commit) => (commit.head_offset, commit.head.len() as u64),
        DeviceOp::Flush => (0, 0),
    }
}

/// Hands the parts of [`crate::Device`] that a decorator does not change through to the device within.
macro_rules! pass_through {
    () => {
        pass_through!(but beside);

        fn beside(&mut self, what: $crate::Beside<'_>) {
            self.inner.beside(what);
        }
    };
    (but beside) => {
        pass_through!(but waiting);

        fn waiting(&self) -> usize {
            self.inner.waiting()
        }
    };
    (but waiting) => {
        fn info(&self) -> &$crate::DeviceInfo {
            self.inner.info()
        }

        fn is_fenced(&self) -> bool {
            self.inner.is_fenced()
        }

        fn survey(&self) -> std::io::Result<$crate::Survey> {
            self.inner.survey()
        }

        fn recognize_by(&mut self, sign: Option<$crate::Sign>) {
            self.inner.recognize_by(sign);
        }

        fn resize(&mut self, size_bytes: u64) -> std::io::Result<()> {
            self.inner.resize(size_bytes)
        }

        fn reserve(&self) -> std::io::Result<()> {
            self.inner.reserve()
        }
    };
}
use pass_through;

/// The earlier of two deadlines.
fn earlier(a: Option<forebay_block::Nanos>, b: Option<forebay_block::Nanos>) -> Option<forebay_block::Nanos> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
