//! The read buffer: what was read lately, and what the head reads on behind the last read while it has nothing else to
//! do.

use std::collections::VecDeque;

use forebay_block::Nanos;

use super::geometry::Geometry;

/// Ranges that the buffer remembers.
const SEGMENTS_MAX: usize = 16;
/// Longest range that it remembers besides what is read ahead, in bytes.
const SEGMENT_BYTES_MAX: u64 = 1 << 20;

#[derive(Clone, Copy, Debug)]
struct Segment {
    start: u64,
    end: u64,
}

/// The head reads on: it was at `from` at `since`, and stops at `limit`.
#[derive(Clone, Copy, Debug)]
struct Flow {
    from: u64,
    since: Nanos,
    limit: u64,
}

/// See the module's documentation. While there is a flow it fills the newest segment, and the head is at its end.
#[derive(Clone, Debug)]
pub(crate) struct ReadBuffer {
    /// Oldest first.
    segments: VecDeque<Segment>,
    flow: Option<Flow>,
    ahead_bytes: u64,
    disk_bytes: u64,
}

impl ReadBuffer {
    pub(crate) fn new(ahead_bytes: u64, disk_bytes: u64) -> Self {
        Self { segments: VecDeque::new(), flow: None, ahead_bytes, disk_bytes }
    }

    /// Lets the head read on until `now`.
    pub(crate) fn fill(&mut self, geometry: &Geometry, now: Nanos) {
        if let (Some(flow), Some(segment)) = (self.flow, self.segments.back_mut()) {
            segment.end = geometry.reach(flow.from, now.since(flow.since), flow.limit);
            segment.start =
                segment.start.max(segment.end.saturating_sub(SEGMENT_BYTES_MAX + self.ahead_bytes));
        }
    }

    /// Whether a range is in the buffer. The head then has to read on further.
    pub(crate) fn hit(&mut self, offset: u64, len: u64) -> bool {
        let end = offset + len;
        let found = self.segments.iter().rposition(|s| s.start <= offset && end <= s.end);
        if let Some(flow) = &mut self.flow
            && found.is_some_and(|at| at + 1 == self.segments.len())
        {
            flow.limit = flow.limit.max((end + self.ahead_bytes).min(self.disk_bytes));
        }
        found.is_some()
    }

    /// Where the head stands, if it is reading on or has stopped at the limit.
    pub(crate) fn head(&self) -> Option<u64> {
        self.flow.and(self.segments.back()).map(|s| s.end)
    }

    /// Whether the head is reading on at this moment.
    pub(crate) fn is_flowing(&self) -> bool {
        self.flow.is_some_and(|flow| self.head().is_some_and(|head| head < flow.limit))
    }

    /// When a read that begins in what the head is reading will have been read.
    pub(crate) fn flows_over(&self, offset: u64, len: u64, geometry: &Geometry) -> Option<Nanos> {
        let (flow, segment) = (self.flow?, self.segments.back()?);
        let joins = self.is_flowing() && segment.start <= offset && offset <= segment.end;
        let way_bytes = (offset + len).saturating_sub(flow.from);
        joins.then(|| Nanos(flow.since.0.saturating_add(geometry.transfer_ns(flow.from, way_bytes))))
    }

    /// When the head will stop reading on.
    pub(crate) fn stops_at(&self, geometry: &Geometry) -> Option<Nanos> {
        let flow = self.flow.filter(|_| self.is_flowing())?;
        Some(Nanos(flow.since.0.saturating_add(geometry.transfer_ns(flow.from, flow.limit - flow.from))))
    }

    /// A head that had stopped at the limit goes on from there at `since`.
    pub(crate) fn resume(&mut self, since: Nanos) {
        if let (Some(flow), Some(segment)) = (&mut self.flow, self.segments.back()) {
            (flow.from, flow.since) = (segment.end, since);
        }
    }

    /// The arm has other work. Returns where the head was.
    pub(crate) fn stop(&mut self) -> Option<u64> {
        let head = self.head();
        self.flow = None;
        head
    }

    /// The arm has read a range, and has nothing else to do yet.
    pub(crate) fn read(&mut self, offset: u64, len: u64, now: Nanos) {
        let end = offset + len;
        match self.segments.back_mut().filter(|s| s.start <= offset && offset <= s.end) {
            Some(segment) => segment.end = segment.end.max(end),
            None => {
                if self.segments.len() == SEGMENTS_MAX {
                    self.segments.pop_front();
                }
                self.segments.push_back(Segment { start: offset, end });
            }
        }
        let from = self.segments.back().map_or(end, |s| s.end);
        let limit = (from + self.ahead_bytes).min(self.disk_bytes).max(from);
        self.flow = Some(Flow { from, since: now, limit });
    }

    /// A range is written: what the buffer has of it is out of date. Returns where the head was if it stops for it.
    pub(crate) fn forget(&mut self, offset: u64, len: u64) -> Option<u64> {
        let touches = |s: &Segment| s.start < offset + len && offset < s.end;
        let stopped = self.segments.back().is_some_and(touches).then(|| self.stop()).flatten();
        self.segments.retain(|s| !touches(s));
        stopped
    }
}
