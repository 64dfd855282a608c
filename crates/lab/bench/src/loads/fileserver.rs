//! Filebench's personality `fileserver`: home directories.

use super::Load;
use super::files::Files;
use crate::BenchError;
use crate::dice::Dice;
use crate::file_system::{FileSystem, Geometry};

/// 128 KiB on average.
const FILE_BLOCKS: u64 = 32;
const SLOT_BLOCKS: u64 = 64;
/// Appended at a time: 16 KiB on average.
const APPEND_BLOCKS_MAX: u64 = 7;

/// Each client in turn: makes a file and writes it, appends to one, reads one, removes one.
pub(super) struct FileServer(Files);

impl FileServer {
    pub(super) fn new(geometry: &Geometry) -> Self {
        Self(Files::new(geometry.data, SLOT_BLOCKS, FILE_BLOCKS))
    }
}

impl Load for FileServer {
    fn step(&self, dice: &mut Dice, fs: &FileSystem) -> Result<(), BenchError> {
        // From half the average to one and a half of it.
        let blocks = dice.between(FILE_BLOCKS / 2, FILE_BLOCKS + FILE_BLOCKS / 2);
        self.0.create(fs, dice, blocks);
        let blocks = dice.between(1, APPEND_BLOCKS_MAX);
        self.0.append(fs, dice, blocks);
        self.0.read(fs, dice)?;
        self.0.delete(fs, dice);
        Ok(())
    }

    fn written(&self, _: &Geometry) -> Vec<u64> {
        self.0.blocks()
    }
}
