//! What the owner of a remote device and the threads that speak to its store share.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_block::{DeviceResult, IoError};

use crate::device::Sign;
use crate::remote::bell::Bell;
use crate::remote::state::State;
use crate::remote::{Ending, Parts, Request};
use crate::ring::Waker;

/// A device that is closed waits for so long until its session has ended.
const CLOSE_WAIT: Duration = Duration::from_millis(200);

/// What there is to do on a line.
#[derive(Debug)]
pub(crate) enum Work<R> {
    /// Send this request, whose end is told with this cookie.
    Send(u64, R),
    /// Nothing more in this session.
    Stop,
    /// Nothing more at all: the device is closed.
    Close,
}

/// See the module's documentation. Each line has a thread that sends, and is one of [`Exchange::next`].
pub(crate) struct Exchange<R> {
    state: Mutex<State<R>>,
    /// Of each line: something is to be sent over it, may be sent again, or is not to be sent any more.
    work: Box<[Condvar]>,
    /// The device is closed, or a session has ended.
    over: Condvar,
    /// So many requests are sent over a line and have not ended, at most.
    depth_max: usize,
    bell: Bell,
}

/// The owner's side.
impl<R: Request> Exchange<R> {
    /// Without a session, and not away either.
    pub(crate) fn new(lines: usize, depth_max: usize, waker: Waker) -> Self {
        let work = (0..lines).map(|_| Condvar::new()).collect();
        let (state, bell) = (Mutex::new(State::new(lines)), Bell::new(waker));
        Self { state, work, over: Condvar::new(), depth_max, bell }
    }

    /// A thread that panics with the lock held leaves a state that is whole: nothing in it can panic half-way.
    fn state(&self) -> MutexGuard<'_, State<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an operation on a line. `tag` is its owner's name for it.
    pub(crate) fn submit(&self, tag: u64, line: usize, parts: Parts<R>) {
        self.state().submit(tag, line, parts);
        self.work[line].notify_one();
    }

    /// Appends the operations that have ended.
    pub(crate) fn poll(&self, done: &mut Vec<(u64, DeviceResult)>) {
        self.bell.heard();
        self.state().poll(done);
    }

    /// Whether something has ended that was not polled.
    pub(crate) fn has_done(&self) -> bool {
        self.state().has_done()
    }

    /// Requests that are not sent yet.
    pub(crate) fn waiting(&self) -> usize {
        self.state().waiting()
    }

    /// For how long there has been no session.
    pub(crate) fn away(&self) -> Option<Duration> {
        self.state().away_since.map(|since| since.elapsed())
    }

    /// See [`Device::recognize_by`](crate::device::Device::recognize_by).
    pub(crate) fn recognize_by(&self, sign: Option<Sign>) {
        self.state().sign = sign;
    }

    /// Nothing more is wanted. Waits for a moment until the session has ended.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closing = true;
        self.wake_all();
        let in_session = |state: &mut State<R>| state.in_session;
        drop(self.over.wait_timeout_while(state, CLOSE_WAIT, in_session));
    }
}

/// The side of those who speak to the store.
impl<R: Request> Exchange<R> {
    /// Waits for what there is to do on a line.
    pub(crate) fn next(&self, line: usize) -> Work<R> {
        let idle =
            |state: &mut State<R>| !state.closing && !state.stopped && !state.has_next(line, self.depth_max);
        let mut state =
            self.work[line].wait_while(self.state(), idle).unwrap_or_else(PoisonError::into_inner);
        if state.closing {
            return Work::Close;
        }
        if state.stopped {
            return Work::Stop;
        }
        match state.next(line, self.depth_max, Instant::now()) {
            Some((cookie, request)) => Work::Send(cookie, request),
            // There is one: nobody else takes from this line.
            None => Work::Stop,
        }
    }

    /// What can be told of a request that is sent over a line and has not ended.
    pub(crate) fn of_sent<T>(&self, line: usize, cookie: u64, what: impl FnOnce(&R) -> T) -> Option<T> {
        self.state().sent(line, cookie).map(what)
    }

    /// For how long the oldest request that is sent over a line has not ended.
    pub(crate) fn owes_for(&self, line: usize) -> Option<Duration> {
        self.state().owed_since(line).map(|since| since.elapsed())
    }

    /// A request that was sent over a line has ended. That of a session that was lost meanwhile changes nothing.
    pub(crate) fn end(&self, line: usize, cookie: u64, ending: Ending) {
        self.state().end(line, cookie, ending);
        self.work[line].notify_one();
        self.bell.ring();
    }

    /// A session begins, and what waits is sent in it; false if none is wanted any more.
    ///
    /// # Panics
    /// If what was sent in an earlier one may still be carried out, see [`Exchange::settle`].
    pub(crate) fn begin(&self) -> bool {
        let mut state = self.state();
        if !state.closing {
            state.begin();
        }
        !state.closing
    }

    /// Nothing more is sent in this session; what is answered counts. False if the device is closed, whose end that is anyway.
    pub(crate) fn stop(&self) -> bool {
        let mut state = self.state();
        state.stopped = true;
        self.wake_all();
        !state.closing
    }

    /// Whether nothing more is to be sent in this session.
    pub(crate) fn is_stopped(&self) -> bool {
        self.state().stopped
    }

    /// Whether nothing more is wanted at all.
    pub(crate) fn is_closing(&self) -> bool {
        self.state().closing
    }

    /// The session is lost, and what was not answered is sent in the next one; false if none is wanted.
    pub(crate) fn lose(&self) -> bool {
        let mut state = self.state();
        state.lose(Instant::now());
        self.wake_all();
        let goes_on = !state.closing;
        drop(state);
        self.bell.ring();
        goes_on
    }

    /// Nothing that was sent in an earlier session is carried out any more: it was shut out, or has had its time.
    pub(crate) fn settle(&self) {
        self.state().settle();
    }

    /// The store was not reached for this reason. What has waited for it for too long fails.
    pub(crate) fn not_reached(&self, why: &IoError) {
        self.state().give_up(why, Instant::now());
        self.bell.ring();
    }

    /// Waits for so long, unless the device is closed before: false then.
    pub(crate) fn pause(&self, time: Duration) -> bool {
        let waiting = self.over.wait_timeout_while(self.state(), time, |state| !state.closing);
        let (state, _) = waiting.unwrap_or_else(PoisonError::into_inner);
        !state.closing
    }

    /// What a store must show that is reached anew.
    pub(crate) fn sign(&self) -> Option<Sign> {
        self.state().sign.clone()
    }

    /// All that wait for anything but an answer look again.
    fn wake_all(&self) {
        self.work.iter().chain([&self.over]).for_each(Condvar::notify_all);
    }
}
