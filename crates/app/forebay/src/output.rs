//! Standard output: results and nothing else.

use std::io::{ErrorKind, Write};

use forebay_control::FailureKind;

use crate::failure::{Failure, Outcome};

/// Prints `text`, which ends its own lines, at once. A reader that has gone (`forebay status | head`) is no failure.
pub fn print(text: &str) -> Outcome {
    print_while_read(text).map(|_| ())
}

/// The same; false if the reader has gone.
pub fn print_while_read(text: &str) -> Result<bool, Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(Failure::new(
            FailureKind::Failed,
            format!("cannot write to standard output: {}", forebay_block::words_of(&e)),
        )),
    }
}

/// Prints a value as indented JSON.
pub fn print_json(value: &impl serde::Serialize) -> Outcome {
    match serde_json::to_string_pretty(value) {
        Ok(text) => print(&format!("{text}\n")),
        Err(e) => Err(Failure::new(FailureKind::Failed, format!("cannot put the result into JSON: {e}"))),
    }
}
