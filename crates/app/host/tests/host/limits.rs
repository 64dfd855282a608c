//! A slow volume slows its clients, and does not collect their requests without end (P7).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use forebay_block::{BlockService, Buf, Op, Origin};
use forebay_device::decorate::{Decoration, ErrorInjected, InjectHandle, Recorders, Role};
use forebay_host::{
    Ending, REQUEST_BYTES_TOTAL_MAX, REQUESTS_MAX, Volume, WORK_BYTES_MAX, WORK_REQUESTS_MAX,
    ZERO_PIECE_BYTES,
};

use crate::place::{MIB, Place, sparse};

fn slow(text: &'static str) -> (Place, Volume) {
    let place = Place::new();
    sparse(&place.path("backing"), 64 * MIB);
    let mut config = place.plain_config();
    let decoration = move || text.parse::<Decoration>().unwrap();
    config.decorate =
        Some(Box::new(move |_, device| decoration().around(device, Role::Backing, &Recorders::default())));
    let volume = Volume::open(config).unwrap();
    (place, volume)
}

#[test]
fn clients_wait_while_the_queue_is_full() {
    let (_place, volume) = slow("delay:write:fixed=200ms");
    let handle = volume.handle();
    let submitted = Arc::new(AtomicUsize::new(0));
    let ended = Arc::new(AtomicUsize::new(0));
    let total = REQUESTS_MAX + 100;
    let begun = Instant::now();
    let submitter = {
        let (submitted, ended) = (Arc::clone(&submitted), Arc::clone(&ended));
        std::thread::spawn(move || {
            for i in 0..total as u64 {
                let data = Buf::copy_of(&[1; 512]);
                let counted = Arc::clone(&ended);
                let done = Box::new(move |result: Result<_, _>| {
                    assert!(result.is_ok());
                    counted.fetch_add(1, Ordering::SeqCst);
                });
                handle.submit(Op::Write { offset: i * 512, data, fua: false }, Origin::default(), done);
                let now = submitted.fetch_add(1, Ordering::SeqCst) + 1;
                assert!(now <= ended.load(Ordering::SeqCst) + REQUESTS_MAX, "more than the limit was taken");
            }
        })
    };
    submitter.join().unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(200), "the last hundred waited for the first to end");
    volume.end(Ending::Keep).unwrap();
    assert_eq!(ended.load(Ordering::SeqCst), total);
}

#[test]
fn a_completion_may_submit() {
    let (_place, volume) = slow("delay:write:fixed=1ms");
    let handle = volume.handle();
    let (sender, receiver) = mpsc::channel();
    fn chain(handle: forebay_host::VolumeHandle, left: usize, sender: mpsc::Sender<()>) {
        let again = handle.clone();
        let done = Box::new(move |result: Result<_, _>| {
            assert!(result.is_ok());
            match left {
                0 => sender.send(()).unwrap(),
                _ => chain(again, left - 1, sender),
            }
        });
        let data = Buf::copy_of(&[1; 512]);
        handle.submit(Op::Write { offset: 0, data, fua: false }, Origin::default(), done);
    }
    chain(handle, 20, sender);
    receiver.recv().unwrap();
    volume.end(Ending::Keep).unwrap();
}

#[test]
fn every_request_is_answered_even_if_the_volume_goes_away() {
    let (_place, volume) = slow("delay:write:fixed=10s");
    let handle = volume.handle();
    let (sender, receiver) = mpsc::channel();
    for i in 0..50 {
        let sender = sender.clone();
        let data = Buf::copy_of(&[1; 512]);
        let done = Box::new(move |result: Result<_, _>| sender.send(result.is_err()).unwrap());
        handle.submit(Op::Write { offset: i * 512, data, fua: false }, Origin::default(), done);
    }
    volume.end(Ending::Abandon).unwrap();
    drop(sender);
    let answers: Vec<bool> = receiver.iter().collect();
    assert_eq!(answers, vec![true; 50]);
}

#[test]
fn errors_of_the_backing_reach_the_client() {
    let place = Place::new();
    sparse(&place.path("backing"), MIB);
    let handle =
        InjectHandle::new(["write:enospc".parse().unwrap(), "read:eio:from=4K:to=8K".parse().unwrap()]);
    let mut config = place.plain_config();
    let injected = handle.clone();
    config.decorate = Some(Box::new(move |_, device| Box::new(ErrorInjected::new(device, injected.clone()))));
    let volume = Volume::open(config).unwrap();
    let client = crate::client::Client(volume.handle());
    assert_eq!(client.write(0, &[1; 512]).unwrap_err().kind.errno(), 28);
    assert_eq!(client.read(4096, 512).unwrap_err().kind.errno(), 5);
    assert!(client.read(0, 4096).is_ok());
    handle.set([]);
    assert!(client.write(0, &[1; 512]).is_ok());
    assert_eq!(volume.handle().status().errors, 2);
}

#[test]
fn limits_are_documented_as_they_are() {
    let page = include_str!("../../../../../docs/design/architecture.md");
    let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in [
        format!("at most {WORK_REQUESTS_MAX} requests and {} MiB of theirs", WORK_BYTES_MAX >> 20),
        format!("trims of more than {} MiB are", ZERO_PIECE_BYTES >> 20),
        format!("{REQUESTS_MAX} requests and {} MiB, a connection", REQUEST_BYTES_TOTAL_MAX >> 20),
    ] {
        assert!(page.contains(&words), "docs/design/architecture.md lacks: {words}");
    }
}

fn of_lane(lane: u64) -> Origin {
    Origin { lane, ..Origin::default() }
}

/// Eight connections have queued all that they may; one that asks for little is answered before most of that.
#[test]
fn connections_have_turns() {
    let (_place, volume) = slow("delay:write:fixed=50ms");
    let handle = volume.handle();
    let ended = Arc::new(AtomicUsize::new(0));
    let submit = |lane, done: Box<dyn FnOnce() + Send>| {
        let data = Buf::copy_of(&[1; 512]);
        let done = Box::new(move |result: Result<_, _>| {
            assert!(result.is_ok());
            done();
        });
        handle.submit(Op::Write { offset: lane * 512, data, fua: false }, of_lane(lane), done);
    };
    let (sender, receiver) = mpsc::channel();
    let polite = |sender: mpsc::Sender<usize>| {
        let ended = Arc::clone(&ended);
        submit(100, Box::new(move || sender.send(ended.load(Ordering::SeqCst)).unwrap()));
    };
    polite(sender.clone());
    receiver.recv().unwrap();
    for n in 0..800 {
        let ended = Arc::clone(&ended);
        let count = move || {
            ended.fetch_add(1, Ordering::SeqCst);
        };
        submit(1 + n % 8, Box::new(count));
    }
    let before = ended.load(Ordering::SeqCst);
    polite(sender);
    let others = receiver.recv().unwrap() - before;
    volume.end(Ending::Destage).unwrap();
    assert_eq!(ended.load(Ordering::SeqCst), 800, "all are answered");
    assert!(others <= WORK_REQUESTS_MAX, "{others} of others went before it");
}

/// A long trim is carried out in pieces, answered once, and fails as a whole.
#[test]
fn a_long_trim_gives_way() {
    let place = Place::new();
    sparse(&place.path("backing"), 256 * MIB);
    let handle = InjectHandle::new([]);
    let mut config = place.plain_config();
    let injected = handle.clone();
    config.decorate = Some(Box::new(move |_, device| Box::new(ErrorInjected::new(device, injected.clone()))));
    let volume = Volume::open(config).unwrap();
    let client = volume.handle();
    let run = |lane, op| {
        let (sender, receiver) = mpsc::channel();
        client.submit(op, of_lane(lane), Box::new(move |result| sender.send(result.is_ok()).unwrap()));
        let answers: Vec<bool> = receiver.iter().collect();
        assert_eq!(answers.len(), 1);
        answers[0]
    };
    let write = || Op::Write { offset: 255 * MIB, data: Buf::copy_of(&[1; 512]), fua: false };
    let trim = || Op::Zero { offset: 512, len: 256 * MIB - 512, unmap: true, fua: false };
    let carried_out = |f: &dyn Fn()| {
        let before = client.status().writes;
        f();
        client.status().writes - before
    };
    let pieces = 256 * MIB / ZERO_PIECE_BYTES;
    // All that touches the same bytes waits for it, also what the same connection asks for.
    assert_eq!(carried_out(&|| assert!(run(1, trim()))), pieces, "although it is alone");
    assert!(run(2, write()));
    assert_eq!(carried_out(&|| assert!(run(1, trim()))), pieces);
    handle.set(["zero:eio:from=100M:to=101M".parse().unwrap()]);
    assert!(run(2, write()));
    assert!(!run(1, trim()));
    handle.set([]);
    volume.end(Ending::Destage).unwrap();
}
