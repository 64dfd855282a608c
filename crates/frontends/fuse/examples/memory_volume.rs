//! Serves a volume in memory as a file and as a loop device, to try and to measure the frontend by itself.
//!
//! ```text
//! cargo run --release -p forebay-fuse --example memory_volume -- FILE [key=value...]
//!   size=MIB  threads=N (of the volume)  delay=US  readers=N  background=N  parallel=0|1  direct=0|1  reserve=0|1  depth=N  request=KIB
//! ```
//! Prints `ready DEVICE DETAILS`, then waits for the end of its standard input, detaches and prints figures.

#[expect(dead_code, clippy::unwrap_used, reason = "the tests use more of it; a poisoned lock ends them")]
#[path = "../tests/it/memory.rs"]
mod memory;

use std::error::Error;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_fuse::{AttachOptions, Attachment, FuseExport, FuseOptions, become_io_flusher};
use memory::{Behaviour, MemoryVolume};

fn main() -> Result<(), Box<dyn Error>> {
    if let Err(e) = become_io_flusher() {
        eprintln!("cannot keep out of memory reclaim: {e}");
    }
    let mut behaviour = Behaviour { threads: 1, ..Behaviour::of_size(1 << 30) };
    let mut fuse = FuseOptions::default();
    let mut attach = AttachOptions::default();
    let mut file = None;
    for argument in std::env::args().skip(1) {
        let Some((key, value)) = argument.split_once('=') else {
            file = Some(PathBuf::from(argument));
            continue;
        };
        let number: u64 = value.parse()?;
        match key {
            "size" => behaviour.size_bytes = number << 20,
            "threads" => behaviour.threads = number as usize,
            "delay" => behaviour.delay_us_max = number,
            "readers" => fuse.reader_threads = number as usize,
            "background" => fuse.max_background = number as u16,
            "parallel" => fuse.parallel_direct_writes = number != 0,
            "direct" => attach.direct_io = number != 0,
            "reserve" => attach.queue.reserve = number != 0,
            "depth" => attach.queue.requests_max = number as u32,
            "request" => attach.queue.request_bytes_max = (number << 10) as u32,
            _ => return Err(format!("unknown: {key}").into()),
        }
    }
    let file = file.ok_or("which FILE?")?;
    let volume = MemoryVolume::start(behaviour);
    let export = FuseExport::mount(&file, Arc::new(volume.clone()), fuse)?;
    let attachment = Attachment::attach(&file, attach)?;
    println!(
        "ready {} direct_io={} {:?}",
        attachment.device_path().display(),
        attachment.direct_io(),
        attachment.queue()
    );
    std::io::stdin().read_to_end(&mut Vec::new())?;
    attachment.detach(true)?;
    println!("{:?}", export.stats());
    export.unmount()?;
    volume.stop();
    Ok(())
}
