//! A victim beside a task that writes as fast as it can: TPC-C on PostgreSQL, alone and beside it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use super::contender::Contender;
use super::postgresql::{OrderEntry, measure};
use super::shown::Slice;
use super::{Bench, Load};
use crate::BenchError;

/// Threads that write, so that one has something under way while the other begins anew.
const WRITERS: u64 = 2;
/// Bytes of each one's file, which it writes from its beginning to its end, and again.
const FILE_BYTES: u64 = 128 << 20;
/// Bytes that it writes at a time.
const PIECE: usize = 1 << 20;
/// It waits for the disk after so many, so that it is the disk that it keeps busy, and not the processor with memory.
const SYNC_BYTES: u64 = 16 << 20;

/// See the module's documentation.
pub(crate) struct Neighbour {
    victim: Rc<OrderEntry>,
}

impl Neighbour {
    pub(crate) fn new(victim: Rc<OrderEntry>) -> Self {
        Self { victim }
    }
}

impl Load for Neighbour {
    fn measure(&self, bench: &Bench<'_>, contender: Contender) -> Result<Slice, BenchError> {
        let running = self.victim.serve(bench, contender)?;
        if !contender.neighbour {
            return measure(bench, &running);
        }
        let dir = running.mount().join("neighbour");
        fs::create_dir(&dir).map_err(|e| BenchError::system(format!("make {}", dir.display()), e))?;
        beside(&dir, || measure(bench, &running))
    }
}

/// Does something while the neighbour writes in `dir`.
fn beside(dir: &Path, work: impl FnOnce() -> Result<Slice, BenchError>) -> Result<Slice, BenchError> {
    let (ends, written, began) = (AtomicBool::new(false), AtomicU64::new(0), Instant::now());
    thread::scope(|scope| {
        let write = |number: u64| {
            let (place, ends, written) = (dir.join(number.to_string()), &ends, &written);
            scope.spawn(move || write(&place, ends, written))
        };
        let writers: Vec<_> = (0..WRITERS).map(write).collect();
        let done = work();
        let seconds = began.elapsed().as_secs_f64();
        let neighbour_bytes_per_second = written.load(Ordering::Relaxed) as f64 / seconds;
        ends.store(true, Ordering::Relaxed);
        for writer in writers {
            let wrote = writer.join().unwrap_or_else(|panic| resume_unwind(panic));
            wrote.map_err(|e| BenchError::system("write as the neighbour", e))?;
        }
        done.map(|slice| Slice { neighbour_bytes_per_second, ..slice })
    })
}

/// Writes until it is told to end, and adds up what is on the disk.
fn write(place: &PathBuf, ends: &AtomicBool, written: &AtomicU64) -> io::Result<()> {
    let (file, piece) = (File::create(place)?, vec![0x5a; PIECE]);
    let mut at = 0;
    while !ends.load(Ordering::Relaxed) {
        file.write_all_at(&piece, at)?;
        at = (at + PIECE as u64) % FILE_BYTES;
        if at.is_multiple_of(SYNC_BYTES) {
            file.sync_data()?;
            written.fetch_add(SYNC_BYTES, Ordering::Relaxed);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_neighbour_writes_as_long_as_the_work_lasts_and_no_longer() {
        let dir = tempfile::tempdir().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        let files = || {
            let entries = fs::read_dir(dir.path()).unwrap();
            entries.map(|e| e.unwrap().metadata().unwrap().len()).collect::<Vec<_>>()
        };
        let work = || {
            // One that has so much has synced what was before.
            while files().iter().filter(|len| **len > SYNC_BYTES).count() < 2 && Instant::now() < until {
                thread::sleep(Duration::from_millis(5));
            }
            Ok(Slice { seconds: 1.5, ..Slice::default() })
        };
        let slice = beside(dir.path(), work).unwrap();
        assert!(slice.neighbour_bytes_per_second > 0.0 && slice.seconds == 1.5, "{slice:?}");
        assert_eq!(files().len(), WRITERS as usize);
    }
}
