//! What each signal does to a daemon with data that is not on the backing yet.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::nbd_client::NbdClient;
use crate::volume::{BACKING_BYTES, Daemon, Place, file_bytes, pattern};

/// Signals that ask for a clean stop.
const STOPPING: [&str; 5] = ["TERM", "INT", "QUIT", "XCPU", "PWR"];

/// Signals of which the log says that they are ignored, as the log names them.
const TOLD: [(&str, &str); 10] = [
    ("HUP", "SIGHUP is ignored: no configuration is read again"),
    ("USR1", "SIGUSR1 is ignored"),
    ("USR2", "SIGUSR2 is ignored"),
    ("ALRM", "SIGALRM is ignored"),
    ("VTALRM", "SIGVTALRM is ignored"),
    ("PROF", "SIGPROF is ignored"),
    ("IO", "SIGIO is ignored"),
    ("STKFLT", "signal 16 is ignored"),
    ("34", "signal 34 is ignored"),
    ("64", "signal 64 is ignored"),
];

/// Signals that are ignored without a word.
const SILENT: [&str; 4] = ["PIPE", "XFSZ", "WINCH", "CHLD"];

fn send(pid: u32, signal: &str) {
    // The shell's own: other programs of the name do not know all signals.
    let status = Command::new("bash").args(["-c", &format!("kill -{signal} {pid}")]).status().unwrap();
    assert!(status.success(), "{signal}");
}

/// Leaves data in the cache that is not on the backing.
fn write(place: &Place, offset: u64) -> Vec<u8> {
    let data = pattern(offset, 1, 8192);
    NbdClient::connect(&place.path("nbd"), "db").write(offset, &data);
    assert!(place.status()["dirty_bytes"].as_u64().unwrap() > 0);
    data
}

fn read(place: &Place, offset: u64) -> Vec<u8> {
    NbdClient::connect(&place.path("nbd"), "db").read(offset, 8192)
}

fn serve(place: &Place) -> Daemon {
    place.serve(&["--durability", "flush", "--destage-on-stop"])
}

#[test]
fn those_that_ask_for_a_stop_get_a_clean_one() {
    let place = Place::new();
    for (i, signal) in STOPPING.iter().enumerate() {
        let daemon = serve(&place);
        let offset = i as u64 * 8192;
        let data = write(&place, offset);
        send(daemon.pid(), signal);
        assert_eq!(daemon.wait().code(), Some(0), "SIG{signal}: {}", place.log());
        // Only a clean stop destages.
        assert_eq!(file_bytes(&place.path("backing"), offset, 8192), data, "SIG{signal}");
        assert!(!place.path("control").exists(), "SIG{signal}");
    }
    assert_eq!(place.log().matches("stopping reason=").count(), STOPPING.len(), "{}", place.log());
}

#[test]
fn all_others_stop_nothing() {
    let place = Place::new();
    let daemon = serve(&place);
    let data = write(&place, 0);
    for (signal, words) in TOLD {
        send(daemon.pid(), signal);
        place.await_log(words);
    }
    SILENT.iter().for_each(|signal| send(daemon.pid(), signal));
    assert_eq!(read(&place, 0), data);
    assert_eq!(place.status()["state"], "healthy");
    assert_eq!(daemon.stop().code(), Some(0), "{}", place.log());
    assert_eq!(file_bytes(&place.path("backing"), 0, 8192), data);
}

/// Processor time has run out: the kernel says so once a second until SIGKILL, which is no impatience.
#[test]
fn a_signal_that_the_kernel_repeats_does_not_cut_the_stop_short() {
    let place = Place::new();
    let slow = ["--destage-on-stop", "--decorate", "backing:delay:write:fixed=1s"];
    let daemon = place.serve(&slow);
    let data = write(&place, 0);
    send(daemon.pid(), "XCPU");
    place.await_log("stopping reason=");
    send(daemon.pid(), "XCPU");
    assert_eq!(daemon.wait().code(), Some(0), "{}", place.log());
    assert_eq!(file_bytes(&place.path("backing"), 0, 8192), data);
}

/// Who does not want to wait until a cache is made, or has grown, has it as it was before, and no file that was not there.
#[test]
fn a_command_that_is_told_to_stop_cleans_up() {
    let place = Place::with_backing();
    let slow = "emulate:hdd-10k:file=new";
    let stop = |args: &[&str], signal: &str, begun: &dyn Fn() -> bool| {
        let mut child = place.command(args).stderr(Stdio::piped()).spawn().unwrap();
        while !begun() {
            assert!(child.try_wait().unwrap().is_none(), "{args:?} ended before it was told to");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        send(child.id(), signal);
        let output = child.wait_with_output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {error}");
        assert!(error.contains("told to stop before"), "{args:?}: {error}");
    };
    let len = |name: &str| fs::metadata(place.path(name)).map_or(0, |meta| meta.len());
    for (signal, backing) in [("INT", "backing"), ("TERM", "made")] {
        let args = ["format", slow, "--size", "3G", "--backing", backing, "--backing-size", "64M"];
        stop(&args, signal, &|| len("new") == 3 << 30);
        assert_eq!(len("backing"), BACKING_BYTES);
        assert_eq!(fs::read_dir(place.path("")).unwrap().count(), 1, "only what was there is there");
    }
    place.ok(&["format", "new", "--size", "32M", "--backing", "backing"]);
    let before = len("new");
    stop(&["grow", slow, "--size", "3G"], "INT", &|| len("new") > before);
    assert_eq!(len("new"), before);
    place.ok(&["check", "new"]);
    // What was there and not a file of this run stays, whatever is in it.
    let args = ["format", slow, "--size", "3G", "--backing", "backing", "--force"];
    stop(&args, "TERM", &|| len("new") == 3 << 30);
    assert_eq!((len("new"), len("backing")), (before, BACKING_BYTES));
}

/// A terminal that has gone takes nothing any more, and neither does a pipe that nobody reads.
#[test]
fn a_log_that_nobody_takes_stops_nothing() {
    let place = Place::new();
    let mut command = place.command(&["serve", "--control", "control", "--name", "db", "--nbd", "unix:nbd"]);
    command.args(["--cache", "cache", "--backing", "backing", "--destage-on-stop"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut ready = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    assert!(ready.starts_with("ready"), "{ready}");
    drop(child.stderr.take());
    let data = write(&place, 0);
    for _ in 0..3 {
        send(child.id(), "HUP");
        assert_eq!(read(&place, 0), data);
    }
    // Says something on the thread that waits for signals, and on others.
    place.ask(&["set", "db", "on-full=bypass"]);
    send(child.id(), "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(file_bytes(&place.path("backing"), 0, 8192), data);
}
