//! Reads: the newest acknowledged version of each block, from the log or from the backing (P2).

use forebay_block::{BLOCK_BYTES, BlockNo, Buf, BufMut, DeviceResult, ErrorKind, IoError, blocks_of};
use forebay_policy::Issuer;

use crate::interface::{PartKey, RequestId, Role};
use crate::map::Map;
use crate::map::member::Member;
use crate::map::segments::{DIRTY, SlotKind};
use crate::mutation::Mutation;
use crate::reading::pieces::{Client, Piece, lies_behind};
use crate::reading::{Reading, Step, Told};
use crate::tables::Table;

/// How often a block is asked for before its read fails: once, again, and twice more if it moved meanwhile.
const ATTEMPTS_MAX: u32 = 4;
/// Longest device read of one piece.
const PIECE_BLOCKS_MAX: u64 = 1024;

/// Names a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct JobKey(u64);

/// Who gets the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    Client(RequestId),
    /// A block that a part of a request covers only in part: its first, or its last.
    Base {
        part: PartKey,
        is_first: bool,
    },
}

struct Job {
    reader: Reader,
    issuer: Issuer,
    offset: u64,
    len: usize,
    out: Option<BufMut>,
    /// The whole answer, if one piece brought it: no copy then.
    whole: Option<Buf>,
    outstanding: u32,
    error: Option<IoError>,
}

/// Reads under way.
#[derive(Default)]
pub(super) struct Reads {
    jobs: Table<JobKey, Job>,
    next: u64,
}

impl Reads {
    pub(super) fn is_idle(&self) -> bool {
        self.jobs.is_empty()
    }

    /// The requests of clients that wait for data.
    pub(super) fn clients(&self) -> impl Iterator<Item = RequestId> {
        self.jobs.values().filter_map(|job| match job.reader {
            Reader::Client(id) => Some(id),
            Reader::Base { .. } => None,
        })
    }

    pub(super) fn issuer_of(&self, job: JobKey) -> Issuer {
        self.jobs.get(&job).map(|job| job.issuer).unwrap_or_default()
    }
}

/// What a block's version in the log is to a reader.
enum Lookup {
    Missing,
    Zero,
    Lost,
    Data(Member),
}

impl Reading {
    pub(super) fn begin_read(
        &mut self,
        (reader, issuer): (Reader, Issuer),
        offset: u64,
        len: usize,
        map: &mut Map,
        step: &mut Step,
    ) {
        self.reads.next += 1;
        let key = JobKey(self.reads.next);
        let job = Job { reader, issuer, offset, len, out: None, whole: None, outstanding: 1, error: None };
        self.reads.jobs.insert(key, job);
        let (first, count) = blocks_of(offset, len as u64);
        self.read_blocks(key, (first, count), 1, map, step);
        self.job_goes_on(key, step);
    }

    fn lookup(&self, block: BlockNo, map: &mut Map) -> Lookup {
        let Some(slot) = map.lookup(block) else {
            map.missed(block);
            return Lookup::Missing;
        };
        map.used(slot);
        match map.segments().slot(slot).kind() {
            SlotKind::Zero => Lookup::Zero,
            SlotKind::Poison if self.planted.is(Mutation::ReadsLostAsZeroes) => Lookup::Zero,
            SlotKind::Poison => Lookup::Lost,
            SlotKind::Data => Lookup::Data(map.member(slot, &self.layout)),
        }
    }

    /// Starts the pieces for a range of blocks; neighbours that lie together are read together.
    fn read_blocks(
        &mut self,
        job: JobKey,
        (first, count): (BlockNo, u64),
        attempt: u32,
        map: &mut Map,
        step: &mut Step,
    ) {
        let mut run: Option<Piece> = None;
        for block in (first.0..first.0 + count).map(BlockNo) {
            let found = self.lookup(block, map);
            let joins = match (&run, &found) {
                (Some(piece), _) if piece.count >= PIECE_BLOCKS_MAX => false,
                (Some(piece), Lookup::Data(version)) => {
                    piece.versions.first().is_some_and(|first| lies_behind(first, piece.count, version))
                }
                (Some(piece), Lookup::Missing) => piece.is_of_backing(),
                _ => false,
            };
            if !joins {
                self.start_piece(run.take(), map, step);
            }
            let versions = match found {
                Lookup::Data(version) => Some(version),
                Lookup::Missing => None,
                Lookup::Zero => {
                    self.job_fill(job, block, &Buf::zeroed(BLOCK_BYTES as usize), 1);
                    continue;
                }
                Lookup::Lost => {
                    self.job_fail(job, IoError::new(ErrorKind::Corrupt, "read of a lost block"));
                    continue;
                }
            };
            let piece = run.get_or_insert_with(|| Piece {
                client: Client::Read(job),
                first: block,
                count: 0,
                versions: Vec::new(),
                attempt,
            });
            piece.versions.extend(versions);
            piece.count += 1;
        }
        self.start_piece(run.take(), map, step);
    }

    fn start_piece(&mut self, piece: Option<Piece>, map: &mut Map, step: &mut Step) {
        let Some(piece) = piece else { return };
        if let Client::Read(job) = piece.client
            && let Some(job) = self.reads.jobs.get_mut(&job)
        {
            job.outstanding += 1;
        }
        let from = match piece.versions.first() {
            None => {
                let offset = piece.first.offset();
                (Role::Backing, offset, (piece.count * BLOCK_BYTES).min(self.volume_bytes - offset))
            }
            Some(version) => {
                map.segments_mut().pin(version.slot.segment());
                (Role::Cache, version.place, piece.count * BLOCK_BYTES)
            }
        };
        self.start(piece, from, step);
    }

    pub(super) fn read_ended(
        &mut self,
        job: JobKey,
        piece: Piece,
        result: DeviceResult,
        map: &mut Map,
        step: &mut Step,
    ) {
        match result {
            Ok(None) => self.job_fail(job, IoError::new(ErrorKind::Io, "read without data")),
            Ok(Some(buf)) if piece.is_of_backing() => {
                step.seen.missed_bytes += buf.len() as u64;
                self.fill_from_backing(job, &piece, &buf, map, step);
            }
            Ok(Some(buf)) => {
                step.seen.hit_bytes += buf.len() as u64;
                self.fill_checked(job, &piece, &buf, map, step);
            }
            Err(error) if piece.is_of_backing() => {
                step.seen.backing_errors += 1;
                self.job_fail(job, error);
            }
            Err(error) => {
                step.seen.cache_errors += 1;
                for version in &piece.versions {
                    self.block_failed(job, piece.attempt, version, error.clone(), map, step);
                }
            }
        }
        if let Some(version) = piece.versions.first() {
            map.segments_mut().unpin(version.slot.segment());
        }
        self.job_goes_on(job, step);
    }

    /// Takes what the backing said of blocks that are still not cached. One that was cached meanwhile is read from
    /// there: the backing may have shown a bypass that is still under way, and later reads would go back to the
    /// version in the log.
    fn fill_from_backing(&mut self, job: JobKey, piece: &Piece, buf: &Buf, map: &mut Map, step: &mut Step) {
        let cached = |map: &Map, block| map.lookup(block).is_some();
        let planted = self.planted;
        let trusting =
            planted.is(Mutation::IgnoresRacingFill) || planted.is(Mutation::ReadsStaleInsteadOfDamaged);
        if trusting || !(0..piece.count).any(|n| cached(map, piece.first.plus(n))) {
            self.job_fill(job, piece.first, buf, piece.count);
            return;
        }
        for n in 0..piece.count {
            let block = piece.first.plus(n);
            if cached(map, block) {
                self.read_blocks(job, (block, 1), piece.attempt, map, step);
            } else {
                let at = (n * BLOCK_BYTES) as usize;
                self.job_fill(job, block, &buf.slice(at, (buf.len() - at).min(BLOCK_BYTES as usize)), 1);
            }
        }
    }

    /// Takes what the cache has brought, as far as it is what it should be.
    fn fill_checked(&mut self, job: JobKey, piece: &Piece, buf: &Buf, map: &mut Map, step: &mut Step) {
        let damaged = piece.damaged(buf, self.planted.is(Mutation::ReadsUnchecked));
        if damaged.is_empty() {
            self.job_fill(job, piece.first, buf, piece.count);
            return;
        }
        for (n, version) in piece.versions.iter().enumerate() {
            if damaged.binary_search(&n).is_err() {
                let block_bytes = BLOCK_BYTES as usize;
                self.job_fill(job, version.block, &buf.slice(n * block_bytes, block_bytes), 1);
            } else {
                step.seen.checksum_failures += 1;
                let error = IoError::new(ErrorKind::Corrupt, "read from the cache");
                self.block_failed(job, piece.attempt, version, error, map, step);
            }
        }
    }

    /// A block could not be read from the log. It is tried again, for it may have moved or the error may pass; then
    /// a clean one is read from the backing, and a dirty one is an error: never stale or foreign data.
    fn block_failed(
        &mut self,
        job: JobKey,
        attempt: u32,
        version: &Member,
        error: IoError,
        map: &mut Map,
        step: &mut Step,
    ) {
        let block = version.block;
        let stale = self.planted.is(Mutation::ReadsStaleInsteadOfDamaged);
        let unmoved = map.lookup(block) == Some(version.slot);
        if attempt < 2 || (!unmoved && attempt < ATTEMPTS_MAX) {
            self.read_blocks(job, (block, 1), attempt + 1, map, step);
        } else if unmoved && (!map.segments().slot(version.slot).has(DIRTY) || stale) {
            // From the second attempt on a piece is of one block.
            step.unreadable = Some(block);
            let (client, versions) = (Client::Read(job), Vec::new());
            self.start_piece(Some(Piece { client, first: block, count: 1, versions, attempt }), map, step);
        } else {
            self.job_fail(job, error);
        }
    }

    /// Puts blocks that have been read where the job wants them.
    fn job_fill(&mut self, job: JobKey, first: BlockNo, data: &Buf, count: u64) {
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

    fn job_fail(&mut self, job: JobKey, error: IoError) {
        if let Some(job) = self.reads.jobs.get_mut(&job) {
            job.error.get_or_insert(error);
        }
    }

    /// One of the things that the read waited for is over (G3).
    fn job_goes_on(&mut self, key: JobKey, step: &mut Step) {
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
        step.told = Some(Told::Read(job.reader, result));
    }
}
