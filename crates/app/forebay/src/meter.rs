//! How far a long command has come: a bar on standard error if that is a terminal, else lines on standard output, so that
//! standard error has nothing but the one sentence of a failure.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use forebay_control::Progress;
use indicatif::{ProgressBar, ProgressStyle};

use crate::output::print;
use forebay_policy::size;

/// Where no terminal shows a bar, a line is printed this often.
const LINE_EVERY: Duration = Duration::from_secs(1);

/// A bar on a terminal, plain lines elsewhere.
pub enum Meter {
    /// On a terminal.
    Bar(ProgressBar),
    /// Elsewhere.
    Lines {
        /// What is done.
        verb: &'static str,
        /// When the last line was printed, or the command began.
        last: Instant,
    },
}

impl Meter {
    /// A meter for this process's standard error; `verb` says what is done to the bytes.
    pub fn new(verb: &'static str) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::Lines { verb, last: Instant::now() };
        }
        let bar = ProgressBar::new(0);
        if let Ok(style) =
            ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta} left")
        {
            bar.set_style(style);
        }
        Self::Bar(bar)
    }

    /// Takes one step in. New writes may add to what remains; the whole grows with it then.
    pub fn show(&mut self, step: Progress) {
        let total = step.total_bytes.max(step.remaining_bytes);
        let done = total - step.remaining_bytes;
        match self {
            Self::Bar(bar) => {
                bar.set_length(total);
                bar.set_position(done);
            }
            Self::Lines { verb, last } => {
                if last.elapsed() >= LINE_EVERY {
                    // A reader that has gone is not worth ending a long command for.
                    let _ = print(&format!("{verb} {} of {}\n", size::show(done), size::show(total)));
                    *last = Instant::now();
                }
            }
        }
    }

    /// Leaves the terminal as it was.
    pub fn end(self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

/// A line on how far something has come that has no known end: kept up to date on a terminal, written to standard error now and then
/// elsewhere, for it goes by the clock, and standard output does not.
pub struct Ticker {
    spinner: Option<ProgressBar>,
    last: Instant,
}

impl Ticker {
    /// Where no terminal shows it, the line is printed this often.
    const LINE_EVERY: Duration = Duration::from_secs(10);

    /// A ticker for this process's standard error.
    pub fn new() -> Self {
        let spinner = std::io::stderr().is_terminal().then(ProgressBar::new_spinner);
        Self { spinner, last: Instant::now() }
    }

    /// Shows the line, if it is time.
    pub fn show(&mut self, line: impl FnOnce() -> String) {
        match &self.spinner {
            Some(spinner) => {
                spinner.set_message(line());
                spinner.tick();
            }
            None if self.last.elapsed() >= Self::LINE_EVERY => {
                eprintln!("{}", line());
                self.last = Instant::now();
            }
            None => {}
        }
    }

    /// Leaves the terminal as it was.
    pub fn end(self) {
        if let Some(spinner) = self.spinner {
            spinner.finish_and_clear();
        }
    }
}
