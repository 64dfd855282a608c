//! A decorator of volumes that holds back, reorders, spoils or forgets requests, and remembers them.

use std::sync::{Arc, Mutex};

use forebay_block::{BlockService, Buf, Completion, ErrorKind, Gate, IoError, Op, Origin, Reply, VolumeInfo};

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
}

/// A volume that a test interferes with.
pub struct Interference {
    volume: Arc<dyn BlockService>,
    behaviour: Mutex<Behaviour>,
    held: Mutex<Vec<(Op, Origin, Completion)>>,
    seen: Mutex<Vec<(Op, Origin)>>,
}

impl Interference {
    pub fn new(volume: Arc<dyn BlockService>) -> Self {
        Self {
            volume,
            behaviour: Mutex::new(Behaviour::Regular),
            held: Mutex::default(),
            seen: Mutex::default(),
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
            Behaviour::Regular => self.volume.submit(op, origin, done),
            Behaviour::Hold => self.held.lock().unwrap().push((op, origin, done)),
            Behaviour::Fail(kind) => done(Err(IoError::new(kind, "a test wants it so"))),
            Behaviour::WrongAnswer => {
                let len = if let Op::Read { len, .. } = op { len / 2 } else { 512 };
                done(Ok(Reply::Data(Buf::zeroed(len))));
            }
            Behaviour::Drop => drop(done),
        }
    }
}
