//! A broken promise.

use std::fmt;

use crate::oracle::Wrong;

/// What was broken, where and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The promise that is broken, `P1` .. `P9` (`docs/design/promises.md`); `wall` for a rule of the engine's
    /// interface, `priority` for one of the order in which operations of the backing start, `check` for what the verifier sees otherwise, or `replay` for a plan that has two histories.
    pub promise: &'static str,
    /// In words.
    pub message: String,
    /// Sectors of the volume concerned.
    pub sectors: Vec<u64>,
    /// Round, from 0.
    pub round: usize,
    /// Step of the round.
    pub step: u64,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} broken in round {} at step {}: {}", self.promise, self.round, self.step, self.message)?;
        match self.sectors[..] {
            [] => Ok(()),
            [first, ..] => write!(f, " (sector {first}, block {})", first / 8),
        }
    }
}

/// Why the current life of the process cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Interrupt {
    /// The plan's crash is due.
    Crash,
    /// The volume refused to start, as it may after this damage; the history ends.
    Refused,
    /// A promise is broken.
    Violation(Violation),
}

/// An interrupt that reports a violation; round and step are filled in by the world.
pub fn broken(promise: &'static str, message: impl Into<String>) -> Interrupt {
    Interrupt::Violation(Violation {
        promise,
        message: message.into(),
        sectors: Vec::new(),
        round: 0,
        step: 0,
    })
}

impl From<Wrong> for Interrupt {
    fn from(wrong: Wrong) -> Self {
        Self::Violation(Violation {
            promise: wrong.promise,
            message: wrong.message,
            sectors: vec![wrong.sector],
            round: 0,
            step: 0,
        })
    }
}
