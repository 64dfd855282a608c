//! Clients whose requests the volume's own thread fetches.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use forebay_block::{BlockService, Buf, Feed, Fetched, Op, Origin};
use forebay_host::{Ending, Volume, VolumeHandle};

use crate::client::Client;
use crate::place::{MIB, Place, sparse};

/// Each byte in the socket is a write of a sector with that number, answered by the same byte; 0 is a mistake, and 255 goodbye.
struct Bytes {
    socket: UnixStream,
    volume: VolumeHandle,
    dropped: Sender<()>,
}

impl Feed for Bytes {
    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn fetch(&mut self) -> Fetched {
        let mut bytes = [0; 8];
        let come = match (&self.socket).read(&mut bytes) {
            Ok(0) => return Fetched::Leaves,
            Ok(come) => come,
            Err(_) => return Fetched::All,
        };
        for byte in &bytes[..come] {
            assert!(*byte != 0, "a mistake");
            if *byte == 255 {
                return Fetched::Leaves;
            }
            let mut answers = self.socket.try_clone().unwrap();
            let byte = [*byte];
            let done = Box::new(move |result: Result<_, _>| {
                result.unwrap();
                answers.write_all(&byte).unwrap();
            });
            let data = Buf::copy_of(&[byte[0]; 512]);
            let op = Op::Write { offset: u64::from(byte[0]) * 512, data, fua: false };
            assert!(self.volume.try_submit(op, Origin::default(), done).is_ok());
        }
        // As a feed that saves itself a call which would tell that there is nothing more.
        if come < bytes.len() { Fetched::All } else { Fetched::Part }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        let _ = self.dropped.send(());
    }
}

/// The client's end, and what is told when the volume has dropped the other one.
fn adopted(volume: &VolumeHandle) -> Result<(UnixStream, Receiver<()>), Receiver<()>> {
    let (near, far) = UnixStream::pair().unwrap();
    near.set_nonblocking(true).unwrap();
    far.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let (dropped, told) = mpsc::channel();
    match volume.adopt(Box::new(Bytes { socket: near, volume: volume.clone(), dropped })) {
        Ok(()) => Ok((far, told)),
        Err(_) => Err(told),
    }
}

fn volume() -> (Place, Volume) {
    let place = Place::new();
    sparse(&place.path("backing"), MIB);
    let volume = Volume::open(place.plain_config()).unwrap();
    (place, volume)
}

fn write(stream: &mut UnixStream, numbers: &[u8]) {
    stream.write_all(numbers).unwrap();
    let mut answers = vec![0; numbers.len()];
    stream.read_exact(&mut answers).unwrap();
    answers.sort_unstable();
    assert_eq!(answers, numbers);
}

#[test]
fn feeds_are_fetched_until_they_leave_or_the_volume_ends() {
    let (_place, volume) = volume();
    let client = Client(volume.handle());
    let (mut leaving, left) = adopted(&client.0).unwrap();
    let (mut staying, stayed) = adopted(&client.0).unwrap();
    let (mut wrong, ended) = adopted(&client.0).unwrap();
    for _ in 0..20 {
        write(&mut leaving, &[1, 2, 3]);
        write(&mut staying, &[4]);
        write(&mut wrong, &[5, 6]);
    }
    leaving.write_all(&[255]).unwrap();
    left.recv_timeout(Duration::from_secs(60)).unwrap();
    wrong.write_all(&[0]).unwrap();
    ended.recv_timeout(Duration::from_secs(60)).unwrap();
    write(&mut staying, &[7]);
    assert_eq!(client.read(7 * 512, 512).unwrap()[..], [7; 512], "the volume goes on");
    assert!(stayed.try_recv().is_err());
    volume.end(Ending::Keep).unwrap();
    stayed.recv_timeout(Duration::from_secs(60)).unwrap();
    let (_far, told) = adopted(&client.0).unwrap();
    told.recv_timeout(Duration::from_secs(60)).unwrap();
}

/// A client's last words and its end come in one, and its feed stops reading when it has the words.
#[test]
fn a_client_that_ends_its_side_is_let_go() {
    let (_place, volume) = volume();
    let handle = volume.handle();
    for _ in 0..50 {
        let (mut leaving, left) = adopted(&handle).unwrap();
        write(&mut leaving, &[1]);
        leaving.write_all(&[2]).unwrap();
        leaving.shutdown(Shutdown::Write).unwrap();
        left.recv_timeout(Duration::from_secs(60)).unwrap();
        let mut answers = Vec::new();
        leaving.read_to_end(&mut answers).unwrap();
        assert_eq!(answers, [2], "and its file is closed");
    }
}

#[test]
fn feeds_are_bounded_and_make_room() {
    let (_place, volume) = volume();
    let handle = volume.handle();
    let mut all = Vec::new();
    let told = loop {
        match adopted(&handle) {
            Ok(feed) => all.push(feed),
            Err(told) => break told,
        }
    };
    assert_eq!(all.len(), 16);
    told.recv_timeout(Duration::from_secs(60)).unwrap();
    let (gone, left) = all.remove(3);
    drop(gone);
    left.recv_timeout(Duration::from_secs(60)).unwrap();
    write(&mut adopted(&handle).unwrap().0, &[9]);
    all.iter_mut().for_each(|(stream, _)| write(stream, &[8]));
}

/// A client that says nothing for a while gives its place up to one that wants it.
#[test]
fn a_silent_feed_makes_room() {
    let (_place, volume) = volume();
    let handle = volume.handle();
    let mut all: Vec<_> = (0..16).map(|_| adopted(&handle).unwrap()).collect();
    all.iter_mut().for_each(|(stream, _)| write(stream, &[1]));
    std::thread::sleep(Duration::from_millis(1100));
    let said = all.iter_mut().enumerate().filter(|(n, _)| *n != 5);
    said.for_each(|(_, (stream, _))| write(stream, &[3]));
    assert!(adopted(&handle).is_err(), "it comes back for the place");
    write(&mut all[0].0, &[4]);
    all[5].1.recv_timeout(Duration::from_secs(60)).unwrap();
    write(&mut adopted(&handle).unwrap().0, &[9]);
}
