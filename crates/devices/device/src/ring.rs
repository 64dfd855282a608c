//! The reactor of a volume's thread: one io_uring that all of the thread's devices share, and a waker for the rest
//! of the process.
//!
//! A [`Transfer`] that the kernel works on is owned by the reactor until its completion, whatever happens to the
//! device that started it, so that the kernel never writes into memory that has been given back.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};

use crate::transfer::Transfer;

/// Entries of the submission queue. More operations than this in one turn of the loop cost another system call.
const SUBMISSIONS: u32 = 256;
/// Entries of the completion queue: covers [`CLIENTS_MAX`] devices at their full depth.
const COMPLETIONS: u32 = 2048;
/// Devices that can share a ring at a time.
const CLIENTS_MAX: usize = 8;
/// How long an abandoned ring waits for operations of a stuck device before it leaks their memory.
const DRAIN_WAITS_MAX: u32 = 50;
/// One step of that wait.
const DRAIN_STEP: Duration = Duration::from_millis(100);
/// The completion of the waker's poll carries this instead of a slot number.
const WAKE: u64 = u64::MAX;
/// And that of an operation whose end means nothing this.
const NOTHING: u64 = u64::MAX - 1;
/// Those of watched sockets carry this and the number of the watch.
const WATCH: u64 = 1 << 62;

/// Wakes the thread that sleeps in [`Ring::submit_and_wait`]; can be cloned and used from any thread.
///
/// While that thread is awake a wake costs a fence and a load. The protocol is Dekker's: the waking side publishes
/// its work, fences, reads `asleep`; the sleeping side sets `asleep`, fences, looks for work. At least one of the two
/// sees the other, so no work is slept over.
#[derive(Clone, Debug)]
pub struct Waker(Arc<WakerState>);

#[derive(Debug)]
struct WakerState {
    asleep: AtomicBool,
    event: File,
}

impl Waker {
    fn new() -> io::Result<Self> {
        // SAFETY: eventfd takes no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call above made this descriptor and nobody else knows it.
        let event = unsafe { File::from_raw_fd(fd) };
        Ok(Self(Arc::new(WakerState { asleep: AtomicBool::new(false), event })))
    }

    /// Makes the ring's thread look for work. Call it after the work was published.
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.0.asleep.load(Ordering::Relaxed) && self.0.asleep.swap(false, Ordering::AcqRel) {
            // The only failure of a write to an eventfd is a full counter (2^64 - 2 wakes), and then it is readable.
            let _ = (&self.0.event).write(&1u64.to_ne_bytes());
        }
    }

    /// The same for who publishes where the ring's thread does not look before it sleeps: the wake counts even if it comes
    /// before the sleep.
    pub(crate) fn wake_always(&self) {
        // As above.
        let _ = (&self.0.event).write(&1u64.to_ne_bytes());
    }

    fn announce_sleep(&self) {
        self.0.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    fn awake(&self) {
        self.0.asleep.store(false, Ordering::Relaxed);
    }
}

/// Names something that the ring's thread waits for beside its devices, for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch(u64);

struct Watched {
    watch: Watch,
    fd: RawFd,
    armed: bool,
}

/// What a watch has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The watch.
    pub watch: Watch,
    /// Nothing follows what is there to be read now: the peer has ended its side, or is gone.
    pub ends: bool,
}

/// Names a device among those that share a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientId(usize);

/// The ends of a client's transfers that it has not yet fetched.
type Mail = Vec<(Box<Transfer>, i32)>;

/// A place for a device.
enum Client {
    Free,
    Joined(Mail),
    /// The device is gone; this many of its transfers are not.
    Left(usize),
}

struct Held {
    client: ClientId,
    transfer: Box<Transfer>,
}

struct Reactor {
    uring: IoUring,
    clients: Vec<Client>,
    /// Transfers in the kernel's hands; the index is the completion's user data.
    held: Vec<Option<Held>>,
    free: Vec<usize>,
    in_flight: usize,
    mail: usize,
    waker: Waker,
    wake_armed: bool,
    watched: Vec<Watched>,
    watches: u64,
    /// Watches that have ended for their owners and not for the kernel.
    unwatched: Vec<Watch>,
    /// What watches have seen and nobody has been told.
    seen: Vec<Seen>,
}

/// A shared io_uring of one thread. Cloning shares it.
#[derive(Clone)]
pub struct Ring(Rc<RefCell<Reactor>>);

impl Ring {
    /// A ring for the calling thread.
    ///
    /// # Errors
    /// If the kernel has no io_uring, or an administrator has forbidden it.
    pub fn new() -> io::Result<Self> {
        // Completions are delivered only when this thread asks for them: no interrupt of its work, half the cost.
        let uring = IoUring::<squeue::Entry, cqueue::Entry>::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_cqsize(COMPLETIONS)
            .build(SUBMISSIONS)
            .or_else(|_| IoUring::builder().setup_cqsize(COMPLETIONS).build(SUBMISSIONS))
            .map_err(|e| {
                let why = "io_uring is not available (see sysctl kernel.io_uring_disabled, or the container's seccomp profile)";
                io::Error::new(e.kind(), format!("{why}: {}", forebay_block::words_of(&e)))
            })?;
        Ok(Self(Rc::new(RefCell::new(Reactor {
            uring,
            clients: Vec::new(),
            held: Vec::new(),
            free: Vec::new(),
            in_flight: 0,
            mail: 0,
            waker: Waker::new()?,
            wake_armed: false,
            watched: Vec::new(),
            watches: 0,
            unwatched: Vec::new(),
            seen: Vec::new(),
        }))))
    }

    /// A handle that wakes this ring's thread.
    pub fn waker(&self) -> Waker {
        self.0.borrow().waker.clone()
    }

    /// Submits what devices have started and sleeps until an operation ends, a [`Waker`] is used or `timeout` is
    /// over (`None`: without limit).
    ///
    /// `idle` is asked after the intention to sleep has been announced to the wakers; it must look again at whatever
    /// they publish, and answer false if there is work, which cancels the sleep. It must not use the ring.
    ///
    /// # Errors
    /// Those of `io_uring_enter`, but for interruption and timeout.
    pub fn submit_and_wait(&self, timeout: Option<Duration>, idle: impl FnOnce() -> bool) -> io::Result<()> {
        self.0.borrow_mut().turn(timeout, idle)
    }

    /// Wakes the ring's thread from now on also when there is something to read from `fd`, or its peer is gone: each time that more comes.
    /// The kernel keeps the file until [`Ring::unwatch`], even if the descriptor is closed.
    pub fn watch(&self, fd: RawFd) -> Watch {
        let mut reactor = self.0.borrow_mut();
        reactor.watches += 1;
        let watch = Watch(reactor.watches);
        reactor.watched.push(Watched { watch, fd, armed: false });
        watch
    }

    /// Ends a watch. The kernel gives the file up in the next turn of the ring.
    pub fn unwatch(&self, watch: Watch) {
        self.0.borrow_mut().unwatch(watch);
    }

    /// Fetches what watches have seen since the last call, each at most once.
    pub fn take_seen(&self, into: &mut Vec<Seen>) {
        into.append(&mut self.0.borrow_mut().seen);
    }

    /// Makes room for a device.
    pub(crate) fn join(&self) -> io::Result<ClientId> {
        let mut reactor = self.0.borrow_mut();
        let place = reactor.clients.iter().position(|c| matches!(c, Client::Free));
        let place = place.unwrap_or(reactor.clients.len());
        if place == CLIENTS_MAX {
            return Err(io::Error::other(format!("more than {CLIENTS_MAX} devices on one ring")));
        }
        if place == reactor.clients.len() {
            reactor.clients.push(Client::Free);
        }
        reactor.clients[place] = Client::Joined(Vec::new());
        Ok(ClientId(place))
    }

    /// Forgets a device. What the kernel still works on stays in the reactor's hands and its end is dropped.
    /// Returns whether nothing was left under way.
    pub(crate) fn leave(&self, client: ClientId) -> bool {
        let mut reactor = self.0.borrow_mut();
        let left = reactor.held.iter().flatten().filter(|h| h.client == client).count();
        let place = if left == 0 { Client::Free } else { Client::Left(left) };
        if let Client::Joined(mail) = std::mem::replace(&mut reactor.clients[client.0], place) {
            reactor.mail -= mail.len();
        }
        left == 0
    }

    /// Hands a transfer to the kernel.
    pub(crate) fn start(&self, client: ClientId, fd: RawFd, transfer: Box<Transfer>) {
        self.0.borrow_mut().start(client, fd, transfer);
    }

    /// Fetches the ends of a device's transfers.
    pub(crate) fn take_mail(&self, client: ClientId, into: &mut Mail) {
        let mut reactor = self.0.borrow_mut();
        if let Client::Joined(mail) = &mut reactor.clients[client.0] {
            let n = mail.len();
            into.append(mail);
            reactor.mail -= n;
        }
    }
}

impl Reactor {
    fn start(&mut self, client: ClientId, fd: RawFd, transfer: Box<Transfer>) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.held.push(None);
            self.held.len() - 1
        });
        let held = self.held[slot].insert(Held { client, transfer });
        let entry = held.transfer.entry(Fd(fd)).user_data(slot as u64);
        // SAFETY: the memory that the entry names belongs to the transfer, which `held` keeps until its completion.
        match unsafe { self.push(&entry) } {
            Ok(()) => self.in_flight += 1,
            Err(e) => self.deliver(slot, -e.raw_os_error().unwrap_or(libc::EIO)),
        }
    }

    /// Queues an entry; submits first if the queue is full.
    ///
    /// # Safety
    /// What the entry points to must stay valid until its completion.
    unsafe fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: as the caller's.
        if unsafe { self.uring.submission().push(entry) }.is_ok() {
            return Ok(());
        }
        match self.uring.submit() {
            Ok(_) => {}
            Err(e) if is_passing(&e) => self.reap(),
            Err(e) => return Err(e),
        }
        // SAFETY: as the caller's.
        unsafe { self.uring.submission().push(entry) }.map_err(|_| io::Error::from_raw_os_error(libc::EBUSY))
    }

    fn turn(&mut self, timeout: Option<Duration>, idle: impl FnOnce() -> bool) -> io::Result<()> {
        match self.poll_anew() {
            // What could not be queued now is in the next turn, which comes at once.
            Err(e) if !is_passing(&e) => Err(e),
            polls => self.turn_with(if polls.is_ok() { timeout } else { Some(Duration::ZERO) }, idle),
        }
    }

    fn turn_with(&mut self, timeout: Option<Duration>, idle: impl FnOnce() -> bool) -> io::Result<()> {
        let ready = self.mail > 0
            || !self.seen.is_empty()
            || !self.uring.completion().is_empty()
            || timeout == Some(Duration::ZERO);
        let result = if ready {
            self.submit_only()
        } else {
            self.waker.announce_sleep();
            let result = if idle() { self.sleep(timeout) } else { self.submit_only() };
            self.waker.awake();
            result
        };
        self.reap();
        match result {
            Err(e) if !is_passing(&e) => Err(e),
            _ => Ok(()),
        }
    }

    fn sleep(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let Some(timeout) = timeout else {
            return self.uring.submit_and_wait(1).map(drop);
        };
        let time = Timespec::from(timeout);
        let args = SubmitArgs::new().timespec(&time);
        self.uring.submitter().submit_with_args(1, &args).map(drop)
    }

    /// Submits and lets the kernel deliver what has ended, without waiting.
    fn submit_only(&mut self) -> io::Result<()> {
        const ENTER_GETEVENTS: u32 = 1;
        let (queued, pending) = {
            let submission = self.uring.submission();
            (submission.len(), submission.taskrun() || submission.cq_overflow())
        };
        if queued == 0 && !pending {
            return Ok(());
        }
        let queued = u32::try_from(queued).unwrap_or(SUBMISSIONS);
        // SAFETY: no signal mask is passed; the entries' memory is held as `push` demands.
        unsafe { self.uring.submitter().enter::<libc::sigset_t>(queued, 0, ENTER_GETEVENTS, None) }.map(drop)
    }

    /// Queues what the kernel is to wait for from now on, and what not any more.
    fn poll_anew(&mut self) -> io::Result<()> {
        self.arm_waker()?;
        self.disarm_unwatched()?;
        self.arm_watches()
    }

    fn arm_waker(&mut self) -> io::Result<()> {
        if self.wake_armed {
            return Ok(());
        }
        let event = Fd(self.waker.0.event.as_raw_fd());
        // Multi-shot: fires at each write to the eventfd, whose counter therefore need not be read.
        let entry = opcode::PollAdd::new(event, libc::POLLIN as u32).multi(true).build().user_data(WAKE);
        // SAFETY: a poll names no memory, and the waker's descriptor lives as long as the ring.
        unsafe { self.push(&entry) }?;
        self.wake_armed = true;
        Ok(())
    }

    fn arm_watches(&mut self) -> io::Result<()> {
        for n in 0..self.watched.len() {
            let Watched { watch, fd, armed: false } = self.watched[n] else { continue };
            let mask = libc::POLLIN | libc::POLLRDHUP;
            let poll = opcode::PollAdd::new(Fd(fd), mask as u32).multi(true).build();
            // SAFETY: a poll names no memory, and the kernel holds the file.
            unsafe { self.push(&poll.user_data(WATCH | watch.0)) }?;
            self.watched[n].armed = true;
        }
        Ok(())
    }

    fn unwatch(&mut self, watch: Watch) {
        self.seen.retain(|seen| seen.watch != watch);
        let Some(n) = self.watched.iter().position(|watched| watched.watch == watch) else { return };
        if self.watched.swap_remove(n).armed {
            self.unwatched.push(watch);
        }
    }

    fn disarm_unwatched(&mut self) -> io::Result<()> {
        while let Some(watch) = self.unwatched.last() {
            // To remove a poll whose file has just become readable fails and leaves it armed; to cancel it does not.
            let entry = opcode::AsyncCancel::new(WATCH | watch.0).build().user_data(NOTHING);
            // SAFETY: it names no memory.
            unsafe { self.push(&entry) }?;
            self.unwatched.pop();
        }
        Ok(())
    }

    /// A watch has seen something, or its poll has failed; unless `more` is true it will not again.
    fn saw(&mut self, watch: Watch, result: i32, more: bool) {
        let Some(watched) = self.watched.iter_mut().find(|watched| watched.watch == watch) else {
            // Of one that has ended nothing is left in the kernel.
            if !more {
                self.unwatched.retain(|unwatched| *unwatched != watch);
            }
            return;
        };
        watched.armed &= more;
        let ends = result >= 0 && result & i32::from(libc::POLLRDHUP | libc::POLLHUP) != 0;
        match self.seen.iter_mut().find(|seen| seen.watch == watch) {
            Some(seen) => seen.ends |= ends,
            None => self.seen.push(Seen { watch, ends }),
        }
    }

    fn reap(&mut self) {
        loop {
            let next = self.uring.completion().next();
            let Some(entry) = next else { return };
            if entry.user_data() == WAKE {
                self.wake_armed = cqueue::more(entry.flags());
                continue;
            }
            if entry.user_data() == NOTHING {
                continue;
            }
            if entry.user_data() & WATCH != 0 {
                let watch = Watch(entry.user_data() & !WATCH);
                self.saw(watch, entry.result(), cqueue::more(entry.flags()));
                continue;
            }
            self.in_flight -= 1;
            self.deliver(entry.user_data() as usize, entry.result());
        }
    }

    fn deliver(&mut self, slot: usize, result: i32) {
        let Some(held) = self.held[slot].take() else {
            return;
        };
        self.free.push(slot);
        let client = &mut self.clients[held.client.0];
        match client {
            Client::Joined(mail) => {
                mail.push((held.transfer, result));
                self.mail += 1;
            }
            Client::Left(1) => *client = Client::Free,
            Client::Left(n) => *n -= 1,
            Client::Free => {}
        }
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        for _ in 0..DRAIN_WAITS_MAX {
            if self.in_flight == 0 {
                return;
            }
            // An error here leaves operations under way, which the lines below the loop deal with.
            let _ = self.turn(Some(DRAIN_STEP), || true);
            self.mail = 0;
            self.seen.clear();
        }
        if self.in_flight > 0 {
            // A device is stuck: the kernel may yet write to these buffers, so they are never given back.
            std::mem::forget(std::mem::take(&mut self.held));
        }
    }
}

/// Errors of `io_uring_enter` that mean "look at the completions and come again".
fn is_passing(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EINTR | libc::ETIME | libc::EBUSY | libc::EAGAIN))
}

#[cfg(test)]
mod tests;
