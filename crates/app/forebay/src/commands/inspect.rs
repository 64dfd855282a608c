//! `forebay inspect`: what lies where in a cache, and the history of a block.

use forebay_device::DeviceSpec;
use forebay_verify::{InspectOptions, RECORDS_SHOWN};

use crate::failure::Outcome;
use crate::image;
use crate::output::{print, print_json};

/// Arguments of `forebay inspect`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  forebay inspect cache.fb\n  forebay inspect cache.fb --block 4711 --json\n\n\
Changes nothing. The cache must not be in use by a daemon."
)]
pub struct Args {
    /// The cache
    cache: DeviceSpec,

    /// Tell the history of this block of the volume instead; blocks are 4 KiB, counted from 0
    #[arg(long, value_name = "N", value_parser = block)]
    block: Option<u64>,

    /// How many of the newest records to list
    #[arg(long, value_name = "N", default_value_t = RECORDS_SHOWN)]
    records: usize,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn block(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| {
        format!("'{text}' is not the number of a block of the volume, counted from 0 in blocks of 4 KiB")
    })
}

/// Prints layout and records, or a block's history.
pub fn run(args: Args) -> Outcome {
    let file = image::open(&args.cache)?;
    let options = InspectOptions { block: args.block, records_max: args.records };
    let inspection = forebay_verify::inspect(&file, &options).map_err(|e| image::failure(&args.cache, &e))?;
    match (&inspection.history, args.json) {
        (_, false) => print(&inspection.to_string()),
        (Some(history), true) => print_json(history),
        (None, true) => print_json(&inspection),
    }
}
