//! A Ceph of one node, in memory, for as long as the benchmark runs.

use std::fs;
use std::path::PathBuf;

use forebay_device::DeviceSpec;

use super::contender::Store;
use crate::mounted::{call, call_in, call_long, path};
use crate::{BenchError, Options};

/// Starts and stops it.
const SCRIPT: &str = include_str!("../../../../../scripts/ceph-one-node.sh");
/// Makes and empties the bucket.
const CLIENT: &str = include_str!("../../../../../tests/clients/object_store.py");
const POOL: &str = "rbd";
/// The bucket of all volumes.
pub(crate) const BUCKET: &str = "bench";

/// See the module's documentation. Dropping it stops it.
pub(crate) struct Cluster {
    script: PathBuf,
    directory: PathBuf,
    /// Makes and empties buckets.
    client: PathBuf,
    /// Variables of its clients: where it is, and keys that nobody needs to keep secret.
    pub(crate) environment: Vec<(String, String)>,
}

impl Cluster {
    /// # Errors
    /// [`BenchError`] if a program is missing, which is named, or if it does not start.
    pub(crate) fn start(options: &Options) -> Result<Self, BenchError> {
        let written = |name: &str, text: &str| {
            let place = options.scratch.join(name);
            let made = |e| BenchError::system(format!("make {}", place.display()), e);
            fs::write(&place, text).map_err(made).map(|()| place.clone())
        };
        let script = written("ceph-one-node.sh", SCRIPT)?;
        let directory = options.scratch.join("ceph");
        // What it was refused or what did not start is stopped, too.
        let client = written("object_store.py", CLIENT)?;
        let mut cluster = Self { script, directory, client, environment: Vec::new() };
        let up = [path(&cluster.script)?, "up", path(&cluster.directory)?, "--rgw"];
        call_long("bash", &up, &options.stopped)?;
        let file = cluster.directory.join("env");
        let text = fs::read_to_string(&file)
            .map_err(|e| BenchError::system(format!("read {}", file.display()), e))?;
        cluster.environment = exported(&text);
        // Else one of the user's own would go with these keys.
        cluster.environment.push(("AWS_SESSION_TOKEN".to_owned(), String::new()));
        cluster.call("python3", &[path(&cluster.client)?, "make-bucket", BUCKET])?;
        Ok(cluster)
    }

    /// Runs one of its clients.
    pub(crate) fn call(&self, program: &str, args: &[&str]) -> Result<String, BenchError> {
        call_in(&self.environment, program.as_ref(), args)
    }

    /// A variable of its clients.
    pub(crate) fn variable(&self, name: &str) -> &str {
        self.environment.iter().find(|(n, _)| n == name).map_or("", |(_, value)| value)
    }

    /// An image, as a backing.
    pub(crate) fn image(&self, name: &str) -> Result<DeviceSpec, BenchError> {
        spec(&format!("rbd:{POOL}/{name},conf={}", self.variable("CEPH_CONF")))
    }

    /// A volume of objects, as a backing.
    pub(crate) fn objects(&self, name: &str) -> Result<DeviceSpec, BenchError> {
        spec(&format!("s3://{BUCKET}/{name},endpoint={},region=us-east-1", self.endpoint()))
    }

    /// Where the gateway is.
    pub(crate) fn endpoint(&self) -> &str {
        self.variable("AWS_ENDPOINT_URL")
    }

    /// An image of librbd's, as QEMU names it, with librbd's own cache or without.
    pub(crate) fn image_for_qemu(&self, name: &str, cached: bool) -> String {
        let direct = if cached { "off" } else { "on" };
        let conf = self.variable("CEPH_CONF");
        format!("driver=rbd,node-name=disk,pool={POOL},image={name},conf={conf},cache.direct={direct}")
    }

    /// Makes an image of so many bytes.
    pub(crate) fn make_image(&self, name: &str, bytes: u64) -> Result<(), BenchError> {
        let size = format!("{}B", bytes);
        let image = format!("{POOL}/{name}");
        self.call("rbd", &["create", &image, "--size", &size, "--image-feature", "layering,exclusive-lock"])
            .map(drop)
    }
}

impl Cluster {
    /// Makes room: takes away all that a volume has left. What stays, stays until the end.
    pub(crate) fn remove(&self, store: Store, name: &str) {
        let removed = match store {
            Store::Rbd => {
                let image = format!("{POOL}/{name}");
                // There is a journal if somebody wanted one.
                let _ = self.call("rbd", &["rm", "--no-progress", &format!("{image}.journal")]);
                self.call("rbd", &["rm", "--no-progress", &image])
            }
            Store::S3 => path(&self.client)
                .and_then(|client| self.call("python3", &[client, "empty", BUCKET, &format!("{name}/")])),
        };
        if let Err(e) = removed {
            eprintln!("the volume {name} stays in the store: {e}");
        }
    }
}

fn spec(text: &str) -> Result<DeviceSpec, BenchError> {
    text.parse().map_err(|e: forebay_device::UnknownDevice| BenchError::Forebay(e.to_string()))
}

/// The variables that a file for `source` sets.
fn exported(text: &str) -> Vec<(String, String)> {
    let variable = |line: &str| {
        let (name, value) = line.strip_prefix("export ")?.split_once('=')?;
        Some((name.to_owned(), value.to_owned()))
    };
    text.lines().filter_map(variable).collect()
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if !self.directory.exists() {
            return;
        }
        let down = || call("bash", &[path(&self.script)?, "down", path(&self.directory)?]);
        if let Err(e) = down() {
            eprintln!("the Ceph in {} stays: {e}", self.directory.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_get_the_variables_of_the_file() {
        let cluster = Cluster {
            script: "none".into(),
            directory: "none".into(),
            client: "none".into(),
            environment: exported("# where\nexport CEPH_CONF=/c\nexport AWS_ENDPOINT_URL=http://a:1\n"),
        };
        assert_eq!((cluster.variable("CEPH_CONF"), cluster.variable("NONE")), ("/c", ""));
        assert_eq!(cluster.image("a").unwrap().to_string(), "rbd:rbd/a,conf=/c");
        let objects = cluster.objects("b").unwrap().to_string();
        assert!(objects.starts_with("s3://bench/b,") && objects.contains("endpoint=http://a:1"), "{objects}");
        let qemu = cluster.image_for_qemu("a", false);
        assert!(qemu.contains("image=a,conf=/c,cache.direct=on"), "{qemu}");
    }
}
