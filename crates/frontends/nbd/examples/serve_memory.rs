//! Serves a volume in memory until standard input ends: `serve_memory ADDRESS [MEBIBYTES [inline]]`.
//!
//! It exists to measure the frontend by itself, for instance against `nbdkit memory`:
//!
//! ```text
//! serve_memory unix:/tmp/memory.sock 256 &
//! fio --name=w --ioengine=nbd --uri='nbd+unix:///?socket=/tmp/memory.sock' --rw=randwrite --bs=4k --iodepth=16
//! ```

#[expect(dead_code, reason = "the tests use more of it")]
#[path = "../tests/it/memory.rs"]
mod memory;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use forebay_nbd::{Export, Limits, NbdServer, ServerConfig};

use memory::{MemoryVolume, Workers};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().ok_or("which address? write unix:PATH or tcp:HOST:PORT")?.parse()?;
    let mebibytes: u64 = arguments.next().map_or(Ok(64), |n| n.parse())?;
    let workers =
        if arguments.next().as_deref() == Some("inline") { Workers::Inline } else { Workers::Thread };
    let volume = MemoryVolume::new("memory", mebibytes << 20, workers);
    let server = NbdServer::start(ServerConfig {
        listen: vec![address],
        exports: vec![Export::new(Arc::new(volume))],
        tls: None,
        socket: Default::default(),
        limits: Limits::default(),
        memory: Arc::default(),
    })?;
    for address in server.addresses() {
        println!("ready {address}");
    }
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    for export in server.status().exports {
        for (name, description, value) in export.counts.fields() {
            println!("{name:>18} {value:>12}  {description}");
        }
    }
    server.stop(Duration::from_secs(5));
    Ok(())
}
