//! Parts of requests: block ranges that go one way each, through the log or past it.
//!
//! ```text
//!            locks                base blocks read (only if the part covers a block in part)
//!  Waiting ─────────► ReadingBase ───────────────┬──► Appending ────────────────────────────► done
//!     ▲                                          └──► BypassWriting ─► BypassFlushing ─► Superseding
//!     └── the log has failed: begin again as a bypass                          └► AwaitingRetirement ─► done
//!                                                    (write-through) CopyingClean: answered, locks still held
//! ```
//! A bypass that somebody comes to wait for turns to Appending as long as it is not on the backing (see `reissue`). A failed part
//! whose write to the backing is still on its way is Landing until that has ended.
//!
//! Each transition is a function of [`Requests`] that takes the facts it needs and says what is to be done next ([`Next`]). The
//! backing's way has its transitions in `bypass`.

use forebay_block::{BLOCK_BYTES, BlockNo, Buf, BufMut, DeviceOp, IoError, Seq};
use forebay_format::record::{Extent, ExtentKind};
use forebay_policy::{AdmissionReason, Issuer};

use crate::client::requests::{Answered, Requests};
use crate::interface::{Class, PartKey, RequestId};
use crate::locks::{BlockRange, Hold, Locks};
use crate::log::{Append, AppendOwner};
use crate::mutation::Mutation;

/// What a part does to its range.
#[derive(Clone, Debug)]
pub(crate) enum Payload {
    /// Data, from byte `offset` of the volume.
    Data { offset: u64, data: Buf },
    /// Whole blocks of zeroes.
    Zero { unmap: bool },
}

impl Payload {
    /// Whether it says what each byte of its blocks is, as far as the volume reaches.
    fn covers_whole_blocks(&self, volume_bytes: u64) -> bool {
        let (first, last) = self.cuts(volume_bytes);
        !first && !last
    }

    /// Whether it leaves a part of its first block as it is, and of its last.
    fn cuts(&self, volume_bytes: u64) -> (bool, bool) {
        match self {
            Self::Zero { .. } => (false, false),
            Self::Data { offset, data } => {
                let end = offset + data.len() as u64;
                let cut_last = !end.is_multiple_of(BLOCK_BYTES) && end != volume_bytes;
                (!offset.is_multiple_of(BLOCK_BYTES), cut_last)
            }
        }
    }
}

/// Which way a part goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    Log,
    Bypass,
}

/// Where a part is; see the drawing above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartState {
    Waiting,
    ReadingBase { outstanding: u32 },
    Appending { pieces: u32 },
    BypassWriting,
    BypassFlushing { losses: u64 },
    Superseding,
    AwaitingRetirement,
    CopyingClean { pieces: u32 },
    Landing,
}

/// A block range of a request that goes one way.
pub(super) struct Part {
    pub(super) request: RequestId,
    pub(super) range: BlockRange,
    pub(super) payload: Payload,
    pub(super) path: Path,
    pub(super) hold: Hold,
    /// Its acknowledgement promises to survive a power cut: as the settings were when it arrived.
    pub(super) durable: bool,
    /// Its write to the backing is durable when it ends: by promise, or for another reason.
    pub(super) written_durably: bool,
    /// Its acknowledgement may come from the log although it began as a bypass: it does not promise that the backing has
    /// it, as the settings were when it arrived.
    pub(super) reissuable: bool,
    /// A request is known to wait for it, or nothing is known.
    pub(super) critical: bool,
    /// Who asked; it waits if the part was flagged synchronous, or asked for forced unit access.
    pub(super) issuer: Issuer,
    /// A request is known to wait for it.
    pub(super) awaited: bool,
    /// It is a bypass that ends with a supersede record, and holds its blocks until then.
    pub(super) supersedes: bool,
    /// The newest record that it depends on: as things were when it arrived.
    pub(super) after: Seq,
    /// Failed flushes of the backing when it was written there.
    pub(super) losses: u64,
    pub(super) state: PartState,
    /// The whole blocks, once base and payload are put together.
    pub(super) blocks: Option<Buf>,
    pub(super) base_first: Option<Buf>,
    pub(super) base_last: Option<Buf>,
    pub(super) error: Option<IoError>,
}

/// What is to be done for a part.
#[derive(Debug)]
pub(crate) enum Next {
    /// Nothing: it waits for something that is under way, or is gone.
    Nothing,
    /// These blocks, which it covers only in part, are to be read and given to [`Requests::base_read`]; with each whether it is the first.
    ReadBase(Vec<(BlockNo, bool)>),
    /// Its blocks are whole, and it holds them: it goes its way.
    GoOn(Path),
    /// It is to be put into the log.
    Append(Vec<Append>),
    /// It is to be written to the backing.
    Write(DeviceOp, Class),
    /// The backing is to be flushed.
    Flush(Class),
    /// It is on the backing, as durable as was asked for. A flush of the backing must cover it later if it is volatile.
    OnBacking { volatile: bool },
    /// Its request has been answered.
    Answer(Answered),
}

impl Next {
    /// What follows from a part that has ended.
    fn ended(answered: Option<Answered>) -> Self {
        answered.map_or(Self::Nothing, Self::Answer)
    }
}

/// A part that wants to start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) range: BlockRange,
    /// The newest record that it depends on.
    pub(crate) after: Seq,
    pub(crate) path: Path,
}

impl Part {
    /// Whether somebody waits for what it asks of the backing.
    pub(super) fn class(&self) -> Class {
        if self.critical { Class::Foreground } else { Class::Background }
    }

    /// Puts base and payload together into whole blocks.
    fn assemble(&mut self, forgets_rest: bool) {
        let Payload::Data { offset, data } = &self.payload else {
            return;
        };
        let bytes = (self.range.count * BLOCK_BYTES) as usize;
        self.blocks = Some(if data.len() == bytes {
            data.clone()
        } else {
            let mut whole = BufMut::zeroed(bytes);
            if forgets_rest {
                self.base_last = None;
            }
            if let Some(base) = self.base_first.take() {
                whole[..base.len()].copy_from_slice(&base);
            }
            if let Some(base) = self.base_last.take() {
                whole[bytes - 4096..][..base.len()].copy_from_slice(&base);
            }
            let at = (offset - self.range.first.offset()) as usize;
            whole[at..at + data.len()].copy_from_slice(data);
            whole.freeze()
        });
    }
}

impl Requests {
    /// What the part needs to start; `None` if there is no such part. From a log that has failed it turns to the backing.
    pub(crate) fn candidate(&mut self, key: PartKey, log_has_failed: bool) -> Option<Candidate> {
        if log_has_failed && self.parts.get(&key).is_some_and(|part| part.path == Path::Log) {
            self.turn(key, Path::Bypass, AdmissionReason::CacheFailed);
        }
        let part = self.parts.get(&key)?;
        Some(Candidate { range: part.range, after: part.after, path: part.path })
    }

    /// The part takes its blocks and begins; `None` if somebody else holds them. `supersedes`: it is a bypass that will end with a
    /// supersede record.
    pub(crate) fn start(&mut self, key: PartKey, supersedes: bool, locks: &mut Locks) -> Option<Next> {
        let (planted, volume_bytes) = (self.planted, self.volume_bytes);
        let part = self.parts.get_mut(&key)?;
        let whole = part.payload.covers_whole_blocks(volume_bytes);
        part.hold = match part.path {
            Path::Log if whole || planted.is(Mutation::StaleBase) => Hold::LogWrite,
            Path::Log => Hold::Exclusive,
            Path::Bypass if planted.is(Mutation::BypassIgnoresDestage) => Hold::Exclusive,
            Path::Bypass => Hold::ExclusiveBacking,
        };
        if !locks.try_take(part.range, part.hold) {
            return None;
        }
        part.supersedes = supersedes;
        if whole {
            return Some(self.assembled(key));
        }
        let (cut_first, cut_last) = part.payload.cuts(volume_bytes);
        let mut bases = Vec::new();
        if cut_first {
            bases.push((part.range.first, true));
        }
        if cut_last && !(cut_first && part.range.count == 1) {
            bases.push((BlockNo(part.range.end() - 1), false));
        }
        part.state = PartState::ReadingBase { outstanding: bases.len() as u32 };
        Some(Next::ReadBase(bases))
    }

    /// A base block has been read (4096 bytes, zero beyond the volume's end).
    pub(crate) fn base_read(
        &mut self,
        key: PartKey,
        is_first: bool,
        result: Result<Buf, IoError>,
        locks: &mut Locks,
    ) -> Next {
        let Some(part) = self.parts.get_mut(&key) else {
            return Next::Nothing;
        };
        let PartState::ReadingBase { outstanding } = &mut part.state else {
            return Next::Nothing;
        };
        match result {
            Ok(buf) if is_first => part.base_first = Some(buf),
            Ok(buf) => part.base_last = Some(buf),
            Err(error) => part.error = Some(error),
        }
        *outstanding -= 1;
        if *outstanding > 0 {
            return Next::Nothing;
        }
        match part.error.take() {
            Some(error) => Next::ended(self.finish(key, Some(error), locks)),
            None => self.assembled(key),
        }
    }

    fn assembled(&mut self, key: PartKey) -> Next {
        let forgets_rest = self.planted.is(Mutation::ForgetsRestOfBlock);
        let Some(part) = self.parts.get_mut(&key) else {
            return Next::Nothing;
        };
        part.assemble(forgets_rest);
        Next::GoOn(part.path)
    }

    /// The part goes to the log, in pieces of at most so many blocks.
    pub(crate) fn append(&mut self, key: PartKey, piece_blocks_max: u32, locks: &mut Locks) -> Next {
        let Some(part) = self.parts.get_mut(&key) else {
            return Next::Nothing;
        };
        let kind = if part.blocks.is_some() { ExtentKind::Data } else { ExtentKind::Zero };
        let like = Append {
            extent: None,
            data: None,
            owner: AppendOwner::Part(key),
            durable: part.durable,
            after: part.after,
        };
        let appends = pieces(part.range, kind, part.blocks.as_ref(), piece_blocks_max, &like);
        part.state = PartState::Appending { pieces: appends.len() as u32 };
        if part.hold != Hold::LogWrite {
            // From here on the log keeps the order. While the part waits for room, the mark that one of its blocks is
            // lost may have to be moved out of its way.
            locks.release(part.range, part.hold);
            part.hold = Hold::LogWrite;
            assert!(locks.try_take(part.range, Hold::LogWrite), "what was held alone can be shared");
        }
        Next::Append(appends)
    }

    /// One more piece of a part is under way: the log has split one.
    pub(crate) fn piece_split(&mut self, owner: AppendOwner) {
        let (AppendOwner::Part(key) | AppendOwner::CleanCopy(key)) = owner else {
            return;
        };
        let state = self.parts.get_mut(&key).map(|p| &mut p.state);
        if let Some(PartState::Appending { pieces } | PartState::CopyingClean { pieces }) = state {
            *pieces += 1;
        }
    }

    /// The log has a piece of the part.
    pub(crate) fn piece_done(&mut self, key: PartKey, locks: &mut Locks) -> Option<Answered> {
        let part = self.parts.get_mut(&key)?;
        let PartState::Appending { pieces } = &mut part.state else {
            return None;
        };
        *pieces -= 1;
        if *pieces > 0 {
            return None;
        }
        let error = part.error.take();
        self.finish(key, error, locks)
    }

    /// A piece of the part will never be in the log.
    pub(crate) fn piece_refused(
        &mut self,
        key: PartKey,
        error: IoError,
        locks: &mut Locks,
    ) -> Option<Answered> {
        self.parts.get_mut(&key)?.error.get_or_insert(error);
        self.piece_done(key, locks)
    }

    /// The part has come to its end: its locks are given back, and its request is answered if it was the last.
    pub(crate) fn finish(
        &mut self,
        key: PartKey,
        error: Option<IoError>,
        locks: &mut Locks,
    ) -> Option<Answered> {
        let part = self.parts.get(&key)?;
        locks.release(part.range, part.hold);
        self.end(key, error)
    }

    /// The part, which holds nothing any more, counts as done. A failed one whose write to the backing is still on its way
    /// does when that has landed: after an error was answered nothing of it may show that did not before (P2).
    pub(crate) fn end(&mut self, key: PartKey, error: Option<IoError>) -> Option<Answered> {
        if error.is_some()
            && self.is_landing(key)
            && let Some(part) = self.parts.get_mut(&key)
        {
            part.state = PartState::Landing;
            part.error = error;
            return None;
        }
        let part = self.parts.remove(&key)?;
        self.count(part.request, error)
    }

    /// The part, which the log does not take (any more), begins again; it goes to the backing then.
    pub(crate) fn restart(&mut self, key: PartKey, locks: &mut Locks) {
        self.turn(key, Path::Bypass, AdmissionReason::CacheFailed);
        let Some(part) = self.parts.get_mut(&key) else {
            return;
        };
        part.state = PartState::Waiting;
        part.blocks = None;
        locks.release(part.range, part.hold);
        self.waiting.add(key, part.range);
    }

    /// The part goes another way than was chosen at first, and its request counts for that reason.
    pub(super) fn turn(&mut self, key: PartKey, path: Path, reason: AdmissionReason) {
        if let Some(part) = self.parts.get_mut(&key) {
            part.path = path;
            let request = part.request;
            self.turned(request, reason);
        }
    }
}

/// Cuts whole blocks into appends of at most `max` blocks, each `like` this one.
pub(super) fn pieces(
    range: BlockRange,
    kind: ExtentKind,
    data: Option<&Buf>,
    max: u32,
    like: &Append,
) -> Vec<Append> {
    let mut appends = Vec::new();
    let mut done = 0u64;
    while done < range.count {
        let count = (range.count - done).min(u64::from(max)) as u32;
        let bytes = |blocks: u64| (blocks * BLOCK_BYTES) as usize;
        appends.push(Append {
            extent: Some(Extent { block: range.first.plus(done), count, kind }),
            data: data.map(|d| d.slice(bytes(done), bytes(u64::from(count)))),
            ..like.clone()
        });
        done += u64::from(count);
    }
    appends
}
