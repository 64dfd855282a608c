//! Volumes: what turns the engine.
//!
//! A [`Volume`] is one thread that owns one engine, one ring and two devices; a [`VolumeHandle`] is the block service
//! that frontends submit to. Opening a volume checks that cache and backing are the latest of their kind and belong
//! together (P6); [`format()`] makes a cache, [`grow`] and [`shrink`] change its size, [`release`] removes it for good.
#![forbid(unsafe_code)]

mod ailing;
mod core;
mod devices;
mod driver;
mod error;
mod feeds;
mod format;
mod handle;
mod identity;
mod in_order;
mod journal;
mod label;
mod lanes;
mod lost_label;
mod pair;
mod partial;
mod passthrough;
mod privacy;
mod queue;
mod recover;
mod resize;
mod slow;
mod superblocks;
mod survey;
mod volume;

pub use error::{CacheContent, ErrorClass, HostError};
pub use forebay_engine::{CommonState, CommonStep};
pub use forebay_format::journal::{Moment, POINT_LABEL_BYTES};
pub use forebay_format::logical_block::is_valid as is_logical_block;
pub use forebay_format::shared_point::{Common, names_of, set_of};
pub use format::{FormatOptions, Formatted, JournalRoom, format, format_unless};
pub use handle::{Observer, VolumeHandle};
pub use journal::{JOURNAL_SUFFIX, JournalChoice};
pub use label::{LABEL_SUFFIX, LabelPlace};
pub use lanes::{WORK_BYTES_MAX, WORK_REQUESTS_MAX};
pub use lost_label::{PairOptions, PairedAgain, pair_again};
pub use privacy::keep_private;
pub use queue::{Ending, REQUEST_BYTES_MAX, REQUEST_BYTES_TOTAL_MAX, REQUESTS_MAX, ZERO_PIECE_BYTES};
pub use recover::{RecoverOptions, Recovered, recover, recover_group};
pub use resize::{grow, release, shrink};
pub use volume::{Decorator, Volume, VolumeConfig};
