//! The text of an inspection.

use std::fmt;

use crate::history::BlockHistory;
use crate::inspect::{Inspection, RecordRow, SegmentUse};
use crate::report::utc;

/// Extents of a record that the text shows; the JSON form has all.
const EXTENTS_SHOWN: usize = 6;

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(history) = &self.history {
            return write!(f, "{history}");
        }
        writeln!(f, "format constants")?;
        for c in &self.constants {
            writeln!(f, "  {:<20} {}", c.name, c.value)?;
        }
        writeln!(f, "superblocks")?;
        for s in &self.superblocks {
            match &s.error {
                Some(e) => writeln!(f, "  at {:<10} damaged: {e}", s.offset)?,
                None => writeln!(
                    f,
                    "  at {:<10} update {}, run {}, {}",
                    s.offset,
                    s.update,
                    s.generation,
                    if s.clean_stop { "stopped cleanly" } else { "not stopped cleanly" }
                )?,
            }
        }
        writeln!(
            f,
            "cache {}, volume of {} bytes, backing {}, {}",
            self.identity.cache_id,
            self.identity.volume_bytes,
            self.identity.backing_name,
            self.state.describe()
        )?;
        self.segments_text(f)?;
        writeln!(f, "records ({} older ones left out)", self.records_left_out)?;
        for r in &self.records {
            record_text(f, r)?;
        }
        Ok(())
    }
}

impl Inspection {
    fn segments_text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "segments: {} of {} bytes, aligned to {}",
            self.geometry.segment_count, self.geometry.segment_bytes, self.geometry.align
        )?;
        writeln!(f, "   index      offset  use       number      run    first record  records  summary")?;
        let mut empty = 0u64;
        for s in &self.segments {
            if s.segment_use == SegmentUse::Empty {
                empty += 1;
                continue;
            }
            let segment_use = match s.segment_use {
                SegmentUse::Live => "live",
                SegmentUse::Free => "free",
                SegmentUse::Leftover => "leftover",
                SegmentUse::Empty => "empty",
            };
            writeln!(
                f,
                "  {:>6} {:>11}  {:<8} {:>7} {:>8} {:>15} {:>8}  {}{}",
                s.index,
                s.offset,
                segment_use,
                s.segment_seq,
                s.generation,
                s.first_seq,
                s.records.map_or("?".to_owned(), |n| n.to_string()),
                if s.sealed { "yes" } else { "no" },
                if s.header_valid { "" } else { ", header damaged" }
            )?;
        }
        writeln!(f, "  and {empty} empty ones")
    }
}

fn record_text(f: &mut fmt::Formatter<'_>, r: &RecordRow) -> fmt::Result {
    write!(
        f,
        "  {} at {} (segment {}), {} bytes, run {}, {}; durable {}, clean {}, tail {}:",
        r.seq,
        r.offset,
        r.segment,
        r.bytes,
        r.generation,
        utc(r.time_ns),
        r.durable_upto,
        r.clean_upto,
        r.tail
    )?;
    for e in r.extents.iter().take(EXTENTS_SHOWN) {
        match e.count {
            1 => write!(f, " {} {}", e.kind, e.block)?,
            n => write!(f, " {} {}+{n}", e.kind, e.block)?,
        }
    }
    if r.extents.len() > EXTENTS_SHOWN {
        write!(f, " and {} more", r.extents.len() - EXTENTS_SHOWN)?;
    }
    if r.clean_stop {
        write!(f, " clean-stop")?;
    }
    if r.damaged {
        write!(f, " HEADER DAMAGED")?;
    }
    if r.bad_blocks > 0 {
        write!(f, " {} BLOCKS DAMAGED", r.bad_blocks)?;
    }
    writeln!(f)
}

impl fmt::Display for BlockHistory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "block {}: {}", self.block, self.state)?;
        for m in &self.mentions {
            write!(
                f,
                "  record {} at {} (segment {}), run {}, {}: {}",
                m.seq,
                m.offset,
                m.segment,
                m.generation,
                utc(m.time_ns),
                m.kind
            )?;
            if let (Some(at), Some(ok)) = (m.data_offset, m.checksum_ok) {
                write!(f, " at {at}, checksum {}", if ok { "ok" } else { "WRONG" })?;
            }
            writeln!(
                f,
                "{}{}",
                if m.in_log { "" } else { " (not part of the log)" },
                if m.current { " <- current" } else { "" }
            )?;
        }
        if self.mentions_left_out > 0 {
            writeln!(f, "  and {} more", self.mentions_left_out)?;
        }
        Ok(())
    }
}
