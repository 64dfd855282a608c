//! `cfq-idle`: [CFQ](super::cfq) with background tasks in the idle class, as RCP was compared with it (CFQ-IDLE; FAST'17, section 6).
//!
//! There an administrator calls `ionice -c 3` for checkpointers and the like. Here a task is not known to be one of the background for good;
//! of each operation it is known whether somebody waits for it. So what nobody is known to wait for when it comes, destaging with it, is of the idle
//! class, whatever I/O priority its task has.
//!
//! As published it knows no inheritance: what somebody comes to wait for later stays where it is. Destaging, which is Forebay's own, leaves the idle class then.
//! The bounds are those of CFQ: while others want the device, the idle class starts one operation each [`super::cfq::CLASS_TURN_NS`].

use super::cfq::Cfq;

impl Cfq {
    /// CFQ in which what nobody waits for is idle.
    pub fn with_idle_background() -> Self {
        let mut cfq = Self::default();
        cfq.background_is_idle = true;
        cfq
    }
}
