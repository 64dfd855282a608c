//! Frontends: the ways by which clients reach volumes.

use std::time::Duration;

/// A way by which clients reach one volume or several, as the daemon has it once it is made: it tells of it and stops it.
///
/// What a frontend does with its volumes is [`BlockService`](crate::BlockService)'s matter, and how it is made its own: each has
/// choices that no other has. A new one, such as vhost-user-blk on a unix socket or a ublk device, gives what is here:
///
/// - its kind, and its addresses as the command line spells them, or none if a user asks for it while the volume runs, as for a
///   block device;
/// - how many clients there are, if it can tell;
/// - a `stop` after which it submits nothing, however its clients behave: a hung virtual machine, or a program that has the
///   device open, keeps no daemon from stopping.
///
/// A frontend gives each client that it can tell from others a lane of its own ([`Origin::lane`](crate::Origin::lane)).
pub trait Frontend: Send + Sync {
    /// What it is called in the log: `NBD server`, `FUSE file`.
    fn kind(&self) -> &'static str;

    /// Where clients find it: `unix:PATH`, `tcp:HOST:PORT` with the port that it has, `fuse:FILE`.
    fn addresses(&self) -> Vec<String>;

    /// Its clients, all at zero where it cannot tell: any program may open a file or a block device.
    fn clients(&self) -> Clients {
        Clients::default()
    }

    /// Ends it while its volumes are at work: takes no further requests, and lets those under way be answered. What its clients still
    /// hold of the volume, such as a page cache, is written first. Who does not go in `grace` is cut off. Does nothing the second time.
    ///
    /// # Errors
    /// One sentence, without a full stop: who was cut off. It has ended all the same.
    fn stop(&self, grace: Duration) -> Result<(), String>;
}

/// Clients of a frontend, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clients {
    /// Those that are there now.
    pub now: u64,
    /// Connections since the start for which there was no place.
    pub refused: u64,
    /// Connections since the start that gave their place to another one before they were clients.
    pub displaced: u64,
}

impl std::iter::Sum for Clients {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            now: sum.now + one.now,
            refused: sum.refused + one.refused,
            displaced: sum.displaced + one.displaced,
        })
    }
}
