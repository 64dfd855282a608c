//! What keeps the log's tail where it is: pins, as those of the journal of bcachefs.
//!
//! ```text
//!   order of the log:   ┌────┐ ┌────┐ ┌────┐ ┌────┐ ┌─ ─ ─
//!                  tail │    │ │    │ │    │ │    │ │ head
//!                       └────┘ └────┘ └────┘ └────┘ └─ ─ ─
//!                                ▲             ▲
//!                                lowest pin    another
//!                       └─ may leave
//! ```
//!
//! Whoever needs records of the log holds a pin: it names the oldest one that it needs. Blocks that the backing lacks are too many for
//! that; each of them counts in its segment, which the map keeps ([`Segment::dirty`]), as bcachefs counts the pins of each journal entry.
//!
//! 1. A segment may leave the log only if all of its records lie before every pin.
//! 2. Who moves the tail looks at pins alone: it knows nobody who holds one.

use forebay_block::Seq;

use crate::map::segments::Segment;

/// Who holds a pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pinner {
    /// Blocks, or versions of them, that the backing lacks.
    Dirty,
    /// The order in which records are destaged: it goes on from what is on the backing.
    Order,
    /// Clean blocks that are on their way from the tail to the head.
    Copies,
}

impl Pinner {
    /// Those who name the oldest record that they need.
    const NAMING: [Self; 2] = [Self::Order, Self::Copies];

    /// It lets go when more is on the backing.
    pub(super) fn awaits_backing(self) -> bool {
        matches!(self, Self::Dirty | Self::Order)
    }
}

/// The pins of those who name a record.
#[derive(Default)]
pub(super) struct Pins {
    from: [Option<Seq>; Pinner::NAMING.len()],
}

impl Pins {
    /// From now on `who` needs the records from `from` on, or none.
    pub(super) fn set(&mut self, who: Pinner, from: Option<Seq>) {
        let place = Pinner::NAMING.iter().position(|naming| *naming == who);
        if let Some(pin) = place.and_then(|at| self.from.get_mut(at)) {
            *pin = from;
        }
    }

    /// Who keeps this segment in the log, if anybody does.
    pub(super) fn keeper(&self, segment: &Segment) -> Option<Pinner> {
        if segment.dirty > 0 {
            return Some(Pinner::Dirty);
        }
        let needs = |from: &Option<Seq>| from.is_some_and(|from| from <= segment.last_seq);
        let at = self.from.iter().position(needs)?;
        Pinner::NAMING.get(at).copied()
    }
}
