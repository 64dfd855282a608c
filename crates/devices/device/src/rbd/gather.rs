//! Which parts of an image's objects read as zeroes, so that the last part of an object gives back the whole.
//!
//! The store frees nothing for zeroes in a part of an object. When the parts that were zeroed one after the other make up an
//! object, the last one is made zeroes of all of it, and the object goes.

use std::collections::{HashMap, VecDeque};

/// Parts of an object that are known by themselves.
const PARTS: u64 = u64::BITS as u64;
/// Objects of which something is known at a time; then the one that came first is forgotten.
const OBJECTS_MAX: usize = 4096;

/// See the module's documentation.
pub(crate) struct Gather {
    object_bytes: u64,
    part_bytes: u64,
    /// Which parts of an object read as zeroes, by its number.
    zeroes: HashMap<u64, u64>,
    /// The objects in the order in which they came.
    order: VecDeque<u64>,
}

impl Gather {
    pub(crate) fn new(object_bytes: u64) -> Self {
        let object_bytes = object_bytes.max(PARTS);
        Self {
            object_bytes,
            part_bytes: object_bytes / PARTS,
            zeroes: HashMap::new(),
            order: VecDeque::new(),
        }
    }

    /// This range, which is not empty, is about to be zeroed. Returns what is to be zeroed in its stead: all else of that reads as
    /// zeroes already.
    pub(crate) fn zeroed(&mut self, from: u64, to: u64) -> (u64, u64) {
        let (first, last) = (from / self.object_bytes, (to - 1) / self.object_bytes);
        let starts_whole = self.zero_in(first, from, to);
        let ends_whole = if last == first { starts_whole } else { self.zero_in(last, from, to) };
        // Objects between the two are zeroed as a whole, and nothing of them needs to be known any more.
        (first + 1..last).for_each(|object| self.forget(object));
        (
            if starts_whole { first * self.object_bytes } else { from },
            if ends_whole { (last + 1) * self.object_bytes } else { to },
        )
    }

    /// Something else than zeroes may be there from now on.
    pub(crate) fn written(&mut self, from: u64, to: u64) {
        if self.zeroes.is_empty() || from == to {
            return;
        }
        for object in from / self.object_bytes..=(to - 1) / self.object_bytes {
            let touched = self.parts(object, from, to, false);
            if let Some(zeroes) = self.zeroes.get_mut(&object) {
                *zeroes &= !touched;
            }
        }
    }

    /// Whether an object is whole with this range of it.
    fn zero_in(&mut self, object: u64, from: u64, to: u64) -> bool {
        let parts = self.parts(object, from, to, true);
        if parts == 0 {
            return false;
        }
        if !self.zeroes.contains_key(&object) {
            if self.order.len() >= OBJECTS_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.zeroes.remove(&oldest);
            }
            self.order.push_back(object);
        }
        let zeroes = self.zeroes.entry(object).or_default();
        *zeroes |= parts;
        let is_whole = *zeroes == u64::MAX;
        if is_whole {
            self.forget(object);
        }
        is_whole
    }

    fn forget(&mut self, object: u64) {
        if self.zeroes.remove(&object).is_some() {
            self.order.retain(|other| *other != object);
        }
    }

    /// The parts of an object that lie in a range: those that it covers, or those that it touches.
    fn parts(&self, object: u64, from: u64, to: u64, covered: bool) -> u64 {
        let start = object * self.object_bytes;
        let within = |at: u64| at.clamp(start, start + self.object_bytes) - start;
        let (from, to) = (within(from), within(to));
        let (first, end) = match covered {
            true => (from.div_ceil(self.part_bytes), to / self.part_bytes),
            false => (from / self.part_bytes, to.div_ceil(self.part_bytes)),
        };
        match end.saturating_sub(first) {
            0 => 0,
            count => (u64::MAX >> (PARTS - count)) << first,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT: u64 = 4 << 20;
    const PART: u64 = OBJECT / 64;

    #[test]
    fn the_last_part_of_an_object_is_made_the_whole() {
        let mut gather = Gather::new(OBJECT);
        for part in (0..64).rev().filter(|part| *part != 7) {
            let at = OBJECT + part * PART;
            assert_eq!(gather.zeroed(at, at + PART), (at, at + PART), "part {part}");
        }
        let at = OBJECT + 7 * PART;
        assert_eq!(gather.zeroed(at, at + PART), (OBJECT, 2 * OBJECT));
        // It is gone, and what is zeroed of it again frees nothing more.
        assert_eq!(gather.zeroed(at, at + PART), (at, at + PART));
        assert_eq!(gather.order.len(), 1);
    }

    #[test]
    fn a_part_that_was_written_or_zeroed_in_part_keeps_the_object() {
        for (write, is_whole) in [
            (None, true),
            (Some((OBJECT + 512, OBJECT + 1024)), false),
            (Some((0, 2 * OBJECT)), false),
            (Some((OBJECT - 512, OBJECT)), true),
            (Some((2 * OBJECT, 2 * OBJECT + 512)), true),
            (Some((OBJECT, OBJECT)), true),
        ] {
            let mut gather = Gather::new(OBJECT);
            let (middle, end) = (OBJECT + OBJECT / 2, 2 * OBJECT);
            assert_eq!(gather.zeroed(OBJECT, middle), (OBJECT, middle));
            if let Some((from, to)) = write {
                gather.written(from, to);
            }
            let zeroed = gather.zeroed(middle, end);
            assert_eq!(zeroed, if is_whole { (OBJECT, end) } else { (middle, end) }, "{write:?}");
        }
        let mut gather = Gather::new(OBJECT);
        gather.zeroed(0, OBJECT - 512);
        assert_eq!(
            gather.zeroed(OBJECT - 512, OBJECT),
            (OBJECT - 512, OBJECT),
            "no part is known that is not whole"
        );
    }

    #[test]
    fn a_range_over_several_objects_completes_those_at_its_ends() {
        let mut gather = Gather::new(OBJECT);
        gather.zeroed(0, OBJECT / 2);
        gather.zeroed(3 * OBJECT + PART, 4 * OBJECT);
        gather.zeroed(OBJECT, OBJECT + PART);
        assert_eq!(gather.zeroed(OBJECT / 2, 3 * OBJECT + PART), (0, 4 * OBJECT));
        assert!(gather.zeroes.is_empty() && gather.order.is_empty());
        assert_eq!(gather.zeroed(8 * OBJECT, 9 * OBJECT), (8 * OBJECT, 9 * OBJECT));
    }

    #[test]
    fn so_many_objects_are_known_and_no_more() {
        let mut gather = Gather::new(OBJECT);
        for object in 0..OBJECTS_MAX as u64 + 1 {
            gather.zeroed(object * OBJECT, object * OBJECT + OBJECT / 2);
        }
        assert_eq!((gather.zeroes.len(), gather.order.len()), (OBJECTS_MAX, OBJECTS_MAX));
        let rest = (OBJECT / 2, OBJECT);
        assert_eq!(gather.zeroed(rest.0, rest.1), rest, "the first one is forgotten");
        let rest = (9 * OBJECT + OBJECT / 2, 10 * OBJECT);
        assert_eq!(gather.zeroed(rest.0, rest.1), (9 * OBJECT, 10 * OBJECT));
    }
}
