//! Files of a set: each has a slot of blocks of its own, an inode, and an entry in a directory.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::BenchError;
use crate::dice::Dice;
use crate::file_system::FileSystem;

/// Inodes of 128 bytes in a block.
const INODES_PER_BLOCK: u64 = 32;
/// Entries of a directory.
const FILES_PER_DIRECTORY: u64 = 100;

struct Set {
    /// Blocks of each file; 0 if there is none in the slot.
    blocks: Vec<u64>,
    files: u64,
}

/// See the module's documentation.
pub(crate) struct Files {
    slot_blocks: u64,
    set: Mutex<Set>,
}

impl Files {
    /// Four slots of five have files of `blocks` from the beginning.
    pub(crate) fn new(data_blocks: u64, slot_blocks: u64, blocks: u64) -> Self {
        let slots = (data_blocks / slot_blocks).max(2);
        let filled = |slot: u64| if slot % 5 == 4 { 0 } else { blocks };
        let blocks: Vec<u64> = (0..slots).map(filled).collect();
        let files = blocks.iter().filter(|b| **b > 0).count() as u64;
        Self { slot_blocks, set: Mutex::new(Set { blocks, files }) }
    }

    /// Blocks of all files, sorted.
    pub(crate) fn blocks(&self) -> Vec<u64> {
        let set = self.set();
        let file = |(slot, blocks): (usize, &u64)| {
            let first = slot as u64 * self.slot_blocks;
            first..first + blocks
        };
        set.blocks.iter().enumerate().flat_map(file).collect()
    }

    fn set(&self) -> MutexGuard<'_, Set> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A slot with a file, or without one; near a random place. There is always one of both.
    fn pick(&self, set: &Set, dice: &mut Dice, with_file: bool) -> u64 {
        let slots = set.blocks.len() as u64;
        let from = dice.below(slots);
        let fits = |slot: &u64| (set.blocks[*slot as usize] > 0) == with_file;
        (0..slots).map(|n| (from + n) % slots).find(fits).unwrap_or(from)
    }

    fn change_metadata(&self, fs: &FileSystem, slot: u64, directory: bool) {
        let inodes = fs.geometry.metadata / 2;
        fs.change(slot / INODES_PER_BLOCK % inodes.max(1));
        if directory {
            fs.change(inodes + slot / FILES_PER_DIRECTORY);
            // A bitmap speaks of 32,768 blocks.
            fs.change(fs.geometry.metadata - 1 - slot * self.slot_blocks / 32_768);
        }
    }

    /// Makes a file and writes all of it; where every slot but one is taken, a file is removed first.
    pub(crate) fn create(&self, fs: &FileSystem, dice: &mut Dice, blocks: u64) {
        let crowded = {
            let set = self.set();
            set.files + 1 >= set.blocks.len() as u64
        };
        if crowded {
            self.delete(fs, dice);
        }
        let slot = {
            let mut set = self.set();
            let slot = self.pick(&set, dice, false);
            set.files += u64::from(set.blocks[slot as usize] == 0);
            set.blocks[slot as usize] = blocks;
            slot
        };
        self.change_metadata(fs, slot, true);
        fs.write(slot * self.slot_blocks, blocks);
    }

    /// Removes a file, but never the last one.
    pub(crate) fn delete(&self, fs: &FileSystem, dice: &mut Dice) {
        let (slot, blocks) = {
            let mut set = self.set();
            if set.files <= 1 {
                return;
            }
            let slot = self.pick(&set, dice, true);
            set.files -= 1;
            (slot, std::mem::take(&mut set.blocks[slot as usize]))
        };
        fs.forget(slot * self.slot_blocks, blocks);
        self.change_metadata(fs, slot, true);
    }

    /// Reads all of a file.
    pub(crate) fn read(&self, fs: &FileSystem, dice: &mut Dice) -> Result<(), BenchError> {
        let (slot, blocks) = {
            let set = self.set();
            let slot = self.pick(&set, dice, true);
            (slot, set.blocks[slot as usize])
        };
        fs.read(slot * self.slot_blocks, blocks)
    }

    /// Adds blocks to a file; one that has no room for them changes its last ones.
    pub(crate) fn append(&self, fs: &FileSystem, dice: &mut Dice, blocks: u64) {
        let (slot, at) = {
            let mut set = self.set();
            let slot = self.pick(&set, dice, true);
            let size = &mut set.blocks[slot as usize];
            *size = (*size + blocks).min(self.slot_blocks);
            (slot, *size - blocks.min(*size))
        };
        self.change_metadata(fs, slot, false);
        fs.write(slot * self.slot_blocks + at, blocks);
    }
}
