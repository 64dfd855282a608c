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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::map::Map;
    use crate::map::segments::{Slot, SlotKind, SlotRef};

    #[derive(Clone, Debug)]
    enum Step {
        Name(bool, Option<u64>),
        Dirty(usize),
        Clean(usize),
        Leave,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (any::<bool>(), proptest::option::of(1u64..60)).prop_map(|(who, from)| Step::Name(who, from)),
            1 => (0usize..60).prop_map(Step::Dirty),
            3 => (0usize..60).prop_map(Step::Clean),
            2 => Just(Step::Leave),
        ]
    }

    proptest! {
        /// The tail moves to the lowest pin, and never beyond: as if of each record it were known whether anybody needs it.
        #[test]
        fn the_tail_moves_to_the_lowest_pin(
            lens in prop::collection::vec(1u64..8, 1..9),
            steps in prop::collection::vec(step(), 1..60),
        ) {
            let records = lens.iter().sum::<u64>() as usize;
            let mut map = Map::of_segments(lens.len() as u32);
            // The segment of each record, and its slot there.
            let mut slots: Vec<(u32, SlotRef)> = Vec::new();
            let mut next = Seq(1);
            for (index, len) in (0u32..).zip(&lens) {
                let first = next;
                map.segments_mut().open(index, u64::from(index) + 1, first, 0, 1);
                for _ in 0..*len {
                    let slot = Slot::new(forebay_block::BlockNo(next.0), 512, 0, SlotKind::Data, next, first);
                    slots.push((index, map.segments_mut().push(index, slot)));
                    next = next.next();
                }
                map.segments_mut().ends_with(index, Seq(next.0 - 1));
            }
            let mut pins = Pins::default();
            let mut named: [Option<u64>; 2] = [None; 2];
            let (mut written, mut dirty) = (vec![false; records], vec![false; records]);
            let mut tail = 0;
            for step in steps {
                match step {
                    Step::Name(order, from) => {
                        let (at, who) = if order { (0, Pinner::Order) } else { (1, Pinner::Copies) };
                        pins.set(who, from.map(Seq));
                        named[at] = from;
                    }
                    // Only what is written becomes dirty, and that is at the head.
                    Step::Dirty(n) if n < records && !written[n] && slots[n].0 >= tail => {
                        map.put(slots[n].1, true);
                        (written[n], dirty[n]) = (true, true);
                    }
                    Step::Clean(n) if n < records && dirty[n] => {
                        map.cleaned(slots[n].1);
                        dirty[n] = false;
                    }
                    Step::Leave => {
                        while (tail as usize) < lens.len() && pins.keeper(map.segments().get(tail)).is_none() {
                            tail += 1;
                        }
                    }
                    _ => {}
                }
                let needed = |n: usize, at: usize| named[at].is_some_and(|from| from <= n as u64 + 1);
                let of = |segment: u32| (0..records).filter(|n| slots[*n].0 == segment).collect::<Vec<_>>();
                for segment in 0..lens.len() as u32 {
                    let expected = match of(segment) {
                        of if of.iter().any(|n| dirty[*n]) => Some(Pinner::Dirty),
                        of if of.iter().any(|n| needed(*n, 0)) => Some(Pinner::Order),
                        of if of.iter().any(|n| needed(*n, 1)) => Some(Pinner::Copies),
                        _ => None,
                    };
                    prop_assert_eq!(pins.keeper(map.segments().get(segment)), expected, "segment {}", segment);
                }
            }
        }
    }

    #[test]
    fn dirty_blocks_and_the_order_wait_for_the_backing() {
        for (who, waits) in [(Pinner::Dirty, true), (Pinner::Order, true), (Pinner::Copies, false)] {
            assert_eq!(who.awaits_backing(), waits, "{who:?}");
        }
    }
}
