//! The loads of FAST'13, section 5, as models in this process: what PostMark, Filebench, TPC-C and YCSB ask of a file system or a
//! database, and what these ask of a volume. `docs/reference/benchmarks-policies.md` describes them.

mod database;
mod files;
mod fileserver;
mod postmark;

use std::time::Duration;

use database::{KeyValue, OrderEntry};
use fileserver::FileServer;
use postmark::PostMark;

use crate::BenchError;
use crate::dice::Dice;
use crate::file_system::{FileSystem, Geometry};
use crate::store::BLOCK_BYTES;

/// What clients do in turn; called by several threads at a time.
pub(crate) trait Load: Sync {
    /// One operation: what throughput counts.
    fn step(&self, dice: &mut Dice, fs: &FileSystem) -> Result<(), BenchError>;

    /// Blocks of data that have been written when it begins: all of them, unless it says otherwise.
    fn written(&self, geometry: &Geometry) -> Vec<u64> {
        (0..geometry.data).collect()
    }
}

/// One of the loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    PostMark,
    FileServer,
    OrderEntry,
    YcsbA,
    YcsbB,
    YcsbF,
}

impl Kind {
    pub(crate) const ALL: [Self; 6] =
        [Self::PostMark, Self::FileServer, Self::OrderEntry, Self::YcsbA, Self::YcsbB, Self::YcsbF];

    /// Name in figures.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::PostMark => "postmark",
            Self::FileServer => "fileserver",
            Self::OrderEntry => "tpcc",
            Self::YcsbA => "ycsb_a",
            Self::YcsbB => "ycsb_b",
            Self::YcsbF => "ycsb_f",
        }
    }

    /// Clients at a time.
    pub(crate) const fn clients(self) -> u64 {
        match self {
            Self::PostMark => 1,
            Self::FileServer => 16,
            Self::OrderEntry => 8,
            Self::YcsbA | Self::YcsbB | Self::YcsbF => 4,
        }
    }

    /// Memory for data in percent of the working set: PostMark had 512 MiB for 2 GB, the file server 1 GiB for 1.5 GB, TPC-C 1
    /// GiB for 9 GB; YCSB's was "adjusted in proportion".
    const fn memory_percent(self) -> u64 {
        match self {
            Self::FileServer => 66,
            Self::OrderEntry => 11,
            Self::PostMark | Self::YcsbA | Self::YcsbB | Self::YcsbF => 25,
        }
    }

    /// A file system for a working set of so many bytes.
    pub(crate) fn geometry(self, working_set: u64, commit: Duration) -> Geometry {
        let data = working_set / BLOCK_BYTES;
        let memory = data * self.memory_percent() / 100;
        Geometry { journal: (data / 16).max(256), metadata: (data / 64).max(32), data, memory, commit }
    }

    pub(crate) fn load(self, geometry: &Geometry) -> Box<dyn Load> {
        match self {
            Self::PostMark => Box::new(PostMark::new(geometry)),
            Self::FileServer => Box::new(FileServer::new(geometry)),
            Self::OrderEntry => Box::new(OrderEntry::new(geometry)),
            Self::YcsbA => Box::new(KeyValue::new(geometry, 50, false)),
            Self::YcsbB => Box::new(KeyValue::new(geometry, 5, false)),
            Self::YcsbF => Box::new(KeyValue::new(geometry, 50, true)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn databases_have_written_everything_and_files_leave_room_for_more() {
        for kind in Kind::ALL {
            let geometry = kind.geometry(16 << 20, Duration::from_secs(1));
            let written = kind.load(&geometry).written(&geometry);
            assert!(written.is_sorted_by(|a, b| a < b) && *written.last().unwrap() < geometry.data);
            let files = matches!(kind, Kind::PostMark | Kind::FileServer);
            let percent = written.len() as u64 * 100 / geometry.data;
            assert!(if files { (30..70).contains(&percent) } else { percent == 100 }, "{kind:?}: {percent}%");
        }
    }
}
