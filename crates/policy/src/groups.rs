//! When the open group of `journaled` is closed and committed (FAST'13, section 3.2; design, section 5).

use crate::Settings;

/// What the chooser may look at.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenGroup {
    /// Blocks that it would have.
    pub blocks: u64,
    /// Age in milliseconds of its oldest write.
    pub age_ms: u64,
    /// The log wants room, or somebody waits for the backing.
    pub pressed: bool,
}

impl OpenGroup {
    /// Whether it is to be committed now: at a size or an age, whichever comes first.
    pub fn is_due(&self, settings: &Settings) -> bool {
        let full = self.blocks.saturating_mul(4096) >= settings.group_bytes;
        self.blocks > 0 && (full || self.age_ms >= settings.group_age_ms || self.pressed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_or_age_whichever_comes_first() {
        let settings = Settings { group_bytes: 8 << 12, group_age_ms: 100, ..Settings::default() };
        let open = |blocks, age_ms, pressed| OpenGroup { blocks, age_ms, pressed }.is_due(&settings);
        assert!(!open(7, 99, false) && open(8, 0, false) && open(1, 100, false) && open(1, 0, true));
        assert!(!open(0, 1000, true), "nothing to commit");
    }
}
