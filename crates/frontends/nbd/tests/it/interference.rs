//! A decorator of volumes that holds back, reorders, spoils or forgets requests, and remembers them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};

use forebay_block::{
    BlockService, Buf, Completion, ErrorKind, Feed, Gate, IoError, Op, Origin, Refused, Reply, VolumeInfo,
};

use crate::memory::MemoryVolume;

/// What happens to the next requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// They are carried out.
    Regular,
    /// They are kept until [`Interference::release`].
    Hold,
    /// They fail.
    Fail(ErrorKind),
    /// Reads get half of their data, everything else gets data that it did not ask for.
    WrongAnswer,
    /// They are forgotten, completion and all.
    Drop,
    /// They are carried out, but the volume's thread has no room for them.
    Full,
    /// The volume's thread panics as it fetches one.
    Panic,
}

/// A volume that a test interferes with.
pub struct Interference {
    volume: MemoryVolume,
    behaviour: Mutex<Behaviour>,
    held: Mutex<Vec<(Op, Origin, Completion)>>,
    seen: Mutex<Vec<(Op, Origin)>>,
    adopted: AtomicUsize,
}

impl Interference {
    pub fn new(volume: MemoryVolume) -> Self {
        Self {
            volume,
            behaviour: Mutex::new(Behaviour::Regular),
            held: Mutex::default(),
            seen: Mutex::default(),
            adopted: AtomicUsize::new(0),
        }
    }

    pub fn behave(&self, behaviour: Behaviour) {
        *self.behaviour.lock().unwrap() = behaviour;
    }

    /// Number of requests held back.
    pub fn held(&self) -> usize {
        self.held.lock().unwrap().len()
    }

    /// Carries out what was held back, the last first.
    pub fn release(&self) {
        loop {
            let Some((op, origin, done)) = self.held.lock().unwrap().pop() else {
                return;
            };
            self.volume.submit(op, origin, done);
        }
    }

    /// Has the volume's thread do nothing while what this returns is there.
    pub fn hang(&self) -> SyncSender<()> {
        self.volume.hang()
    }

    /// How often a client was left with the volume's thread.
    pub fn adopted(&self) -> usize {
        self.adopted.load(Ordering::SeqCst)
    }

    /// Every request so far.
    pub fn seen(&self) -> Vec<(Op, Origin)> {
        self.seen.lock().unwrap().clone()
    }
}

impl BlockService for Interference {
    fn info(&self) -> VolumeInfo {
        self.volume.info()
    }

    fn gate(&self) -> &Arc<Gate> {
        self.volume.gate()
    }

    fn submit(&self, op: Op, origin: Origin, done: Completion) {
        self.seen.lock().unwrap().push((op.clone(), origin));
        let behaviour = self.behaviour.lock().unwrap().clone();
        match behaviour {
            Behaviour::Regular | Behaviour::Full | Behaviour::Panic => self.volume.submit(op, origin, done),
            Behaviour::Hold => self.held.lock().unwrap().push((op, origin, done)),
            Behaviour::Fail(kind) => done(Err(IoError::new(kind, "a test wants it so"))),
            Behaviour::WrongAnswer => {
                let len = if let Op::Read { len, .. } = op { len / 2 } else { 512 };
                done(Ok(Reply::Data(Buf::zeroed(len))));
            }
            Behaviour::Drop => drop(done),
        }
    }

    fn try_submit(&self, op: Op, origin: Origin, done: Completion) -> Result<(), Box<Refused>> {
        let behaviour = self.behaviour.lock().unwrap().clone();
        match behaviour {
            Behaviour::Full => return Err(Box::new((op, done))),
            Behaviour::Panic => panic!("a test wants it so"),
            _ => self.submit(op, origin, done),
        }
        Ok(())
    }

    fn adopt(&self, feed: Box<dyn Feed>) -> Result<(), Box<dyn Feed>> {
        self.adopted.fetch_add(1, Ordering::SeqCst);
        self.volume.adopt(feed)
    }
}
