//! One thing does not stop another: daemons that do not answer, volumes that cannot be served, commands at the same time.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::nbd_client::NbdClient;
use crate::volume::{BACKING_BYTES, Place, pattern};

/// A client that knows the protocol, without a process for each command.
struct Control(BufReader<UnixStream>);

impl Control {
    fn of(place: &Place) -> Self {
        Self(BufReader::new(UnixStream::connect(place.path("control")).unwrap()))
    }

    fn ask(&mut self, request: &str) -> Value {
        writeln!(self.0.get_mut(), "{request}").unwrap();
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }
}

/// The directory of default control sockets, which other daemons may use, too, and names in it that are this test's own.
struct Sockets {
    directory: PathBuf,
    mine: String,
}

impl Sockets {
    fn new(place: &Place, test: &str) -> Self {
        let root = rustix::process::geteuid().is_root();
        let directory = if root { PathBuf::from("/run/forebay") } else { place.path("forebay") };
        fs::create_dir_all(&directory).unwrap();
        Self { directory, mine: format!("test-{test}-{}", std::process::id()) }
    }

    fn name(&self, of: &str) -> String {
        format!("{}-{of}", self.mine)
    }

    fn path(&self, of: &str) -> PathBuf {
        self.directory.join(self.name(of) + ".sock")
    }

    fn env(&self) -> [(&'static str, PathBuf); 1] {
        [("XDG_RUNTIME_DIR", self.directory.parent().unwrap().to_owned())]
    }

    /// The volumes of this test in the status of all.
    fn status(&self, place: &Place) -> Vec<Value> {
        let output = place.command(&["status", "--json"]).envs(self.env()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let all: Value = serde_json::from_slice(&output.stdout).unwrap();
        let mine = |v: &&Value| v["name"].as_str().unwrap().starts_with(&self.mine);
        all["volumes"].as_array().unwrap().iter().filter(mine).cloned().collect()
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        for of in ["silent", "gone", "good", "bad"] {
            let _ = fs::remove_file(self.path(of));
        }
    }
}

#[test]
fn a_daemon_that_does_not_answer_hides_no_other() {
    let place = Place::new();
    let sockets = Sockets::new(&place, "silent");
    let good = sockets.name("good");
    let args = ["--name", &good, "--cache", "cache", "--backing", "backing"];
    let (daemon, _) = place.start(&args, &sockets.env());
    let _silent = UnixListener::bind(sockets.path("silent")).unwrap();
    drop(UnixListener::bind(sockets.path("gone")).unwrap());

    let states = |volumes: &[Value]| -> Vec<(String, String)> {
        let text = |v: &Value, key: &str| v[key].as_str().unwrap().to_owned();
        volumes.iter().map(|v| (text(v, "name"), text(v, "state"))).collect()
    };
    let expected = |state: &str| {
        [("gone", "gone"), ("good", state), ("silent", "unreachable")]
            .map(|(name, state)| (sockets.name(name), state.to_owned()))
    };
    let volumes = sockets.status(&place);
    assert_eq!(states(&volumes), expected("healthy"));
    assert!(volumes[2]["reason"].as_str().unwrap().contains("does not answer"), "{volumes:?}");
    assert!(volumes[0]["reason"].as_str().unwrap().contains("forebay serve"), "{volumes:?}");

    let run = &|args: &[&str]| {
        let output = place.command(args).envs(sockets.env()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    // Each waits for the one that says nothing, all at once.
    let (silent, gone) = (&sockets.name("silent"), &sockets.name("gone"));
    let [all, metrics, silent, gone, set] = thread::scope(|scope| {
        [
            vec!["status"],
            vec!["status", "--prometheus"],
            vec!["status", silent, "--json"],
            vec!["status", gone],
            vec!["set", silent, "on-full=wait"],
        ]
        .map(|args| scope.spawn(move || run(&args)))
        .map(|ran| ran.join().unwrap())
    });
    let (code, text, _) = all;
    let lines = |name: &str| text.lines().filter(|l| l.starts_with(&sockets.name(name))).count();
    assert!(code == Some(0) && lines("silent") == 1 && lines("gone") == 1 && lines("good") == 1, "{text}");
    let (code, text, _) = metrics;
    let state = format!("forebay_state{{volume=\"{}\",state=\"gone\"}} 1\n", sockets.name("gone"));
    assert!(code == Some(0) && text.contains(&state), "{text}");
    let (code, text, error) = silent;
    assert!(code == Some(1) && error.starts_with("error: "), "{error}");
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["state"], "unreachable");
    let (code, text, error) = gone;
    assert!(code == Some(1) && text.is_empty() && error.contains("is gone"), "{error}");
    let (code, _, error) = set;
    assert!(code == Some(1) && error.contains("does not answer"), "{error}");

    // A daemon that is killed does not disappear.
    daemon.kill();
    assert_eq!(states(&sockets.status(&place)), expected("gone"));
}

/// A command that waits for a daemon, once it has said so.
fn waiting(place: &Place, args: &[&str]) -> Child {
    let mut command = place.command(&[args, &["--control", "control"]].concat());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = String::new();
    BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut told).unwrap();
    assert!(told.starts_with("waiting up to ") && told.contains("control"), "{told}");
    child
}

#[test]
fn a_daemon_that_is_starting_is_waited_for() {
    let place = Place::new();
    for left in ["nothing", "the socket of one that was killed"] {
        let status = waiting(&place, &["status", "db", "--json", "--wait", "1h"]);
        let attach = waiting(&place, &["attach", "db", "--wait", "1h"]);
        let daemon = place.serve(&[]);
        let status = status.wait_with_output().unwrap();
        assert!(status.status.success(), "{left}: {status:?}");
        assert_eq!(serde_json::from_slice::<Value>(&status.stdout).unwrap()["state"], "healthy", "{left}");
        let attach = attach.wait_with_output().unwrap();
        match attach.status.success() {
            true => {
                assert!(attach.stdout.starts_with(b"/dev/loop"), "{left}: {attach:?}");
                place.ok(&["detach", "db", "--control", "control"]);
            }
            // By its own words, and not for want of a daemon.
            false => {
                assert!(!String::from_utf8_lossy(&attach.stderr).contains("control"), "{left}: {attach:?}")
            }
        }
        daemon.kill();
        let (code, error) = place.fails(&["attach", "db", "--control", "control", "--wait", "0s"]);
        assert!(code == 1 && error.contains("is gone"), "{error}");
    }
    waiting(&place, &["attach", "db"]).kill().unwrap();
}

#[test]
fn settings_that_are_changed_at_once_are_all_changed() {
    let place = Place::new();
    let _daemon = place.serve(&[]);
    let set = |key: &str, value: &str| {
        format!(r#"{{"command":"set","volume":"db","settings":[["{key}","{value}"]]}}"#)
    };
    let mut controls = [(); 3].map(|()| Control::of(&place));
    for round in 0..100 {
        let wanted = [("on_full", ["bypass", "wait"][round % 2]), ("admission", ["sync", "all"][round % 2])];
        let [first, second, look] = &mut controls;
        thread::scope(|scope| {
            for ((key, value), control) in wanted.iter().zip([first, second]) {
                let request = set(&key.replace('_', "-"), value);
                scope.spawn(move || assert_eq!(control.ask(&request)["result"], "done"));
            }
        });
        let status = look.ask(r#"{"command":"status","volume":"db"}"#);
        for (key, value) in wanted {
            assert_eq!(status["result"]["volumes"][0][key], value, "round {round}");
        }
    }
}

/// A configuration of two volumes: `db` can be served, `bad` cannot: its cache is another's.
fn two_volumes(place: &Place) {
    place.make_file("other", BACKING_BYTES);
    place.ok(&["format", "spare", "--size", "32M", "--backing", "other"]);
    place.make_file("third", BACKING_BYTES);
    let config = r#"
        [[volume]]
        name = "bad"
        cache = "spare"
        backing = "third"
        nbd = ["unix:nbd"]
        [[volume]]
        name = "db"
        cache = "cache"
        backing = "backing"
        nbd = ["unix:nbd"]
    "#;
    fs::write(place.path("two.toml"), config).unwrap();
}

/// Under the default sockets, too: nobody waits for a daemon of its own, and a mistyped name is answered with the one that may be meant.
#[test]
fn what_is_not_served_is_told_by_the_daemon_of_others() {
    let place = Place::new();
    let sockets = Sockets::new(&place, "elsewhere");
    two_volumes(&place);
    let (good, bad) = (sockets.name("good"), sockets.name("bad"));
    let config = fs::read_to_string(place.path("two.toml")).unwrap();
    let config = config.replace("\"db\"", &format!("{good:?}")).replace("\"bad\"", &format!("{bad:?}"));
    fs::write(place.path("two.toml"), config).unwrap();
    let socket = sockets.path("good");
    let daemon = place.start(&["--control", socket.to_str().unwrap(), "--config", "two.toml"], &[]).0;
    let fails = |args: &[&str]| {
        let output = place.command(args).envs(sockets.env()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for args in [vec!["attach", &bad, "--wait", "1h"], vec!["flush", &bad], vec!["set", &bad, "on-full=wait"]]
    {
        let (code, error) = fails(&args);
        assert!(
            code == Some(3) && error.contains("is another's") || error.contains("two.toml"),
            "{args:?}: {error}"
        );
    }
    let mistyped = good.replace("good", "godo");
    for args in
        [vec!["status", &mistyped], vec!["attach", &mistyped, "--wait", "0s"], vec!["flush", &mistyped]]
    {
        let (code, error) = fails(&args);
        assert!(code == Some(1) && error.contains(&format!("did you mean `{good}`?")), "{args:?}: {error}");
    }
    drop(daemon);
}

#[test]
fn a_volume_that_cannot_be_served_stops_no_other() {
    let place = Place::new();
    two_volumes(&place);
    let (daemon, ready) = place.start(&["--control", "control", "--config", "two.toml"], &[]);
    assert!(ready.contains("not served: bad"), "{ready}");
    place.await_log("not served");
    NbdClient::connect(&place.path("nbd"), "db").write(0, &pattern(0, 1, 4096));
    assert_eq!(place.status()["state"], "healthy");
    let all: Value = serde_json::from_str(&place.ask(&["status", "--json"])).unwrap();
    let bad = &all["volumes"][0];
    assert_eq!((&bad["name"], &bad["state"]), (&"bad".into(), &"refused".into()), "{all}");
    assert!(bad["reason"].as_str().unwrap().contains("two.toml --name bad"), "{bad}");
    let (code, error) = place.fails(&["status", "bad", "--control", "control"]);
    assert!(code == 1 && error.contains("bad: refused"), "{error}");
    let (code, error) = place.fails(&["flush", "bad", "--control", "control"]);
    assert!(code == 3 && error.contains("'bad' is not served"), "{error}");

    // Whoever releases a volume learns what the next start would refuse.
    let said = place.ask(&["detach", "db", "--release"]);
    assert!(said.contains("two.toml") && said.contains("no-cache = true"), "{said}");
    assert_eq!(daemon.wait().code(), Some(0), "{}", place.log());
    let (code, error) = place.fails(&["serve", "--control", "control", "--config", "two.toml"]);
    assert!(code == 3 && error.contains("none of 2 volumes"), "{error}");
}

/// A start that fails for a socket has parted nobody: here the cache, which has everything.
#[test]
fn a_socket_that_cannot_be_had_costs_no_cache() {
    let place = Place::new();
    let daemon = place.serve(&[]);
    let data = pattern(0, 1, 4096);
    NbdClient::connect(&place.path("nbd"), "db").write(0, &data);
    drop(daemon);
    let _taken = UnixListener::bind(place.path("taken")).unwrap();
    let alone = ["serve", "--name", "db", "--no-cache", "--accept-stale", "--backing", "backing"];
    for at in [["--control", "taken", "--nbd", "unix:free"], ["--control", "free", "--nbd", "unix:taken"]] {
        let (code, error) = place.fails(&[&alone[..], &at].concat());
        assert!(code == 3 && error.contains("in use"), "{error}");
    }
    let _daemon = place.serve(&[]);
    assert_eq!(NbdClient::connect(&place.path("nbd"), "db").read(0, 4096), data);
}

#[test]
fn a_volume_without_its_address_stops_no_other() {
    let place = Place::new();
    place.make_file("other", BACKING_BYTES);
    let config = r#"
        [[volume]]
        name = "bad"
        backing = "other"
        no-cache = true
        nbd = ["unix:a", "unix:taken"]
        [[volume]]
        name = "db"
        cache = "cache"
        backing = "backing"
        nbd = ["unix:a"]
    "#;
    fs::write(place.path("two.toml"), config).unwrap();
    let _taken = UnixListener::bind(place.path("taken")).unwrap();
    let (daemon, ready) = place.start(&["--control", "control", "--config", "two.toml"], &[]);
    assert!(ready.contains("not served: bad"), "{ready}");
    NbdClient::connect(&place.path("a"), "").write(0, &pattern(0, 1, 4096));
    assert_eq!(place.status()["exports"], serde_json::json!(["unix:a"]));
    assert_eq!(daemon.stop().code(), Some(0), "{}", place.log());
}

#[test]
fn a_backing_that_fails_degrades_the_volume_until_it_works() {
    let place = Place::new();
    let _daemon = place.serve(&["--decorate", "backing:inject:write:enospc:times=4"]);
    assert_eq!(place.status()["reason"], Value::Null);
    NbdClient::connect(&place.path("nbd"), "db").write(0, &pattern(0, 1, 4096));
    let flush = thread::scope(|scope| {
        let flush = scope.spawn(|| place.command(&["flush", "db", "--control", "control"]).output().unwrap());
        let status = place.await_status(|status| status["state"] == "degraded");
        let reason = status["reason"].as_str().unwrap();
        assert!(
            reason.starts_with("the backing: ") && reason.contains("no space left on the device"),
            "{reason}"
        );
        assert!(reason.contains("writes go into the cache"), "{reason}");
        assert!(status["degraded_since"].as_str().unwrap().ends_with('Z'), "{status}");
        let text = place.ask(&["status", "db"]);
        assert!(!text.starts_with("db: degraded\n") || text.contains("no space left"), "{text}");
        flush.join().unwrap()
    });
    drop(flush);
    place.ask(&["flush", "db"]);
    let status = place.await_status(|status| status["state"] == "healthy");
    assert_eq!((&status["reason"], &status["degraded_seconds"]), (&Value::Null, &0.0.into()));
}

#[test]
fn a_backing_that_is_gone_degrades_the_volume_until_it_is_back() {
    let place = Place::with_backing();
    place.make_file("far", BACKING_BYTES + (1 << 20));
    let far = || {
        let flags = ["--name", "far", "--backing", "far", "--no-cache", "--nbd", "unix:far-nbd"];
        place.start(&[&["--control", "far-control"], &flags[..]].concat(), &[]).0
    };
    let server = far();
    let backing = format!("nbd+unix:///far?socket={}", place.path("far-nbd").display());
    place.ok(&["format", "cache", "--size", "32M", "--backing", &backing]);
    let flags = ["--name", "db", "--cache", "cache", "--backing", &backing, "--nbd", "unix:nbd"];
    let _daemon = place.serve_plain(&flags);
    let mut client = NbdClient::connect(&place.path("nbd"), "db");
    let flush = |place: &Place| place.command(&["flush", "db", "--control", "control"]).spawn().unwrap();

    // It is there and says nothing.
    client.write(0, &pattern(0, 1, 4096));
    server.freeze(true);
    let mut waiting = flush(&place);
    let status = place.await_status(|status| status["state"] == "degraded");
    let reason = status["reason"].as_str().unwrap();
    assert!(reason.contains("the backing has not answered for"), "{reason}");
    client.write(4096, &pattern(4096, 1, 4096));
    server.freeze(false);
    assert!(waiting.wait().unwrap().success());
    place.await_status(|status| status["state"] == "healthy");

    // It is not there.
    client.write(8192, &pattern(8192, 1, 4096));
    server.kill();
    // Nobody has to ask it for anything to know.
    let status = place.await_status(|status| status["state"] == "degraded");
    let reason = status["reason"].as_str().unwrap();
    assert!(reason.contains("the connection to the backing has been lost for"), "{reason}");
    assert!(status["dirty_bytes"].as_u64().unwrap() > 0, "{status}");
    let mut waiting = flush(&place);
    let _server = far();
    let _ = waiting.wait().unwrap();
    place.ask(&["flush", "db"]);
    place.await_status(|status| status["state"] == "healthy");
}

/// Stops one thread of another process for so many seconds, as a system call that hangs would.
const HOLD_THREAD: &str = "
import ctypes, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4
SEIZE, INTERRUPT, DETACH = 0x4206, 0x4207, 17
tid, seconds = int(sys.argv[1]), float(sys.argv[2])
for call in (SEIZE, INTERRUPT):
    if libc.ptrace(call, tid, 0, 0):
        sys.exit(3)
libc.waitpid(tid, None, 0x40000000)
time.sleep(seconds)
libc.ptrace(DETACH, tid, 0, 0)
";

/// Hears what the service manager is told.
fn pings(notify: &UnixDatagram, within: Duration) -> usize {
    let (until, mut count) = (Instant::now() + within, 0);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return count;
        }
        notify.set_read_timeout(Some(left)).unwrap();
        let mut message = [0; 1000];
        if let Ok(len) = notify.recv(&mut message) {
            count += usize::from(message[..len].starts_with(b"WATCHDOG=1"));
        }
    }
}

fn thread_named(pid: u32, name: &str) -> Option<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let is_it = |path: &Path| fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim_end() == name);
    let found = tasks.filter_map(|task| Some(task.ok()?.path())).find(|path| is_it(path))?;
    Some(found.file_name()?.to_str()?.to_owned())
}

#[test]
fn a_volume_that_is_late_is_no_death_and_one_that_hangs_is() {
    const WATCHDOG: Duration = Duration::from_secs(4);
    let place = Place::new();
    let notify = UnixDatagram::bind(place.path("notify")).unwrap();
    let usec = WATCHDOG.as_micros().to_string();
    let env = [("NOTIFY_SOCKET", place.path("notify")), ("WATCHDOG_USEC", usec.into())];
    let daemon = place.serve_with(&["--name", "db", "--cache", "cache", "--backing", "backing"], &env);
    let thread = thread_named(daemon.pid(), "volume db").unwrap();
    let hold = |seconds: &str| Command::new("python3").args(["-c", HOLD_THREAD, &thread, seconds]).spawn();
    let Ok(mut held) = hold("3.5") else {
        assert!(std::env::var_os("CI").is_none(), "needs python3");
        eprintln!("SKIP: needs python3");
        return;
    };
    let is_held = || {
        let stat = fs::read_to_string(format!("/proc/{}/task/{thread}/stat", daemon.pid())).unwrap();
        stat.rsplit(") ").next().unwrap().starts_with('t')
    };
    while !is_held() && held.try_wait().unwrap().is_none() {
        thread::sleep(Duration::from_millis(5));
    }
    while pings(&notify, Duration::from_millis(1)) > 0 {}
    // Nearly all the time: an answer is missed, and systemd hears all the same that the daemon lives.
    let heard = pings(&notify, WATCHDOG * 3 / 4);
    match held.wait().unwrap().code() {
        Some(3) => {
            assert!(std::env::var_os("CI").is_none(), "must be allowed to trace its own child");
            eprintln!("SKIP: not allowed to trace its own child");
            return;
        }
        code => assert_eq!((code, heard > 0), (Some(0), true)),
    }
    let mut held = hold("60").unwrap();
    pings(&notify, WATCHDOG * 2);
    let status = place.status();
    assert_eq!(status["state"], "degraded", "{status}");
    assert!(status["reason"].as_str().unwrap().contains("thread"), "{status}");
    assert_eq!(pings(&notify, WATCHDOG * 3 / 4), 0, "it hangs, and is not said to live");
    place.await_log("a volume has not answered");
    held.kill().unwrap();
    held.wait().unwrap();
    daemon.kill();
}
