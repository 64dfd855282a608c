//! What happens to the devices between the lives, and what is promised then.

use forebay_engine::Role;
use forebay_format::identities::Identities;
use forebay_format::label::Label;

use super::owners::Retirement;
use super::{SECTOR_BYTES, World};
use crate::media::Survival;
use crate::plan::{Between, CrashKind, HostCrash};
use crate::random::Random;
use crate::violation::Interrupt;

impl World {
    /// Something happens to the devices before the next start.
    ///
    /// # Errors
    /// A broken promise.
    pub fn happens(&mut self, event: &Between, random: &mut Random) -> Result<(), Interrupt> {
        self.trace.note((forebay_block::Nanos(0), 0), &[11], || (format!("between: {event}"), Vec::new()));
        match event {
            Between::Older { role, rounds } => self.comes_back(*role, *rounds),
            Between::Foreign(role) => self.is_foreign(*role),
            Between::Lose { wiped, plain, crash } => self.lose_cache(*wiped, *plain, *crash, random),
            Between::Release(crash) => self.release_cache(*crash, random),
        }
    }

    /// A device is as it was when so many rounds had ended. It is refused if a run has begun since; then the right one is
    /// put back.
    fn comes_back(&mut self, role: Role, rounds: usize) -> Result<(), Interrupt> {
        let Some(image) = self.images.get(rounds).filter(|image| image.runs < self.runs) else {
            return Ok(());
        };
        let older = image.identities.clone();
        let now = self.identities()?;
        match role {
            Role::Cache => {
                let tried = Identities { superblock: older.superblock, label: now.label };
                self.expect_refusal(&tried, &format!("the cache as it was after round {rounds}"))
            }
            Role::Backing | Role::Journal => {
                let tried = Identities { superblock: now.superblock, label: older.label };
                self.expect_refusal(&tried, &format!("the backing as it was after round {rounds}"))
            }
        }
    }

    /// A device of another volume is in the place of the right one.
    fn is_foreign(&mut self, role: Role) -> Result<(), Interrupt> {
        let now = self.identities()?;
        let other = [0xf0; 16];
        match role {
            Role::Cache => {
                let mut tried = now;
                (tried.superblock.layout.cache_id, tried.superblock.backing_id) = (other, other);
                self.expect_refusal(&tried, "the cache of another volume")
            }
            Role::Backing | Role::Journal => {
                let paired =
                    now.label.as_ref().map(|l| Label { backing_id: other, cache_id: other, ..l.clone() });
                let tried = Identities { label: paired, ..now.clone() };
                self.expect_refusal(&tried, "the backing of another volume")?;
                self.expect_refusal(&Identities { label: None, ..now }, "a backing without a label")
            }
        }
    }

    /// The cache is gone for good, and power with it. The backing alone has what is promised of it; a new cache is put
    /// before it, and the old one never comes back.
    pub(super) fn lose_cache(
        &mut self,
        wiped: bool,
        plain: bool,
        crash: Option<HostCrash>,
        random: &mut Random,
    ) -> Result<(), Interrupt> {
        let lost = self.identities()?.superblock;
        let survival = *random.pick(&Survival::ALL);
        // A store that another host has taken over does not lose power with the cache.
        let backing = !self.is_fenced();
        self.crash(CrashKind::Cut { cache: true, backing, survival }, random);
        self.judge_order()?;
        if self.is_fenced() {
            self.take_over()?;
        }
        // `forebay recover`
        let now = self.identities()?;
        self.replay(&now, None)?;
        self.judge_order()?;
        self.consistency.lose_cache();
        self.check_backing_after_loss()?;
        self.stats.caches_lost += 1;
        if plain {
            // `serve --no-cache --accept-stale`
            let mut label = self.identities()?.label;
            let update = label.as_mut().map(Label::leave_behind);
            self.carry_out(update.as_slice(), None)?;
            let tried = Identities { superblock: lost.clone(), label };
            self.expect_refusal(&tried, "a cache without which the backing went on")?;
        }
        if wiped {
            let len = self.cache.media.end();
            self.cache.media.wipe(0, len as usize);
        }
        self.cache.unreadable.clear();
        self.new_cache(crash, random)?;
        let label = self.identities()?.label;
        self.expect_refusal(&Identities { superblock: lost, label }, "a cache that was lost and replaced")
    }

    /// A new cache, at the second attempt if a crash comes during the first.
    fn new_cache(&mut self, crash: Option<HostCrash>, random: &mut Random) -> Result<(), Interrupt> {
        match (self.form_pair(crash.map(|c| c.write)), crash) {
            (Err(Interrupt::Crash), Some(HostCrash { kind, .. })) => {
                self.crash(kind, random);
                self.form_pair(None)
            }
            (outcome, _) => outcome,
        }
    }

    fn check_backing_after_loss(&mut self) -> Result<(), Interrupt> {
        let sectors = self.shape.volume_bytes / SECTOR_BYTES;
        let floors = self.oracle.floors_of_backing(&self.on_backing);
        self.check_alone("P1", &floors, 0, true)?;
        self.stats.sectors_checked += sectors;
        self.oracle.rebase(self.backing.media.read(0, self.shape.volume_bytes as usize));
        let sick = self.backing.unreadable.clone();
        self.excuse_blocks(&sick);
        Ok(())
    }

    /// The cache is removed for good, if the last stop has destaged everything.
    fn release_cache(&mut self, crash: Option<HostCrash>, random: &mut Random) -> Result<(), Interrupt> {
        if !self.destaged || self.retirement != Retirement::None {
            return Ok(());
        }
        let mut identities = self.identities()?;
        let before = identities.superblock.clone();
        let updates = (self.protocol.release)(&mut identities);
        if self.carry_out(&updates, crash.map(|c| c.write)).is_err() {
            if let Some(HostCrash { kind, .. }) = crash {
                self.crash(kind, random);
            }
            // Whoever asked for it asks again, unless it is refused as done.
            let label = self.label().unwrap_or_default();
            let mut again = Identities { superblock: self.superblock().unwrap_or(before.clone()), label };
            if (self.protocol.begin_run)(&mut again.clone(), &self.starter()).is_ok() {
                let updates = (self.protocol.release)(&mut again);
                self.carry_out(&updates, None)?;
            }
        }
        self.stats.caches_released += 1;
        self.check_backing()?;
        let label = self.label().unwrap_or_default();
        if let Ok(superblock) = self.superblock() {
            self.expect_refusal(
                &Identities { superblock, label: label.clone() },
                "a cache that was removed",
            )?;
        }
        let copy = Identities { superblock: before, label };
        self.expect_refusal(&copy, "a copy of a cache, from before it was removed,")?;
        self.form_pair(None)
    }
}
