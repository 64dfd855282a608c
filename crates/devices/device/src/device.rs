//! What a device is to the volume that owns it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use forebay_block::{Class, DeviceOp, DeviceResult, IoError, Nanos};

use crate::checkpoints::{CheckpointChange, CheckpointDone, CheckpointError};
use crate::clock::Clock;
use crate::ring::Ring;
use crate::store_figures::Billed;
use crate::survey::Survey;

/// What a device is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// A regular file, through io_uring.
    File,
    /// A block device, through io_uring.
    Block,
    /// A file or persistent memory, mapped into the process.
    Mapped,
    /// A store on another machine.
    Remote,
}

/// What a durable write to the device outlives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Survives {
    /// A power cut, as far as the medium honours flush and FUA.
    PowerCut,
    /// The death of the process; of a power cut nothing is known, because something that cannot be looked into decides: the server of a
    /// file system or of an export, or what is below an overlay.
    Unknown,
    /// The death of the process, but neither a reboot nor a power cut: the medium is main memory.
    ProcessDeath,
}

/// What is known about an open device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Path or address, as given.
    pub name: String,
    /// What it is made of.
    pub kind: DeviceKind,
    /// There are several ways to it, which may lead to several devices by mistake, see [`shows_in_background`].
    pub several_ways: bool,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Offsets and lengths of writes must be multiples of this; a power of two, at least 512.
    pub logical_block: u32,
    /// Logical block in bytes that a volume on it has, so that what is made there can be used on the device alone: at most
    /// `logical_block`, and less where that is only caution.
    pub native_block: u32,
    /// Writes that are multiples of this cost no read-modify-write in the device; at least `logical_block`.
    pub physical_block: u32,
    /// Background writes are best whole and aligned pieces of this size, in bytes: a power of two. `None` where that makes no difference.
    pub unit_bytes: Option<u64>,
    /// Whether I/O bypasses the kernel's page cache.
    pub direct: bool,
    /// Whether the device may lose completed writes that are neither durable nor flushed when power is cut.
    pub volatile_cache: bool,
    /// Whether it loses them also when this process dies, as it has them in its memory.
    pub forgets: bool,
    /// Whether it takes a [`DeviceOp::Commit`].
    pub atomic: bool,
    /// Operations that it takes at a time, at least 1: none of so many waits for another's end before the kernel, the server or the model has
    /// it. Further ones wait in the order in which they were submitted, whoever waits for them.
    pub depth: usize,
    /// What a durable write outlives.
    pub survives: Survives,
    /// The same for a person: one phrase.
    pub durability: &'static str,
    /// What it costs, where requests and bytes are paid for.
    pub billed: Option<Billed>,
}

/// A durable write of a file beside a device, see [`Device::beside`].
#[derive(Clone, Copy, Debug)]
pub enum Beside<'a> {
    /// It is about to be carried out.
    Begins {
        /// First byte in the file.
        offset: u64,
        /// What is written.
        bytes: &'a [u8],
    },
    /// It has ended.
    Ended {
        /// It is durable; else its outcome is not known.
        well: bool,
    },
}

/// What is behind a device does not do what it is asked, see [`Device::away`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Away {
    /// For how long.
    pub lasts: Duration,
    /// How it is known, where more is known than that nothing answers.
    pub why: Option<IoError>,
    /// It is there, and has said that it will not do it: `why` is its answer.
    pub refuses: bool,
}

impl Away {
    /// Nothing answers.
    pub const fn silent(lasts: Duration) -> Self {
        Self { lasts, why: None, refuses: false }
    }
}

/// Whether these bytes are of the device that its owner had opened, as its owner left it.
pub type IsOurs = dyn Fn(&[u8]) -> bool + Send + Sync;

/// What a device must show when it comes back after it was away, see [`Device::recognize_by`].
#[derive(Clone)]
pub struct Sign {
    /// First byte on the device, a multiple of 4096.
    pub offset: u64,
    /// How many bytes are read there, a multiple of 4096, at most 64 KiB.
    pub len: u32,
    /// Judges them.
    pub is_ours: Arc<IsOurs>,
}

/// A device as a volume's thread drives it: operations go in, their ends come out of [`Device::poll`].
///
/// Operations that are under way at the same time may be carried out in any order; who needs an order waits for the
/// first one's end. Dropping a device with operations under way abandons their results, not their effects.
pub trait Device {
    /// Size, alignment, durability.
    fn info(&self) -> &DeviceInfo;

    /// Starts an operation. `tag` is the caller's name for it, unique while it is under way; `now` is the time of the
    /// clock that [`Device::poll`] is called with.
    ///
    /// `class` goes on to where it is understood: as the I/O priority of files and block devices, and as the connection of NBD exports
    /// with a critical address. It says nothing about order.
    fn submit(&mut self, tag: u64, op: DeviceOp, class: Class, now: Nanos);

    /// Appends the operations that have ended since the last call, with the tags they were submitted with.
    fn poll(&mut self, now: Nanos, done: &mut Vec<(u64, DeviceResult)>);

    /// When [`Device::poll`] must be called even if the [`Ring`] reports nothing: a time in the past means at once,
    /// `None` means that only the ring's completions matter.
    fn deadline(&self) -> Option<Nanos> {
        None
    }

    /// Operations that were submitted and that nobody but this device has yet, see [`DeviceInfo::depth`].
    fn waiting(&self) -> usize {
        0
    }

    /// What is behind the device is known to be away, as a server to which the connection is lost, or to refuse what it is asked;
    /// `None` while all is well, as far as is known without an operation.
    fn away(&self) -> Option<Away> {
        None
    }

    /// Makes a named checkpoint of what is behind the device, or gives one up. Its end comes out of [`Device::poll`] as that of an operation
    /// does. There is one change at a time.
    fn checkpoint(&mut self, change: CheckpointChange, done: CheckpointDone, now: Nanos) {
        let _ = (change, now);
        done(Err(CheckpointError::Unsupported));
    }

    /// Whether another host has taken over what is behind the device, for good: all operations on it end with
    /// [`ErrorKind::Fenced`](forebay_block::ErrorKind::Fenced). It wakes its owner when it learns of that.
    fn is_fenced(&self) -> bool {
        false
    }

    /// Where the device has data and where holes, for clients that want to skip holes; to be asked on another thread. A device that cannot tell
    /// has data everywhere.
    ///
    /// # Errors
    /// There is no room for one more open file.
    fn survey(&self) -> io::Result<Survey> {
        Ok(Survey::unknown(self.info().size_bytes))
    }

    /// Is told of a durable write of what belongs to the device but lies in a file beside it: the label of a backing
    /// file. For decorators that record; a device itself has nothing to do.
    fn beside(&mut self, what: Beside<'_>) {
        let _ = what;
    }

    /// From now on a device that was away and comes back is used only if it shows this; meanwhile, operations fail. For stores on
    /// other machines: behind the name may be another one, or one that somebody else has taken over. Other devices do not come back.
    fn recognize_by(&mut self, sign: Option<Sign>) {
        let _ = sign;
    }

    /// Takes the room of a whole file on its file system, so that no later write finds none. What is no file, and a file system that
    /// can reserve nothing, is left as it is.
    ///
    /// # Errors
    /// There is no room.
    fn reserve(&self) -> io::Result<()> {
        Ok(())
    }

    /// Changes the size of a device with no operation under way; what is added reads as zeroes, and has its room where the file
    /// system can reserve it. A failure leaves the size as it was.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] if it is not a file; there is no room.
    fn resize(&mut self, size_bytes: u64) -> io::Result<()> {
        let _ = size_bytes;
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Carries out one operation and waits for its end. For formatting and for superblocks, not for serving.
///
/// # Errors
/// Those of the operation.
///
/// # Panics
/// If the device has other operations under way: their results would be lost.
pub fn run_alone(ring: &Ring, clock: &Clock, device: &mut dyn Device, op: DeviceOp) -> DeviceResult {
    run_as(ring, clock, device, op, Class::Foreground)
}

/// Whether a device shows these bytes, which [`run_alone`] has durably written there, also to what nobody waits for. A way of its own for
/// that may lead to another device by mistake. `offset` and length are whole blocks of the device. One with
/// [a single way](DeviceInfo::several_ways) to it is not asked.
///
/// # Errors
/// They cannot be read.
///
/// # Panics
/// As [`run_alone`].
pub fn shows_in_background(
    ring: &Ring,
    clock: &Clock,
    device: &mut dyn Device,
    offset: u64,
    bytes: &[u8],
) -> Result<bool, IoError> {
    if !device.info().several_ways {
        return Ok(true);
    }
    let read = DeviceOp::Read { offset, len: bytes.len() };
    Ok(run_as(ring, clock, device, read, Class::Background)?.is_some_and(|read| read[..] == *bytes))
}

fn run_as(ring: &Ring, clock: &Clock, device: &mut dyn Device, op: DeviceOp, class: Class) -> DeviceResult {
    const TAG: u64 = u64::MAX;
    let mut done = Vec::with_capacity(1);
    device.submit(TAG, op, class, clock.now());
    loop {
        device.poll(clock.now(), &mut done);
        if let Some((tag, result)) = done.pop() {
            assert_eq!((tag, done.len()), (TAG, 0), "run_alone on a busy device");
            return result;
        }
        let now = clock.now();
        let timeout = device.deadline().map(|at| Duration::from_nanos(at.since(now)));
        ring.submit_and_wait(timeout, || true)
            .map_err(|e| crate::transfer::system_error(&e, "waiting for a device", None))?;
    }
}
