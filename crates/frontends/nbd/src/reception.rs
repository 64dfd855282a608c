//! The thread that lets connections in, and the table of those that are there.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use forebay_block::words_of;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::connection::{Connection, Context};
use crate::counters::Visits;
use crate::listener::Listener;
use crate::lock::hold;
use crate::places::{Begun, Full, Places};
use crate::socket::Socket;

/// Pause before accepting again when the system lacks the means for a further connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Connections that are accepted before those that wait get a turn.
const ACCEPT_MAX: usize = 32;

/// Everybody who is there.
pub(crate) struct Table {
    pub(crate) connections: BTreeMap<u64, Arc<Connection>>,
    pub(crate) places: Places<Socket>,
}

/// What the server, its reception and its connections share.
pub(crate) struct Shared {
    pub(crate) context: Context,
    pub(crate) table: Mutex<Table>,
    /// A connection ended.
    ended: Condvar,
    pub(crate) visits: Arc<Visits>,
    /// Wakes the reception.
    bell: OwnedFd,
}

impl Shared {
    pub(crate) fn new(context: Context) -> io::Result<Self> {
        let places = Places::new(context.limits);
        Ok(Self {
            context,
            table: Mutex::new(Table { connections: BTreeMap::new(), places }),
            ended: Condvar::new(),
            visits: Arc::default(),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    pub(crate) fn stopping(&self) -> bool {
        self.context.stopping.load(Ordering::SeqCst)
    }

    /// Has the reception look again.
    pub(crate) fn ring(&self) {
        // It fails only when the reception is about to look anyway.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// The reception: accepts, lets in, and shows out, until the server stops.
    pub(crate) fn receive(self: &Arc<Self>, listeners: &[Arc<Listener>]) {
        let mut failing = false;
        while !self.stopping() {
            let wake_at = self.turn(Instant::now());
            let ready = self.wait(listeners, wake_at);
            for listener in
                listeners.iter().zip(ready).filter_map(|(listener, ready)| ready.then_some(listener))
            {
                if let Err(error) = self.accept_from(listener) {
                    if !failing {
                        tracing::warn!("cannot accept connections for now: {}", words_of(&error));
                    }
                    failing = true;
                    thread::sleep(ACCEPT_PAUSE);
                } else {
                    failing = false;
                }
            }
        }
    }

    /// Waits for connections, the bell, or a moment; says for each listener whether it has something.
    fn wait(&self, listeners: &[Arc<Listener>], until: Option<Instant>) -> Vec<bool> {
        let mut fds: Vec<PollFd<'_>> =
            listeners.iter().map(|l| PollFd::from_borrowed_fd(l.fd(), PollFlags::IN)).collect();
        fds.push(PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN));
        // Rounded up, so that the moment has come when it wakes.
        let left = until.map(|at| at.saturating_duration_since(Instant::now()) + Duration::from_millis(1));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        // An interrupted wait finds nothing and is taken up again.
        let _ = poll(&mut fds, timeout.as_ref());
        let mut rings = [0; 8];
        let _ = rustix::io::read(&self.bell, &mut rings);
        fds.iter().take(listeners.len()).map(|fd| !fd.revents().is_empty()).collect()
    }

    fn accept_from(self: &Arc<Self>, listener: &Listener) -> io::Result<()> {
        for _ in 0..ACCEPT_MAX {
            match listener.accept() {
                Ok(socket) => self.arrived(socket),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // The client has gone, or the listener is being closed.
                Err(_) if self.stopping() => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn arrived(self: &Arc<Self>, socket: Socket) {
        let mut table = hold(&self.table);
        if self.stopping() {
            return;
        }
        let refused = table.places.arrive(socket.source(), socket, Instant::now());
        drop(table);
        if let Some(socket) = refused {
            self.refuse(&socket, "too many wait for a handshake");
        }
    }

    fn refuse(&self, socket: &Socket, why: &str) {
        self.visits.refuse();
        if self.context.complaints.may_say(Instant::now()) {
            tracing::warn!(peer = socket.peer(), "connection refused: {why}");
        }
    }

    /// Shows out whose time is over, lets in who may come in; returns when there will be more of that.
    fn turn(self: &Arc<Self>, now: Instant) -> Option<Instant> {
        if let Some(left_out) = self.context.complaints.left_out(now) {
            tracing::warn!(left_out, "more connections were refused or closed than are told of one by one");
        }
        let mut table = hold(&self.table);
        let (expired, given_up) = table.places.expire(now);
        for id in expired {
            if let Some(connection) = table.connections.get(&id) {
                connection.cut("the handshake took too long");
            }
        }
        for socket in given_up {
            self.refuse(&socket, "no place for its handshake came free in time");
        }
        let mut begun = Vec::new();
        while let Some(next) = table.places.next(now) {
            begun.push(self.let_in(&mut table, next));
        }
        let changes = [table.places.next_change(), self.context.complaints.next_at()];
        drop(table);
        begun.into_iter().for_each(|connection| self.start(connection));
        changes.into_iter().flatten().min()
    }

    /// Takes a connection into the table, at the expense of another one if it must be.
    fn let_in(&self, table: &mut Table, Begun { id, what, displaced }: Begun<Socket>) -> Arc<Connection> {
        if let Some(connection) = displaced.and_then(|displaced| table.connections.get(&displaced)) {
            self.visits.displace();
            connection.cut("it does not get on with its handshake, and others wait");
        }
        let connection = Arc::new(Connection::new(id, what));
        table.connections.insert(id, Arc::clone(&connection));
        connection
    }

    /// Gives a connection its thread.
    fn start(self: &Arc<Self>, connection: Arc<Connection>) {
        let id = connection.id;
        let presence = Presence { shared: Arc::clone(self), id };
        let thread = thread::Builder::new().name(format!("nbd-recv-{id}"));
        // If none can be had, its presence goes with the closure.
        if let Err(error) = thread.spawn(move || connection.run(&presence))
            && self.context.complaints.may_say(Instant::now())
        {
            tracing::warn!(id, "connection refused: cannot start its thread: {}", words_of(&error));
        }
    }

    /// Waits until no connection is left, but no longer than `wait`; returns those that are left.
    pub(crate) fn wait_ended(&self, wait: Duration) -> Vec<Arc<Connection>> {
        let deadline = Instant::now() + wait;
        let mut table = hold(&self.table);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if table.connections.is_empty() || left.is_zero() {
                return table.connections.values().map(Arc::clone).collect();
            }
            table = self.ended.wait_timeout(table, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A connection's place in the table, given up when its thread ends, however it ends.
pub(crate) struct Presence {
    shared: Arc<Shared>,
    id: u64,
}

impl Presence {
    pub(crate) fn context(&self) -> &Context {
        &self.shared.context
    }

    /// The handshake got on by a step.
    pub(crate) fn got_on(&self) {
        hold(&self.shared.table).places.got_on(self.id, Instant::now());
    }

    /// The handshake has ended well.
    pub(crate) fn become_client(&self) -> Result<(), Full> {
        let mut table = hold(&self.shared.table);
        let became = table.places.become_client(self.id);
        self.shared.visits.are_there(table.places.clients());
        drop(table);
        match became {
            Ok(()) => self.shared.ring(),
            Err(_) => self.shared.visits.refuse(),
        }
        became
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        let mut table = hold(&self.shared.table);
        table.connections.remove(&self.id);
        table.places.leave(self.id);
        self.shared.visits.are_there(table.places.clients());
        // What was left out of the log is told in time, though nobody comes.
        let looks = table.places.somebody_waits() || self.shared.context.complaints.next_at().is_some();
        drop(table);
        self.shared.ended.notify_all();
        if looks {
            self.shared.ring();
        }
    }
}
