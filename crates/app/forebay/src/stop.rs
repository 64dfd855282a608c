//! Signals: being told to stop, and what must not stop a disk. Also that there is nothing left to serve.

use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use rustix::process::Signal;
use signal_hook::consts::{
    SIGALRM, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM, SIGXCPU, SIGXFSZ,
};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use signal_hook::low_level::signal_name;

/// Exit code of a daemon that was told twice to stop.
const EXIT_STOPPED_AT_ONCE: i32 = 1;

/// Signals that stop the daemon cleanly: somebody asks for it, processor time runs out (SIGKILL comes next), or power does.
const STOPPING: [i32; 5] = [SIGTERM, SIGINT, SIGQUIT, SIGXCPU, Signal::POWER.as_raw()];

/// Those by which somebody says that he does not want to wait any longer. The kernel repeats SIGXCPU by itself.
const IMPATIENT: [i32; 3] = [SIGTERM, SIGINT, SIGQUIT];

/// Signals that would end the process if it did not listen to them, and mean nothing to it. A write to a closed pipe is an error (Rust ignores
/// SIGPIPE).
const MEANINGLESS: [i32; 8] =
    [SIGHUP, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO, Signal::STKFLT.as_raw()];

/// The real-time signals, which end a process as well. The C library keeps those below for itself.
const REAL_TIME: RangeInclusive<i32> = 34..=64;

/// Why the daemon stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// One of the signals that stop it.
    Signal(i32),
    /// The last volume was released.
    NothingToServe,
    /// A volume has ended by itself, which only a failure of the system makes it do.
    VolumeEnded,
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signal(signal) => f.write_str(&name_of(*signal)),
            Self::NothingToServe => f.write_str("nothing is left to serve"),
            Self::VolumeEnded => f.write_str("a volume has ended by itself"),
        }
    }
}

fn name_of(signal: i32) -> String {
    signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned)
}

/// A write beyond the largest size of a file (RLIMIT_FSIZE) is an error like any other, and not the end of the process: that is said of the
/// error, for the log may be that file. Programs that are started from here have the default again.
pub fn outlive_file_limits() -> io::Result<()> {
    flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))).map(drop)
}

/// Begins to listen to signals. The first that stops is reported; the second ends the process at once: all that was
/// acknowledged is in the cache or on the backing already, so that only the mark of a clean stop is missing. The others change nothing: a
/// disk does not go because a terminal did.
pub fn listen() -> io::Result<(Sender<StopReason>, Receiver<StopReason>)> {
    let (sender, receiver) = mpsc::channel();
    let mut signals = Signals::new(STOPPING.into_iter().chain(MEANINGLESS).chain(REAL_TIME))?;
    let reasons = sender.clone();
    thread::Builder::new().name("signals".into()).spawn(move || {
        let mut stopping = false;
        for signal in signals.forever() {
            if !STOPPING.contains(&signal) {
                ignore(signal);
            } else if !stopping {
                stopping = true;
                // Whoever listened has stopped already.
                let _ = reasons.send(StopReason::Signal(signal));
            } else if IMPATIENT.contains(&signal) {
                tracing::warn!("told to stop again: stopping at once; the next start recovers from the log");
                crate::logging::end();
                std::process::exit(EXIT_STOPPED_AT_ONCE);
            }
        }
    })?;
    Ok((sender, receiver))
}

/// Signals by which somebody ends a command that works for a while.
const ENDING: [i32; 2] = [SIGINT, SIGTERM];

/// Whether a command has been told to end. From now on it is asked, and cleans up; the second signal ends it at once.
pub fn asked() -> impl Fn() -> bool {
    let asked = Arc::new(AtomicBool::new(false));
    for signal in ENDING {
        // Who cannot listen is ended by the system, as if nobody listened.
        let _ = flag::register_conditional_default(signal, Arc::clone(&asked))
            .and_then(|_| flag::register(signal, Arc::clone(&asked)));
    }
    move || asked.load(Ordering::Relaxed)
}

fn ignore(signal: i32) {
    let name = name_of(signal);
    if signal == SIGHUP {
        tracing::info!(
            "{name} is ignored: no configuration is read again, and a lost terminal stops no volume; \
             `forebay set` changes settings, and SIGTERM stops"
        );
    } else {
        tracing::info!("{name} is ignored; SIGTERM stops");
    }
}
