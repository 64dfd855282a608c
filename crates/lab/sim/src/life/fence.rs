//! Another host takes over what is on the backing's side: what the owner may still say and do (P6).

use forebay_block::{DeviceResult, ErrorKind};
use forebay_engine::{Event, Role};

use super::Life;
use crate::subject::Subject;
use crate::violation::{Interrupt, broken};

impl<S: Subject> Life<'_, S> {
    /// The other host takes this over now.
    pub(super) fn fence(&mut self, role: Role, told: bool) -> Result<(), Interrupt> {
        self.world.fence(role);
        self.world.judge_order()?;
        if told && matches!(self.recovered, Some(Ok(_))) {
            self.knows_of_fence = true;
            self.engine.handle(Event::Fenced, self.now);
        }
        Ok(())
    }

    /// The end of an operation on the backing's side may say so.
    pub(super) fn may_know_of_fence(&mut self, result: &DeviceResult) {
        self.knows_of_fence |= result.as_ref().is_err_and(|error| error.kind == ErrorKind::Fenced);
    }

    /// Who knows that the backing is another host's asks no device for anything.
    pub(super) fn asks_after_fence(&self) -> Result<(), Interrupt> {
        match self.knows_of_fence {
            true => Err(broken("P6", "a device is used although another host is known to have the backing")),
            false => Ok(()),
        }
    }

    /// And tells nobody that anything has gone well.
    pub(crate) fn answers_after_fence(&self, well: bool) -> Result<(), Interrupt> {
        match self.knows_of_fence && well {
            true => {
                Err(broken("P6", "an answer is given although another host is known to have the backing"))
            }
            false => Ok(()),
        }
    }
}
