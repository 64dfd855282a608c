//! Recovery's part of the coordinator: carries its reads to the cache, and takes over the map and the log that it has built.

use forebay_block::DeviceResult;

use crate::engine::{Engine, Life};
use crate::interface::{Effect, RecoveryError};
use crate::log::recovery::{Next, Recovered, Step};
use crate::order::Order;

impl Engine {
    /// Starts what recovery may read now, and takes over what it has built when it has ended.
    pub(super) fn recovery_step(&mut self) {
        self.life = Life::Recovering;
        while let Some(recovery) = &mut self.recovery {
            match recovery.next(self.order.keeps_versions()) {
                Next::Ask(ask) => self.log_asks([ask]),
                Next::Wait => return,
                Next::Built => {
                    if let Some(recovery) = self.recovery.take() {
                        self.recovery_built(recovery.finish());
                    }
                }
                Next::Failed(error) => self.recovery_failed(error),
            }
        }
    }

    pub(super) fn recovery_read_done(&mut self, step: Step, result: DeviceResult) {
        self.figures.cache_errors += u64::from(result.is_err());
        if let Some(recovery) = &mut self.recovery {
            recovery.done(step, result, self.order.keeps_versions());
        }
    }

    fn recovery_built(&mut self, found: Recovered) {
        let last_seq = found.report.last_seq;
        // Only what was durable in the log has come to the backing's side.
        if let Some(backing_seq) = self.journal.found_prepared().filter(|found| *found > last_seq) {
            let (last_seq, backing_seq) = (last_seq.0, backing_seq.0);
            return self.recovery_failed(RecoveryError::BehindBacking { last_seq, backing_seq });
        }
        self.map = found.map;
        self.log = found.log;
        self.life = Life::Running;
        if !found.trusts_clean {
            self.map.distrust(last_seq);
        }
        if found.is_broken {
            self.order_catch_up();
        }
        if found.has_versions && !self.order.keeps_versions() {
            // The policy has changed since.
            Order::drop_versions(&mut self.map);
        }
        self.order_begin(found.clean_upto, found.consistent);
        self.effects.push(Effect::Recovered(Ok(found.report)));
    }

    pub(super) fn recovery_failed(&mut self, error: RecoveryError) {
        self.recovery = None;
        self.life = Life::RecoveryFailed;
        self.effects.push(Effect::Recovered(Err(error)));
    }
}
