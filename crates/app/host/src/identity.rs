//! Who is who: this host, new devices, and backings that have no room for a label.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Identity of this host: its machine id, or the beginning of its name if it has none.
pub(crate) fn host_id() -> [u8; 16] {
    let text = fs::read_to_string("/etc/machine-id").unwrap_or_default();
    if let Ok(id) = u128::from_str_radix(text.trim(), 16) {
        return id.to_be_bytes();
    }
    let mut id = [0; 16];
    for (to, from) in id.iter_mut().zip(host_name().bytes()) {
        *to = from;
    }
    id
}

/// Name of this host, for messages.
pub(crate) fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim_end().to_owned()
}

/// A new random identity.
pub(crate) fn random_id() -> io::Result<[u8; 16]> {
    let mut id = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut id)?;
    Ok(id)
}

/// Nanoseconds since 1970.
pub(crate) fn wall_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// What identifies a block device that carries no label: the name that its maker or partition table gave it, else the
/// file behind a loop device, else only its size.
pub(crate) fn fingerprint(path: &Path, size_bytes: u64) -> String {
    let strong = fs::metadata(path).ok().filter(|m| m.file_type().is_block_device()).and_then(|meta| {
        let dev = meta.rdev();
        let sysfs = format!("/sys/dev/block/{}:{}", libc::major(dev), libc::minor(dev));
        block_identity(Path::new(&sysfs))
    });
    strong.unwrap_or_else(|| format!("size={size_bytes}"))
}

fn block_identity(sysfs: &Path) -> Option<String> {
    let text = |path: &Path| {
        let text = fs::read_to_string(path).ok()?;
        let text = text.trim().to_owned();
        (!text.is_empty()).then_some(text)
    };
    let uevent = text(&sysfs.join("uevent")).unwrap_or_default();
    if let Some(uuid) = uevent.lines().find_map(|line| line.strip_prefix("PARTUUID=")) {
        return Some(format!("partuuid={uuid}"));
    }
    // The name of a whole disk would fit each of its partitions: there the start tells them apart.
    let (disk, part) = match text(&sysfs.join("start")) {
        Some(start) => (sysfs.join(".."), format!(";start={start}")),
        None => (sysfs.to_owned(), String::new()),
    };
    let disk = fs::canonicalize(disk).ok()?;
    for (attribute, name) in [
        ("wwid", "wwid"),
        ("device/wwid", "wwid"),
        ("serial", "serial"),
        ("device/serial", "serial"),
        ("dm/uuid", "dm"),
    ] {
        if let Some(value) = text(&disk.join(attribute)) {
            return Some(format!("{name}={value}{part}"));
        }
    }
    let file = text(&disk.join("loop/backing_file"))?;
    let meta = fs::metadata(file).ok()?;
    let offset = text(&disk.join("loop/offset")).unwrap_or_default();
    Some(format!("loop={}:{}+{offset}{part}", meta.dev(), meta.ino()))
}
