//! `forebay man`: manual pages, made from the same description as `--help`.

use std::path::PathBuf;

use clap::CommandFactory;
use clap_mangen::Man;
use forebay_control::FailureKind;

use crate::cli::Cli;
use crate::failure::{Failure, Outcome};
use crate::output::print;

/// Arguments of `forebay man`.
#[derive(clap::Args)]
#[command(after_help = "Example: forebay man --out /usr/local/share/man/man1")]
pub struct Args {
    /// Write forebay.1 and a page for each command into this directory; without it, forebay.1 is printed
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Writes or prints the pages.
pub fn run(args: Args) -> Outcome {
    let failed = |what: String, e: std::io::Error| {
        Failure::new(FailureKind::Failed, format!("cannot {what}: {}", forebay_block::words_of(&e)))
    };
    if let Some(dir) = args.out {
        std::fs::create_dir_all(&dir).map_err(|e| failed(format!("make {}", dir.display()), e))?;
        return clap_mangen::generate_to(Cli::command(), &dir)
            .map_err(|e| failed(format!("write manual pages into {}", dir.display()), e));
    }
    let mut page = Vec::new();
    Man::new(Cli::command()).render(&mut page).map_err(|e| failed("make the manual page".into(), e))?;
    print(&String::from_utf8_lossy(&page))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_gets_a_page() {
        let dir = tempfile::tempdir().unwrap();
        run(Args { out: Some(dir.path().to_owned()) }).unwrap();
        for command in Cli::command().get_subcommands() {
            let page = dir.path().join(format!("forebay-{}.1", command.get_name()));
            assert!(std::fs::read_to_string(&page).unwrap().contains("Example"), "{}", page.display());
        }
    }
}
