//! What recovery builds: the map that the log's records describe.
//!
//! 1. Records are applied in the order of the log, each once.
//! 2. After anything but a clean stop no clean copy is taken up: the backing may be newer (hazard 1).
//! 3. A version that was overwritten stays dirty only where the policy keeps an order, as it would have in the run that wrote it.

use std::collections::VecDeque;

use forebay_block::{BLOCK_BYTES, BlockNo, Seq};
use forebay_format::Layout;
use forebay_format::record::ExtentKind;
use forebay_format::summary::SummaryEntry;

use crate::locks::BlockRange;
use crate::log::head::slot_kind;
use crate::log::recovery::judge::Candidates;
use crate::map::Map;
use crate::map::segments::{DIRTY, SegmentState, Slot, SlotKind, SlotRef};
use crate::mutation::{Mutation, Planted};

/// A map in the making.
pub(super) struct Build {
    pub(super) map: Map,
    planted: Planted,
    /// Clean copies are believed.
    trusts_clean: bool,
    /// Everything in records up to this one is clean.
    clean_upto: Seq,
    /// A mark of a lost block was replaced where an order is kept.
    pub(super) is_broken: bool,
    /// Versions that were overwritten have stayed dirty.
    pub(super) has_versions: bool,
}

impl Build {
    /// A map without records.
    pub(super) fn new(layout: &Layout, trusts_clean: bool, clean_upto: Seq, planted: Planted) -> Self {
        let map = Map::new(layout, planted);
        Self { map, planted, trusts_clean, clean_upto, is_broken: false, has_versions: false }
    }

    /// Opens the log's segments; all of them are complete but the last, if that may take more records.
    pub(super) fn open(&mut self, chain: &VecDeque<u32>, candidates: &Candidates) {
        for (n, index) in chain.iter().enumerate() {
            let Some(c) = candidates.0.get(index) else { continue };
            let h = c.header;
            let segments = self.map.segments_mut();
            segments.open(*index, h.segment_seq, h.first_seq, c.time_first_ns(), h.generation);
            segments.ends_with(*index, Seq(c.next_seq().0 - 1));
            // Behind a trailer no record may be written: it would not know of it.
            if n + 1 < chain.len() || c.trailer.is_some() || c.scan.is_none() {
                segments.seal(*index);
            }
        }
    }

    /// Takes in what one segment's records say, the first of them with number `seq`; `keeps_versions` where the policy keeps an order.
    pub(super) fn apply(&mut self, index: u32, first: Seq, entries: &[SummaryEntry], keeps_versions: bool) {
        let mut seq = first;
        for entry in entries {
            self.apply_record(index, seq, entry, keeps_versions);
            seq = seq.next();
        }
        if self.map.segments().get(index).state == SegmentState::Sealed {
            self.map.segments_mut().shrink(index);
        }
    }

    fn apply_record(&mut self, index: u32, seq: Seq, entry: &SummaryEntry, keeps_versions: bool) {
        let first_seq = self.map.segments().get(index).first_seq;
        self.map.segments_mut().push_record(index, entry.distance);
        let mut at = entry.offset + entry.header_bytes;
        let mut checksums = entry.checksums.iter();
        for extent in &entry.extents {
            let kind = match slot_kind(extent.kind) {
                None if self.planted.is(Mutation::IgnoresSupersede) => continue,
                None => {
                    self.map.forget(BlockRange::new(extent.block, extent.count.into()));
                    continue;
                }
                Some(SlotKind::Zero) if self.planted.is(Mutation::IgnoresZeroes) => continue,
                Some(kind) => kind,
            };
            let clean = seq <= self.clean_upto && !self.planted.is(Mutation::IgnoresCleanMark);
            let dirty = extent.kind != ExtentKind::Clean && !clean;
            for n in 0..u64::from(extent.count) {
                let data = extent.kind.has_data();
                let checksum = if data { checksums.next().copied().unwrap_or_default() } else { 0 };
                let offset = if data { at } else { 0 };
                if data {
                    at += BLOCK_BYTES as u32;
                }
                if dirty || self.trusts_clean || self.planted.is(Mutation::TrustsCleanAfterCrash) {
                    let block = extent.block.plus(n);
                    let slot = Slot::new(block, offset, checksum, kind, seq, first_seq);
                    let slot = self.map.segments_mut().push(index, slot);
                    self.make_current(slot, dirty, keeps_versions);
                }
            }
        }
    }

    fn make_current(&mut self, slot: SlotRef, dirty: bool, keeps_versions: bool) {
        if let Some(old) = self.map.put(slot, dirty) {
            let keep_dirty = keeps_versions && self.keeps(old.slot);
            self.has_versions |= keep_dirty;
            if !keep_dirty {
                self.map.cleaned(old.slot);
            }
        }
        self.map.admit(slot);
    }

    /// Whether an overwritten version has to be destaged all the same, where an order is kept.
    fn keeps(&mut self, slot: SlotRef) -> bool {
        let s = self.map.segments().slot(slot);
        if s.has(DIRTY) && s.kind() == SlotKind::Poison {
            // What replaces it is not on the backing yet.
            self.is_broken |= !self.planted.is(Mutation::OrderForgetsLost);
            return false;
        }
        s.has(DIRTY)
            && !self.planted.is(Mutation::OrderRecoversNewest)
            && !self.planted.is(Mutation::OrderDropsVersions)
    }

    /// Blocks that are dirty and current, and those that are clean.
    pub(super) fn counts(&self) -> (u64, u64) {
        let is_dirty = |slot: &SlotRef| self.map.segments().slot(*slot).has(DIRTY);
        let dirty = self.map.current().filter(is_dirty).count() as u64;
        (dirty, self.map.len() as u64 - dirty)
    }
}
