//! PostMark: a mail server's small files.

use super::Load;
use super::files::Files;
use crate::BenchError;
use crate::dice::Dice;
use crate::file_system::{FileSystem, Geometry};

/// A file of 100 KB, as in the paper.
const FILE_BLOCKS: u64 = 25;
const SLOT_BLOCKS: u64 = 32;

/// One client; a transaction reads a file or appends 4 KiB to one, and makes a file or removes one.
pub(super) struct PostMark(Files);

impl PostMark {
    pub(super) fn new(geometry: &Geometry) -> Self {
        Self(Files::new(geometry.data, SLOT_BLOCKS, FILE_BLOCKS))
    }
}

impl Load for PostMark {
    fn step(&self, dice: &mut Dice, fs: &FileSystem) -> Result<(), BenchError> {
        if dice.percent(50) {
            self.0.read(fs, dice)?;
        } else {
            self.0.append(fs, dice, 1);
        }
        if dice.percent(50) {
            self.0.create(fs, dice, FILE_BLOCKS);
        } else {
            self.0.delete(fs, dice);
        }
        Ok(())
    }

    fn written(&self, _: &Geometry) -> Vec<u64> {
        self.0.blocks()
    }
}
