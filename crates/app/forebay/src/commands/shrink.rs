//! `forebay shrink`: make a cache smaller.

use forebay_control::Progress;
use forebay_device::DeviceSpec;

use crate::failure::{Outcome, from_host};
use crate::meter::Meter;
use crate::output::print;
use forebay_policy::size;

/// Arguments of `forebay shrink`.
#[derive(clap::Args)]
#[command(after_help = "Example: forebay shrink cache.fb --backing disk.img --size 4G\n\n\
The cache must not be in use by a daemon and must hold nothing that the backing lacks: serve the volume, \
`forebay flush` it and stop it cleanly first. What it held as read cache is lost.")]
pub struct Args {
    /// The cache
    cache: DeviceSpec,

    /// Its backing
    #[arg(long)]
    backing: DeviceSpec,

    /// Its new size
    #[arg(long, value_parser = size::parse_some)]
    size: u64,
}

/// Makes the cache anew, smaller.
pub fn run(args: Args) -> Outcome {
    let mut meter = Meter::new("wrote");
    let shrunk = forebay_host::shrink(&args.cache, &args.backing, args.size, &mut |done, total_bytes| {
        meter.show(Progress { remaining_bytes: total_bytes.saturating_sub(done), total_bytes });
    });
    meter.end();
    let made = shrunk.map_err(|e| from_host(&e))?;
    print(&format!(
        "{} has {} now ({} segments of {})\n",
        args.cache,
        size::show(made.layout.cache_bytes()),
        made.layout.segment_count,
        size::show(made.layout.segment_bytes.into())
    ))
}
