//! `forebay run`: run a program with the hint set.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::Command;

use forebay_control::FailureKind;
use forebay_hint::Critical;

use crate::failure::{Failure, Outcome};

/// Arguments of `forebay run`.
#[derive(clap::Args)]
#[command(
    after_help = "Example: forebay run --critical -- sqlite3 /mnt/shop.db 'insert into orders values (7)'\n\n\
It needs Linux 6.5 or later. The program, and whatever it starts, counts as working for a request. On attached \
volumes its writes, and those that it waits for, are cached under the admission policies that ask.\n\n\
The hint stands in the I/O priority; a program that sets its own takes it away. A daemon may believe hints of \
some users and control groups only (forebay serve --hints).\n\n\
The exit code is the program's own. It is 1 if the program cannot be run."
)]
pub struct Args {
    /// What it does works for a request
    #[arg(long, required = true)]
    critical: bool,

    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Becomes the program; returns only if it cannot.
pub fn run(args: Args) -> Outcome {
    if args.critical {
        let failed = |e| {
            Failure::new(FailureKind::Failed, format!("cannot set the hint: {}", forebay_block::words_of(&e)))
        };
        Critical::begin().map_err(failed)?.keep();
    }
    let mut command = args.command.iter();
    let program = command.next().map_or(OsStr::new(""), OsString::as_os_str);
    let error = Command::new(program).args(command).exec();
    Err(Failure::new(
        FailureKind::Failed,
        format!("cannot run {}: {}", program.display(), forebay_block::words_of(&error)),
    ))
}
