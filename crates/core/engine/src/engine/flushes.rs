//! Flushes of the backing, asked for and answered: [`crate::backing::flushes`] says when and to whom.

use forebay_block::{BLOCK_BYTES, BlockNo, DeviceOp, DeviceResult, IoError};

use crate::backing::flushes::flush_failed_error;
use crate::engine::{Engine, IoOwner};
use crate::interface::{Class, Role};
use crate::locks::BlockRange;

impl Engine {
    /// Flushes the backing if a client's flush must cover bypassed writes.
    pub(super) fn backing_flush_if_wanted(&mut self) {
        if self.flushes.begin() {
            self.io(Role::Backing, DeviceOp::Flush, Class::Foreground, IoOwner::BackingFlush);
        }
    }

    /// A flush of the backing failed: nothing that was written before and not yet flushed is taken for durable.
    pub(super) fn backing_flush_failed(&mut self, error: &IoError) {
        self.figures.backing_errors += 1;
        let lost = self.flushes.failed(error, self.planted);
        self.destage_write_again();
        if !lost {
            return;
        }
        self.map.distrust_all();
        self.requests.lose_bypasses(&flush_failed_error());
        // Which of the clean copies the backing has lost is not known; none may be read and then be gone.
        self.forget_clean(BlockRange::new(BlockNo(0), self.volume_bytes.div_ceil(BLOCK_BYTES)));
        self.reclaim.distrust_copies();
        if let Some(asked) = self.destages_fail(error) {
            self.flushes.commands_told(asked);
        }
    }

    pub(super) fn backing_flush_done(&mut self, result: DeviceResult) {
        self.flushes.ended(result.is_ok());
        if let Err(error) = result {
            self.backing_flush_failed(&error);
        }
        self.flushes_answer();
        // A flush that came meanwhile may need one of its own.
        if self.requests.flush_waits_for_backing(self.flushes.epoch_done()) {
            self.backing_flush_if_wanted();
        }
    }
}
