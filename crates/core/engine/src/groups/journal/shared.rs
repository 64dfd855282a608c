//! What the journal does for points that are shared with other volumes, see [`crate::groups::shared_points`].

use super::{Group, Journal};

impl Journal {
    /// The common points that are decided and prepared, durably; 0 for none.
    pub(crate) fn common_state(&self) -> (u64, u64) {
        self.heads.common_state()
    }

    /// A group for a common point is not prepared any more if it is not yet.
    pub(in crate::groups) fn common_overtaken(&mut self) {
        self.group.iter_mut().for_each(Group::overtaken);
    }

    /// Nothing is on its way that changes what is decided or prepared.
    pub(in crate::groups) fn common_is_at_rest(&self) -> bool {
        let moves = |group: &Group| group.is_common() && !group.is_prepared();
        !self.heads.is_writing() && !self.heads.is_uncertain() && !self.group.as_ref().is_some_and(moves)
    }

    /// The prepared group is committed from now on, or forgotten; false if none ends at this point.
    pub(in crate::groups) fn common_settles(&mut self, point: u64, keep: bool) -> bool {
        let prepared = self.common_state().1 == point;
        let group = self.group.as_mut().filter(|group| prepared && group.is_prepared());
        group.map(|group| group.settle(keep)).is_some()
    }

    /// What was to become of the point has durably become of it.
    pub(in crate::groups) fn common_is_settled(&self, point: u64) -> bool {
        self.common_state().1 != point && self.common_is_at_rest()
    }

    /// The prepared group is committed, and ends at no common point.
    pub(in crate::groups) fn common_goes_alone(&mut self) {
        self.group.iter_mut().filter(|group| group.is_prepared()).for_each(Group::goes_alone);
    }
}
