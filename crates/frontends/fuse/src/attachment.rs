//! A loop device on an export: the kernel's block device of a volume.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use forebay_block::Frontend;

use crate::apart;
use crate::connection::Connection;
use crate::error::FuseError;
use crate::export::resolve;
use crate::knobs::{self, Knob};
use crate::loop_device::{self, LoopDevice};
use crate::mounts::{self, Unmount};
use crate::partitions;
use crate::queue::{Queue, QueueLimits, QueueSetup};

/// Choices of an attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachOptions {
    /// Let the loop device do asynchronous direct I/O on the file. Without it, or if the kernel cannot, it carries out one
    /// request after the other; that is slow, and just as right.
    pub direct_io: bool,
    /// Logical block of the device in bytes, that of the volume: a power of two from 512 to 4096.
    pub logical_block: u32,
    /// How the device's queue is set.
    pub queue: QueueLimits,
    /// File in which the kernel's settings are kept that were there before, for whoever comes after a daemon that was killed; it ends in
    /// `.knobs`. `None`: they are not kept.
    pub record: Option<PathBuf>,
}

impl Default for AttachOptions {
    fn default() -> Self {
        Self { direct_io: true, logical_block: 512, queue: QueueLimits::default(), record: None }
    }
}

/// A loop device on an export.
///
/// The device is made so that the kernel clears it when nobody has it open, and is held open by a thread of this process, apart from
/// the others. So when the process dies, the device goes, at the latest when the file system on it is unmounted. Dropping an
/// `Attachment` does the same.
pub struct Attachment {
    file: PathBuf,
    number: u32,
    device: PathBuf,
    direct_io: bool,
    queue: QueueSetup,
    /// To the keeper, who lets go of the device when nobody is left to tell it anything.
    commands: Mutex<Option<SyncSender<Command>>>,
}

/// What the keeper is asked to do.
enum Command {
    Detach { unmount: bool, answer: SyncSender<Result<(), FuseError>> },
}

/// What the keeper has made.
struct Made {
    number: u32,
    direct_io: bool,
    queue: QueueSetup,
}

impl Attachment {
    /// Puts a loop device on the export at `file`, after it has put right what killed daemons have left ([`Attachment::put_right`]).
    ///
    /// # Errors
    /// [`FuseError::System`] with what failed, or [`FuseError::NoFlush`]; nothing is left behind then.
    pub fn attach(file: &Path, options: AttachOptions) -> Result<Self, FuseError> {
        let file = resolve(file)?;
        let failed = |e| FuseError::system("attach a loop device to", &file, e);
        let (made_sender, made) = mpsc::sync_channel(1);
        let (commands, commands_receiver) = mpsc::sync_channel(1);
        let path = file.clone();
        apart::spawn("forebay-loop", move |left| {
            keep(left, &path, &options, &made_sender, &commands_receiver)
        })
        .map_err(failed)?;
        let made: Made = made.recv().map_err(|_| failed(io::ErrorKind::BrokenPipe.into()))??;
        let Made { number, direct_io, queue } = made;
        let (device, commands) = (loop_device::device_path(number), Mutex::new(Some(commands)));
        Ok(Self { device, file, number, direct_io, queue, commands })
    }

    /// Puts right what daemons that were killed have left on loop devices, by their records in `directory` (see [`AttachOptions::record`]); these
    /// devices. What a live daemon has attached is left alone, and so is what has had another user since.
    ///
    /// # Errors
    /// [`FuseError::System`] if no thread can be made for it.
    pub fn put_right(directory: &Path) -> Result<Vec<PathBuf>, FuseError> {
        let failed = |e| FuseError::system("look for records of killed daemons in", directory, e);
        let (sender, put_right) = mpsc::sync_channel(1);
        let path = directory.to_owned();
        apart::spawn("forebay-knobs", move |left| {
            // The receiver waits for exactly this.
            let _ = sender.send(left.map(|()| knobs::put_right(&path)));
        })
        .map_err(failed)?;
        put_right.recv().map_err(|_| failed(io::ErrorKind::BrokenPipe.into()))?.map_err(failed)
    }

    /// What was set of the kernel for the device, and what was there before.
    pub fn knobs(&self) -> &[Knob] {
        &self.queue.knobs
    }

    /// `/dev/loopN`.
    pub fn device_path(&self) -> &Path {
        &self.device
    }

    /// Whether the device does direct I/O.
    pub fn direct_io(&self) -> bool {
        self.direct_io
    }

    /// How the device's queue is set up.
    pub fn queue(&self) -> &QueueSetup {
        &self.queue
    }

    /// Writes back what the kernel holds of the device, clears it and waits until it is gone. With `unmount` the file systems
    /// on it are unmounted first. May be tried again after an error, and does nothing if the device is gone.
    ///
    /// # Errors
    /// [`FuseError::Busy`] if a file system, swap or the like is on it, or if unmounting is refused: nothing has changed, or fewer
    /// file systems are mounted. [`FuseError::StillOpen`] if a program has it open: it will go when that program closes it.
    /// [`FuseError::System`] if writing back fails; dropping the `Attachment` lets go of the device all the same.
    pub fn detach(&self, unmount: bool) -> Result<(), FuseError> {
        let (answer, result) = mpsc::sync_channel(1);
        // Once the keeper has let go of the device it is no longer there to be asked.
        let keeper = self.commands.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let asked = keeper.and_then(|keeper| keeper.send(Command::Detach { unmount, answer }).ok());
        match asked.and_then(|()| result.recv().ok()) {
            Some(outcome) => outcome,
            None if loop_device::wait_cleared(self.number, &self.file) => Ok(()),
            None => Err(FuseError::StillOpen { device: self.device.clone() }),
        }
    }
}

impl Frontend for Attachment {
    fn kind(&self) -> &'static str {
        "block device"
    }

    /// None: it is made when somebody asks for it, and has the name that the kernel gives.
    fn addresses(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whoever still has the device open is waited for as long as the kernel writes back what it holds, and no longer.
    fn stop(&self, _: Duration) -> Result<(), String> {
        let stopped = self.detach(false);
        self.commands.lock().unwrap_or_else(PoisonError::into_inner).take();
        stopped.map_err(|e| e.to_string())
    }
}

/// The keeper's life, on a thread apart.
fn keep(
    left: io::Result<()>,
    path: &Path,
    options: &AttachOptions,
    made: &SyncSender<Result<Made, FuseError>>,
    commands: &Receiver<Command>,
) {
    let attached = left
        .map_err(|e| FuseError::system("attach a loop device to", path, e))
        .and_then(|()| make(path, options));
    let (device, mut queue, mut setup) = match attached {
        Ok(attached) => attached,
        Err(e) => {
            // The receiver waits for exactly this.
            let _ = made.send(Err(e));
            return;
        }
    };
    let connection = connection(path);
    let mut raised = Vec::new();
    if let Some(connection) = &connection {
        let (knobs, refused) = connection.raise(options.queue.requests_max);
        raised.clone_from(&knobs);
        setup.knobs.extend(knobs);
        setup.refused.extend(refused);
    }
    let result = Made { number: device.number, direct_io: device.direct_io, queue: setup };
    if made.send(Ok(result)).is_ok() {
        let waiting = wait_for_detach(&device, &mut queue, commands);
        queue.restore();
        if let Some(connection) = &connection {
            connection.restore(&raised);
        }
        let number = device.number;
        // Closed by us, the device clears itself when it is closed by all.
        drop(device);
        let cleared = loop_device::wait_cleared(number, path);
        queue.finish(cleared);
        if let Some(answer) = waiting {
            let still_open = || FuseError::StillOpen { device: loop_device::device_path(number) };
            // Whoever asked may have died of impatience.
            let _ = answer.send(if cleared { Ok(()) } else { Err(still_open()) });
        }
    }
}

/// The FUSE connection of the export at `path`, where the kernel shows its limits.
fn connection(path: &Path) -> Option<Connection> {
    let mount = mounts::mounted_on(path).ok()??;
    Connection::open(mount.device.1).ok()
}

/// A loop device with its queue. One that a former user has spoilt for good is made anew and tried once more.
fn make(path: &Path, options: &AttachOptions) -> Result<(LoopDevice, Queue, QueueSetup), FuseError> {
    let configure = || {
        let device = loop_device::configure(path, options.direct_io, options.logical_block);
        device.map_err(|e| FuseError::system("attach a loop device to", path, e))
    };
    let set_up = |device: &LoopDevice| {
        let name = loop_device::device_name(device.number);
        Queue::set_up(&name, device, &options.queue, options.record.as_deref())
    };
    let close = |device: LoopDevice| {
        let number = device.number;
        drop(device);
        loop_device::wait_cleared(number, path);
        number
    };
    if let Some(directory) = options.record.as_deref().and_then(Path::parent) {
        knobs::put_right(directory);
    }
    let device = configure()?;
    match set_up(&device) {
        Ok((queue, setup)) if !queue.spoilt => return Ok((device, queue, setup)),
        // If it cannot be made anew it is to be as it was.
        Ok((queue, _)) => {
            queue.restore();
            queue.forget();
        }
        Err(FuseError::NoFlush { .. }) => {}
        Err(e) => {
            close(device);
            return Err(e);
        }
    }
    // If somebody has it open it stays as it is, and the second time tells.
    let _ = loop_device::renew(close(device));
    let device = configure()?;
    match set_up(&device) {
        Ok((queue, setup)) => Ok((device, queue, setup)),
        Err(e) => {
            close(device);
            Err(e)
        }
    }
}

/// Returns when the device can be closed, with the one who waits for that; nobody, if the `Attachment` was dropped. Until then the device is held to
/// its share of dirty memory.
fn wait_for_detach(
    device: &LoopDevice,
    queue: &mut Queue,
    commands: &Receiver<Command>,
) -> Option<SyncSender<Result<(), FuseError>>> {
    loop {
        let command = match &mut queue.background {
            Some(background) => commands.recv_timeout(background.look()),
            None => commands.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        let Command::Detach { unmount, answer } = match command {
            Ok(command) => command,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return None,
        };
        match release(device, unmount) {
            Ok(()) => return Some(answer),
            Err(e) => {
                // Whoever asked may have died of impatience.
                let _ = answer.send(Err(e));
            }
        }
    }
}

/// Unmounts, if asked, and makes sure that the device can be closed without harm to anyone. A partition of it is a part of it.
fn release(device: &LoopDevice, unmount: bool) -> Result<(), FuseError> {
    let path = loop_device::device_path(device.number);
    let failed = |action| move |e| FuseError::system(action, &loop_device::device_path(device.number), e);
    let partitions = partitions::partitions_of(&loop_device::device_name(device.number))
        .map_err(failed("look up the partitions of"))?;
    let table = mounts::mount_table().map_err(failed("look up the mounts of"))?;
    // Some file systems show an anonymous device number and name the device only as their source.
    let on_it = |m: &&mounts::MountEntry| {
        let whole = m.device == (7, device.number) || m.source == path;
        whole || partitions.iter().any(|p| m.device == p.device || m.source == p.path)
    };
    for mount in table.iter().rev().filter(on_it) {
        let busy = |by| FuseError::Busy { what: path.clone(), by };
        let mount_point = mount.mount_point.display();
        if !unmount {
            return Err(busy(format!("mounted on {mount_point}")));
        }
        match mounts::unmount(&mount.mount_point, Unmount::IfUnused) {
            Ok(()) => {}
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {
                return Err(busy(format!("mounted on {mount_point}, where files are open")));
            }
            Err(e) => return Err(FuseError::system("unmount", &mount.mount_point, e)),
        }
    }
    match loop_device::is_claimed(device.number) {
        Ok(false) => {}
        Ok(true) => {
            let by = "by swap, a mapping, or a mount in another namespace".to_owned();
            return Err(FuseError::Busy { what: path, by });
        }
        Err(e) => return Err(FuseError::system("open", &path, e)),
    }
    // The last close would write back, too, but tell nobody of an error. A partition has pages of its own.
    for partition in partitions {
        match File::open(&partition.path).and_then(|file| file.sync_all()) {
            Ok(()) => {}
            // Where nobody makes a node for it, nobody writes to it.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(FuseError::system("write back", &partition.path, e)),
        }
    }
    device.file.sync_all().map_err(|e| FuseError::system("write back", &path, e))
}
