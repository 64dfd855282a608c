//! Two connections to one export: what somebody waits for has one of its own.

use command::{FLUSH, READ, WRITE};
use forebay_block::DeviceResult;
use forebay_device::{run_alone, shows_in_background};

use super::*;

/// What the scripted server offers.
const FLAGS: u16 = export_flag::HAS_FLAGS | export_flag::SEND_FLUSH | export_flag::CAN_MULTI_CONN;
/// Its addresses: that of background, and the critical one.
const LINES: usize = 2;
const PATIENCE: Duration = Duration::from_secs(60);

/// A server with two addresses, of which each has a disk: the same one, as it should be, or another.
#[derive(Clone)]
struct TwoLines {
    sockets: [PathBuf; LINES],
    disks: Arc<Mutex<[Disk; LINES]>>,
    /// What it was asked for since it was looked at last: over which line, and where.
    asked: Arc<Mutex<Vec<(usize, u16, u64)>>>,
    /// The newest connection of each line.
    streams: Arc<Mutex<[Option<UnixStream>; LINES]>>,
    /// Requests over this line are neither carried out nor answered.
    deaf: Arc<AtomicUsize>,
}

impl TwoLines {
    fn start(directory: &TempDir, flags: u16) -> Self {
        let disk = Disk::new();
        let server = Self {
            sockets: ["ordinary", "critical"].map(|name| directory.path().join(name)),
            disks: Arc::new(Mutex::new([disk.clone(), disk])),
            asked: Arc::default(),
            streams: Arc::default(),
            deaf: Arc::new(AtomicUsize::new(LINES)),
        };
        for line in 0..LINES {
            let (server, listener) = (server.clone(), UnixListener::bind(&server.sockets[line]).unwrap());
            thread::spawn(move || {
                loop {
                    let stream = accept_with(&listener, flags);
                    server.streams.lock().unwrap()[line] = Some(stream.try_clone().unwrap());
                    let server = server.clone();
                    thread::spawn(move || server.serve(line, stream));
                }
            });
        }
        server
    }

    fn serve(&self, line: usize, mut stream: UnixStream) {
        while let Some((request, data)) = next_request(&mut stream) {
            self.asked.lock().unwrap().push((line, request.command, request.offset));
            if self.deaf.load(SeqCst) == line {
                continue;
            }
            let disk = self.disks.lock().unwrap()[line].clone();
            let read = disk.carry_out(&request, &data);
            let mut answer = Vec::new();
            SimpleReply { error: NbdError::OK, cookie: request.cookie }.encode(&mut answer);
            answer.extend(read);
            if stream.write_all(&answer).is_err() {
                break;
            }
        }
        let _ = stream.shutdown(Shutdown::Both);
    }

    fn hang_up(&self, line: usize) {
        let stream = self.streams.lock().unwrap()[line].take().unwrap();
        stream.shutdown(Shutdown::Both).unwrap();
    }

    /// The same, and waits until both lines are there again.
    fn lose(&self, line: usize) {
        self.hang_up(line);
        let begun = Instant::now();
        while self.streams.lock().unwrap()[line].is_none() {
            assert!(begun.elapsed() < PATIENCE, "no new connection is made");
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn uri(&self) -> String {
        let [ordinary, critical] = self.sockets.each_ref().map(|socket| socket.display());
        format!("nbd+unix:///?socket={ordinary}&critical={critical}")
    }

    /// What was asked for over a line since this was asked last.
    fn asked_over(&self, line: usize) -> Vec<(u16, u64)> {
        let mut asked = self.asked.lock().unwrap();
        asked
            .extract_if(.., |(over, ..)| *over == line)
            .map(|(_, command, offset)| (command, offset))
            .collect()
    }

    fn forget(&self) {
        self.asked.lock().unwrap().clear();
    }
}

fn write(offset: u64, byte: u8) -> DeviceOp {
    DeviceOp::Write { offset, bufs: vec![Buf::copy_of(&[byte; 4096])], durable: false }
}

/// Carries out one operation of this class.
fn run(driver: &Driver, device: &mut dyn Device, op: DeviceOp, class: Class) -> DeviceResult {
    device.submit(1, op, class, driver.clock.now());
    ended(driver, device)
}

fn ended(driver: &Driver, device: &mut dyn Device) -> DeviceResult {
    let (begun, mut done) = (Instant::now(), Vec::new());
    loop {
        device.poll(driver.clock.now(), &mut done);
        if let Some((_, result)) = done.pop() {
            return result;
        }
        assert!(begun.elapsed() < PATIENCE, "an operation does not end");
        driver.ring.submit_and_wait(Some(Duration::from_millis(50)), || true).unwrap();
    }
}

fn refusal(uri: &str) -> String {
    let refused = open(&uri.parse::<DeviceSpec>().unwrap(), &Driver::new().ring, Access::ReadWrite);
    refused.err().unwrap().to_string()
}

#[test]
fn each_class_has_a_connection_of_its_own() {
    let directory = disk_directory();
    let server = TwoLines::start(&directory, FLAGS);
    let driver = Driver::new();
    let mut device = driver.open(&server.uri());
    server.forget();
    let mut run = |op, class| run(&driver, &mut *device, op, class).unwrap();
    run(write(0, 1), Class::Background);
    run(write(4096, 2), Class::Foreground);
    let read = run(DeviceOp::Read { offset: 0, len: 4096 }, Class::Foreground).unwrap();
    assert_eq!(read[..], [1; 4096]);
    // Of a server without FUA a durable write ends with a flush, over the same connection.
    let durable = DeviceOp::Write { offset: 8192, bufs: vec![Buf::zeroed(4096)], durable: true };
    run(durable.clone(), Class::Background);
    run(durable, Class::Foreground);
    let zero = DeviceOp::Zero { offset: 0, len: 4096, unmap: true };
    run(zero, Class::Background);
    assert_eq!(server.asked_over(0), [(WRITE, 0), (WRITE, 8192), (FLUSH, 0), (WRITE, 0)]);
    assert_eq!(server.asked_over(1), [(WRITE, 4096), (READ, 0), (WRITE, 8192), (FLUSH, 0)]);
}

#[test]
fn a_flush_covers_both_and_so_does_what_a_lost_connection_may_have_taken() {
    let directory = disk_directory();
    let server = TwoLines::start(&directory, FLAGS);
    let driver = Driver::new();
    let mut device = driver.open(&server.uri());
    let mut run = |op, class| run(&driver, &mut *device, op, class);
    for lost in 0..LINES {
        // Written over one connection, flushed over the other: nothing is left to lose.
        run(write(0, 1), Class::Background).unwrap();
        run(DeviceOp::Flush, Class::Foreground).unwrap();
        server.lose(lost);
        run(write(0, 2), Class::Background).unwrap();
        run(DeviceOp::Flush, Class::Foreground).unwrap();
        // Written and not flushed, and then one of the two is lost, whichever: a server that was killed closes both.
        for (writes, flushes) in
            [(Class::Background, Class::Foreground), (Class::Foreground, Class::Background)]
        {
            run(write(0, 3), writes).unwrap();
            // At once the flush could still be answered over the connection that is left.
            server.lose(lost);
            let told = run(DeviceOp::Flush, flushes).unwrap_err();
            assert!(told.context.contains("whose connection was lost"), "{told}");
            run(write(0, 4), writes).unwrap();
            run(DeviceOp::Flush, flushes).unwrap();
        }
    }
}

#[test]
fn what_the_other_connection_had_not_answered_is_sent_anew() {
    let directory = disk_directory();
    let server = TwoLines::start(&directory, FLAGS);
    let driver = Driver::new();
    let mut device = driver.open(&server.uri());
    for deaf in 0..LINES {
        server.forget();
        server.deaf.store(deaf, SeqCst);
        let class = [Class::Background, Class::Foreground][deaf];
        device.submit(1, write(4096, 9 + deaf as u8), class, driver.clock.now());
        let begun = Instant::now();
        while server.asked.lock().unwrap().is_empty() {
            assert!(begun.elapsed() < PATIENCE, "nothing is sent");
            thread::sleep(Duration::from_millis(5));
        }
        server.deaf.store(LINES, SeqCst);
        server.hang_up(1 - deaf);
        ended(&driver, &mut *device).unwrap();
        // Before they are used, new connections are read from.
        server.asked.lock().unwrap().retain(|(_, command, _)| *command != READ);
        assert_eq!(server.asked_over(deaf), [(WRITE, 4096), (WRITE, 4096)]);
        assert_eq!(server.asked_over(1 - deaf), []);
        assert_eq!(server.disks.lock().unwrap()[0].0.lock().unwrap()[4096], 9 + deaf as u8);
    }
}

#[test]
fn a_critical_address_that_comes_back_with_another_disk_is_not_used() {
    let directory = disk_directory();
    let server = TwoLines::start(&directory, FLAGS);
    let driver = Driver::new();
    let mut device = driver.open(&server.uri());
    run(&driver, &mut *device, write(8192, 7), Class::Foreground).unwrap();
    let is_ours = Arc::new(|bytes: &[u8]| *bytes == [7; 4096]);
    device.recognize_by(Some(Sign { offset: 8192, len: 4096, is_ours }));
    is_not_used_with(&server, &driver, &mut *device, &Disk::new());
}

/// The same sign is on both: a copy, and the original has been written to since.
#[test]
fn two_addresses_that_come_back_with_two_disks_are_not_used() {
    let directory = disk_directory();
    let server = TwoLines::start(&directory, FLAGS);
    let driver = Driver::new();
    let mut device = driver.open(&server.uri());
    let copy = Disk::new();
    // A difference where both are compared.
    run(&driver, &mut *device, write(8192, 7), Class::Foreground).unwrap();
    is_not_used_with(&server, &driver, &mut *device, &copy);
}

/// The critical address comes back with this disk, until all fails, and then with the right one. Nothing is written to the other one.
fn is_not_used_with(server: &TwoLines, driver: &Driver, device: &mut dyn Device, other: &Disk) {
    let ours = std::mem::replace(&mut server.disks.lock().unwrap()[1], other.clone());
    (0..LINES).for_each(|line| server.hang_up(line));
    let begun = Instant::now();
    for class in [Class::Foreground, Class::Background] {
        let mut attempt = || run(driver, device, write(0, 1), class).unwrap_err();
        while !attempt().context.contains("is not what was opened") {
            assert!(begun.elapsed() < PATIENCE, "the wrong one is taken for a server that is away");
        }
    }
    server.disks.lock().unwrap()[1] = ours.clone();
    while run(driver, device, write(0, 1), Class::Foreground).is_err() {
        assert!(begun.elapsed() < PATIENCE, "the right one is not used either");
    }
    assert!(other.0.lock().unwrap().iter().all(|byte| *byte == 0), "written to another's disk");
    assert_eq!(ours.0.lock().unwrap()[0], 1);
}

/// Both are blank, so that nothing is seen when they are opened: what is written at one address is not at the other.
#[test]
fn two_blank_disks_are_told_apart_once_one_is_written_to() {
    let directory = disk_directory();
    let server = TwoLines::start(&directory, FLAGS);
    let driver = Driver::new();
    let mut device = driver.open(&server.uri());
    assert!(is_seen_at_both(&driver, &mut *device));
    drop(device);
    *server.disks.lock().unwrap() = [Disk::new(), Disk::new()];
    assert!(!is_seen_at_both(&driver, &mut *driver.open(&server.uri())));
}

fn is_seen_at_both(driver: &Driver, device: &mut dyn Device) -> bool {
    let written = DeviceOp::Write { offset: 4096, bufs: vec![Buf::copy_of(&[9; 4096])], durable: true };
    run_alone(&driver.ring, &driver.clock, device, written).unwrap();
    shows_in_background(&driver.ring, &driver.clock, device, 4096, &[9; 4096]).unwrap()
}

#[test]
fn exports_to_which_there_is_no_second_connection() {
    let directory = disk_directory();
    let poor = TwoLines::start(&directory, FLAGS & !export_flag::CAN_MULTI_CONN);
    let told = refusal(&poor.uri());
    assert!(told.contains("cannot connect to nbd+unix:///") && told.contains("CAN_MULTI_CONN"), "{told}");
    let directory = disk_directory();
    let two = TwoLines::start(&directory, FLAGS);
    // Between the places that are looked at nothing can be told.
    for at in [0, SMALL - 1] {
        let other = Disk::new();
        other.0.lock().unwrap()[at] = 1;
        two.disks.lock().unwrap()[1] = other;
        assert!(refusal(&two.uri()).contains("is another disk"), "a difference at {at} is not seen");
    }
    let away = format!("nbd+unix:///?socket={}&critical=/nowhere", two.sockets[0].display());
    assert!(refusal(&away).contains("at its critical address"));
}

/// Two of them serve one file, and each promises what is asked for.
#[test]
fn a_real_server_at_two_addresses() {
    let directory = disk_directory();
    let path = file(&directory, "disk", SIZE);
    let serve = |at: &TempDir| Server::start(at, &["file", path.to_str().unwrap()]);
    let other_directory = disk_directory();
    let (Some(first), Some(second)) = (serve(&directory), serve(&other_directory)) else { return };
    let driver = Driver::new();
    let mut device = driver.open(&format!("{}&critical={}", first.uri(), second.socket.display()));
    for block in 0..200_u64 {
        let class = if block % 3 == 0 { Class::Background } else { Class::Foreground };
        run(&driver, &mut *device, write(block * 4096, block as u8 + 1), class).unwrap();
        let other = if block % 2 == 0 { Class::Background } else { Class::Foreground };
        let read = DeviceOp::Read { offset: block * 4096, len: 4096 };
        assert_eq!(run(&driver, &mut *device, read, other).unwrap().unwrap()[..], [block as u8 + 1; 4096]);
    }
    run(&driver, &mut *device, DeviceOp::Flush, Class::Foreground).unwrap();
    drop(device);
    let content = file_content(&path);
    assert!((0..200).all(|block| content[block * 4096..(block + 1) * 4096] == [block as u8 + 1; 4096]));

    let arguments = ["--filter=multi-conn", "memory", "8M", "multi-conn-mode=disable"];
    let alone = Server::start(&directory, &arguments).unwrap();
    let told = refusal(&format!("{}&critical={}", alone.uri(), second.socket.display()));
    assert!(told.contains("critical= cannot be used with it"), "{told}");
}
