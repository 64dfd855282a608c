//! `forebay flush`: destage everything and wait.

use std::path::PathBuf;

use forebay_control::Request;

use super::ask;
use crate::failure::Outcome;
use crate::meter::Meter;
use crate::output::print;
use crate::volume_name;

/// Arguments of `forebay flush`.
#[derive(clap::Args)]
#[command(after_help = "Example: forebay flush db")]
pub struct Args {
    /// The volume
    #[arg(value_parser = volume_name::parse)]
    name: String,

    /// The daemon's control socket, if not the default one
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
}

/// Everything that was acknowledged before the command is on the backing when it ends well.
pub fn run(args: Args) -> Outcome {
    let mut meter = Meter::new("destaged");
    let result =
        ask(&args.name, args.control, &Request::Flush { volume: args.name.clone() }, |p| meter.show(p));
    meter.end();
    result?;
    print(&format!("{}: everything is on the backing\n", args.name))
}
