//! The daemon is killed: everybody who waits for it gets an error, and everything can be cleaned up.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use forebay_fuse::{AttachOptions, Attachment, Cleaned, FuseExport, FuseOptions, clean_stale};

use crate::memory::{Behaviour, MemoryVolume};
use crate::{able, run};

/// Far longer than anything here takes that does not hang.
const BOUND: Duration = Duration::from_secs(30);

const FILE_VARIABLE: &str = "FOREBAY_TEST_FILE";

/// Not a test: the daemon, run by the tests below in a process of its own.
#[test]
#[ignore = "is started by other tests"]
fn daemon_process() {
    let Some(file) = std::env::var_os(FILE_VARIABLE) else {
        return;
    };
    let file = Path::new(&file);
    let volume =
        MemoryVolume::start(Behaviour { threads: 4, delay_us_max: 50, ..Behaviour::of_size(64 << 20) });
    let _export = FuseExport::mount(file, Arc::new(volume.clone()), FuseOptions::default()).unwrap();
    let attachment = Attachment::attach(file, AttachOptions::default()).unwrap();
    println!("\nready {}", attachment.device_path().display());
    for line in io::stdin().lines() {
        match line.unwrap().as_str() {
            "stall" => volume.stall(true),
            "detach" => {
                println!("\ndetaching");
                attachment.detach(false).unwrap();
            }
            other => panic!("{other}?"),
        }
        println!("\ndone");
    }
}

struct Daemon {
    child: Child,
    commands: ChildStdin,
    lines: Receiver<String>,
    device: PathBuf,
    file: PathBuf,
}

impl Drop for Daemon {
    /// A test that fails must not leave anything behind that waits for ever.
    fn drop(&mut self) {
        let _ = self.child.kill();
        if thread::panicking() {
            let _ = Command::new("umount").args(["-f", "-l"]).arg(&self.file).status();
        }
        let _ = self.child.wait();
    }
}

impl Daemon {
    fn start(file: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "death::daemon_process", "--ignored", "--nocapture", "--test-threads=1"])
            .env(FILE_VARIABLE, file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let commands = child.stdin.take().unwrap();
        let mut daemon = Self { child, commands, lines, device: PathBuf::new(), file: file.to_owned() };
        let ready = daemon.wait_for("ready ");
        daemon.device = PathBuf::from(&ready["ready ".len()..]);
        daemon
    }

    fn wait_for(&self, start: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(BOUND).unwrap();
            if line.starts_with(start) {
                return line;
            }
        }
    }

    fn tell(&mut self, command: &str) {
        writeln!(self.commands, "{command}").unwrap();
    }

    /// SIGKILL; the process must end, which it does not if one of its threads cannot.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        let deadline = Instant::now() + BOUND;
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "the daemon does not die: {}", sleepers(self.child.id()));
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn name(&self) -> &str {
        self.device.file_name().unwrap().to_str().unwrap()
    }

    fn is_backed_by(&self, file: &Path) -> bool {
        let shown = fs::read_to_string(format!("/sys/block/{}/loop/backing_file", self.name()));
        shown.is_ok_and(|f| f.trim_end() == file.to_str().unwrap())
    }
}

/// What the threads of a process sleep on.
fn sleepers(pid: u32) -> String {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let describe = |task: PathBuf| {
        let comm = fs::read_to_string(task.join("comm")).unwrap_or_default();
        let stack = fs::read_to_string(task.join("stack")).unwrap_or_default();
        format!("{}:\n{stack}", comm.trim())
    };
    tasks.map(|t| describe(t.path())).collect()
}

/// Runs `work` on a thread; its end is waited for with [`finished`].
fn watched<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(work()));
    receiver
}

fn finished<T>(who: &str, receiver: &Receiver<T>) -> T {
    let own = std::process::id();
    receiver.recv_timeout(BOUND).unwrap_or_else(|_| panic!("{who} hangs: {}", sleepers(own)))
}

/// Opens for direct I/O.
fn direct(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(path).unwrap()
}

#[test]
fn a_writer_on_a_file_system_gets_an_error_and_all_can_be_cleaned_up() {
    if !able(&["mke2fs", "mount", "umount"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("volume");
    let point = dir.path().join("mounted");
    fs::create_dir(&point).unwrap();
    let mut daemon = Daemon::start(&file);
    let device = daemon.device.to_str().unwrap().to_owned();
    run("mke2fs", &["-q", "-t", "ext4", &device]);
    run("mount", &[&device, point.to_str().unwrap()]);
    let (written_sender, written) = mpsc::channel();
    let path = point.join("log");
    let writer = watched(move || {
        let log = File::create(path).unwrap();
        for i in 0.. {
            let result =
                log.write_all_at(&[i as u8; 8192], i * 8192 % (8 << 20)).and_then(|()| log.sync_data());
            if result.is_err() {
                return i;
            }
            let _ = written_sender.send(());
        }
        unreachable!()
    });
    for _ in 0..50 {
        written.recv_timeout(BOUND).unwrap();
    }
    daemon.kill();
    assert!(finished("the writer", &writer) >= 50);
    let target = point.to_str().unwrap().to_owned();
    let unmounted = watched(move || Command::new("umount").arg(target).status().unwrap());
    assert!(finished("umount", &unmounted).success());
    assert!(!daemon.is_backed_by(&file), "the loop device went with its last user");
    assert!(fs::metadata(&file).is_err(), "the file is dead");
    let cleaned = clean_stale(&file).unwrap();
    assert_eq!(cleaned, Cleaned { mounts: 1, ..Cleaned::default() });
    assert_eq!(fs::metadata(&file).unwrap().len(), 0);
}

#[test]
fn whoever_waits_for_an_answer_that_will_not_come_is_released() {
    if !able(&[]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("volume");
    let mut daemon = Daemon::start(&file);
    let device = direct(&daemon.device);
    let cached = OpenOptions::new().write(true).open(&daemon.device).unwrap();
    let itself = direct(&file);
    daemon.tell("stall");
    daemon.wait_for("done");
    let waiting = [
        watched(move || device.read_at(&mut forebay_block::BufMut::zeroed(4096), 0).map(drop)),
        watched(move || cached.write_all_at(&[1; 65536], 0).and_then(|()| cached.sync_all())),
        watched(move || itself.write_at(&forebay_block::BufMut::zeroed(4096), 1 << 20).map(drop)),
    ];
    thread::sleep(Duration::from_millis(200));
    for w in &waiting {
        assert!(w.try_recv().is_err(), "it should wait");
    }
    daemon.kill();
    for w in &waiting {
        assert!(finished("a waiter", w).is_err());
    }
    assert_eq!(clean_stale(&file).unwrap().mounts, 1);
}

#[test]
fn a_daemon_killed_while_it_detaches_from_itself_dies() {
    if !able(&[]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("volume");
    let mut daemon = Daemon::start(&file);
    let cached = OpenOptions::new().write(true).open(&daemon.device).unwrap();
    daemon.tell("stall");
    daemon.wait_for("done");
    cached.write_all_at(&[1; 1 << 20], 0).unwrap();
    daemon.tell("detach");
    daemon.wait_for("detaching");
    // The daemon's thread now writes back to the daemon, which does not answer.
    thread::sleep(Duration::from_millis(300));
    daemon.kill();
    drop(watched(move || drop(cached)));
    assert_eq!(clean_stale(&file).unwrap().mounts, 1);
}

#[test]
fn the_next_daemon_takes_the_path_over() {
    if !able(&["mke2fs", "mount", "umount"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("volume");
    let point = dir.path().join("mounted");
    fs::create_dir(&point).unwrap();
    let mut first = Daemon::start(&file);
    let device = first.device.to_str().unwrap().to_owned();
    run("mke2fs", &["-q", "-t", "ext4", &device]);
    run("mount", &[&device, point.to_str().unwrap()]);
    first.kill();
    assert!(first.is_backed_by(&file), "it is still mounted");

    let mut second = Daemon::start(&file);
    assert_ne!(first.device, second.device);
    assert_eq!(fs::metadata(&file).unwrap().len(), 64 << 20);
    run("mke2fs", &["-q", "-t", "ext4", second.device.to_str().unwrap()]);
    run("umount", &[point.to_str().unwrap()]);
    assert!(!first.is_backed_by(&file), "gone with its mount");
    assert!(second.is_backed_by(&file));
    second.kill();
    assert_eq!(clean_stale(&file).unwrap().mounts, 1);
}

#[test]
fn loop_devices_that_others_made_are_cleared_as_well() {
    if !able(&["mke2fs", "mount", "umount", "losetup"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("volume");
    let point = dir.path().join("mounted");
    fs::create_dir(&point).unwrap();
    let mut daemon = Daemon::start(&file);
    let losetup = || {
        let output = run("losetup", &["--find", "--show", file.to_str().unwrap()]);
        PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
    };
    let (unused, mounted) = (losetup(), losetup());
    run("mke2fs", &["-q", "-t", "ext4", mounted.to_str().unwrap()]);
    run("mount", &[mounted.to_str().unwrap(), point.to_str().unwrap()]);
    daemon.kill();
    let cleaned = clean_stale(&file).unwrap();
    run("umount", &[point.to_str().unwrap()]);
    let expected = Cleaned { mounts: 1, loops_cleared: vec![unused], loops_in_use: vec![mounted.clone()] };
    assert_eq!(cleaned, expected);
    let name = mounted.file_name().unwrap().to_str().unwrap();
    let shown = fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).unwrap_or_default();
    let stands = shown.trim_end() == file.to_str().unwrap();
    assert!(!stands, "it went when it was unmounted");
}
