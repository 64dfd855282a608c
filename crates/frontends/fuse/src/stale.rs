//! What a killed daemon leaves behind, and its removal.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use crate::apart;
use crate::error::FuseError;
use crate::export::resolve;
use crate::loop_device;
use crate::mounts::{self, FUSE_TYPE, Unmount};

/// How long a file system on FILE may take to answer before it is called hung.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);

/// File systems that may lie dead upon each other on one path; each killed daemon leaves at most one.
const STACKED_MOUNTS_MAX: usize = 64;

/// What is at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileState {
    /// Nothing.
    Absent,
    /// An empty regular file.
    EmptyFile,
    /// A regular file with data, or a live export.
    FileWithData,
    /// A directory, device, symbolic link and so on.
    NoRegularFile,
    /// A FUSE file system whose daemon is gone.
    Dead,
}

/// Looks at `path` from a thread apart, as a live export of this very process may be there.
pub(crate) fn state_of(path: &Path) -> Result<FileState, FuseError> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let looked_at = path.to_owned();
    apart::spawn("forebay-look", move |left| {
        // If the receiver has lost patience nobody wants to know any more.
        let _ = sender.send(left.and_then(|()| look(&looked_at)));
    })
    .map_err(|e| FuseError::system("look at", path, e))?;
    match receiver.recv_timeout(ANSWER_PATIENCE) {
        Ok(state) => state.map_err(|e| FuseError::system("look at", path, e)),
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            Err(FuseError::Hung { path: path.to_owned() })
        }
    }
}

fn look(path: &Path) -> io::Result<FileState> {
    match fs::symlink_metadata(path) {
        Ok(m) if m.is_file() && m.len() == 0 => Ok(FileState::EmptyFile),
        Ok(m) if m.is_file() => Ok(FileState::FileWithData),
        Ok(_) => Ok(FileState::NoRegularFile),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(FileState::Absent),
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED)) => {
            Ok(FileState::Dead)
        }
        Err(e) => Err(e),
    }
}

/// What [`clean_stale`] has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Dead FUSE mounts that were taken away.
    pub mounts: usize,
    /// Loop devices on them that were cleared.
    pub loops_cleared: Vec<PathBuf>,
    /// Loop devices on them that are still in use, mostly by a file system that must be unmounted. Every request to them fails;
    /// they go away when they are closed.
    pub loops_in_use: Vec<PathBuf>,
}

/// Removes what daemons that are no more have left on `path`: FUSE mounts without anyone behind them, and loop devices on
/// these. Does nothing if there is no mount.
///
/// # Errors
/// [`FuseError::InUse`] if a live program serves the path, [`FuseError::Hung`] if what is mounted there does not answer.
pub fn clean_stale(path: &Path) -> Result<Cleaned, FuseError> {
    let path = resolve(path)?;
    let mut cleaned = Cleaned::default();
    for _ in 0..STACKED_MOUNTS_MAX {
        let table = mounts::mounted_on(&path).map_err(|e| FuseError::system("look up", &path, e))?;
        let Some(mount) = table else { break };
        match state_of(&path)? {
            FileState::Dead => {}
            _ if mount.fs_type == FUSE_TYPE => return Err(FuseError::InUse { path }),
            // Something of somebody else, which the caller will find unsuitable.
            _ => break,
        }
        clear_loops(&path, &mut cleaned)?;
        mounts::unmount(&path, Unmount::Abort).map_err(|e| FuseError::system("unmount", &path, e))?;
        cleaned.mounts += 1;
    }
    Ok(cleaned)
}

/// Clears the loop devices on `path`. A thread apart is not needed: what they stand on answers at once, with an error.
fn clear_loops(path: &Path, cleaned: &mut Cleaned) -> Result<(), FuseError> {
    let devices =
        loop_device::on_file(path).map_err(|e| FuseError::system("find loop devices on", path, e))?;
    for device in devices {
        match loop_device::clear(&device) {
            Ok(true) => cleaned.loops_cleared.push(device),
            Ok(false) => cleaned.loops_in_use.push(device),
            Err(e) => return Err(FuseError::system("clear", &device, e)),
        }
    }
    Ok(())
}
