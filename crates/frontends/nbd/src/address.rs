//! Where a server listens: `unix:PATH` or `tcp:HOST:PORT`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

/// Longest path of a unix socket in bytes, without the closing zero.
const UNIX_PATH_BYTES_MAX: usize = 107;

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A unix socket.
    Unix(PathBuf),
    /// A TCP port.
    Tcp {
        /// Name or address of the host; an IPv6 address without its brackets.
        host: String,
        /// The port; 0 lets the kernel choose one.
        port: u16,
    },
}

/// A text that is no address.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{text}` is no NBD address: {reason} (write unix:PATH or tcp:HOST:PORT)")]
pub struct AddressError {
    text: String,
    reason: &'static str,
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let parsed = match text.split_once(':') {
            Some(("unix", path)) => unix(path),
            Some(("tcp", rest)) => tcp(rest),
            _ => Err("it starts neither with unix: nor with tcp:"),
        };
        parsed.map_err(|reason| AddressError { text: text.to_owned(), reason })
    }
}

fn unix(path: &str) -> Result<Address, &'static str> {
    if path.is_empty() {
        return Err("the path is empty");
    }
    if path.len() > UNIX_PATH_BYTES_MAX {
        return Err("the path of a unix socket has at most 107 bytes");
    }
    if path.contains('\0') {
        return Err("the path has a zero byte");
    }
    Ok(Address::Unix(PathBuf::from(path)))
}

fn tcp(rest: &str) -> Result<Address, &'static str> {
    let (host, port) = rest.rsplit_once(':').ok_or("the port is missing")?;
    let port = port.parse().map_err(|_| "the port is no number from 0 to 65535")?;
    let host = match host.strip_prefix('[') {
        Some(bracketed) => bracketed.strip_suffix(']').ok_or("the bracket is not closed")?,
        None if host.contains(':') => return Err("an IPv6 address stands in brackets"),
        None => host,
    };
    if host.is_empty() {
        return Err("the host is empty; 0.0.0.0 or [::] means every interface");
    }
    if host.contains(['[', ']']) {
        return Err("a bracket is where none belongs");
    }
    Ok(Address::Tcp { host: host.to_owned(), port })
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp { host, port } if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "tcp:{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_a_round_trip() {
        for text in ["unix:/run/a b.sock", "tcp:localhost:10809", "tcp:[::1]:0", "tcp:0.0.0.0:65535"] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
        assert_eq!("tcp:[::1]:7".parse(), Ok(Address::Tcp { host: "::1".into(), port: 7 }));
        assert_eq!("unix:a:b".parse(), Ok(Address::Unix("a:b".into())));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, reason) in [
            ("/run/a.sock", "starts neither"),
            ("udp:a:1", "starts neither"),
            ("unix:", "empty"),
            ("tcp:a", "port is missing"),
            ("tcp:a:65536", "no number"),
            ("tcp::1", "host is empty"),
            ("tcp:::1:1", "brackets"),
            ("tcp:[::1:1", "not closed"),
            ("tcp:[[]:1", "bracket"),
            ("tcp:a]:1", "bracket"),
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains(text), "{error}");
        }
        assert!(format!("unix:/{}", "a".repeat(107)).parse::<Address>().is_err());
    }
}
