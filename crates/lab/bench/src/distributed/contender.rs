//! Who is compared: the store alone, and Forebay in front of it.

use forebay_policy::WritePolicy;

/// What a volume lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Store {
    /// An image of Ceph's.
    Rbd,
    /// Objects behind Ceph's gateway.
    S3,
}

impl Store {
    pub(crate) const ALL: [Self; 2] = [Self::Rbd, Self::S3];

    /// Its name, as a load and in figures.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rbd => "rbd",
            Self::S3 => "s3",
        }
    }

    /// PostgreSQL on it, as a load and in figures.
    pub(crate) fn database_load(self) -> String {
        format!("{}_postgresql", self.name())
    }

    /// The store alone, with which the others are compared.
    pub(crate) fn alone(self) -> Contender {
        let front = match self {
            Self::Rbd => Front::Librbd { cached: false },
            Self::S3 => Front::S3backer,
        };
        Contender { store: self, front }
    }
}

/// What serves a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Front {
    /// librbd in QEMU's storage daemon, with its own cache or without.
    Librbd { cached: bool },
    /// s3backer, each write of which is in the store when it is answered.
    S3backer,
    /// Forebay under `write-back` or `journaled`, with a cache that has room or with one that is full.
    Forebay { journaled: bool, full: bool },
}

/// A store, and what serves a volume in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Contender {
    pub(crate) store: Store,
    pub(crate) front: Front,
}

impl Contender {
    /// Forebay in front of the store.
    pub(crate) fn forebay(store: Store, journaled: bool, full: bool) -> Self {
        Self { store, front: Front::Forebay { journaled, full } }
    }

    /// Forebay as most have it.
    pub(crate) fn write_back(store: Store) -> Self {
        Self::forebay(store, false, false)
    }

    /// The others that a figure of Forebay is compared with: the store alone, in each of its ways.
    pub(crate) fn peers(store: Store) -> Vec<Self> {
        match store {
            Store::Rbd => {
                [false, true].map(|cached| Self { store, front: Front::Librbd { cached } }).to_vec()
            }
            Store::S3 => vec![store.alone()],
        }
    }

    /// Forebay's, of which `journaled` only where the store carries out a group by itself.
    fn of_forebay(store: Store, full: bool) -> Vec<Self> {
        match store {
            Store::Rbd => vec![Self::forebay(store, false, full)],
            Store::S3 => [false, true].map(|journaled| Self::forebay(store, journaled, full)).to_vec(),
        }
    }

    /// Who is measured by writes.
    pub(crate) fn of_writes(store: Store) -> Vec<Self> {
        [Self::peers(store), Self::of_forebay(store, false), Self::of_forebay(store, true)].concat()
    }

    /// Who is measured by PostgreSQL.
    pub(crate) fn of_databases(store: Store) -> Vec<Self> {
        [Self::peers(store), Self::of_forebay(store, false)].concat()
    }

    /// Name in figures.
    pub(crate) fn name(self) -> &'static str {
        match self.front {
            Front::Librbd { cached: false } => "rbd",
            Front::Librbd { cached: true } => "rbd_cache",
            Front::S3backer => "s3backer",
            Front::Forebay { journaled: false, full: false } => "write_back",
            Front::Forebay { journaled: true, full: false } => "journaled",
            Front::Forebay { journaled: false, full: true } => "write_back_full",
            Front::Forebay { journaled: true, full: true } => "journaled_full",
        }
    }

    /// Whether its cache is to be full.
    pub(crate) fn is_full(self) -> bool {
        matches!(self.front, Front::Forebay { full: true, .. })
    }

    /// The write policy, of Forebay.
    pub(crate) fn policy(self) -> Option<WritePolicy> {
        match self.front {
            Front::Forebay { journaled: true, .. } => Some(WritePolicy::Journaled),
            Front::Forebay { journaled: false, .. } => Some(WritePolicy::WriteBack),
            _ => None,
        }
    }

    /// The same under `write-back`, of one under `journaled`.
    pub(crate) fn as_write_back(self) -> Option<Self> {
        match self.front {
            Front::Forebay { journaled: true, full } => Some(Self::forebay(self.store, false, full)),
            _ => None,
        }
    }

    /// For whoever looks on.
    pub(crate) fn words(self) -> String {
        format!("{} by {}", self.store.name(), self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_name_of_its_own_and_the_store_alone_comes_first() {
        for store in Store::ALL {
            for contenders in [Contender::of_writes(store), Contender::of_databases(store)] {
                assert_eq!(contenders[0], store.alone());
                let mut names: Vec<_> = contenders.iter().map(|c| c.name()).collect();
                names.sort_unstable();
                names.dedup();
                assert_eq!(names.len(), contenders.len());
                let ours = contenders.iter().filter(|c| c.policy().is_some()).count();
                assert_eq!(ours + Contender::peers(store).len(), contenders.len());
            }
        }
    }
}
