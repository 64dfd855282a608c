//! The end of volumes: a step for all of them at the same time, what it waits for, and for how long.
//!
//! ```text
//!  withdraw (device, file) ──all back, or a standstill──► clients go ──► end the volumes ──ended, or a standstill──► exit
//!      the kernel writes back what it holds                    who waits for the backing is refused, what is dirty stays
//! ```
//!
//! Nothing that was acknowledged is lost by not waiting: it is in the log, durably, and the next start goes on from there.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use forebay_engine::Status;
use forebay_policy::size;
use sd_notify::NotifyState;

use crate::diagnosis::{Names, explain};
use crate::served::Served;
use crate::service_manager::tell;

/// How long a step is waited for while nothing moves.
pub const STANDSTILL_MAX: Duration = Duration::from_secs(30);
/// The same while the backing answers with errors: it is tried again several times meanwhile.
pub const STANDSTILL_FAILING_MAX: Duration = Duration::from_secs(10);
/// What is waited for is told after this time for the first time.
const TELL_AFTER: Duration = Duration::from_secs(1);
/// And then this often.
const TELL_EVERY: Duration = Duration::from_secs(10);
/// How often it is looked whether something moves.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A step of the end that is taken for every volume, each on a thread of its own.
pub struct Step<T> {
    what: &'static str,
    left: Vec<Left<T>>,
    done: Vec<T>,
}

/// A volume whose step has not ended.
struct Left<T> {
    volume: Arc<Served>,
    end: Receiver<T>,
}

impl<T: Send + 'static> Step<T> {
    /// Begins the step; `what` is said of it, as in "waiting for ...".
    pub fn begin(
        what: &'static str,
        volumes: &[Arc<Served>],
        step: impl Fn(&Served) -> T + Clone + Send + 'static,
    ) -> Self {
        let begin = |volume: &Arc<Served>| {
            let (sender, end) = mpsc::sync_channel(1);
            let (of, step) = (Arc::clone(volume), step.clone());
            let spawned = thread::Builder::new().name(format!("end {}", volume.name())).spawn(move || {
                // Whoever waited may have lost patience.
                let _ = sender.send(step(&of));
            });
            if let Err(e) = spawned {
                tracing::error!(
                    volume = volume.name(),
                    "no thread to wait for {what}: {}",
                    forebay_block::words_of(&e)
                );
            }
            Left { volume: Arc::clone(volume), end }
        };
        let left = volumes.iter().map(begin).collect();
        Self { what, left, done: Vec::new() }
    }

    /// Waits until the step has ended for all volumes, or nothing has moved for too long; whether it has ended for all.
    pub fn wait(&mut self) -> bool {
        let (mut seen, mut moved) = (Vec::new(), Instant::now());
        let mut tell_at = Instant::now() + TELL_AFTER;
        loop {
            self.collect();
            if self.left.is_empty() {
                return true;
            }
            let figures: Vec<Status> = self.left.iter().map(|left| left.volume.figures()).collect();
            let now_seen: Vec<_> = figures.iter().map(movement).collect();
            if now_seen != seen {
                (seen, moved) = (now_seen, Instant::now());
            }
            let failing = figures.iter().any(|f| f.backing_trouble().is_some());
            let most = if failing { STANDSTILL_FAILING_MAX } else { STANDSTILL_MAX };
            let stood = moved.elapsed();
            if stood >= most {
                self.each(&figures, |volume, f| {
                    let (waited, stood) = (self.waited(&volume.names(), f), stood.as_secs());
                    tracing::error!(
                        volume = volume.name(),
                        "stopping: nothing has moved for {stood} s, no longer waiting for {waited}"
                    );
                });
                return false;
            }
            if Instant::now() >= tell_at {
                tell_at = Instant::now() + TELL_EVERY;
                let most = most.saturating_sub(stood).as_secs();
                self.each(&figures, |volume, f| {
                    let (name, waited) = (volume.name(), self.waited(&volume.names(), f));
                    let text = format!("stopping: waiting at most {most} s, if nothing moves, for {waited}");
                    tracing::warn!(volume = name, "{text}");
                    tell(&[NotifyState::Status(&format!("{name}: {text}"))]);
                });
            }
        }
    }

    /// What it ended with, where it has ended, and the volumes where it has not.
    pub fn outcome(mut self) -> (Vec<T>, Vec<Arc<Served>>) {
        self.collect();
        (self.done, self.left.into_iter().map(|left| left.volume).collect())
    }

    /// Takes what has ended, and waits a moment for the first that has not.
    fn collect(&mut self) {
        let mut patience = LOOK_EVERY;
        let (left, done) = (std::mem::take(&mut self.left), &mut self.done);
        self.left = left
            .into_iter()
            .filter(|left| match left.end.recv_timeout(std::mem::take(&mut patience)) {
                Ok(end) => {
                    done.push(end);
                    false
                }
                Err(RecvTimeoutError::Timeout) => true,
                Err(RecvTimeoutError::Disconnected) => false,
            })
            .collect();
    }

    fn each(&self, figures: &[Status], say: impl Fn(&Served, &Status)) {
        self.left.iter().zip(figures).for_each(|(left, f)| say(&left.volume, f));
    }

    /// What is waited for, and why.
    fn waited(&self, names: &Names, f: &Status) -> String {
        let why = match f.backing_trouble() {
            Some(answer) => explain(answer, names),
            None => "the backing has not answered yet, or a client takes its time".to_owned(),
        };
        format!(
            "{} ({} requests under way; {} of dirty data are safe in the cache): {why}",
            self.what,
            f.requests,
            size::show(f.dirty_bytes)
        )
    }
}

/// Changes whenever a volume comes nearer to its end. What a failing backing is given again and again does not count.
fn movement(f: &Status) -> [u64; 8] {
    let given = if f.backing_trouble().is_some() { 0 } else { f.bytes_to_backing + f.bytes_to_journal };
    [f.reads, f.writes, f.flushes, f.errors, f.requests, f.dirty_bytes, f.records, given]
}
