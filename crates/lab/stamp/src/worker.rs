//! One writer: random requests on a part of the volume that is its own, one after the other.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use forebay_record::monotonic_ns;

use crate::acks::{AckLog, Asked};
use crate::expectation::Expectation;
use crate::random::Random;
use crate::report::Report;
use crate::stamp::{SECTOR_BYTES, Stamp, Version};
use crate::target::{Failure, Target};
use crate::write::WriteOptions;

/// A share of the part, 1/n, which gets half of the requests, so that much is overwritten.
const HOT_SHARE: u64 = 8;

/// Once in so many times a request is made of whole blocks of 4 KiB, as most users' are.
const ALIGNED_ONE_IN: u64 = 3;

/// Sectors of a block.
const BLOCK_SECTORS: u64 = 8;

/// What the workers have in common.
pub(crate) struct Shared<'a> {
    pub(crate) options: &'a WriteOptions,
    pub(crate) volume: u64,
    pub(crate) round: u32,
    /// The last sequence number that was used.
    pub(crate) seq: AtomicU64,
    pub(crate) end: Instant,
    /// Where acknowledgements are noted.
    pub(crate) acks: Option<AckLog>,
}

/// See the module's documentation.
pub(crate) struct Worker<'a> {
    shared: &'a Shared<'a>,
    target: Box<dyn Target>,
    part: Expectation,
    random: Random,
    buffer: Vec<u8>,
    report: Report,
}

enum Step {
    Write,
    Read,
    Zero,
    Flush,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(shared: &'a Shared<'a>, target: Box<dyn Target>, part: Expectation, seed: u64) -> Self {
        Self {
            shared,
            target,
            part,
            random: Random::new(seed),
            buffer: Vec::new(),
            report: Report::default(),
        }
    }

    /// Works until the time is up, the requests are done, or nobody answers any more.
    pub(crate) fn run(mut self) -> (Expectation, Report) {
        let options = self.shared.options;
        for _ in 0..options.operations / options.threads {
            if Instant::now() >= self.shared.end || self.report.lost {
                break;
            }
            if options.stop_on_error && !self.report.errors_allowed.is_empty() {
                self.report.lost = true;
                break;
            }
            let began = Instant::now();
            self.step();
            self.report.took(began.elapsed());
        }
        (self.part, self.report)
    }

    fn step(&mut self) {
        let (first, sectors) = self.extent();
        match self.choose() {
            Step::Write => self.write(first, sectors),
            Step::Read => self.read(first, sectors),
            Step::Zero => self.zero(first, sectors),
            Step::Flush => self.flush(first),
        }
    }

    fn choose(&mut self) -> Step {
        let mix = self.shared.options.mix;
        let at = self.random.below(mix.total());
        match () {
            () if at < mix.write => Step::Write,
            () if at < mix.write + mix.read => Step::Read,
            () if at < mix.write + mix.read + mix.zero => Step::Zero,
            () => Step::Flush,
        }
    }

    /// Sectors within the part: short requests are as likely as long ones.
    fn extent(&mut self) -> (u64, u64) {
        let longest = (self.shared.options.largest_bytes / SECTOR_BYTES as u64).clamp(1, self.part.sectors());
        let magnitude = 1 << self.random.below(u64::from(longest.ilog2()) + 1);
        let mut sectors = (magnitude + self.random.below(magnitude)).min(longest);
        let hot = self.random.one_in(2);
        let width = if hot { (self.part.sectors() / HOT_SHARE).max(sectors) } else { self.part.sectors() };
        let mut first = self.part.first() + self.random.below(width - sectors + 1);
        if self.random.one_in(ALIGNED_ONE_IN) && sectors >= BLOCK_SECTORS * 2 {
            let end = (first + sectors) / BLOCK_SECTORS * BLOCK_SECTORS;
            first = first.next_multiple_of(BLOCK_SECTORS);
            sectors = end - first;
        }
        (first, sectors)
    }

    /// `at` is for reports.
    fn flush(&mut self, at: u64) {
        let issued_ns = monotonic_ns();
        let result = self.target.flush();
        self.answered(issued_ns, Asked::Flush, result.is_ok());
        match result {
            Ok(()) => self.report.flushes += 1,
            Err(e) => self.failed("flush", at, &e),
        }
    }

    fn answered(&self, issued_ns: u64, asked: Asked, acknowledged: bool) {
        if let Some(acks) = &self.shared.acks {
            acks.answered(issued_ns, asked, acknowledged);
        }
    }

    fn next_seq(&self) -> u64 {
        self.shared.seq.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn write(&mut self, first: u64, sectors: u64) {
        let seq = self.next_seq();
        self.buffer.resize(sectors as usize * SECTOR_BYTES, 0);
        for (sector, bytes) in (first..).zip(self.buffer.chunks_exact_mut(SECTOR_BYTES)) {
            let stamp = Stamp { volume: self.shared.volume, round: self.shared.round, sector, seq };
            stamp.put(bytes);
        }
        let fua = self.random.one_in(8);
        let (issued_ns, version) = (monotonic_ns(), Version::stamped(seq));
        let result = self.target.write(first * SECTOR_BYTES as u64, &self.buffer, fua);
        self.answered(issued_ns, Asked::Change { first, sectors, version, fua }, result.is_ok());
        if result.is_ok() {
            self.report.writes += 1;
            self.report.bytes_written += self.buffer.len() as u64;
        }
        self.settle("write", first, sectors, version, result);
    }

    fn zero(&mut self, first: u64, sectors: u64) {
        let seq = self.next_seq();
        let unmap = self.random.one_in(2);
        let (offset, len) = (first * SECTOR_BYTES as u64, sectors * SECTOR_BYTES as u64);
        let (issued_ns, version) = (monotonic_ns(), Version::zeroed(seq));
        let result = self.target.zero(offset, len, unmap);
        self.answered(issued_ns, Asked::Change { first, sectors, version, fua: false }, result.is_ok());
        self.report.zeroes += u64::from(result.is_ok());
        self.settle("zero", first, sectors, version, result);
    }

    fn settle(
        &mut self,
        operation: &str,
        first: u64,
        sectors: u64,
        version: Version,
        result: Result<(), Failure>,
    ) {
        match result {
            Ok(()) => self.part.acknowledged(first, sectors, version),
            Err(e) => {
                self.part.unknown(first, sectors, version);
                self.failed(operation, first, &e);
            }
        }
    }

    fn read(&mut self, first: u64, sectors: u64) {
        self.buffer.resize(sectors as usize * SECTOR_BYTES, 0);
        if let Err(e) = self.target.read(first * SECTOR_BYTES as u64, &mut self.buffer) {
            self.failed("read", first, &e);
            return;
        }
        self.report.reads += 1;
        for (sector, bytes) in (first..).zip(self.buffer.chunks_exact(SECTOR_BYTES)) {
            self.report.sectors_compared += 1;
            if let Err(wrong) = self.part.read(sector, bytes, self.shared.volume, false) {
                self.report.wrong(&wrong, "while writing");
            }
        }
    }

    fn failed(&mut self, operation: &str, at: u64, failure: &Failure) {
        self.report.failed(operation, at, failure, &self.shared.options.allowed);
    }
}
