//! How far the backing lags behind, worked out from what was acknowledged and when, and from what the backing's side holds. The engine
//! is not asked: what it tells is held against this, and both against the bound.
//!
//! A block that is written again counts from then on, as in the engine's figure. So one that is just being written has no age.

use std::collections::{BTreeMap, VecDeque};

use forebay_block::{BLOCK_BYTES, Nanos};
use forebay_policy::{MaxStaleness, Staleness};

use super::{Asked, Life, Pending, SECTOR_BYTES};
use crate::oracle::BLOCK_SECTORS;
use crate::stamp::WriteNo;
use crate::subject::Subject;
use crate::violation::{Interrupt, broken};
use crate::world::World;

/// For so long the backing may lag behind further than its bound.
const SLACK_MS: u64 = 1000;
/// More than the longest bound that a plan has, and that slack.
const MOST_MS: u64 = 7000;

/// What has been acknowledged, as far as the backing's side was not seen to have it.
#[derive(Default)]
pub(super) struct Lag {
    /// When the last write of each block was acknowledged.
    blocks: BTreeMap<u64, Nanos>,
    /// The same in the order of time, with what has been written again since.
    order: VecDeque<(Nanos, u64)>,
    /// The backing's side may have more of them than when all were last looked at.
    pub(super) may_shrink: bool,
    /// Since when it is further than the bound allows.
    beyond_since: Option<Nanos>,
}

impl Lag {
    fn insert(&mut self, block: u64, now: Nanos) {
        if self.blocks.insert(block, now) != Some(now) {
            self.order.push_back((now, block));
        }
    }

    /// Age of the oldest write that the backing's side lacks, in milliseconds. Blocks that are `open`, being written, have none.
    fn age_ms(&mut self, world: &World, now: Nanos, open: impl Fn(u64) -> bool) -> u64 {
        while let Some((since, block)) = self.order.front().copied() {
            if self.blocks.get(&block) == Some(&since) && !open(block) {
                if lacks(world, block) {
                    return (now.0 - since.0) / 1_000_000;
                }
                self.blocks.remove(&block);
            }
            self.order.pop_front();
        }
        0
    }

    /// Bytes of the blocks that the backing's side lacks; nothing if these are surely no more than so many.
    fn bytes(&mut self, world: &World, most: u64) -> u64 {
        if self.blocks.len() as u64 * BLOCK_BYTES <= most {
            return 0;
        }
        if std::mem::take(&mut self.may_shrink) {
            self.blocks.retain(|block, _| lacks(world, *block));
        }
        self.blocks.len() as u64 * BLOCK_BYTES
    }
}

/// Whether the backing, with the journal on its side, lacks an acknowledged write of the block.
fn lacks(world: &World, block: u64) -> bool {
    let end = ((block + 1) * BLOCK_SECTORS).min(world.shape.volume_bytes / SECTOR_BYTES);
    (block * BLOCK_SECTORS..end).any(|sector| world.oracle.lacks(sector, world.held_by_backing(sector)))
}

/// What is told must be no less than what is.
fn tells(told: Staleness, lag: Staleness) -> Result<(), Interrupt> {
    match lag.bytes <= told.bytes && lag.age_ms <= told.age_ms {
        true => Ok(()),
        false => Err(broken("P7", format!("the backing lags behind by {lag:?}, and {told:?} is told"))),
    }
}

impl<S: Subject> Life<'_, S> {
    /// The volume serves from now on, with what the runs before have left.
    pub(super) fn lag_begins(&mut self) -> Result<(), Interrupt> {
        if !self.keeps_up() {
            return Ok(());
        }
        self.world.judge_order()?;
        for block in 0..self.world.shape.volume_bytes.div_ceil(BLOCK_BYTES) {
            if lacks(self.world, block) {
                self.lag.insert(block, self.now);
            }
        }
        Ok(())
    }

    /// A write is acknowledged.
    pub(crate) fn lag_grows(&mut self, no: WriteNo) {
        let Some(write) = self.world.oracle.write(no).filter(|_| self.healthy) else { return };
        for block in write.first / BLOCK_SECTORS..(write.first + write.count).div_ceil(BLOCK_SECTORS) {
            self.lag.insert(block, self.now);
        }
        self.lag.may_shrink = true;
    }

    /// Nothing keeps the backing's side from having soon whatever is acknowledged.
    fn keeps_up(&self) -> bool {
        self.healthy && matches!(self.recovered, Some(Ok(_))) && !self.stopping
    }

    /// What the backing lacks is within the user's bound, but for a while: what lay there when the bound was set, or when the
    /// life began, has to go first. The engine tells no less.
    pub(super) fn check_lag(&mut self) -> Result<(), Interrupt> {
        let bound = self.settings.max_staleness;
        if !self.keeps_up() || bound == MaxStaleness::None {
            return Ok(());
        }
        let Some(told) = self.engine.staleness(self.now) else { return Ok(()) };
        let lag = match bound {
            MaxStaleness::None => Staleness::default(),
            MaxStaleness::Age(_) => Staleness { bytes: 0, age_ms: self.age_ms() },
            MaxStaleness::Bytes(most) => Staleness { bytes: self.lag.bytes(self.world, most), age_ms: 0 },
        };
        tells(told, lag)?;
        if bound.percent(lag).max(bound.percent(told)) <= 100 {
            self.lag.beyond_since = None;
            return Ok(());
        }
        let since = *self.lag.beyond_since.get_or_insert(self.now);
        if self.now <= since.plus_ms(SLACK_MS) {
            return Ok(());
        }
        let lag = format!("the backing lags behind by {lag:?}, which is told as {told:?}");
        Err(broken("P7", format!("{lag}, and {bound} is the most that is wanted")))
    }

    fn age_ms(&mut self) -> u64 {
        let writes = self.pending.iter().filter(|p| matches!(p.asked, Asked::Write(_)));
        let open = |block: u64| {
            let (first, end) = (block * BLOCK_SECTORS, (block + 1) * BLOCK_SECTORS);
            writes.clone().any(|p: &Pending| p.first < end && first < p.first + p.count)
        };
        self.lag.age_ms(self.world, self.now, open)
    }

    /// The engine tells that the backing lacks nothing.
    pub fn tells_no_lag(&self) -> bool {
        self.engine.staleness(self.now).is_none_or(|told| told == Staleness::default())
    }

    /// Nothing happens any more: whatever is left behind is left for good.
    ///
    /// # Errors
    /// A violation.
    pub fn let_lag_grow(&mut self) -> Result<(), Interrupt> {
        let Some(told) = self.engine.staleness(self.now).filter(|_| self.keeps_up()) else { return Ok(()) };
        tells(told, Staleness { bytes: self.lag.bytes(self.world, 0), age_ms: self.age_ms() })?;
        let waits = if self.settings.max_staleness == MaxStaleness::None { 0 } else { 2 };
        for _ in 0..waits {
            self.now = self.now.plus_ms(MOST_MS);
            self.check_lag()?;
        }
        Ok(())
    }
}
