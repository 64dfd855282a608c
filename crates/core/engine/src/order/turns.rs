//! The turn of a bypass: it is a member of the same order as what goes through the log (`docs/design/promises.md`, Admission).
//!
//! ```text
//!                        ┌ all that it depends on is on the backing, and recovery would not repeat it ┐
//!   bypass ── waits ─────┤                                                                            ├─► to the backing
//!                        └ something is lost for good, and none of its own blocks is on its way ──────┘   (order is broken)
//! ```
//!
//! One number says for which records the first bypass waits, so that destaging, and those who write records, know that somebody does.

use forebay_block::Seq;

/// Whether a bypass may go to the backing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Waits,
    /// Everything that it depends on is there.
    Now,
    /// What it depends on will never be there: it overtakes what was acknowledged before.
    GivesUp,
}

/// What is known of a bypass that asks for its turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asking {
    /// The newest record that it depends on.
    pub(crate) after: Seq,
    /// A crash would repeat nothing up to this record.
    pub(crate) recorded: Seq,
    /// The journal durably has everything up to this record.
    pub(crate) committed: Seq,
    /// The log has failed.
    pub(crate) latched: bool,
}

/// The bypasses that wait.
#[derive(Default)]
pub(super) struct Turns {
    /// The first of them waits until records up to this one are on the backing.
    first: Option<Seq>,
}

impl Turns {
    pub(super) fn first(&self) -> Option<Seq> {
        self.first
    }

    pub(super) fn forget(&mut self) {
        self.first = None;
    }

    /// A bypass waits for records up to `upto` to be recorded as destaged, beyond those up to `recorded`.
    pub(super) fn note(&mut self, upto: Seq, recorded: Seq) {
        let first = self.first.filter(|first| *first > recorded && upto > recorded);
        self.first = match (first, self.first) {
            (Some(first), _) => Some(first.min(upto)),
            (None, Some(waits)) if upto <= recorded => Some(waits),
            _ => Some(upto),
        };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_that_waits_counts() {
        // What is recorded, for what a bypass waits, for what the first one is taken to wait then.
        let table: &[&[(u64, u64, u64)]] = &[
            &[(0, 9, 9)],
            &[(0, 9, 9), (0, 5, 5), (0, 7, 5)],
            // The first has its turn: the next one is the first.
            &[(0, 5, 5), (5, 9, 9)],
            &[(0, 5, 5), (5, 9, 9), (5, 7, 7)],
            // One that waits for something else than records does not hide one that waits for records.
            &[(0, 9, 9), (4, 3, 9)],
            &[(4, 3, 3), (4, 9, 9)],
        ];
        for steps in table {
            let mut turns = Turns::default();
            for (recorded, upto, first) in *steps {
                turns.note(Seq(*upto), Seq(*recorded));
                assert_eq!(turns.first(), Some(Seq(*first)), "{steps:?}");
            }
            turns.forget();
            assert_eq!(turns.first(), None);
        }
    }

    proptest! {
        /// As long as one waits for more than is recorded, that number is told, and it is the smallest.
        #[test]
        fn somebody_is_always_known_to_wait(waits in proptest::collection::vec(0u64..40, 1..20), recorded in 0u64..40) {
            let mut turns = Turns::default();
            for upto in &waits {
                turns.note(Seq(*upto), Seq(recorded));
                prop_assert!(turns.first().is_some());
            }
            if let Some(least) = waits.iter().filter(|upto| **upto > recorded).min() {
                prop_assert_eq!(turns.first(), Some(Seq(*least)));
            }
        }
    }
}
