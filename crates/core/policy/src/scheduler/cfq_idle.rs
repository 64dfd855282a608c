//! `cfq-idle`: [CFQ](super::cfq) with background tasks in the idle class, as RCP was compared with it
//! (CFQ-IDLE; FAST'17, its evaluation).
//!
//! There an administrator calls `ionice -c 3` for checkpointers and the like. Here a task is not known to be
//! one of the background for good; of each operation it is known whether somebody waits for it. So what nobody
//! is known to wait for when it comes, destaging with it, is of the idle class, whatever I/O priority its task
//! has.
//!
//! As published it knows no inheritance: what somebody comes to wait for later stays where it is. Destaging,
//! which is Forebay's own, leaves the idle class then. The bounds are those of CFQ: while others want the
//! device, the idle class starts one operation each [`super::cfq::CLASS_TURN_NS`].

use super::cfq::Cfq;

impl Cfq {
    /// CFQ in which what nobody waits for is idle.
    pub fn with_idle_background() -> Self {
        let mut cfq = Self::default();
        cfq.background_is_idle = true;
        cfq
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::*;
    use super::super::{Operation, Scheduler};
    use super::*;
    use crate::priority::Priority;

    #[test]
    fn order() {
        let background = |operation| Operation { priority: Priority::NonCritical, ..operation };
        // Whatever its I/O priority; what is awaited goes before, however it was issued.
        let came = [
            write(1).with(1, 0),
            background(sync_write(2)),
            destage(3),
            Operation { priority: Priority::Critical, ..write(4) },
            read(5),
        ];
        let order = |promoted: &[u64]| {
            let mut cfq = Cfq::with_idle_background();
            came.into_iter().for_each(|operation| cfq.arrived(operation));
            promoted.iter().for_each(|number| cfq.promoted(*number));
            let awaited = one_by_one(&mut cfq, 0, 9);
            let grace = cfq.next_wake_ns().unwrap_or_default() / MS;
            (awaited, one_by_one(&mut cfq, grace, 9))
        };
        assert_eq!(order(&[]), (vec![5, 4], vec![2, 1, 3]));
        assert_eq!(order(&[1, 3]), (vec![3, 5, 4], vec![2, 1]), "only destaging has leave");
    }
}
