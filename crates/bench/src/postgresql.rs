//! A TPC-C-like load on a real PostgreSQL, on ext4 on an attached volume. Needs root, FUSE, loop devices and PostgreSQL; what is
//! missing is told.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forebay_host::{FormatOptions, format};
use rustix::process::{Pid, Signal, kill_process};

use crate::BenchError;
use crate::contender::Contender;
use crate::daemon::Daemon;
use crate::run::{Outcome, Staleness, backing_spec, cache_spec, journal_spec};

/// Warehouses, of about 6 MB each.
const WAREHOUSES: u32 = 20;
const IMAGE_BYTES: u64 = 1 << 30;
/// About 80% of what the database has after its load.
const CACHE_BYTES: u64 = 112 << 20;
const CLIENTS: u32 = 8;
/// Longest wait for PostgreSQL to start or stop.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

const SCHEMA: &str = include_str!("postgresql/schema.sql");
/// Scripts of pgbench, and how often each is drawn, in percent.
const SCRIPTS: [(&str, &str, u32); 3] = [
    ("new_order", include_str!("postgresql/new_order.sql"), 47),
    ("payment", include_str!("postgresql/payment.sql"), 45),
    ("stock_level", include_str!("postgresql/stock_level.sql"), 8),
];

/// An image with a file system and a database on it, of which each contender gets a copy.
pub(crate) struct PostgreSql {
    bin: PathBuf,
    dir: PathBuf,
    image: PathBuf,
}

/// Runs a program that must end well.
fn call(program: impl AsRef<Path>, args: &[&str]) -> Result<String, BenchError> {
    let program = program.as_ref();
    let doing = || format!("run {}", program.display());
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| BenchError::system(doing(), e))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(BenchError::Forebay(format!("{} failed: {}", program.display(), said.trim())))
        }
    }
}

fn path(path: &Path) -> Result<&str, BenchError> {
    path.to_str().ok_or_else(|| BenchError::Forebay(format!("{} is not UTF-8", path.display())))
}

/// The newest PostgreSQL where Debian puts it.
fn newest() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let number = |p: &PathBuf| p.file_name().and_then(|n| n.to_str()).and_then(|n| n.parse::<u32>().ok());
    let newest = versions.filter_map(Result::ok).map(|e| e.path()).max_by_key(number)?;
    Some(newest.join("bin")).filter(|bin| bin.join("postgres").exists() && bin.join("pgbench").exists())
}

/// A mounted file system; dropping it unmounts it.
struct Mounted {
    place: PathBuf,
    /// A loop device that goes with it.
    device: Option<String>,
}

impl Mounted {
    fn new(device: &str, place: &Path, own: bool) -> Result<Self, BenchError> {
        fs::create_dir_all(place).map_err(|e| BenchError::system(format!("make {}", place.display()), e))?;
        call("mount", &[device, path(place)?])?;
        Ok(Self { place: place.to_owned(), device: own.then(|| device.to_owned()) })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // What cannot be unmounted is told by what follows, which needs the device.
        let _ = Command::new("umount").arg(&self.place).status();
        if let Some(device) = &self.device {
            let _ = Command::new("losetup").args(["-d", device]).status();
        }
    }
}

/// A running server; dropping it stops it.
struct Server<'a> {
    database: &'a PostgreSql,
    child: Child,
}

impl PostgreSql {
    /// What is missing to run it here, if anything is.
    pub(crate) fn missing() -> Option<String> {
        if !rustix::process::geteuid().is_root() {
            return Some("only root can attach and mount".to_owned());
        }
        if !Path::new("/dev/fuse").exists() || !Path::new("/dev/loop-control").exists() {
            return Some("this kernel has no FUSE or no loop devices".to_owned());
        }
        let Some(_) = newest() else { return Some("PostgreSQL is not installed".to_owned()) };
        let programs = [("mkfs.ext4", "-V"), ("setpriv", "--version"), ("losetup", "--version")];
        let absent = programs.iter().find(|(program, flag)| call(program, &[flag]).is_err());
        absent
            .map(|(program, _)| format!("{program} is missing"))
            .or_else(|| call("id", &["postgres"]).err().map(|_| "there is no user postgres".to_owned()))
    }

    /// Makes the image in `scratch`.
    pub(crate) fn prepare(scratch: &Path) -> Result<Self, BenchError> {
        let bin = newest().ok_or_else(|| BenchError::Forebay("PostgreSQL is not installed".to_owned()))?;
        let database = Self { bin, dir: scratch.to_owned(), image: scratch.join("image") };
        let made = |what: &Path| {
            let what = format!("make {}", what.display());
            move |e| BenchError::system(what, e)
        };
        let file = fs::File::create(&database.image).map_err(made(&database.image))?;
        file.set_len(IMAGE_BYTES).map_err(made(&database.image))?;
        for (name, script, _) in SCRIPTS {
            let place = scratch.join(format!("{name}.sql"));
            fs::write(&place, script).map_err(made(&place))?;
        }
        call("mkfs.ext4", &["-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", path(&database.image)?])?;
        let device = call("losetup", &["-f", "--show", path(&database.image)?])?;
        let _mounted = Mounted::new(device.trim(), &database.mount(), true)?;
        let data = database.data();
        call("install", &["-d", "-o", "postgres", path(&data)?])?;
        // The scratch directory may be root's alone; sockets lie on the volume.
        database
            .as_postgres("initdb", &["-D", path(&data)?, "-A", "trust", "-U", "postgres", "--no-sync"])?;
        let configuration =
            "shared_buffers = 16MB\nmax_wal_size = 64MB\nlisten_addresses = ''\ncheckpoint_timeout = 30s\n";
        let file = data.join("postgresql.auto.conf");
        fs::write(&file, configuration).map_err(made(&file))?;
        {
            let _server = Server::start(&database)?;
            let warehouses = format!("w={WAREHOUSES}");
            let schema = scratch.join("schema.sql");
            fs::write(&schema, SCHEMA).map_err(made(&schema))?;
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

    fn as_postgres(&self, program: &str, args: &[&str]) -> Result<String, BenchError> {
        let program = self.bin.join(program);
        let mut all = vec!["--reuid", "postgres", "--regid", "postgres", "--init-groups", path(&program)?];
        all.extend(args);
        call("setpriv", &all)
    }

    /// Runs the load on a copy of the image, on a volume of its own.
    pub(crate) fn measure(
        &self,
        forebay: &Path,
        contender: &Contender,
        warm: Duration,
        time: Duration,
    ) -> Result<Outcome, BenchError> {
        let (cache, backing) = (self.dir.join("pg-cache"), self.dir.join("pg-backing"));
        let label = self.dir.join(format!("pg-backing{}", forebay_host::LABEL_SUFFIX));
        let journal = backing.with_extension("log");
        for old in [&cache, &backing, &label, &journal] {
            // It is there from the second time on.
            let _ = fs::remove_file(old);
        }
        call("cp", &["--sparse=always", path(&self.image)?, path(&backing)?])?;
        let (cache_device, backing_device) = (cache_spec(&cache)?, backing_spec(&backing)?);
        let mut flags = contender.flags();
        flags.push(("journal", journal_spec(&backing)?.to_string()));
        let options = FormatOptions {
            cache: forebay_device::DeviceSpec::Path(cache),
            backing: forebay_device::DeviceSpec::Path(backing),
            cache_bytes: Some(CACHE_BYTES),
            backing_bytes: None,
            volume_bytes: None,
            align: None,
            force: false,
        };
        format(&options, &mut |_, _| {}).map_err(|e| BenchError::Forebay(e.to_string()))?;
        let mut daemon = Daemon::start(forebay, &self.dir, &cache_device, &backing_device, true, &flags)?;
        let device = daemon.attach()?;
        let _mounted = Mounted::new(path(&device)?, &self.mount(), false)?;
        let _server = Server::start(self)?;
        self.pgbench(warm)?;
        let per_second = self.pgbench(time)?;
        let status = daemon.status()?;
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

    /// Transactions a second.
    fn pgbench(&self, time: Duration) -> Result<f64, BenchError> {
        let (data, seconds) = (self.data(), time.as_secs().max(1).to_string());
        let (clients, warehouses) = (CLIENTS.to_string(), format!("w={WAREHOUSES}"));
        let mut args: Vec<String> =
            ["-h", path(&data)?, "-n", "-c", &clients, "-j", "2", "-T", &seconds, "-D", &warehouses]
                .map(str::to_owned)
                .to_vec();
        for (name, _, percent) in SCRIPTS {
            args.extend([
                "-f".to_owned(),
                format!("{}@{percent}", path(&self.dir.join(format!("{name}.sql")))?),
            ]);
        }
        args.push("postgres".to_owned());
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let said = self.as_postgres("pgbench", &args)?;
        let rate = said
            .lines()
            .filter_map(|line| line.strip_prefix("tps = "))
            .find_map(|rest| rest.split(' ').next()?.parse().ok());
        rate.ok_or_else(|| BenchError::Forebay(format!("pgbench says no rate: {}", said.trim())))
    }
}

impl<'a> Server<'a> {
    fn start(database: &'a PostgreSql) -> Result<Self, BenchError> {
        let (program, data) = (database.bin.join("postgres"), database.data());
        let log = fs::File::create(database.dir.join("postgres.log"))
            .map_err(|e| BenchError::system("write PostgreSQL's log", e))?;
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
            .spawn()
            .map_err(|e| BenchError::system("start PostgreSQL", e))?;
        let server = Self { database, child };
        let until = Instant::now() + PATIENCE;
        while call(database.bin.join("pg_isready"), &["-q", "-h", path(&data)?]).is_err() {
            if Instant::now() >= until {
                return Err(BenchError::Forebay("PostgreSQL does not start; see postgres.log".to_owned()));
            }
            std::thread::sleep(POLL);
        }
        Ok(server)
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        // The child has not been waited for, so that its pid is still its own.
        let _ = kill_process(Pid::from_child(&self.child), Signal::INT);
        let until = Instant::now() + PATIENCE;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(POLL);
        }
        if matches!(self.child.try_wait(), Ok(None)) {
            eprintln!("PostgreSQL in {} does not stop and is killed", self.database.dir.display());
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
