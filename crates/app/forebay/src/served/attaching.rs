//! The volume as a file and a block device of the kernel's.

use std::path::Path;
use std::sync::Arc;

use forebay_block::{BlockService, Frontend};
use forebay_control::{AttachedDevice, Knob};
use forebay_fuse::{AttachOptions, Attachment, FuseExport, FuseOptions, QueueLimits};

use super::{FILE_GRACE, Kernel, Served, hold};
use crate::failure::{Failure, Outcome, from_fuse};
use crate::tracking::TrackedVolume;

impl Served {
    /// What the frontend of the block device speaks to.
    fn tracked(&self) -> Arc<dyn BlockService> {
        Arc::new(TrackedVolume(self.handle.clone()))
    }

    pub(super) fn mount(&self, file: &Path) -> Result<Arc<FuseExport>, Failure> {
        let fuse = FuseExport::mount(file, self.tracked(), FuseOptions::default());
        fuse.map(Arc::new).map_err(|e| from_fuse(&e))
    }

    /// Makes a kernel block device of the volume, or returns the one that there is. A file for it is made in
    /// `directory` if the volume has none.
    pub fn attach(&self, directory: &Path) -> Result<AttachedDevice, Failure> {
        let mut kernel = hold(&self.kernel);
        if let Some(attachment) = &kernel.attachment {
            return Ok(told(attachment));
        }
        if kernel.closing {
            return Err(self.is_closing());
        }
        if kernel.fuse.is_none() {
            kernel.fuse = Some(self.mount(&directory.join(format!("{}.volume", self.plan.name)))?);
            kernel.fuse_is_for_attach = true;
        }
        let file = kernel.fuse.as_ref().map(|f| f.path().to_owned()).unwrap_or_default();
        let logical_block = self.handle.info().logical_block;
        let queue = QueueLimits { background_dirty: self.plan.background_dirty.0, ..QueueLimits::default() };
        let record = Some(directory.join(format!("{}.knobs", self.plan.name)));
        match Attachment::attach(
            &file,
            AttachOptions { logical_block, queue, record, ..AttachOptions::default() },
        ) {
            Ok(attachment) => {
                let device = attachment.device_path().to_owned();
                let attached = told(&attachment);
                tracing::info!(
                    volume = self.plan.name,
                    device = %device.display(),
                    direct_io = attachment.direct_io(),
                    "attached"
                );
                self.link.follow(&device, &self.tracking, &self.handle);
                *hold(&self.device) = Some(device.clone());
                *hold(&self.knobs) = attachment.knobs().iter().map(shown).collect();
                kernel.attachment = Some(attachment);
                Ok(attached)
            }
            Err(e) => {
                let failure = from_fuse(&e);
                let _ = take_file(&mut kernel);
                Err(failure)
            }
        }
    }

    /// Takes the kernel block device away, and puts right what killed daemons left on theirs, and this one on a device that others still had open, by their
    /// records in `directory`; false if there was nothing of all that.
    pub fn detach(&self, directory: &Path) -> Result<bool, Failure> {
        let had_one = self.detach_own()?;
        let devices = match Attachment::put_right(directory) {
            Ok(devices) => devices,
            // It is gone all the same, and the next attach or detach tries again.
            Err(_) if had_one => Vec::new(),
            Err(e) => return Err(from_fuse(&e)),
        };
        for device in &devices {
            tracing::info!(device = %device.display(), "put right what was still set");
        }
        Ok(had_one || !devices.is_empty())
    }

    /// Takes the kernel block device away; false if there was none.
    pub(super) fn detach_own(&self) -> Result<bool, Failure> {
        let mut kernel = hold(&self.kernel);
        let Some(attachment) = &kernel.attachment else {
            return Ok(false);
        };
        attachment.detach(false).map_err(|e| from_fuse(&e))?;
        self.link.unfollow();
        kernel.attachment = None;
        *hold(&self.device) = None;
        hold(&self.knobs).clear();
        take_file(&mut kernel)?;
        Ok(true)
    }

    pub(super) fn unmount(&self) -> Outcome {
        let mut kernel = hold(&self.kernel);
        if let Some(fuse) = &kernel.fuse {
            fuse.unmount().map_err(|e| from_fuse(&e))?;
            kernel.fuse = None;
        }
        Ok(())
    }

    /// Takes block device and file away, by force if somebody uses them. The volume goes on.
    pub fn withdraw(&self) {
        let kernel =
            std::mem::replace(&mut *hold(&self.kernel), Kernel { closing: true, ..Kernel::default() });
        // The device before the file that it is on.
        let device = kernel.attachment.as_ref().map(|device| device as &dyn Frontend);
        for frontend in device.into_iter().chain(kernel.fuse.as_deref().map(|file| file as &dyn Frontend)) {
            if let Err(e) = frontend.stop(FILE_GRACE) {
                tracing::warn!(
                    volume = self.plan.name,
                    "stopping although the {} is in use: {e}",
                    frontend.kind()
                );
            }
        }
        self.link.unfollow();
        *hold(&self.device) = None;
        hold(&self.knobs).clear();
    }
}

/// A block device, with what costs it speed.
fn told(attachment: &Attachment) -> AttachedDevice {
    let path = attachment.device_path().display().to_string();
    let refused = attachment.queue().refused.iter();
    let mut warnings: Vec<String> = refused
        .map(|refused| {
            format!("the kernel refuses a setting of {path} ({refused}): nothing is lost, but it may be slow")
        })
        .collect();
    if let Some(why) = &attachment.queue().unrecorded {
        warnings.push(format!("what was set before for {path} is not on record ({why}): a daemon that is killed leaves it changed"));
    }
    if !attachment.direct_io() {
        warnings.push(format!("{path} does no direct I/O, but one request after the other: it is slow"));
    }
    AttachedDevice { path, warnings }
}

/// A setting of the kernel, as a status shows it.
fn shown(knob: &forebay_fuse::Knob) -> Knob {
    Knob { name: knob.name.clone(), set: knob.set.clone(), before: knob.before.clone() }
}

/// Takes the file away if it was made for the loop device alone.
fn take_file(kernel: &mut Kernel) -> Outcome {
    if !kernel.fuse_is_for_attach {
        return Ok(());
    }
    if let Some(fuse) = &kernel.fuse {
        fuse.unmount().map_err(|e| from_fuse(&e))?;
    }
    kernel.fuse = None;
    kernel.fuse_is_for_attach = false;
    Ok(())
}
