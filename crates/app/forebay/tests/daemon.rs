//! `forebay serve` and the commands that speak to it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::nbd_client::NbdClient;
use crate::volume::{BACKING_BYTES, Place, file_bytes, pattern};

#[test]
fn what_was_acknowledged_survives_a_kill_and_reaches_the_backing() {
    let place = Place::new();
    let daemon = place.serve(&[]);
    let mut client = NbdClient::connect(&place.path("nbd"), "db");
    assert_eq!(client.size, BACKING_BYTES);
    for offset in [0, 4096, 1 << 20, BACKING_BYTES - 8192] {
        client.write(offset, &pattern(offset, 1, 8192));
    }
    client.write(512, &pattern(512, 2, 512));
    client.flush();
    daemon.kill();

    let daemon = place.serve(&[]);
    let mut client = NbdClient::connect(&place.path("nbd"), "");
    assert_eq!(client.read(1 << 20, 8192), pattern(1 << 20, 1, 8192));
    assert_eq!(client.read(512, 512), pattern(512, 2, 512));
    assert_eq!(client.read(4096, 8192), pattern(4096, 1, 8192));
    assert_eq!(client.read(1024, 1024), pattern(0, 1, 8192)[1024..2048]);
    let status = place.status();
    assert!(status["dirty_bytes"].as_u64().unwrap() > 0);
    assert_eq!(status["recovery_point"], serde_json::Value::Null);

    assert!(place.ask(&["flush", "db"]).contains("everything is on the backing"));
    let status = place.status();
    assert_eq!(status["dirty_bytes"], 0);
    assert_eq!(status["staleness_seconds"], 0.0);
    assert!(status["recovery_point"].as_str().unwrap().ends_with('Z'));
    assert_eq!(file_bytes(&place.path("backing"), 1 << 20, 8192), pattern(1 << 20, 1, 8192));
    assert_eq!(daemon.stop().code(), Some(0));
}

/// "Everything is on the backing" is a promise that outlives the process.
#[test]
fn what_flush_says_holds_after_a_kill() {
    let place = Place::new();
    for policy in ["write-back", "ordered", "journaled"] {
        let daemon = place.serve(&["--write-policy", policy]);
        let mut client = NbdClient::connect(&place.path("nbd"), "db");
        for block in 0..512 {
            client.write(block * 8192, &pattern(block * 8192, 1, 4096));
        }
        assert!(place.ask(&["flush", "db"]).contains("everything is on the backing"));
        daemon.kill();
        let daemon = place.serve(&["--write-policy", policy]);
        assert_eq!(place.status()["dirty_bytes"], 0, "{policy}");
        daemon.kill();
    }
    let daemon =
        place.serve_plain(&["--name", "db", "--backing", "backing", "--no-cache", "--nbd", "unix:nbd"]);
    let mut client = NbdClient::connect(&place.path("nbd"), "db");
    assert_eq!(client.read(8192, 4096), pattern(8192, 1, 4096));
    assert_eq!(daemon.stop().code(), Some(0));
}

#[test]
fn a_declared_point_is_what_recover_makes_of_the_backing() {
    let place = Place::new();
    let daemon = place.serve(&["--write-policy", "journaled", "--group-ends", "points"]);
    let mut client = NbdClient::connect(&place.path("nbd"), "db");
    client.write(4096, &pattern(4096, 1, 8192));
    // It waits for the volume's first moments to be over.
    let point = place.ask(&["mark", "db", "--label", "before the upgrade"]);
    assert_eq!(place.status()["backing_point"], point.trim().parse::<u64>().unwrap());
    client.write(4096, &pattern(4096, 2, 8192));
    client.flush();
    let (code, error) = place.fails(&["mark", "db", "--label", &"x".repeat(65), "--control", "control"]);
    assert_eq!(code, 2, "{error}");
    let (code, error) = place.fails(&["mark", "db", "other", "--control", "control"]);
    assert!(code == 2 && error.contains("'other'"), "{error}");
    daemon.kill();

    let listed = place.ok(&["recover", "backing", "--list"]);
    let named = format!("consistency point {} 'before the upgrade'", point.trim());
    assert!(listed.contains(&named), "{listed}");
    fs::remove_file(place.path("cache")).unwrap();
    let done = place.ok(&["recover", "backing"]);
    assert!(done.contains(&named), "{done}");
    assert_eq!(file_bytes(&place.path("backing"), 4096, 8192), pattern(4096, 1, 8192));
}

#[test]
fn a_point_is_refused_where_the_backing_does_not_move_in_groups() {
    let place = Place::new();
    let _daemon = place.serve(&["--write-policy", "ordered"]);
    let (code, error) = place.fails(&["mark", "db", "--control", "control"]);
    assert!(code == 3 && error.contains("ordered") && error.contains("journaled"), "{error}");
}

#[test]
fn status_has_figures_for_people_programs_and_scrapers() {
    let place = Place::new();
    let daemon = place.serve(&[]);
    let mut client = NbdClient::connect(&place.path("nbd"), "db");
    client.write(0, &pattern(0, 1, 4096));
    client.read(0, 4096);
    client.flush();
    let status = place.status();
    assert_eq!((&status["name"], &status["state"]), (&"db".into(), &"healthy".into()));
    for (key, value) in
        [("reads", 1), ("writes", 1), ("flushes", 1), ("writes_admitted", 1), ("bytes_acknowledged", 4096)]
    {
        assert_eq!(status[key], value, "{key}");
    }
    assert_eq!(status["size_bytes"], BACKING_BYTES);
    assert_eq!(status["pid"], daemon.pid());
    assert_eq!(status["exports"], serde_json::json!(["unix:nbd"]));
    assert!(status["bytes_to_cache"].as_u64().unwrap() >= 4096);
    assert!(status["memory_bytes"].as_u64().unwrap() > 0);

    let all: serde_json::Value = serde_json::from_str(&place.ask(&["status", "--json"])).unwrap();
    assert_eq!(all["volumes"].as_array().unwrap().len(), 1);
    assert!(place.ask(&["status", "db", "--prometheus"]).contains("forebay_writes_total{volume=\"db\"} 1\n"));
    let text = place.ask(&["status"]);
    assert!(
        text.starts_with("db: healthy\n") && text.contains("offered at") && text.contains("durability"),
        "{text}"
    );
    let (code, error) = place.fails(&["status", "other", "--control", "control"]);
    assert_eq!(code, 2, "{error}");
    assert!(error.contains("no volume 'other'; it serves db"), "{error}");
}

#[test]
fn settings_change_live() {
    let place = Place::new();
    let _daemon = place.serve(&["--on-full", "bypass"]);
    assert_eq!(place.status()["on_full"], "bypass");
    place.ask(&["set", "db", "write-policy=write-through", "admit=sync", "on-full=wait"]);
    let status = place.status();
    assert_eq!(status["write_policy"], "write-through");
    assert_eq!((&status["admission"], &status["on_full"]), (&"sync".into(), &"wait".into()));
    let mut client = NbdClient::connect(&place.path("nbd"), "db");
    client.write(4096, &pattern(4096, 1, 4096));
    client.flush();
    assert_eq!(file_bytes(&place.path("backing"), 4096, 4096), pattern(4096, 1, 4096));
}

#[test]
fn a_clean_stop_destages_if_asked() {
    let place = Place::new();
    for (flag, destaged) in [("--destage-on-stop=no", false), ("--destage-on-stop", true)] {
        let daemon = place.serve(&[flag]);
        let data = pattern(8192, u64::from(destaged) + 1, 4096);
        NbdClient::connect(&place.path("nbd"), "db").write(8192, &data);
        assert_eq!(daemon.stop().code(), Some(0), "{}", place.log());
        assert_eq!(file_bytes(&place.path("backing"), 8192, 4096) == data, destaged);
        assert!(!place.path("control").exists() && !place.path("nbd").exists());
    }
}

#[test]
fn a_released_cache_leaves_a_backing_that_needs_no_forebay() {
    let place = Place::new();
    let daemon = place.serve(&[]);
    NbdClient::connect(&place.path("nbd"), "db").write(0, &pattern(0, 1, 65536));
    place.ask(&["detach", "db", "--release"]);
    assert_eq!(daemon.wait().code(), Some(0), "{}", place.log());
    assert_eq!(file_bytes(&place.path("backing"), 0, 65536), pattern(0, 1, 65536));
    let (code, error) =
        place.fails(&["serve", "--name", "db", "--cache", "cache", "--backing", "backing", "--control", "c"]);
    assert_eq!(code, 3, "{error}");
    place.serve_plain(&["--name", "db", "--backing", "backing", "--no-cache"]);
}

#[test]
fn several_volumes_share_a_daemon_and_an_address() {
    let place = Place::new();
    place.make_file("other", BACKING_BYTES / 2);
    let config = r#"
        [[volume]]
        name = "db"
        cache = "cache"
        backing = "backing"
        nbd = ["unix:nbd"]
        write-policy = "write-through"
        [[volume]]
        name = "scratch"
        backing = "other"
        no-cache = true
        nbd = ["unix:nbd"]
    "#;
    fs::write(place.path("volumes.toml"), config).unwrap();
    let daemon = place.serve_plain(&["--config", "volumes.toml"]);
    assert_eq!(NbdClient::connect(&place.path("nbd"), "db").size, BACKING_BYTES);
    let mut scratch = NbdClient::connect(&place.path("nbd"), "scratch");
    scratch.write(0, &pattern(0, 7, 4096));
    assert_eq!(file_bytes(&place.path("other"), 0, 4096), pattern(0, 7, 4096));
    let all: serde_json::Value = serde_json::from_str(&place.ask(&["status", "--json"])).unwrap();
    let names: Vec<&str> =
        all["volumes"].as_array().unwrap().iter().map(|v| v["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["db", "scratch"]);
    assert_eq!(all["volumes"][0]["write_policy"], "write-through");
    assert_eq!(all["volumes"][1]["cache"], "");
    drop(scratch);
    assert_eq!(daemon.stop().code(), Some(0), "{}", place.log());
}

#[test]
fn errors_of_the_backing_are_counted_and_do_not_reach_cached_writes() {
    let place = Place::new();
    let _daemon = place.serve(&["--decorate", "backing:inject:write:eio:times=3"]);
    let mut client = NbdClient::connect(&place.path("nbd"), "db");
    for i in 0..64 {
        assert_eq!(client.try_write(i * 4096, &pattern(i * 4096, 1, 4096)), 0);
    }
    place.ask(&["flush", "db"]);
    let status = place.status();
    assert!(status["backing_errors"].as_u64().unwrap() >= 1, "{status}");
    place.await_log("of the backing failed");
    assert_eq!(file_bytes(&place.path("backing"), 0, 4096), pattern(0, 1, 4096));
}

#[test]
fn a_failed_cache_is_told_in_the_log() {
    let place = Place::new();
    let _daemon = place.serve(&["--decorate", "cache:inject:durable:eio:after=2:once"]);
    let mut client = NbdClient::connect(&place.path("nbd"), "db");
    for i in 0..16 {
        client.write(i * 4096, &pattern(i * 4096, 1, 4096));
    }
    place.await_log("the cache failed a durable write");
    place.await_log("the failed cache is retired");
    assert_eq!(place.log().matches("the cache failed a durable write").count(), 1, "{}", place.log());
    assert_eq!(file_bytes(&place.path("backing"), 0, 4096), pattern(0, 1, 4096));
}

#[test]
fn a_record_that_fails_is_told_and_harms_nothing() {
    let place = Place::new();
    let record = ["--decorate", "cache:record:file=tape:max=64K", "--decorate", "backing:record:file=tape"];
    let daemon = place.serve(&record);
    let mut client = NbdClient::connect(&place.path("nbd"), "db");
    for i in 0..64 {
        client.write(i * 4096, &pattern(i * 4096, 1, 4096));
    }
    place.await_log("the record tape ends with entry");
    assert_eq!(client.read(63 * 4096, 4096), pattern(63 * 4096, 1, 4096));
    let bytes = fs::metadata(place.path("tape")).unwrap().len();
    assert!((4096..=65536).contains(&bytes), "{bytes}");
    assert_eq!(daemon.stop().code(), Some(0), "{}", place.log());

    let serve = ["serve", "--name", "db", "--cache", "cache", "--backing", "backing", "--control", "c"];
    let (code, error) = place.fails(&[&serve[..], &record].concat());
    assert_eq!(code, 1, "{error}");
    assert!(error.contains("cannot make the record tape"), "{error}");
}

#[test]
fn attach_prints_the_device_alone() {
    let place = Place::new();
    let daemon = place.serve(&[]);
    let attach = place.command(&["attach", "db", "--control", "control"]).output().unwrap();
    if !attach.status.success() {
        let why = String::from_utf8_lossy(&attach.stderr);
        assert!(std::env::var_os("CI").is_none(), "{why}");
        eprintln!("SKIP: {why}");
        return;
    }
    let device = String::from_utf8(attach.stdout).unwrap();
    assert!(device.starts_with("/dev/loop") && device.trim_end().lines().count() == 1, "{device:?}");
    assert_eq!(place.ask(&["attach", "db"]), device, "a second attach keeps the device");
    let device = device.trim_end();
    assert_eq!(place.status()["device"], device);
    fs::write(device, pattern(0, 3, 4096)).unwrap();
    let (code, error) = place.fails(&["detach", "other", "--control", "control"]);
    assert_eq!(code, 2, "{error}");
    place.ask(&["detach", "db"]);
    assert_eq!(place.status()["device"], serde_json::Value::Null);
    assert_eq!(NbdClient::connect(&place.path("nbd"), "db").read(0, 4096), pattern(0, 3, 4096));
    assert_eq!(place.fails(&["detach", "db", "--control", "control"]).0, 1);
    assert_eq!(daemon.stop().code(), Some(0), "{}", place.log());
}

#[test]
fn the_service_manager_hears_of_start_life_and_end() {
    let place = Place::new();
    let notify = UnixDatagram::bind(place.path("notify")).unwrap();
    let env = [("NOTIFY_SOCKET", place.path("notify")), ("WATCHDOG_USEC", "100000".into())];
    let args = ["--name", "db", "--cache", "cache", "--backing", "backing"];
    let daemon = place.serve_with(&args, &env);
    let mut heard = String::new();
    let mut listen_until = |word: &str| {
        while !heard.contains(word) {
            let mut message = [0; 1000];
            let len = notify.recv(&mut message).unwrap();
            heard.push_str(std::str::from_utf8(&message[..len]).unwrap());
            heard.push('\n');
        }
        heard.clone()
    };
    assert!(!listen_until("READY=1").contains("WATCHDOG=1"));
    listen_until("WATCHDOG=1");
    daemon.terminate();
    listen_until("STOPPING=1");
    assert_eq!(daemon.wait().code(), Some(0), "{}", place.log());
}

#[test]
fn a_second_signal_stops_at_once_and_loses_nothing() {
    let place = Place::new();
    let daemon = place.serve(&["--destage-on-stop", "--decorate", "backing:delay:write:fixed=1000s"]);
    let data = pattern(4096, 1, 4096);
    NbdClient::connect(&place.path("nbd"), "db").write(4096, &data);
    daemon.terminate();
    while !place.log().contains("stopping") {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(place.status()["state"], "stopping");
    daemon.terminate();
    assert_eq!(daemon.wait().code(), Some(1));
    let _daemon = place.serve(&[]);
    assert_eq!(NbdClient::connect(&place.path("nbd"), "db").read(4096, 4096), data);
}

#[test]
fn a_backing_that_fails_leaves_the_data_in_the_cache_and_says_so() {
    let place = Place::new();
    let daemon = place.serve(&["--destage-on-stop", "--decorate", "backing:inject:write:eio"]);
    let data = pattern(4096, 1, 4096);
    NbdClient::connect(&place.path("nbd"), "db").write(4096, &data);
    assert_eq!(daemon.stop().code(), Some(1));
    assert!(place.log().contains("dirty data stays cached"), "{}", place.log());
    let _daemon = place.serve(&[]);
    assert_eq!(NbdClient::connect(&place.path("nbd"), "db").read(4096, 4096), data);
}

#[test]
fn the_volume_appears_as_a_file() {
    let place = Place::new();
    if !rustix::process::geteuid().is_root() || !std::path::Path::new("/dev/fuse").exists() {
        assert!(std::env::var_os("CI").is_none(), "needs root and /dev/fuse");
        eprintln!("SKIP: needs root and /dev/fuse");
        return;
    }
    let daemon = place.serve(&["--fuse", "volume"]);
    assert_eq!(fs::metadata(place.path("volume")).unwrap().len(), BACKING_BYTES);
    let mut client = NbdClient::connect(&place.path("nbd"), "db");
    client.write(1 << 20, &pattern(1 << 20, 4, 8192));
    assert_eq!(file_bytes(&place.path("volume"), 1 << 20, 8192), pattern(1 << 20, 4, 8192));
    let exports = place.status()["exports"].clone();
    assert_eq!(exports, serde_json::json!(["unix:nbd", "fuse:volume"]));
    drop(client);
    assert_eq!(daemon.stop().code(), Some(0), "{}", place.log());
    assert!(!place.path("volume").exists());
}

#[test]
fn a_log_that_nobody_reads_keeps_nobody_waiting() {
    let place = Place::new();
    let (unread, log) = std::io::pipe().unwrap();
    // Full up to the last byte, by a descriptor of its own, for the daemon's must not know that it would have to wait.
    let path = format!("/proc/self/fd/{}", log.as_raw_fd());
    let mut filling = File::options()
        .write(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
        .open(path)
        .unwrap();
    while filling.write(&[b'.'; 4096]).is_ok() {}
    while filling.write(b".").is_ok() {}
    let args = ["serve", "--control", "control", "--name", "db", "--cache", "cache", "--backing", "backing"];
    let mut command = place.command(&[&args[..], &["--nbd", "unix:nbd", "--log", "trace"]].concat());
    let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
    drop(command);
    let mut ready = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    assert!(ready.starts_with("ready"), "{ready}");
    let mut client = NbdClient::connect(&place.path("nbd"), "db");
    client.write(4096, &pattern(4096, 1, 8192));
    client.flush();
    drop(client);
    place.ask(&["set", "db", "on-full=bypass"]);
    assert_eq!(place.status()["state"], "healthy");
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM)
        .unwrap();
    let limit = Instant::now() + Duration::from_secs(60);
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if Instant::now() < limit => std::thread::sleep(Duration::from_millis(20)),
            None => {
                child.kill().unwrap();
                panic!("it does not stop");
            }
        }
    };
    assert_eq!(status.code(), Some(0));
    drop((unread, filling));
}
