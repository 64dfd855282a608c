//! `forebay check`: verify a cache image without an engine.

use forebay_control::FailureKind;
use forebay_device::DeviceSpec;
use forebay_verify::{Report, Severity};

use crate::failure::{Failure, Outcome};
use crate::image;
use crate::output::{print, print_json};

/// Arguments of `forebay check`.
#[derive(clap::Args)]
#[command(after_help = "Example: forebay check cache.fb\n\n\
Reads every record and every block, and changes nothing. The exit code is 4 if anything is damaged, whether or \
not data is lost by it; the report says which. The cache must not be in use by a daemon.")]
pub struct Args {
    /// The cache
    cache: DeviceSpec,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Prints the report; fails if anything is damaged.
pub fn run(args: Args) -> Outcome {
    let file = image::open(&args.cache)?;
    let report = forebay_verify::check(&file).map_err(|e| image::failure(&args.cache, &e))?;
    if args.json {
        print_json(&report)?
    } else {
        print(&report.to_string())?
    }
    verdict(&args.cache, &report)
}

fn verdict(cache: &DeviceSpec, report: &Report) -> Outcome {
    let damage = match report.verdict {
        Severity::Ok | Severity::Note => return Ok(()),
        Severity::Recoverable => "is damaged, but no data is lost",
        Severity::Corruption => "is damaged, and acknowledged data is lost or in doubt",
    };
    Err(Failure::new(FailureKind::Corrupt, format!("{cache} {damage}; the report says what and where")))
}
