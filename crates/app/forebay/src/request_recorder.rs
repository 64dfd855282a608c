//! Requests of a volume as they come, recorded in a file (`serve --record-requests`; the format is [`forebay_replay::request_log`]'s).
//!
//! Whoever brings a request puts a line into a bounded queue and goes on; a thread of its own writes the lines. A line for which the
//! queue has no room is counted in its place. So recording holds up no request, and changes nothing of any.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay_block::{BlockService, Completion, Gate, Op, Origin, VolumeInfo, words_of};
use forebay_guard::FileRights;
use forebay_replay::request_log::{Entry, Event, Request, VERSION};

/// Lines that wait to be written at most (P7): those of some hundredths of a second at a million requests a second.
const LINES_MAX: usize = 1 << 16;

/// Lines are written together so often, so that a request seldom has to wake the thread that writes.
const WRITE_EVERY: Duration = Duration::from_millis(10);

/// A record that cannot be ended for so long is left as it is: nobody who stops a volume waits for its file system.
const FINISH_TIME: Duration = Duration::from_secs(2);

/// A volume's record, which many threads add to.
pub struct RequestRecorder {
    queue: SyncSender<Message>,
    began: Instant,
    /// Numbers of requests that were given away.
    numbers: AtomicU64,
    /// Lines that had no place.
    lost: AtomicU64,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// What is told the thread that writes, with how many lines had no place before it.
struct Message {
    lost: u64,
    at_ns: u64,
    what: What,
}

enum What {
    Line(Event),
    Finish,
}

impl RequestRecorder {
    /// Begins a record in a new file, for the user of the process alone: it says of others what they do.
    ///
    /// # Errors
    /// Of the system; [`io::ErrorKind::AlreadyExists`] if anything is at the path.
    pub fn create(path: &Path, volume: &VolumeInfo) -> io::Result<Arc<Self>> {
        let file = FileRights::ALONE.create(path)?;
        Self::start(file, path, volume, LINES_MAX)
    }

    fn start(file: File, path: &Path, volume: &VolumeInfo, lines_max: usize) -> io::Result<Arc<Self>> {
        let (queue, lines) = mpsc::sync_channel(lines_max);
        let mut writer = Writer {
            file: BufWriter::new(file),
            path: path.to_owned(),
            volume: volume.name.clone(),
            lost: 0,
            requests: 0,
        };
        let wall_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
        let begin = Event::Begin { volume_bytes: volume.size_bytes, wall_ns, name: volume.name.clone() };
        writeln!(writer.file, "{VERSION}\n{}", Entry { at_ns: 0, event: begin })?;
        writer.file.flush()?;
        let thread = thread::Builder::new().name("forebay-record".to_owned());
        let writer = Mutex::new(Some(thread.spawn(move || writer.run(&lines))?));
        let (numbers, lost) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Arc::new(Self { queue, began: Instant::now(), numbers, lost, writer }))
    }

    fn message(&self, what: What) -> Message {
        let at_ns = self.began.elapsed().as_nanos() as u64;
        Message { lost: self.lost.load(Ordering::Relaxed), at_ns, what }
    }

    /// Whether there was room for it.
    fn put(&self, event: Event) -> bool {
        let taken = self.queue.try_send(self.message(What::Line(event))).is_ok();
        if !taken {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }

    /// A request has come. Returns the completion to use in place of `done`, by which its answer is recorded.
    pub fn request(self: &Arc<Self>, op: &Op, origin: Origin, done: Completion) -> Completion {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed) + 1;
        if !self.put(Event::Request { number, request: Request::new(op, origin) }) {
            return done;
        }
        let recorder = Arc::clone(self);
        Box::new(move |result| {
            let errno = result.as_ref().err().map_or(0, |e| e.kind.errno().unsigned_abs());
            // Before anybody can act on it.
            recorder.put(Event::Answer { number, errno });
            done(result);
        })
    }

    /// A critical task has come to wait for outstanding writes of these bytes.
    pub fn promoted(&self, offset: u64, len: u64) {
        self.put(Event::Promote { offset, len });
    }

    /// Ends the record; what comes later is not in it. Does nothing the second time.
    pub fn finish(&self) {
        let Some(writer) = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let until = Instant::now() + FINISH_TIME;
        // One that has failed has ended already. A full queue has room again soon, but for a file system that hangs.
        while self
            .queue
            .try_send(self.message(What::Finish))
            .is_err_and(|e| matches!(e, TrySendError::Full(_)))
            && Instant::now() < until
        {
            thread::sleep(WRITE_EVERY);
        }
        while !writer.is_finished() && Instant::now() < until {
            thread::sleep(WRITE_EVERY / 10);
        }
        match writer.is_finished() {
            true => drop(writer.join()),
            false => tracing::warn!(
                "the end of a record of requests is not written: its file system does not answer"
            ),
        }
    }
}

/// The thread's part.
struct Writer {
    file: BufWriter<File>,
    path: PathBuf,
    volume: String,
    /// Lines that had no place, and requests that were written.
    lost: u64,
    requests: u64,
}

impl Writer {
    fn run(mut self, lines: &Receiver<Message>) {
        let (volume, file) = (self.volume.clone(), self.path.display().to_string());
        match self.write_all(lines) {
            Ok(()) if self.lost > 0 => tracing::warn!(
                volume,
                file,
                requests = self.requests,
                lost = self.lost,
                "requests recorded; lines that came too fast are not in the record, which says where they are missing"
            ),
            Ok(()) => tracing::info!(volume, file, requests = self.requests, "requests recorded"),
            Err(e) => {
                tracing::error!(volume, "the record {file} has ended: {}; the volume goes on", words_of(&e))
            }
        }
    }

    /// Until it is told to finish, or nobody is left to tell it.
    fn write_all(&mut self, lines: &Receiver<Message>) -> io::Result<()> {
        while let Ok(first) = lines.recv() {
            for message in std::iter::once(first).chain(lines.try_iter()) {
                let Message { lost, at_ns, what } = message;
                self.tell_lost(lost, at_ns)?;
                match what {
                    What::Line(event) => {
                        self.requests += u64::from(matches!(event, Event::Request { .. }));
                        self.write(at_ns, event)?;
                    }
                    What::Finish => {
                        self.write(at_ns, Event::End { requests: self.requests, lost: self.lost })?;
                        self.file.flush()?;
                        return self.file.get_ref().sync_all();
                    }
                }
            }
            self.file.flush()?;
            thread::sleep(WRITE_EVERY);
        }
        Ok(())
    }

    fn write(&mut self, at_ns: u64, event: Event) -> io::Result<()> {
        writeln!(self.file, "{}", Entry { at_ns, event })
    }

    /// Says how many lines had no place since the last one that had.
    fn tell_lost(&mut self, lost: u64, at_ns: u64) -> io::Result<()> {
        // Two who add lines at the same time may have them written in the other order.
        let count = lost.saturating_sub(self.lost);
        if count == 0 {
            return Ok(());
        }
        if self.lost == 0 {
            tracing::warn!(
                volume = self.volume,
                file = %self.path.display(),
                "requests come faster than they can be recorded: some are not in the record"
            );
        }
        self.lost = lost;
        self.write(at_ns, Event::Lost(count))
    }
}

/// A volume whose requests are recorded.
pub struct RecordedVolume<S> {
    inner: S,
    recorder: Arc<RequestRecorder>,
}

impl<S: BlockService> RecordedVolume<S> {
    /// A view of the volume whose requests are recorded as they come to it.
    pub const fn new(inner: S, recorder: Arc<RequestRecorder>) -> Self {
        Self { inner, recorder }
    }
}

impl<S: BlockService> BlockService for RecordedVolume<S> {
    fn info(&self) -> VolumeInfo {
        self.inner.info()
    }

    fn submit(&self, op: Op, origin: Origin, done: Completion) {
        let done = self.recorder.request(&op, origin, done);
        self.inner.submit(op, origin, done);
    }

    fn gate(&self) -> &Arc<Gate> {
        self.inner.gate()
    }
}

#[cfg(test)]
mod tests;
