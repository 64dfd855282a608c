//! Whether the backing alone is consistent (P4), at every instant at which the engine says that it is.
//!
//! Knows the requests and what the backing holds, and nothing of how the engine came to it. A write that a power cut
//! may take back, because nothing promised its durability, comes before nothing any more.

use forebay_policy::Order;

use crate::media::{Changes, Media, View};
use crate::oracle::Kept;
use crate::order::{self, Held, NEVER, Ordered};
use crate::stamp::{self, Content, SECTOR, WriteNo};
use crate::violation::{Interrupt, broken};

/// A write that was acknowledged and may still be lost, or is not covered by a flush yet.
struct Open {
    no: u32,
    acknowledged: u64,
    kept: Kept,
}

/// One view of the backing, as it was when it was judged last.
#[derive(Default)]
struct Image {
    held: Vec<Held>,
    /// Nothing but its content can make it be out of order.
    judged: bool,
}

impl Image {
    /// Follows the medium; true if it has to be judged.
    fn follow(&mut self, changes: &Changes, data: &[u8]) -> bool {
        let held = |sector: &[u8]| match stamp::read(sector) {
            Content::Stamp { write: WriteNo(no @ 1..), .. } => Held::Write(no as usize - 1),
            Content::Zero => Held::Zero,
            Content::Stamp { .. } | Content::Foreign => Held::Nothing,
        };
        match changes {
            Changes::All => {
                self.held.clear();
                self.held.extend(data.chunks_exact(SECTOR).map(held));
                self.judged = false;
            }
            Changes::Some(ranges) => {
                // Behind the volume lies the label.
                for (at, len) in ranges.iter().filter(|(at, _)| *at < data.len()) {
                    let range = *at..(at + len).min(data.len());
                    let sectors = &mut self.held[at / SECTOR..range.end / SECTOR];
                    for (sector, bytes) in sectors.iter_mut().zip(data[range].chunks_exact(SECTOR)) {
                        *sector = held(bytes);
                    }
                    self.judged = false;
                }
            }
        }
        !self.judged
    }
}

/// See the module's documentation.
#[derive(Default)]
pub struct Consistency {
    /// By number; what the volume held before is not among them.
    writes: Vec<Ordered>,
    forced: Vec<bool>,
    open: Vec<Open>,
    /// What counts now.
    by: Order,
    /// What the volume held before its first write was zeroes.
    zero_before: bool,
    claimed: bool,
    /// A fault excuses disorder from now on.
    excused: bool,
    images: [Image; 2],
    /// Images that were judged.
    pub judged: u64,
}

impl Consistency {
    /// Begins a new history.
    pub fn reset(&mut self, zero_before: bool) {
        *self = Self { images: std::mem::take(&mut self.images), zero_before, ..Self::default() };
    }

    /// A write is handed to the volume: the next number.
    pub fn issue(&mut self, issued: u64, first: u64, count: u64, zero: bool, forced: bool) {
        let (completed, covered) = (NEVER, NEVER);
        self.writes.push(Ordered { sectors: first..first + count, zero, issued, completed, covered });
        self.forced.push(forced);
    }

    /// The volume acknowledges a write, which is durable then or not.
    pub fn acknowledge(&mut self, acknowledged: u64, no: WriteNo, durable: bool) {
        let n = no.0 as usize - 1;
        let forced = self.forced[n];
        self.writes[n].completed = acknowledged;
        if forced {
            self.writes[n].covered = acknowledged;
        }
        let kept = if durable { Kept::Cut } else { Kept::Kill };
        if !(durable && forced) {
            self.open.push(Open { no: n as u32, acknowledged, kept });
        }
    }

    /// The volume acknowledges, at `now`, the flush that was issued at `issued`.
    pub fn acknowledge_flush(&mut self, now: u64, issued: u64) {
        for open in self.open.extract_if(.., |open| open.acknowledged < issued) {
            let covered = &mut self.writes[open.no as usize].covered;
            *covered = now.min(*covered);
        }
    }

    /// The volume reports that the flush failed that was issued at `issued`: what it should have covered may be gone for good.
    pub fn fail_flush(&mut self, issued: u64) {
        let lost = |open: &mut Open| open.acknowledged < issued && open.kept < Kept::Cut;
        for open in self.open.extract_if(.., lost) {
            self.writes[open.no as usize].release();
        }
    }

    /// The volume acknowledges something else that makes durable what was acknowledged before `issued`.
    pub fn settle(&mut self, issued: u64) {
        self.open.iter_mut().filter(|open| open.acknowledged < issued).for_each(|open| open.kept = Kept::Cut);
    }

    /// What nothing promises to survive this may be gone for good.
    pub fn lose(&mut self, survives: Kept) {
        for open in self.open.extract_if(.., |open| open.kept < survives) {
            self.writes[open.no as usize].release();
        }
    }

    /// The cache is gone for good, and with it what the backing lacks; what is left is the beginning of a new history.
    pub fn lose_cache(&mut self) {
        self.release_all();
        self.excused = false;
    }

    /// Any of the writes acknowledged so far may be gone for good.
    pub fn release_all(&mut self) {
        self.open.clear();
        self.writes.iter_mut().for_each(Ordered::release);
    }

    /// What the engine says of the backing now: whether it is consistent, and what counts.
    /// True if it begins to call it so.
    pub fn claim(&mut self, consistent: bool, by: Order) -> bool {
        let begins = consistent && !(self.claimed && self.by == by);
        (self.claimed, self.by) = (consistent, by);
        if begins {
            self.images.iter_mut().for_each(|image| image.judged = false);
        }
        begins
    }

    /// How far the backing had come could not be recorded before the process died: the next run goes back behind it.
    pub fn excuse(&mut self) {
        self.excused = true;
    }

    /// Everything acknowledged is on the backing.
    pub fn is_complete(&mut self) {
        self.excused = false;
    }

    /// There is something to be judged.
    pub fn is_judging(&self) -> bool {
        self.claimed && !self.excused
    }

    /// Judges `data`, what a replay of the journal makes of a view of the backing, from sector 0 on.
    ///
    /// # Errors
    /// A violation of P4.
    pub fn judge_recovered(&mut self, data: &[u8], view: View) -> Result<(), Interrupt> {
        let mut image = Image::default();
        image.follow(&Changes::All, data);
        self.judged += 1;
        self.check(&image.held, view)
    }

    /// Judges what the backing holds in the first `bytes`, if the engine has said that it is consistent.
    ///
    /// # Errors
    /// A violation of P4.
    pub fn judge(&mut self, media: &mut Media, bytes: usize, view: View) -> Result<(), Interrupt> {
        if !self.is_judging() {
            return Ok(());
        }
        let changes = media.take_changes(view);
        let start = media.start();
        let data = match view {
            View::Now => media.read(start, bytes),
            View::Durable => media.read_durable(start, bytes),
        };
        let image = &mut self.images[view as usize];
        if !image.follow(&changes, data) {
            return Ok(());
        }
        self.judged += 1;
        let held = std::mem::take(&mut image.held);
        let checked = self.check(&held, view);
        let image = &mut self.images[view as usize];
        (image.held, image.judged) = (held, checked.is_ok());
        checked
    }

    fn check(&self, held: &[Held], view: View) -> Result<(), Interrupt> {
        let Err(d) = order::check_order(&self.writes, held, self.by, self.zero_before) else { return Ok(()) };
        let (missing, present) = (d.missing + 1, d.present + 1);
        let view = match view {
            View::Now => "as it is",
            View::Durable => "what is durable of it",
        };
        let mut interrupt = broken(
            "P4",
            format!(
                "the backing alone ({view}) has write {present}, but not write {missing}, which came before"
            ),
        );
        if let Interrupt::Violation(v) = &mut interrupt {
            v.sectors = vec![d.sector, self.writes[d.present].sectors.start];
        }
        Err(interrupt)
    }
}
