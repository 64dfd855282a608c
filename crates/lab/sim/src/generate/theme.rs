//! Themes: what some plans are about.

use forebay_block::BLOCK_BYTES as BLOCK;
use forebay_policy::{Admission, Durability, OnFull, WritePolicy};

use super::Manner;
use crate::stamp::SECTOR;

/// Bytes of a sector.
const SECTOR_BYTES: u64 = SECTOR as u64;

/// Corners that plans made of chance alone seldom reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Theme {
    /// A few blocks that everybody wants at once, in the log and past it.
    Contended,
    /// More data than the log can take: segments are used again and again, and what is read often stays.
    Crowded,
    /// Many short runs of small writes, each ended by a power cut of the cache.
    Cuts,
    /// Short runs that change one block, a sector at a time, each ended by a power cut: records that are torn where others with nearly
    /// the same data come to lie.
    Touches,
    /// Writes that are durable only when a flush says so, and power cuts.
    Flushes,
    /// Writes that go past the log and leave a clean copy there; many clean stops.
    Copies,
    /// Devices that fail in every run.
    Failing,
    /// Media that decay in every run.
    Decaying,
    /// Devices that are lost, removed, mixed up and brought back, and starts that crash.
    Exchanged,
    /// A backing that is to be consistent at every instant.
    Consistent,
    /// Consistency points, where the backing moves in groups.
    Points,
    /// A consistency group, of which the volume is a member.
    Common,
    /// A backing that must not lag far behind.
    Stale,
    /// Hints of who waits for what, most of them lies.
    Hinted,
    /// A store behind a network: answers that do not come, writes that are carried out later, and another host that takes over.
    Remote,
    /// A journal that is found by the shape of its writes.
    Journals,
    /// Every scheduler of the backing's queue, and backings that take few operations at a time.
    Scheduled,
}

impl Theme {
    /// Every theme that is given to plans at random; for the order at the backing each seed draws by itself.
    pub const ALL: [Self; 9] = [
        Self::Contended,
        Self::Crowded,
        Self::Cuts,
        Self::Touches,
        Self::Flushes,
        Self::Copies,
        Self::Failing,
        Self::Decaying,
        Self::Exchanged,
    ];
}

impl Manner {
    /// Bends the manner towards a theme.
    pub(super) fn adopt(&mut self, theme: Theme) {
        match theme {
            Theme::Contended => {
                let blocks = self.random.between(1, 2).min(self.shape.volume_bytes / BLOCK);
                self.hot = (0, blocks * BLOCK / SECTOR_BYTES);
                self.sectors_max = 8;
                self.reads_percent = 50;
                self.busy = true;
                self.settings.write_policy = WritePolicy::WriteBack;
                self.settings.admission = Admission::Sync;
            }
            Theme::Crowded => {
                self.shape.volume_bytes = 200 * BLOCK;
                self.shape.segment_bytes = 64 << 10;
                self.shape.segment_count = 6;
                self.hot = (0, self.random.between(100, 200) * BLOCK / SECTOR_BYTES);
                self.aligned_percent = 100;
                self.sectors_max = 128;
                self.flush_percent = 2;
                self.busy = true;
                self.settings.write_policy = WritePolicy::WriteBack;
                self.settings.admission = Admission::All;
                self.settings.on_full = OnFull::Wait;
                self.changes_settings = false;
            }
            Theme::Cuts => {
                self.hot.1 = self.hot.1.min(64);
                self.aligned_percent = 100;
                self.sectors_max = 8;
                self.reads_percent = 5;
                self.zero_percent = 0;
                self.flush_percent = 2;
                self.busy = true;
                self.cuts = true;
                self.settings.write_policy = WritePolicy::WriteBack;
                self.settings.admission = Admission::All;
                self.changes_settings = false;
                self.options.actions_max = self.options.actions_max.min(12);
                self.options.rounds_max *= 3;
            }
            Theme::Touches => {
                self.hot = (0, BLOCK / SECTOR_BYTES);
                self.aligned_percent = 0;
                self.sectors_max = 1;
                self.reads_percent = 5;
                self.zero_percent = 20;
                self.flush_percent = 2;
                self.busy = true;
                self.cuts = true;
                self.settings.write_policy = WritePolicy::WriteBack;
                self.settings.admission = Admission::All;
                self.settings.durability = Durability::Flush;
                self.changes_settings = false;
                self.options.actions_max = self.options.actions_max.min(12);
                self.options.rounds_max *= 4;
            }
            Theme::Flushes => {
                self.hot.1 = self.hot.1.min(32);
                self.flush_percent = 20;
                self.fua_percent = 10;
                self.reads_percent = self.reads_percent.min(20);
                self.cuts = true;
                self.settings.durability = Durability::Flush;
                self.changes_settings = false;
            }
            Theme::Copies => {
                self.hot.1 = self.hot.1.min(64);
                self.reads_percent = 50;
                self.stops = true;
                self.settings.write_policy = WritePolicy::WriteThrough;
                self.changes_settings = false;
            }
            Theme::Failing => (self.faulty, self.decaying) = (true, false),
            Theme::Decaying => (self.faulty, self.decaying) = (false, true),
            Theme::Exchanged => self.stops = true,
            Theme::Scheduled => {
                self.hot = (0, self.shape.volume_bytes / SECTOR_BYTES);
                self.aligned_percent = 100;
                self.sectors_max = 8;
                self.reads_percent = 50;
                self.flush_percent = self.flush_percent.min(2);
                self.busy = true;
                self.options.actions_max *= 2;
                self.settings.write_policy = WritePolicy::WriteBack;
                (self.faulty, self.decaying) = (false, false);
            }
            Theme::Remote => {
                self.hot.1 = self.hot.1.min(64);
                self.reads_percent = 50;
                self.flush_percent = self.flush_percent.max(10);
                (self.faulty, self.decaying) = (false, false);
            }
            Theme::Journals => {
                // With room for a journal that can be found.
                self.shape.volume_bytes = 420 * BLOCK;
                self.hot = (0, 60 * BLOCK / SECTOR_BYTES);
                self.reads_percent = 30;
                self.settings.write_policy = WritePolicy::WriteBack;
                self.changes_settings = false;
                self.options.rounds_max = self.options.rounds_max.min(3);
                (self.faulty, self.decaying) = (false, false);
            }
            Theme::Hinted => {
                self.hot.1 = self.hot.1.min(128);
                self.reads_percent = self.reads_percent.min(20);
                self.busy = true;
                self.settings.write_policy = WritePolicy::WriteBack;
            }
            Theme::Stale => {
                self.settings.write_policy = WritePolicy::WriteBack;
                self.reads_percent = self.reads_percent.min(20);
                (self.faulty, self.decaying) = (false, false);
            }
            Theme::Consistent | Theme::Points | Theme::Common => {
                self.settings.write_policy = WritePolicy::WriteBack;
                self.reads_percent = self.reads_percent.min(10);
                self.flush_percent = self.flush_percent.max(10);
            }
        }
    }
}
