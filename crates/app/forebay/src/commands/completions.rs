//! `forebay completions`: completion scripts for shells.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::Cli;
use crate::failure::Outcome;
use crate::output::print;

/// Arguments of `forebay completions`.
#[derive(clap::Args)]
#[command(after_help = "Example: forebay completions bash > /etc/bash_completion.d/forebay")]
pub struct Args {
    /// The shell
    shell: Shell,
}

/// Prints the script.
pub fn run(args: Args) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "forebay", &mut script);
    print(&String::from_utf8_lossy(&script))
}
