//! Faults that a plan can ask of a device.

use forebay_block::{DeviceOp, ErrorKind};
use forebay_engine::Role;

/// Kinds of device operations that a fault can be for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// Reads.
    Read,
    /// Writes, durable or not.
    Write,
    /// Flushes.
    Flush,
    /// Zeroes.
    Zero,
    /// All of them.
    Any,
}

impl OpKind {
    /// Every kind, with its spelling in plans.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Read, "read"),
        (Self::Write, "write"),
        (Self::Flush, "flush"),
        (Self::Zero, "zero"),
        (Self::Any, "any"),
    ];

    /// The kind of `op`; never [`OpKind::Any`].
    pub const fn of(op: &DeviceOp) -> Self {
        match op {
            DeviceOp::Read { .. } => Self::Read,
            DeviceOp::Write { .. } | DeviceOp::Commit(_) => Self::Write,
            DeviceOp::Flush => Self::Flush,
            DeviceOp::Zero { .. } => Self::Zero,
        }
    }

    /// Whether a fault for `self` hits an operation of kind `other`.
    pub fn covers(self, other: Self) -> bool {
        self == Self::Any || self == other
    }
}

/// What goes wrong with an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// EIO; nothing was done.
    Eio,
    /// EIO, although everything was done.
    EioDone,
    /// EIO; some sectors were written.
    EioTorn,
    /// ENOSPC; nothing was done.
    NoSpace,
    /// Takes thirty times as long.
    Slow,
    /// Takes two seconds.
    Stuck,
    /// A failed flush after which everything that was not durable is gone at once (a device that was reset).
    Reset,
    /// A write that is reported as done and was not.
    Lost,
    /// A write that is reported as done and went elsewhere.
    Misdirected,
    /// No answer comes for five seconds, and then an error takes its place; everything was done, or nothing.
    Away,
    /// No answer comes for three seconds, and then an error takes its place. Each block of a write is carried out later, or
    /// never.
    Late,
}

impl Effect {
    /// Every effect, with its spelling in plans.
    pub const ALL: [(Self, &'static str); 11] = [
        (Self::Eio, "eio"),
        (Self::EioDone, "eio-done"),
        (Self::EioTorn, "eio-torn"),
        (Self::NoSpace, "enospc"),
        (Self::Slow, "slow"),
        (Self::Stuck, "stuck"),
        (Self::Reset, "reset"),
        (Self::Lost, "lost"),
        (Self::Misdirected, "misdirected"),
        (Self::Away, "away"),
        (Self::Late, "late"),
    ];

    /// What the engine is told; `None` if it is told that all is well.
    pub const fn error(self) -> Option<ErrorKind> {
        match self {
            Self::Eio | Self::EioDone | Self::EioTorn | Self::Reset | Self::Away | Self::Late => {
                Some(ErrorKind::Io)
            }
            Self::NoSpace => Some(ErrorKind::NoSpace),
            Self::Slow | Self::Stuck | Self::Lost | Self::Misdirected => None,
        }
    }

    /// Whether the device breaks its promises without saying so (P5).
    pub const fn is_silent(self) -> bool {
        matches!(self, Self::Lost | Self::Misdirected)
    }
}

/// A fault of some operations of a device in one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which device.
    pub role: Role,
    /// Which operations.
    pub on: OpKind,
    /// What happens.
    pub effect: Effect,
    /// The first operation hit, counting those of kind `on` from 1 since the round's start.
    pub first: u64,
    /// How many in a row; `u64::MAX` until the round ends or the world heals.
    pub count: u64,
}

impl Fault {
    /// Whether the fault hits the `nth` operation of its kind.
    pub fn hits(&self, nth: u64) -> bool {
        nth >= self.first && nth - self.first < self.count
    }
}

/// What happens to a sector of the cache while nobody writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rot {
    /// A bit changes.
    Flip,
    /// It reads as zeroes.
    Zeroed,
    /// It holds what another sector holds.
    Copied,
    /// Reading it fails until it is written again (a latent sector error).
    Unreadable,
    /// The header of a record in the log says what cannot be, and its checksum is right.
    Forged,
}

impl Rot {
    /// Every kind, with its spelling in plans.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Flip, "flip"),
        (Self::Zeroed, "zeroed"),
        (Self::Copied, "copied"),
        (Self::Unreadable, "unreadable"),
        (Self::Forged, "forged"),
    ];
}

/// Decay of one sector at a moment of the round's script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Which device; the backing has no checksums, so that only [`Rot::Unreadable`] is fair there.
    pub role: Role,
    /// What happens.
    pub rot: Rot,
    /// After how many actions of the round's script; 0 is before recovery.
    pub after: usize,
    /// Chooses the sector among those in use.
    pub pick: u64,
}
