//! What a volume gives to its backing at a time is what that takes: nothing waits in the device, where nobody knows who waits for it.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, mpsc};

use forebay_block::{BlockService, Buf, Class, Criticality, DeviceOp, DeviceResult, Nanos, Op, Origin};
use forebay_device::{Device, DeviceInfo, Sign, Survey};
use forebay_engine::Role;
use forebay_host::{Ending, Volume, VolumeConfig};
use forebay_policy::{Admission, SchedulerKind};

use crate::place::{MIB, Place, sparse};

/// The most that was under way in a device, and the most that waited in it.
#[derive(Default)]
struct Most {
    under_way: AtomicUsize,
    waiting: AtomicUsize,
}

struct Watched {
    inner: Box<dyn Device>,
    under_way: usize,
    most: Arc<Most>,
}

impl Device for Watched {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn submit(&mut self, tag: u64, op: DeviceOp, class: Class, now: Nanos) {
        self.inner.submit(tag, op, class, now);
        self.under_way += 1;
        self.most.under_way.fetch_max(self.under_way, SeqCst);
        self.most.waiting.fetch_max(self.inner.waiting(), SeqCst);
    }

    fn poll(&mut self, now: Nanos, done: &mut Vec<(u64, DeviceResult)>) {
        let known = done.len();
        self.inner.poll(now, done);
        self.under_way -= done.len() - known;
    }

    fn deadline(&self) -> Option<Nanos> {
        self.inner.deadline()
    }

    fn survey(&self) -> std::io::Result<Survey> {
        self.inner.survey()
    }

    fn recognize_by(&mut self, sign: Option<Sign>) {
        self.inner.recognize_by(sign);
    }
}

/// Reads and writes past a cache, if there is one, more than any device takes.
fn load(volume: &Volume) {
    let handle = volume.handle();
    let (done, ends) = mpsc::channel();
    for n in 0..400 {
        let (offset, data) = (n * 4096, Buf::zeroed(4096));
        let op = match n % 2 {
            0 => Op::Read { offset, len: 4096 },
            _ => Op::Write { offset, data, fua: false },
        };
        let criticality = if n % 3 == 0 { Criticality::Awaited } else { Criticality::None };
        let done = done.clone();
        let answer = Box::new(move |result: Result<_, _>| done.send(result.is_ok()).unwrap());
        handle.submit(op, Origin { criticality, ..Origin::default() }, answer);
    }
    assert!((0..400).all(|_| ends.recv().unwrap()));
}

#[test]
fn nothing_waits_in_a_device() {
    for (kind, depth) in [("", 128), ("remote", 64), ("remote,window=3", 3), ("ssd-sata", 32)] {
        for cached in [false, true] {
            for scheduler in [SchedulerKind::Rcp, SchedulerKind::Fifo] {
                let place = Place::new();
                let mut config = match cached {
                    true => {
                        place.format(8 * MIB, 8 * MIB).unwrap();
                        place.config()
                    }
                    false => {
                        sparse(&place.path("backing"), 8 * MIB);
                        place.plain_config()
                    }
                };
                let file = place.path("backing").display().to_string();
                config.backing = match kind.split_once(',') {
                    None if kind.is_empty() => config.backing,
                    None => format!("emulate:{kind}:file={file}").parse().unwrap(),
                    Some((kind, parameter)) => {
                        format!("emulate:{kind}:file={file},{parameter}").parse().unwrap()
                    }
                };
                config.settings.scheduler = scheduler;
                config.settings.admission = Admission::Cp;
                let most = Arc::<Most>::default();
                let seen = Arc::clone(&most);
                let config = VolumeConfig {
                    decorate: Some(Box::new(move |role, inner| match role {
                        Role::Backing => Box::new(Watched { inner, under_way: 0, most: Arc::clone(&seen) }),
                        _ => inner,
                    })),
                    ..config
                };
                let volume = Volume::open(config).unwrap();
                load(&volume);
                volume.end(Ending::Keep).unwrap();
                let found = (most.under_way.load(SeqCst), most.waiting.load(SeqCst));
                let about = format!("'{kind}', cached: {cached}, {scheduler}: {found:?}");
                println!("{about}");
                assert!(found.0 <= depth && found.1 == 0, "{about}");
                // A store that is far away is filled.
                assert!(!kind.starts_with("remote") || found.0 == depth, "{about}");
            }
        }
    }
}
