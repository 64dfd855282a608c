//! What NBD clients may take of the daemon: flags and keys, their ranges and defaults.

use std::ops::RangeInclusive;
use std::time::Duration;

use forebay_control::FailureKind;
use forebay_nbd::{Limits, MEMORY_BYTES};
use forebay_policy::{size, time};

use crate::failure::Failure;

const CONNECTIONS: RangeInclusive<usize> = 1..=4096;
const HANDSHAKE_MS: RangeInclusive<u64> = 1_000..=300_000;
/// With less, requests of the greatest length would mostly go one at a time.
const MEMORY: RangeInclusive<u64> = 64 << 20..=1 << 40;

/// What flags or a file say of it; the flags win.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct NbdWishes {
    /// NBD clients of one address of --nbd at a time, from 1 to 4096 [default: 128]
    #[arg(long = "nbd-connections", value_name = "N")]
    pub connections: Option<usize>,

    /// Of these, clients with one IP address, or of one user at a unix socket [default: half of --nbd-connections]
    #[arg(long = "nbd-connections-per-address", value_name = "N")]
    pub per_address: Option<usize>,

    /// Time for a client's negotiation, TLS included, from 1s to 5m [default: 10s]
    #[arg(long = "nbd-handshake-time", value_name = "TIME", value_parser = time::parse_ms)]
    pub handshake_ms: Option<u64>,

    /// Memory for data of requests and replies of all NBD clients of the daemon, from 64M [default: 256M]
    #[arg(long = "nbd-memory", value_name = "SIZE", value_parser = size::parse)]
    pub memory: Option<u64>,
}

/// What is to hold.
#[derive(Clone, Copy, Debug)]
pub struct NbdLimits {
    /// Of each server.
    pub each: Limits,
    /// Of all together, in bytes.
    pub memory: usize,
}

fn within<T: PartialOrd + Copy>(
    value: T,
    range: &RangeInclusive<T>,
    key: &str,
    what: &str,
) -> Result<T, Failure> {
    if range.contains(&value) {
        return Ok(value);
    }
    Err(Failure::new(FailureKind::Usage, format!("{key} is {what}")))
}

impl NbdWishes {
    /// These where they say something, and `other` elsewhere.
    pub fn or(self, other: Self) -> Self {
        Self {
            connections: self.connections.or(other.connections),
            per_address: self.per_address.or(other.per_address),
            handshake_ms: self.handshake_ms.or(other.handshake_ms),
            memory: self.memory.or(other.memory),
        }
    }

    /// Whether anything is wished for.
    fn is_some(&self) -> bool {
        self.connections.is_some()
            || self.per_address.is_some()
            || self.handshake_ms.is_some()
            || self.memory.is_some()
    }

    /// The limits; `served`: there are NBD clients to whom they can apply.
    ///
    /// # Errors
    /// [`FailureKind::Usage`]: a value is out of its range, or there are no NBD clients.
    pub fn limits(&self, served: bool) -> Result<NbdLimits, Failure> {
        if self.is_some() && !served {
            return Err(Failure::new(
                FailureKind::Usage,
                "nbd-connections, nbd-connections-per-address, nbd-handshake-time and nbd-memory are for NBD clients; say --nbd ADDR as well"
                    .to_owned(),
            ));
        }
        let default = Limits::default();
        let connections = self.connections.unwrap_or(default.connections_max);
        let connections = within(connections, &CONNECTIONS, "nbd-connections", "a number from 1 to 4096")?;
        let per_address = self.per_address.unwrap_or(connections.div_ceil(2));
        let what = format!("a number from 1 to {connections}, which is nbd-connections");
        let per_address = within(per_address, &(1..=connections), "nbd-connections-per-address", &what)?;
        let handshake_ms = self.handshake_ms.unwrap_or(default.handshake_timeout.as_millis() as u64);
        let handshake_ms = within(handshake_ms, &HANDSHAKE_MS, "nbd-handshake-time", "a time from 1s to 5m")?;
        let memory = self.memory.unwrap_or(MEMORY_BYTES as u64);
        let memory = within(memory, &MEMORY, "nbd-memory", "a size from 64M to 1T")?;
        let each = Limits {
            connections_max: connections,
            connections_per_source_max: per_address,
            handshake_timeout: Duration::from_millis(handshake_ms),
            ..default
        };
        Ok(NbdLimits { each, memory: memory as usize })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_server() {
        let limits = NbdWishes::default().limits(false).unwrap();
        assert_eq!((limits.each, limits.memory), (Limits::default(), MEMORY_BYTES));
    }

    #[test]
    fn ranges_hold_and_are_told() {
        let wishes = |connections, per_address, handshake_ms, memory| {
            NbdWishes { connections, per_address, handshake_ms, memory }.limits(true)
        };
        let least = wishes(Some(1), None, Some(1000), Some(64 << 20)).unwrap();
        assert_eq!((least.each.connections_max, least.each.connections_per_source_max), (1, 1));
        let some = wishes(Some(512), Some(512), None, None).unwrap();
        assert_eq!(some.each.connections_per_source_max, 512);
        for (result, key) in [
            (wishes(Some(0), None, None, None), "nbd-connections is"),
            (wishes(Some(4097), None, None, None), "nbd-connections is"),
            (wishes(Some(8), Some(9), None, None), "from 1 to 8"),
            (wishes(None, Some(0), None, None), "nbd-connections-per-address is"),
            (wishes(None, None, Some(999), None), "nbd-handshake-time is"),
            (wishes(None, None, Some(300_001), None), "nbd-handshake-time is"),
            (wishes(None, None, None, Some((64 << 20) - 1)), "nbd-memory is"),
            (NbdWishes { memory: Some(1 << 30), ..NbdWishes::default() }.limits(false), "--nbd ADDR"),
        ] {
            let error = result.unwrap_err();
            assert_eq!(error.kind, FailureKind::Usage);
            assert!(error.message.contains(key), "{error}");
        }
    }
}
