//! An export of an NBD server as a device: for backings, and for journals beside them.
//!
//! One connection, or two of which one is for what somebody waits for; two threads for each ([`connections`]); simple replies. What a server lacks is made of what it has: a durable
//! write is a write and a flush, zeroing is writing. A server that goes away is waited for; what it offers when it is back is used
//! only if it has the size and the abilities of what was opened, and shows its owner's sign ([`Device::recognize_by`]).
//!
//! NBD knows no exclusive use. Two daemons of this host cannot open the same export by the same name; beyond that it is the
//! server's business, and that of the backing's label.

mod connections;
mod handshake;
mod requests;
mod same;
mod uri;

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use forebay_block::{Class, DeviceOp, DeviceResult, Nanos, words_of};
use forebay_guard::abstract_holder;
use forebay_nbd::codec::export_flag;

pub use uri::NbdSpec;

use crate::access::{Access, OpenError};
use crate::bounds::check_range;
use crate::device::{Away, Device, DeviceInfo, DeviceKind, Sign, Survives};
use crate::nbd::connections::{Connections, DEPTH_MAX, SETTLE_PAUSE};
use crate::nbd::handshake::{Stream, Terms, connect};
use crate::nbd::same::show_the_same;
use crate::nbd::uri::Server;
use crate::remote::RemoteSpec;
use crate::ring::Ring;

/// How long an opening waits for a holder of the export that may be about to end.
const HOLDER_WAIT_MAX: Duration = Duration::from_secs(1);
/// How often it looks.
const HOLDER_POLL: Duration = Duration::from_millis(20);

impl RemoteSpec for NbdSpec {
    fn as_path(&self) -> &Path {
        &self.uri
    }

    fn open(&self, ring: &Ring, access: Access) -> Result<Box<dyn Device>, OpenError> {
        Ok(Box::new(NbdDevice::open(self, ring, access)?))
    }
}

/// See the module's documentation.
pub struct NbdDevice {
    info: DeviceInfo,
    connections: Arc<Connections>,
    finished: Vec<(u64, DeviceResult)>,
    /// They go with the process, however that ends.
    _claims: Vec<UnixListener>,
}

impl NbdDevice {
    /// Connects to an export.
    ///
    /// # Errors
    /// [`OpenError`]; also for an export that takes no flush, or is read-only, if it is to be written to; and with a critical
    /// address, if that offers another export, or the server does not promise that a flush over one connection covers the other.
    pub fn open(spec: &NbdSpec, ring: &Ring, access: Access) -> Result<Self, OpenError> {
        let failed = |doing| move |e| OpenError::system(doing, spec.as_path(), e);
        let claims = spec.servers().map(|server| claim(spec, server)).collect::<Result<_, _>>()?;
        let (streams, terms) = connect_all(spec).map_err(failed("connect to"))?;
        if access.writes() && terms.offers(export_flag::READ_ONLY) {
            return Err(OpenError::ReadOnly {
                path: spec.as_path().to_owned(),
                why: "the export is read-only",
            });
        }
        terms.check(access).map_err(failed("connect to"))?;
        // A process that was killed may have sent writes that the server has not come to yet.
        thread::sleep(SETTLE_PAUSE);
        if !show_the_same(&streams, &terms).map_err(failed("read"))? {
            let why = "what its critical address offers is another disk: it holds other data";
            return Err(failed("use")(io::Error::new(io::ErrorKind::InvalidInput, why)));
        }
        let connections =
            Connections::start(spec, streams.into(), terms, ring.waker()).map_err(failed("use"))?;
        Ok(Self {
            info: DeviceInfo {
                name: spec.to_string(),
                kind: DeviceKind::Remote,
                several_ways: spec.critical.is_some(),
                size_bytes: terms.size_bytes,
                logical_block: terms.sizes.minimum,
                native_block: terms.sizes.minimum,
                physical_block: terms.sizes.preferred.clamp(terms.sizes.minimum, 4096),
                direct: true,
                volatile_cache: true,
                forgets: false,
                unit_bytes: None,
                atomic: false,
                depth: DEPTH_MAX,
                survives: Survives::Unknown,
                durability: "unknown: the NBD server decides what a flush means",
                billed: None,
            },
            connections,
            finished: Vec::new(),
            _claims: claims,
        })
    }
}

/// Connects to an export at each of its addresses.
fn connect_all(spec: &NbdSpec) -> io::Result<(Vec<Stream>, Terms)> {
    let unfit = |why| io::Error::new(io::ErrorKind::Unsupported, why);
    let (stream, terms) = connect(spec, &spec.server)?;
    let mut streams = vec![stream];
    if let Some(server) = &spec.critical {
        if !terms.offers(export_flag::CAN_MULTI_CONN) {
            return Err(unfit(
                "its server does not say that a flush over one connection covers writes over another (CAN_MULTI_CONN), so that \
                 critical= cannot be used with it",
            ));
        }
        let (stream, also) = connect(spec, server)
            .map_err(|e| io::Error::new(e.kind(), format!("at its critical address: {}", words_of(&e))))?;
        if also != terms {
            return Err(unfit("what its critical address offers has another size or other abilities"));
        }
        streams.push(stream);
    }
    Ok((streams, terms))
}

/// Takes the export's name at one of its addresses on this host, by an abstract socket, which the kernel gives to one process only and takes back when
/// that ends.
fn claim(spec: &NbdSpec, server: &Server) -> Result<UnixListener, OpenError> {
    let mut hasher = DefaultHasher::new();
    match server {
        Server::Unix(path) => std::path::absolute(path).unwrap_or_else(|_| path.clone()).hash(&mut hasher),
        Server::Tcp(host, port) => (host, port).hash(&mut hasher),
    }
    spec.export.hash(&mut hasher);
    let failed = |e| OpenError::system("claim", spec.as_path(), e);
    let name = format!("forebay-nbd-{:016x}", hasher.finish());
    let address = SocketAddr::from_abstract_name(&name).map_err(failed)?;
    let begun = Instant::now();
    loop {
        match UnixListener::bind_addr(&address) {
            Ok(claim) => return Ok(claim),
            Err(e) if e.kind() != io::ErrorKind::AddrInUse => return Err(failed(e)),
            Err(_) if begun.elapsed() > HOLDER_WAIT_MAX => {
                let holder = match abstract_holder(&name) {
                    Some(who) => format!("another process ({who})"),
                    None => "another process of this host".to_owned(),
                };
                return Err(OpenError::InUse { path: spec.as_path().to_owned(), holder });
            }
            Err(_) => thread::sleep(HOLDER_POLL),
        }
    }
}

impl Device for NbdDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&mut self, tag: u64, op: DeviceOp, class: Class, _now: Nanos) {
        match check_range(&op, self.info.size_bytes) {
            Ok(()) => self.connections.submit(tag, op, class),
            Err(e) => self.finished.push((tag, Err(e))),
        }
    }

    fn poll(&mut self, _now: Nanos, done: &mut Vec<(u64, DeviceResult)>) {
        done.append(&mut self.finished);
        self.connections.exchange.poll(done);
    }

    fn waiting(&self) -> usize {
        self.connections.exchange.waiting()
    }

    fn away(&self) -> Option<Away> {
        self.connections.exchange.away().map(Away::silent)
    }

    fn deadline(&self) -> Option<Nanos> {
        (!self.finished.is_empty() || self.connections.exchange.has_done()).then_some(Nanos(0))
    }

    fn recognize_by(&mut self, sign: Option<Sign>) {
        self.connections.exchange.recognize_by(sign);
    }
}

impl Drop for NbdDevice {
    fn drop(&mut self) {
        self.connections.end();
    }
}
