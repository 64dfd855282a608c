//! What a volume acknowledged, and when: a file beside the state, so that the volume can be judged as of any instant of
//! the run. Times are those of the monotonic clock, which a record of the devices has, too.
//!
//! The file is for this program alone. Words of 64 bits: magic, volume, sectors; then for each request kind, issued,
//! ended, first sector, sectors, sequence number.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use forebay_record::monotonic_ns;

use crate::stamp::Version;

const MAGIC: u64 = 0x3173_6b63_4173_614d;
const WORDS: usize = 6;

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// To give these sectors a version; `fua` if it must be durable when it is acknowledged.
    Change { first: u64, sectors: u64, version: Version, fua: bool },
    /// To make everything durable that was acknowledged before.
    Flush,
}

/// A request that has been answered, or never will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// When it was about to be sent, in nanoseconds of the monotonic clock.
    pub(crate) issued_ns: u64,
    /// When its acknowledgement had arrived; `None` if none has.
    pub(crate) acknowledged_ns: Option<u64>,
    pub(crate) asked: Asked,
}

impl Request {
    fn to_words(self) -> [u64; WORDS] {
        let ended = self.acknowledged_ns.unwrap_or(0);
        match self.asked {
            Asked::Change { first, sectors, version, fua } => {
                [1 + u64::from(fua), self.issued_ns, ended, first, sectors, version.to_bits()]
            }
            Asked::Flush => [3, self.issued_ns, ended, 0, 0, 0],
        }
    }

    /// Whether it is one of a volume of so many sectors.
    fn fits(&self, volume_sectors: u64) -> bool {
        match self.asked {
            Asked::Change { first, sectors, .. } => {
                first.checked_add(sectors).is_some_and(|end| end <= volume_sectors)
            }
            Asked::Flush => true,
        }
    }

    fn of_words([kind, issued_ns, ended, first, sectors, bits]: [u64; WORDS]) -> Option<Self> {
        let asked = match kind {
            1 | 2 => Asked::Change { first, sectors, version: Version::from_bits(bits), fua: kind == 2 },
            3 => Asked::Flush,
            _ => return None,
        };
        Some(Self { issued_ns, acknowledged_ns: (ended > 0).then_some(ended), asked })
    }
}

/// The file while it is written, by all workers.
pub(crate) struct AckLog(Mutex<(BufWriter<File>, io::Result<()>)>);

impl AckLog {
    pub(crate) fn create(path: &Path, volume: u64, sectors: u64) -> io::Result<Self> {
        let mut file = BufWriter::new(File::create(path)?);
        for word in [MAGIC, volume, sectors] {
            file.write_all(&word.to_le_bytes())?;
        }
        Ok(Self(Mutex::new((file, Ok(())))))
    }

    /// Notes a request that was issued at `issued_ns` and has just been answered.
    pub(crate) fn answered(&self, issued_ns: u64, asked: Asked, acknowledged: bool) {
        let request = Request { issued_ns, acknowledged_ns: acknowledged.then(monotonic_ns), asked };
        let bytes: Vec<u8> = request.to_words().into_iter().flat_map(u64::to_le_bytes).collect();
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if log.1.is_ok() {
            log.1 = log.0.write_all(&bytes);
        }
    }

    /// Everything has been noted.
    pub(crate) fn finish(self) -> io::Result<()> {
        let (mut file, result) = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        result.and_then(|()| file.flush())
    }
}

/// The file, read.
#[derive(Debug)]
pub(crate) struct Acks {
    pub(crate) volume: u64,
    pub(crate) sectors: u64,
    pub(crate) requests: Vec<Request>,
}

impl Acks {
    pub(crate) fn load(path: &Path) -> io::Result<Self> {
        Self::parse(&fs::read(path)?).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{} is no list of acknowledgements", path.display()),
            )
        })
    }

    /// `None` if this is no such list, or not a whole one.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let (words, []) = bytes.as_chunks::<8>() else {
            return None;
        };
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let [MAGIC, volume, sectors, rest @ ..] = &words[..] else {
            return None;
        };
        let (requests, []) = rest.as_chunks::<WORDS>() else {
            return None;
        };
        let requests: Option<Vec<Request>> =
            requests.iter().map(|words| Request::of_words(*words).filter(|r| r.fits(*sectors))).collect();
        Some(Self { volume: *volume, sectors: *sectors, requests: requests? })
    }
}
