//! A model of a file system that journals its metadata, above a volume: what ext3 and ext4 in their mode `ordered` send to a
//! block device, without their code. Loads that need no privileges and no mount are made of it.
//!
//! ```text
//!  write ─► pages in memory ─► (too many, or a commit) ─► data in place ─┐
//!  change ─► running transaction ─► commit: data first, flush ───────────┴► journal ─► flush, forced commit record
//!                                   later: checkpoint, metadata in place ◄── (journal half full)
//! ```

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::BenchError;
use crate::dice::Dice;
use crate::pages::Pages;
use crate::store::{Store, Stretch};

/// Blocks that are written back in one go.
const BATCH_BLOCKS: usize = 512;
/// Descriptor and commit record of a transaction.
const TRANSACTION_BLOCKS: u64 = 2;

/// Seed of the set-up's order: none of a client.
const SET_UP: u64 = u64::MAX;

/// Sizes in blocks, and times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    /// The journal, at the volume's beginning.
    pub(crate) journal: u64,
    /// Inodes, directories and bitmaps, behind it.
    pub(crate) metadata: u64,
    /// Data, behind these.
    pub(crate) data: u64,
    /// Blocks of data that memory holds.
    pub(crate) memory: u64,
    /// How often the running transaction is committed: 5 s in ext4, shorter here as the runs are.
    pub(crate) commit: Duration,
}

impl Geometry {
    /// Bytes of the volume.
    pub(crate) fn blocks(&self) -> u64 {
        self.journal + self.metadata + self.data
    }

    /// Data that may be dirty before writers wait: a fifth of memory, as `vm.dirty_ratio`.
    fn dirty_max(&self) -> usize {
        (self.memory / 5).max(64) as usize
    }
}

struct State {
    pages: Pages,
    /// Data on its way to the volume.
    written_back: usize,
    /// Metadata of the running transaction.
    running: BTreeSet<u64>,
    /// Metadata that is in the journal only.
    journaled: BTreeSet<u64>,
    /// Blocks written to the journal since its beginning was last free.
    journal_used: u64,
    stop: bool,
}

/// See the module's documentation.
pub(crate) struct FileSystem {
    pub(crate) store: Store,
    pub(crate) geometry: Geometry,
    state: Mutex<State>,
    changed: Condvar,
}

impl FileSystem {
    pub(crate) fn new(store: Store, geometry: Geometry) -> Self {
        let state = State {
            pages: Pages::new(geometry.memory),
            written_back: 0,
            running: BTreeSet::new(),
            journaled: BTreeSet::new(),
            journal_used: 0,
            stop: false,
        };
        Self { store, geometry, state: Mutex::new(state), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A load that panicked ends the benchmark; what others still do with the state harms nothing.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn data(&self, block: u64) -> u64 {
        self.geometry.journal + self.geometry.metadata + block
    }

    /// What was written before the load begins: metadata and these blocks of data, which are sorted. What is asked for often is not
    /// what was written last, so it comes in an order of chance.
    pub(crate) fn set_up(&self, data: &[u64]) -> Result<(), BenchError> {
        let metadata = self.geometry.journal..self.data(0);
        let mut stretches = Stretch::of_sorted(metadata.chain(data.iter().map(|block| self.data(*block))));
        Dice::new(SET_UP).shuffle(&mut stretches);
        self.store.write_back(&stretches)?;
        self.store.flush()
    }

    /// Reads blocks of data, those that memory lacks from the volume.
    pub(crate) fn read(&self, first: u64, blocks: u64) -> Result<(), BenchError> {
        let range = self.data(first)..self.data(first) + blocks;
        let missing: Vec<u64> = {
            let mut state = self.state();
            range.filter(|block| !state.pages.touch(*block)).collect()
        };
        if missing.is_empty() {
            return Ok(());
        }
        self.store.read(&Stretch::of_sorted(missing.iter().copied()))?;
        let mut state = self.state();
        missing.into_iter().for_each(|block| state.pages.insert(block, false));
        Ok(())
    }

    /// Changes blocks of data in memory; waits while too much of it is dirty.
    pub(crate) fn write(&self, first: u64, blocks: u64) {
        let full = |state: &mut State| {
            !state.stop && state.pages.dirty() + state.written_back >= self.geometry.dirty_max()
        };
        let mut state = self.changed.wait_while(self.state(), full).unwrap_or_else(PoisonError::into_inner);
        (0..blocks).for_each(|n| state.pages.insert(self.data(first + n), true));
        self.changed.notify_all();
    }

    /// A file is deleted: its data needs not be written any more.
    pub(crate) fn forget(&self, first: u64, blocks: u64) {
        let mut state = self.state();
        (0..blocks).for_each(|n| state.pages.forget(self.data(first + n)));
    }

    /// Changes a block of metadata as part of the running transaction.
    pub(crate) fn change(&self, block: u64) {
        self.state().running.insert(self.geometry.journal + block % self.geometry.metadata);
    }

    /// Tells the thread that writes back to end, and whoever waits for it to go on.
    pub(crate) fn stop(&self) {
        self.state().stop = true;
        self.changed.notify_all();
    }

    /// What the kernel's threads do: writes back when half of what may be dirty is, commits when it is time or the transaction
    /// has a quarter of the journal. Returns when the file system is stopped.
    pub(crate) fn write_back(&self) -> Result<(), BenchError> {
        let mut commit_at = Instant::now() + self.geometry.commit;
        loop {
            let quarter = self.geometry.journal as usize / 4;
            let idle = |state: &mut State| {
                !state.stop
                    && state.pages.dirty() * 2 < self.geometry.dirty_max()
                    && state.running.len() < quarter
            };
            let left = commit_at.saturating_duration_since(Instant::now());
            let waited = self.changed.wait_timeout_while(self.state(), left, idle);
            let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            let commits = Instant::now() >= commit_at || state.running.len() >= quarter;
            let stop = state.stop;
            drop(state);
            if stop {
                return Ok(());
            }
            if commits {
                self.commit()?;
                commit_at = Instant::now() + self.geometry.commit;
            } else {
                self.write_some(BATCH_BLOCKS)?;
            }
        }
    }

    fn write_some(&self, most: usize) -> Result<(), BenchError> {
        let taken = {
            let mut state = self.state();
            let taken = state.pages.take_dirty(most);
            state.written_back = taken.len();
            taken
        };
        let result = self.store.write_back(&Stretch::of_sorted(taken));
        self.state().written_back = 0;
        self.changed.notify_all();
        result
    }

    fn commit(&self) -> Result<(), BenchError> {
        // Data that is dirty now goes first, in batches, so that writers wait for a batch only. It is not flagged: with delayed
        // allocation ext4's commits wait for what was written back, and submit nothing themselves.
        let mut left = self.state().pages.dirty();
        while left > 0 {
            let batch = left.min(BATCH_BLOCKS);
            self.write_some(batch)?;
            left -= batch;
        }
        let (running, at) = {
            let mut state = self.state();
            let running = std::mem::take(&mut state.running);
            (running, state.journal_used)
        };
        if running.is_empty() {
            return Ok(());
        }
        let blocks = running.len() as u64 + TRANSACTION_BLOCKS;
        // The first block of the journal is its superblock; transactions that reach its end go on at its beginning.
        let ring = self.geometry.journal - 1;
        let place = |n: u64| 1 + (at + n) % ring;
        let mut places: Vec<u64> = (0..blocks - 1).map(place).collect();
        places.sort_unstable();
        self.store.write_sync(&Stretch::of_sorted(places))?;
        self.store.flush()?;
        self.store.write_forced(place(blocks - 1))?;
        let half_full = {
            let mut state = self.state();
            state.journaled.extend(running);
            state.journal_used = at + blocks;
            state.journal_used >= ring / 2
        };
        if half_full { self.checkpoint() } else { Ok(()) }
    }

    /// Brings metadata to its place and frees the journal.
    fn checkpoint(&self) -> Result<(), BenchError> {
        let journaled = std::mem::take(&mut self.state().journaled);
        self.store.write_sync(&Stretch::of_sorted(journaled))?;
        self.store.flush()?;
        self.store.write_forced(0)?;
        self.state().journal_used = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forebay_block::{BlockService, Completion, Gate, Op, Origin, Reply, VolumeInfo};

    use super::*;
    use crate::store::BLOCK_BYTES;

    /// A volume that takes note of what it is asked for.
    #[derive(Default)]
    struct Notes(Mutex<Vec<String>>, Arc<Gate>);

    impl BlockService for Notes {
        fn info(&self) -> VolumeInfo {
            VolumeInfo {
                name: "notes".into(),
                size_bytes: 1 << 30,
                read_only: false,
                request_bytes_max: 1 << 20,
                logical_block: 512,
            }
        }

        fn gate(&self) -> &Arc<Gate> {
            &self.1
        }

        fn submit(&self, op: Op, origin: Origin, done: Completion) {
            let block = |offset: u64| offset / BLOCK_BYTES;
            let note = match op {
                Op::Read { offset, len } => format!("read {}+{}", block(offset), block(len as u64)),
                Op::Write { offset, data, fua } => {
                    let kind = match (fua, origin.sync) {
                        (true, _) => "forced",
                        (_, true) => "sync",
                        _ => "write",
                    };
                    format!("{kind} {}+{}", block(offset), block(data.len() as u64))
                }
                Op::Flush => "flush".to_owned(),
                other => format!("{other:?}"),
            };
            self.0.lock().unwrap().push(note);
            done(Ok(Reply::Done));
        }
    }

    fn file_system() -> (FileSystem, Arc<Notes>) {
        let notes = Arc::new(Notes::default());
        let geometry =
            Geometry { journal: 17, metadata: 8, data: 1000, memory: 1000, commit: Duration::from_secs(1) };
        (FileSystem::new(Store::new(notes.clone()), geometry), notes)
    }

    fn taken(notes: &Notes) -> Vec<String> {
        std::mem::take(&mut *notes.0.lock().unwrap())
    }

    #[test]
    fn what_there_is_before_a_load_begins_is_written_once_and_flushed() {
        let (fs, notes) = file_system();
        fs.set_up(&[0, 1, 2, 300]).unwrap();
        let mut notes = taken(&notes);
        assert_eq!(notes.pop().unwrap(), "flush");
        notes.sort();
        assert_eq!(notes, ["write 17+11", "write 325+1"]);
    }

    #[test]
    fn data_goes_before_the_transaction_and_its_commit_record_last() {
        let (fs, notes) = file_system();
        fs.write(10, 3);
        fs.write(20, 1);
        fs.change(2);
        assert!(taken(&notes).is_empty(), "it is in memory");
        fs.commit().unwrap();
        // Data begins at block 25; the journal's first block is its superblock.
        assert_eq!(taken(&notes), ["write 35+3", "write 45+1", "sync 1+2", "flush", "forced 3+1"]);
        fs.commit().unwrap();
        assert!(taken(&notes).is_empty(), "nothing has changed");
        fs.change(2);
        fs.commit().unwrap();
        assert_eq!(taken(&notes), ["sync 4+2", "flush", "forced 6+1"]);
    }

    #[test]
    fn a_journal_that_is_half_full_is_emptied() {
        let (fs, notes) = file_system();
        (0..6).for_each(|n| fs.change(n));
        fs.commit().unwrap();
        let said = taken(&notes);
        assert_eq!(said, ["sync 1+7", "flush", "forced 8+1", "sync 17+6", "flush", "forced 0+1"]);
    }

    #[test]
    fn what_is_in_memory_is_not_read_and_what_is_deleted_is_not_written() {
        let (fs, notes) = file_system();
        fs.write(0, 2);
        fs.read(0, 4).unwrap();
        fs.read(0, 4).unwrap();
        assert_eq!(taken(&notes), ["read 27+2"]);
        fs.forget(0, 2);
        fs.change(0);
        fs.commit().unwrap();
        assert!(!taken(&notes).iter().any(|note| note.starts_with("write 25")));
    }
}
