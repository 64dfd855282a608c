//! The files that `format` makes: created with all the room that they need, and removed again if it ends in an error.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_block::BLOCK_BYTES;
use forebay_device::{Lack, RemoteSpec, lacks_room, reserve, sync_entry};
use forebay_guard::{FileRights, SideFile};

use super::{absolute, check_room};
use crate::error::HostError;
use crate::label::{LabelPlace, remove_durably, remove_side_file};

/// Files that were created on the way, and go again if it ends in an error.
#[derive(Default)]
pub(super) struct MadeFiles(Vec<Made>);

enum Made {
    /// There was no file. It is known again by its inode: whoever puts another one in its place keeps it.
    New(PathBuf, Inode),
    /// There was one that was shorter, by a byte or by all of them, as is left by who died on the way.
    Lengthened(PathBuf, Inode, u64),
    /// There was no label.
    Label(SideFile),
    /// There was no such store on another machine.
    Remote(Arc<dyn RemoteSpec>),
}

/// Device and number.
type Inode = (u64, u64);

fn inode(meta: &Metadata) -> Inode {
    (meta.dev(), meta.ino())
}

const LEFT_NOTHING: &str = "the files that were made for it are removed";
const LEFT_NO_CACHE: &str = "there is no cache in it now; `forebay format` makes one";

/// Size of a cache file that is made: in whole blocks, for direct I/O reads and writes no part of one at its end.
pub(super) fn whole_blocks(bytes: Option<u64>) -> Option<u64> {
    bytes.map(|bytes| bytes / BLOCK_BYTES * BLOCK_BYTES)
}

/// Whether a file is missing, or empty: it is to be made.
fn is_unmade(path: &Path) -> bool {
    fs::metadata(path)
        .map_or_else(|e| e.kind() == io::ErrorKind::NotFound, |meta| meta.is_file() && meta.len() == 0)
}

impl MadeFiles {
    /// Creates a missing file, for those who have these rights, if its size is given, and gives an empty one its size. It has its room only as it is written, which may
    /// one day be more than there is.
    pub(super) fn sparse_file(
        &mut self,
        path: &Path,
        bytes: Option<u64>,
        rights: FileRights,
    ) -> Result<Option<Lack>, HostError> {
        let lack = match bytes.filter(|_| is_unmade(path)) {
            Some(bytes) => lacks_room(path, bytes).unwrap_or_default(),
            None => None,
        };
        self.file(path, bytes, rights, |file, bytes| file.set_len(bytes))?;
        Ok(lack)
    }

    /// The same with all the room that it needs, where the file system can reserve it: elsewhere writing it takes the room.
    pub(super) fn reserved_file(
        &mut self,
        path: &Path,
        bytes: Option<u64>,
        rights: FileRights,
        stopped: &dyn Fn() -> bool,
    ) -> Result<(), HostError> {
        if let Some(bytes) = bytes.filter(|_| is_unmade(path)) {
            check_room(path, bytes)?;
        }
        self.file(path, bytes, rights, |file, bytes| {
            reserve(file, bytes, stopped)?;
            file.set_len(bytes)
        })
    }

    fn file(
        &mut self,
        path: &Path,
        bytes: Option<u64>,
        rights: FileRights,
        give_size: impl Fn(&File, u64) -> io::Result<()>,
    ) -> Result<(), HostError> {
        let Some(bytes) = bytes else { return Ok(()) };
        let failed = |e: io::Error| match e.kind() {
            io::ErrorKind::Interrupted => HostError::ToldToStop { path: absolute(path), left: LEFT_NOTHING },
            _ => HostError::system("create", path, e),
        };
        let file = match rights.create(path) {
            Ok(file) => {
                self.0.push(Made::New(path.to_owned(), inode(&file.metadata().map_err(failed)?)));
                file
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                let is_empty = fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() == 0);
                if !is_empty {
                    return Ok(());
                }
                let file = OpenOptions::new().write(true).open(path).map_err(failed)?;
                self.0.push(Made::Lengthened(path.to_owned(), inode(&file.metadata().map_err(failed)?), 0));
                file
            }
            Err(e) => return Err(failed(e)),
        };
        let sized = give_size(&file, bytes).and_then(|()| file.sync_all()).and_then(|()| sync_entry(path));
        sized.map_err(failed)
    }

    /// Makes a store on another machine that is missing, if its kind is made so.
    pub(super) fn remote(&mut self, spec: &Arc<dyn RemoteSpec>, bytes: u64) -> Result<(), HostError> {
        if spec.make(bytes)? {
            self.0.push(Made::Remote(Arc::clone(spec)));
        }
        Ok(())
    }

    /// A file that was there has become longer than it was.
    pub(super) fn lengthened(&mut self, path: &Path, size_before: u64) {
        if let Ok(meta) = fs::metadata(path) {
            self.0.push(Made::Lengthened(path.to_owned(), inode(&meta), size_before));
        }
    }

    /// The label's file is about to be made, if there is none. It goes with the cache: that of one that was there may be whole already.
    pub(super) fn label(&mut self, place: &LabelPlace) {
        if let LabelPlace::SideFile(file) = place
            && self.0.iter().any(|made| matches!(made, Made::New(..)))
            && fs::symlink_metadata(file.path()).is_err()
        {
            self.0.push(Made::Label(file.clone()));
        }
    }

    /// What will be there if the work on `cache` ends here.
    pub(super) fn left_of(&self, cache: &Path) -> &'static str {
        match self.0.iter().any(|made| matches!(made, Made::New(path, _) if path == cache)) {
            true => LEFT_NOTHING,
            false => LEFT_NO_CACHE,
        }
    }

    pub(super) fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for MadeFiles {
    fn drop(&mut self) {
        for made in &self.0 {
            // What cannot be taken back stays behind, empty, and the error that led here is told.
            let _ = match made {
                Made::New(path, was) => match fs::symlink_metadata(path) {
                    Ok(meta) if inode(&meta) == *was => remove_durably(path),
                    _ => Ok(()),
                },
                Made::Label(file) => remove_side_file(file),
                Made::Remote(spec) => spec.remove().map_err(io::Error::other),
                Made::Lengthened(path, was, bytes) => {
                    let file = OpenOptions::new().write(true).open(path);
                    file.and_then(|file: File| match inode(&file.metadata()?) == *was {
                        true => file.set_len(*bytes).and_then(|()| file.sync_all()),
                        false => Ok(()),
                    })
                }
            };
        }
    }
}
