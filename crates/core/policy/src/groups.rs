//! When and where the open group of `journaled` ends and is committed (FAST'13, section 3.2;
//! `docs/design/promises.md`, Write policies).

use crate::{GroupEnds, Settings};

/// What the chooser may look at.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenGroup {
    /// Blocks that it would have.
    pub blocks: u64,
    /// Age in milliseconds of its oldest write.
    pub age_ms: u64,
    /// The log wants room, or somebody waits for the backing.
    pub pressed: bool,
    /// Somebody waits who cannot go on before something is committed: a writer for room, a command, a bypass.
    pub urgent: bool,
    /// A consistency point was declared in it, and somebody waits for that.
    pub marked: bool,
    /// A flush was answered in it.
    pub flushed: bool,
}

/// What is to be done with the open group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupEnd {
    /// It stays open.
    Wait,
    /// It ends exactly at the first point declared in it or, if there is none, at the last flush.
    AtPoint,
    /// It ends with whatever is durable.
    Anywhere,
}

impl OpenGroup {
    /// Whether it is to be committed now: at a size or an age, whichever comes first, but for what `group-ends` says. Where a
    /// group should end at a point and there is none, it is cut all the same before anybody is kept waiting for good (P7).
    pub fn end(&self, settings: &Settings) -> GroupEnd {
        let full = self.blocks.saturating_mul(4096) >= settings.group_bytes;
        let due = self.blocks > 0 && (full || self.age_ms >= settings.group_age_ms || self.pressed);
        match settings.group_ends {
            _ if self.marked => GroupEnd::AtPoint,
            GroupEnds::Anywhere if due => GroupEnd::Anywhere,
            GroupEnds::Flushes if due && self.flushed => GroupEnd::AtPoint,
            _ if self.blocks > 0 && self.urgent => GroupEnd::Anywhere,
            _ => GroupEnd::Wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(group_ends: GroupEnds) -> Settings {
        Settings { group_bytes: 8 << 12, group_age_ms: 100, group_ends, ..Settings::default() }
    }

    #[test]
    fn size_or_age_whichever_comes_first() {
        let settings = settings(GroupEnds::Anywhere);
        let open = |blocks, age_ms, pressed| {
            let group = OpenGroup { blocks, age_ms, pressed, ..OpenGroup::default() };
            group.end(&settings) == GroupEnd::Anywhere
        };
        assert!(!open(7, 99, false) && open(8, 0, false) && open(1, 100, false) && open(1, 0, true));
        assert!(!open(0, 1000, true), "nothing to commit");
    }

    #[test]
    fn groups_end_at_points_unless_somebody_is_kept_waiting() {
        let old = OpenGroup { blocks: 9, age_ms: 1000, pressed: true, ..OpenGroup::default() };
        let flushed = OpenGroup { flushed: true, ..old };
        let urgent = OpenGroup { urgent: true, ..old };
        let empty = OpenGroup { marked: true, ..OpenGroup::default() };
        let rows = [
            (GroupEnds::Anywhere, [GroupEnd::Anywhere, GroupEnd::Anywhere, GroupEnd::Anywhere]),
            (GroupEnds::Flushes, [GroupEnd::Wait, GroupEnd::AtPoint, GroupEnd::Anywhere]),
            (GroupEnds::Points, [GroupEnd::Wait, GroupEnd::Wait, GroupEnd::Anywhere]),
            (GroupEnds::Common, [GroupEnd::Wait, GroupEnd::Wait, GroupEnd::Anywhere]),
        ];
        for (ends, expected) in rows {
            let settings = settings(ends);
            assert_eq!([old, flushed, urgent].map(|g| g.end(&settings)), expected, "{ends}");
            let nothing = OpenGroup { blocks: 0, marked: false, ..urgent };
            assert_eq!(nothing.end(&settings), GroupEnd::Wait, "{ends}: there is nothing to commit");
            for group in [old, flushed, urgent, empty] {
                assert_eq!(OpenGroup { marked: true, ..group }.end(&settings), GroupEnd::AtPoint, "{ends}");
            }
        }
    }
}
