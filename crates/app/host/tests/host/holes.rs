//! Questions about allocation, beside everything else that a volume does.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use forebay_block::{Allocation, BlockService, Op, Origin, STATUS_EXTENTS_MAX};
use forebay_host::{Ending, REQUESTS_MAX, Volume, VolumeHandle};
use forebay_policy::Durability;

use crate::client::Client;
use crate::place::{MIB, Place, sparse};

const BLOCK: u64 = 4096;
const VOLUME: u64 = 32 * MIB;
/// Longer than anything here takes that does not hang.
const PATIENCE: Duration = Duration::from_secs(60);

/// Blocks go to the cache, from there to the backing, and leave the cache, while the volume is mapped: what was acknowledged before a question is data in
/// its answer (P2).
#[test]
fn what_is_written_is_never_called_a_hole() {
    let place = Place::formatted(4 * MIB, VOLUME);
    let mut config = place.config();
    config.settings.durability = Durability::Flush;
    let volume = Volume::open(config).unwrap();
    let blocks = VOLUME / BLOCK;
    let written = Mutex::new(vec![false; blocks as usize]);
    let ended = AtomicBool::new(false);
    let mut maps = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let client = Client(volume.handle());
            let mut draw = 1u64;
            for n in 0..6000 {
                draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let block = (draw >> 33) % blocks;
                client.write(block * BLOCK, &[n as u8 | 1; BLOCK as usize]).unwrap();
                written.lock().unwrap()[block as usize] = true;
            }
            ended.store(true, Ordering::SeqCst);
        });
        let client = Client(volume.handle());
        while !ended.load(Ordering::SeqCst) {
            let before = written.lock().unwrap().clone();
            let mut at = 0;
            for extent in client.status(0, VOLUME) {
                if extent.allocation == Allocation::Hole {
                    let hole = (at / BLOCK) as usize..((at + extent.len) / BLOCK) as usize;
                    let lost = hole.clone().find(|block| before[*block]);
                    assert_eq!(lost, None, "a block that was written lies in the hole of blocks {hole:?}");
                }
                at += extent.len;
            }
            maps += 1;
        }
    });
    let status = volume.handle().status();
    assert!(status.bytes_to_backing > 0 && status.cached_bytes < 5 * MIB, "blocks left the cache");
    assert!(maps > 3, "only {maps} maps were made");
    volume.end(Ending::Keep).unwrap();
}

fn question(len: u64) -> Op {
    Op::Status { offset: 0, len, extents_max: STATUS_EXTENTS_MAX }
}

/// The queue is full of questions, and whoever answers them asks another one each time.
#[test]
fn a_completion_may_ask_again_although_the_queue_is_full() {
    let place = Place::new();
    sparse(&place.path("backing"), VOLUME);
    let volume = Volume::open(place.plain_config()).unwrap();
    let (sender, receiver) = mpsc::channel();
    fn ask(handle: VolumeHandle, left: usize, sender: mpsc::Sender<()>) {
        let again = handle.clone();
        let done = Box::new(move |result: Result<_, _>| {
            assert!(result.is_ok());
            match left {
                0 => sender.send(()).unwrap(),
                _ => ask(again, left - 1, sender),
            }
        });
        handle.submit(question(VOLUME), Origin::default(), done);
    }
    let handle = volume.handle();
    let asking = std::thread::spawn(move || {
        for _ in 0..2 * REQUESTS_MAX {
            ask(handle.clone(), 1, sender.clone());
        }
    });
    for _ in 0..2 * REQUESTS_MAX {
        receiver.recv_timeout(PATIENCE).expect("the queue moves on");
    }
    asking.join().unwrap();
    volume.end(Ending::Keep).unwrap();
}

/// Whatever waits when the volume stops is answered, once.
#[test]
fn a_stop_answers_what_has_been_asked() {
    let place = Place::formatted(4 * MIB, VOLUME);
    for ending in [Ending::Keep, Ending::Destage, Ending::Abandon] {
        let volume = place.open();
        let handle = volume.handle();
        let answers = Arc::new(AtomicUsize::new(0));
        // A write first, so that the questions are not all taken up at once.
        Client(volume.handle()).write(0, &[1; 4096]).unwrap();
        for _ in 0..500 {
            let answers = Arc::clone(&answers);
            let done = Box::new(move |_| {
                answers.fetch_add(1, Ordering::SeqCst);
            });
            handle.submit(question(VOLUME), Origin::default(), done);
        }
        volume.end(ending).unwrap();
        assert_eq!(answers.load(Ordering::SeqCst), 500, "{ending:?}");
    }
}
