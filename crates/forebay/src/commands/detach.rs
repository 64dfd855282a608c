//! `forebay detach`: take a volume's kernel block device away, or its cache for good.

use std::path::PathBuf;

use forebay_control::Request;

use super::ask;
use crate::cli::Outcome;
use crate::meter::Meter;
use crate::output::print;
use crate::volume_name;

/// Arguments of `forebay detach`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  forebay detach db\n  forebay detach db --release")]
pub struct Args {
    /// The volume
    #[arg(value_parser = volume_name::parse)]
    name: String,

    /// Also destage everything, stop serving the volume and part it from its cache for good; the backing alone is
    /// complete then and needs no Forebay
    #[arg(long)]
    release: bool,

    /// The daemon's control socket, if not the default one
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
}

/// Refused while a file system on the device is mounted.
pub fn run(args: Args) -> Outcome {
    let request = Request::Detach { volume: args.name.clone(), release: args.release };
    let mut meter = Meter::new("destaged");
    let result = ask(&args.name, args.control, &request, |p| meter.show(p));
    meter.end();
    result?;
    if args.release {
        return print(&format!("{}: the backing is complete; the cache is no longer needed\n", args.name));
    }
    Ok(())
}
