//! Other users of the machine: they cannot connect, answer in the daemon's place, or keep it from starting without being named.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};

use rustix::process::{Gid, Uid};

use crate::volume::Place;

const NOBODY: u32 = 65534;

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        assert!(std::env::var_os("CI").is_none(), "this test needs root");
        eprintln!("SKIP: needs root");
    }
    root
}

/// Does something as an unprivileged user, which the thread for it becomes alone.
fn as_nobody<T: Send>(what: impl FnOnce() -> T + Send) -> T {
    let become_nobody = || {
        let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        rustix::thread::set_thread_groups(&[]).unwrap();
        rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        what()
    };
    std::thread::scope(|scope| scope.spawn(become_nobody).join().unwrap())
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// A process of an unprivileged user that keeps a lock on this; killed when dropped.
struct Locked(Child);

impl Locked {
    fn of(path: &Path) -> Self {
        let mut flock = Command::new("flock");
        flock.arg("--no-fork").arg(path).args(["sleep", "600"]).uid(NOBODY).gid(NOBODY);
        let locked = Self(flock.spawn().unwrap());
        // Until it has come to take its lock.
        while File::open(path).unwrap().try_lock().is_ok() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        locked
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn only_those_connect_to_nbd_who_are_meant_to() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    chmod(place.path(".").as_path(), 0o755);
    let connects = || as_nobody(|| UnixStream::connect(place.path("nbd")).is_ok());
    for (flags, expected) in [
        (&[][..], false),
        (&["--socket-mode", "0660"], false),
        (&["--socket-mode", "0660", "--socket-group", "65534"], true),
        (&["--socket-mode", "0666"], true),
    ] {
        let daemon = place.serve(flags);
        assert_eq!(connects(), expected, "{flags:?}");
        assert!(as_nobody(|| UnixStream::connect(place.path("control")).is_err()), "{flags:?}");
        daemon.stop();
    }
    for flags in [["--socket-mode", "0770"], ["--socket-mode", "060"], ["--socket-group", "no such group"]] {
        let usual = ["serve", "--name", "db", "--cache", "cache", "--backing", "backing"];
        let output = place.command(&[&usual[..], &flags].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{flags:?}");
    }
}

#[test]
fn another_users_process_is_asked_nothing() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    chmod(place.path(".").as_path(), 0o777);
    let _listener = as_nobody(|| UnixListener::bind(place.path("control")).unwrap());
    for command in [
        &["attach", "db"][..],
        &["detach", "db"],
        &["status", "db"],
        &["status"],
        &["flush", "db"],
        &["mark", "db"],
        &["set", "db", "on-full=wait"],
    ] {
        let (code, error) = place.fails(&[command, &["--control", "control"]].concat());
        assert!(code == 3 && error.contains("user nobody"), "{command:?}: {code}, {error}");
    }
}

#[test]
fn no_control_socket_is_made_where_others_could_replace_it() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let directory = place.path("theirs");
    fs::create_dir(&directory).unwrap();
    let serve =
        ["serve", "--name", "db", "--cache", "cache", "--backing", "backing", "--control", "theirs/control"];
    chmod(&directory, 0o777);
    let (code, error) = place.fails(&serve);
    assert!(code == 3 && error.contains("all users"), "{code}, {error}");
    chmod(&directory, 0o755);
    chown(&directory, Some(NOBODY), None).unwrap();
    let (code, error) = place.fails(&serve);
    assert!(code == 3 && error.contains("user nobody"), "{code}, {error}");
}

#[test]
fn a_lock_of_another_user_stops_nothing_for_ever() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    chmod(place.path(".").as_path(), 0o755);
    // On the directory of the sockets, it stops nothing at all.
    let locked = Locked::of(&place.path("."));
    place.serve(&[]).stop();
    drop(locked);
    // On a backing that all may read, it is told whose it is.
    chmod(&place.path("backing"), 0o644);
    let locked = Locked::of(&place.path("backing"));
    let serve = ["serve", "--name", "db", "--cache", "cache", "--backing", "backing", "--control", "control"];
    let (code, error) = place.fails(&serve);
    let holder = format!("pid {}, sleep, user nobody", locked.0.id());
    assert!(code == 3 && error.contains(&holder) && error.contains("end that process"), "{code}, {error}");
    drop(locked);
    place.serve(&[]).stop();
}

#[test]
fn a_cache_of_an_earlier_release_is_narrowed_and_the_log_says_so() {
    let place = Place::new();
    chmod(&place.path("backing"), 0o600);
    chmod(&place.path("cache"), 0o644);
    let mode = || fs::metadata(place.path("cache")).unwrap().permissions().mode() & 0o777;
    place.serve(&["--read-only"]).stop();
    assert_eq!(mode(), 0o644);
    assert!(place.log().contains("has mode 644") && place.log().contains("`chmod 600 "), "{}", place.log());
    place.serve(&[]).stop();
    assert_eq!(mode(), 0o600);
    assert!(place.log().contains("had mode 644"), "{}", place.log());
}
