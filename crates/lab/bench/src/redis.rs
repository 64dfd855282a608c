//! Servers of Redis on ext4 on an attached volume, with their logs synced at each command and snapshots beside it, and clients that ask them as
//! YCSB does.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Error, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use crate::daemon::Daemon;
use crate::dice::{Dice, Zipf};
use crate::mounted::{self, Mounted, call, path};
use crate::site::Site;
use crate::{BenchError, Options};

/// The paper's records have 1 KB.
const RECORD_BYTES: usize = 1024;
// Texts are made of eight letters at a time.
const _: () = assert!(RECORD_BYTES.is_multiple_of(8));
/// Longest answer: what a server says of itself.
const ANSWER_BYTES_MAX: usize = 16 << 10;
/// Records that are loaded with one write to the socket.
const LOAD_AT_ONCE: u64 = 256;
/// Longest wait for Redis to start or stop, or to answer.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// What is asked of them.
#[derive(Clone, Copy)]
pub(crate) struct Requests {
    /// Records of each server.
    pub(crate) records: u64,
    /// Clients of all servers.
    pub(crate) clients: u64,
    /// Share of the requests that change a record, in percent: half of them in YCSB's A, 5% in B.
    pub(crate) updates_percent: u64,
}

/// Servers on a volume of their own. Dropping it ends all of it.
pub(crate) struct Redis {
    pub(crate) servers: Servers,
    _mounted: Mounted,
    pub(crate) daemon: Daemon,
}

/// Servers with their files on one file system. Dropping it ends them.
pub(crate) struct Servers(Vec<Server>);

/// One server. Dropping it ends it.
struct Server {
    child: Child,
    socket: PathBuf,
    /// When it makes a snapshot, once it is loaded: its setting `save`.
    snapshots: String,
}

/// What its clients have seen.
#[derive(Default)]
pub(crate) struct Answers {
    /// Of each request, in microseconds, sorted.
    pub(crate) latencies_us: Vec<u64>,
    /// Whole seconds in which nothing was answered.
    pub(crate) silent_seconds: u64,
}

/// What is missing to run it here, if anything is.
pub(crate) fn missing() -> Option<String> {
    let redis = || call("redis-server", &["--version"]).err().map(|_| "redis-server is missing".to_owned());
    mounted::missing().or_else(redis)
}

impl Redis {
    /// Starts so many, with further `settings`, on a fresh volume of `bytes` in `dir`.
    pub(crate) fn serve(
        forebay: &Path,
        dir: &Path,
        (servers, bytes): (u64, u64),
        site: &Site,
        settings: &[(String, String)],
    ) -> Result<Self, BenchError> {
        let backing = dir.join("redis-backing");
        let made = |e| BenchError::system(format!("make {}", backing.display()), e);
        // Created, it is empty: one of before is gone.
        fs::File::create(&backing).and_then(|f| f.set_len(bytes)).map_err(made)?;
        let (daemon, device) = site.serve(forebay, &backing)?;
        call("mkfs.ext4", &["-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", path(&device)?])?;
        let mount = dir.join("mnt");
        let mounted = Mounted::new(&device, &mount)?;
        Ok(Self { servers: Servers::start(dir, &mount, servers, settings)?, _mounted: mounted, daemon })
    }
}

impl Servers {
    /// Starts so many, with further `settings`; their files are in directories of their own below `mount`, and may be there.
    pub(crate) fn start(
        dir: &Path,
        mount: &Path,
        servers: u64,
        settings: &[(String, String)],
    ) -> Result<Self, BenchError> {
        let start = |number| Server::start(dir, mount, number, settings);
        (0..servers).map(start).collect::<Result<_, _>>().map(Self)
    }

    /// Sets every record once, and has snapshots made from then on.
    pub(crate) fn load(&self, requests: &Requests, options: &Options) -> Result<(), BenchError> {
        let loaded: Vec<_> = thread::scope(|scope| {
            let load = |server| scope.spawn(move || Server::load(server, requests.records, options));
            joined(self.0.iter().map(load).collect())
        });
        loaded
            .into_iter()
            .collect::<std::io::Result<()>>()
            .map_err(|e| BenchError::system("load Redis", e))?;
        self.make_snapshots()
    }

    /// Has snapshots made from now on.
    pub(crate) fn make_snapshots(&self) -> Result<(), BenchError> {
        let all = self.0.iter().try_for_each(Server::make_snapshots);
        all.map_err(|e| BenchError::system("set Redis up", e))
    }

    /// What each says of its files.
    pub(crate) fn persistence(&self) -> Result<Vec<String>, BenchError> {
        let all = self.0.iter().map(Server::persistence).collect::<std::io::Result<_>>();
        all.map_err(|e| BenchError::system("ask Redis for its state", e))
    }

    /// Has the clients ask for a while.
    ///
    /// # Errors
    /// [`BenchError`]: also if it is told to stop meanwhile.
    pub(crate) fn ask(
        &self,
        requests: &Requests,
        time: Duration,
        options: &Options,
    ) -> Result<Answers, BenchError> {
        let (zipf, began) = (Zipf::new(requests.records), Instant::now());
        let client = |number: u64, server: &Server| -> std::io::Result<(Vec<u64>, BTreeSet<u64>)> {
            let (mut dice, mut connection) = (Dice::new(number), server.connect()?);
            let (mut latencies, mut seconds) = (Vec::new(), BTreeSet::new());
            while began.elapsed() < time && !options.is_stopped() {
                let (record, update) = (zipf.draw(&mut dice), dice.percent(requests.updates_percent));
                let asked = Instant::now();
                connection.stream.write_all(&command(record, update))?;
                connection.answer()?;
                latencies.push(asked.elapsed().as_micros() as u64);
                seconds.insert(began.elapsed().as_secs());
            }
            Ok((latencies, seconds))
        };
        let seen: Vec<_> = thread::scope(|scope| {
            let client = &client;
            let servers = self.0.iter().cycle();
            joined(
                (0..requests.clients).zip(servers).map(|(n, s)| scope.spawn(move || client(n, s))).collect(),
            )
        });
        options.go_on()?;
        let (mut answers, mut seconds) = (Answers::default(), BTreeSet::new());
        for of_client in seen {
            let (latencies, its_seconds) = of_client.map_err(|e| BenchError::system("ask Redis", e))?;
            answers.latencies_us.extend(latencies);
            seconds.extend(its_seconds);
        }
        answers.latencies_us.sort_unstable();
        let whole = time.as_secs();
        answers.silent_seconds = (0..whole).filter(|s| !seconds.contains(s)).count() as u64;
        Ok(answers)
    }
}

/// What each of the clients comes back with.
fn joined<T>(clients: Vec<ScopedJoinHandle<'_, std::io::Result<T>>>) -> Vec<std::io::Result<T>> {
    clients.into_iter().map(|c| c.join().unwrap_or_else(|_| Err(Error::other("a client died")))).collect()
}

impl Server {
    /// Starts it with its files in a directory of its own below `mount`.
    fn start(
        dir: &Path,
        mount: &Path,
        number: u64,
        settings: &[(String, String)],
    ) -> Result<Self, BenchError> {
        let (socket, files) = (dir.join(format!("redis-{number}.sock")), mount.join(number.to_string()));
        fs::create_dir_all(&files).map_err(|e| BenchError::system(format!("make {}", files.display()), e))?;
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--unixsocket", path(&socket)?, "--dir", path(&files)?]);
        command.args(["--appendonly", "yes", "--appendfsync", "always"]);
        command.args(["--auto-aof-rewrite-percentage", "100", "--auto-aof-rewrite-min-size", "32mb"]);
        // The records' texts cannot be made shorter, and trying takes a fifth of two cores.
        command.args(["--rdbcompression", "no"]);
        command.args(settings.iter().flat_map(|(name, value)| [format!("--{name}"), value.clone()]));
        command.args(["--save", ""]);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|e| BenchError::system("start redis-server", e))?;
        let snapshots = settings.iter().rfind(|(name, _)| name == "save").map_or("5 1", |(_, value)| value);
        let server = Self { child, socket, snapshots: snapshots.to_owned() };
        let until = Instant::now() + PATIENCE;
        // It takes connections before it has read what it has.
        while server.ping().is_err() {
            if Instant::now() >= until {
                return Err(BenchError::Forebay("Redis does not start".to_owned()));
            }
            thread::sleep(POLL);
        }
        Ok(server)
    }

    fn connect(&self) -> std::io::Result<Connection> {
        let stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Connection { reader: BufReader::new(stream.try_clone()?), stream, answer: Vec::new() })
    }

    fn load(&self, records: u64, options: &Options) -> std::io::Result<()> {
        let mut connection = self.connect()?;
        let mut first = 0;
        while first < records && !options.is_stopped() {
            let last = (first + LOAD_AT_ONCE).min(records);
            let commands: Vec<_> = (first..last).map(|record| command(record, true)).collect();
            connection.stream.write_all(&commands.concat())?;
            (first..last).try_for_each(|_| connection.answer())?;
            first = last;
        }
        Ok(())
    }

    fn ping(&self) -> std::io::Result<()> {
        let mut connection = self.connect()?;
        connection.stream.write_all(b"*1\r\n$4\r\nPING\r\n")?;
        connection.answer()
    }

    fn persistence(&self) -> std::io::Result<String> {
        let mut connection = self.connect()?;
        connection.stream.write_all(b"*2\r\n$4\r\nINFO\r\n$11\r\npersistence\r\n")?;
        connection.answer()?;
        Ok(String::from_utf8_lossy(&connection.answer).into_owned())
    }

    fn make_snapshots(&self) -> std::io::Result<()> {
        let mut connection = self.connect()?;
        let (save, len) = (&self.snapshots, self.snapshots.len());
        let set = format!("*4\r\n$6\r\nCONFIG\r\n$3\r\nSET\r\n$4\r\nsave\r\n${len}\r\n{save}\r\n");
        connection.stream.write_all(set.as_bytes())?;
        connection.answer()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Told so, it ends its children, too: one that writes a snapshot would keep the file system busy.
        if let Ok(mut connection) = self.connect() {
            let _ = connection.stream.write_all(b"*2\r\n$8\r\nSHUTDOWN\r\n$6\r\nNOSAVE\r\n");
        }
        let until = Instant::now() + PATIENCE;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            thread::sleep(POLL);
        }
        // The child has not been waited for if it is still there, so that its pid is its own.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command in Redis's protocol.
fn command(record: u64, update: bool) -> Vec<u8> {
    let key = format!("record{record:012}");
    let mut bytes = match update {
        false => format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len()),
        true => format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${RECORD_BYTES}\r\n", key.len()),
    }
    .into_bytes();
    if update {
        // Texts of different records differ, so that nothing is saved by their being alike.
        let mut dice = Dice::new(record);
        for _ in 0..RECORD_BYTES / 8 {
            bytes.extend(dice.next().to_le_bytes().map(|b| b'a' + b % 26));
        }
        bytes.extend(b"\r\n");
    }
    bytes
}

/// A client's connection.
struct Connection {
    stream: UnixStream,
    reader: BufReader<UnixStream>,
    answer: Vec<u8>,
}

impl Connection {
    /// Takes one answer in.
    fn answer(&mut self) -> std::io::Result<()> {
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        let bytes = match (line.as_bytes().first(), line.get(1..).map(str::trim_end)) {
            (Some(b'+'), _) => return Ok(()),
            (Some(b'$'), Some(len)) => len.parse::<usize>().map_err(Error::other)?,
            _ => return Err(Error::other(format!("Redis answers '{}'", line.trim_end()))),
        };
        if bytes > ANSWER_BYTES_MAX {
            return Err(Error::other(format!("Redis answers with {bytes} bytes")));
        }
        self.answer.resize(bytes + 2, 0);
        self.reader.read_exact(&mut self.answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_in_the_servers_protocol() {
        assert_eq!(command(7, false), b"*2\r\n$3\r\nGET\r\n$18\r\nrecord000000000007\r\n");
        let set = command(7, true);
        assert!(set.starts_with(b"*3\r\n$3\r\nSET\r\n$18\r\nrecord000000000007\r\n$1024\r\n"));
        assert!(set.ends_with(b"\r\n") && set.len() == command(8, true).len() && set != command(8, true));
    }
}
