//! Naming a volume in an object store: `s3://BUCKET/PREFIX[,endpoint=URL][,region=NAME][,timeout=TIME][,checkpoint=NAME]`.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use url::Url;

use crate::decorate::duration;

/// The store may be silent in the midst of a request for so long, if nothing else is said.
const TIMEOUT: Duration = Duration::from_secs(30);
/// What may be said.
const TIMEOUTS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);
/// Lengths of bucket names.
const BUCKET_BYTES: RangeInclusive<usize> = 3..=63;
/// Most bytes of a prefix: a store takes keys of 1024, and the objects' own names come behind it.
const PREFIX_BYTES_MAX: usize = 512;
/// Most bytes of a checkpoint's name.
const NAME_BYTES_MAX: usize = 64;

const HOW: &str = "a volume in an object store is s3://BUCKET/PREFIX, with ,endpoint=URL ,region=NAME ,timeout=TIME or \
                   ,checkpoint=NAME behind it if that is to be chosen";

/// A volume in an object store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Spec {
    pub(crate) bucket: String,
    /// What the names of all its objects begin with, up to a slash that is not part of it.
    pub(crate) prefix: String,
    /// The store's address; else that of the environment, or Amazon's.
    pub(crate) endpoint: Option<Url>,
    /// Else that of the environment.
    pub(crate) region: Option<String>,
    /// For so long the store may be silent.
    pub(crate) timeout: Duration,
    /// The volume is to be what it was when this name was given.
    pub(crate) checkpoint: Option<String>,
    /// As it was given; a path only so that messages can name every device alike.
    text: PathBuf,
}

impl S3Spec {
    /// Reads what follows `s3:`.
    ///
    /// # Errors
    /// What is wrong with it, in words for a person.
    pub fn read(rest: &str) -> Result<Self, String> {
        let text = PathBuf::from(format!("s3:{rest}"));
        let mut parts = rest.strip_prefix("//").ok_or(HOW)?.split(',');
        let (bucket, prefix) = parts.next().and_then(|place| place.split_once('/')).ok_or(HOW)?;
        check_bucket(bucket)?;
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        check_prefix(prefix)?;
        let (mut endpoint, mut region, mut timeout, mut checkpoint) = (None, None, None, None);
        for parameter in parts {
            match parameter.split_once('=') {
                Some(("endpoint", url)) if endpoint.is_none() => endpoint = Some(read_endpoint(url)?),
                Some(("region", name)) if region.is_none() => region = Some(read_name("region", name)?),
                Some(("timeout", time)) if timeout.is_none() => timeout = Some(read_timeout(time)?),
                Some(("checkpoint", name)) if checkpoint.is_none() => {
                    checkpoint = Some(read_name("checkpoint", name)?);
                }
                // Who writes a key there by mistake does not want to read it in a log.
                Some((key, _)) => return Err(format!("'{key}' is not known of it, or given twice; {HOW}")),
                None => return Err(HOW.to_owned()),
            }
        }
        let (bucket, prefix) = (bucket.to_owned(), prefix.to_owned());
        Ok(Self { bucket, prefix, endpoint, region, timeout: timeout.unwrap_or(TIMEOUT), checkpoint, text })
    }

    /// What it was given as.
    pub(crate) fn as_path(&self) -> &Path {
        &self.text
    }
}

fn check_bucket(bucket: &str) -> Result<(), String> {
    let known = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    let ends_well = bucket.starts_with(|c: char| c.is_ascii_alphanumeric());
    (BUCKET_BYTES.contains(&bucket.len()) && ends_well && bucket.bytes().all(known)).then_some(()).ok_or_else(
        || {
            format!(
                "a bucket's name has 3 to 63 letters, digits, points and hyphens, which '{bucket}' has not"
            )
        },
    )
}

/// What every store, its listings and its logs show as it is.
fn check_prefix(prefix: &str) -> Result<(), String> {
    let known = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    // Points alone lead elsewhere on the way to the store.
    let is_name = |part: &str| !matches!(part, "" | "." | "..") && part.bytes().all(known);
    (prefix.len() <= PREFIX_BYTES_MAX && prefix.split('/').all(is_name)).then_some(()).ok_or_else(|| {
        format!(
            "its prefix is one or more names of letters, digits, points, hyphens and underscores with a / between, of at most \
             {PREFIX_BYTES_MAX} bytes, which '{prefix}' is not"
        )
    })
}

/// The address of a store, such as `https://store:9000`.
pub(super) fn read_endpoint(text: &str) -> Result<Url, String> {
    let bad = || {
        "its endpoint is http://HOST:PORT or https://HOST:PORT, without a user, a key or a query".to_owned()
    };
    let url = Url::parse(text).map_err(|_| bad())?;
    let is_plain = url.username().is_empty() && url.password().is_none();
    let is_whole = url.has_host() && url.query().is_none() && url.fragment().is_none();
    (matches!(url.scheme(), "http" | "https") && is_plain && is_whole).then_some(url).ok_or_else(bad)
}

fn read_name(what: &str, text: &str) -> Result<String, String> {
    let known = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    ((1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(known))
        .then(|| text.to_owned())
        .ok_or_else(|| {
            format!("its {what} has up to {NAME_BYTES_MAX} letters, digits, points, hyphens and underscores")
        })
}

fn read_timeout(text: &str) -> Result<Duration, String> {
    let time = duration(text).ok().filter(|time| TIMEOUTS.contains(time));
    time.ok_or_else(|| {
        let (least, most) = (TIMEOUTS.start().as_secs(), TIMEOUTS.end().as_secs());
        format!("its timeout is a time between {least}s and {most}s such as 30s, not '{text}'")
    })
}

impl fmt::Display for S3Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.display().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_of_all_kinds() {
        let spec = S3Spec::read("//bucket/volumes/db").unwrap();
        assert_eq!((spec.bucket.as_str(), spec.prefix.as_str()), ("bucket", "volumes/db"));
        assert_eq!((spec.endpoint, spec.region, spec.checkpoint), (None, None, None));
        assert_eq!(spec.timeout, TIMEOUT);
        let all =
            "//b.c-d/db/,timeout=1500ms,checkpoint=before-7.1,endpoint=http://[::1]:7480/s3,region=eu_1";
        let spec = S3Spec::read(all).unwrap();
        assert_eq!(spec.to_string(), format!("s3:{all}"));
        assert_eq!((spec.bucket.as_str(), spec.prefix.as_str()), ("b.c-d", "db"));
        assert_eq!(spec.endpoint.unwrap().as_str(), "http://[::1]:7480/s3");
        assert_eq!((spec.region.as_deref(), spec.checkpoint.as_deref()), (Some("eu_1"), Some("before-7.1")));
        assert_eq!(spec.timeout.as_millis(), 1500);
    }

    #[test]
    fn what_names_no_volume() {
        let long = format!("//bucket/{}", "a".repeat(PREFIX_BYTES_MAX + 1));
        for (rest, words) in [
            ("bucket/db", "s3://BUCKET/PREFIX"),
            ("//bucket", "s3://BUCKET/PREFIX"),
            ("//bucket/", "which '' is not"),
            ("//b/db", "'b' has not"),
            ("//-bucket/db", "'-bucket' has not"),
            ("//bück/db", "'bück' has not"),
            ("//bucket/a//b", "'a//b' is not"),
            ("//bucket/a/../b", "'a/../b' is not"),
            ("//bucket/a b", "'a b' is not"),
            ("//bucket/a%2e", "'a%2e' is not"),
            (&long, "at most 512 bytes"),
            ("//bucket/db,", "s3://BUCKET/PREFIX"),
            ("//bucket/db,endpoint", "s3://BUCKET/PREFIX"),
            ("//bucket/db,colour=red", "'colour' is not known"),
            ("//bucket/db,region=a,region=b", "'region' is not known of it, or given twice"),
            ("//bucket/db,region=", "its region has up to 64"),
            ("//bucket/db,checkpoint=a/b", "its checkpoint has up to 64"),
            ("//bucket/db,timeout=0s", "between 1s and 3600s such as 30s, not '0s'"),
            ("//bucket/db,timeout=2h", "between 1s and 3600s"),
            ("//bucket/db,endpoint=store:9000", "http://HOST:PORT"),
            ("//bucket/db,endpoint=ftp://store", "http://HOST:PORT"),
            ("//bucket/db,endpoint=http://", "http://HOST:PORT"),
            ("//bucket/db,endpoint=http://store?x=y", "http://HOST:PORT"),
            ("//bucket/db,endpoint=http://key:secret@store", "http://HOST:PORT"),
        ] {
            let told = S3Spec::read(rest).unwrap_err();
            assert!(told.contains(words), "{rest}: {told}");
            assert!(!told.contains("secret"), "{rest}: {told}");
        }
    }
}
