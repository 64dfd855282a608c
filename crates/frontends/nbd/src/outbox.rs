//! The replies of a connection on their way to the client.
//!
//! A completion runs on the volume's thread and must not block. Where the socket takes the whole reply at once, the
//! completion sends it itself, which saves a thread switch; otherwise the reply, or the rest of it, waits for
//! the connection's writer. A reply is sent whole before another begins:
//!
//! ```text
//!  completion ──► queue empty, writer idle, plain socket? ──yes──► send without waiting ──► all sent: done
//!                      │ no                                             │ a part, or nothing
//!                      ▼                                                ▼
//!                    queue ◄────────────────────────────────────────────┘
//!                      └──► writer: sends batches and waits for the socket
//! ```
//!
//! In a round of the volume's thread, replies are gathered in the queue, and sent so at its end.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use forebay_block::{Buf, Gathers, Round};

use crate::gate::Gate;
use crate::lock::hold;
use crate::transport::Transport;

/// Replies that the writer sends by one system call.
const BATCH_FRAMES_MAX: usize = 32;

/// One reply, or the rest of one.
pub(crate) struct Frame {
    /// Header, and whatever payload is not `data`.
    pub(crate) head: Vec<u8>,
    /// Data of a read, sent from the volume's own buffer.
    pub(crate) data: Option<Buf>,
    /// What its request counts for at the [`Gate`], in bytes.
    pub(crate) charge: usize,
    sent: usize,
}

impl Frame {
    pub(crate) const fn new(head: Vec<u8>, data: Option<Buf>, charge: usize) -> Self {
        Self { head, data, charge, sent: 0 }
    }

    fn len(&self) -> usize {
        self.head.len() + self.data.as_ref().map_or(0, |d| d.len())
    }

    /// What is still to be sent.
    fn slices(&self) -> impl Iterator<Item = IoSlice<'_>> {
        let data: &[u8] = self.data.as_deref().unwrap_or_default();
        let of_head = self.sent.min(self.head.len());
        let of_data = self.sent - of_head;
        let parts = [&self.head[of_head..], &data[of_data..]];
        parts.into_iter().filter(|part| !part.is_empty()).map(IoSlice::new)
    }
}

#[derive(Default)]
struct State {
    queue: VecDeque<Frame>,
    /// The writer is sending what it took from the queue.
    writing: bool,
    /// What is in the queue is sent at the end of a round.
    gathering: bool,
    /// The client is gone; replies are dropped.
    broken: bool,
    /// That is so because it took nothing for too long.
    stalled: bool,
    /// No reply will come any more.
    finished: bool,
}

impl State {
    /// Takes `bytes` that were sent off the queue; returns the replies that have been sent whole.
    fn sent(&mut self, mut bytes: usize) -> impl Iterator<Item = Frame> + '_ {
        let mut whole = 0;
        for frame in &mut self.queue {
            let part = bytes.min(frame.len() - frame.sent);
            frame.sent += part;
            bytes -= part;
            if frame.sent < frame.len() {
                break;
            }
            whole += 1;
        }
        self.queue.drain(..whole)
    }
}

/// The writing side of a connection.
pub(crate) struct Outbox {
    transport: Transport,
    gate: Arc<Gate>,
    state: Mutex<State>,
    work: Condvar,
}

impl Outbox {
    pub(crate) fn new(transport: Transport, gate: Arc<Gate>) -> Self {
        Self { transport, gate, state: Mutex::default(), work: Condvar::new() }
    }

    /// Sends `frame` or queues it, without waiting for the client; says whether it was queued for the writer. In a round, `gathers` is who
    /// calls [`Outbox::send_gathered`] at its end.
    pub(crate) fn post(&self, mut frame: Frame, gathers: impl FnOnce() -> Arc<dyn Gathers>) -> bool {
        let mut state = hold(&self.state);
        if state.broken {
            drop(state);
            self.gate.leave(frame.charge);
            return false;
        }
        if let Transport::Plain(socket) = &self.transport
            && (state.queue.is_empty() || state.gathering)
            && !state.writing
        {
            if state.gathering || Round::gathers(gathers) {
                state.gathering = true;
                state.queue.push_back(frame);
                return false;
            }
            match socket.send(&frame.slices().collect::<Vec<_>>(), false) {
                Ok(sent) => frame.sent += sent,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => {
                    state.queue.push_back(frame);
                    self.give_up(&mut state);
                    return false;
                }
            }
            if frame.sent == frame.len() {
                drop(state);
                self.gate.leave(frame.charge);
                return false;
            }
        }
        state.queue.push_back(frame);
        drop(state);
        self.work.notify_one();
        true
    }

    /// Sends what was gathered in a round, without waiting for the client; says how many replies are left for the writer.
    pub(crate) fn send_gathered(&self) -> usize {
        let mut state = hold(&self.state);
        state.gathering = false;
        let mut whole = Vec::new();
        while let Transport::Plain(socket) = &self.transport
            && !state.writing
            && !state.queue.is_empty()
        {
            let batch = state.queue.iter().take(BATCH_FRAMES_MAX);
            let slices: Vec<IoSlice<'_>> = batch.flat_map(Frame::slices).collect();
            match socket.send(&slices, false) {
                Ok(sent) => whole.extend(state.sent(sent)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => self.give_up(&mut state),
            }
        }
        let left = state.queue.len();
        drop(state);
        self.gate.leave_together(whole.iter().map(|frame| frame.charge));
        if left > 0 {
            self.work.notify_one();
        }
        left
    }

    /// The writer: sends what is queued until [`Outbox::finish`], or until the client is gone.
    pub(crate) fn run_writer(&self) {
        loop {
            let mut state = hold(&self.state);
            // What a round gathers is counted, and left to the writer if need be, at its end.
            while (state.queue.is_empty() || state.gathering) && !state.finished && !state.broken {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.broken || state.queue.is_empty() {
                return;
            }
            let count = state.queue.len().min(BATCH_FRAMES_MAX);
            let batch: Vec<Frame> = state.queue.drain(..count).collect();
            state.writing = true;
            drop(state);
            let mut slices: Vec<IoSlice<'_>> = batch.iter().flat_map(Frame::slices).collect();
            let outcome = self.transport.send_all(&mut slices);
            let mut state = hold(&self.state);
            state.writing = false;
            if let Err(error) = outcome {
                // The kernel reports a timeout of the socket as "would block".
                state.stalled = error.kind() == io::ErrorKind::WouldBlock;
                self.give_up(&mut state);
            }
            drop(state);
            for frame in batch {
                self.gate.leave(frame.charge);
            }
        }
    }

    /// Whether the client is gone because it took no byte of its replies for too long.
    pub(crate) fn has_stalled(&self) -> bool {
        hold(&self.state).stalled
    }

    /// Ends the writer when the queue is empty.
    pub(crate) fn finish(&self) {
        hold(&self.state).finished = true;
        self.work.notify_one();
    }

    /// The client is gone: drops what is queued, and wakes reader and writer.
    fn give_up(&self, state: &mut State) {
        state.broken = true;
        for frame in state.queue.drain(..) {
            self.gate.leave(frame.charge);
        }
        self.transport.socket().shut();
        self.work.notify_one();
    }
}
