//! `forebay detach`: take a volume's kernel block device away, or its cache for good.

use std::path::PathBuf;

use forebay_control::{Answer, Request};

use super::ask;
use crate::failure::Outcome;
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
    if !args.release {
        // What goes to the backing meanwhile is not what is waited for.
        return ask(&args.name, args.control, &request, |_| {}).map(drop);
    }
    let mut meter = Meter::new("destaged");
    let result = ask(&args.name, args.control, &request, |p| meter.show(p));
    meter.end();
    let config = match result? {
        Answer::Released { config } => config,
        _ => None,
    };
    print(&text(&args.name, config.as_deref()))
}

/// What has become of the volume, and what whoever serves it next has to change.
fn text(name: &str, config: Option<&str>) -> String {
    let next = match config {
        Some(file) => format!(
            "In {file} the volume still names its cache, and is refused until you change that: put `no-cache = true` in place of \
             `cache`, or remove its [[volume]] if Forebay is to serve it no longer."
        ),
        None => {
            "To go on serving it, use `forebay serve --no-cache`, or `forebay format` a new cache.".to_owned()
        }
    };
    format!("{name}: the backing is complete; the cache is no longer needed.\n{next}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_released_a_volume_is_told_what_is_next() {
        let told = text("db", Some("/etc/forebay/db.toml"));
        assert!(
            told.starts_with("db: the backing is complete") && told.contains("In /etc/forebay/db.toml"),
            "{told}"
        );
        assert!(told.contains("no-cache = true") && told.contains("[[volume]]"), "{told}");
        assert!(text("db", None).contains("--no-cache"));
    }
}
