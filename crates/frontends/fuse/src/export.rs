//! The life of an export: mount, serve, unmount.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use forebay_block::{BLOCK_BYTES, BlockService, Frontend};
use fuser::{BackgroundSession, Config, Session, SessionACL};

use crate::error::FuseError;
use crate::mounts::{self, Unmount};
use crate::stale::{FileState, clean_stale, state_of};
use crate::stats::{Counters, FuseStats};
use crate::volume_file::VolumeFile;

/// The longest request in bytes that the kernel is asked to send: its own limit is 256 pages.
const REQUEST_BYTES_MAX: usize = 1 << 20;

/// How long [`FuseExport::unmount`] waits for a file that is just being closed.
const UNMOUNT_PATIENCE: Duration = Duration::from_secs(2);

/// Choices of an export. The defaults are the ones that were best when measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FuseOptions {
    /// Threads that read requests from the kernel, 1 to 16, each with a queue of its own. They copy a request's data and
    /// hand it to the volume; the volume's thread answers.
    pub reader_threads: usize,
    /// Asynchronous requests that the kernel may have outstanding, 1 to 65535. At the limit it makes the submitter wait, which for
    /// a loop device is the one worker that carries everybody's requests; so it must be more than the loop device's queue is deep.
    pub max_background: u16,
    /// Let several programs write at the same time (they do not share the inode's lock). A volume does not need the lock; a loop
    /// device does not notice.
    pub parallel_direct_writes: bool,
}

impl Default for FuseOptions {
    fn default() -> Self {
        Self { reader_threads: 2, max_background: 256, parallel_direct_writes: true }
    }
}

/// A volume that is mounted as one file. Dropping it takes the file away from under its users.
pub struct FuseExport {
    /// As whoever asked for it named it.
    named: PathBuf,
    path: PathBuf,
    /// Major and minor number of the mounted file system, by which it is told from another one on the same path.
    device: (u32, u32),
    created: bool,
    session: Mutex<Option<BackgroundSession>>,
    counters: Arc<Counters>,
}

impl FuseExport {
    /// Makes the volume appear as the regular file `path`. If there is no such file it is created, and removed on unmount; an
    /// existing one must be empty, since the mount hides it. What a killed daemon left on the path is cleaned up.
    ///
    /// # Errors
    /// See [`FuseError`]. Nothing is left behind then.
    pub fn mount(
        path: &Path,
        service: Arc<dyn BlockService>,
        options: FuseOptions,
    ) -> Result<Self, FuseError> {
        let (named, path) = (path.to_owned(), resolve(path)?);
        clean_stale(&path)?;
        let created = prepare_file(&path)?;
        let counters = Arc::new(Counters::default());
        match serve(&path, service, options, &counters) {
            Ok((device, session)) => {
                Ok(Self { named, path, device, created, session: Mutex::new(Some(session)), counters })
            }
            Err(e) => {
                remove_file(&path, created);
                Err(e)
            }
        }
    }

    /// Where the volume appears, as an absolute path without symbolic links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Figures since the mount.
    pub fn stats(&self) -> FuseStats {
        self.counters.snapshot()
    }

    /// Unmounts if nobody has the file open; a loop device counts. May be tried again.
    ///
    /// # Errors
    /// [`FuseError::Busy`] if it is in use, then it goes on being served.
    pub fn unmount(&self) -> Result<(), FuseError> {
        self.unmount_within(UNMOUNT_PATIENCE)
    }

    fn unmount_within(&self, patience: Duration) -> Result<(), FuseError> {
        let deadline = Instant::now() + patience;
        while self.is_mounted() {
            match mounts::unmount(&self.path, Unmount::IfUnused) {
                Ok(()) => break,
                // A file that was just closed is let go of a moment later.
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {
                    if Instant::now() >= deadline {
                        return Err(FuseError::Busy { what: self.path.clone(), by: "it is open".to_owned() });
                    }
                    thread::sleep(Duration::from_millis(5));
                }
                Err(e) => return Err(FuseError::system("unmount", &self.path, e)),
            }
        }
        self.finish();
        Ok(())
    }

    /// Whether what is mounted on the path is this export.
    fn is_mounted(&self) -> bool {
        let session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        session.as_ref().is_some_and(|session| !session.guard.is_finished())
            && matches!(mounts::mounted_on(&self.path), Ok(Some(m)) if m.device == self.device)
    }

    /// Waits for the reader threads, which end when the file system is gone.
    fn finish(&self) {
        let session = self.session.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(session) = session {
            // An error here is that of a reader whose connection is gone, which is what was asked for.
            let _ = session.join();
            remove_file(&self.path, self.created);
        }
    }
}

impl FuseExport {
    /// Takes the file away from under its users.
    fn abort(&self) {
        if self.is_mounted() && mounts::unmount(&self.path, Unmount::Abort).is_err() {
            // Without the abort the readers would be waited for in vain; they end with the process.
            self.session.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
        self.finish();
    }
}

impl Frontend for FuseExport {
    fn kind(&self) -> &'static str {
        "FUSE file"
    }

    fn addresses(&self) -> Vec<String> {
        vec![format!("fuse:{}", self.named.display())]
    }

    fn stop(&self, grace: Duration) -> Result<(), String> {
        let stopped = self.unmount_within(grace);
        self.abort();
        stopped.map_err(|e| e.to_string())
    }
}

impl Drop for FuseExport {
    fn drop(&mut self) {
        self.abort();
    }
}

/// Mounts and starts to serve.
fn serve(
    path: &Path,
    service: Arc<dyn BlockService>,
    options: FuseOptions,
    counters: &Arc<Counters>,
) -> Result<((u32, u32), BackgroundSession), FuseError> {
    let failed = |action| move |e| FuseError::system(action, path, e);
    let info = service.info();
    let block = BLOCK_BYTES as usize;
    let request_bytes_max = (info.request_bytes_max / block * block).clamp(block, REQUEST_BYTES_MAX);
    let fuse = match OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(file) => OwnedFd::from(file),
        Err(e) if denied(&e) => {
            return Err(FuseError::NotPermitted { path: path.to_owned() });
        }
        Err(e) => return Err(FuseError::system("open", Path::new("/dev/fuse"), e)),
    };
    match mounts::mount_fuse(fuse.as_fd(), path, &info.name, info.read_only, request_bytes_max) {
        Ok(()) => {}
        Err(e) if denied(&e) => {
            return Err(FuseError::NotPermitted { path: path.to_owned() });
        }
        Err(e) => return Err(FuseError::system("mount", path, e)),
    }
    let start = || {
        let mounted = mounts::mounted_on(path)?;
        let device = mounted.ok_or(io::ErrorKind::NotFound)?.device;
        let mut config = Config::default();
        config.n_threads = Some(options.reader_threads.clamp(1, 16));
        config.clone_fd = true;
        let file = VolumeFile::new(service, request_bytes_max, options, Arc::clone(counters));
        let session = Session::from_fd(file, fuse, SessionACL::All, config)?;
        Ok((device, session.spawn()?))
    };
    start().map_err(|e| {
        // The first error is the one to tell.
        let _ = mounts::unmount(path, Unmount::Abort);
        failed("serve")(e)
    })
}

fn denied(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EPERM | libc::EACCES | libc::ENOENT | libc::ENODEV))
}

/// An absolute path without symbolic links before the last part, which need not exist.
pub(crate) fn resolve(path: &Path) -> Result<PathBuf, FuseError> {
    let name = path
        .file_name()
        .ok_or_else(|| FuseError::Unsuitable { path: path.to_owned(), problem: "does not name a file" })?;
    let parent = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    let parent = fs::canonicalize(parent).map_err(|e| FuseError::system("find the directory of", path, e))?;
    Ok(parent.join(name))
}

/// Sees to it that an empty regular file is at `path`; true if it had to be created.
fn prepare_file(path: &Path) -> Result<bool, FuseError> {
    let unsuitable = |problem| Err(FuseError::Unsuitable { path: path.to_owned(), problem });
    match state_of(path)? {
        FileState::Absent => {
            let new = OpenOptions::new().write(true).create_new(true).open(path);
            new.map_err(|e| FuseError::system("create", path, e))?;
            Ok(true)
        }
        FileState::EmptyFile => Ok(false),
        FileState::FileWithData => unsuitable("is a file that is not empty"),
        FileState::NoRegularFile => unsuitable("is not a regular file"),
        FileState::Dead => Err(FuseError::Hung { path: path.to_owned() }),
    }
}

/// Removes the file that the export was mounted on, if it is ours and still empty.
fn remove_file(path: &Path, created: bool) {
    if created && matches!(state_of(path), Ok(FileState::EmptyFile)) {
        // If it cannot be removed it stays, empty, and is used again by the next mount.
        let _ = fs::remove_file(path);
    }
}
