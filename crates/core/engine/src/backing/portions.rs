//! How far the segments are that are being emptied. Room comes a segment at a time; what writers are given of it does
//! not wait for the whole.

use std::collections::BTreeMap;

use crate::map::Map;

/// A segment that was planned.
#[derive(Clone, Copy, Debug)]
struct Portion {
    index: u32,
    /// Its dirty blocks when it was planned first.
    dirty: u32,
}

/// Segments that are looked at; further ones count when they are whole.
const PORTIONS_MAX: usize = 64;

/// Segments that were planned and are still in the log's way, by their place in it.
#[derive(Debug, Default)]
pub(super) struct Portions(BTreeMap<u64, Portion>);

impl Portions {
    /// A plan has blocks of these segments.
    pub(super) fn planned(&mut self, segments: &[u32], map: &Map) {
        for index in segments {
            let segment = map.segments().get(*index);
            if segment.dirty > 0 && self.0.len() < PORTIONS_MAX {
                self.0.entry(segment.seq).or_insert(Portion { index: *index, dirty: segment.dirty });
            }
        }
    }

    /// What has become clean of those from place `first` on, and what will have when so many blocks that are `coming`
    /// are clean, too: both in thousandths of a segment.
    pub(super) fn made(&mut self, first: u64, coming: u64, map: &Map) -> (u64, u64) {
        while self.0.first_entry().is_some_and(|entry| *entry.key() < first) {
            self.0.pop_first();
        }
        let (mut made, mut left, mut dirty, mut all) = (0, 0, 0, 0);
        for (seq, portion) in &self.0 {
            let segment = map.segments().get(portion.index);
            // One that is used anew has left the log.
            let now = if segment.seq == *seq { u64::from(segment.dirty) } else { 0 };
            let then = u64::from(portion.dirty).max(now);
            made += (then - now) * 1000 / then;
            left += now * 1000 / then;
            dirty += then;
            all += 1000;
        }
        (made, (coming * all / dirty.max(1)).min(left))
    }
}
