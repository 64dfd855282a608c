//! A session with a cluster, and one image of it that is this process's alone.
//!
//! **The lock.** The image's exclusive lock is taken when it is opened, and kept until it is closed; whoever asks for it is refused. Who breaks it
//! makes the cluster refuse whatever comes from this session from then on, reads too ([`super::under_way::FENCED`]). `--takeover` does so to the
//! session of another host; what is done without it, [`super::owner`] says.
//!
//! **Time.** While the image is opened or closed nothing is waited for longer than the address's `timeout`. In between the session gives up nothing:
//! an operation that Ceph gives up may be carried out later, and nobody would know ([`super::under_way`]).

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use forebay_block::{DeviceOp, words_of};

use crate::access::{Access, OpenError};
use crate::rbd::librbd::{Cluster, Ended, Extent, Image, Pool};
use crate::rbd::owner::{Note, Verdict, normalized};
use crate::rbd::uri::RbdSpec;
use crate::remote::{RemoteSpec, began, this_host};

/// Monitors gather changes for a second before they carry them out, so that a shorter limit than this would be none.
const MONITOR_MIN: Duration = Duration::from_secs(10);
/// Who was taken over from is kept out for so long, in seconds; a year. It may have been cut off, with writes to send when it is back.
const KEPT_OUT_S: u32 = 365 * 24 * 3600;
/// The cluster hears of a client for half a minute after its last word, unless it is told otherwise.
const HEARD_OF_MAX: Duration = Duration::from_secs(45);
/// How often it is asked.
const HEARD_OF_POLL: Duration = Duration::from_millis(500);
/// Attempts to take a lock that others take or break at the same time.
const ATTEMPTS_MAX: usize = 4;
/// Attribute of an image's header in which a host says who has opened it, behind which its machine id stands.
const NOTE: &str = "forebay.owner.";

/// See the module's documentation.
pub(super) struct Session {
    // In the order in which they are closed.
    image: Image,
    pool: Pool,
    cluster: Cluster,
    timeout: Duration,
    pub(super) extent: Extent,
}

impl Session {
    /// Opens an image, and takes its lock unless it is only read; whoever only looks asks for none.
    pub(super) fn open(spec: &RbdSpec, access: Access) -> Result<Self, OpenError> {
        let failed = |doing| move |e| OpenError::system(doing, spec.as_path(), e);
        let cluster = connect(spec).map_err(failed("connect to"))?;
        let pool = find_pool(spec, &cluster).map_err(failed("open"))?;
        let image = find_image(spec, &pool, !access.writes()).map_err(failed("open"))?;
        let session = Self {
            extent: image.extent().map_err(failed("look at"))?,
            image,
            pool,
            cluster,
            timeout: spec.timeout,
        };
        session.check_settings(spec).map_err(failed("use"))?;
        if access != Access::Look {
            session.take(spec, access)?;
        }
        session.limit(None).map_err(failed("use"))?;
        Ok(session)
    }

    /// Refuses settings with which an acknowledged write would not be on the OSDs, or an owner who lost the lock not be kept out.
    fn check_settings(&self, spec: &RbdSpec) -> io::Result<()> {
        let (pool, image) = (&spec.pool, &spec.image);
        for (name, value) in self.image.settings()? {
            let is_fit = match name.as_str() {
                "rbd_cache" => value == "false",
                "rbd_persistent_cache_mode" => value == "disabled",
                "rbd_blocklist_on_break_lock" => value == "true",
                _ => true,
            };
            if !is_fit {
                return Err(unfit(format!(
                    "the cluster sets {name} to {value} for it, with which its writes would not be safe; take that away with \
                     `rbd config image rm {pool}/{image} {name}`, or `rbd config pool rm {pool} {name}`"
                )));
            }
        }
        Ok(())
    }

    /// Takes the lock. For reading alone it is only made sure that nobody else may write just now.
    fn take(&self, spec: &RbdSpec, access: Access) -> Result<(), OpenError> {
        let failed = |doing| move |e| OpenError::system(doing, spec.as_path(), e);
        if !self.image.can_be_locked().map_err(failed("look at"))? {
            let (pool, image) = (&spec.pool, &spec.image);
            return Err(failed("use")(unfit(format!(
                "it cannot be locked; `rbd feature enable {pool}/{image} exclusive-lock` changes that"
            ))));
        }
        let note = Note::of_this_process(&self.cluster.address().map_err(failed("look at"))?);
        let header = format!("rbd_header.{}", self.image.id().map_err(failed("look at"))?);
        let attribute = format!("{NOTE}{}", this_host());
        let mut last = None;
        for _ in 0..ATTEMPTS_MAX {
            let owner = self.image.lock_owner().map_err(failed("look at the lock of"))?;
            let verdict = match &owner {
                Some(owner) => {
                    let left =
                        self.pool.attribute(&header, &attribute).map_err(failed("look at the lock of"))?;
                    let left = left.and_then(|left| Note::decode(&String::from_utf8_lossy(&left)));
                    Some(
                        self.verdict(spec, owner, &note, left.as_ref())
                            .map_err(failed("look at the lock of"))?,
                    )
                }
                None => None,
            };
            if let (Some(owner), Some(Verdict::Lives(process))) = (&owner, verdict)
                && access != Access::TakeOver
            {
                return Err(OpenError::InUse {
                    path: spec.as_path().to_owned(),
                    holder: holder(owner, process),
                });
            }
            if !access.writes() {
                return Ok(());
            }
            // Before the lock, so that there is never a lock of this host without it.
            let noted = self.pool.set_attribute(&header, &attribute, note.encode().as_bytes());
            noted.map_err(failed("leave a note on"))?;
            let locked = match &owner {
                Some(owner) => self.break_lock(spec, owner, verdict).and_then(|()| self.image.lock()),
                None => self.image.lock(),
            };
            match locked {
                Ok(()) => return Ok(()),
                // Somebody else has let go of it or taken it meanwhile.
                Err(e)
                    if matches!(
                        e.raw_os_error(),
                        Some(libc::ENOENT | libc::EROFS | libc::EBUSY | libc::EAGAIN)
                    ) => {}
                Err(e) => return Err(failed("lock")(forbidden(e, spec))),
            }
            last = owner;
        }
        let holder = holder(last.as_deref().unwrap_or("an address that changes"), None);
        Err(OpenError::InUse { path: spec.as_path().to_owned(), holder })
    }

    /// Whether the owner of the lock may write. One that cannot be seen is waited for to fall silent.
    fn verdict(&self, spec: &RbdSpec, owner: &str, own: &Note, left: Option<&Note>) -> io::Result<Verdict> {
        Ok(match own.judge(owner, left, began) {
            Verdict::LivesIfHeardOf if !self.falls_silent(spec, owner)? => Verdict::Lives(None),
            verdict => verdict,
        })
    }

    /// Takes the lock away from its owner, and keeps that out: for long, unless it is a process that is dead for certain.
    fn break_lock(&self, spec: &RbdSpec, owner: &str, verdict: Option<Verdict>) -> io::Result<()> {
        if verdict != Some(Verdict::Dead) {
            self.cluster.keep_out(owner, KEPT_OUT_S)?;
        }
        self.image.break_lock(owner)?;
        tracing::warn!(%spec, owner, "the lock of the RBD image was broken; the cluster takes nothing from its owner any more");
        Ok(())
    }

    /// Waits for the cluster to hear no more of an owner that cannot be seen from here.
    fn falls_silent(&self, spec: &RbdSpec, owner: &str) -> io::Result<bool> {
        let until = Instant::now() + HEARD_OF_MAX;
        let mut said = false;
        loop {
            let is_heard_of =
                self.image.watchers()?.iter().any(|other| normalized(other) == normalized(owner));
            if !is_heard_of || Instant::now() > until {
                return Ok(!is_heard_of);
            }
            if !std::mem::replace(&mut said, true) {
                tracing::info!(%spec, owner, "an earlier run of this host has the RBD image locked; waiting whether the cluster still hears of it");
            }
            thread::sleep(HEARD_OF_POLL);
        }
    }

    /// From now on operations fail that are not answered in so long, or none does.
    fn limit(&self, timeout: Option<Duration>) -> io::Result<()> {
        limit(&self.cluster, timeout)
    }

    /// Starts an operation.
    pub(super) fn start(&self, op: DeviceOp, ended: Ended) {
        match op {
            DeviceOp::Read { offset, len } => self.image.read(offset, len, ended),
            DeviceOp::Write { offset, bufs, .. } => self.image.write(offset, bufs, ended),
            DeviceOp::Zero { offset, len, unmap } => self.image.zero(offset, len, unmap, ended),
            DeviceOp::Flush => self.image.flush(ended),
            // It is refused before it comes here.
            DeviceOp::Commit(_) => ended(Err(libc::EOPNOTSUPP)),
        }
    }

    /// Lets go of the image and its lock; nothing must be under way.
    pub(super) fn close(self) {
        // Whatever comes of it, closing is tried.
        let _ = self.limit(Some(self.timeout));
    }

    /// Leaves the session as it is until the process ends, with its lock: operations are under way.
    pub(super) fn abandon(self) {
        std::mem::forget(self);
    }
}

/// Makes the image of an address, if there is none; whether it has.
pub(super) fn make(spec: &RbdSpec, size_bytes: u64) -> Result<bool, OpenError> {
    match in_pool(spec, "make", |pool| pool.make_image(&spec.image, size_bytes)) {
        Err(OpenError::System { source, .. }) if source.raw_os_error() == Some(libc::EEXIST) => Ok(false),
        made => made.map(|()| true),
    }
}

/// Removes the image of an address.
pub(super) fn remove(spec: &RbdSpec) -> Result<(), OpenError> {
    in_pool(spec, "remove", |pool| pool.remove_image(&spec.image))
}

/// Does something in the pool of an address, in a session of its own.
fn in_pool(
    spec: &RbdSpec,
    doing: &'static str,
    act: impl FnOnce(&Pool) -> io::Result<()>,
) -> Result<(), OpenError> {
    let failed = |doing| move |e| OpenError::system(doing, spec.as_path(), e);
    let cluster = connect(spec).map_err(failed("connect to"))?;
    let pool = find_pool(spec, &cluster).map_err(failed("open"))?;
    act(&pool).map_err(|e| failed(doing)(forbidden(e, spec)))
}

/// Connects to the cluster.
fn connect(spec: &RbdSpec) -> io::Result<Cluster> {
    let user = spec.id.as_deref().unwrap_or("admin");
    // The library takes it for an empty file.
    if let Some(conf) = spec.conf.as_deref().filter(|conf| conf.is_dir()) {
        return Err(unfit(format!(
            "its configuration {} is a directory; name the file in it",
            conf.display()
        )));
    }
    let cluster = Cluster::new(spec.id.as_deref(), spec.conf.as_deref()).map_err(|e| match (e.raw_os_error(), &spec.conf) {
        (Some(libc::ENOENT), None) => {
            unfit("there is no configuration of a Ceph cluster, as /etc/ceph/ceph.conf; name one with ,conf=PATH".to_owned())
        }
        (Some(_), Some(conf)) => unfit(format!("its configuration {} cannot be read: {}", conf.display(), words_of(&e))),
        _ => e,
    })?;
    for (option, value) in [
        // An acknowledged write is on the OSDs.
        ("rbd_cache", "false"),
        // Starting an operation waits for nothing.
        ("rbd_non_blocking_aio", "true"),
        // What fails is told by who asked.
        ("log_to_stderr", "false"),
        ("err_to_stderr", "false"),
        ("client_mount_timeout", &seconds(spec.timeout)),
    ] {
        cluster.set(option, value)?;
    }
    limit(&cluster, Some(spec.timeout))?;
    cluster.connect().map_err(|e| match e.raw_os_error() {
        Some(libc::ETIMEDOUT) => io::Error::new(io::ErrorKind::TimedOut, "no monitor of the cluster answers"),
        Some(libc::ENOENT) => unfit(format!(
            "there is no key of the Ceph user client.{user} here (see `keyring` in the configuration)"
        )),
        Some(libc::EACCES | libc::EPERM) => unfit(format!("the cluster refuses the Ceph user client.{user}")),
        Some(libc::ESHUTDOWN) => unfit("the cluster refuses this host (`ceph osd blocklist ls`)".to_owned()),
        _ => e,
    })?;
    Ok(cluster)
}

/// As [`Session::limit`].
fn limit(cluster: &Cluster, timeout: Option<Duration>) -> io::Result<()> {
    let monitors = timeout.map(|timeout| timeout.max(MONITOR_MIN));
    let none = || "0".to_owned();
    cluster.set("rados_osd_op_timeout", &timeout.map_or_else(none, seconds))?;
    cluster.set("rados_mon_op_timeout", &monitors.map_or_else(none, seconds))
}

/// In whole seconds, which are not fewer.
fn seconds(time: Duration) -> String {
    time.as_millis().div_ceil(1000).to_string()
}

fn find_pool(spec: &RbdSpec, cluster: &Cluster) -> io::Result<Pool> {
    let pool = cluster.pool(&spec.pool, spec.namespace.as_deref());
    pool.map_err(|e| missing(e, spec, || format!("the cluster has no pool '{}'", spec.pool)))
}

fn find_image(spec: &RbdSpec, pool: &Pool, read_only: bool) -> io::Result<Image> {
    pool.image(&spec.image, read_only).map_err(|e| {
        let (name, image) = (&spec.pool, &spec.image);
        let place =
            spec.namespace.as_ref().map_or_else(|| name.clone(), |namespace| format!("{name}/{namespace}"));
        missing(e, spec, || {
            format!("there is no image '{image}' (`rbd create --size SIZE {place}/{image}` makes one)")
        })
    })
}

/// Says what is missing, if that is it.
fn missing(e: io::Error, spec: &RbdSpec, what: impl FnOnce() -> String) -> io::Error {
    match e.raw_os_error() {
        Some(libc::ENOENT) => io::Error::new(io::ErrorKind::NotFound, what()),
        Some(libc::ETIMEDOUT) => io::Error::new(io::ErrorKind::TimedOut, "the OSDs do not answer"),
        _ => forbidden(e, spec),
    }
}

fn unfit(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

/// Says what right is missing, if that is it.
fn forbidden(e: io::Error, spec: &RbdSpec) -> io::Error {
    let user = spec.id.as_deref().unwrap_or("admin");
    match e.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "the Ceph user client.{user} may not; it needs mon 'profile rbd' and osd 'profile rbd pool={}'",
                spec.pool
            ),
        ),
        _ => e,
    }
}

/// Who has the lock: a process of this host, or somebody else.
fn holder(owner: &str, process: Option<u32>) -> String {
    match process {
        Some(pid) if pid == std::process::id() => "this process itself (given twice?)".to_owned(),
        Some(pid) => format!("another process of this host (process {pid})"),
        None => format!(
            "the Ceph client at {}, which has its exclusive lock; end it there, or if its host is surely dead, give --takeover",
            normalized(owner)
        ),
    }
}
