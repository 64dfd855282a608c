//! Redis on ext4 on an attached volume, with its log synced at each command and snapshots beside it, and clients that ask it as YCSB does.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Error, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::BenchError;
use crate::daemon::Daemon;
use crate::dice::{Dice, Zipf};
use crate::mounted::{self, Mounted, call, path};
use crate::site::Site;

/// The paper's records have 1 KB.
const RECORD_BYTES: usize = 1024;
/// Records that are loaded with one write to the socket.
const LOAD_AT_ONCE: u64 = 256;
/// Longest wait for Redis to start or stop, or to answer.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// What is asked of it.
#[derive(Clone, Copy)]
pub(crate) struct Requests {
    pub(crate) records: u64,
    pub(crate) clients: u64,
    /// Share of the requests that change a record, in percent: half of them in YCSB's A, 5% in B.
    pub(crate) updates_percent: u64,
}

/// A server on a volume of its own. Dropping it ends both.
pub(crate) struct Redis {
    server: Child,
    socket: PathBuf,
    _mounted: Mounted,
    pub(crate) daemon: Daemon,
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
    /// Starts it, with further `settings`, on a fresh volume of `bytes` in `dir`.
    pub(crate) fn serve(
        forebay: &Path,
        dir: &Path,
        bytes: u64,
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
        let mounted = Mounted::new(path(&device)?, &mount, false)?;
        let socket = dir.join("redis.sock");
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--unixsocket", path(&socket)?, "--dir", path(&mount)?]);
        command.args(["--appendonly", "yes", "--appendfsync", "always", "--save", "5 1"]);
        command.args(["--auto-aof-rewrite-percentage", "100", "--auto-aof-rewrite-min-size", "32mb"]);
        command.args(settings.iter().flat_map(|(name, value)| [format!("--{name}"), value.clone()]));
        let server = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|e| BenchError::system("start redis-server", e))?;
        let redis = Self { server, socket, _mounted: mounted, daemon };
        let until = Instant::now() + PATIENCE;
        while redis.connect().is_err() {
            if Instant::now() >= until {
                return Err(BenchError::Forebay("Redis does not start".to_owned()));
            }
            thread::sleep(POLL);
        }
        Ok(redis)
    }

    fn connect(&self) -> std::io::Result<Connection> {
        let stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Connection { reader: BufReader::new(stream.try_clone()?), stream, answer: Vec::new() })
    }

    /// Sets every record once.
    pub(crate) fn load(&self, requests: &Requests) -> Result<(), BenchError> {
        let failed = |e| BenchError::system("load Redis", e);
        let mut connection = self.connect().map_err(failed)?;
        let mut first = 0;
        while first < requests.records {
            let last = (first + LOAD_AT_ONCE).min(requests.records);
            let commands: Vec<u8> = (first..last).flat_map(|record| command(record, true)).collect();
            connection.stream.write_all(&commands).map_err(failed)?;
            (first..last).try_for_each(|_| connection.answer()).map_err(failed)?;
            first = last;
        }
        Ok(())
    }

    /// Has the clients ask for a while.
    pub(crate) fn ask(&self, requests: &Requests, time: Duration) -> Result<Answers, BenchError> {
        let (zipf, began) = (Zipf::new(requests.records), Instant::now());
        let client = |number: u64| -> std::io::Result<(Vec<u64>, BTreeSet<u64>)> {
            let (mut dice, mut connection) = (Dice::new(number), self.connect()?);
            let (mut latencies, mut seconds) = (Vec::new(), BTreeSet::new());
            while began.elapsed() < time {
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
            let threads: Vec<_> = (0..requests.clients).map(|n| scope.spawn(move || client(n))).collect();
            threads
                .into_iter()
                .map(|t| t.join().unwrap_or_else(|_| Err(Error::other("a client died"))))
                .collect()
        });
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

impl Drop for Redis {
    fn drop(&mut self) {
        // Told so, it ends its children, too: one that writes a snapshot would keep the file system busy.
        if let Ok(mut connection) = self.connect() {
            let _ = connection.stream.write_all(b"*2\r\n$8\r\nSHUTDOWN\r\n$6\r\nNOSAVE\r\n");
        }
        let until = Instant::now() + PATIENCE;
        while matches!(self.server.try_wait(), Ok(None)) && Instant::now() < until {
            thread::sleep(POLL);
        }
        // The child has not been waited for if it is still there, so that its pid is its own.
        let _ = self.server.kill();
        let _ = self.server.wait();
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
        bytes.extend((0..RECORD_BYTES).map(|_| b'a' + dice.below(26) as u8));
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
            _ => return Err(Error::other(format!("Redis answers {:?}", line.trim_end()))),
        };
        if bytes > RECORD_BYTES {
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
