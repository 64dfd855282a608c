//! Naming an NBD export: `nbd://HOST[:PORT]/EXPORT[?timeout=TIME][&critical=HOST[:PORT]]` and
//! `nbd+unix:///EXPORT?socket=PATH[&timeout=TIME][&critical=PATH]`.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use crate::decorate::duration;

/// The port that is assigned to NBD.
const PORT: u16 = 10809;

/// A server that owes an answer may be silent for so long, if nothing else is said: what disks are given by kernels.
const TIMEOUT: Duration = Duration::from_secs(30);
/// What may be said.
const TIMEOUTS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    /// A unix socket.
    Unix(PathBuf),
    /// A host's name or address, and a port.
    Tcp(String, u16),
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => path.display().fmt(f),
            Self::Tcp(host, port) => write!(f, "{host}, port {port}"),
        }
    }
}

/// An export of an NBD server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdSpec {
    pub(crate) server: Server,
    /// Where the same server takes what a request waits for, over a connection of its own.
    pub(crate) critical: Option<Server>,
    /// Empty for the server's default export.
    pub(crate) export: String,
    /// For so long a server that owes an answer may be silent.
    pub(crate) timeout: Duration,
    /// As it was given; a path only so that messages can name every device alike.
    pub(crate) uri: PathBuf,
}

impl NbdSpec {
    /// Reads what follows `nbd:` or, if `unix`, `nbd+unix:`.
    ///
    /// # Errors
    /// What is wrong with it, in words for a person.
    pub fn read(unix: bool, rest: &str) -> Result<Self, String> {
        const HOW: &str = "an NBD export is nbd://HOST:PORT/EXPORT or nbd+unix:///EXPORT?socket=PATH, \
                           with timeout=TIME behind a ? or & if that is to be chosen, \
                           and critical=HOST:PORT or critical=PATH for what requests wait for";
        let scheme = if unix { "nbd+unix" } else { "nbd" };
        let uri = PathBuf::from(format!("{scheme}:{rest}"));
        let place = rest.strip_prefix("//").ok_or(HOW)?;
        let (place, query) = match place.split_once('?') {
            Some((place, query)) => (place, Some(query)),
            None => (place, None),
        };
        let (authority, export) = place.split_once('/').unwrap_or((place, ""));
        let export = decoded(export).ok_or("its export's name has a bad percent sign")?;
        if export.len() > forebay_nbd::codec::STRING_BYTES_MAX {
            return Err("its export's name is longer than 4096 bytes".to_owned());
        }
        let (mut socket, mut timeout, mut critical) = (None, None, None);
        for parameter in query.unwrap_or_default().split('&').filter(|_| query.is_some()) {
            match parameter.split_once('=') {
                Some(("socket", path)) if unix && socket.is_none() => {
                    socket = Some(socket_at(path).ok_or("its socket is named by ?socket=PATH")?);
                }
                Some(("critical", path)) if unix && critical.is_none() => {
                    critical = Some(socket_at(path).ok_or("its critical socket is named by critical=PATH")?);
                }
                Some(("critical", address)) if critical.is_none() => critical = Some(tcp(address)?),
                Some(("timeout", time)) if timeout.is_none() => timeout = Some(read_timeout(time)?),
                _ => return Err(format!("'{parameter}' is not known of it, or given twice; {HOW}")),
            }
        }
        let server = match socket {
            Some(socket) if authority.is_empty() => socket,
            None if !unix => tcp(authority)?,
            _ => return Err(HOW.to_owned()),
        };
        if critical.as_ref() == Some(&server) {
            return Err(
                "its critical connection is at the address of the other one, and would change nothing"
                    .to_owned(),
            );
        }
        Ok(Self { server, critical, export, timeout: timeout.unwrap_or(TIMEOUT), uri })
    }

    /// The addresses of its connections: that of all operations, or of those that nobody waits for, comes first.
    pub(crate) fn servers(&self) -> impl Iterator<Item = &Server> {
        [&self.server].into_iter().chain(&self.critical)
    }
}

fn socket_at(path: &str) -> Option<Server> {
    decoded(path).filter(|path| !path.is_empty()).map(|path| Server::Unix(path.into()))
}

fn read_timeout(text: &str) -> Result<Duration, String> {
    let time = duration(text).ok().filter(|time| TIMEOUTS.contains(time));
    time.ok_or_else(|| {
        let (least, most) = (TIMEOUTS.start(), TIMEOUTS.end());
        let (least, most) = (least.as_secs(), most.as_secs());
        format!("its timeout is a time between {least}s and {most}s such as 30s, not '{text}'")
    })
}

fn tcp(authority: &str) -> Result<Server, String> {
    let numeric = |port: &str| port.parse::<u16>().ok().filter(|port| *port > 0);
    let (host, port) = match (authority.strip_prefix('['), authority.rsplit_once(':')) {
        (Some(rest), _) => {
            let (host, after) = rest.split_once(']').ok_or("its address has no closing bracket")?;
            let port = if after.is_empty() { Some(PORT) } else { after.strip_prefix(':').and_then(numeric) };
            (host, port)
        }
        (None, Some((host, port))) => (host, numeric(port)),
        (None, None) => (authority, Some(PORT)),
    };
    match port {
        Some(port) if !host.is_empty() => Ok(Server::Tcp(host.to_owned(), port)),
        Some(_) => Err("it names no host".to_owned()),
        None => Err("its port is no number between 1 and 65535".to_owned()),
    }
}

/// With `%41` and the like resolved.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let (high, low) = (digit(rest.next())?, digit(rest.next())?);
                u8::try_from(high * 16 + low).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

impl fmt::Display for NbdSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.uri.display().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_of_all_kinds() {
        let tcp = |host: &str, port| Server::Tcp(host.to_owned(), port);
        for (unix, rest, server, export) in [
            (false, "//store/db", tcp("store", 10809), "db"),
            (false, "//store:7/a/b%20c", tcp("store", 7), "a/b c"),
            (false, "//[fe80::1]:7", tcp("fe80::1", 7), ""),
            (false, "//[::1]/x", tcp("::1", 10809), "x"),
            (true, "///db?socket=/run/a%3Fb", Server::Unix("/run/a?b".into()), "db"),
            (true, "///?socket=./s", Server::Unix("./s".into()), ""),
            (true, "///?timeout=2s&socket=/run/a%26b", Server::Unix("/run/a&b".into()), ""),
        ] {
            let spec = NbdSpec::read(unix, rest).unwrap();
            assert_eq!((&spec.server, spec.export.as_str()), (&server, export), "{rest}");
            assert!(spec.to_string().ends_with(rest) && spec.to_string().starts_with("nbd"), "{spec}");
        }
        for (unix, rest, words) in [
            (false, "store/db", "nbd://HOST:PORT/EXPORT"),
            (false, "//store/db?socket=x", "'socket=x' is not known"),
            (false, "//store/db?", "'' is not known"),
            (false, "//store/db?timeout=0s", "between 1s and 3600s such as 30s, not '0s'"),
            (false, "//store/db?timeout=5", "not '5'"),
            (false, "//store/db?timeout=99999999999999999999s", "not '99999999999999999999s'"),
            (false, "//store/db?timeout=18446744073709551615s", "between 1s and 3600s"),
            (true, "///db?socket=a&timeout=2h", "between 1s and 3600s"),
            (true, "///db?socket=a&timeout=2s&timeout=3s", "given twice"),
            (true, "///db?socket=a&b", "'b' is not known"),
            (true, "///db?timeout=2s", "nbd+unix:///EXPORT?socket=PATH"),
            (false, "///db", "no host"),
            (false, "//:7/db", "no host"),
            (false, "//store:0/db", "port"),
            (false, "//store:x/db", "port"),
            (false, "//[::1/db", "bracket"),
            (false, "//store/%4", "percent"),
            (true, "///db", "nbd+unix:///EXPORT?socket=PATH"),
            (true, "//host/db?socket=s", "nbd+unix:///EXPORT?socket=PATH"),
            (true, "///db?socket=", "?socket=PATH"),
            (true, "///db?tls=x", "?socket=PATH"),
            (true, "///db?socket=a&critical=", "critical=PATH"),
            (true, "///db?socket=a&critical=a", "would change nothing"),
            (true, "///db?critical=a", "nbd+unix:///EXPORT?socket=PATH"),
            (false, "//store/db?critical=store:10809", "would change nothing"),
            (false, "//store/db?critical=", "no host"),
            (false, "//store/db?critical=a&critical=b", "given twice"),
        ] {
            let told = NbdSpec::read(unix, rest).unwrap_err();
            assert!(told.contains(words), "{rest}: {told}");
        }
        let critical = |unix, rest| NbdSpec::read(unix, rest).unwrap().critical;
        assert_eq!(critical(false, "//store/db"), None);
        assert_eq!(critical(false, "//store/db?critical=store:7"), Some(tcp("store", 7)));
        assert_eq!(critical(false, "//store:7/db?timeout=2s&critical=[::1]"), Some(tcp("::1", 10809)));
        assert_eq!(critical(true, "///db?critical=c&socket=a"), Some(Server::Unix("c".into())));
        let timeout = |rest| NbdSpec::read(false, rest).unwrap().timeout.as_millis();
        let told = ["//store/db", "//store/db?timeout=90s", "//store/db?timeout=1500ms"].map(timeout);
        assert_eq!(told, [30_000, 90_000, 1500]);
    }
}
