//! Settings of the kernel that an attachment changes, and the record by which they are put right after a daemon was killed.
//!
//! What was there before is in a small file (`NAME.knobs` beside the control socket) before the first knob is turned. Whoever attaches holds a lock
//! on it, which the kernel takes away from a process that dies. So a record without a lock is one that a killed daemon has left. The next attach or
//! detach at that directory, of whichever volume, puts the device right and removes the record.
//!
//! A loop device has many users, one after the other. Each use begins and ends with a new number (`diskseq`). A record counts
//! for the device that still has the number of the record, and for one that stands on no file and whose number is the next: it has just been cleared.
//! Of a device that has had another user since nothing is touched.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::loop_device;

/// First and last line of a record.
const MAGIC: &str = "forebay knobs 1";
const END: &str = "end";

/// Longest record that is read, in bytes; one of this version has about one thousand.
const RECORD_BYTES_MAX: u64 = 64 << 10;

/// Tries to get a record that somebody else looks at, and what lies between them.
const LOCK_TRIES_MAX: u32 = 50;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Name of the throttle of the block layer. A number that is written there differs from the default, even if it is the same.
pub(crate) const THROTTLE: &str = "queue/wbt_lat_usec";

/// Makes the throttle what it is by default.
pub(crate) const THROTTLE_DEFAULT: &str = "-1";

/// A setting of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Knob {
    /// `queue/...` and `bdi/...` are files below `/sys/block/loopN`, `fuse/...` below `/sys/fs/fuse/connections/N`.
    pub name: String,
    /// What an attachment sets; empty if it only keeps what was there.
    pub set: String,
    /// What was there, and is put back; empty if there was no such file.
    pub before: String,
}

/// The value of a file of `/sys`: of one that shows all that can be chosen, the chosen one, which stands in brackets.
pub(crate) fn chosen(text: &str) -> &str {
    let bracketed = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    bracketed.map_or(text.trim(), |(value, _)| value)
}

pub(crate) fn read(directory: &Path, name: &str) -> Option<String> {
    fs::read_to_string(directory.join(name)).ok().map(|text| chosen(&text).to_owned())
}

/// Puts back what was there, in this order, as far as that goes: nobody's data depends on it.
pub(crate) fn restore(directory: &Path, knobs: &[Knob]) {
    for knob in knobs.iter().filter(|knob| !knob.before.is_empty()) {
        if knob.name == THROTTLE {
            // Off, it may have been the scheduler that had switched it off.
            let _ = fs::write(directory.join(THROTTLE), THROTTLE_DEFAULT);
        }
        if read(directory, &knob.name).as_ref() != Some(&knob.before) {
            let _ = fs::write(directory.join(&knob.name), &knob.before);
        }
    }
}

/// The same of a device (`name` below `/dev`) if it stands on no file, and nobody has it.
pub(crate) fn restore_free(name: &Path, directory: &Path, knobs: &[Knob]) {
    // As long as it is held so, nobody else can put the device on a file.
    let held = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(Path::new("/dev").join(name));
    if held.is_ok() && name.to_str().is_some_and(|name| loop_device::backing_file(name).is_none()) {
        restore(directory, knobs);
    }
}

/// A record that this process holds.
pub(crate) struct Record {
    path: PathBuf,
    /// With the lock on it.
    _file: File,
}

impl Record {
    /// Keeps what was there on the loop device `name` before it is changed.
    ///
    /// # Errors
    /// Of the file; EWOULDBLOCK if another process keeps it.
    pub fn write(path: &Path, name: &str, knobs: &[Knob]) -> io::Result<Self> {
        let mut text = format!(
            "{MAGIC}\ndevice\t{name}\ndiskseq\t{}\nboot\t{}\n",
            diskseq(name).ok_or(io::ErrorKind::NotFound)?,
            boot()?
        );
        for knob in knobs {
            text += &format!("knob\t{}\t{}\t{}\n", knob.name, knob.set, knob.before);
        }
        text += END;
        text.push('\n');
        Self::fill(path, locked(path)?, &text)
    }

    /// Whoever is killed here has changed nothing yet, and what is no whole record counts for nothing.
    fn fill(path: &Path, mut file: File, text: &str) -> io::Result<Self> {
        match file.set_len(0).and_then(|()| file.write_all(text.as_bytes())) {
            Ok(()) => Ok(Self { path: path.to_owned(), _file: file }),
            Err(e) => {
                let _ = fs::remove_file(path);
                Err(e)
            }
        }
    }

    /// One that says nothing.
    #[cfg(test)]
    pub fn empty(path: &Path) -> Self {
        Self::fill(path, locked(path).unwrap(), "").unwrap()
    }

    /// All is as it was.
    pub fn remove(self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// What a record says.
#[derive(Debug, PartialEq, Eq)]
struct Recorded {
    device: String,
    diskseq: u64,
    boot: String,
    knobs: Vec<Knob>,
}

impl Recorded {
    /// `None` if it is no whole record of this version.
    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.strip_suffix('\n')?.strip_suffix(END)?.strip_suffix('\n')?.lines();
        if lines.next()? != MAGIC {
            return None;
        }
        let mut field = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix('\t').map(str::to_owned);
        let (device, diskseq, boot) = (field("device")?, field("diskseq")?, field("boot")?);
        let number = device.strip_prefix("loop")?;
        if number.is_empty() || !number.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let knobs = lines.map(|line| {
            let mut parts = line.strip_prefix("knob\t")?.split('\t').map(str::to_owned);
            let knob = Knob { name: parts.next()?, set: parts.next()?, before: parts.next()? };
            let below = knob.name.starts_with("queue/") || knob.name.starts_with("bdi/");
            (below && !knob.name.contains("..") && parts.next().is_none()).then_some(knob)
        });
        Some(Self { diskseq: diskseq.parse().ok()?, boot, knobs: knobs.collect::<Option<_>>()?, device })
    }

    /// Whether the device is still what it was when this was written, or was cleared since and had no other user.
    fn is_of(&self, boot: &str, diskseq: u64, stands_on_file: bool) -> bool {
        self.boot == boot && (diskseq == self.diskseq || (diskseq == self.diskseq + 1 && !stands_on_file))
    }
}

/// Puts right what killed daemons have left on loop devices, by their records in `directory`; returns these devices.
///
/// The caller is apart from the daemon's descriptors: such a device may stand on a dead daemon's file.
pub(crate) fn put_right(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(or_here(directory)) else { return Vec::new() };
    let records = entries.filter_map(Result::ok).map(|entry| entry.path());
    records
        .filter(|path| path.extension().is_some_and(|e| e == "knobs"))
        .filter_map(|path| put_right_by(&path))
        .collect()
}

/// The parent of a bare name is empty.
fn or_here(directory: &Path) -> &Path {
    if directory.as_os_str().is_empty() { Path::new(".") } else { directory }
}

fn put_right_by(path: &Path) -> Option<PathBuf> {
    let file = open(path, false).ok()?;
    // Who has it is at work.
    lock(&file).ok()?;
    if !file.metadata().is_ok_and(|found| is_mine(&found)) {
        return None;
    }
    let mut bytes = Vec::new();
    (&file).take(RECORD_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    // Somebody else's may have such a name. Whoever made an empty one was killed before it was filled.
    if !text.is_empty() && text.lines().next() != Some(MAGIC) {
        return None;
    }
    let device = Recorded::parse(&text).and_then(|recorded| apply(&recorded));
    let _ = fs::remove_file(path);
    device
}

/// Whether it is a file of this user's that has no other name.
fn is_mine(found: &Metadata) -> bool {
    // SAFETY: the call takes no argument and cannot fail.
    let own = unsafe { libc::geteuid() };
    found.is_file() && found.uid() == own && found.nlink() == 1
}

fn apply(recorded: &Recorded) -> Option<PathBuf> {
    let name = recorded.device.as_str();
    let path = Path::new("/dev").join(name);
    // As long as it is held so, nobody else can put the device on a file. Where that is refused a file system of the killed daemon is on it still.
    let _held = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(&path);
    let of_it = recorded.is_of(&boot().ok()?, diskseq(name)?, loop_device::backing_file(name).is_some());
    if !of_it {
        return None;
    }
    restore(&Path::new("/sys/block").join(name), &recorded.knobs);
    Some(path)
}

fn open(path: &Path, create: bool) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    OpenOptions::new().read(true).write(true).create(create).mode(0o600).custom_flags(flags).open(path)
}

/// The file with the lock on it, made if it is not there.
fn locked(path: &Path) -> io::Result<File> {
    let mut tries = 0;
    loop {
        let file = open(path, true)?;
        let outcome = lock(&file);
        let found = file.metadata()?;
        // Another volume's attach may have taken the empty file for one that was left, and has removed it.
        if outcome.is_ok() && found.nlink() > 0 {
            let refused = || {
                io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    "a file of another user or with other names is there",
                )
            };
            return if is_mine(&found) { Ok(file) } else { Err(refused()) };
        }
        tries += 1;
        if tries == LOCK_TRIES_MAX {
            return Err(outcome.err().unwrap_or_else(|| io::ErrorKind::NotFound.into()));
        }
        thread::sleep(LOCK_PAUSE);
    }
}

fn lock(file: &File) -> io::Result<()> {
    // SAFETY: the call takes no pointers, and the descriptor is open.
    let rc = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The number of a device's use.
fn diskseq(name: &str) -> Option<u64> {
    fs::read_to_string(format!("/sys/block/{name}/diskseq")).ok()?.trim().parse().ok()
}

/// What differs after each start of the machine.
fn boot() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn knob(name: &str, set: &str, before: &str) -> Knob {
        Knob { name: name.to_owned(), set: set.to_owned(), before: before.to_owned() }
    }

    const TEXT: &str = "forebay knobs 1\ndevice\tloop3\ndiskseq\t7\nboot\tb\nknob\tqueue/scheduler\tbfq\tnone\n\
                        knob\tqueue/iosched/fifo_batch\t\t16\nend\n";

    #[test]
    fn a_record_says_what_was_there() {
        let recorded = Recorded::parse(TEXT).unwrap();
        assert_eq!((recorded.device.as_str(), recorded.diskseq), ("loop3", 7));
        let wanted = [knob("queue/scheduler", "bfq", "none"), knob("queue/iosched/fifo_batch", "", "16")];
        assert_eq!(recorded.knobs, wanted);
    }

    #[test]
    fn what_is_no_whole_record_counts_for_nothing() {
        assert_eq!(Recorded::parse(""), None);
        for at in 0..TEXT.len() {
            assert_eq!(Recorded::parse(&TEXT[..at]), None, "{at}");
        }
        for (part, other) in [
            ("loop3", "sda"),
            ("loop3", "loop"),
            ("loop3", "loop3/.."),
            ("queue/scheduler", "queue/../../../../proc/sysrq-trigger"),
            ("queue/scheduler", "device/delete"),
            ("knobs 1", "knobs 2"),
            ("bfq\tnone", "bfq\tnone\tmore"),
            ("16\nend", "16end"),
            ("end\n", "end\nend\n"),
        ] {
            assert_eq!(Recorded::parse(&TEXT.replace(part, other)), None, "{other}");
        }
    }

    #[test]
    fn a_device_that_had_another_user_is_another() {
        let recorded = Recorded::parse(TEXT).unwrap();
        for (boot, diskseq, stands_on_file, is_of) in [
            // Still mounted, or held open.
            ("b", 7, true, true),
            // Cleared by the kernel.
            ("b", 8, false, true),
            // Put on another file since; and cleared again.
            ("b", 8, true, false),
            ("b", 9, true, false),
            ("b", 10, false, false),
            ("c", 7, true, false),
        ] {
            assert_eq!(
                recorded.is_of(boot, diskseq, stands_on_file),
                is_of,
                "{boot} {diskseq} {stands_on_file}"
            );
        }
    }

    /// A daemon may have been killed while it set them.
    #[test]
    fn whatever_is_there_gives_way_to_what_was() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("queue")).unwrap();
        for (name, value) in
            [("nomerges", "0"), ("rq_affinity", "2"), ("rotational", "1"), ("scheduler", "[none] bfq")]
        {
            fs::write(dir.path().join("queue").join(name), value).unwrap();
        }
        let knobs = [
            knob("queue/nomerges", "0", "2"),
            knob("queue/rq_affinity", "1", "0"),
            knob("queue/rotational", "0", ""),
            knob("queue/scheduler", "bfq", "none"),
        ];
        restore(dir.path(), &knobs);
        let shown = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(["queue/nomerges", "queue/rq_affinity", "queue/rotational"].map(shown), ["2", "0", "1"]);
        assert_eq!(shown("queue/scheduler"), "[none] bfq", "what is as it was is not written");
    }

    #[test]
    fn a_record_that_somebody_holds_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db.knobs");
        let file = open(&path, true).unwrap();
        lock(&file).unwrap();
        put_right(dir.path());
        assert!(path.exists(), "it is another's");
        drop(file);
        put_right(dir.path());
        assert!(!path.exists(), "nobody is there to remove it");
    }

    #[test]
    fn a_record_beside_a_bare_name_is_in_the_working_directory() {
        assert_eq!(or_here(Path::new("db.knobs").parent().unwrap()), Path::new("."));
        assert_eq!(or_here(Path::new("/run/forebay")), Path::new("/run/forebay"));
    }

    /// A file at `path` that has another name as well, or, as far as that can be had, another owner.
    fn not_ours(path: &Path, text: &str) -> Vec<(&'static str, PathBuf)> {
        let linked = path.with_file_name("linked.knobs");
        fs::write(path.with_file_name("its-other-name"), text).unwrap();
        fs::hard_link(path.with_file_name("its-other-name"), &linked).unwrap();
        let others = path.with_file_name("others.knobs");
        fs::write(&others, text).unwrap();
        let mut files = vec![("another name", linked)];
        if std::os::unix::fs::chown(&others, Some(65534), None).is_ok() {
            files.push(("another user", others));
        }
        files
    }

    #[test]
    fn what_is_no_record_of_ours_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (mine, foreign) = (dir.path().join("db.knobs"), dir.path().join("radio.knobs"));
        let cut = format!("{MAGIC}\nde");
        fs::write(&mine, &cut).unwrap();
        fs::write(&foreign, b"volume\t11\n\xff").unwrap();
        let others = not_ours(&mine, &cut);
        put_right(dir.path());
        assert!(!mine.exists(), "a part of a record is of no use");
        assert!(foreign.exists(), "it is no record");
        for (why, file) in others {
            assert!(file.exists(), "it has {why}");
        }
    }

    #[test]
    fn nothing_is_written_to_a_file_that_is_not_ours() {
        let dir = tempfile::tempdir().unwrap();
        let mine = dir.path().join("db.knobs");
        for (why, file) in not_ours(&mine, "precious") {
            let e = locked(&file).map(drop).expect_err(why);
            assert_eq!(e.kind(), io::ErrorKind::PermissionDenied, "{why}: {e}");
        }
        locked(&mine).unwrap();
    }

    #[test]
    fn a_record_that_cannot_be_written_is_not_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db.knobs");
        fs::write(&path, TEXT).unwrap();
        let unwritable = File::open(&path).unwrap();
        assert!(Record::fill(&path, unwritable, TEXT).is_err());
        assert!(!path.exists());
    }
}
