//! The devices of a volume.

use forebay_block::{DeviceResult, Nanos};
use forebay_device::{Away, Device};
use forebay_engine::Role;

use crate::pair::Pair;

/// The devices of a volume.
pub(crate) enum Devices {
    Pair(Box<Pair>),
    Backing(Box<dyn Device>),
}

impl Devices {
    pub(crate) fn backing(&self) -> &dyn Device {
        match self {
            Self::Pair(pair) => &*pair.backing,
            Self::Backing(backing) => &**backing,
        }
    }

    /// The device that an operation goes to, and at which offset.
    pub(crate) fn role(&mut self, role: Role) -> Option<(&mut dyn Device, u64)> {
        let device: &mut dyn Device = match (self, role) {
            (Self::Pair(pair), Role::Cache) => &mut *pair.cache,
            (Self::Pair(pair), Role::Backing) => &mut *pair.backing,
            (Self::Backing(backing), Role::Backing) => &mut **backing,
            (Self::Pair(pair), Role::Journal) => {
                let Pair { journal, backing, .. } = &mut **pair;
                let journal = journal.as_mut()?;
                let offset = journal.offset();
                let device: &mut dyn Device = match journal.own() {
                    Some(own) => &mut **own,
                    None => &mut **backing,
                };
                return Some((device, offset));
            }
            (Self::Backing(_), Role::Cache | Role::Journal) => return None,
        };
        Some((device, 0))
    }

    pub(crate) fn deadline(&self) -> Option<Nanos> {
        match self {
            Self::Pair(pair) => {
                let journal = pair.journal.as_ref().and_then(|j| j.own_ref()).and_then(Device::deadline);
                [pair.cache.deadline(), pair.backing.deadline(), journal].into_iter().flatten().min()
            }
            Self::Backing(backing) => backing.deadline(),
        }
    }

    /// What below the cache is known to be away.
    pub(crate) fn away(&self) -> Option<(Role, Away)> {
        match self {
            Self::Pair(pair) => {
                let journal = pair.journal.as_ref().and_then(|j| j.own_ref()).and_then(Device::away);
                let backing = pair.backing.away().map(|away| (Role::Backing, away));
                backing.or(journal.map(|away| (Role::Journal, away)))
            }
            Self::Backing(backing) => backing.away().map(|away| (Role::Backing, away)),
        }
    }

    /// Whether what is below the cache is another host's.
    pub(crate) fn is_fenced(&self) -> bool {
        match self {
            Self::Pair(pair) => {
                let journal = pair.journal.as_ref().and_then(|j| j.own_ref());
                pair.backing.is_fenced() || journal.is_some_and(Device::is_fenced)
            }
            Self::Backing(backing) => backing.is_fenced(),
        }
    }

    pub(crate) fn poll(&mut self, now: Nanos, done: &mut Vec<(u64, DeviceResult)>) {
        match self {
            Self::Pair(pair) => {
                pair.cache.poll(now, done);
                pair.backing.poll(now, done);
                if let Some(journal) = pair.journal.as_mut().and_then(|j| j.own()) {
                    journal.poll(now, done);
                }
            }
            Self::Backing(backing) => backing.poll(now, done),
        }
    }
}
