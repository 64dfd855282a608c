//! The way from frontends to a volume's thread: bounded, and cheap while that thread is awake.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use forebay_block::{Completion, ErrorKind, Inside, IoError, Nanos, Op, Origin};
use forebay_device::{CheckpointChange, CheckpointDone, Waker};
use forebay_engine::{Command, CommonError, CommonState, CommonStep, MarkError};

use crate::feeds::{FeedCount, NewFeed};
use crate::lanes::{Cost, Kind, Lanes};

/// Requests of a volume that are queued or under way at a time; further ones wait in `submit` (P7).
pub const REQUESTS_MAX: usize = 1024;
/// How many of these may be questions about allocation: a backing that does not answer them keeps no room from reads and writes.
const QUESTIONS_MAX: usize = REQUESTS_MAX / 4;
/// Bytes that these requests may carry in all.
pub const REQUEST_BYTES_TOTAL_MAX: u64 = 256 << 20;
/// Longest read or write in bytes.
pub const REQUEST_BYTES_MAX: usize = 32 << 20;

/// Zeroes and trims of more bytes than this are carried out in pieces of this length while others use the volume,
/// and always where there is no cache.
pub const ZERO_PIECE_BYTES: u64 = 32 << 20;

/// A client's request on its way to the thread.
pub(crate) struct Incoming {
    pub(crate) op: Op,
    pub(crate) origin: Origin,
    pub(crate) done: Completion,
    /// `origin` is all that is to be known of its issuer.
    pub(crate) identified: bool,
    /// It is a change, until it is answered.
    pub(crate) inside: Option<Inside>,
}

impl Incoming {
    /// What it counts for while it is in work. A flush costs next to nothing, and a question about allocation waits for moments in which nothing
    /// else is to be done: neither keeps others waiting.
    pub(crate) fn cost(&self) -> Cost {
        match &self.op {
            Op::Read { len, .. } => (Kind::Read, *len as u64),
            Op::Write { data, .. } => (Kind::Write, data.len() as u64),
            Op::Zero { len, .. } => (Kind::Zero, *len),
            Op::Flush | Op::Status { .. } => (Kind::Free, 0),
        }
    }
}

/// A request that has been answered.
#[derive(Clone, Copy)]
pub(crate) struct Ended {
    pub(crate) lane: u64,
    /// Of memory.
    pub(crate) bytes: u64,
    pub(crate) cost: Cost,
}

/// Called once with the outcome of a control command.
pub(crate) type CommandDone = Box<dyn FnOnce(Result<(), IoError>) + Send>;

/// Called once with a consistency point's number.
pub(crate) type MarkDone = Box<dyn FnOnce(Result<u64, MarkError>) + Send>;

/// Called once with how the volume stands in its consistency group.
pub(crate) type CommonDone = Box<dyn FnOnce(Result<CommonState, CommonError>) + Send>;

/// Something other than a request that the thread is told.
pub(crate) enum Message {
    /// A command for the engine.
    Command(Command, CommandDone),
    /// Declare a consistency point with this name.
    Mark(String, MarkDone),
    /// A step of a round of its consistency group: the round, the run that began it, the step.
    Common(u64, u64, CommonStep, CommonDone),
    /// Make a named checkpoint in the store that the backing is, or give one up.
    Checkpoint(CheckpointChange, CheckpointDone),
    /// A critical task waits for outstanding writes of these bytes.
    Promote { offset: u64, len: u64 },
    /// A client whose requests the thread is to fetch.
    Adopt(NewFeed),
    /// The volume's end: stop cleanly, then remove the cache for good if asked, then end the thread.
    End(Ending),
    /// The label in a side file has been written, or not, by the thread that waited for it.
    LabelWritten { well: bool },
    /// Publish the figures.
    Status,
}

/// How a volume ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Dirty data stays in the cache.
    Keep,
    /// Everything is destaged first.
    Destage,
    /// Everything is destaged, and the cache is removed from the volume for good: the backing needs no Forebay.
    Release,
    /// As if the process were killed: nothing is finished or marked. For tests.
    Abandon,
}

#[derive(Default)]
struct State {
    lanes: Lanes<Incoming>,
    messages: VecDeque<Message>,
    /// Bytes of the promotions among the messages, each of which is queued once (P7): writes that are outstanding are bounded.
    promotions: BTreeSet<(u64, u64)>,
    /// Requests and bytes that are queued or under way.
    admitted: usize,
    admitted_bytes: u64,
    /// Callers that wait for room.
    waiting: usize,
    closed: bool,
    /// The volume is to end: what waits is taken, whosesoever it is.
    ending: bool,
    /// When requests were last taken.
    taken_at: Nanos,
    /// The thread that answers for the volume's own what the backing knows of holes.
    surveyor: Option<ThreadId>,
}

impl State {
    fn has_room(&self, lane: u64, bytes: u64) -> bool {
        // A request as large as the whole limit passes when nothing else is there.
        let bytes_fit = self.admitted_bytes + bytes <= REQUEST_BYTES_TOTAL_MAX || self.admitted == 0;
        self.admitted < REQUESTS_MAX && bytes_fit && self.leaves_room(lane, bytes)
    }

    /// Whether enough is left for others: where there are others, a connection gets as much as is still free. So what all have who take what
    /// they can get leaves as much free as each of them has.
    fn leaves_room(&self, lane: u64, bytes: u64) -> bool {
        self.lanes.beside_others(lane).is_none_or(|(own, own_bytes)| {
            let free = REQUEST_BYTES_TOTAL_MAX.saturating_sub(self.admitted_bytes);
            own == 0 || own < REQUESTS_MAX.saturating_sub(self.admitted) && own_bytes + bytes <= free
        })
    }
}

/// See the module's documentation.
pub(crate) struct RequestQueue {
    state: Mutex<State>,
    room: Condvar,
    waker: Waker,
    consumer: ThreadId,
    /// Questions about allocation that are queued or under way.
    questions: Arc<AtomicUsize>,
    pub(crate) feeds: FeedCount,
}

/// Bytes of memory that a request needs while it is under way.
pub(crate) fn bytes_of(op: &Op) -> u64 {
    match op {
        Op::Read { len, .. } => *len as u64,
        Op::Write { data, .. } => data.len() as u64,
        Op::Flush | Op::Zero { .. } | Op::Status { .. } => 0,
    }
}

impl RequestQueue {
    /// A queue to the thread that this waker wakes, which is the calling one.
    pub(crate) fn new(waker: Waker) -> Self {
        let consumer = thread::current().id();
        let (questions, feeds) = (Arc::default(), FeedCount::default());
        Self { state: Mutex::default(), room: Condvar::new(), waker, consumer, questions, feeds }
    }

    /// Whether the caller is the volume's own thread.
    pub(crate) fn is_mine(&self) -> bool {
        self.consumer == thread::current().id()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is a single push, pop or count, so the state is whole even after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another thread that answers requests: the calling one.
    pub(crate) fn consume_from_here(&self) {
        self.lock().surveyor = Some(thread::current().id());
    }

    /// Queues a request; waits while there is no room. A completion that asks for more, on a thread of the volume,
    /// does not wait, because nothing would ever make room for it.
    pub(crate) fn push(&self, incoming: Incoming) {
        let bytes = bytes_of(&incoming.op);
        let mut state = self.lock();
        let answers = self.is_mine() || state.surveyor == Some(thread::current().id());
        let asks = matches!(incoming.op, Op::Status { .. });
        let lane = incoming.origin.lane;
        while !state.closed && !self.has_room(&state, lane, bytes, asks) && !answers {
            state.waiting += 1;
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
        if state.closed {
            drop(state);
            (incoming.done)(Err(IoError::new(ErrorKind::Shutdown, "request to a volume that has stopped")));
            return;
        }
        self.admit(&mut state, incoming, bytes);
        drop(state);
        self.waker.wake();
    }

    /// As [`RequestQueue::push`], for the volume's own thread: gives back what would have to wait, or be refused.
    pub(crate) fn try_push(&self, incoming: Incoming) -> Result<(), Incoming> {
        let bytes = bytes_of(&incoming.op);
        let asks = matches!(incoming.op, Op::Status { .. });
        let mut state = self.lock();
        if state.closed || !self.has_room(&state, incoming.origin.lane, bytes, asks) {
            return Err(incoming);
        }
        self.admit(&mut state, incoming, bytes);
        Ok(())
    }

    fn has_room(&self, state: &State, lane: u64, bytes: u64, asks: bool) -> bool {
        state.has_room(lane, bytes) && !(asks && self.questions.load(Ordering::Relaxed) >= QUESTIONS_MAX)
    }

    fn admit(&self, state: &mut State, incoming: Incoming, bytes: u64) {
        state.admitted += 1;
        state.admitted_bytes += bytes;
        let asks = matches!(incoming.op, Op::Status { .. });
        let incoming = if asks { self.counted(incoming) } else { incoming };
        let (lane, cost) = (incoming.origin.lane, incoming.cost());
        state.lanes.push(lane, incoming, bytes, cost);
    }

    /// A question, which counts as one until it is answered. Its room is given back right after that, which wakes who waits.
    fn counted(&self, question: Incoming) -> Incoming {
        let questions = Arc::clone(&self.questions);
        questions.fetch_add(1, Ordering::Relaxed);
        let answered = question.done;
        let done: Completion = Box::new(move |result| {
            questions.fetch_sub(1, Ordering::Relaxed);
            answered(result);
        });
        Incoming { done, ..question }
    }

    /// Queues a message; false if the thread has ended.
    pub(crate) fn tell(&self, message: Message) -> bool {
        let mut state = self.lock();
        if state.closed {
            return false;
        }
        if let Message::Promote { offset, len } = message
            && !state.promotions.insert((offset, len))
        {
            return true;
        }
        state.messages.push_back(message);
        drop(state);
        self.waker.wake();
        true
    }

    /// Takes all messages, and of the requests those that may be in work beside the others. They stay counted until
    /// [`RequestQueue::release`].
    pub(crate) fn drain(
        &self,
        now: Nanos,
        requests: &mut VecDeque<Incoming>,
        messages: &mut VecDeque<Message>,
    ) {
        let mut state = self.lock();
        state.ending |= state.messages.iter().any(|message| matches!(message, Message::End(_)));
        let ending = state.ending;
        state.lanes.take(now, ending, requests);
        state.taken_at = now;
        messages.append(&mut state.messages);
        state.promotions.clear();
    }

    /// Whether there is nothing to drain.
    pub(crate) fn is_empty(&self, now: Nanos) -> bool {
        let state = self.lock();
        !state.lanes.has_next(now, state.ending) && state.messages.is_empty()
    }

    /// When there will be something to drain although nothing comes: somebody is then alone.
    pub(crate) fn next_change(&self, now: Nanos) -> Option<Nanos> {
        self.lock().lanes.next_change(now)
    }

    /// Whether several connections use the volume.
    pub(crate) fn is_shared(&self) -> bool {
        let state = self.lock();
        state.lanes.are_several(state.taken_at)
    }

    /// A piece of a request has been carried out, and this is the rest of it, which waits for its turn.
    pub(crate) fn push_rest(&self, done: Cost, rest: Incoming) {
        let (lane, cost) = (rest.origin.lane, rest.cost());
        let mut state = self.lock();
        let now = state.taken_at;
        state.lanes.leaves_work(lane, done, now);
        state.lanes.push_rest(lane, rest, cost);
    }

    /// Gives back the room of requests that have ended.
    pub(crate) fn release(&self, ended: &[Ended]) {
        let mut state = self.lock();
        let now = state.taken_at;
        for Ended { lane, bytes, cost } in ended {
            state.admitted -= 1;
            state.admitted_bytes -= bytes;
            state.lanes.leaves_work(*lane, *cost, now);
            state.lanes.ended(*lane, *bytes);
        }
        let wake = state.waiting > 0;
        drop(state);
        if wake {
            self.room.notify_all();
        }
    }

    /// Refuses everything from now on, and hands out what is queued.
    pub(crate) fn close(&self) -> (VecDeque<Incoming>, VecDeque<Message>) {
        let mut state = self.lock();
        state.closed = true;
        let left = (state.lanes.clear(), std::mem::take(&mut state.messages));
        drop(state);
        self.room.notify_all();
        left
    }
}

#[cfg(test)]
mod tests {
    use forebay_block::Reply;
    use forebay_device::Ring;

    use super::*;

    #[test]
    fn what_is_promoted_again_and_again_is_queued_once() {
        let ring = Ring::new().unwrap();
        let queue = RequestQueue::new(ring.waker());
        let drained = || {
            let (mut requests, mut messages) = (VecDeque::new(), VecDeque::new());
            queue.drain(Nanos(0), &mut requests, &mut messages);
            let promoted = |message: &Message| match message {
                Message::Promote { offset, len } => Some((*offset, *len)),
                _ => None,
            };
            messages.iter().filter_map(promoted).collect::<Vec<_>>()
        };
        for _ in 0..3 {
            for (offset, len) in [(4096, 512), (0, 512), (4096, 1024)] {
                assert!(queue.tell(Message::Promote { offset, len }));
            }
        }
        assert_eq!(drained(), [(4096, 512), (0, 512), (4096, 1024)]);
        assert_eq!(drained(), []);
        // Somebody may come to wait for it once more, when it could not be promoted before.
        assert!(queue.tell(Message::Promote { offset: 0, len: 512 }));
        assert_eq!(drained(), [(0, 512)]);
    }

    #[test]
    fn questions_leave_room_for_others_while_nobody_answers_them() {
        let ring = Ring::new().unwrap();
        let queue = RequestQueue::new(ring.waker());
        let incoming = |op| Incoming {
            op,
            origin: Origin::default(),
            done: Box::new(|_| {}),
            identified: true,
            inside: None,
        };
        let question = || incoming(Op::Status { offset: 0, len: 512, extents_max: 1 });
        let (asked, pushed) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..=QUESTIONS_MAX {
                    queue.push(question());
                    asked.fetch_add(1, Ordering::SeqCst);
                }
            });
            while asked.load(Ordering::SeqCst) < QUESTIONS_MAX {
                thread::yield_now();
            }
            scope
                .spawn(|| {
                    queue.push(incoming(Op::Flush));
                    pushed.fetch_add(1, Ordering::SeqCst);
                })
                .join()
                .unwrap();
            assert_eq!((asked.load(Ordering::SeqCst), pushed.load(Ordering::SeqCst)), (QUESTIONS_MAX, 1));
            let (mut requests, mut messages) = (VecDeque::new(), VecDeque::new());
            queue.drain(Nanos(0), &mut requests, &mut messages);
            (requests.pop_front().unwrap().done)(Ok(Reply::Done));
            queue.release(&[Ended { lane: 0, bytes: 0, cost: (Kind::Free, 0) }]);
        });
        assert_eq!(asked.load(Ordering::SeqCst), QUESTIONS_MAX + 1);
    }
}
