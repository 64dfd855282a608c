//! What is to happen at known instants, in order.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use forebay_block::Nanos;

/// Events by time; those of one instant come in the order in which they were planned.
#[derive(Clone, Debug)]
pub(crate) struct Agenda<E> {
    heap: BinaryHeap<Entry<E>>,
    planned: u64,
}

#[derive(Clone, Debug)]
struct Entry<E> {
    at: Nanos,
    order: u64,
    event: E,
}

impl<E> Agenda<E> {
    pub(crate) fn new() -> Self {
        Self { heap: BinaryHeap::new(), planned: 0 }
    }

    pub(crate) fn plan(&mut self, at: Nanos, event: E) {
        self.planned += 1;
        self.heap.push(Entry { at, order: self.planned, event });
    }

    /// When the first event is due.
    pub(crate) fn first(&self) -> Option<Nanos> {
        self.heap.peek().map(|e| e.at)
    }

    pub(crate) fn pop(&mut self) -> Option<(Nanos, E)> {
        self.heap.pop().map(|e| (e.at, e.event))
    }

    /// Every planned event, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Nanos, &E)> {
        self.heap.iter().map(|e| (e.at, &e.event))
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    /// The heap's greatest is the earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}
