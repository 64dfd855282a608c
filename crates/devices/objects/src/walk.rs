//! Reading the log behind a checkpoint, owner after owner, up to where it ends; and ending it there for good.
//!
//! - W1: an owner's log goes up to the first object that does not exist, or is a fence. What it has behind its last commit mark is void.
//! - W2: an owner that never began has nothing, or a fence, as its first object. One that began names the owner before, and how many of
//!   that one's objects count: what was found must agree.
//! - W3: a new owner ends all logs before it begins its own: by a fence as the first object that does not exist. If an object has come there
//!   meanwhile it counts, and the fence goes to the next.

use std::collections::BTreeMap;

use crate::codec::{Damage, Ended, Fence, Identity, LogHead, head_bytes};
use crate::face::Position;
use crate::state::State;

/// Most heads of objects that are asked for at a time.
const WINDOW_MAX: u64 = 32;

/// What lies under a name of the log.
#[derive(Clone, Debug)]
pub(crate) enum Found {
    /// An object of the log, and where its payload begins.
    Log(Box<LogHead>, u32),
    /// A fence, and whose.
    Fence(u64),
    Missing,
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Wait for the heads that were asked for.
    Wait,
    /// A fence is to be made there.
    Fence(Position),
    /// All owners' logs were read to their ends.
    Ended,
    /// The log seems to end there, and goes on with [`Walk::pass`].
    Gap(Position),
    /// The log was ended by this owner, who has come later than all that are known. It goes on with [`Walk::pass`].
    Owner(u64),
    /// An owner's first object says this of the log before, which does not agree: something has changed meanwhile, or is lost.
    Disagrees(Position, Position),
    /// This object says what cannot be.
    Wrong(Position, &'static str),
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    /// The newest owner.
    newest: u64,
    /// Where the walk is.
    at: Position,
    asked: u64,
    found: BTreeMap<u64, Found>,
    /// Objects behind the last commit mark.
    pending: Vec<(Box<LogHead>, u32)>,
    /// The last owner that began, 0 for none, and where its log ends as far as is known.
    begun: Position,
    /// Whether the last object of that owner releases the volume.
    is_released: bool,
    /// Whether logs are ended where they end.
    is_fencing: bool,
    /// Whether a fence is being made: until that has ended nothing else counts.
    makes_fence: bool,
    /// Objects that were read, and their bytes.
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
}

impl Walk {
    /// A walk from behind a state up to the newest owner's end.
    pub(crate) fn new(state: &State, newest: u64) -> Self {
        let Position { epoch, seq } = state.as_of;
        // Owners are numbered from 1.
        let mut at =
            if epoch == 0 { Position { epoch: 1, seq: 0 } } else { Position { epoch, seq: seq + 1 } };
        let mut found = BTreeMap::new();
        if newest == 0 {
            // Without owners there is a gap all the same: what lies behind it had one.
            at = Position::default();
            found.insert(0, Found::Missing);
        }
        Self {
            newest,
            at,
            asked: at.seq,
            found,
            pending: Vec::new(),
            begun: Position { epoch, seq: if epoch == 0 { 0 } else { at.seq } },
            is_released: false,
            is_fencing: false,
            makes_fence: false,
            objects: 0,
            bytes: 0,
        }
    }

    /// Whether the newest owner has released the volume, or there is none.
    pub(crate) const fn is_released(&self) -> bool {
        self.newest == 0 || (self.begun.epoch == self.newest && self.is_released)
    }

    /// The last owner that began, 0 for none, and where its log ends as far as is known.
    pub(crate) const fn begun(&self) -> Position {
        self.begun
    }

    pub(crate) const fn is_fencing(&self) -> bool {
        self.is_fencing
    }

    /// From now on logs are ended, from the last one that has begun on.
    pub(crate) fn fence(&mut self) {
        self.is_fencing = true;
        self.found.clear();
        self.at = if self.begun.epoch == 0 { Position { epoch: 1, seq: 0 } } else { self.begun };
        self.asked = self.at.seq;
    }

    /// The objects whose heads are to be read now.
    pub(crate) fn asks(&mut self) -> Vec<Position> {
        if self.at.epoch > self.newest {
            return Vec::new();
        }
        // An owner may have begun nothing, or much.
        let end = self.at.seq + (2 + self.objects).min(WINDOW_MAX);
        let from = self.asked;
        self.asked = from.max(end);
        (from..self.asked).map(|seq| Position { epoch: self.at.epoch, seq }).collect()
    }

    /// Takes what was found under a name. Gives whether it was waited for still.
    pub(crate) fn take(&mut self, at: Position, found: Found) -> bool {
        let is_asked =
            !self.makes_fence && at.epoch == self.at.epoch && (self.at.seq..self.asked).contains(&at.seq);
        if is_asked {
            self.found.insert(at.seq, found);
        }
        is_asked
    }

    /// A fence exists where one was to be made.
    pub(crate) fn fenced(&mut self) {
        self.makes_fence = false;
        self.found.insert(self.at.seq, Found::Fence(0));
    }

    /// The name of the fence has another object, which is asked for anew.
    pub(crate) fn was_not_free(&mut self) {
        self.makes_fence = false;
        self.found.clear();
        self.asked = self.at.seq;
    }

    /// Goes on as far as what was found allows.
    pub(crate) fn step(&mut self, state: &mut State) -> Next {
        while self.at.epoch <= self.newest {
            match self.found.remove(&self.at.seq) {
                None => return Next::Wait,
                Some(Found::Log(head, data_at)) => {
                    if self.at.seq == 0 && !self.begins(&head, state) {
                        return Next::Disagrees(self.at, head.before);
                    }
                    if let Err((at, what)) = self.log(head, data_at, state) {
                        return Next::Wrong(at, what);
                    }
                }
                Some(Found::Missing) if self.is_fencing => {
                    self.makes_fence = true;
                    return Next::Fence(self.at);
                }
                Some(Found::Missing) => return Next::Gap(self.at),
                Some(Found::Fence(by)) if by > self.newest && self.at.epoch == self.newest => {
                    return Next::Owner(by);
                }
                Some(Found::Fence(_)) => self.pass(),
            }
        }
        Next::Ended
    }

    /// The log ends here: the next owner's comes.
    pub(crate) fn pass(&mut self) {
        self.at = Position { epoch: self.at.epoch + 1, seq: 0 };
        self.asked = 0;
        self.found.clear();
    }

    fn log(
        &mut self,
        head: Box<LogHead>,
        data_at: u32,
        state: &mut State,
    ) -> Result<(), (Position, &'static str)> {
        self.at.seq += 1;
        self.begun = self.at;
        self.is_released = head.released;
        self.objects += 1;
        self.bytes += u64::from(data_at) + crate::codec::payload_bytes(head.payload_sectors());
        let is_commit = head.commit;
        self.pending.push((head, data_at));
        if is_commit {
            for (head, data_at) in self.pending.drain(..) {
                state.apply(&head, data_at).map_err(|what| (head.identity.at, what))?;
            }
        }
        Ok(())
    }

    /// Whether the first object of an owner agrees with what was found of the one before, which has ended.
    fn begins(&mut self, head: &LogHead, state: &mut State) -> bool {
        if head.before != self.predecessor(state) {
            return false;
        }
        self.end(state);
        true
    }

    /// The last owner that began, and how many of its objects count.
    pub(crate) fn predecessor(&self, state: &State) -> Position {
        let count = if self.begun.epoch == 0 { 0 } else { state.as_of.seq + 1 };
        Position { epoch: self.begun.epoch, seq: count }
    }

    /// The last owner that began has ended: what it did not commit is void.
    pub(crate) fn end(&mut self, state: &mut State) {
        self.pending.clear();
        if self.begun.epoch > 0 {
            let Position { epoch, seq: count } = self.predecessor(state);
            state.ended.push(Ended { epoch, count, fence: self.begun.seq });
        }
    }
}

/// What the head of an object of the log says: more of it must be read (so many bytes), or it is whole.
pub(crate) fn read_head(bytes: &[u8], size: u64, identity: &Identity) -> Result<Result<Found, u64>, Damage> {
    let needed = head_bytes(bytes)?;
    if bytes.len() < needed && (bytes.len() as u64) < size {
        return Ok(Err(needed as u64));
    }
    match LogHead::decode(bytes, size, identity) {
        Ok(head) => Ok(Ok(Found::Log(Box::new(head), needed as u32))),
        Err(Damage::Kind) => Fence::decode(bytes, identity).map(|fence| Ok(Found::Fence(fence.by))),
        Err(damage) => Err(damage),
    }
}
