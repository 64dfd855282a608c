//! The configuration file of `forebay serve`: TOML, several volumes.

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use forebay_guard::group_id;
use forebay_host::is_logical_block;
use forebay_nbd::Address;
use forebay_policy::{
    Admission, Durability, GroupEnds, JournalCaching, MaxStaleness, OnFull, Order, Ranges, SchedulerKind,
    Settings, WritePolicy, time,
};
use forebay_tracker::Hints;
use serde::{Deserialize, Deserializer};

use crate::background_dirty::BackgroundDirty;
use crate::nearest::nearest;
use crate::volume_name;
use forebay_policy::size::{self, Size};

/// A configuration file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    /// One control socket for all volumes, instead of a default one for each.
    pub control: Option<PathBuf>,
    /// Whether a clean stop destages everything first.
    pub destage_on_stop: Option<bool>,
    /// Mode of the unix sockets for NBD clients.
    #[serde(default, deserialize_with = "socket_mode")]
    pub socket_mode: Option<u32>,
    /// Their group.
    #[serde(default, deserialize_with = "socket_group")]
    pub socket_group: Option<u32>,
    /// Directory with certificates: NBD clients on TCP must use TLS.
    pub tls: Option<PathBuf>,
    /// Whether they must show a certificate, too.
    pub tls_verify_clients: Option<bool>,
    /// NBD clients of one address at a time.
    pub nbd_connections: Option<usize>,
    /// Of these, clients of one IP address or user.
    pub nbd_connections_per_address: Option<usize>,
    /// Time for their negotiation.
    #[serde(default, rename = "nbd-handshake-time", deserialize_with = "milliseconds")]
    pub nbd_handshake_ms: Option<u64>,
    /// Memory for data of all NBD clients.
    #[serde(default, deserialize_with = "spelled")]
    pub nbd_memory: Option<Size>,
    /// Who is critical: names of rule sets, or files.
    #[serde(default)]
    pub rules: Vec<String>,
    /// Whose hints are believed.
    #[serde(default, deserialize_with = "spelled")]
    pub hints: Option<Hints>,
    /// The volumes.
    #[serde(default)]
    pub volume: Vec<VolumeConfig>,
}

/// One `[[volume]]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct VolumeConfig {
    /// Its name.
    #[serde(deserialize_with = "checked_name")]
    pub name: String,
    /// The cache.
    pub cache: Option<String>,
    /// The backing.
    pub backing: Option<String>,
    /// Where NBD clients are served. Volumes that name the same address share a server.
    #[serde(default, deserialize_with = "spelled_list")]
    pub nbd: Vec<Address>,
    /// The same for clients of whom every request is awaited.
    #[serde(default, deserialize_with = "spelled_list")]
    pub critical_nbd: Vec<Address>,
    /// File that becomes the volume.
    pub fuse: Option<PathBuf>,
    /// Serve the backing as it is.
    pub no_cache: Option<bool>,
    /// Go on without the cache that the backing was paired with.
    pub accept_stale: Option<bool>,
    /// Take the volume over from a host that did not stop it cleanly.
    pub takeover: Option<bool>,
    /// Refuse writes, and write nothing to cache or backing.
    pub read_only: Option<bool>,
    /// Logical block of the volume, in bytes.
    #[serde(default, deserialize_with = "logical_block")]
    pub logical_block: Option<u32>,
    /// See [`forebay_policy::Settings`].
    #[serde(default, deserialize_with = "spelled")]
    pub write_policy: Option<WritePolicy>,
    /// See [`forebay_policy::Settings`].
    #[serde(default, deserialize_with = "spelled")]
    pub order: Option<Order>,
    /// See [`forebay_policy::Settings`].
    #[serde(default, rename = "group-size", deserialize_with = "group_size")]
    pub group_bytes: Option<u64>,
    /// See [`forebay_policy::Settings`].
    #[serde(default, rename = "group-age", deserialize_with = "group_age")]
    pub group_age_ms: Option<u64>,
    /// See [`forebay_policy::Settings`].
    #[serde(default, deserialize_with = "spelled")]
    pub group_ends: Option<GroupEnds>,
    /// Name of the consistency group that it is a member of.
    pub consistency_group: Option<String>,
    /// The members, itself among them, each as a name or `NAME=SOCKET`.
    #[serde(default)]
    pub members: Vec<String>,
    /// See [`forebay_policy::Settings`].
    #[serde(default, deserialize_with = "spelled")]
    pub max_staleness: Option<MaxStaleness>,
    /// Where the journal lies.
    pub journal: Option<String>,
    /// See [`forebay_policy::Settings`].
    #[serde(default, deserialize_with = "spelled", alias = "admit")]
    pub admission: Option<Admission>,
    /// What the admission policy `range` lets in.
    #[serde(default, deserialize_with = "spelled")]
    pub ranges: Option<Ranges>,
    /// Bytes a day that may be written to the cache before `adaptive` tightens.
    #[serde(default, deserialize_with = "spelled")]
    pub endurance: Option<Size>,
    /// Somebody waits for every request of NBD clients.
    pub critical: Option<bool>,
    /// Of their writes at most so many bytes a second count as awaited.
    #[serde(default, deserialize_with = "spelled")]
    pub critical_rate: Option<Size>,
    /// See [`forebay_policy::Settings`].
    #[serde(default, deserialize_with = "spelled")]
    pub journal_caching: Option<JournalCaching>,
    /// See [`forebay_policy::Settings`].
    #[serde(default, deserialize_with = "spelled")]
    pub on_full: Option<OnFull>,
    /// See [`forebay_policy::Settings`].
    #[serde(default, deserialize_with = "spelled")]
    pub durability: Option<Durability>,
    /// See [`forebay_policy::Settings`].
    #[serde(default, deserialize_with = "spelled")]
    pub scheduler: Option<SchedulerKind>,
    /// Share of memory that an attached volume's pages may have dirty.
    #[serde(default, deserialize_with = "spelled")]
    pub background_dirty: Option<BackgroundDirty>,
    /// A new file in which its requests are recorded.
    pub record_requests: Option<PathBuf>,
}

impl VolumeConfig {
    /// Where NBD clients are served.
    pub fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.nbd.iter().chain(&self.critical_nbd)
    }

    /// Whether there are such clients.
    pub fn has_nbd(&self) -> bool {
        self.addresses().next().is_some()
    }

    /// Whether requests of some of them are awaited.
    pub fn is_critical_to_some(&self) -> bool {
        self.critical == Some(true) || !self.critical_nbd.is_empty()
    }
}

fn checked_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    volume_name::parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

fn spelled<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    String::deserialize(deserializer)?.parse().map(Some).map_err(serde::de::Error::custom)
}

fn group_size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let mut settings = Settings::default();
    let set = settings.set("group-size", &String::deserialize(deserializer)?);
    set.map(|()| Some(settings.group_bytes)).map_err(serde::de::Error::custom)
}

fn group_age<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let mut settings = Settings::default();
    let set = settings.set("group-age", &String::deserialize(deserializer)?);
    set.map(|()| Some(settings.group_age_ms)).map_err(serde::de::Error::custom)
}

fn logical_block<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    parse_logical_block(&String::deserialize(deserializer)?).map(Some).map_err(serde::de::Error::custom)
}

fn socket_mode<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    parse_socket_mode(&String::deserialize(deserializer)?).map(Some).map_err(serde::de::Error::custom)
}

fn socket_group<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    parse_socket_group(&String::deserialize(deserializer)?).map(Some).map_err(serde::de::Error::custom)
}

/// Understands the mode of a socket: octal, and its owner may use it.
///
/// # Errors
/// One sentence.
pub fn parse_socket_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| mode & !0o666 == 0 && mode & 0o600 == 0o600);
    mode.ok_or_else(|| format!("'{text}' is no mode of a socket, such as 0600, 0660 or 0666"))
}

/// Understands a group, by its name or number.
///
/// # Errors
/// One sentence.
pub fn parse_socket_group(text: &str) -> Result<u32, String> {
    group_id(text)
        .ok_or_else(|| format!("there is no group '{text}' in /etc/group; give one of them, or a number"))
}

/// Understands the logical block of a volume, in bytes.
///
/// # Errors
/// One sentence.
pub fn parse_logical_block(text: &str) -> Result<u32, String> {
    let bytes = size::parse(text)?;
    u32::try_from(bytes)
        .ok()
        .filter(|bytes| is_logical_block(*bytes))
        .ok_or_else(|| format!("'{text}' is no logical block of a volume, which is 512, 1024, 2048 or 4096"))
}

fn milliseconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    time::parse_ms(&String::deserialize(deserializer)?).map(Some).map_err(serde::de::Error::custom)
}

fn spelled_list<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    texts.iter().map(|t| t.parse().map_err(serde::de::Error::custom)).collect()
}

impl Config {
    /// Reads a file's text. An error begins with line and column.
    ///
    /// # Errors
    /// One sentence.
    pub fn parse(text: &str) -> Result<Self, String> {
        let config: Self = toml::from_str(text).map_err(|e| {
            let (line, column) = position(text, e.span().map_or(0, |s| s.start));
            let message = e.message().replace('\n', " ");
            let key = key_of(text.lines().nth(line - 1).unwrap_or_default());
            let message = match key {
                Some(key) if is_no_text(&message) => {
                    format!("{key} wants a text: write its value in quotes, as {key} = \"VALUE\"")
                }
                Some(key) if message.starts_with('\'') => format!("{key}: {message}"),
                _ => message,
            };
            let hint = suggestion(&message).map(|s| format!("; did you mean `{s}`?")).unwrap_or_default();
            format!("{line}:{column}: {message}{hint}")
        })?;
        for (i, volume) in config.volume.iter().enumerate() {
            if config.volume[..i].iter().any(|v| v.name == volume.name) {
                return Err(format!(" there are two volumes named '{}'; give one another name", volume.name));
            }
        }
        Ok(config)
    }
}

/// Line and column of a byte offset, both counted from 1; the column in characters.
fn position(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |i| i + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// The key that a line gives a value.
fn key_of(line: &str) -> Option<&str> {
    let key = line.split_once('=')?.0.trim();
    let is_key = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    is_key.then_some(key)
}

/// A number, or true or false, stands where a text is wanted.
fn is_no_text(message: &str) -> bool {
    let kinds = ["integer", "floating point", "boolean"];
    message.strip_prefix("invalid type: ").is_some_and(|what| {
        kinds.iter().any(|kind| what.starts_with(kind)) && what.ends_with("expected a string")
    })
}

/// Of the names that a message "unknown field `x`, expected one of `a`, `b`" lists, or "'x' is not one of a, b", the one that `x` is closest to.
fn suggestion(message: &str) -> Option<&str> {
    if let Some((given, words)) = message.split_once("' is not one of ") {
        return nearest(given.split_once('\'')?.1, words.split(", "));
    }
    let mut names = message.strip_prefix("unknown field ")?.split('`').skip(1).step_by(2);
    let given = names.next()?;
    nearest(given, names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_file_is_understood() {
        let config = Config::parse(
            r#"
            control = "/run/f.sock"
            destage-on-stop = true
            [[volume]]
            name = "db"
            cache = "/dev/fast"
            backing = "/dev/slow"
            nbd = ["unix:/run/db.nbd", "tcp:127.0.0.1:10809"]
            write-policy = "write-through"
            on-full = "bypass"
            [[volume]]
            name = "scratch"
            backing = "b.img"
            no-cache = true
            "#,
        )
        .unwrap();
        assert_eq!(config.destage_on_stop, Some(true));
        assert_eq!(config.volume.len(), 2);
        let db = &config.volume[0];
        assert_eq!((db.nbd.len(), db.write_policy, db.admission), (2, Some(WritePolicy::WriteThrough), None));
        assert_eq!(config.volume[1].no_cache, Some(true));
    }

    #[test]
    fn mistakes_are_shown_where_they_are_and_what_was_meant() {
        for (text, words) in [
            ("[[volume]]\nname = \"db\"\n  bakcing = \"x\"", "3:3: unknown field `bakcing`"),
            ("[[volume]]\nname = \"db\"\nbakcing = \"x\"", "did you mean `backing`?"),
            ("[[volume]]\nname = \"db\"\nwrite_policy = \"x\"", "did you mean `write-policy`?"),
            (
                "[[volume]]\nname = \"db\"\non-full = \"explode\"",
                "3:11: on-full: 'explode' is not one of wait, bypass",
            ),
            (
                "[[volume]]\nname = \"db\"\nlogical-block = \"513\"",
                "3:17: logical-block: '513' is no logical block of a volume",
            ),
            ("[[volume]]\nname = \"db\"\nwrite-policy = \"write-bakc\"", "did you mean `write-back`?"),
            (
                "[[volume]]\nname = \"db\"\ngroup-size = 16",
                "3:14: group-size wants a text: write its value in quotes",
            ),
            (
                "[[volume]]\nname = \"db\"\ngroup-age = \"9000h\"",
                "group-age: '9000h' is not within the times",
            ),
            ("[[volume]]\nname = \"a/b\"", "2:8: name: 'a/b' cannot be the name of a volume"),
            ("[[volume]]\nname = \"db\"\nnbd = [\"udp:x\"]", "3:7: "),
            ("[[volume]]\nname = \"a\"\n[[volume]]\nname = \"a\"", "two volumes named 'a'"),
            ("[[volume]]\nname = ", "2:"),
            ("[[volume]]\ncache = \"c\"", "missing field `name`"),
        ] {
            let e = Config::parse(text).unwrap_err();
            assert!(e.contains(words), "{text}\n{e}");
            assert_eq!(e.lines().count(), 1, "{e}");
        }
        assert!(!Config::parse("colour = 1").unwrap_err().contains("did you mean"));
    }

    #[test]
    fn every_key_stands_in_the_reference() {
        let reference = include_str!("../../../../docs/reference/config.md");
        for unknown in ["zzzz = 1", "[[volume]]\nzzzz = 1"] {
            let message = Config::parse(unknown).unwrap_err();
            let keys: Vec<&str> = message.split('`').skip(3).step_by(2).collect();
            assert!(keys.len() >= 5, "{message}");
            for key in keys {
                assert!(reference.contains(key), "docs/reference/config.md lacks {key}");
            }
        }
    }
}
