//! `forebay pair`: give a backing whose label was lost a new one.

use clap::ArgAction;
use forebay_control::FailureKind;
use forebay_device::DeviceSpec;
use forebay_host::{LabelPlace, PairOptions};

use crate::failure::{Failure, Outcome, from_host};
use crate::output::print;
use crate::plan;

/// Arguments of `forebay pair`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    forebay pair cache.fb --backing disk.img\n  \
    forebay pair cache.fb --backing disk.img --lost-label\n\n\
The label (the file disk.img.forebay, or the end of a device) says which cache ran last with the backing. Where \
it was lost or is damaged, this says what the cache knows of the backing, and with --lost-label writes a new \
one.\n\n\
Without that word it is refused (exit code 3). It is also refused where the two do not belong together, or the \
backing has run with another cache.")]
pub struct Args {
    /// The cache: a file or block device, pmem:PATH or emulate:KIND:file=PATH
    cache: DeviceSpec,

    /// The store behind it
    #[arg(long)]
    backing: DeviceSpec,

    /// Your word that the label was lost and two things are so. Since this cache ran last, the backing has run with
    /// no other cache, and not without one. The cache did not fail a write in that run: the log and a degraded status
    /// would have said so. If that is not so, what was written then is overwritten
    #[arg(long, action = ArgAction::SetTrue)]
    lost_label: bool,

    /// Where the journal of the last run lies, if not where `forebay serve` puts it by itself; `none` if it had none
    #[arg(long, value_name = "LOCATION")]
    journal: Option<String>,
}

/// Never touches the volume's data.
pub fn run(args: Args) -> Outcome {
    let options = PairOptions {
        cache: args.cache,
        backing: args.backing,
        journal: plan::journal(args.journal.as_deref()).map_err(|e| Failure::new(FailureKind::Usage, e))?,
        label_is_lost: args.lost_label,
    };
    let found = forebay_host::pair_again(&options).map_err(|e| from_host(&e))?;
    let label = match &found.label {
        LabelPlace::SideFile(file) => format!("its label is {} again", file.path().display()),
        LabelPlace::Behind(_) | LabelPlace::Nowhere => "its label lies behind the volume again".to_owned(),
    };
    print(&format!("{found}\npaired again with {}; {label}\n", found.backing))
}
