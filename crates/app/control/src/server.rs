//! The daemon's end of the control socket.

use std::collections::HashMap;
use std::io::{self, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use forebay_guard::{BindError, Bound, SocketRights, bind, prepare_directory};

use crate::lines::{LineLimits, NoLine, read_line};
use crate::protocol::{Answer, ControlError, FailureKind, Line, Progress, Request, parse_request};

/// Connections served at a time. A further one takes the place of the one that has been idle for longest; if a command is under way
/// on all, it is told so and closed.
pub const CONNECTIONS_MAX: usize = 32;

/// Longest request in bytes, its end of line included.
pub const LINE_BYTES_MAX: usize = 64 * 1024;

/// A connection on which nothing has been asked for this long from its beginning is closed: who connects has something to ask.
const FIRST_MAX: Duration = Duration::from_secs(10);

/// A request whose end has not come so long after its first byte is given up.
const REQUEST_MAX: Duration = Duration::from_secs(10);

/// A connection on which nothing more is asked for this long is closed, so that forgotten ones do not use up the limit.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// A client that does not take its answer for this long is given up.
const WRITE_MAX: Duration = Duration::from_secs(10);

/// How long [`Server::stop`] waits for commands under way to be answered.
const STOP_MAX: Duration = Duration::from_secs(5);

/// What carries out the commands: the daemon.
pub trait Controller: Send + Sync + 'static {
    /// Carries out one command, on a thread of its connection; may block. `progress` may be called any number of times
    /// and returns false once the client has gone, after which there is nobody to answer.
    ///
    /// # Errors
    /// What the client is told.
    fn handle(
        &self,
        request: Request,
        progress: &mut dyn FnMut(Progress) -> bool,
    ) -> Result<Answer, ControlError>;
}

/// A connection that is open.
struct Connection {
    stream: UnixStream,
    /// A command is under way on it.
    busy: bool,
    /// Since when that is so, or not.
    since: Instant,
}

impl Connection {
    /// Something has come that its thread has not read yet.
    fn has_asked(&self) -> bool {
        rustix::io::ioctl_fionread(&self.stream).is_ok_and(|bytes| bytes > 0)
    }
}

/// Connections that are open, by number.
#[derive(Default)]
struct Connections {
    open: HashMap<u64, Connection>,
    stopping: bool,
}

impl Connections {
    /// Makes room for one more, at the expense of the one that has been idle for longest; false if none is idle. One whose request waits
    /// to be read goes last: however fast others connect, they close none that has asked.
    fn make_room(&mut self) -> bool {
        if self.open.len() < CONNECTIONS_MAX {
            return true;
        }
        let idle = self.open.iter().filter(|(_, connection)| !connection.busy);
        let longest = idle.min_by_key(|(_, connection)| (connection.has_asked(), connection.since));
        let Some(number) = longest.map(|(number, _)| *number) else {
            return false;
        };
        if let Some(connection) = self.open.remove(&number) {
            let _ = connection.stream.shutdown(Shutdown::Both);
        }
        true
    }
}

#[derive(Default)]
struct Shared {
    connections: Mutex<Connections>,
    closed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Connections> {
        // The table is changed by single inserts and removals, so it is whole even after a panic elsewhere.
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A control socket that is being served.
pub struct Server {
    bound: Arc<Bound>,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

impl Server {
    /// Makes the socket at `path` (see [`prepare_directory`] and [`bind`]) and serves it with threads of its own until [`Server::stop`] or drop.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn start(path: &Path, controller: Arc<dyn Controller>) -> Result<Self, BindError> {
        let io = |source: io::Error| BindError::Io { path: path.to_owned(), source };
        prepare_directory(path)?;
        let bound = Arc::new(bind(path, SocketRights::default())?);
        let shared = Arc::new(Shared::default());
        let acceptor = {
            let (bound, shared) = (Arc::clone(&bound), Arc::clone(&shared));
            thread::Builder::new()
                .name("control".into())
                .spawn(move || accept_all(&bound, &shared, &controller))
                .map_err(io)?
        };
        Ok(Self { bound, shared, acceptor: Some(acceptor) })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        self.bound.path()
    }

    /// Stops accepting, removes the socket, closes idle connections and waits a few seconds for commands under way.
    pub fn stop(self) {
        drop(self);
    }
}

/// Whether a control socket could be made at `path` now, which leaves none.
///
/// # Errors
/// [`BindError`].
pub fn can_bind(path: &Path) -> Result<(), BindError> {
    prepare_directory(path)?;
    forebay_guard::can_bind(path)
}

impl Drop for Server {
    fn drop(&mut self) {
        let Some(acceptor) = self.acceptor.take() else {
            return;
        };
        // Before the listener dies, and only if it is still ours: a successor that finds the path free cannot lose its socket to us.
        self.bound.remove();
        let mut connections = self.shared.lock();
        connections.stopping = true;
        for Connection { stream, busy, .. } in connections.open.values() {
            let _ = stream.shutdown(if *busy { Shutdown::Read } else { Shutdown::Both });
        }
        drop(connections);
        // Wakes the acceptor, which finds its listener shut.
        let _ = rustix::net::shutdown(self.bound.listener(), rustix::net::Shutdown::Both);
        let _ = acceptor.join();
        let deadline = Instant::now() + STOP_MAX;
        let mut connections = self.shared.lock();
        while !connections.open.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            connections = match self.shared.closed.wait_timeout(connections, left) {
                Ok((guard, _)) => guard,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }
}

fn accept_all(bound: &Bound, shared: &Arc<Shared>, controller: &Arc<dyn Controller>) {
    let mut number = 0;
    loop {
        let accepted = bound.listener().accept();
        if shared.lock().stopping {
            return;
        }
        match accepted {
            Ok((stream, _)) => {
                number += 1;
                start_connection(number, stream, shared, controller);
            }
            // Out of descriptors or memory: a pause keeps this thread from spinning until some are free.
            Err(_) => thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn start_connection(number: u64, stream: UnixStream, shared: &Arc<Shared>, controller: &Arc<dyn Controller>) {
    let _ = stream.set_write_timeout(Some(WRITE_MAX));
    let Ok(copy) = stream.try_clone() else { return };
    {
        let mut connections = shared.lock();
        if !connections.make_room() {
            drop(connections);
            let e = ControlError::new(
                FailureKind::Failed,
                format!("the daemon already serves {CONNECTIONS_MAX} control connections; try again later"),
            );
            let _ = send(&stream, &Line::Error(e));
            return;
        }
        connections.open.insert(number, Connection { stream: copy, busy: false, since: Instant::now() });
    }
    let guard = Open { number, shared: Arc::clone(shared) };
    let controller = Arc::clone(controller);
    // If no thread can be had, the closure is dropped, and with it the guard and the stream.
    let _ = thread::Builder::new()
        .name(format!("control-{number}"))
        .spawn(move || converse(stream, &guard, controller.as_ref()));
}

/// Takes the connection off the table when its thread ends, however it ends.
struct Open {
    number: u64,
    shared: Arc<Shared>,
}

impl Open {
    fn set_busy(&self, busy: bool) {
        if let Some(connection) = self.shared.lock().open.get_mut(&self.number) {
            (connection.busy, connection.since) = (busy, Instant::now());
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.shared.lock().open.remove(&self.number);
        self.shared.closed.notify_all();
    }
}

fn converse(stream: UnixStream, open: &Open, controller: &dyn Controller) {
    let mut reader = BufReader::new(stream);
    let mut limits = LineLimits { first: FIRST_MAX, whole: REQUEST_MAX, bytes: LINE_BYTES_MAX };
    loop {
        let line = read_line(&mut reader, limits);
        let stream = reader.get_ref();
        let line = match line {
            Ok(line) => line,
            Err(NoLine::TooLong) => {
                let message = format!("the request is longer than {LINE_BYTES_MAX} bytes");
                let _ = send(stream, &Line::Error(ControlError::new(FailureKind::Usage, message)));
                return;
            }
            Err(NoLine::Ended | NoLine::Silent | NoLine::Io(_)) => return,
        };
        limits.first = IDLE_MAX;
        open.set_busy(true);
        let outcome = parse_request(&line).and_then(|request| {
            controller.handle(request, &mut |p| send(stream, &Line::Progress(p)).is_ok())
        });
        let sent = send(stream, &outcome.map_or_else(Line::Error, Line::Result));
        open.set_busy(false);
        if sent.is_err() || open.shared.lock().stopping {
            return;
        }
    }
}

fn send(mut stream: &UnixStream, line: &Line) -> io::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    stream.write_all(&text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Client, VolumeStatus};
    use std::io::{BufRead, Read};
    use std::path::PathBuf;
    use std::sync::mpsc;

    /// Answers `status` with a sample; `flush` reports two steps, `detach` waits to be let go.
    struct Fake {
        gate: Mutex<mpsc::Receiver<()>>,
        entered: mpsc::Sender<()>,
    }

    impl Controller for Fake {
        fn handle(
            &self,
            request: Request,
            progress: &mut dyn FnMut(Progress) -> bool,
        ) -> Result<Answer, ControlError> {
            match request {
                Request::Status { .. } => Ok(Answer::Volumes(vec![VolumeStatus::sample("db").into()])),
                Request::Flush { .. } => {
                    for remaining_bytes in [20, 10] {
                        progress(Progress { remaining_bytes, total_bytes: 20 });
                    }
                    Ok(Answer::Done)
                }
                Request::Detach { .. } => {
                    self.entered.send(()).unwrap();
                    self.gate.lock().unwrap().recv().unwrap();
                    Ok(Answer::Done)
                }
                _ => Err(ControlError::new(FailureKind::Refused, "not now")),
            }
        }
    }

    struct World {
        _dir: tempfile::TempDir,
        path: PathBuf,
        server: Server,
        open_gate: mpsc::Sender<()>,
        entered: mpsc::Receiver<()>,
    }

    fn world() -> World {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let (open_gate, gate) = mpsc::channel();
        let (enter, entered) = mpsc::channel();
        let fake = Fake { gate: Mutex::new(gate), entered: enter };
        let server = Server::start(&path, Arc::new(fake)).unwrap();
        World { _dir: dir, path, server, open_gate, entered }
    }

    #[test]
    fn commands_are_answered_with_progress_results_and_errors() {
        let w = world();
        let mut client = Client::connect(&w.path).unwrap();
        let answer = client.call(&Request::Status { volume: None }, |_| {}).unwrap();
        assert_eq!(answer, Answer::Volumes(vec![VolumeStatus::sample("db").into()]));
        let mut seen = Vec::new();
        let flush = Request::Flush { volume: "db".into() };
        assert_eq!(client.call(&flush, |p| seen.push(p.remaining_bytes)).unwrap(), Answer::Done);
        assert_eq!(seen, [20, 10]);
        let e = client.call(&Request::Attach { volume: "db".into() }, |_| {}).unwrap_err();
        let e = ControlError::from(e);
        assert_eq!((e.kind, e.message.as_str()), (FailureKind::Refused, "not now"));
    }

    #[test]
    fn rubbish_is_answered_and_does_not_end_the_connection() {
        let w = world();
        let mut stream = UnixStream::connect(&w.path).unwrap();
        stream.write_all(b"\xff\x00rubbish\n{\"command\":\"status\"}\n").unwrap();
        let mut lines = BufReader::new(&stream).lines();
        assert!(lines.next().unwrap().unwrap().contains("not understood"));
        assert!(lines.next().unwrap().unwrap().contains("volumes"));
    }

    #[test]
    fn a_line_without_end_is_cut_off() {
        let w = world();
        let mut stream = UnixStream::connect(&w.path).unwrap();
        stream.write_all(&vec![b' '; LINE_BYTES_MAX]).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.contains("longer than"), "{text}");
    }

    #[test]
    fn a_request_may_have_64_kib() {
        let w = world();
        let mut stream = UnixStream::connect(&w.path).unwrap();
        let mut line = br#"{"command":"status"}"#.to_vec();
        line.resize((64 << 10) - 1, b' ');
        line.push(b'\n');
        stream.write_all(&line).unwrap();
        assert!(BufReader::new(&stream).lines().next().unwrap().unwrap().contains("volumes"));
    }

    #[test]
    fn connections_are_bounded_and_idle_ones_make_room() {
        let w = world();
        let mut silent: Vec<UnixStream> =
            (0..CONNECTIONS_MAX).map(|_| UnixStream::connect(&w.path).unwrap()).collect();
        let status = Request::Status { volume: None };
        // Who says nothing keeps nobody out.
        Client::connect(&w.path).unwrap().call(&status, |_| {}).unwrap();
        let mut closed = silent.remove(0);
        assert_eq!(closed.read(&mut [0]).unwrap(), 0, "the one that had been idle for longest");
        drop(silent);
        // As long as the server has them, one of those that come now may have to make room before it has said anything.
        while !w.server.shared.lock().open.is_empty() {
            thread::sleep(Duration::from_millis(5));
        }

        let busy: Vec<_> = (0..CONNECTIONS_MAX)
            .map(|_| {
                let mut client = Client::connect(&w.path).unwrap();
                let request = Request::Detach { volume: "db".into(), release: false };
                thread::spawn(move || client.call(&request, |_| {}))
            })
            .collect();
        // They wait for the gate one after the other, but all are under way.
        w.entered.recv().unwrap();
        while w.server.shared.lock().open.values().filter(|c| c.busy).count() < CONNECTIONS_MAX {
            thread::sleep(Duration::from_millis(5));
        }
        let refused = Client::connect(&w.path).unwrap().call(&status, |_| {}).unwrap_err();
        assert!(refused.to_string().contains("32 control connections"), "{refused}");
        busy.iter().for_each(|_| w.open_gate.send(()).unwrap());
        for call in busy {
            assert_eq!(call.join().unwrap().unwrap(), Answer::Done);
        }
        while Client::connect(&w.path).unwrap().call(&status, |_| {}).is_err() {
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_successors_socket_outlives_the_one_before() {
        let w = world();
        // A second daemon that somebody has made way for.
        std::fs::remove_file(&w.path).unwrap();
        let fake = Fake { gate: Mutex::new(mpsc::channel().1), entered: mpsc::channel().0 };
        let successor = Server::start(&w.path, Arc::new(fake)).unwrap();
        w.server.stop();
        Client::connect(&w.path).unwrap().call(&Request::Status { volume: None }, |_| {}).unwrap();
        successor.stop();
        assert!(!w.path.exists());
    }

    #[test]
    fn a_lock_on_the_directory_stops_no_start() {
        let dir = tempfile::tempdir().unwrap();
        let locked = std::fs::File::open(dir.path()).unwrap();
        locked.lock().unwrap();
        can_bind(&dir.path().join("s")).unwrap();
    }

    #[test]
    fn a_directory_of_all_users_has_no_control_socket() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let e = ControlError::from(can_bind(&dir.path().join("s")).unwrap_err());
        assert!(e.kind == FailureKind::Refused && e.message.contains("--control"), "{e}");
    }

    #[test]
    fn who_has_asked_is_not_closed_for_who_comes_and_says_nothing() {
        let mut connections = Connections::default();
        let began = Instant::now();
        let mut clients: Vec<UnixStream> = (0..CONNECTIONS_MAX as u64)
            .map(|n| {
                let (theirs, stream) = UnixStream::pair().unwrap();
                let since = began + Duration::from_millis(n);
                connections.open.insert(n, Connection { stream, busy: false, since });
                theirs
            })
            .collect();
        clients[0].write_all(b"{").unwrap();
        assert!(connections.make_room());
        assert!(connections.open.contains_key(&0) && !connections.open.contains_key(&1));
        clients.iter_mut().for_each(|c| c.write_all(b"{").unwrap_or_default());
        connections
            .open
            .insert(1, Connection { stream: UnixStream::pair().unwrap().0, busy: true, since: began });
        assert!(connections.make_room(), "not if all have");
        assert!(!connections.open.contains_key(&0));
    }

    #[test]
    fn stop_answers_what_is_under_way_and_closes_the_rest() {
        let w = world();
        let mut idle = Client::connect(&w.path).unwrap();
        let mut busy = Client::connect(&w.path).unwrap();
        let request = Request::Detach { volume: "db".into(), release: false };
        let caller = thread::spawn(move || busy.call(&request, |_| {}));
        w.entered.recv().unwrap();
        let (stop, stopped) = mpsc::channel();
        let stopper = thread::spawn(move || {
            w.server.stop();
            stop.send(()).unwrap();
        });
        while idle.call(&Request::Status { volume: None }, |_| {}).is_ok() {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(
            stopped.recv_timeout(Duration::from_millis(200)).is_err(),
            "a stop waits for what is under way"
        );
        w.open_gate.send(()).unwrap();
        assert_eq!(caller.join().unwrap().unwrap(), Answer::Done);
        stopper.join().unwrap();
        assert!(!w.path.exists());
    }
}
