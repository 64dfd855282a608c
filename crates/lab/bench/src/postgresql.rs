//! A TPC-C-like load on a real PostgreSQL, on ext4 on an attached volume. Needs root, FUSE, loop devices and PostgreSQL; what is
//! missing is told.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, BufReader};
use std::os::unix::process::CommandExt;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise};
use rustix::process::{Pid, Signal, kill_process};

use crate::contender::Contender;
use crate::daemon::Daemon;
use crate::mounted::{self, Mounted, call, call_long, path};
use crate::run::{CACHE, Outcome, Staleness, journal_spec};
use crate::site::{Emulated, Site};
use crate::{BenchError, Options};

/// Longest wait for PostgreSQL to start or stop.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
/// How often it is looked where the database's log lies.
const FOLLOW: Duration = Duration::from_millis(500);
/// What is read of a file at a time, in bytes.
const PIECE: usize = 1 << 20;
/// The file behind the backing.
const BACKING: &str = "pg-backing";

/// A database and what is asked of it.
#[derive(Clone)]
pub(crate) struct Load {
    /// Makes the tables of `:w` warehouses, and as many files of the database's log as `:segments`.
    pub(crate) schema: &'static str,
    pub(crate) log_segments: u32,
    /// Scripts of pgbench, and how often each is drawn, in percent.
    pub(crate) scripts: &'static [(&'static str, &'static str, u32)],
    pub(crate) warehouses: u32,
    pub(crate) clients: u32,
    /// How statements are sent: pgbench's `--protocol`.
    pub(crate) protocol: &'static str,
    pub(crate) image_bytes: u64,
    /// Lines of `postgresql.conf`.
    pub(crate) configuration: String,
}

/// The load of `policies`: a rough TPC-C, in front of a cache of about 80% of what the database has after its load.
pub(crate) fn rough() -> Load {
    Load {
        schema: include_str!("postgresql/schema.sql"),
        log_segments: 0,
        scripts: &[
            ("new_order", include_str!("postgresql/new_order.sql"), 47),
            ("payment", include_str!("postgresql/payment.sql"), 45),
            ("stock_level", include_str!("postgresql/stock_level.sql"), 8),
        ],
        warehouses: 20,
        clients: 8,
        protocol: "simple",
        image_bytes: 1 << 30,
        configuration:
            "shared_buffers = 16MB\nmax_wal_size = 64MB\nlisten_addresses = ''\ncheckpoint_timeout = 30s\n"
                .to_owned(),
    }
}
const ROUGH_CACHE_BYTES: u64 = 112 << 20;

/// An image with a file system and a database on it, of which each contender gets a copy.
pub(crate) struct PostgreSql {
    bin: PathBuf,
    dir: PathBuf,
    image: PathBuf,
    /// What a server's volume stands on: a copy of it.
    backing: PathBuf,
    load: Load,
    stopped: Arc<AtomicBool>,
}

/// The newest PostgreSQL where Debian puts it.
fn newest() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let number = |p: &PathBuf| p.file_name().and_then(|n| n.to_str()).and_then(|n| n.parse::<u32>().ok());
    let newest = versions.filter_map(Result::ok).map(|e| e.path()).max_by_key(number)?;
    Some(newest.join("bin")).filter(|bin| bin.join("postgres").exists() && bin.join("pgbench").exists())
}

/// The directory that the user postgres cannot enter, if there is one on the way to `directory`: the outermost.
fn closed_to_postgres(directory: &Path) -> Option<&Path> {
    let may_enter = |directory: &&Path| {
        let text = directory.as_os_str().to_str().unwrap_or_default();
        let user = ["--reuid", "postgres", "--regid", "postgres", "--init-groups"];
        call("setpriv", &[&user[..], &["test", "-x", text]].concat()).is_ok()
    };
    let ways: Vec<&Path> = directory.ancestors().collect();
    ways.into_iter().rev().find(|directory| !may_enter(directory))
}

/// A running server; dropping it stops it.
struct Server<'a> {
    database: &'a PostgreSql,
    child: Child,
    /// What it is told in the end.
    end: Signal,
}

impl PostgreSql {
    /// What is missing to run it in this directory, if anything is.
    pub(crate) fn missing(scratch: &Path) -> Option<String> {
        if let Some(missing) = mounted::missing() {
            return Some(missing);
        }
        let Some(_) = newest() else { return Some("PostgreSQL is not installed".to_owned()) };
        let programs = [("setpriv", "--version"), ("losetup", "--version")];
        let absent = programs.iter().find(|(program, flag)| call(program, &[flag]).is_err());
        absent
            .map(|(program, _)| format!("{program} is missing"))
            .or_else(|| call("id", &["postgres"]).err().map(|_| "there is no user postgres".to_owned()))
            .or_else(|| {
                let closed = closed_to_postgres(scratch)?.display().to_string();
                Some(format!("user postgres cannot enter {closed}; give another --out"))
            })
    }

    /// Makes the image in the directory `store`; `settings` count for more than the load's own. Everything else lies in the benchmark's directory.
    pub(crate) fn prepare(
        options: &Options,
        load: Load,
        settings: &[(String, String)],
        store: &Path,
    ) -> Result<Self, BenchError> {
        let bin = newest().ok_or_else(|| BenchError::Forebay("PostgreSQL is not installed".to_owned()))?;
        let scratch = options.scratch.as_path();
        let database = Self {
            bin,
            dir: scratch.to_owned(),
            image: store.join("image"),
            backing: store.join(BACKING),
            load,
            stopped: Arc::clone(&options.stopped),
        };
        let made = |what: &Path| {
            let what = format!("make {}", what.display());
            move |e| BenchError::system(what, e)
        };
        let file = fs::File::create(&database.image).map_err(made(&database.image))?;
        file.set_len(database.load.image_bytes).map_err(made(&database.image))?;
        for (name, script, _) in database.load.scripts {
            let place = scratch.join(format!("{name}.sql"));
            fs::write(&place, script).map_err(made(&place))?;
        }
        call("mkfs.ext4", &["-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", path(&database.image)?])?;
        let _mounted = Mounted::of_file(&database.image, &database.mount())?;
        let data = database.data();
        call("install", &["-d", "-o", "postgres", path(&data)?])?;
        // The scratch directory may be root's alone; sockets lie on the volume.
        database
            .as_postgres("initdb", &["-D", path(&data)?, "-A", "trust", "-U", "postgres", "--no-sync"])?;
        let file = data.join("postgresql.auto.conf");
        let setting =
            |(name, value): &(String, String)| format!("{name} = '{}'\n", value.replace('\'', "''"));
        let lines = settings.iter().map(setting).collect::<String>();
        fs::write(&file, format!("{}{lines}", database.load.configuration)).map_err(made(&file))?;
        {
            let _server = Server::start(&database)?;
            let warehouses = format!("w={}", database.load.warehouses);
            let segments = format!("segments={}", database.load.log_segments);
            let schema = scratch.join("schema.sql");
            fs::write(&schema, database.load.schema).map_err(made(&schema))?;
            let sockets = path(&data)?.to_owned();
            let flags = [
                "-h",
                &sockets,
                "-q",
                "-X",
                "-v",
                "ON_ERROR_STOP=1",
                "-v",
                &warehouses,
                "-v",
                &segments,
                "-f",
                path(&schema)?,
                "postgres",
            ];
            database.as_postgres("psql", &flags)?;
        }
        Ok(database)
    }

    fn mount(&self) -> PathBuf {
        self.dir.join("mnt")
    }

    fn data(&self) -> PathBuf {
        self.mount().join("data")
    }

    /// The server's log.
    fn told(&self) -> PathBuf {
        self.dir.join("postgres.log")
    }

    fn as_postgres(&self, program: &str, args: &[&str]) -> Result<String, BenchError> {
        let program = self.bin.join(program);
        let mut all = vec!["--reuid", "postgres", "--regid", "postgres", "--init-groups", path(&program)?];
        all.extend(args);
        call_long("setpriv", &all, &self.stopped)
    }

    /// Runs the load on a copy of the image, on a volume of its own.
    pub(crate) fn measure(
        &self,
        forebay: &Path,
        store: &Emulated,
        contender: &Contender,
        warm: Duration,
        time: Duration,
    ) -> Result<Outcome, BenchError> {
        let mut flags = contender.flags();
        flags.push(("journal".to_owned(), journal_spec(contender, store, &self.backing)?.to_string()));
        let cache = Some((Emulated::new(CACHE), ROUGH_CACHE_BYTES));
        let site = Site { cache, backing: store.clone(), flags };
        let running = self.serve(forebay, &site)?;
        running.pgbench(warm)?;
        let per_second = running.pgbench(time)?.per_second;
        let status = running.daemon.status()?;
        let stale = status.get("staleness_seconds").and_then(serde_json::Value::as_f64).unwrap_or_default();
        let figure = |key: &str| status.get(key).and_then(serde_json::Value::as_u64).unwrap_or_default();
        Ok(Outcome {
            per_second,
            backing_bytes: figure("bytes_to_backing") + figure("dirty_bytes"),
            journal_bytes: figure("bytes_to_journal"),
            acknowledged_bytes: figure("bytes_acknowledged"),
            staleness: Staleness { seconds_max: stale, ..Staleness::default() },
        })
    }

    /// Starts the server on a copy of the image, on a volume of its own.
    pub(crate) fn serve(&self, forebay: &Path, site: &Site) -> Result<Running<'_>, BenchError> {
        // It is there from the second time on.
        let _ = fs::remove_file(&self.backing);
        call("cp", &["--sparse=always", path(&self.image)?, path(&self.backing)?])?;
        let (daemon, device) = site.serve(forebay, &self.backing)?;
        self.serve_on(&device, daemon)
    }

    /// Starts the server on a block device that has a copy of the image, and what that stands on.
    fn serve_on<V>(&self, device: &Path, daemon: V) -> Result<Running<'_, V>, BenchError> {
        let mounted = Mounted::new(device, &self.mount())?;
        let server = Server::start(self)?;
        Ok(Running { database: self, server, _mounted: mounted, daemon })
    }

    /// The same, on a block device that is all zeroes: the image is copied to it.
    pub(crate) fn serve_on_new<V>(&self, device: &Path, stands_on: V) -> Result<Running<'_, V>, BenchError> {
        let (from, to) = (format!("if={}", path(&self.image)?), format!("of={}", path(device)?));
        call_long("dd", &[&from, &to, "bs=1M", "conv=sparse,notrunc,fsync", "status=none"], &self.stopped)?;
        self.serve_on(device, stands_on)
    }
}

/// Reads a file without reading ahead.
fn read_in_pages(place: &Path) -> io::Result<u64> {
    let file = fs::File::open(place)?;
    fadvise(&file, 0, None, Advice::Random)?;
    io::copy(&mut BufReader::with_capacity(PIECE, file), &mut io::sink())
}

/// Where a file's extents lie, by `filefrag -v -b4096`: `FROM-TO` in bytes.
fn extents(text: &str) -> impl Iterator<Item = String> + '_ {
    text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        fields.next()?.trim().parse::<u32>().ok()?;
        let (from, to) = fields.nth(1)?.split_once("..")?;
        let block = |text: &str| text.trim().parse::<u64>().ok();
        Some(format!("{}-{}", block(from)? * 4096, (block(to)? + 1) * 4096))
    })
}

/// A server on a volume. Dropping it ends both.
pub(crate) struct Running<'a, V = Daemon> {
    database: &'a PostgreSql,
    server: Server<'a>,
    _mounted: Mounted,
    /// What the volume stands on.
    pub(crate) daemon: V,
}

/// What pgbench has to say.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transactions {
    pub(crate) per_second: f64,
    /// Of each script, in their order.
    pub(crate) counts: Vec<u64>,
    /// Of each transaction, in microseconds, sorted.
    pub(crate) latencies_us: Vec<u64>,
    /// Whole seconds in which no transaction ended.
    pub(crate) silent_seconds: u64,
}

impl<V> Running<'_, V> {
    /// It is stopped as if the machine failed: its files are thrown away.
    pub(crate) fn needs_no_checkpoint_at_its_end(&mut self) {
        self.server.end = Signal::QUIT;
    }

    /// Where the volume's file system is.
    pub(crate) fn mount(&self) -> PathBuf {
        self.database.mount()
    }

    /// The server's log.
    pub(crate) fn told(&self) -> Result<String, BenchError> {
        fs::read_to_string(self.database.told()).map_err(|e| BenchError::system("read PostgreSQL's log", e))
    }

    /// Reads every file of the database, so that what follows reads from memory. Without reading ahead, as is the load's own reading here and
    /// there: else the kernel keeps long pieces of a file under one lock (large folios, ext4 since Linux 6.16), and whoever writes one of
    /// their pages waits for the others. The paper's kernel knew pages alone.
    pub(crate) fn warm_up(&self) -> Result<(), BenchError> {
        let reading = |place: &Path| {
            let what = format!("read {}", place.display());
            move |e| BenchError::system(what, e)
        };
        let mut directories = vec![self.database.data()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(&directory).map_err(reading(&directory))?.filter_map(Result::ok) {
                let place = entry.path();
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => directories.push(place),
                    // One that is gone meanwhile need not be read.
                    Ok(kind) if kind.is_file() => drop(read_in_pages(&place)),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Runs the load for a while.
    pub(crate) fn pgbench(&self, time: Duration) -> Result<Transactions, BenchError> {
        let (database, load) = (self.database, &self.database.load);
        let (data, seconds) = (database.data(), time.as_secs().max(1).to_string());
        let (clients, warehouses) = (load.clients.to_string(), format!("w={}", load.warehouses));
        let log = database.dir.join("transactions");
        let mut args: Vec<String> =
            ["-h", path(&data)?, "-n", "-c", &clients, "-j", "2", "-T", &seconds, "-D", &warehouses]
                .map(str::to_owned)
                .to_vec();
        args.extend(
            ["-M", load.protocol, "-U", "postgres", "--max-tries=10", "--log", "--log-prefix", path(&log)?]
                .map(str::to_owned),
        );
        for (name, _, percent) in load.scripts {
            let script = database.dir.join(format!("{name}.sql"));
            args.extend(["-f".to_owned(), format!("{}@{percent}", path(&script)?)]);
        }
        args.push("postgres".to_owned());
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        // Not as the server's user, who may not write here.
        let said = call_long(database.bin.join("pgbench"), &args, &database.stopped)?;
        let mut logged = Logged::default();
        let entries = fs::read_dir(&database.dir).map_err(|e| BenchError::system("find pgbench's log", e))?;
        for entry in entries.filter_map(Result::ok) {
            if entry.file_name().to_string_lossy().starts_with("transactions.") {
                let place = entry.path();
                let text =
                    fs::read_to_string(&place).map_err(|e| BenchError::system("read pgbench's log", e))?;
                text.lines().for_each(|line| logged.add(line));
                fs::remove_file(&place).map_err(|e| BenchError::system("remove pgbench's log", e))?;
            }
        }
        let rate = said
            .lines()
            .filter_map(|line| line.strip_prefix("tps = "))
            .find_map(|rest| rest.split(' ').next()?.parse().ok());
        let per_second =
            rate.ok_or_else(|| BenchError::Forebay(format!("pgbench says no rate: {}", said.trim())))?;
        Ok(logged.transactions(per_second, load.scripts.len()))
    }
}

impl Running<'_> {
    /// Does something while the volume's `ranges` are those of the files of the database's log, which come and go.
    pub(crate) fn with_log_ranges<T>(
        &self,
        work: impl FnOnce() -> Result<T, BenchError>,
    ) -> Result<T, BenchError> {
        let ends = AtomicBool::new(false);
        thread::scope(|scope| {
            let following = scope.spawn(|| {
                let mut known = String::new();
                while !ends.load(Ordering::Relaxed) {
                    match self.log_ranges() {
                        Ok(ranges) if ranges == known => {}
                        Ok(ranges) => {
                            self.daemon.set("ranges", &ranges)?;
                            known = ranges;
                        }
                        // A file that is gone meanwhile; they are looked for again.
                        Err(_) if !known.is_empty() => {}
                        Err(e) => return Err(e),
                    }
                    thread::sleep(FOLLOW);
                }
                Ok(())
            });
            let done = work();
            ends.store(true, Ordering::Relaxed);
            following.join().unwrap_or_else(|panic| resume_unwind(panic))?;
            done
        })
    }

    /// The bytes of the volume where the database's log lies now.
    fn log_ranges(&self) -> Result<String, BenchError> {
        let directory = self.database.data().join("pg_wal");
        let entries = fs::read_dir(&directory)
            .map_err(|e| BenchError::system(format!("look into {}", directory.display()), e))?;
        let files: Vec<PathBuf> =
            entries.filter_map(Result::ok).map(|e| e.path()).filter(|p| p.is_file()).collect();
        let mut args = vec!["-v", "-b4096"];
        args.extend(files.iter().filter_map(|file| file.to_str()));
        call("filefrag", &args).map(|text| extents(&text).collect::<Vec<_>>().join(","))
    }
}

/// pgbench's log of transactions: client, number, microseconds, script, seconds and microseconds since 1970 when it ended.
#[derive(Default)]
struct Logged {
    latencies_us: Vec<u64>,
    counts: BTreeMap<usize, u64>,
    seconds: BTreeSet<u64>,
}

impl Logged {
    fn add(&mut self, line: &str) {
        let fields: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| fields.get(at).and_then(|f| f.parse::<u64>().ok());
        // A transaction that failed for good says so in place of its time.
        let (Some(us), Some(script), Some(second)) = (number(2), number(3), number(4)) else { return };
        self.latencies_us.push(us);
        *self.counts.entry(script as usize).or_default() += 1;
        self.seconds.insert(second);
    }

    fn transactions(mut self, per_second: f64, scripts: usize) -> Transactions {
        self.latencies_us.sort_unstable();
        let span = match (self.seconds.first(), self.seconds.last()) {
            (Some(first), Some(last)) => last - first + 1,
            _ => 0,
        };
        Transactions {
            per_second,
            counts: (0..scripts).map(|n| self.counts.get(&n).copied().unwrap_or_default()).collect(),
            latencies_us: self.latencies_us,
            silent_seconds: span - self.seconds.len() as u64,
        }
    }
}

impl<'a> Server<'a> {
    fn start(database: &'a PostgreSql) -> Result<Self, BenchError> {
        let (program, data) = (database.bin.join("postgres"), database.data());
        let log =
            fs::File::create(database.told()).map_err(|e| BenchError::system("write PostgreSQL's log", e))?;
        let child = Command::new("setpriv")
            .args(["--reuid", "postgres", "--regid", "postgres", "--init-groups"])
            .arg(program)
            .arg("-D")
            .arg(&data)
            .arg("-k")
            .arg(&data)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .process_group(0)
            .spawn()
            .map_err(|e| BenchError::system("start PostgreSQL", e))?;
        let server = Self { database, child, end: Signal::INT };
        let until = Instant::now() + PATIENCE;
        while call(database.bin.join("pg_isready"), &["-q", "-h", path(&data)?]).is_err() {
            if Instant::now() >= until {
                return Err(BenchError::Forebay("PostgreSQL does not start; see postgres.log".to_owned()));
            }
            thread::sleep(POLL);
        }
        Ok(server)
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        // The child has not been waited for, so that its pid is still its own.
        let _ = kill_process(Pid::from_child(&self.child), self.end);
        let until = Instant::now() + PATIENCE;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            thread::sleep(POLL);
        }
        if matches!(self.child.try_wait(), Ok(None)) {
            eprintln!("PostgreSQL in {} does not stop and is killed", self.database.dir.display());
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_log_of_transactions_is_added_up() {
        let mut logged = Logged::default();
        for line in ["0 1 900 0 100 5", "1 1 100 1 100 6", "0 2 300 0 103 1", "1 2 failed 1 103 2", ""] {
            logged.add(line);
        }
        let t = logged.transactions(1.5, 3);
        assert_eq!((t.latencies_us, t.counts, t.silent_seconds), (vec![100, 300, 900], vec![2, 1, 0], 2));
    }

    #[test]
    fn extents_are_read_as_filefrag_writes_them() {
        let text = "Filesystem type is: ef53\nFile size of x is 8192 (2 blocks of 4096 bytes)\n ext:     logical_offset:        \
                    physical_offset: length:   expected: flags:\n   0:        0..       1:      34816..     34817:      2:             \
                    last,eof\nx: 1 extent found\n";
        assert_eq!(extents(text).collect::<Vec<_>>(), ["142606336-142614528"]);
    }

    #[test]
    fn a_directory_of_roots_alone_is_closed_to_postgres() {
        let dir = tempfile::tempdir().unwrap();
        let (closed, below) = (dir.path().join("closed"), dir.path().join("closed/below"));
        fs::create_dir_all(&below).unwrap();
        if PostgreSql::missing(Path::new("/")).is_some() {
            return;
        }
        let mode = |place: &Path, mode| fs::set_permissions(place, fs::Permissions::from_mode(mode)).unwrap();
        mode(dir.path(), 0o755);
        mode(&closed, 0o755);
        assert_eq!(closed_to_postgres(&below), None);
        mode(&closed, 0o700);
        assert_eq!(closed_to_postgres(&below), Some(closed.as_path()));
        let missing = PostgreSql::missing(&below).unwrap();
        let expected = format!("user postgres cannot enter {}; give another --out", closed.display());
        assert_eq!(missing, expected);
    }
}
