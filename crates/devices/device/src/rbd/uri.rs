//! Naming an image of a Ceph cluster: `rbd:POOL/IMAGE[,conf=PATH][,id=NAME][,namespace=NAME][,timeout=TIME]`.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use crate::decorate::duration;

/// An operation that has not ended after so long is given up, if nothing else is said: what disks are given by kernels.
const TIMEOUT: Duration = Duration::from_secs(30);
/// What may be said.
const TIMEOUTS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);
/// How an image is named.
const HOW: &str = "an image of a Ceph cluster is rbd:POOL/IMAGE, with ,conf=PATH ,id=NAME ,namespace=NAME and ,timeout=TIME \
                   behind it if these are to be chosen";

/// An image of a Ceph cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RbdSpec {
    pub(crate) pool: String,
    pub(crate) image: String,
    /// The cluster's configuration; else it is where Ceph's own tools look for it.
    pub(crate) conf: Option<PathBuf>,
    /// The Ceph user, without `client.`; else `admin`.
    pub(crate) id: Option<String>,
    /// The pool's namespace; else its default one.
    pub(crate) namespace: Option<String>,
    /// An operation that has not ended after so long is given up.
    pub(crate) timeout: Duration,
    /// All of it as text, its path absolute; a path only so that messages can name every device alike.
    pub(crate) address: PathBuf,
}

impl RbdSpec {
    /// Reads what follows `rbd:`.
    ///
    /// # Errors
    /// What is wrong with it, in words for a person.
    pub fn read(rest: &str) -> Result<Self, String> {
        let mut parts = rest.split(',');
        let name = parts.next().unwrap_or_default();
        let (pool, image) = name.split_once('/').ok_or(HOW)?;
        if pool.is_empty() || image.is_empty() {
            return Err(HOW.to_owned());
        }
        if image.contains('/') {
            return Err(
                "it names more than a pool and an image; a namespace is said by ,namespace=NAME".to_owned()
            );
        }
        if name.contains('@') {
            return Err(
                "it names a snapshot, which cannot be written to; name the image, or a clone of the snapshot"
                    .to_owned(),
            );
        }
        let mut spec = Self {
            pool: pool.to_owned(),
            image: image.to_owned(),
            conf: None,
            id: None,
            namespace: None,
            timeout: TIMEOUT,
            address: PathBuf::new(),
        };
        let mut address = format!("rbd:{name}");
        let mut has_timeout = false;
        for parameter in parts {
            let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let mut text = value.to_owned();
            match key {
                "conf" | "id" | "namespace" | "timeout" if value.is_empty() && key != parameter => {
                    return Err(format!("its {key} is empty"));
                }
                _ if value.is_empty() => return Err(unknown(parameter)),
                "conf" if spec.conf.is_none() => {
                    let path = std::path::absolute(value).unwrap_or_else(|_| value.into());
                    text = path.display().to_string();
                    spec.conf = Some(path);
                }
                "id" if spec.id.is_none() => spec.id = Some(read_id(value)?),
                "namespace" if spec.namespace.is_none() => spec.namespace = Some(value.to_owned()),
                "timeout" if !has_timeout => (spec.timeout, has_timeout) = (read_timeout(value)?, true),
                _ => return Err(unknown(parameter)),
            }
            address.push_str(&format!(",{key}={text}"));
        }
        spec.address = address.into();
        Ok(spec)
    }

    /// The image beside it, in which the journal lies of a backing here.
    pub(crate) fn journal(&self) -> Self {
        let (image, address) = (format!("{}.journal", self.image), self.address.display().to_string());
        let own = format!("rbd:{}/{}", self.pool, self.image);
        let options = address.strip_prefix(&own).unwrap_or_default();
        let address = format!("{own}.journal{options}").into();
        Self { image, address, ..self.clone() }
    }
}

fn unknown(parameter: &str) -> String {
    format!("'{parameter}' is not known of it, or given twice; {HOW}")
}

fn read_id(text: &str) -> Result<String, String> {
    match text.strip_prefix("client.") {
        Some(rest) => Err(format!("its id is the Ceph user without 'client.', that is {rest}")),
        None => Ok(text.to_owned()),
    }
}

fn read_timeout(text: &str) -> Result<Duration, String> {
    let time = duration(text).ok().filter(|time| TIMEOUTS.contains(time));
    time.ok_or_else(|| {
        let (least, most) = (TIMEOUTS.start().as_secs(), TIMEOUTS.end().as_secs());
        format!("its timeout is a time between {least}s and {most}s such as 30s, not '{text}'")
    })
}

impl fmt::Display for RbdSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.display().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn images_of_all_kinds() {
        let plain = RbdSpec::read("rbd/db").unwrap();
        assert_eq!((plain.pool.as_str(), plain.image.as_str(), plain.timeout), ("rbd", "db", TIMEOUT));
        assert_eq!((&plain.conf, &plain.id, &plain.namespace), (&None, &None, &None));
        assert_eq!(plain.to_string(), "rbd:rbd/db");

        let full = RbdSpec::read("p/i,timeout=1500ms,id=fore.bay,namespace=n,conf=/etc/c=d.conf").unwrap();
        assert_eq!(full.conf.as_deref(), Some(Path::new("/etc/c=d.conf")));
        assert_eq!((full.id.as_deref(), full.namespace.as_deref()), (Some("fore.bay"), Some("n")));
        assert_eq!(full.timeout, Duration::from_millis(1500));
        assert_eq!(full.to_string(), "rbd:p/i,timeout=1500ms,id=fore.bay,namespace=n,conf=/etc/c=d.conf");

        let journal = full.journal();
        assert_eq!(
            journal.to_string(),
            "rbd:p/i.journal,timeout=1500ms,id=fore.bay,namespace=n,conf=/etc/c=d.conf"
        );
        assert_eq!(RbdSpec::read(journal.to_string().strip_prefix("rbd:").unwrap()).unwrap(), journal);

        let relative = RbdSpec::read("p/i,conf=c").unwrap();
        let here = std::env::current_dir().unwrap().join("c");
        assert_eq!(relative.to_string(), format!("rbd:p/i,conf={}", here.display()));
        assert_eq!(RbdSpec::read(relative.to_string().strip_prefix("rbd:").unwrap()).unwrap(), relative);
    }

    #[test]
    fn what_is_no_image_is_refused_in_words() {
        for (rest, words) in [
            ("", "rbd:POOL/IMAGE"),
            ("pool", "rbd:POOL/IMAGE"),
            ("/image", "rbd:POOL/IMAGE"),
            ("pool/", "rbd:POOL/IMAGE"),
            ("pool/space/image", "a namespace is said by ,namespace=NAME"),
            ("pool/image@monday", "it names a snapshot"),
            ("pool/image,", "'' is not known"),
            ("pool/image,id", "'id' is not known"),
            ("pool/image,id=", "its id is empty"),
            ("pool/image,conf=", "its conf is empty"),
            ("pool/image,key=", "'key=' is not known"),
            ("pool/image,key=secret", "'key=secret' is not known"),
            ("pool/image,id=a,id=b", "'id=b' is not known of it, or given twice"),
            ("pool/image,timeout=2s,timeout=2s", "given twice"),
            ("pool/image,conf=a,conf=a", "given twice"),
            ("pool/image,namespace=a,namespace=a", "given twice"),
            ("pool/image,id=client.a", "without 'client.', that is a"),
            ("pool/image,timeout=0s", "between 1s and 3600s such as 30s, not '0s'"),
            ("pool/image,timeout=2h", "between 1s and 3600s"),
            ("pool/image,timeout=5", "not '5'"),
        ] {
            let told = RbdSpec::read(rest).unwrap_err();
            assert!(told.contains(words), "{rest}: {told}");
        }
    }
}
