//! Whether the backing alone is consistent (P4), at every instant at which the engine says that it is.
//!
//! Knows the requests and what the backing holds, and nothing of how the engine came to it. A write that a power cut
//! may take back, because nothing promised its durability, comes before nothing any more.

use crate::oracle::Kept;
use crate::order::{self, Held, Ordered};
use crate::stamp::{self, Content, SECTOR, WriteNo};
use crate::violation::{Interrupt, broken};

/// A write that was acknowledged and may still be lost, or is not covered by a flush yet.
struct Open {
    no: u32,
    acknowledged: u64,
    kept: Kept,
}

/// See the module's documentation.
#[derive(Default)]
pub struct Consistency {
    /// By number; what the volume held before is not among them.
    writes: Vec<Ordered>,
    forced: Vec<bool>,
    open: Vec<Open>,
    /// Only barriers count.
    barrier: bool,
    claimed: bool,
    /// A fault excuses disorder from now on.
    excused: bool,
    image: Vec<Held>,
    /// Images that were judged.
    pub judged: u64,
}

impl Consistency {
    /// Begins a new history.
    pub fn reset(&mut self) {
        *self = Self { image: std::mem::take(&mut self.image), ..Self::default() };
    }

    /// Of this history only barriers count.
    pub fn expect_barriers(&mut self) {
        self.barrier = true;
    }

    /// A write is handed to the volume: the next number.
    pub fn issue(&mut self, issued: u64, first: u64, count: u64, zero: bool, forced: bool) {
        self.writes.push(Ordered { sectors: first..first + count, zero, issued, before: u64::MAX });
        self.forced.push(forced);
    }

    /// The volume acknowledges a write, which is durable then or not.
    pub fn acknowledge(&mut self, acknowledged: u64, no: WriteNo, durable: bool) {
        let n = no.0 as usize - 1;
        if !self.barrier || self.forced[n] {
            self.writes[n].before = acknowledged;
        }
        let kept = if durable { Kept::Cut } else { Kept::Kill };
        if !durable || self.barrier && !self.forced[n] {
            self.open.push(Open { no: n as u32, acknowledged, kept });
        }
    }

    /// The volume acknowledges, at `now`, the flush that was issued at `issued`.
    pub fn acknowledge_flush(&mut self, now: u64, issued: u64) {
        for open in self.open.extract_if(.., |open| open.acknowledged < issued) {
            if self.barrier {
                self.writes[open.no as usize].before = now;
            }
        }
    }

    /// The volume reports that the flush failed that was issued at `issued`: what it should have covered may be gone for good.
    pub fn fail_flush(&mut self, issued: u64) {
        let lost = |open: &mut Open| open.acknowledged < issued && open.kept < Kept::Cut;
        for open in self.open.extract_if(.., lost) {
            self.writes[open.no as usize].before = u64::MAX;
        }
    }

    /// The volume acknowledges something else that makes durable what was acknowledged before `issued`.
    pub fn settle(&mut self, issued: u64) {
        self.open.iter_mut().filter(|open| open.acknowledged < issued).for_each(|open| open.kept = Kept::Cut);
    }

    /// What nothing promises to survive this may be gone for good.
    pub fn lose(&mut self, survives: Kept) {
        let writes = &mut self.writes;
        self.open.retain(|open| {
            let stays = open.kept >= survives;
            if !stays {
                writes[open.no as usize].before = u64::MAX;
            }
            stays
        });
    }

    /// The cache is gone for good, and with it what the backing lacks; what is left is the beginning of a new history.
    pub fn lose_cache(&mut self) {
        self.open.clear();
        self.writes.iter_mut().for_each(|w| w.before = u64::MAX);
    }

    /// What the engine says of the backing now.
    /// True if it begins to call it consistent.
    pub fn claim(&mut self, consistent: bool) -> bool {
        let before = std::mem::replace(&mut self.claimed, consistent);
        consistent && !before
    }

    /// The cache has failed: how far the backing had come cannot be recorded any more, and a crash goes back behind it.
    pub fn excuse(&mut self) {
        self.excused = true;
    }

    /// Judges `data`, what the backing holds from sector 0 on, if the engine has said that it is consistent.
    ///
    /// # Errors
    /// A violation of P4.
    pub fn judge(&mut self, data: &[u8], view: &str) -> Result<(), Interrupt> {
        if !self.claimed || self.excused {
            return Ok(());
        }
        self.judged += 1;
        self.image.clear();
        self.image.extend(data.chunks_exact(SECTOR).map(|sector| match stamp::read(sector) {
            Content::Stamp { write: WriteNo(no @ 1..), .. } => Held::Write(no as usize - 1),
            Content::Zero => Held::Zero,
            Content::Stamp { .. } | Content::Foreign => Held::Nothing,
        }));
        order::check_order(&self.writes, &self.image).map_err(|d| {
            let (missing, present) = (d.missing + 1, d.present + 1);
            let mut interrupt = broken(
                "P4",
                format!("the backing alone ({view}) has write {present}, but not write {missing}, which came before"),
            );
            if let Interrupt::Violation(v) = &mut interrupt {
                v.sectors = vec![d.sector, self.writes[d.present].sectors.start];
            }
            interrupt
        })
    }
}
