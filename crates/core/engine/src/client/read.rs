//! Reads: the newest acknowledged version of each block, from the log or from the backing, checked (P2, P5).
//!
//! A read is a job made of pieces. A piece is one device read: consecutive blocks of the log, or of the backing. The
//! segment that a piece reads is pinned until the piece is done (hazard 6).

use forebay_block::{
    BLOCK_BYTES, BlockNo, Buf, BufMut, DeviceOp, DeviceResult, ErrorKind, IoError, Reply, Seq, blocks_of,
};
use forebay_format::checksum::block_checksum;

use crate::engine::{Engine, IoOwner};
use crate::interface::{Class, Effect, PartKey, RequestId, Role};
use crate::locks::BlockRange;
use crate::map::segments::{DIRTY, REFERENCED, SlotKind, SlotRef};
use crate::mutation::Mutation;
use crate::tables::Table;

/// Names a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PieceKey(u64);

/// How often a block is asked for before its read fails: once, again, and twice more if it moved meanwhile.
const ATTEMPTS_MAX: u32 = 4;
/// Longest device read of one piece.
const PIECE_BLOCKS_MAX: u64 = 1024;

/// Who gets the data.
#[derive(Clone, Copy, Debug)]
enum Reader {
    Client(RequestId),
    Base { part: PartKey, is_first: bool },
}

struct Job {
    reader: Reader,
    offset: u64,
    len: usize,
    out: Option<BufMut>,
    /// The whole answer, if one piece brought it: no copy then.
    whole: Option<Buf>,
    outstanding: u32,
    error: Option<IoError>,
}

/// Where a block of the log was when its read began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    pub(crate) slot: SlotRef,
    pub(crate) seq: Seq,
    pub(crate) checksum: u32,
}

enum From {
    Log { segment: u32, sources: Vec<Source> },
    Backing,
}

struct Piece {
    job: u64,
    first: BlockNo,
    count: u64,
    from: From,
    attempt: u32,
}

/// Reads under way.
#[derive(Default)]
pub(crate) struct Reads {
    jobs: Table<u64, Job>,
    pieces: Table<PieceKey, Piece>,
    next: u64,
}

impl Reads {
    pub(crate) fn is_idle(&self) -> bool {
        self.jobs.is_empty()
    }
}

/// What a block's version in the log is to a reader.
enum Lookup {
    Missing,
    Zero,
    Lost,
    Data(Source, u64),
}

impl Engine {
    pub(crate) fn read_request(&mut self, id: RequestId, offset: u64, len: usize) {
        if len == 0 {
            self.effects.push(Effect::Reply { id, result: Ok(Reply::Data(Buf::zeroed(0))) });
            return;
        }
        self.start_job(Reader::Client(id), offset, len);
    }

    /// Reads one whole block on behalf of a part that covers it only partly.
    pub(crate) fn read_base(&mut self, part: PartKey, block: BlockNo, is_first: bool) {
        let len = self.bytes_within(block, 1) as usize;
        self.start_job(Reader::Base { part, is_first }, block.offset(), len);
    }

    fn start_job(&mut self, reader: Reader, offset: u64, len: usize) {
        self.reads.next += 1;
        let key = self.reads.next;
        let job = Job { reader, offset, len, out: None, whole: None, outstanding: 1, error: None };
        self.reads.jobs.insert(key, job);
        let (first, count) = blocks_of(offset, len as u64);
        self.read_blocks(key, first, count, 1);
        self.job_step(key);
    }

    fn lookup(&mut self, block: BlockNo) -> Lookup {
        let Some(slot) = self.map.index.get(block, &self.map.segments) else {
            self.map.replacement.missed(block);
            return Lookup::Missing;
        };
        self.map.segments.mark(slot, REFERENCED, true);
        let s = self.map.segments.slot(slot);
        match s.kind() {
            SlotKind::Zero => Lookup::Zero,
            SlotKind::Poison if self.mutant(Mutation::ReadsLostAsZeroes) => Lookup::Zero,
            SlotKind::Poison => Lookup::Lost,
            SlotKind::Data => {
                let place = self.layout.segment_offset(slot.segment()) + u64::from(s.offset());
                Lookup::Data(Source { slot, seq: self.map.segments.seq(slot), checksum: s.checksum() }, place)
            }
        }
    }

    /// Starts the pieces for a range of blocks; neighbours that lie together are read together.
    fn read_blocks(&mut self, job: u64, first: BlockNo, count: u64, attempt: u32) {
        let mut run: Option<(BlockNo, u64, Vec<Source>, u64)> = None;
        for block in (first.0..first.0 + count).map(BlockNo) {
            let found = self.lookup(block);
            let joins = match (&run, &found) {
                (Some((start, n, sources, place)), Lookup::Data(s, at)) => {
                    !sources.is_empty()
                        && sources[0].slot.segment() == s.slot.segment()
                        && *at == place + n * BLOCK_BYTES
                        && start.0 + n == block.0
                        && *n < PIECE_BLOCKS_MAX
                }
                (Some((_, n, sources, _)), Lookup::Missing) => sources.is_empty() && *n < PIECE_BLOCKS_MAX,
                _ => false,
            };
            if !joins {
                self.start_piece(job, run.take(), attempt);
            }
            match (found, &mut run) {
                (Lookup::Data(s, _), Some((_, n, sources, _))) => {
                    sources.push(s);
                    *n += 1;
                }
                (Lookup::Data(s, at), none) => *none = Some((block, 1, vec![s], at)),
                (Lookup::Missing, Some((_, n, _, _))) => *n += 1,
                (Lookup::Missing, none) => *none = Some((block, 1, Vec::new(), 0)),
                (Lookup::Zero, _) => self.job_fill(job, block, &Buf::zeroed(BLOCK_BYTES as usize), 1),
                (Lookup::Lost, _) => {
                    self.job_fail(job, IoError::new(ErrorKind::Corrupt, "read of a lost block"))
                }
            }
        }
        self.start_piece(job, run.take(), attempt);
    }

    fn start_piece(&mut self, job: u64, run: Option<(BlockNo, u64, Vec<Source>, u64)>, attempt: u32) {
        let Some((first, count, sources, place)) = run else {
            return;
        };
        if let Some(job) = self.reads.jobs.get_mut(&job) {
            job.outstanding += 1;
        }
        self.reads.next += 1;
        let key = PieceKey(self.reads.next);
        let len = match sources.is_empty() {
            true => self.bytes_within(first, count),
            false => count * BLOCK_BYTES,
        };
        let (role, offset, from) = match sources.first() {
            None => (Role::Backing, first.offset(), From::Backing),
            Some(s) => {
                let segment = s.slot.segment();
                self.map.segments.pin(segment);
                (Role::Cache, place, From::Log { segment, sources })
            }
        };
        self.reads.pieces.insert(key, Piece { job, first, count, from, attempt });
        let op = DeviceOp::Read { offset, len: len as usize };
        self.io(role, op, Class::Foreground, IoOwner::ReadPiece(key));
    }

    pub(crate) fn read_piece_done(&mut self, key: PieceKey, result: DeviceResult) {
        let Some(piece) = self.reads.pieces.remove(&key) else {
            return;
        };
        match (&piece.from, result) {
            (From::Backing, Ok(Some(buf))) => {
                self.figures.read_bytes_missed += buf.len() as u64;
                self.fill_from_backing(&piece, &buf);
            }
            (From::Backing, Err(error)) => {
                self.figures.backing_errors += 1;
                self.job_fail(piece.job, error);
            }
            (From::Log { segment, sources }, Ok(Some(buf))) => {
                self.figures.read_bytes_hit += buf.len() as u64;
                self.verify_piece(&piece, sources, &buf);
                self.map.segments.unpin(*segment);
            }
            (From::Log { segment, .. }, Err(error)) => {
                self.figures.cache_errors += 1;
                for n in 0..piece.count {
                    self.block_failed(&piece, n, error.clone());
                }
                self.map.segments.unpin(*segment);
            }
            (_, Ok(None)) => self.job_fail(piece.job, IoError::new(ErrorKind::Io, "read without data")),
        }
        self.job_step(piece.job);
    }

    /// Takes what the backing said of blocks that are still not cached. One that was cached meanwhile is read from
    /// there: the backing may have shown a bypass that is still under way, and later reads would go back to the
    /// version in the log.
    fn fill_from_backing(&mut self, piece: &Piece, buf: &Buf) {
        let cached = |e: &Self, n: u64| e.map.index.get(piece.first.plus(n), &e.map.segments).is_some();
        let trusting =
            self.mutant(Mutation::IgnoresRacingFill) || self.mutant(Mutation::ReadsStaleInsteadOfDamaged);
        if trusting || !(0..piece.count).any(|n| cached(self, n)) {
            self.job_fill(piece.job, piece.first, buf, piece.count);
            return;
        }
        for n in 0..piece.count {
            let block = piece.first.plus(n);
            if cached(self, n) {
                self.read_blocks(piece.job, block, 1, piece.attempt);
            } else {
                let at = (n * BLOCK_BYTES) as usize;
                self.job_fill(piece.job, block, &buf.slice(at, (buf.len() - at).min(4096)), 1);
            }
        }
    }

    /// Checks each block against the checksum over its data, address and sequence number (P5).
    fn verify_piece(&mut self, piece: &Piece, sources: &[Source], buf: &Buf) {
        let planted = self.planted;
        let good = |n: usize, s: &Source| {
            let data = &buf[n * 4096..][..4096];
            block_checksum(piece.first.plus(n as u64), s.seq, data) == s.checksum
                || planted.is(Mutation::ReadsUnchecked)
        };
        if sources.iter().enumerate().all(|(n, s)| good(n, s)) {
            self.job_fill(piece.job, piece.first, buf, piece.count);
            return;
        }
        for (n, s) in sources.iter().enumerate() {
            if good(n, s) {
                let block = piece.first.plus(n as u64);
                self.job_fill(piece.job, block, &buf.slice(n * 4096, 4096), 1);
            } else {
                self.figures.checksum_failures += 1;
                let error = IoError::new(ErrorKind::Corrupt, "read from the cache");
                self.block_failed(piece, n as u64, error);
            }
        }
    }

    /// A block could not be read from the log. It is tried again, for it may have moved or the error may pass; then
    /// a clean one is read from the backing, and a dirty one is an error: never stale or foreign data.
    fn block_failed(&mut self, piece: &Piece, n: u64, error: IoError) {
        let block = piece.first.plus(n);
        let From::Log { sources, .. } = &piece.from else {
            return;
        };
        let stale = self.mutant(Mutation::ReadsStaleInsteadOfDamaged);
        let current = self.map.index.get(block, &self.map.segments);
        let unmoved = current == sources.get(n as usize).map(|s| s.slot);
        if piece.attempt < 2 || (!unmoved && piece.attempt < ATTEMPTS_MAX) {
            self.read_blocks(piece.job, block, 1, piece.attempt + 1);
        } else if unmoved && current.is_some_and(|s| !self.map.segments.slot(s).has(DIRTY) || stale) {
            // Later reads go the same way: the backing may show a bypass that is still under way, and a copy that can
            // be read again would take them back behind it.
            self.forget_clean(BlockRange::new(block, 1));
            self.start_piece(piece.job, Some((block, 1, Vec::new(), 0)), piece.attempt);
        } else {
            self.job_fail(piece.job, error);
        }
    }

    /// Puts blocks that have been read where the job wants them.
    fn job_fill(&mut self, job: u64, first: BlockNo, data: &Buf, count: u64) {
        let Some(job) = self.reads.jobs.get_mut(&job) else {
            return;
        };
        let (from, to) = (first.offset().max(job.offset), job.offset + job.len as u64);
        let to = (first.offset() + (count * BLOCK_BYTES).min(data.len() as u64)).min(to);
        let len = (to - from) as usize;
        let skip = (from - first.offset()) as usize;
        if len == job.len {
            job.whole = Some(data.slice(skip, len));
            return;
        }
        let out = job.out.get_or_insert_with(|| BufMut::zeroed(job.len));
        let at = (from - job.offset) as usize;
        out[at..at + len].copy_from_slice(&data[skip..skip + len]);
    }

    fn job_fail(&mut self, job: u64, error: IoError) {
        if let Some(job) = self.reads.jobs.get_mut(&job) {
            job.error.get_or_insert(error);
        }
    }

    /// One of the things that the job waited for is over.
    fn job_step(&mut self, key: u64) {
        let Some(job) = self.reads.jobs.get_mut(&key) else {
            return;
        };
        job.outstanding -= 1;
        if job.outstanding > 0 {
            return;
        }
        let Some(job) = self.reads.jobs.remove(&key) else {
            return;
        };
        let result = match (job.error, job.whole, job.out) {
            (Some(error), ..) => Err(error),
            (None, Some(whole), _) => Ok(whole),
            (None, None, Some(out)) => Ok(out.freeze()),
            (None, None, None) => Err(IoError::new(ErrorKind::Io, "read without data")),
        };
        match job.reader {
            Reader::Base { part, is_first } => self.base_read(part, is_first, result),
            Reader::Client(id) => {
                match result.is_ok() {
                    true => self.figures.reads += 1,
                    false => self.figures.errors += 1,
                }
                self.effects.push(Effect::Reply { id, result: result.map(Reply::Data) });
            }
        }
    }
}
