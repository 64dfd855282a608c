//! The throttle, carried out: the policy says from when on the next write may enter the log
//! ([`forebay_policy::Throttle`]).

use forebay_block::Nanos;
use forebay_format::record::Extent;
use forebay_policy::{LogRoom, OnFull, Priority};

use crate::engine::Engine;
use crate::interface::PartKey;
use crate::locks::BlockRange;
use crate::log::{Append, May, SEGMENTS_RESERVED};
use crate::mutation::Mutation;

impl Engine {
    /// Shows the throttle how much room there is. What is destaged in an order is paced by that order instead, and
    /// what may go past a full log does so.
    pub(super) fn throttle_look(&mut self) {
        let elsewhere = self.order.keeps_versions() || self.settings.on_full == OnFull::Bypass;
        let room = match elsewhere {
            true => LogRoom::default(),
            false => self.throttle_room(),
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
        let awaited = is_due(Priority::Critical);
        May { awaited, patient: is_due(Priority::NonCritical), slowly: self.is_slowed() }
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
        [due(patient, Priority::NonCritical), due(awaited, Priority::Critical)]
            .into_iter()
            .flatten()
            .min()
            .map(Nanos)
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

    /// What somebody waits for who waits for blocks of a write that nobody waits for is awaited, too.
    pub(super) fn throttle_lend(&mut self) {
        if self.log.writers().0 {
            let awaited: Vec<BlockRange> = self.requests.critical_waiting().collect();
            self.throttle_promote(&awaited);
        }
    }

    /// Somebody waits for writes of these blocks.
    pub(super) fn throttle_promote(&mut self, awaited: &[BlockRange]) {
        let range = |extent: &Extent| BlockRange::new(extent.block, u64::from(extent.count));
        self.log.promote(|extent| awaited.iter().any(|awaited| awaited.overlaps(range(extent))));
    }
}
