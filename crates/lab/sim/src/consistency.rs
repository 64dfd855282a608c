//! Whether the backing alone is consistent (P4), at every instant at which the engine says that it is.
//!
//! Knows the requests and what the backing holds, and nothing of how the engine came to it. A write that a power cut
//! may take back, because nothing promised its durability, comes before nothing any more.

use forebay_format::journal::Moment;
use forebay_policy::Order;

use crate::media::{Changes, View};
use crate::oracle::Kept;
use crate::order::{self, Held, History, NEVER, Ordered};
use crate::points::Points;
use crate::stamp::{SECTOR, WriteNo};
use crate::violation::{Interrupt, broken};

/// A write that was acknowledged and may still be lost, or is not covered by a flush yet.
#[derive(Clone)]
struct Open {
    no: u32,
    acknowledged: u64,
    kept: Kept,
}

/// What a host without the cache would learn from the journal.
#[derive(Clone, Default)]
pub struct Told {
    /// The head says that the backing is consistent.
    pub consistent: bool,
    /// What it says that the backing is as of.
    pub moment: Moment,
    /// The common points of the consistency group that are decided and prepared.
    pub common: (u64, u64),
    /// Groups in the journal have not been applied.
    pub replays: bool,
    /// Sectors that the groups in the journal would change, and to what; later ones count.
    replayed: Vec<(usize, Held)>,
    /// What the backing would be as of with the group that is prepared, and what that would change.
    prepared: Option<(Moment, Vec<(usize, Held)>)>,
}

impl Told {
    /// A group holds these sectors, from `first` on.
    pub fn put(&mut self, first: usize, held: impl Iterator<Item = Held>) {
        let replayed = self.prepared.as_mut().map_or(&mut self.replayed, |(_, replayed)| replayed);
        replayed.extend((first..).zip(held));
    }

    /// What is put from here on is what the prepared group changes.
    pub fn prepare(&mut self, moment: Moment) {
        self.prepared = Some((moment, Vec::new()));
    }

    /// What the backing would be as of with the group that is prepared.
    pub fn prepared(&self) -> Option<&Moment> {
        self.prepared.as_ref().map(|(moment, _)| moment)
    }
}

/// One view of the backing, as it was when it was judged last.
#[derive(Clone, Default)]
struct Image {
    /// What its sectors hold.
    raw: Vec<Held>,
    /// What the journal says.
    told: Told,
    /// What its sectors hold once the journal has been replayed.
    held: Vec<Held>,
    /// The same, before that was found out anew.
    before: Vec<Held>,
    /// It keeps to this order: nothing but its content can change that.
    judged: Option<Order>,
    /// The point at which it was seen to be since its content changed.
    point: u64,
    /// The common point at which it was seen to be, with the group that is prepared, since then.
    prepared: u64,
}

impl Image {
    /// Follows the medium, of which `data` is the volume; `told` is what the journal says if that may have changed.
    fn follow(&mut self, changes: &Changes, data: &[u8], told: Option<Told>) {
        let Changes::Some(ranges) = changes else {
            self.raw.clear();
            self.raw.extend(data.chunks_exact(SECTOR).map(Held::of));
            self.told = told.unwrap_or_default();
            return self.replay();
        };
        let replays = told.is_some() || !self.told.replayed.is_empty();
        for (at, len) in ranges.iter().filter(|(at, _)| *at < data.len()) {
            let range = *at..(at + len).min(data.len());
            for (sector, bytes) in (at / SECTOR..).zip(data[range].chunks_exact(SECTOR)) {
                let held = Held::of(bytes);
                if std::mem::replace(&mut self.raw[sector], held) != held && !replays {
                    self.held[sector] = held;
                    self.judged = None;
                }
            }
        }
        self.told = told.unwrap_or(std::mem::take(&mut self.told));
        if replays {
            self.replay();
        }
    }

    /// Begins anew, reusing memory.
    fn forget(&mut self) {
        self.raw.clear();
        self.held.clear();
        self.told = Told::default();
        self.judged = None;
        (self.point, self.prepared) = (0, 0);
    }

    fn replay(&mut self) {
        std::mem::swap(&mut self.held, &mut self.before);
        self.held.clear();
        self.held.extend_from_slice(&self.raw);
        for (sector, held) in &self.told.replayed {
            self.held[*sector] = *held;
        }
        if self.held != self.before {
            self.judged = None;
        }
    }
}

/// See the module's documentation.
#[derive(Clone, Default)]
pub struct Consistency {
    /// By number; what the volume held before is not among them.
    history: History,
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
    /// Points that were declared.
    pub points: Points,
    /// Images that were judged.
    pub judged: u64,
}

impl Consistency {
    /// Begins a new history.
    pub fn reset(&mut self, zero_before: bool) {
        let mut images = std::mem::take(&mut self.images);
        images.iter_mut().for_each(Image::forget);
        let mut history = std::mem::take(&mut self.history);
        history.clear();
        *self = Self { images, history, zero_before, ..Self::default() };
    }

    /// A write is handed to the volume: the next number.
    pub fn issue(&mut self, issued: u64, first: u64, count: u64, zero: bool, forced: bool) {
        let (completed, covered) = (NEVER, NEVER);
        self.history.push(Ordered { sectors: first..first + count, zero, issued, completed, covered });
        self.forced.push(forced);
    }

    /// The volume acknowledges a write, which is durable then or not.
    pub fn acknowledge(&mut self, acknowledged: u64, no: WriteNo, durable: bool) {
        let n = no.0 as usize - 1;
        let forced = self.forced[n];
        self.history.writes_mut()[n].completed = acknowledged;
        if forced {
            self.history.writes_mut()[n].covered = acknowledged;
        }
        let kept = if durable { Kept::Cut } else { Kept::Kill };
        if !(durable && forced) {
            self.open.push(Open { no: n as u32, acknowledged, kept });
        }
    }

    /// The volume acknowledges, at `now`, the flush that was issued at `issued`.
    pub fn acknowledge_flush(&mut self, now: u64, issued: u64) {
        self.points.flushed(issued);
        for open in self.open.extract_if(.., |open| open.acknowledged < issued) {
            let covered = &mut self.history.writes_mut()[open.no as usize].covered;
            *covered = now.min(*covered);
        }
    }

    /// The volume reports that the flush failed that was issued at `issued`: what it should have covered may be gone for good.
    pub fn fail_flush(&mut self, issued: u64) {
        let lost = |open: &mut Open| open.acknowledged < issued && open.kept < Kept::Cut;
        for open in self.open.extract_if(.., lost) {
            self.history.writes_mut()[open.no as usize].release();
        }
    }

    /// The volume acknowledges something else that makes durable what was acknowledged before `issued`.
    pub fn settle(&mut self, issued: u64) {
        self.open.iter_mut().filter(|open| open.acknowledged < issued).for_each(|open| open.kept = Kept::Cut);
    }

    /// What nothing promises to survive this may be gone for good.
    pub fn lose(&mut self, survives: Kept) {
        for open in self.open.extract_if(.., |open| open.kept < survives) {
            self.history.writes_mut()[open.no as usize].release();
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
        self.history.writes_mut().iter_mut().for_each(Ordered::release);
    }

    /// What the engine says of the backing now: whether it is consistent, and what counts.
    /// True if it begins to call it so.
    pub fn claim(&mut self, consistent: bool, by: Order) -> bool {
        let begins = consistent && !(self.claimed && self.by == by);
        (self.claimed, self.by) = (consistent, by);
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

    /// The engine has said that the backing is consistent.
    pub fn is_claimed(&self) -> bool {
        self.claimed && !self.excused
    }

    /// What a sector of the backing holds once the journal has been replayed, as it was when it was judged last.
    pub fn held(&self, sector: u64) -> Option<Held> {
        self.images[View::Now as usize].held.get(sector as usize).copied()
    }

    /// Whether the journal held groups to be applied when the view was judged last.
    pub fn replays(&self, view: View) -> bool {
        self.images[view as usize].told.replays
    }

    /// Follows a view of the backing, and judges it if anybody says that it is consistent: the engine, or the journal on it.
    /// `told` is what the journal says if that may have changed.
    ///
    /// # Errors
    /// A violation of P4.
    pub fn judge(
        &mut self,
        view: View,
        changes: &Changes,
        data: &[u8],
        told: Option<Told>,
        volatile: bool,
    ) -> Result<(), Interrupt> {
        let claimed = self.is_claimed();
        let image = &mut self.images[view as usize];
        image.follow(changes, data, told);
        let point = image.told.moment.point;
        if image.told.consistent && point > 0 && (image.judged.is_none() || image.point != point) {
            self.points.judge(&image.told.moment, &self.history, &image.held, view)?;
            image.point = point;
        }
        self.points.judge_common(&image.told, view == View::Durable || !volatile)?;
        let prepared = image.told.common.1;
        if prepared == 0 {
            image.prepared = 0;
        }
        if let Some((moment, replayed)) = &image.told.prepared
            && (image.judged.is_none() || image.prepared != prepared)
        {
            let mut held = image.held.clone();
            replayed.iter().for_each(|(sector, is)| held[*sector] = *is);
            self.points.judge(moment, &self.history, &held, view)?;
            image.prepared = prepared;
        }
        // What the head says holds for whichever order was asked for: for the weaker one at least.
        let by = match (claimed, image.told.consistent) {
            (true, _) => self.by,
            (false, true) => Order::Barrier,
            (false, false) => return Ok(()),
        };
        if image.judged == Some(by) {
            return Ok(());
        }
        self.judged += 1;
        let image = &self.images[view as usize];
        self.check(&image.held, view, by)?;
        self.images[view as usize].judged = Some(by);
        Ok(())
    }

    fn check(&self, held: &[Held], view: View, by: Order) -> Result<(), Interrupt> {
        let Err(d) = order::check_order(&self.history, held, by, self.zero_before) else { return Ok(()) };
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
            v.sectors = vec![d.sector, self.history.writes()[d.present].sectors.start];
        }
        Err(interrupt)
    }
}
