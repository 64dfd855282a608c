//! An export of an NBD server as a device: against nbdkit, and against a server that loses what was not flushed.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use forebay_block::{Buf, Class, DeviceOp};
use forebay_device::{Access, Device, DeviceKind, DeviceSpec, Sign, Survives, open};
use forebay_nbd::codec::{
    ClientFlags, ExportReply, Greeting, NbdError, OptionHeader, Request, SimpleReply, command, export_flag,
    handshake_flag,
};
use tempfile::TempDir;

use crate::harness::{Driver, disk_directory, file, file_content, skip};
use crate::round_trip::{SIZE, exercise, past_the_end_is_refused};

mod critical;

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
        assert_eq!((info.kind, info.size_bytes), (DeviceKind::Remote, SIZE), "{arguments:?}");
        assert_eq!(info.survives, Survives::Unknown, "the server decides");
        exercise(&driver, &mut *device, u64::from(info.logical_block));
        past_the_end_is_refused(&driver, &mut *device);
        let (len, unmap) = (3 << 20, true);
        driver.run(&mut *device, DeviceOp::Zero { offset: 4096, len, unmap }).unwrap();
        let zeroed = driver.read(&mut *device, 4096, len as usize);
        assert!(zeroed.iter().all(|b| *b == 0), "{arguments:?}");
        let in_use = open(&server.uri().parse::<DeviceSpec>().unwrap(), &driver.ring, Access::ReadWrite)
            .err()
            .unwrap();
        let holder = format!("is in use by another process (pid {}, ", std::process::id());
        assert!(in_use.to_string().contains(&holder), "{in_use}");
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
        let refused = open(&spec.parse::<DeviceSpec>().unwrap(), &Driver::new().ring, Access::ReadWrite);
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

/// Accepts a connection and brings it to where requests come: of an export of 1 MiB, by the old handshake and without FUA.
fn accept(listener: &UnixListener) -> UnixStream {
    accept_with(listener, export_flag::HAS_FLAGS | export_flag::SEND_FLUSH)
}

/// The same of an export with these flags.
fn accept_with(listener: &UnixListener, flags: u16) -> UnixStream {
    let (mut stream, _) = listener.accept().unwrap();
    let mut greeting = Vec::new();
    Greeting { flags: handshake_flag::NO_ZEROES }.encode(&mut greeting);
    stream.write_all(&greeting).unwrap();
    let mut hello = [0; ClientFlags::BYTES + OptionHeader::BYTES];
    stream.read_exact(&mut hello).unwrap();
    let mut reply = Vec::new();
    ExportReply { size: SMALL as u64, flags }.encode(true, &mut reply);
    stream.write_all(&reply).unwrap();
    stream
}

/// The size of such an export.
const SMALL: usize = 1 << 20;

fn reply(stream: &mut UnixStream, request: &Request, data: &[u8]) {
    let mut reply = Vec::new();
    SimpleReply { error: NbdError::OK, cookie: request.cookie }.encode(&mut reply);
    stream.write_all(&reply).unwrap();
    stream.write_all(data).unwrap();
}

/// The next request and what it writes; `None` at the end of what the client sends.
fn next_request(stream: &mut UnixStream) -> Option<(Request, Vec<u8>)> {
    let mut head = [0; Request::BYTES];
    stream.read_exact(&mut head).ok()?;
    let request = Request::decode(&head).unwrap();
    let mut data = vec![0; if request.command == command::WRITE { request.len as usize } else { 0 }];
    stream.read_exact(&mut data).ok()?;
    (request.command != command::DISC).then_some((request, data))
}

/// What such exports hold.
#[derive(Clone)]
struct Disk(Arc<Mutex<Vec<u8>>>);

impl Disk {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(vec![0; SMALL])))
    }

    fn write(&self, request: &Request, data: &[u8]) {
        let at = request.offset as usize;
        self.0.lock().unwrap()[at..at + data.len()].copy_from_slice(data);
    }

    /// Does what is asked for and returns what is read.
    fn carry_out(&self, request: &Request, data: &[u8]) -> Vec<u8> {
        self.write(request, data);
        let (at, len) = (request.offset as usize, request.len as usize);
        let len = if request.command == command::READ { len } else { 0 };
        self.0.lock().unwrap()[at..at + len].to_vec()
    }

    /// Answers to the end.
    fn serve(&self, stream: &mut UnixStream) {
        while let Some((request, data)) = next_request(stream) {
            reply(stream, &request, &self.carry_out(&request, &data));
        }
    }
}

/// Serves one such connection and hangs up instead of answering request number `last`. Returns what it was asked for.
fn serve_once(listener: &UnixListener, last: usize) -> Vec<u16> {
    let mut stream = accept(listener);
    let mut asked = Vec::new();
    while let Some((request, _)) = next_request(&mut stream) {
        asked.push(request.command);
        if asked.len() == last {
            break;
        }
        reply(&mut stream, &request, &[]);
    }
    asked
}

#[test]
fn nothing_that_a_lost_connection_may_have_taken_is_called_durable() {
    use command::{FLUSH, WRITE};
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
    assert_eq!(asked[3], [WRITE, FLUSH, FLUSH]);
}

/// So many requests go to the server, whether or not it answers; the next one waits for an answer.
#[test]
fn nothing_waits_behind_requests_that_are_not_sent() {
    let directory = disk_directory();
    let socket = directory.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let (seen, sees) = mpsc::channel();
    let server = thread::spawn(move || {
        let mut stream = accept(&listener);
        while let Some((request, _)) = next_request(&mut stream) {
            seen.send(request.offset).unwrap();
        }
    });
    let driver = Driver::new();
    let mut device = driver.open(&uri(&socket));
    let depth = device.info().depth as u64;
    for tag in 0..=depth {
        let read = DeviceOp::Read { offset: tag * 512, len: 512 };
        device.submit(tag, read, Class::Foreground, driver.clock.now());
    }
    for tag in 0..depth {
        assert_eq!(sees.recv_timeout(HANG), Ok(tag * 512));
    }
    assert_eq!((depth, device.waiting()), (128, 1));
    assert_eq!(sees.try_recv().ok(), None, "it takes no more");
    drop(device);
    server.join().unwrap();
}

/// Nothing here takes so long unless it hangs.
const HANG: Duration = Duration::from_secs(60);

fn impatient_uri(socket: &Path, seconds: u32) -> String {
    format!("{}&timeout={seconds}s", uri(socket))
}

#[test]
fn a_server_that_does_not_come_to_the_end_of_its_greeting_is_not_waited_for() {
    let directory = disk_directory();
    let mut greeting = Vec::new();
    Greeting { flags: handshake_flag::NO_ZEROES }.encode(&mut greeting);
    // Takes no connection; says nothing; stops in the middle; says one byte after the other, without end.
    for (case, says) in [None, Some(0), Some(5), Some(usize::MAX)].into_iter().enumerate() {
        let socket = directory.path().join(format!("socket-{case}"));
        let listener = UnixListener::bind(&socket).unwrap();
        let (end, ended) = mpsc::channel::<()>();
        let mut waiting = None;
        if says.is_none() {
            rustix::net::listen(&listener, 0).unwrap();
            waiting = Some(UnixStream::connect(&socket).unwrap());
        }
        let greeting = greeting.clone();
        let server = thread::spawn(move || {
            let Some(says) = says else {
                let _ = ended.recv();
                return;
            };
            let (mut stream, _) = listener.accept().unwrap();
            for byte in greeting.iter().cycle().take(says) {
                let pause = Duration::from_millis(if says == usize::MAX { 50 } else { 0 });
                if stream.write_all(&[*byte]).is_err() || ended.recv_timeout(pause) == Ok(()) {
                    return;
                }
            }
            let _ = ended.recv();
        });
        let begun = Instant::now();
        let spec = impatient_uri(&socket, 1).parse::<DeviceSpec>().unwrap();
        let told = open(&spec, &Driver::new().ring, Access::ReadWrite).err().unwrap().to_string();
        assert!(begun.elapsed() < HANG, "{case}");
        // What is said without end soon is no greeting any more.
        let wanted =
            if says == Some(usize::MAX) { "the server does not" } else { "the server does not answer" };
        assert!(told.contains(wanted), "{case}: {told}");
        let _ = end.send(());
        drop((end, waiting));
        server.join().unwrap();
    }
}

#[test]
fn a_server_that_falls_silent_is_left_for_another_and_nothing_overtakes_what_it_was_told() {
    let directory = disk_directory();
    let socket = directory.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let disk = Disk::new();
    let first_is_done = Arc::new(AtomicBool::new(false));
    let server = thread::spawn({
        let (disk, first_is_done) = (disk.clone(), Arc::clone(&first_is_done));
        move || {
            let mut first = accept(&listener);
            let late = thread::spawn({
                let (disk, first_is_done) = (disk.clone(), Arc::clone(&first_is_done));
                move || {
                    let (request, data) = next_request(&mut first).unwrap();
                    reply(&mut first, &request, &disk.carry_out(&request, &data));
                    let mut unanswered = Vec::new();
                    while let Some(request) = next_request(&mut first) {
                        unanswered.push(request);
                    }
                    // The client has ended it. What it wrote lands later than any pause after that would wait for.
                    thread::sleep(Duration::from_millis(1500));
                    unanswered.iter().for_each(|(request, data)| disk.write(request, data));
                    first_is_done.store(true, SeqCst);
                    unanswered.len()
                }
            });
            let mut second = accept(&listener);
            let (request, data) = next_request(&mut second).unwrap();
            assert!(
                first_is_done.load(SeqCst),
                "asked of the second while the first had not come to its end"
            );
            reply(&mut second, &request, &disk.carry_out(&request, &data));
            disk.serve(&mut second);
            late.join().unwrap()
        }
    });
    let driver = Driver::new();
    let mut device = driver.open(&impatient_uri(&socket, 3));
    driver.write(&mut *device, 0, &[1; 4096], false);
    let begun = Instant::now();
    let write = |block: u8| DeviceOp::Write {
        offset: u64::from(block) * 4096,
        bufs: vec![Buf::copy_of(&[block; 4096])],
        durable: false,
    };
    let all = driver.run_all(&mut *device, vec![write(1), write(2), write(3)]);
    assert!(all.iter().all(Result::is_ok), "{all:?}");
    assert!(begun.elapsed() < HANG);
    driver.write(&mut *device, 4096, &[9; 4096], false);
    // The first write was answered by the first server and may be lost with it.
    assert!(driver.run(&mut *device, DeviceOp::Flush).is_err());
    driver.run(&mut *device, DeviceOp::Flush).unwrap();
    drop(device);
    assert_eq!(server.join().unwrap(), 3);
    let disk = disk.0.lock().unwrap();
    assert_eq!([0, 4096, 8192, 12288].map(|at| disk[at]), [1, 9, 2, 3]);
}

#[test]
fn a_server_that_neither_answers_nor_ends_is_left() {
    let directory = disk_directory();
    let socket = directory.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let server = thread::spawn(move || {
        let _silent = accept(&listener);
        Disk::new().serve(&mut accept(&listener));
    });
    let driver = Driver::new();
    let mut device = driver.open(&impatient_uri(&socket, 1));
    let begun = Instant::now();
    // More than a socket takes of one that does not read.
    driver.write(&mut *device, 0, &vec![7; SMALL], false);
    assert!(begun.elapsed() < HANG);
    assert_eq!(driver.read(&mut *device, 4096, 1)[..], [7]);
    drop(device);
    server.join().unwrap();
}

#[test]
fn one_request_that_is_stuck_beside_others_that_are_answered_is_sent_anew() {
    let directory = disk_directory();
    let socket = directory.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let disk = Disk::new();
    let server = thread::spawn({
        let disk = disk.clone();
        move || {
            let mut first = accept(&listener);
            let stuck = next_request(&mut first).unwrap();
            disk.serve(&mut first);
            drop((first, stuck));
            disk.serve(&mut accept(&listener));
        }
    });
    let driver = Driver::new();
    let mut device = driver.open(&impatient_uri(&socket, 1));
    let write = |block: u8| DeviceOp::Write {
        offset: u64::from(block) * 4096,
        bufs: vec![Buf::copy_of(&[block; 4096])],
        durable: false,
    };
    device.submit(100, write(5), Class::Foreground, driver.clock.now());
    let (begun, mut done) = (Instant::now(), Vec::new());
    for tag in 0.. {
        device.submit(
            tag % 100,
            DeviceOp::Read { offset: 0, len: 512 },
            Class::Foreground,
            driver.clock.now(),
        );
        while !done.iter().any(|(ended, _)| *ended == tag % 100) {
            driver.ring.submit_and_wait(Some(Duration::from_millis(100)), || true).unwrap();
            device.poll(driver.clock.now(), &mut done);
            assert!(begun.elapsed() < HANG);
        }
        if done.drain(..).any(|(ended, result)| ended == 100 && result.is_ok()) {
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    drop(device);
    server.join().unwrap();
    assert_eq!(disk.0.lock().unwrap()[5 * 4096], 5);
}

#[test]
fn a_server_that_is_slow_is_not_cut_off() {
    const PAUSE: Duration = Duration::from_millis(600);
    let directory = disk_directory();
    let socket = directory.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let (disk, connections) = (Disk::new(), Arc::new(AtomicUsize::new(0)));
    let server = thread::spawn({
        let (disk, connections) = (disk.clone(), Arc::clone(&connections));
        move || {
            let mut stream = accept(&listener);
            connections.fetch_add(1, SeqCst);
            // A write of 1 MiB is taken in parts.
            let mut head = [0; Request::BYTES];
            stream.read_exact(&mut head).unwrap();
            let (request, mut data) = (Request::decode(&head).unwrap(), vec![0; SMALL]);
            for part in data.chunks_mut(SMALL / 6) {
                thread::sleep(PAUSE);
                stream.read_exact(part).unwrap();
            }
            reply(&mut stream, &request, &disk.carry_out(&request, &data));
            // What is read comes in parts.
            let (request, data) = next_request(&mut stream).unwrap();
            reply(&mut stream, &request, &[]);
            for part in disk.carry_out(&request, &data).chunks(request.len.div_ceil(6) as usize) {
                thread::sleep(PAUSE);
                stream.write_all(part).unwrap();
            }
            // Others are answered one by one.
            for _ in 0..6 {
                let (request, data) = next_request(&mut stream).unwrap();
                thread::sleep(PAUSE);
                reply(&mut stream, &request, &disk.carry_out(&request, &data));
            }
            disk.serve(&mut stream);
            while let Ok(()) = listener.set_nonblocking(true).and_then(|()| listener.accept().map(drop)) {
                connections.fetch_add(1, SeqCst);
            }
        }
    });
    let driver = Driver::new();
    let mut device = driver.open(&impatient_uri(&socket, 2));
    driver.write(&mut *device, 0, &vec![7; SMALL], false);
    assert!(driver.read(&mut *device, 0, 65536).iter().all(|b| *b == 7));
    let reads = (0..6).map(|block| DeviceOp::Read { offset: block * 4096, len: 512 }).collect();
    assert!(driver.run_all(&mut *device, reads).iter().all(Result::is_ok));
    driver.run(&mut *device, DeviceOp::Flush).unwrap();
    drop(device);
    server.join().unwrap();
    assert_eq!(connections.load(SeqCst), 1);
}
