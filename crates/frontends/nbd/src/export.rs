//! What a server offers: volumes under names.

use std::sync::Arc;

use forebay_block::{BlockService, VolumeInfo};

use crate::codec::{BlockSizes, export_flag};
use crate::counters::RequestCounters;
use crate::negotiation;

/// Longest read or write in bytes that is advertised, whatever a volume would take.
pub const REQUEST_BYTES_MAX: usize = 1 << 30;

/// A volume to serve, under the volume's name.
#[derive(Clone)]
pub struct Export {
    /// The volume.
    pub service: Arc<dyn BlockService>,
    /// A description for a person; may be empty, at most 4096 bytes.
    pub description: String,
    /// Whether somebody waits for every request of this export, within an application's request.
    pub critical: bool,
}

impl Export {
    /// An export of `service` without a description, whose requests are critical only if something else says so.
    pub fn new(service: Arc<dyn BlockService>) -> Self {
        Self { service, description: String::new(), critical: false }
    }
}

/// What the negotiation needs to know of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportDescription {
    /// The canonical name.
    pub name: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Writes are refused.
    pub read_only: bool,
    /// Longest read or write in bytes.
    pub request_bytes_max: usize,
    /// Logical block in bytes: the least that a client is asked to send.
    pub logical_block: u32,
    /// A description for a person.
    pub description: String,
}

impl ExportDescription {
    /// The description of a volume.
    pub fn of(volume: VolumeInfo, description: &str) -> Self {
        Self {
            name: volume.name,
            size_bytes: volume.size_bytes,
            read_only: volume.read_only,
            request_bytes_max: volume.request_bytes_max.min(REQUEST_BYTES_MAX),
            logical_block: volume.logical_block,
            description: description.to_owned(),
        }
    }

    /// Transmission flags.
    ///
    /// Several connections are safe: every acknowledged write is visible to reads that start later on any
    /// connection (P2), and a flush covers all that was acknowledged on any of them. Fast zeroing is advertised so
    /// that it can be refused at once.
    pub const fn flags(&self, structured: bool) -> u16 {
        let mut flags = export_flag::HAS_FLAGS
            | export_flag::SEND_FLUSH
            | export_flag::SEND_FUA
            | export_flag::SEND_TRIM
            | export_flag::SEND_WRITE_ZEROES
            | export_flag::SEND_FAST_ZERO
            | export_flag::CAN_MULTI_CONN;
        if self.read_only {
            flags |= export_flag::READ_ONLY;
        }
        if structured {
            flags |= export_flag::SEND_DF;
        }
        flags
    }

    /// The sizes of requests that the export takes.
    pub fn block_sizes(&self) -> BlockSizes {
        negotiation::block_sizes(self.logical_block, self.request_bytes_max)
    }
}

/// The exports, as the negotiation sees them.
pub trait Catalog {
    /// The export that a client means by `name`.
    fn find(&self, name: &str) -> Option<ExportDescription>;

    /// All exports, in the order of their names.
    fn all(&self) -> Vec<ExportDescription>;
}

/// An export and what was counted of it.
pub(crate) struct Served {
    pub(crate) name: String,
    pub(crate) export: Export,
    pub(crate) counters: RequestCounters,
}

/// The exports of one server.
pub(crate) struct ExportTable {
    entries: Vec<Arc<Served>>,
}

impl ExportTable {
    /// A table in the order of the names; `Err` gives the first name that is invalid or comes twice.
    pub(crate) fn new(exports: Vec<Export>) -> Result<Self, String> {
        let mut entries: Vec<_> = exports
            .into_iter()
            .map(|export| Served {
                name: export.service.info().name,
                export,
                counters: RequestCounters::default(),
            })
            .map(Arc::new)
            .collect();
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(bad) = entries.iter().find(|e| !negotiation::is_valid_name(&e.name)) {
            return Err(bad.name.clone());
        }
        if let Some(pair) = entries.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(pair[0].name.clone());
        }
        Ok(Self { entries })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Served>> {
        self.entries.iter()
    }

    /// The empty name means the only volume, where there is one volume.
    pub(crate) fn get(&self, name: &str) -> Option<&Arc<Served>> {
        match &self.entries[..] {
            [only] if name.is_empty() => Some(only),
            all => all.iter().find(|e| e.name == name),
        }
    }
}

impl Served {
    fn describe(&self) -> ExportDescription {
        ExportDescription::of(self.export.service.info(), &self.export.description)
    }
}

impl Catalog for ExportTable {
    fn find(&self, name: &str) -> Option<ExportDescription> {
        self.get(name).map(|e| e.describe())
    }

    fn all(&self) -> Vec<ExportDescription> {
        self.entries.iter().map(|e| e.describe()).collect()
    }
}
