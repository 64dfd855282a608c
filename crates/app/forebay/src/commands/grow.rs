//! `forebay grow`: make a cache larger.

use forebay_control::Progress;
use forebay_device::DeviceSpec;

use crate::failure::{Outcome, from_host};
use crate::meter::Meter;
use crate::output::print;
use crate::stop;
use forebay_policy::size;

/// Arguments of `forebay grow`.
#[derive(clap::Args)]
#[command(after_help = "Example: forebay grow cache.fb --size 16G\n\n\
The cache may hold dirty data, but must not be in use by a daemon.")]
pub struct Args {
    /// The cache
    cache: DeviceSpec,

    /// Its new size [default: what its device has now]
    #[arg(long, value_parser = size::parse_some)]
    size: Option<u64>,
}

/// What is in the cache stays.
pub fn run(args: Args) -> Outcome {
    let mut meter = Meter::new("wrote");
    let grown = forebay_host::grow(&stop::asked(), &args.cache, args.size, &mut |done, total_bytes| {
        meter.show(Progress { remaining_bytes: total_bytes.saturating_sub(done), total_bytes });
    });
    meter.end();
    let layout = grown.map_err(|e| from_host(&e))?;
    print(&format!(
        "{} has {} now ({} segments of {})\n",
        args.cache,
        size::show(layout.cache_bytes()),
        layout.segment_count,
        size::show(layout.segment_bytes.into())
    ))
}
