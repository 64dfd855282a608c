//! The command line as a whole: global options and the list of commands.

use clap::error::{ContextKind, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};
use tracing_subscriber::filter::Targets;

use crate::commands;
use crate::failure::Outcome;

/// A durable write cache in user space: a small fast device in front of a slow or remote one.
#[derive(Parser)]
#[command(name = "forebay", version, max_term_width = 110, after_help = EXIT_CODES)]
pub struct Cli {
    /// What to log on standard error: off, error, warn, info, debug, trace, or TARGET=LEVEL,...
    #[arg(
        long,
        global = true,
        value_name = "LEVEL",
        value_parser = crate::logging::targets,
        env = "FOREBAY_LOG",
        default_value = "info",
        hide_env_values = true
    )]
    pub log: Targets,

    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The command line, in which a size or a time may begin with `-`: it is for their parsers to say what is wrong with it.
pub fn command() -> clap::Command {
    fn with_hyphens(command: clap::Command) -> clap::Command {
        let command = command.mut_args(|arg| {
            let takes = arg.get_id() == "size"
                || arg
                    .get_value_names()
                    .unwrap_or_default()
                    .iter()
                    .any(|name| matches!(name.as_str(), "SIZE" | "TIME" | "TIME|SIZE"));
            if takes { arg.allow_hyphen_values(true) } else { arg }
        });
        command.mut_subcommands(with_hyphens)
    }
    with_hyphens(Cli::command())
}

/// A mistake on the command line, without a hint that leads nowhere: only what follows `run --` takes what looks like a flag.
pub fn usage(mut e: clap::Error) -> clap::Error {
    if e.kind() == ErrorKind::UnknownArgument && !std::env::args_os().any(|arg| arg == "run") {
        e.remove(ContextKind::Suggested);
    }
    e
}

const EXIT_CODES: &str = "Exit codes: 0 done; 1 failed; 2 wrong usage; 3 refused for safety (foreign, stale, in use, \
would lose data); 4 corruption found.";

macro_rules! commands {
    ($($(#[doc = $doc:literal])* $variant:ident => $module:ident),+ $(,)?) => {
        /// Every command; each lives in the module of its name.
        #[derive(Subcommand)]
        pub enum Command { $($(#[doc = $doc])* $variant(commands::$module::Args)),+ }

        impl Command {
            /// Carries the command out.
            pub fn run(self) -> Outcome {
                match self { $(Self::$variant(args) => commands::$module::run(args)),+ }
            }
        }
    };
}

commands! {
    /// Make a cache and pair it with a backing
    Format => format,
    /// Serve volumes until told to stop
    Serve => serve,
    /// Make a kernel block device of a volume and print its path
    Attach => attach,
    /// Take the kernel block device of a volume away, or its cache for good
    Detach => detach,
    /// Show what volumes are doing
    Status => status,
    /// Write everything that the cache holds to the backing, and wait
    Flush => flush,
    /// Declare a consistency point, and wait until the backing has it
    Mark => mark,
    /// Keep what an object store has of a volume under a name, for other hosts to read
    Checkpoint => checkpoint,
    /// Show why writes were cached or bypassed
    Explain => explain,
    /// Show what critical tasks waited for
    Waits => waits,
    /// Run a program that works for requests
    Run => run,
    /// Change settings of a running volume
    Set => set,
    /// Verify a cache image without an engine
    Check => check,
    /// Show layout and records of a cache, or the history of a block
    Inspect => inspect,
    /// Make a backing consistent without its cache
    Recover => recover,
    /// Pair a cache with its backing again, whose label was lost
    Pair => pair,
    /// Make a cache larger
    Grow => grow,
    /// Make a cache smaller
    Shrink => shrink,
    /// Measure volumes side by side with what they stand on
    Bench => bench,
    /// Find the setting that is worth most by your own measure
    Tune => tune,
    /// Run the engine in a simulated world that crashes it
    Sim => sim,
    /// Print a completion script for a shell
    Completions => completions,
    /// Write the manual pages
    Man => man,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_help_of_every_command_has_an_example() {
        for command in Cli::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.starts_with("Example"), "{} has no example", command.get_name());
            assert!(help.contains(&format!("forebay {}", command.get_name())), "{}", command.get_name());
        }
    }
}
