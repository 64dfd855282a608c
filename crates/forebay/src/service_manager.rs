//! What systemd is told, if it started the daemon (`Type=notify`): ready, stopping, still alive.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};

use sd_notify::NotifyState;

/// Tells the service manager, if there is one.
pub fn tell(states: &[NotifyState<'_>]) {
    if let Err(e) = sd_notify::notify(states) {
        tracing::warn!("cannot tell the service manager: {e}");
    }
}

/// Tells the service manager that the daemon lives, for as long as it does what it is for.
pub struct Watchdog {
    stop: Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts if the service manager asked for it (`WatchdogSec=`). `alive` asks every part of the daemon that must not
    /// hang: that a thread of the watchdog's own runs says nothing.
    pub fn start(alive: impl Fn() -> bool + Send + 'static) -> Option<Self> {
        let interval = sd_notify::watchdog_enabled()? / 2;
        let (stop, stopped) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("watchdog".into())
            .spawn(move || {
                while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                    if alive() {
                        tell(&[NotifyState::Watchdog]);
                    } else {
                        tracing::warn!(
                            "a volume does not answer; the service manager is not told that all is well"
                        );
                    }
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
