//! The backing's queue, fed and emptied: [`crate::backing::queue`] keeps what waits, the policy's scheduler chooses.

use forebay_block::DeviceOp;
use forebay_policy::{BACKING_SLOTS_MAX, Issuer, NONCRITICAL_BESIDE_CRITICAL, Priority, Round, Settings};

use crate::backing::queue::Owner;
use crate::engine::{Engine, IoOwner};
use crate::interface::{Effect, IoId, PartKey, Role};
use crate::locks::BlockRange;
use crate::mutation::Mutation;

impl From<IoOwner> for Owner {
    fn from(owner: IoOwner) -> Self {
        match owner {
            IoOwner::DestageWrite(_) | IoOwner::DestageFlush => Self::Destage,
            IoOwner::BypassWrite(key) | IoOwner::BypassFlush(key) => Self::Bypass(key),
            _ => Self::Other,
        }
    }
}

impl Engine {
    /// These settings hold from here on; the scheduler is another one if they say so.
    pub(super) fn follow(&mut self, settings: Settings) {
        if settings.scheduler != self.settings.scheduler {
            self.backing.use_scheduler(settings.scheduler.build());
        }
        self.settings = settings;
    }

    /// Puts an operation into the queue.
    pub(super) fn backing_push(&mut self, id: IoId, op: DeviceOp, priority: Priority, owner: IoOwner) {
        let holds = match owner {
            IoOwner::BypassFlush(key) => self.requests.range_of(key),
            _ => None,
        };
        let issuer = self.issuer_of(owner);
        self.backing.push((id, op), owner.into(), holds, (priority, issuer), self.now);
    }

    /// For whom the operation is: nobody in particular, if it is for Forebay itself.
    fn issuer_of(&self, owner: IoOwner) -> Issuer {
        match owner {
            IoOwner::BypassWrite(key) | IoOwner::BypassFlush(key) => self.requests.issuer_of(key),
            IoOwner::BackingFlush => self.requests.flush_issuer(),
            IoOwner::Piece(key) => self.reading.issuer_of(key),
            _ => Issuer::default(),
        }
    }

    /// Starts what may start now.
    pub(super) fn backing_start(&mut self) {
        self.backing_lend();
        let round = self.backing_round();
        if self.mutant(Mutation::QueueForgetsNonCritical) && self.backing.waiting().0 == 0 {
            return;
        }
        if !self.backing.begin_round(round, self.now) {
            return;
        }
        while let Some((id, op, priority)) = self.backing.next(self.now) {
            self.figures.bytes_to_backing += op.write_bytes();
            self.watch.started(id, Role::Backing, &op, self.now);
            self.effects.push(Effect::Io { id, role: Role::Backing, op, class: priority.into() });
        }
    }

    /// What may start beside what; of no account where nothing non-critical waits.
    fn backing_round(&self) -> Round {
        let slots = match self.mutant(Mutation::QueueStartsTooMany) {
            true => BACKING_SLOTS_MAX,
            false => self.backing_slots,
        };
        let calm = Round { slots, ..Round::default() };
        if self.backing.waiting().1 == 0 {
            return calm;
        }
        let pressure = self.destage_pressure();
        // What goes in an order makes room in that order, bypasses with it; and what has failed does not fill.
        let makes_room = !self.destage.is_idle() && !self.order.keeps_versions() && !self.failure.latched();
        match makes_room {
            // The runs are critical now: what is left gets as little as it can.
            true if self.log.waits_for_room() => {
                Round { beside_critical: NONCRITICAL_BESIDE_CRITICAL, requests_max: Some(1), ..calm }
            }
            true => Round {
                beside_critical: pressure.runs_beside_critical(),
                requests_max: pressure.bypasses_beside(self.destage.runs()),
                ..calm
            },
            false => Round { beside_critical: pressure.runs_beside_critical(), ..calm },
        }
    }

    /// Whoever waits lends its priority to what it waits for.
    fn backing_lend(&mut self) {
        if !self.backing.has_noncritical() {
            return;
        }
        // It waits for its turn, or for room for its record; for blocks it lends below.
        let bypass_waits = (self.order.bypass_waits() || self.requests.supersede_waits())
            && self.requests.critical_bypass_waits();
        if self.log.waits_for_room() || self.order.is_pacing() || bypass_waits {
            self.backing.promote(|owner, _| owner == Owner::Destage);
        }
        if self.log.waits_for_room() {
            // What the log has of these blocks is not destaged before, and may be what keeps its tail from being freed.
            let requests = &self.requests;
            let supersedes = |owner, _| matches!(owner, Owner::Bypass(key) if requests.keeps_log(key));
            self.backing.promote(supersedes);
        }
        let awaited: Vec<BlockRange> = self.requests.critical_waiting().collect();
        if !awaited.is_empty() {
            let overlaps =
                |_, range: Option<BlockRange>| range.is_some_and(|r| awaited.iter().any(|a| a.overlaps(r)));
            self.backing.promote(overlaps);
        }
    }

    /// A critical task waits for these bypasses.
    pub(super) fn backing_promote(&mut self, parts: &[PartKey]) {
        let wanted = |owner, _| match owner {
            Owner::Bypass(key) => parts.binary_search(&key).is_ok(),
            _ => false,
        };
        self.backing.promote(wanted);
    }

    /// Takes back the part's write to the backing; false if it has been started.
    pub(super) fn backing_withdraw(&mut self, key: PartKey) -> bool {
        let withdrawn = self.backing.withdraw(key);
        if let Some(id) = withdrawn {
            self.forget_io(id);
        }
        withdrawn.is_some()
    }
}

#[cfg(test)]
mod tests;
