//! Naming an NBD export: `nbd://HOST[:PORT]/EXPORT` and `nbd+unix:///EXPORT?socket=PATH`.

use std::fmt;
use std::path::{Path, PathBuf};

/// The port that is assigned to NBD.
const PORT: u16 = 10809;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    /// A unix socket.
    Unix(PathBuf),
    /// A host's name or address, and a port.
    Tcp(String, u16),
}

/// An export of an NBD server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdSpec {
    pub(crate) server: Server,
    /// Empty for the server's default export.
    pub(crate) export: String,
    /// As it was given; a path only so that messages can name every device alike.
    uri: PathBuf,
}

impl NbdSpec {
    /// Reads what follows `nbd:` or, if `unix`, `nbd+unix:`.
    ///
    /// # Errors
    /// What is wrong with it, in words for a person.
    pub fn read(unix: bool, rest: &str) -> Result<Self, String> {
        const HOW: &str = "an NBD export is nbd://HOST:PORT/EXPORT or nbd+unix:///EXPORT?socket=PATH";
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
        let server = match (unix, query) {
            (true, Some(query)) if authority.is_empty() => {
                let socket = query.strip_prefix("socket=").and_then(decoded).filter(|path| !path.is_empty());
                Server::Unix(socket.ok_or("its socket is named by ?socket=PATH")?.into())
            }
            (false, None) => tcp(authority)?,
            _ => return Err(HOW.to_owned()),
        };
        Ok(Self { server, export, uri })
    }

    /// What it was given as.
    pub(crate) fn as_path(&self) -> &Path {
        &self.uri
    }
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
        ] {
            let spec = NbdSpec::read(unix, rest).unwrap();
            assert_eq!((&spec.server, spec.export.as_str()), (&server, export), "{rest}");
            assert!(spec.to_string().ends_with(rest) && spec.to_string().starts_with("nbd"), "{spec}");
        }
        for (unix, rest, words) in [
            (false, "store/db", "nbd://HOST:PORT/EXPORT"),
            (false, "//store/db?socket=x", "nbd://HOST:PORT/EXPORT"),
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
        ] {
            let told = NbdSpec::read(unix, rest).unwrap_err();
            assert!(told.contains(words), "{rest}: {told}");
        }
    }
}
