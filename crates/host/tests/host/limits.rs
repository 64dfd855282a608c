//! A slow volume slows its clients, and does not collect their requests without end (P7).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use forebay_block::{BlockService, Buf, Op, Origin};
use forebay_device::decorate::{Decoration, ErrorInjected, InjectHandle, Recorders, Role};
use forebay_host::{Ending, REQUESTS_MAX, Volume};

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
