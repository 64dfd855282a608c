//! The log: lines on standard error, for a terminal, a file or the journal.
//!
//! Nobody waits for it: standard error may be a pipe that is not read, and a volume goes on all the same. Lines wait for a thread that
//! writes them; where too many wait, further ones are lost, and how many is told.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::{self, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Most lines that wait to be written.
const LINES_MAX: usize = 4096;
/// How long the end of the process waits for those that are left.
const END_WAIT_MAX: Duration = Duration::from_secs(1);

static LOG: OnceLock<Lines> = OnceLock::new();

#[derive(Default)]
struct State {
    waiting: VecDeque<Vec<u8>>,
    /// One is being written.
    writing: bool,
    /// So many found no room.
    lost: u64,
}

/// The lines on their way.
#[derive(Clone, Default)]
struct Lines(Arc<(Mutex<State>, Condvar)>);

impl Lines {
    /// Lines that a thread of their own writes to `out`.
    fn to(mut out: impl Write + Send + 'static) -> io::Result<Self> {
        let lines = Self::default();
        let taken = lines.clone();
        thread::Builder::new().name("log".to_owned()).spawn(move || {
            loop {
                // Whom a line does not reach there is nobody else to tell.
                let _ = out.write_all(&taken.next());
            }
        })?;
        Ok(lines)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is a single push, pop or count, so the state is whole even after a panic.
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The line that is to be written next; waits for it. The one before has been written.
    fn next(&self) -> Vec<u8> {
        let mut state = self.state();
        state.writing = false;
        self.0.1.notify_all();
        let nothing = |state: &mut State| state.waiting.is_empty() && state.lost == 0;
        state = self.0.1.wait_while(state, nothing).unwrap_or_else(PoisonError::into_inner);
        state.writing = true;
        let lost = state.lost;
        state.waiting.pop_front().unwrap_or_else(|| {
            state.lost = 0;
            format!("{lost} lines of the log are lost: they were not read in time\n").into_bytes()
        })
    }

    /// Waits until all is written, but not for good.
    fn end(&self) {
        let left = |state: &mut State| state.writing || !state.waiting.is_empty() || state.lost > 0;
        drop(self.0.1.wait_timeout_while(self.state(), END_WAIT_MAX, left));
    }
}

impl Write for &Lines {
    /// Takes a whole line, which is how they come.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut state = self.state();
        // After one is lost, others wait until that is told: what is there is without a gap up to there.
        match state.waiting.len() < LINES_MAX && state.lost == 0 {
            true => state.waiting.push_back(line.to_vec()),
            false => state.lost += 1,
        }
        drop(state);
        self.0.1.notify_all();
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> &'a Self {
        self
    }
}

/// A terminal gets colours, unless who sits at it wants none (<https://no-color.org>).
fn is_colored(is_terminal: bool, no_color: Option<&OsStr>) -> bool {
    is_terminal && no_color.is_none_or(OsStr::is_empty)
}

/// Starts logging what `targets` lets through.
pub fn start(targets: &Targets) {
    let lines = match Lines::to(io::stderr()) {
        Ok(lines) => LOG.get_or_init(|| lines).clone(),
        Err(e) => return eprintln!("warning: no log: {}", forebay_block::words_of(&e)),
    };
    let layer = fmt::layer()
        .with_writer(lines)
        .with_ansi(is_colored(io::stderr().is_terminal(), std::env::var_os("NO_COLOR").as_deref()))
        // It would be said on standard error, too, with a panic where that has gone: a terminal, or who reads a pipe.
        .log_internal_errors(false);
    // The journal stamps lines itself.
    let journal = std::env::var_os("JOURNAL_STREAM").is_some();
    let registry = tracing_subscriber::registry().with(targets.clone());
    let started = if journal {
        registry.with(layer.without_time()).try_init()
    } else {
        registry.with(layer).try_init()
    };
    if let Err(e) = started {
        eprintln!("warning: no log: {e}");
    }
}

/// Gives the last lines a moment, before the process ends.
pub fn end() {
    if let Some(lines) = LOG.get() {
        lines.end();
    }
}

/// Reads what to log: a level, or TARGET=LEVEL, separated by commas.
pub fn targets(text: &str) -> Result<Targets, String> {
    let is_known = |item: &str| {
        item.contains('=') || (!item.trim().is_empty() && item.trim().parse::<LevelFilter>().is_ok())
    };
    match text.parse() {
        Ok(targets) if text.split(',').all(is_known) => Ok(targets),
        _ => Err(format!("'{text}' is not off, error, warn, info, debug, trace, or TARGET=LEVEL,...")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_that_want_them() {
        assert!(is_colored(true, None) && is_colored(true, Some(OsStr::new(""))));
        assert!(!is_colored(true, Some(OsStr::new("1"))) && !is_colored(false, None));
    }

    /// A pipe that is not read until the test says so.
    struct Stuck(std::sync::mpsc::Receiver<()>, std::sync::mpsc::Sender<Vec<u8>>);

    impl Write for Stuck {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.recv().unwrap_or_default();
            self.1.send(line.to_vec()).unwrap();
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn nobody_waits_for_lines_that_are_not_read() {
        let (go_on, stuck) = std::sync::mpsc::channel();
        let (told, read) = std::sync::mpsc::channel();
        let lines = Lines::to(Stuck(stuck, told)).unwrap();
        let line = |n: usize| format!("line {n}\n").into_bytes();
        let log = |n| (&lines).write_all(&line(n)).unwrap();
        (0..2 * LINES_MAX).for_each(log);
        drop(go_on);
        (0..60).for_each(|_| lines.end());
        let mut all: Vec<Vec<u8>> = read.try_iter().collect();
        let last = String::from_utf8(all.pop().unwrap()).unwrap();
        let lost: usize = last.split(' ').next().unwrap().parse().unwrap();
        assert!(last.contains("not read in time") && (LINES_MAX - 1..=LINES_MAX).contains(&lost), "{last}");
        assert!(all.iter().eq((0..2 * LINES_MAX - lost).map(line).collect::<Vec<_>>().iter()));
        // It is as it was before.
        log(7);
        (0..60).for_each(|_| lines.end());
        assert_eq!(read.try_iter().collect::<Vec<_>>(), [line(7)]);
    }

    #[test]
    fn a_word_that_is_no_level_is_refused() {
        for good in ["info", "off", "WARN", "forebay_host=debug", "warn,forebay_nbd=trace"] {
            assert!(targets(good).is_ok(), "{good}");
        }
        for bad in ["", "verbose", "info,loud", "forebay_host=loud"] {
            assert!(targets(bad).is_err(), "{bad}");
        }
    }
}
