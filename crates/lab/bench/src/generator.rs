//! A load over NBD that costs little processor time itself: one thread, a closed loop, requests and answers in batches.

use std::io::{self, IoSlice, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_nbd::codec::{ReplyHeader, Request, SimpleReply, command, command_flag};

use crate::BenchError;
use crate::dice::Dice;
use crate::nbd_client::NbdClient;
use crate::recording::Slice;

/// Bytes of each operation.
pub(crate) const OPERATION_BYTES: usize = 4096;
/// Most operations under way.
pub(crate) const DEPTH_MAX: usize = 128;
/// Answers are taken in such parts: all answers that can be under way, with their data.
const INBOX_BYTES: usize = DEPTH_MAX * (SimpleReply::BYTES + OPERATION_BYTES);
/// Longest wait for an answer.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// What each operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
}

/// A load: operations of 4 KiB at random places, `depth` of them always under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) kind: Kind,
    /// From 1 to [`DEPTH_MAX`].
    pub(crate) depth: usize,
    /// First bytes of the export that it goes to.
    pub(crate) span_bytes: u64,
    /// Writes are durable when they are answered, whatever the server promises of others.
    pub(crate) fua: bool,
}

/// How long a load runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// Before anything is counted.
    pub(crate) settle: Duration,
    /// While it is counted.
    pub(crate) counted: Duration,
}

impl Timing {
    /// Counted from its beginning.
    pub(crate) fn at_once(counted: Duration) -> Self {
        Self { settle: Duration::ZERO, counted }
    }
}

/// A place for one operation.
struct Slot {
    /// The request, with the data behind it if it is a write.
    message: Vec<u8>,
    /// When the operation that is under way was sent.
    sent: Option<Instant>,
}

/// An answer of which not all has come.
#[derive(Clone, Copy)]
struct Coming {
    slot: usize,
    /// Bytes of its data that are still to come.
    missing: usize,
}

/// A connection to a server, and the operations on it.
pub(crate) struct Generator {
    stream: UnixStream,
    slots: Vec<Slot>,
    dice: Dice,
    inbox: Vec<u8>,
    /// Bytes of the inbox that have come and are not understood yet.
    come: usize,
    coming: Option<Coming>,
}

/// How a run stands.
struct Run {
    load: Load,
    counts_from: Instant,
    ends: Instant,
    idle: Vec<usize>,
    slice: Slice,
}

impl Generator {
    /// Connects to a server's default export.
    ///
    /// # Errors
    /// [`BenchError`] if there is none.
    pub(crate) fn connect(socket: &Path, seed: u64) -> Result<Self, BenchError> {
        let stream = NbdClient::connect(socket)
            .and_then(|client| {
                let stream = client.into_stream();
                stream.set_read_timeout(Some(SILENCE_MAX))?;
                stream.set_write_timeout(Some(SILENCE_MAX))?;
                Ok(stream)
            })
            .map_err(|e| BenchError::system(format!("connect to {} by NBD", socket.display()), e))?;
        let mut dice = Dice::new(seed);
        let mut slot = |_| {
            let mut message = vec![0; Request::BYTES];
            message.extend((0..OPERATION_BYTES / 8).flat_map(|_| dice.next().to_le_bytes()));
            Slot { message, sent: None }
        };
        let slots = (0..DEPTH_MAX).map(&mut slot).collect();
        Ok(Self { stream, slots, dice, inbox: vec![0; INBOX_BYTES], come: 0, coming: None })
    }

    /// Runs a load for its time. Nothing is under way before and afterwards.
    ///
    /// # Errors
    /// [`BenchError`] if the server fails an operation, goes away, or says nothing for a minute.
    pub(crate) fn run(&mut self, load: Load, timing: Timing) -> Result<Slice, BenchError> {
        self.run_until(load, timing, &|_| false)
    }

    /// The same, but not beyond the moment when `ended` says so, which gets the number of operations that have been sent.
    pub(crate) fn run_until(
        &mut self,
        load: Load,
        timing: Timing,
        ended: &dyn Fn(u64) -> bool,
    ) -> Result<Slice, BenchError> {
        let failed = |e: io::Error| match e.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => BenchError::Forebay(format!(
                "the server has answered nothing for {} s",
                SILENCE_MAX.as_secs()
            )),
            _ => BenchError::system("carry out an operation over NBD", e),
        };
        let counts_from = Instant::now() + timing.settle;
        let mut run = Run {
            load,
            counts_from,
            ends: counts_from + timing.counted,
            idle: (0..load.depth.clamp(1, DEPTH_MAX)).collect(),
            slice: Slice::new()?,
        };
        let depth = run.idle.len();
        loop {
            let now = Instant::now();
            let under_way = (depth - run.idle.len()) as u64;
            if now < run.ends && ended(run.slice.operations_in_all + under_way) {
                run.ends = now;
            }
            if now < run.ends {
                self.send(&mut run, now).map_err(failed)?;
            }
            if run.idle.len() == depth {
                break;
            }
            self.receive(&mut run).map_err(failed)?;
        }
        run.slice.close(run.ends.saturating_duration_since(run.counts_from));
        Ok(run.slice)
    }

    /// Starts an operation in each idle slot.
    fn send(&mut self, run: &mut Run, now: Instant) -> io::Result<()> {
        let places = (run.load.span_bytes / OPERATION_BYTES as u64).max(1);
        let (command, bytes) = match run.load.kind {
            Kind::Read => (command::READ, Request::BYTES),
            Kind::Write => (command::WRITE, Request::BYTES + OPERATION_BYTES),
        };
        let flags = if run.load.fua { command_flag::FUA } else { 0 };
        let mut head = Vec::with_capacity(Request::BYTES);
        for number in &run.idle {
            let offset = self.dice.below(places) * OPERATION_BYTES as u64;
            let cookie = *number as u64;
            head.clear();
            Request { flags, command, cookie, offset, len: OPERATION_BYTES as u32 }.encode(&mut head);
            let slot = &mut self.slots[*number];
            slot.message[..Request::BYTES].copy_from_slice(&head);
            slot.sent = Some(now);
        }
        let mut parts: Vec<IoSlice<'_>> =
            run.idle.drain(..).map(|slot| IoSlice::new(&self.slots[slot].message[..bytes])).collect();
        let mut parts = parts.as_mut_slice();
        while !parts.is_empty() {
            match self.stream.write_vectored(parts) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => IoSlice::advance_slices(&mut parts, sent),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Waits for answers, and takes all that have come.
    fn receive(&mut self, run: &mut Run) -> io::Result<()> {
        let read = match self.stream.read(&mut self.inbox[self.come..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(()),
            read => read?,
        };
        let now = Instant::now();
        self.come += read;
        let (mut at, mut answered) = (0, 0);
        loop {
            if let Some(Coming { slot, missing }) = self.coming {
                let data = missing.min(self.come - at);
                at += data;
                if data < missing {
                    self.coming = Some(Coming { slot, missing: missing - data });
                    break;
                }
                self.coming = None;
                self.end(slot, now, run)?;
                answered += 1;
            }
            let Some(head) = self.inbox[at..self.come].first_chunk::<{ SimpleReply::BYTES }>() else { break };
            let missing = if run.load.kind == Kind::Read { OPERATION_BYTES } else { 0 };
            self.coming = Some(Coming { slot: answered_slot(head)?, missing });
            at += SimpleReply::BYTES;
        }
        self.inbox.copy_within(at..self.come, 0);
        self.come -= at;
        run.slice.operations_in_all += u64::from(answered);
        if now >= run.counts_from && now < run.ends {
            run.slice.ended(now - run.counts_from, answered);
        }
        Ok(())
    }

    /// The operation of a slot has ended.
    fn end(&mut self, slot: usize, now: Instant, run: &mut Run) -> io::Result<()> {
        let sent = self.slots.get_mut(slot).and_then(|slot| slot.sent.take());
        let sent = sent.ok_or_else(|| protocol(format!("an answer to {slot}, which was not asked")))?;
        // One that began before and stood still is not forgotten.
        if now >= run.counts_from {
            let took = now.saturating_duration_since(sent);
            run.slice.latencies_ns.saturating_record(took.as_nanos() as u64);
        }
        run.idle.push(slot);
        Ok(())
    }
}

fn protocol(why: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the server breaks the protocol: {why}"))
}

/// The operation that has ended well.
fn answered_slot(reply: &[u8]) -> io::Result<usize> {
    match ReplyHeader::decode(reply).map_err(protocol)? {
        ReplyHeader::Simple(SimpleReply { error, cookie }) if error.0 == 0 => {
            usize::try_from(cookie).map_err(protocol)
        }
        ReplyHeader::Simple(SimpleReply { error, .. }) => {
            let why = forebay_block::describe_errno(error.0 as i32);
            Err(io::Error::other(format!("the server fails it: {why}")))
        }
        ReplyHeader::Chunk(_) => Err(protocol("a structured reply, which was not asked for")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread::sleep;

    use forebay_nbd::codec::NbdError;

    use super::*;
    use crate::hollow::{Answer, Hollow};

    const SPAN_BYTES: u64 = 64 * OPERATION_BYTES as u64;

    fn load(kind: Kind, depth: usize) -> Load {
        Load { kind, depth, span_bytes: SPAN_BYTES, fua: false }
    }

    /// What the test does with a generator, and a server that answers so.
    fn with_server(answer: Box<Answer>, test: impl FnOnce(&mut Generator)) {
        let dir = tempfile::tempdir().unwrap();
        let server = Hollow::answering(&dir.path().join("socket"), answer).unwrap();
        let mut generator = Generator::connect(&server.socket, 1).unwrap();
        test(&mut generator);
        drop(generator);
        server.end().unwrap();
    }

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn every_operation_is_counted_once_and_goes_where_it_should() {
        let served = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let places = Arc::new(AtomicU64::new(0));
        let (counts, seen) = (Arc::clone(&served), Arc::clone(&places));
        let answer = move |request: &Request| {
            assert!(request.offset < SPAN_BYTES && request.len as usize == OPERATION_BYTES);
            assert!(request.offset.is_multiple_of(OPERATION_BYTES as u64));
            seen.fetch_or(1 << (request.offset / OPERATION_BYTES as u64), Ordering::Relaxed);
            counts[usize::from(request.command)].fetch_add(1, Ordering::Relaxed);
            NbdError::OK
        };
        with_server(Box::new(answer), |generator| {
            for (kind, command) in [(Kind::Read, command::READ), (Kind::Write, command::WRITE)] {
                let mut in_all = 0;
                for depth in [1, 7, DEPTH_MAX] {
                    let timing = Timing { settle: ms(5), counted: ms(20) };
                    let slice = generator.run(load(kind, depth), timing).unwrap();
                    in_all += slice.operations_in_all;
                    assert!(slice.operations > 0 && slice.operations <= slice.operations_in_all);
                    assert!(!slice.latencies_ns.is_empty() && slice.seconds == 0.02);
                    assert_eq!(slice.buckets.len(), 2);
                    assert_eq!(u64::from(slice.buckets.iter().sum::<u32>()), slice.operations);
                }
                assert_eq!(served[usize::from(command)].load(Ordering::Relaxed), in_all, "{kind:?}");
            }
        });
        assert_eq!(places.load(Ordering::Relaxed), u64::MAX, "some of the 64 places were never asked for");
    }

    #[test]
    fn a_run_ends_when_it_is_told_to_with_nothing_under_way() {
        with_server(Box::new(|_| NbdError::OK), |generator| {
            for depth in [1, 32] {
                let hour = Timing::at_once(Duration::from_secs(3600));
                let slice = generator.run_until(load(Kind::Write, depth), hour, &|sent| sent >= 100).unwrap();
                let most = 100 + depth as u64;
                assert!((100..most).contains(&slice.operations_in_all), "{}", slice.operations_in_all);
                assert!(slice.seconds < 60.0);
            }
        });
    }

    #[test]
    fn a_pause_of_the_server_is_seen_in_times_and_buckets() {
        let count = AtomicU64::new(0);
        let pauses = move |_: &Request| {
            if count.fetch_add(1, Ordering::Relaxed) == 50 {
                sleep(ms(60));
            }
            NbdError::OK
        };
        with_server(Box::new(pauses), |generator| {
            let slice = generator.run(load(Kind::Write, 4), Timing::at_once(ms(200))).unwrap();
            assert!(slice.latencies_ns.max() >= 60_000_000, "{} ns", slice.latencies_ns.max());
            let empty = slice.buckets.iter().filter(|count| **count == 0).count();
            assert!(empty >= 4, "{:?}", slice.buckets);
        });
    }

    #[test]
    fn a_failed_operation_ends_the_run_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let server = Hollow::answering(&dir.path().join("socket"), Box::new(|_| NbdError::EIO)).unwrap();
        let mut generator = Generator::connect(&server.socket, 1).unwrap();
        let failed = generator.run(load(Kind::Write, 1), Timing::at_once(ms(1000))).unwrap_err();
        assert!(failed.to_string().contains("the server fails it"), "{failed}");
        drop(generator);
        server.end().unwrap();
    }
}
