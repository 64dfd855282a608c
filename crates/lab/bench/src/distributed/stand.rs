//! A volume in the store, and what serves it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_device::DeviceSpec;
use serde_json::Value;

use super::cluster::BUCKET;
use super::contender::{Contender, Front, Store};
use super::{Bench, VOLUME_BYTES};
use crate::BenchError;
use crate::daemon::Daemon;
use crate::mounted::{LoopDevice, path};
use crate::other::Other;
use crate::site::{Emulated, NVDRAM};

/// A cache that takes all that is written in a slice.
const ROOM_BYTES: u64 = 1 << 30;
/// One that is full soon.
const FULL_BYTES: u64 = 64 << 20;

/// What a volume in an object store costs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    pub(crate) acknowledged_bytes: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) requests: u64,
}

/// What keeps a volume served. What is dropped first stands first.
enum Server {
    Forebay(Daemon),
    Other { _device: Option<LoopDevice>, _others: Vec<Other> },
}

/// See the module's documentation. Dropping it ends all.
pub(crate) struct Stand {
    server: Server,
    nbd: PathBuf,
    device: Option<PathBuf>,
}

fn must(program: &str, started: Option<Other>) -> Result<Other, BenchError> {
    started.ok_or_else(|| BenchError::Forebay(format!("{program} is not installed")))
}

fn make_directory(place: &Path) -> Result<(), BenchError> {
    fs::create_dir_all(place).map_err(|e| BenchError::system(format!("make {}", place.display()), e))
}

impl Stand {
    /// A new volume, served by NBD.
    pub(crate) fn serve(bench: &Bench<'_>, contender: Contender, name: &str) -> Result<Self, BenchError> {
        Self::new(bench, contender, name, false)
    }

    /// The same, as a block device.
    pub(crate) fn attach(bench: &Bench<'_>, contender: Contender, name: &str) -> Result<Self, BenchError> {
        Self::new(bench, contender, name, true)
    }

    fn new(bench: &Bench<'_>, contender: Contender, name: &str, attach: bool) -> Result<Self, BenchError> {
        let place = bench.options.scratch.join(name);
        make_directory(&place)?;
        match contender.front {
            Front::Librbd { cached } => Self::librbd(bench, &place, name, cached, attach),
            Front::S3backer => Self::s3backer(bench, &place, name, attach),
            Front::Forebay { .. } => Self::forebay(bench, contender, &place, name, attach),
        }
    }

    fn forebay(
        bench: &Bench<'_>,
        contender: Contender,
        place: &Path,
        name: &str,
        attach: bool,
    ) -> Result<Self, BenchError> {
        let cluster = &bench.cluster;
        let backing = match contender.store {
            Store::Rbd => cluster.image(name)?,
            Store::S3 => cluster.objects(name)?,
        };
        // It is there from the second time on.
        let file = bench.caches().join("cache");
        let _ = fs::remove_file(&file);
        let bytes = if contender.is_full() { FULL_BYTES } else { ROOM_BYTES };
        let forebay = path(&bench.options.forebay)?;
        let (size, volume) = (bytes.to_string(), VOLUME_BYTES.to_string());
        let address = backing.to_string();
        let format =
            ["format", path(&file)?, "--size", &size, "--backing", &address, "--backing-size", &volume];
        cluster.call(forebay, &format)?;
        let cache: DeviceSpec = Emulated::new(NVDRAM).at(&file)?;
        let policy = contender.policy().map(|policy| ("write-policy".to_owned(), policy.to_string()));
        let settings: Vec<(String, String)> = policy.into_iter().collect();
        let mut daemon = Daemon::start(
            &cluster.environment,
            &bench.options.forebay,
            place,
            Some(&cache),
            &backing,
            attach,
            &settings,
        )?;
        let device = attach.then(|| daemon.attach()).transpose()?;
        Ok(Self { nbd: daemon.nbd.clone(), device, server: Server::Forebay(daemon) })
    }

    /// QEMU's storage daemon: it serves an image by NBD, or as a file through FUSE.
    fn librbd(
        bench: &Bench<'_>,
        place: &Path,
        name: &str,
        cached: bool,
        attach: bool,
    ) -> Result<Self, BenchError> {
        const PROGRAM: &str = "qemu-storage-daemon";
        bench.cluster.make_image(name, VOLUME_BYTES)?;
        let (nbd, file) = (place.join("nbd.sock"), place.join("image"));
        let mut command = Command::new(PROGRAM);
        command.args(["--blockdev", &bench.cluster.image_for_qemu(name, cached)]);
        if attach {
            File::create(&file).map_err(|e| BenchError::system(format!("make {}", file.display()), e))?;
            let export = format!("type=fuse,id=e,node-name=disk,mountpoint={},writable=on", path(&file)?);
            command.args(["--export", &export]);
        } else {
            command.args(["--nbd-server", &format!("addr.type=unix,addr.path={}", path(&nbd)?)]);
            command.args(["--export", "type=nbd,id=e,node-name=disk,name=,writable=on"]);
        }
        let serves = || if attach { has_bytes(&file) } else { nbd.exists() };
        let other = must(PROGRAM, Other::start(command, serves)?)?;
        Self::of_others(nbd, attach.then_some(file.as_path()), vec![other])
    }

    /// A file whose blocks are objects. So that it answers no write before that is in the store, and holds none back for half a second
    /// after the last one of the same block. Its own copy of all blocks keeps it from reading.
    fn s3backer(bench: &Bench<'_>, place: &Path, name: &str, attach: bool) -> Result<Self, BenchError> {
        const PROGRAM: &str = "s3backer";
        let cluster = &bench.cluster;
        let (mount, keys, nbd) = (place.join("s3backer"), place.join("keys"), place.join("nbd.sock"));
        make_directory(&mount)?;
        let pair = format!(
            "{}:{}\n",
            cluster.variable("AWS_ACCESS_KEY_ID"),
            cluster.variable("AWS_SECRET_ACCESS_KEY")
        );
        fs::write(&keys, pair).map_err(|e| BenchError::system(format!("write {}", keys.display()), e))?;
        let mut command = Command::new(PROGRAM);
        command.arg(format!("--baseURL={}/", cluster.endpoint()));
        command.arg(format!("--accessFile={}", path(&keys)?));
        command.args([format!("--prefix={name}/"), format!("--size={VOLUME_BYTES}")]);
        command.args(["--blockCacheWriteDelay=0", "--blockCacheSync", "--listBlocks", "--quiet", "-f"]);
        command.args(["--minWriteDelay=0", "--md5CacheSize=0", "--md5CacheTime=0"]);
        command.arg(format!("--blockCacheSize={}", VOLUME_BYTES / 4096));
        command.arg(BUCKET).arg(&mount).stderr(std::process::Stdio::null());
        let file = mount.join("file");
        let mut others = vec![must(PROGRAM, Other::start(command, || has_bytes(&file))?)?];
        if !attach {
            let mut command = Command::new("nbdkit");
            command.args(["--foreground", "--threads=64", "--unix", path(&nbd)?, "file", path(&file)?]);
            // What serves another one ends before it.
            others.insert(0, must("nbdkit", Other::start(command, || nbd.exists())?)?);
        }
        Self::of_others(nbd, attach.then_some(file.as_path()), others)
    }

    fn of_others(nbd: PathBuf, file: Option<&Path>, others: Vec<Other>) -> Result<Self, BenchError> {
        let device = file.map(|file| LoopDevice::on(file, true)).transpose()?;
        let path = device.as_ref().map(|device| device.path().to_owned());
        Ok(Self { nbd, device: path, server: Server::Other { _device: device, _others: others } })
    }

    /// Where it is served by NBD.
    pub(crate) fn nbd(&self) -> &Path {
        &self.nbd
    }

    /// The block device.
    pub(crate) fn device(&self) -> Result<PathBuf, BenchError> {
        self.device.clone().ok_or_else(|| BenchError::Forebay("the volume is not attached".to_owned()))
    }

    /// Brings all that a cache of Forebay holds to the store.
    pub(crate) fn flush(&self) -> Result<(), BenchError> {
        match &self.server {
            Server::Forebay(daemon) => daemon.flush(),
            Server::Other { .. } => Ok(()),
        }
    }

    /// What of Forebay's cache is dirty.
    pub(crate) fn dirty_share(&self) -> Result<Option<f64>, BenchError> {
        match &self.server {
            Server::Forebay(daemon) => daemon.dirty_share().map(Some),
            Server::Other { .. } => Ok(None),
        }
    }

    /// What it has cost so far, of Forebay in an object store.
    pub(crate) fn cost(&self) -> Result<Option<Cost>, BenchError> {
        let Server::Forebay(daemon) = &self.server else { return Ok(None) };
        Ok(cost_of(&daemon.status()?))
    }
}

/// Whether it is there, with the bytes of the volume.
fn has_bytes(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|file| file.len() == VOLUME_BYTES)
}

/// What a volume has cost, by its status; nothing if nobody bills.
fn cost_of(status: &Value) -> Option<Cost> {
    let requests = status.get("store_requests")?.as_object()?;
    // Those that were sent again are among the others.
    let of_kinds = requests.iter().filter(|(kind, _)| *kind != "retry");
    let requests = of_kinds.filter_map(|(_, number)| number.as_u64()).sum();
    Some(Cost {
        acknowledged_bytes: status.get("bytes_acknowledged")?.as_u64()?,
        sent_bytes: status.get("store_bytes")?.get("sent")?.as_u64()?,
        requests,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_store_bills_is_added_up_and_of_others_there_is_nothing() {
        let status = serde_json::json!({
            "bytes_acknowledged": 100,
            "store_requests": {"create": 3, "get": 2, "list": 1, "delete": 1, "retry": 2},
            "store_bytes": {"sent": 120, "received": 7, "moved": 0, "checkpoints": 0},
        });
        let cost = cost_of(&status).unwrap();
        assert_eq!((cost.acknowledged_bytes, cost.sent_bytes, cost.requests), (100, 120, 7));
        let none = serde_json::json!({"bytes_acknowledged": 100, "store_requests": {}, "store_bytes": {}});
        assert!(cost_of(&none).is_none());
    }
}
