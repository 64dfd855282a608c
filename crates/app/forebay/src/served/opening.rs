//! What a plan asks of the host, and what is said of the devices that were opened.

use forebay_device::decorate::{self, Recorders};
use forebay_device::{Device, DeviceKind, Survives};
use forebay_engine::Role;
use forebay_host::{VolumeConfig, VolumeHandle};

use crate::plan::VolumePlan;

/// The volume's configuration, with the devices decorated as the plan says.
pub(super) fn volume_config(plan: &VolumePlan, recorders: &Recorders) -> VolumeConfig {
    let mut config = VolumeConfig::new(&plan.name, plan.cache.clone(), plan.backing.clone());
    config.settings = plan.settings;
    config.journal = plan.journal.clone();
    config.member = plan.group.as_ref().and_then(|group| {
        let member = group.members.iter().position(|member| member.name == plan.name)?;
        Some((group.names.clone(), member as u32))
    });
    config.takeover = plan.takeover;
    config.accept_stale = plan.accept_stale;
    config.read_only = plan.read_only;
    config.logical_block = plan.logical_block;
    if !plan.decorate.is_empty() {
        let (decorate, recorders) = (plan.decorate.clone(), recorders.clone());
        config.decorate = Some(Box::new(move |role, device: Box<dyn Device>| {
            let of_role = decorate.iter().filter(|d| d.of_cache == (role == Role::Cache));
            let place = match role {
                Role::Cache => decorate::Role::Cache,
                Role::Backing => decorate::Role::Backing,
                Role::Journal => decorate::Role::Journal,
            };
            of_role.fold(device, |inner, d| d.decoration.clone().around(inner, place, &recorders))
        }));
    }
    config
}

/// Says what a power cut would do, where it is not what the settings promise.
pub(super) fn warn_of_weak_devices(plan: &VolumePlan, handle: &VolumeHandle) {
    for device in handle.cache().into_iter().chain([handle.backing()]).chain(handle.journal()) {
        let volume = &plan.name;
        let weak = match device.survives {
            Survives::PowerCut => None,
            // A store is asked to flush, as its protocol has it; there is nothing that its user could do about it.
            Survives::Unknown if device.kind == DeviceKind::Remote => None,
            Survives::Unknown => Some("it is not known whether what is on this device survives a power cut"),
            Survives::ProcessDeath => Some("what is on this device does not survive a power cut"),
        };
        let (device, durability) = (&device.name, device.durability);
        match weak {
            None => tracing::info!(volume, device, durability, "opened"),
            Some(weak) => tracing::warn!(volume, device, durability, "{weak}"),
        }
    }
}
