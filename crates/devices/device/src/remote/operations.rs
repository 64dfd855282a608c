//! Operations under way, and how their ends are put together from those of their requests.

use std::collections::HashMap;

use forebay_block::{Buf, DeviceResult, IoError};

use crate::remote::{Effect, Parts, Request};

/// Which request of which operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    op: u64,
    part: usize,
}

impl Place {
    /// That of another request of the same operation.
    pub(super) fn of_part(self, part: usize) -> Self {
        Self { part, ..self }
    }
}

/// What comes after the end of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The end of others.
    Others,
    /// A flush, over this line and for this place.
    Flush(usize, Place),
    /// Nothing: the operation has ended, which was nothing but a flush, or was not.
    Ended { was_flush: bool },
}

struct Op {
    tag: u64,
    line: usize,
    /// Requests that have not ended yet.
    left: usize,
    /// What each of its requests has read.
    read: Vec<Option<Buf>>,
    error: Option<IoError>,
    then_flush: bool,
    /// One of its changes was answered, and is not durable by itself.
    is_volatile: bool,
    /// It is nothing but a flush, by which its owner learns what is durable.
    is_flush: bool,
}

impl Op {
    fn result(self) -> DeviceResult {
        if let Some(error) = self.error {
            return Err(error);
        }
        let mut parts: Vec<Buf> = self.read.into_iter().flatten().collect();
        Ok(match parts.len() {
            0 | 1 => parts.pop(),
            _ => Some(Buf::copy_of(&parts.iter().map(|part| &part[..]).collect::<Vec<_>>().concat())),
        })
    }
}

/// Bounded by what its owner has under way.
#[derive(Default)]
pub(super) struct Operations {
    last: u64,
    under_way: HashMap<u64, Op>,
    done: Vec<(u64, DeviceResult)>,
}

impl Operations {
    /// Begins an operation on a line; `None` if it has nothing to do, and has ended. The place is that of its first request.
    pub(super) fn begin<R: Request>(&mut self, tag: u64, line: usize, parts: &Parts<R>) -> Option<Place> {
        let Some(first) = parts.requests.first() else {
            self.done.push((tag, Ok(parts.reads.then(|| Buf::zeroed(0)))));
            return None;
        };
        self.last += 1;
        let left = parts.requests.len();
        let read = if parts.reads { vec![None; left] } else { Vec::new() };
        let (then_flush, is_flush) = (parts.then_flush, first.effect() == Effect::Flushes);
        self.under_way.insert(
            self.last,
            Op { tag, line, left, read, error: None, then_flush, is_volatile: false, is_flush },
        );
        Some(Place { op: self.last, part: 0 })
    }

    /// An operation has failed before it began.
    pub(super) fn fail(&mut self, tag: u64, error: IoError) {
        self.done.push((tag, Err(error)));
    }

    /// A request with this effect has ended.
    pub(super) fn end(&mut self, place: Place, effect: Effect, result: DeviceResult) -> Next {
        let Some(op) = self.under_way.get_mut(&place.op) else { return Next::Others };
        op.left -= 1;
        op.is_volatile |= result.is_ok() && effect == Effect::ChangesVolatile;
        match result {
            Ok(data) => {
                if let Some(part) = op.read.get_mut(place.part) {
                    *part = data;
                }
            }
            Err(error) => op.error = Some(error),
        }
        if op.left > 0 {
            return Next::Others;
        }
        if op.then_flush && op.error.is_none() {
            (op.then_flush, op.left) = (false, 1);
            return Next::Flush(op.line, Place { op: place.op, part: 0 });
        }
        let Some(op) = self.under_way.remove(&place.op) else { return Next::Others };
        let was_flush = op.is_flush;
        self.done.push((op.tag, op.result()));
        Next::Ended { was_flush }
    }

    /// Whether a flush in this place ends a write, and is no operation of its own.
    pub(super) fn ends_write(&self, place: Place) -> bool {
        self.under_way.get(&place.op).is_some_and(|op| !op.is_flush)
    }

    /// What may be lost in part cannot end well any more: whoever hears of a failed flush does not know of it yet.
    pub(super) fn spoil_volatile(&mut self, error: &IoError) {
        for op in self.under_way.values_mut().filter(|op| op.is_volatile) {
            op.error = Some(error.clone());
        }
    }

    /// Appends what has ended since the last call.
    pub(super) fn take_done(&mut self, done: &mut Vec<(u64, DeviceResult)>) {
        done.append(&mut self.done);
    }

    pub(super) fn has_done(&self) -> bool {
        !self.done.is_empty()
    }
}
