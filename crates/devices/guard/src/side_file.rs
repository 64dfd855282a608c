//! Files with a volume's data: who may use them, and how those are opened whose names nobody has given.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Uid, openat, unlinkat};
use rustix::io::Errno;
use thiserror::Error;

use crate::who::user_name;

/// What the owner of a file with data may always do.
const OWNER: u32 = 0o600;

/// Who may use a file with a volume's data: who may use its backing, but never all users. Whoever can read a file can also lock it, and
/// so keep the volume from being served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileRights {
    /// Owner and group; `None`: those that a new file gets.
    owner: Option<(u32, u32)>,
    mode: u32,
}

impl FileRights {
    /// The user of the process alone.
    pub const ALONE: Self = Self { owner: None, mode: OWNER };

    /// Of a volume whose backing is at this path: owner, group and mode of a regular file, without what all may do. Anything else
    /// has no rights that would suit a file: [`FileRights::ALONE`].
    pub fn of_backing(path: &Path) -> Self {
        match fs::metadata(path) {
            Ok(meta) if meta.is_file() => {
                Self { owner: Some((meta.uid(), meta.gid())), mode: meta.mode() & 0o660 | OWNER }
            }
            _ => Self::ALONE,
        }
    }

    /// Makes a new file with these rights, which nobody else can open before it has them. Where the owner cannot be given, it is ours,
    /// and for us alone if the group cannot be given either.
    ///
    /// # Errors
    /// Of the system; [`ErrorKind::AlreadyExists`] if anything is at the path, a link included.
    pub fn create(&self, path: &Path) -> io::Result<File> {
        self.create_at(CWD, path.as_os_str())
    }

    fn create_at(&self, directory: impl AsFd, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = File::from(openat(directory, name, flags, Mode::from_raw_mode(OWNER))?);
        let Some((uid, gid)) = self.owner else { return Ok(file) };
        let meta = file.metadata()?;
        let owned =
            |uid: Option<u32>| rustix::fs::fchown(&file, uid.map(Uid::from_raw), Some(Gid::from_raw(gid)));
        let has_group = (meta.uid(), meta.gid()) == (uid, gid)
            || owned(Some(uid)).is_ok()
            || meta.gid() == gid
            || owned(None).is_ok();
        if has_group && self.mode != OWNER {
            // It only becomes wider: where there are no modes the file is what it is.
            let _ = file.set_permissions(Permissions::from_mode(self.mode));
        }
        Ok(file)
    }

    /// The bits by which others may do more with a file than these rights say.
    fn excess(&self, meta: &Metadata) -> u32 {
        let same_group = self.owner.is_some_and(|(_, gid)| gid == meta.gid());
        let allowed = if same_group { self.mode } else { OWNER };
        meta.mode() & 0o077 & !allowed
    }

    /// Looks whether others may do more with the file that the user has named than these rights say, and takes that away unless one
    /// only looks.
    pub fn keep(&self, path: &Path, look_only: bool) -> Privacy {
        // A pipe is not waited for.
        let flags = OFlags::NONBLOCK.bits() as i32;
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
        opened.map_or(Privacy::Kept, |file| self.keep_file(&file, look_only))
    }

    fn keep_file(&self, file: &File, look_only: bool) -> Privacy {
        let Ok(meta) = file.metadata() else { return Privacy::Kept };
        let (was, excess) = (meta.mode() & 0o777, self.excess(&meta));
        if !meta.is_file() || excess == 0 {
            return Privacy::Kept;
        }
        let mode = was & !excess;
        match look_only || file.set_permissions(Permissions::from_mode(mode)).is_err() {
            true => Privacy::Wide { was, mode },
            false => Privacy::Narrowed { was, mode },
        }
    }
}

/// What is found of a file's mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privacy {
    /// Nobody may do more than is right.
    Kept,
    /// Somebody might; it has this mode now.
    Narrowed {
        /// What it had.
        was: u32,
        /// What it has.
        mode: u32,
    },
    /// Somebody may; this mode would be right.
    Wide {
        /// What it has.
        was: u32,
        /// What it should have.
        mode: u32,
    },
}

/// Something that another user may have put in the place of a file whose name nobody has given.
#[derive(Debug, Error)]
#[error("{} {why}: it is not used", .path.display())]
pub struct Foreign {
    /// What.
    pub path: PathBuf,
    /// What is wrong with it.
    pub why: String,
}

impl Foreign {
    /// The one that an error of [`SideFile`] stands for.
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

/// A file beside a backing, at a path that follows from the backing's. It is never reached through a link, is a regular file,
/// has no other name, and belongs to root, to us or to the owner of the backing. Its directory is the one that was at the path
/// when it was named: whoever puts another one there leads nobody to it.
#[derive(Clone, Debug)]
pub struct SideFile {
    path: PathBuf,
    rights: FileRights,
    /// `None` if it could not be opened then.
    directory: Option<Arc<OwnedFd>>,
}

impl PartialEq for SideFile {
    fn eq(&self, other: &Self) -> bool {
        (&self.path, self.rights) == (&other.path, other.rights)
    }
}

impl Eq for SideFile {}

impl SideFile {
    /// The file at `path`, for those who have these rights.
    pub fn new(path: PathBuf, rights: FileRights) -> Self {
        let directory = open_directory(&path).ok().map(Arc::new);
        Self { path, rights, directory }
    }

    fn directory(&self) -> io::Result<Arc<OwnedFd>> {
        match &self.directory {
            Some(directory) => Ok(Arc::clone(directory)),
            None => Ok(Arc::new(open_directory(&self.path)?)),
        }
    }

    fn name(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }

    fn open_at(&self, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(File::from(openat(self.directory()?, self.name(), flags, Mode::empty())?))
    }

    /// Makes it.
    ///
    /// # Errors
    /// Of the system; [`ErrorKind::AlreadyExists`] if anything is there, a link included.
    pub fn create(&self) -> io::Result<File> {
        self.rights.create_at(self.directory()?, self.name())
    }

    /// Removes it, if it is there.
    ///
    /// # Errors
    /// Of the system.
    pub fn remove(&self) -> io::Result<()> {
        match unlinkat(self.directory()?, self.name(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Makes durable that it is in its directory, or is there no more. A file system that has no such thing to do is no failure.
    ///
    /// # Errors
    /// Of the system.
    pub fn sync_entry(&self) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = File::from(openat(self.directory()?, ".", flags, Mode::empty())?);
        match rustix::fs::fsync(&directory) {
            // SMB and others have no fsync of a directory.
            Ok(()) | Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Who may use it.
    pub fn rights(&self) -> FileRights {
        self.rights
    }

    /// Opens it.
    ///
    /// # Errors
    /// Of the system; one for which [`Foreign::of`] has something if it is not to be used.
    pub fn open(&self, write: bool) -> io::Result<File> {
        let opened = self.open_at(if write { OFlags::RDWR } else { OFlags::RDONLY });
        let (file, meta) = match opened {
            Ok(file) => {
                let meta = file.metadata()?;
                (Ok(file), meta)
            }
            // A link, or a pipe that nobody reads or a socket: what it is says more than the error.
            Err(e) => (Err(e), self.open_at(OFlags::PATH)?.metadata()?),
        };
        if let Some(why) = self.foreign(&meta) {
            return Err(io::Error::new(
                ErrorKind::PermissionDenied,
                Foreign { path: self.path.clone(), why },
            ));
        }
        let file = file?;
        // It was for the opening alone.
        let status = rustix::fs::fcntl_getfl(&file)?;
        rustix::fs::fcntl_setfl(&file, status - OFlags::NONBLOCK)?;
        Ok(file)
    }

    /// Opens it for writing, or makes it; true if it was made.
    ///
    /// # Errors
    /// As [`SideFile::open`].
    pub fn open_or_create(&self) -> io::Result<(File, bool)> {
        match self.open(true) {
            Err(e) if e.kind() == ErrorKind::NotFound => self.create().map(|file| (file, true)),
            opened => opened.map(|file| (file, false)),
        }
    }

    /// As [`FileRights::keep`], of what is a file that could be used.
    pub fn keep(&self, look_only: bool) -> Privacy {
        self.open(false).map_or(Privacy::Kept, |file| self.rights.keep_file(&file, look_only))
    }

    fn foreign(&self, meta: &Metadata) -> Option<String> {
        let owner = meta.uid();
        let ours = || {
            owner == rustix::process::geteuid().as_raw()
                || self.rights.owner.is_some_and(|(uid, _)| uid == owner)
        };
        match meta.file_type() {
            kind if kind.is_symlink() => Some("is a symbolic link; put the file itself there".to_owned()),
            kind if !kind.is_file() => Some("is no regular file; remove it".to_owned()),
            _ if meta.nlink() > 1 => {
                Some("has another name, as a hard link; put a copy of it in its place".to_owned())
            }
            _ if owner != 0 && !ours() => Some(format!(
                "belongs to user {}, who is not the owner of the backing; if it is yours, `chown` it to that one",
                user_name(owner)
            )),
            _ => None,
        }
    }
}

/// The directory that a file lies in.
fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(CWD, parent, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A user who may change the path to the directory does not lead us elsewhere.
    #[test]
    fn the_directory_is_that_of_the_first_look() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        for dir in ["his", "ours"] {
            fs::create_dir(at(dir)).unwrap();
        }
        fs::write(at("ours/label"), "ours").unwrap();
        let file = SideFile::new(at("his/label"), FileRights::ALONE);
        drop(file.create().unwrap());
        fs::rename(at("his"), at("away")).unwrap();
        std::os::unix::fs::symlink(at("ours"), at("his")).unwrap();
        file.open(true).unwrap().set_len(3).unwrap();
        file.sync_entry().unwrap();
        assert_eq!(fs::metadata(at("away/label")).unwrap().len(), 3);
        file.remove().unwrap();
        file.remove().unwrap();
        assert!(!at("away/label").exists());
        let (_, made) = file.open_or_create().unwrap();
        assert!(made && at("away/label").exists());
        assert_eq!(fs::read(at("ours/label")).unwrap(), b"ours");
    }

    const NOBODY: u32 = 65534;

    fn is_root() -> bool {
        let root = rustix::process::geteuid().is_root();
        if !root {
            assert!(std::env::var_os("CI").is_none(), "these tests need root");
            eprintln!("SKIP: needs root");
        }
        root
    }

    struct Place(tempfile::TempDir);

    impl Place {
        /// With a backing of this mode.
        fn new(mode: u32) -> Self {
            let place = Self(tempfile::tempdir().unwrap());
            place.file("backing", mode);
            place
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn file(&self, name: &str, mode: u32) {
            fs::write(self.path(name), name).unwrap();
            fs::set_permissions(self.path(name), Permissions::from_mode(mode)).unwrap();
        }

        fn rights(&self) -> FileRights {
            FileRights::of_backing(&self.path("backing"))
        }

        fn label(&self) -> SideFile {
            SideFile::new(self.path("label"), self.rights())
        }

        fn mode(&self, name: &str) -> u32 {
            fs::metadata(self.path(name)).unwrap().mode() & 0o777
        }
    }

    #[test]
    fn a_new_file_is_for_who_may_use_the_backing_but_not_for_all() {
        for (backing, expected) in
            [(0o600, 0o600), (0o644, 0o640), (0o666, 0o660), (0o400, 0o600), (0o755, 0o640), (0o604, 0o600)]
        {
            let place = Place::new(backing);
            place.rights().create(&place.path("new")).unwrap();
            assert_eq!(place.mode("new"), expected, "{backing:o}");
            assert!(place.rights().create(&place.path("new")).is_err(), "nothing is overwritten");
        }
        assert_eq!(FileRights::of_backing(Path::new("/dev/null")), FileRights::ALONE);
        assert_eq!(FileRights::of_backing(Path::new("/nonexistent")), FileRights::ALONE);
    }

    #[test]
    fn a_new_file_has_the_owner_of_the_backing() {
        if !is_root() {
            return;
        }
        let place = Place::new(0o640);
        std::os::unix::fs::chown(place.path("backing"), Some(NOBODY), Some(7)).unwrap();
        let (_, made) = place.label().open_or_create().unwrap();
        let meta = fs::metadata(place.path("label")).unwrap();
        assert_eq!((made, meta.uid(), meta.gid(), meta.mode() & 0o777), (true, NOBODY, 7, 0o640));
        assert!(!place.label().open_or_create().unwrap().1);
    }

    #[test]
    fn what_is_wider_is_narrowed_or_told() {
        let place = Place::new(0o600);
        let (was, mode) = (0o644, 0o600);
        place.file("cache", was);
        assert_eq!(place.rights().keep(&place.path("cache"), true), Privacy::Wide { was, mode });
        assert_eq!(place.rights().keep(&place.path("cache"), false), Privacy::Narrowed { was, mode });
        assert_eq!(place.mode("cache"), mode);
        assert_eq!(place.rights().keep(&place.path("cache"), false), Privacy::Kept);
        // What lies beside a backing is not narrowed through a link.
        place.file("victim", was);
        std::os::unix::fs::symlink(place.path("victim"), place.path("label")).unwrap();
        assert_eq!((place.label().keep(false), place.mode("victim")), (Privacy::Kept, was));
        fs::remove_file(place.path("label")).unwrap();
        place.file("label", was);
        assert_eq!(place.label().keep(false), Privacy::Narrowed { was, mode });
        // Those of a group may only if it is the backing's.
        let place = Place::new(0o660);
        place.file("cache", 0o660);
        assert_eq!(place.rights().keep(&place.path("cache"), false), Privacy::Kept);
        if is_root() {
            std::os::unix::fs::chown(place.path("cache"), None, Some(NOBODY)).unwrap();
            let narrowed = Privacy::Narrowed { was: 0o660, mode: 0o600 };
            assert_eq!(place.rights().keep(&place.path("cache"), false), narrowed);
        }
    }

    #[test]
    fn neither_links_nor_pipes_nor_strangers_files_are_used() {
        let place = Place::new(0o600);
        let label = place.path("label");
        let refused = |expected: &str| {
            for opened in [
                place.label().open(true),
                place.label().open(false),
                place.label().open_or_create().map(|o| o.0),
            ] {
                let e = opened.unwrap_err();
                let told = Foreign::of(&e).map(ToString::to_string).unwrap_or_default();
                assert!(told.contains(expected), "{e}");
            }
        };
        place.file("victim", 0o600);
        for to in ["victim", "absent"] {
            std::os::unix::fs::symlink(place.path(to), &label).unwrap();
            refused("symbolic link");
            fs::remove_file(&label).unwrap();
        }
        assert!(!place.path("absent").exists());
        fs::hard_link(place.path("victim"), &label).unwrap();
        refused("hard link");
        fs::remove_file(&label).unwrap();
        let pipe = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &label, pipe, rustix::fs::Mode::RWXU, 0).unwrap();
        refused("no regular file");
        fs::remove_file(&label).unwrap();
        assert_eq!(place.label().open(true).unwrap_err().kind(), ErrorKind::NotFound);
        if is_root() {
            place.file("label", 0o666);
            std::os::unix::fs::chown(&label, Some(NOBODY), None).unwrap();
            refused("user nobody");
        }
    }
}
