//! The log: lines on standard error, for a terminal, a file or the journal.

use std::io::IsTerminal;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Starts logging what `targets` lets through.
pub fn start(targets: &Targets) {
    let layer = fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
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
    fn a_word_that_is_no_level_is_refused() {
        for good in ["info", "off", "WARN", "forebay_host=debug", "warn,forebay_nbd=trace"] {
            assert!(targets(good).is_ok(), "{good}");
        }
        for bad in ["", "verbose", "info,loud", "forebay_host=loud"] {
            assert!(targets(bad).is_err(), "{bad}");
        }
    }
}
