//! Databases: pages in a pool of memory, a log that is made durable by each commit, together with those who come meanwhile.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::Load;
use crate::BenchError;
use crate::dice::{Dice, Zipf};
use crate::file_system::{FileSystem, Geometry};
use crate::store::{BLOCK_BYTES, Stretch};

#[derive(Default)]
struct Written {
    /// Bytes ever appended, and those that are durable.
    appended: u64,
    durable: u64,
    /// Somebody writes at the moment, for all.
    writing: bool,
}

/// A write-ahead log over the blocks of the file system's journal, which a database that changes no metadata leaves alone.
#[derive(Default)]
struct Log {
    written: Mutex<Written>,
    changed: Condvar,
}

impl Log {
    fn written(&self) -> MutexGuard<'_, Written> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a record and waits until it is durable.
    fn commit(&self, fs: &FileSystem, bytes: u64) -> Result<(), BenchError> {
        let mut written = self.written();
        written.appended += bytes;
        let mine = written.appended;
        while written.durable < mine {
            if written.writing {
                written = self.changed.wait(written).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            written.writing = true;
            let (from, to) = (written.durable, written.appended);
            drop(written);
            let result = write_log(fs, from, to);
            written = self.written();
            written.writing = false;
            self.changed.notify_all();
            result?;
            written.durable = to;
        }
        Ok(())
    }
}

/// Whole blocks: the last one, which is not full yet, is written again by the next commit.
fn write_log(fs: &FileSystem, from: u64, to: u64) -> Result<(), BenchError> {
    let ring = fs.geometry.journal;
    let mut blocks: Vec<u64> = (from / BLOCK_BYTES..to.div_ceil(BLOCK_BYTES)).map(|n| n % ring).collect();
    blocks.sort_unstable();
    fs.store.write_sync(&Stretch::of_sorted(blocks))?;
    fs.store.flush()
}

/// Records of 1 KB, and what YCSB asks for.
const RECORD_BYTES: u64 = 1024;
const RECORDS_PER_BLOCK: u64 = BLOCK_BYTES / RECORD_BYTES;

/// YCSB over a store of keys and values such as MemcacheDB's (Berkeley DB): few records are asked for often.
pub(super) struct KeyValue {
    zipf: Zipf,
    updates_percent: u64,
    reads_before_update: bool,
    log: Log,
}

impl KeyValue {
    pub(super) fn new(geometry: &Geometry, updates_percent: u64, reads_before_update: bool) -> Self {
        let zipf = Zipf::new(geometry.data * RECORDS_PER_BLOCK);
        Self { zipf, updates_percent, reads_before_update, log: Log::default() }
    }
}

impl Load for KeyValue {
    fn step(&self, dice: &mut Dice, fs: &FileSystem) -> Result<(), BenchError> {
        let block = self.zipf.draw(dice) / RECORDS_PER_BLOCK;
        if !dice.percent(self.updates_percent) {
            return fs.read(block, 1);
        }
        if self.reads_before_update {
            fs.read(block, 1)?;
        }
        // A page that is changed in part has to be in memory.
        fs.read(block, 1)?;
        self.log.commit(fs, RECORD_BYTES)?;
        fs.write(block, 1);
        Ok(())
    }
}

/// Pages of 8 KiB, as PostgreSQL has them.
const PAGE_BLOCKS: u64 = 2;
/// Log of an order.
const ORDER_BYTES: u64 = 6 << 10;

/// TPC-C in its rough shape: nine of ten transactions are orders and payments, which read some pages, change about half of them and
/// commit; the others only read. Three of four accesses fall on a fifth of the pages (Leutenegger and Dias, SIGMOD'93).
pub(super) struct OrderEntry {
    pages: u64,
    log: Log,
}

impl OrderEntry {
    pub(super) fn new(geometry: &Geometry) -> Self {
        Self { pages: (geometry.data / PAGE_BLOCKS).max(5), log: Log::default() }
    }

    fn page(&self, dice: &mut Dice) -> u64 {
        let hot = self.pages / 5;
        let page = if dice.percent(75) { dice.below(hot) } else { hot + dice.below(self.pages - hot) };
        page * PAGE_BLOCKS
    }
}

impl Load for OrderEntry {
    fn step(&self, dice: &mut Dice, fs: &FileSystem) -> Result<(), BenchError> {
        let changes = dice.percent(92);
        let order = dice.percent(50);
        let pages: Vec<u64> = (0..if order { 12 } else { 4 }).map(|_| self.page(dice)).collect();
        for page in &pages {
            fs.read(*page, PAGE_BLOCKS)?;
        }
        if changes {
            self.log.commit(fs, if order { ORDER_BYTES } else { ORDER_BYTES / 4 })?;
            pages.iter().step_by(2).for_each(|page| fs.write(*page, PAGE_BLOCKS));
        }
        Ok(())
    }
}
