//! An export of an NBD server as a device: against nbdkit, and against a server that loses what was not flushed.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use forebay_block::{Buf, DeviceOp};
use forebay_device::{Device, DeviceKind, DeviceSpec, Sign, Survives, open};
use forebay_nbd::codec::{
    ClientFlags, ExportReply, Greeting, NbdError, OptionHeader, Request, SimpleReply, command, export_flag,
    handshake_flag,
};
use tempfile::TempDir;

use crate::harness::{Driver, disk_directory, file, file_content, skip};
use crate::round_trip::{SIZE, exercise, past_the_end_is_refused};

/// nbdkit on a unix socket, killed when dropped.
struct Server {
    child: Child,
    socket: PathBuf,
}

impl Server {
    fn start(directory: &TempDir, arguments: &[&str]) -> Option<Self> {
        let socket = directory.path().join("socket");
        let _ = std::fs::remove_file(&socket);
        let child = Command::new("nbdkit")
            .args(["--foreground", "--exit-with-parent", "--unix"])
            .arg(&socket)
            .args(arguments)
            .stderr(Stdio::null())
            .spawn();
        let Ok(child) = child else {
            skip("no nbdkit");
            return None;
        };
        let begun = Instant::now();
        while UnixStream::connect(&socket).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(60), "nbdkit does not listen");
            thread::sleep(Duration::from_millis(5));
        }
        Some(Self { child, socket })
    }

    fn uri(&self) -> String {
        uri(&self.socket)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn uri(socket: &Path) -> String {
    format!("nbd+unix:///?socket={}", socket.display())
}

#[test]
fn servers_rich_and_poor() {
    let directory = disk_directory();
    for arguments in [
        &["memory", "8M"][..],
        &["--filter=noparallel", "--filter=nozero", "memory", "8M", "zeromode=notrim"],
        &["--filter=nozero", "memory", "8M", "zeromode=none"],
        &[
            "--filter=blocksize-policy",
            "memory",
            "8M",
            "blocksize-minimum=4096",
            "blocksize-preferred=4096",
            "blocksize-maximum=64k",
        ],
        // Answers in any order.
        &["--filter=delay", "memory", "8M", "delay-read=1ms", "delay-write=2ms"],
    ] {
        let Some(server) = Server::start(&directory, arguments) else { return };
        let driver = Driver::new();
        let mut device = driver.open(&server.uri());
        let info = device.info().clone();
        assert_eq!((info.kind, info.size_bytes), (DeviceKind::Network, SIZE), "{arguments:?}");
        assert_eq!(info.survives, Survives::Unknown, "the server decides");
        exercise(&driver, &mut *device, u64::from(info.logical_block));
        past_the_end_is_refused(&driver, &mut *device);
        let (len, unmap) = (3 << 20, true);
        driver.run(&mut *device, DeviceOp::Zero { offset: 4096, len, unmap }).unwrap();
        let zeroed = driver.read(&mut *device, 4096, len as usize);
        assert!(zeroed.iter().all(|b| *b == 0), "{arguments:?}");
        let in_use = open(&server.uri().parse::<DeviceSpec>().unwrap(), &driver.ring).err().unwrap();
        assert!(in_use.to_string().contains("is in use by"), "{in_use}");
    }
}

/// Passes bytes on between a TCP client and a unix socket.
fn pass_on(listener: &TcpListener, socket: &Path) {
    let (client, _) = listener.accept().unwrap();
    let server = UnixStream::connect(socket).unwrap();
    let (mut from_client, mut to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    let there = thread::spawn(move || {
        let _ = std::io::copy(&mut from_client, &mut to_server);
        let _ = to_server.shutdown(Shutdown::Write);
    });
    let _ = std::io::copy(&mut &server, &mut &client);
    let _ = client.shutdown(Shutdown::Both);
    there.join().unwrap();
}

#[test]
fn over_tcp() {
    let directory = disk_directory();
    let Some(server) = Server::start(&directory, &["memory", "8M"]) else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("nbd://localhost:{}/", listener.local_addr().unwrap().port());
    let socket = server.socket.clone();
    let proxy = thread::spawn(move || pass_on(&listener, &socket));
    let driver = Driver::new();
    let mut device = driver.open(&uri);
    assert_eq!(device.info().name, uri);
    exercise(&driver, &mut *device, 512);
    drop(device);
    proxy.join().unwrap();
}

#[test]
fn exports_of_which_no_device_can_be_made() {
    let directory = disk_directory();
    let refusal = |server: &Server, export: &str| {
        let spec = format!("nbd+unix:///{export}?socket={}", server.socket.display());
        let refused = open(&spec.parse::<DeviceSpec>().unwrap(), &Driver::new().ring);
        refused.err().unwrap().to_string()
    };
    for (arguments, export, words) in [
        (&["--readonly", "memory", "8M"][..], "", "the export is read-only"),
        (&["eval", "get_size=echo 1M", "pread=true", "pwrite=cat >/dev/null"], "", "takes no flush"),
        (&["file", "dir=/proc/self/fdinfo"], "absent", "the server"),
        (&["--tls=require", "--tls-psk=/dev/null", "memory", "8M"], "", "demands TLS"),
    ] {
        let Some(server) = Server::start(&directory, arguments) else { return };
        let told = refusal(&server, export);
        assert!(told.contains(words) && told.contains("nbd+unix:///"), "{arguments:?}: {told}");
    }
    let nobody =
        Server { child: Command::new("true").spawn().unwrap(), socket: directory.path().join("none") };
    assert!(refusal(&nobody, "").contains("cannot connect to nbd+unix:///"));
}

#[test]
fn a_server_that_is_killed_is_waited_for() {
    let directory = disk_directory();
    let path = file(&directory, "disk", SIZE);
    let arguments = ["file", path.to_str().unwrap()];
    let Some(server) = Server::start(&directory, &arguments) else { return };
    let driver = Driver::new();
    let mut device = driver.open(&server.uri());
    driver.write(&mut *device, 0, &[1; 4096], false);
    drop(server);
    let _again = Server::start(&directory, &arguments);
    driver.write(&mut *device, 4096, &[2; 4096], true);
    let flush = |device: &mut dyn Device| driver.run(device, DeviceOp::Flush);
    assert!(flush(&mut *device).is_err(), "a flush that may have lost something");
    driver.write(&mut *device, 0, &[1; 4096], false);
    flush(&mut *device).unwrap();
    drop(device);
    let content = file_content(&path);
    assert!(content[..4096] == [1; 4096] && content[4096..8192] == [2; 4096]);
}

#[test]
fn what_comes_back_without_its_sign_is_not_used() {
    let directory = disk_directory();
    let (ours, other) = (file(&directory, "disk", SIZE), file(&directory, "other", SIZE));
    let serve = |path: &Path| Server::start(&directory, &["file", path.to_str().unwrap()]);
    let Some(server) = serve(&ours) else { return };
    let driver = Driver::new();
    let mut device = driver.open(&server.uri());
    driver.write(&mut *device, 8192, &[7; 4096], true);
    let is_ours = Arc::new(|bytes: &[u8]| *bytes == [7; 4096]);
    device.recognize_by(Some(Sign { offset: 8192, len: 4096, is_ours }));
    drop(server);
    let server = serve(&other);
    let mut write = || {
        let bufs = vec![Buf::copy_of(&[1; 4096])];
        driver.run(&mut *device, DeviceOp::Write { offset: 0, bufs, durable: true })
    };
    let begun = Instant::now();
    while !write().unwrap_err().context.contains("is not what was opened") {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "the wrong one is taken for a server that is away"
        );
    }
    drop(server);
    let _again = serve(&ours);
    let begun = Instant::now();
    while write().is_err() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the right one is not used either");
    }
    drop(device);
    assert!(file_content(&other).iter().all(|b| *b == 0), "written to another's disk");
    assert_eq!(file_content(&ours)[..4096], [1; 4096]);
}

/// Serves one connection of an export of 1 MiB, by the old handshake and without FUA, and hangs up instead of answering request
/// number `last`. Returns what it was asked for.
fn serve_once(listener: &UnixListener, last: usize) -> Vec<u16> {
    let (mut stream, _) = listener.accept().unwrap();
    let mut greeting = Vec::new();
    Greeting { flags: handshake_flag::NO_ZEROES }.encode(&mut greeting);
    stream.write_all(&greeting).unwrap();
    let mut hello = [0; ClientFlags::BYTES + OptionHeader::BYTES];
    stream.read_exact(&mut hello).unwrap();
    let mut reply = Vec::new();
    ExportReply { size: 1 << 20, flags: export_flag::HAS_FLAGS | export_flag::SEND_FLUSH }
        .encode(true, &mut reply);
    stream.write_all(&reply).unwrap();
    let mut asked = Vec::new();
    let mut head = [0; Request::BYTES];
    while stream.read_exact(&mut head).is_ok() {
        let request = Request::decode(&head).unwrap();
        asked.push(request.command);
        if asked.len() == last || request.command == command::DISC {
            break;
        }
        if request.command == command::WRITE {
            stream.read_exact(&mut vec![0; request.len as usize]).unwrap();
        }
        let mut reply = Vec::new();
        SimpleReply { error: NbdError::OK, cookie: request.cookie }.encode(&mut reply);
        stream.write_all(&reply).unwrap();
    }
    asked
}

#[test]
fn nothing_that_a_lost_connection_may_have_taken_is_called_durable() {
    use command::{DISC, FLUSH, WRITE};
    let directory = disk_directory();
    let socket = directory.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let server = thread::spawn(move || [3, 2, 2, 100].map(|last| serve_once(&listener, last)));
    let driver = Driver::new();
    let mut device = driver.open(&uri(&socket));
    let write = |durable| DeviceOp::Write { offset: 0, bufs: vec![Buf::zeroed(512)], durable };
    let mut run = |op| driver.run(&mut *device, op).is_ok();
    // First connection: a write is answered and flushed, the next one is sent anew.
    assert!(run(write(false)) && run(DeviceOp::Flush) && run(write(false)));
    // The second one has done it and ends at the flush, which fails, for it may have lost it.
    assert!(!run(DeviceOp::Flush));
    // The third one ends between the write and the flush of which a durable write is made.
    assert!(!run(write(true)), "half of a durable write is lost");
    // That was no word of what else is lost, so the next flush says so; after that all is well again.
    assert!(!run(DeviceOp::Flush));
    assert!(run(write(true)) && run(DeviceOp::Flush));
    drop(device);
    let asked = server.join().unwrap();
    assert_eq!(asked[0], [WRITE, FLUSH, WRITE]);
    assert_eq!(asked[1], [WRITE, FLUSH]);
    assert_eq!(asked[2], [WRITE, FLUSH]);
    assert_eq!(asked[3], [WRITE, FLUSH, FLUSH, DISC]);
}
