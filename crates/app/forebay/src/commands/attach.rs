//! `forebay attach`: make a kernel block device of a volume.

use std::path::PathBuf;

use forebay_control::{Answer, Request};
use forebay_policy::time;

use super::{ask_when_there, not_an_answer, told_elsewhere};
use crate::control_path::control_path;
use crate::failure::Outcome;
use crate::output::print;
use crate::volume_name;

/// Arguments of `forebay attach`.
#[derive(clap::Args)]
#[command(after_help = "Example: mount $(forebay attach db) /mnt\n\n\
Needs a daemon that runs as root, and waits for one that is still starting. A volume that is attached already \
keeps its device. Warnings on standard error tell what costs speed, or may hang, and what to do.")]
pub struct Args {
    /// The volume
    #[arg(value_parser = volume_name::parse)]
    name: String,

    /// The daemon's control socket, if not the default one
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,

    /// How long to wait for a daemon that is not there yet
    #[arg(long, value_name = "TIME", value_parser = time::parse_ms, default_value = "10s")]
    wait: u64,
}

/// Prints the path of the block device alone; what there is to know of it goes to standard error.
pub fn run(args: Args) -> Outcome {
    let named = args.control.is_some();
    let path = match args.control {
        Some(path) => path,
        None => control_path(&args.name)?,
    };
    let elsewhere = |e| if named { e } else { told_elsewhere(&args.name, e) };
    match ask_when_there(&path, args.wait, &Request::Attach { volume: args.name.clone() }, elsewhere)? {
        Answer::Device(device) => {
            device.warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
            print(&format!("{}\n", device.path))
        }
        _ => Err(not_an_answer()),
    }
}
