//! The throttle, carried out: the policy says from when on the next write may enter the log
//! ([`forebay_policy::Throttle`]).

use forebay_block::Nanos;
use forebay_policy::{LogRoom, OnFull, Priority};

use crate::engine::{Engine, Life};
use crate::interface::PartKey;
use crate::locks::BlockRange;
use crate::log::{Append, AppendOwner, Go, May, SEGMENTS_RESERVED};
use crate::mutation::Mutation;

impl Engine {
    /// Shows the throttle how much room there is. What is destaged in an order is paced by that order instead, and
    /// what may go past a full log does so. In a log that has failed, or at a stop, room is for nobody to be spared for.
    pub(super) fn throttle_look(&mut self) {
        let elsewhere = self.order.keeps_versions() || self.settings.on_full == OnFull::Bypass;
        let fills = self.life == Life::Running && !self.failure.latched() && !elsewhere;
        let room = match fills {
            true => self.throttle_room(),
            false => LogRoom::default(),
        };
        self.throttle.look(room, self.now.0);
    }

    fn throttle_room(&mut self) -> LogRoom {
        let segment_bytes = u64::from(self.layout.segment_bytes);
        let held = self.map.segments_mut().held();
        let begin = self.log.begin_of_newest(held);
        let (made, coming) = self.destage.made(begin / segment_bytes, &self.map);
        let bytes = |thousandths: u64| thousandths * segment_bytes / 1000;
        let made_bytes = (begin + bytes(made)).max(self.throttle_made);
        self.throttle_made = made_bytes;
        let segments = self.map.segments().count().saturating_sub(SEGMENTS_RESERVED).max(1) as u64;
        let log_bytes = segments * segment_bytes;
        LogRoom {
            log_bytes,
            segment_bytes,
            free_bytes: log_bytes.saturating_sub(self.log.position().saturating_sub(made_bytes)),
            made_bytes,
            coming_bytes: bytes(coming),
            // Between the end of one plan and the next it is idle for no time.
            destages: !self.destage.is_idle() || self.destage_is_pressed(),
        }
    }

    /// Which writes may enter the log now.
    pub(super) fn throttle_may(&self) -> May {
        let is_due = |priority| match self.mutant(Mutation::ThrottleNeverReleases) {
            true => !self.throttle.knows_rate(),
            false => self.throttle.due_ns(priority, self.now.0).is_none(),
        };
        let go = |priority| match is_due(priority) {
            false => Go::Not,
            true if self.throttle.slows(priority, self.now.0) => Go::Slowly,
            true => Go::Freely,
        };
        May { awaited: go(Priority::Critical), patient: go(Priority::NonCritical) }
    }

    /// Writers that somebody waits for are slowed down.
    pub(super) fn is_slowed(&self) -> bool {
        self.throttle.slows(Priority::Critical, self.now.0)
    }

    /// When the next write may enter the log, if one waits for that.
    pub(super) fn throttle_next_wake(&self) -> Option<Nanos> {
        if self.mutant(Mutation::ThrottleNeverReleases) {
            return None;
        }
        let (patient, awaited) = self.log.writers();
        let due = |waits: bool, priority| {
            Some(priority).filter(|_| waits).and_then(|priority| self.throttle.due_ns(priority, self.now.0))
        };
        // When nobody says any more who waits, they are no longer patient.
        let hinted = self.throttle.hinted_until_ns(self.now.0).unwrap_or(u64::MAX);
        let patient = due(patient, Priority::NonCritical).map(|at| at.min(hinted));
        [patient, due(awaited, Priority::Critical)].into_iter().flatten().min().map(Nanos)
    }

    /// Puts a piece of a write into the log. What nobody waits for stands apart while it is slowed down.
    pub(super) fn throttle_append(&mut self, key: PartKey, append: Append) {
        match self.throttle.kind(self.requests.is_awaited(key), self.now.0) {
            Priority::NonCritical if self.throttle.slows(Priority::NonCritical, self.now.0) => {
                self.log.append_patient(append);
            }
            _ => self.log.append(append),
        }
    }

    /// Patient writes for which somebody has come to wait, or for their blocks, go on as others do; all of them where nobody says any more
    /// who waits.
    pub(super) fn throttle_lend(&mut self) {
        if !self.log.writers().0 {
            return;
        }
        let all = self.throttle.hinted_until_ns(self.now.0).is_none();
        let blocks: Vec<BlockRange> = self.requests.critical_waiting().collect();
        let requests = &self.requests;
        self.log.promote(|patient| {
            let is_awaited = matches!(patient.owner, AppendOwner::Part(key) if requests.is_awaited(key));
            let range = patient.extent.map(|e| BlockRange::new(e.block, u64::from(e.count)));
            all || is_awaited || range.is_some_and(|range| blocks.iter().any(|b| b.overlaps(range)))
        });
    }
}
