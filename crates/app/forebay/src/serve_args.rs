//! The arguments of `forebay serve`.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use forebay_nbd::Address;
use forebay_policy::{
    Admission, Durability, GroupEnds, JournalCaching, MaxStaleness, OnFull, Order, Ranges, SchedulerKind,
    Settings, WritePolicy,
};

use crate::background_dirty::BackgroundDirty;
use crate::config::{parse_logical_block, parse_socket_group, parse_socket_mode};
use crate::device_decoration::DeviceDecoration;
use crate::nbd_limits::NbdWishes;
use crate::volume_name;
use forebay_policy::size;
use forebay_tracker::Hints;

/// A parser for an enum of `forebay_policy`, which lists the spellings in help and completions.
macro_rules! choice {
    ($type:ty) => {
        PossibleValuesParser::new(<$type>::ALL.iter().map(|v| v.as_str())).try_map(|s| s.parse::<$type>())
    };
}

fn group_size(text: &str) -> Result<u64, String> {
    let mut settings = Settings::default();
    settings.set("group-size", text).map_err(|e| e.to_string())?;
    Ok(settings.group_bytes)
}

fn group_age(text: &str) -> Result<u64, String> {
    let mut settings = Settings::default();
    settings.set("group-age", text).map_err(|e| e.to_string())?;
    Ok(settings.group_age_ms)
}

fn yes_or_no(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "yes" | "y" | "true" | "t" | "on" | "1" => Ok(true),
        "no" | "n" | "false" | "f" | "off" | "0" => Ok(false),
        _ => Err(format!("'{text}' is neither yes nor no")),
    }
}

/// Arguments of `forebay serve`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    forebay serve --name db --cache /dev/nvme0n1p4 --backing /dev/sdb\n  \
    forebay serve --name db --cache cache.fb --backing disk.img --nbd unix:/run/db.nbd --write-policy write-through\n  \
    forebay serve --config /etc/forebay/db.toml\n\n\
Runs in the foreground and prints a line that begins with `ready` when it accepts connections.\n\n\
SIGTERM, SIGINT and SIGQUIT stop it cleanly, and so do SIGPWR and SIGXCPU. A second one of the first three stops \
it at once, which loses nothing that was acknowledged.\n\n\
SIGHUP is ignored, as the log says: no configuration is read again, and a lost terminal stops no volume. These \
are ignored, too: SIGUSR1, SIGUSR2, SIGPIPE, SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGSTKFLT, SIGXFSZ and the \
real-time signals.\n\n\
Of several volumes each is served if it can be. One that cannot is logged and named in the `ready` line, and \
`forebay status` shows it as `refused` with its reason. If none can be served the command ends with the exit \
code of the first.")]
pub struct Args {
    /// Name of the volume; with --config, serve only this one of the file
    #[arg(long, value_parser = volume_name::parse)]
    pub name: Option<String>,

    /// The cache, made by `forebay format`: a file or block device, pmem:PATH to map it into memory, or
    /// emulate:KIND:file=PATH to take the time of another device (docs/reference/emulate.md)
    #[arg(long, value_name = "CACHE")]
    pub cache: Option<String>,

    /// The store behind it: a file, block device, NBD export (nbd://HOST:PORT/EXPORT or nbd+unix:///EXPORT?socket=PATH), image of a
    /// Ceph cluster (rbd:POOL/IMAGE), volume in an object store (s3://BUCKET/PREFIX) or emulate:KIND:file=PATH. The options of all
    /// of them are in docs/reference/addresses.md
    #[arg(long, value_name = "BACKING")]
    pub backing: Option<String>,

    /// One control socket for all volumes, instead of the default one of each
    #[arg(long, value_name = "SOCKET")]
    pub control: Option<PathBuf>,

    /// Serve NBD clients there: unix:PATH or tcp:HOST:PORT; may be given several times
    #[arg(long, value_name = "ADDR")]
    pub nbd: Vec<Address>,

    /// Serve NBD clients there, too, and count every request over these connections as --critical does; a Forebay whose
    /// backing this is sends there what is waited for (critical= in its address). May be given several times
    #[arg(long, value_name = "ADDR")]
    pub critical_nbd: Vec<Address>,

    /// Mode of the unix sockets for NBD clients, in octal: with 0660 their group may connect, too [default: 0600]
    #[arg(long, value_name = "MODE", value_parser = parse_socket_mode)]
    pub socket_mode: Option<u32>,

    /// Group of these sockets, by name or number; needs a --socket-mode that lets it connect [default: the daemon's]
    #[arg(long, value_name = "GROUP", value_parser = parse_socket_group)]
    pub socket_group: Option<u32>,

    /// Make the volume appear as this file, through FUSE
    #[arg(long, value_name = "FILE")]
    pub fuse: Option<PathBuf>,

    /// When and in which order writes reach the backing [default: write-back]
    #[arg(long, value_name = "POLICY", value_parser = choice!(WritePolicy))]
    pub write_policy: Option<WritePolicy>,

    /// What --write-policy ordered keeps in order: every acknowledgement, or only flushes and forced writes. File
    /// systems and databases rely on the latter [default: completion]
    #[arg(long, value_name = "CHOICE", value_parser = choice!(Order))]
    pub order: Option<Order>,

    /// With --write-policy journaled: commit a group when it has this size [default: 16M]
    #[arg(long, value_name = "SIZE", value_parser = group_size)]
    pub group_size: Option<u64>,

    /// With --write-policy journaled: commit a group when its oldest write has this age, at most 8760h [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = group_age)]
    pub group_age: Option<u64>,

    /// With --write-policy journaled: where groups may end. `flushes` makes each flush a consistency point. With
    /// `points` the backing moves only from one declared point (forebay mark) to the next [default: anywhere]
    #[arg(long, value_name = "CHOICE", value_parser = choice!(GroupEnds))]
    pub group_ends: Option<GroupEnds>,

    /// With --write-policy journaled: the volume is a member of this consistency group, and shares its consistency points with
    /// the other --members
    #[arg(long, value_name = "NAME", requires = "members")]
    pub consistency_group: Option<String>,

    /// The members of the consistency group, this volume among them, with commas between. Each is the name of a
    /// volume, or NAME=SOCKET where its daemon's control socket is not the default one
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "consistency_group")]
    pub members: Vec<String>,

    /// How far the backing may lag behind: a time (5s; 10ms to 8760h) or a size (64M; at least 64K). Near it
    /// destaging is hurried, at its edge writers are throttled [default: none]
    #[arg(long, value_name = "TIME|SIZE")]
    pub max_staleness: Option<MaxStaleness>,

    /// Where the journal for --write-policy journaled lies: a file, block device or NBD export on the backing's side,
    /// or `none`. It must share the backing's fate [default: a file or image beside a backing that is one, or the room
    /// behind the volume's end on a device or NBD export]
    #[arg(long, value_name = "LOCATION")]
    pub journal: Option<String>,

    /// Which writes enter the cache [default: all]
    #[arg(long, value_name = "POLICY", alias = "admit", value_parser = choice!(Admission))]
    pub admission: Option<Admission>,

    /// What --admission range lets in: writes that touch these bytes, such as 0-16M,1G-2G, the end excluded
    #[arg(long, value_name = "RANGES")]
    pub ranges: Option<Ranges>,

    /// Bytes that may be written to the cache in a day before --admission adaptive tightens [default: any]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub endurance: Option<u64>,

    /// Count every request of NBD clients as one that an application's request waits for
    #[arg(long)]
    pub critical: bool,

    /// Most bytes a second of NBD clients' writes that --critical or --critical-nbd counts so, for this volume [default: any]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub critical_rate: Option<u64>,

    /// What becomes of blocks of journals that were found by the shape of their writes: cached as others, cached and not
    /// kept once they are on the backing, or past the cache [default: keep]
    #[arg(long, value_name = "CHOICE", value_parser = choice!(JournalCaching))]
    pub journal_caching: Option<JournalCaching>,

    /// What a write does when the cache has no room: wait for room, or go to the backing [default: wait]
    #[arg(long, value_name = "CHOICE", value_parser = choice!(OnFull))]
    pub on_full: Option<OnFull>,

    /// What an acknowledged plain write survives: a power cut, or a power cut only after a later flush
    /// [default: write]
    #[arg(long, value_name = "CHOICE", value_parser = choice!(Durability))]
    pub durability: Option<Durability>,

    /// Which operation of the backing starts next: what requests wait for (rcp), whichever came first (fifo), or as
    /// Linux's schedulers (deadline, cfq) and others choose that rcp is compared with [default: rcp]
    #[arg(long, value_name = "CHOICE", value_parser = choice!(SchedulerKind))]
    pub scheduler: Option<SchedulerKind>,

    /// Share of memory that the pages of an attached volume may have dirty before their write-back begins, at low priority: 0.01% to 50%, or
    /// `system` (or 0) for the system's own limit. It is lifted before writers outside of a memory cgroup wait by it [default: 1%]
    #[arg(long, value_name = "SHARE")]
    pub background_dirty: Option<BackgroundDirty>,

    /// With --no-cache: go on from what the backing has although its cache may hold newer data, and make that
    /// cache void
    #[arg(long)]
    pub accept_stale: bool,

    /// Serve a volume that another host has not stopped cleanly; make sure that it does not run there any more. An image of
    /// a Ceph cluster is taken away from there
    #[arg(long)]
    pub takeover: bool,

    /// Refuse writes, and write nothing to cache or backing: no destaging, no label, no journal. For snapshots, for a backing that can
    /// only be read, and to look at a volume; with --no-cache --accept-stale what the backing alone has
    #[arg(long)]
    pub read_only: bool,

    /// Logical block of the volume: 512, 1024, 2048 or 4096 bytes, recorded from then on. What is on the volume was made for the
    /// one that it had: a partition table or a file system may not be found under another one [default: what is recorded, the
    /// backing's where nothing is]
    #[arg(long, value_name = "SIZE", value_parser = parse_logical_block)]
    pub logical_block: Option<u32>,

    /// Serve the backing as it is, without a cache
    #[arg(long, conflicts_with = "cache")]
    pub no_cache: bool,

    /// Destage everything before a clean stop ends [default: no]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "yes",
        value_parser = yes_or_no)]
    pub destage_on_stop: Option<bool>,

    /// Who is critical among the tasks that write to attached volumes: postgresql, redis, mariadb, mongodb, servers, or a TOML file with
    /// rules (docs/guide/admission.md); may be given several times, the first rule that fits a task decides. SET@USER: those of a set that
    /// comes with Forebay, for tasks of one user
    #[arg(long, value_name = "RULES")]
    pub rules: Vec<String>,

    /// Whose hints are believed, by which a task says of itself that it works for a request: all, none, or a list of user=NAME and
    /// cgroup=PATH, with commas [default: all]
    #[arg(long, value_name = "WHOSE")]
    pub hints: Option<Hints>,

    /// Demand TLS of NBD clients on TCP, with server-cert.pem and server-key.pem of this directory
    #[arg(long, value_name = "DIR")]
    pub tls: Option<PathBuf>,

    /// Demand a certificate of these clients, too, signed by ca-cert.pem of that directory
    #[arg(long)]
    pub tls_verify_clients: bool,

    #[command(flatten)]
    pub nbd_wishes: NbdWishes,

    /// Record requests as they come, with who issued them and when they were answered, in this new file.
    /// `forebay tune journal --trace` replays it
    #[arg(long, value_name = "FILE")]
    pub record_requests: Option<PathBuf>,

    /// Delay, throttle or fail operations of a device, for tests: cache:DECORATION or backing:DECORATION
    #[arg(long, value_name = "ROLE:DECORATION", hide = true)]
    pub decorate: Vec<DeviceDecoration>,

    /// Read volumes and settings from this TOML file; flags win over it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}
