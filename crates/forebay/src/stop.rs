//! Being told to stop: by a signal, or because there is nothing left to serve.

use std::io;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Exit code of a daemon that was told twice to stop.
const EXIT_STOPPED_AT_ONCE: i32 = 1;

/// Why the daemon stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// SIGTERM or SIGINT.
    Signal(i32),
    /// The last volume was released.
    NothingToServe,
    /// A volume has ended by itself, which only a failure of the system makes it do.
    VolumeEnded,
}

/// Begins to listen to SIGTERM and SIGINT. The first is reported; the second ends the process at once: all that was
/// acknowledged is in the cache or on the backing already, so that only the mark of a clean stop is missing.
pub fn listen() -> io::Result<(Sender<StopReason>, Receiver<StopReason>)> {
    let (sender, receiver) = mpsc::channel();
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let reasons = sender.clone();
    thread::Builder::new().name("signals".into()).spawn(move || {
        for (number, signal) in signals.forever().enumerate() {
            if number > 0 {
                tracing::warn!("told to stop again: stopping at once; the next start recovers from the log");
                crate::logging::end();
                std::process::exit(EXIT_STOPPED_AT_ONCE);
            }
            if reasons.send(StopReason::Signal(signal)).is_err() {
                return;
            }
        }
    })?;
    Ok((sender, receiver))
}
