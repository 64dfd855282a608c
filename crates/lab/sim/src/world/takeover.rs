//! Another host takes over what is on the backing's side (P6), while the owner lives.
//!
//! ```text
//!  fence (backing, journal apart) ──► the owner goes on with its clients until it notices ──► its end
//!    what was under way there:           every operation there fails, and nothing lands
//!    done now, or never
//!                                    ──► the other host: takes over, recovers, serves without the cache or with a new one
//! ```
//!
//! What the other host sees is what was there at the fence: nothing of the owner has landed since. So it is looked at when the owner's life
//! is over.

use forebay_engine::Role;
use forebay_format::identities::{Identities, Starter};
use forebay_format::pairing::Refusal;

use super::World;
use super::owners::OTHER_HOST;
use crate::random::Random;
use crate::violation::{Interrupt, broken};

impl World {
    /// Another host takes over the backing, or the journal that lies apart.
    pub fn fence(&mut self, role: Role) {
        self.device(role).fence();
    }

    /// Whether another host has taken over anything on the backing's side.
    pub fn is_fenced(&self) -> bool {
        self.backing.is_fenced() || self.journal.is_fenced()
    }

    /// A store that was taken over goes to the other host, even if nothing in the plan says so.
    ///
    /// # Errors
    /// A broken promise.
    pub fn must_be_ours(&mut self, random: &mut Random) -> Result<(), Interrupt> {
        match self.is_fenced() {
            true => self.lose_cache(false, true, None, random),
            false => Ok(()),
        }
    }

    /// `--takeover` on the other host: what the first one has not taken over yet is fenced, too, and then it begins. Without that word it
    /// is refused, unless the owner has stopped.
    pub(super) fn take_over(&mut self) -> Result<(), Interrupt> {
        self.storage().for_each(|device| {
            device.fence();
            device.begin_anew();
        });
        self.stats.taken_over += 1;
        self.judge_order()?;
        let identities = self.identities()?;
        let in_use = identities.label.as_ref().is_some_and(|label| label.in_use);
        let other = Starter { host_id: OTHER_HOST, ..self.starter() };
        let mut tried: Identities = identities.clone();
        match (self.protocol.begin_run)(&mut tried, &other) {
            Ok(_) if in_use => Err(broken(
                "P6",
                "another host may attach to a backing whose owner has not stopped, without a word",
            )),
            Err(Refusal::OtherHost { .. }) if !in_use => {
                Err(broken("P6", "a backing whose owner has stopped is refused to another host"))
            }
            _ => Ok(()),
        }
    }
}
