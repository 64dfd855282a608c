//! What systemd is told, if it started the daemon (`Type=notify`): ready, stopping, still alive.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use sd_notify::NotifyState;

/// Tells the service manager, if there is one.
pub fn tell(states: &[NotifyState<'_>]) {
    if let Err(e) = sd_notify::notify(states) {
        tracing::warn!("cannot tell the service manager: {}", forebay_block::words_of(&e));
    }
}

/// Tells the service manager that the daemon lives, for as long as it does what it is for.
///
/// It is told twice in the time after which it would kill the daemon (`WatchdogSec=`), as its manual asks for. A part that
/// has not answered is waited for as long as that time: one answer that is late is not a death, and a sync of a mapped device may
/// take its while. What hangs for good is found within twice the time.
pub struct Watchdog {
    stop: Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts if the service manager asked for it. `unanswered` says for how long a part of the daemon that must not
    /// hang has not answered: that a thread of the watchdog's own runs says nothing.
    pub fn start(unanswered: impl Fn() -> Duration + Send + 'static) -> Option<Self> {
        let patience = sd_notify::watchdog_enabled()?;
        let (stop, stopped) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("watchdog".into())
            .spawn(move || {
                let mut late = false;
                while stopped.recv_timeout(patience / 2) == Err(RecvTimeoutError::Timeout) {
                    let unanswered = unanswered();
                    let hangs = unanswered >= patience;
                    if !hangs {
                        tell(&[NotifyState::Watchdog]);
                    }
                    if hangs && !late {
                        tracing::error!(
                            "a volume has not answered for {} s; the service manager is not told any more that all is well",
                            unanswered.as_secs()
                        );
                    } else if late && !hangs {
                        tracing::info!("all volumes answer again");
                    }
                    late = hangs;
                }
            })
            .ok()?;
        Some(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        let _ = self.stop.send(());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
