//! The rules of the wall that every effect of the engine is held to.

use forebay_block::{BLOCK_BYTES, Commit, DeviceOp};
use forebay_engine::{IoId, Role};
use forebay_format::Layout;
use forebay_format::label::LABEL_BYTES;

use crate::device::Device;
use crate::violation::{Interrupt, broken};

/// Most operations that an engine may have outstanding at one device (P7).
pub const IO_OUTSTANDING_MAX: usize = 512;

/// Bytes of an operation, with the first of them; of a commit those of the head.
fn range_of(op: &DeviceOp) -> Option<(u64, u64)> {
    match op {
        DeviceOp::Read { offset, len } => Some((*offset, *len as u64)),
        DeviceOp::Write { offset, .. } => Some((*offset, op.write_bytes())),
        DeviceOp::Zero { offset, len, .. } => Some((*offset, *len)),
        DeviceOp::Commit(commit) => Some((commit.head_offset, commit.head.len() as u64)),
        DeviceOp::Flush => None,
    }
}

/// Everything that it reads or changes on its device.
fn ranges_of(op: &DeviceOp) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = range_of(op).into_iter().collect();
    if let DeviceOp::Commit(commit) = op {
        ranges.extend(commit.in_place());
        ranges.extend(commit.moves.iter().map(|moved| (moved.from, moved.len)));
    }
    ranges
}

/// Checks an operation against the device's bounds and alignment, and against what is in flight there.
///
/// # Errors
/// The rule that is broken.
pub fn check(
    device: &Device,
    id: IoId,
    role: Role,
    op: &DeviceOp,
    layout: &Layout,
    volume_bytes: u64,
) -> Result<(), Interrupt> {
    if device.in_flight.iter().any(|io| io.id == id) {
        return Err(broken("wall", format!("{id:?} is used twice")));
    }
    if device.in_flight.len() >= IO_OUTSTANDING_MAX {
        return Err(broken("P7", format!("more than {IO_OUTSTANDING_MAX} operations outstanding")));
    }
    let Some((offset, len)) = range_of(op) else {
        return Ok(());
    };
    let Some(end) = offset.checked_add(len).filter(|_| len > 0) else {
        return Err(broken("wall", format!("an operation of {len} bytes at {offset}")));
    };
    match role {
        Role::Cache => {
            let align = u64::from(layout.align);
            if offset % align != 0 || len % align != 0 {
                return Err(broken("wall", format!("cache I/O {offset}+{len} is not aligned to {align}")));
            }
            if offset < Layout::SEGMENTS_OFFSET || end > layout.cache_bytes() {
                return Err(broken("wall", format!("cache I/O {offset}+{len} lies outside the segments")));
            }
        }
        Role::Backing => {
            if offset % BLOCK_BYTES != 0 || (end % BLOCK_BYTES != 0 && end != volume_bytes) {
                return Err(broken("wall", format!("backing I/O {offset}+{len} is not made of blocks")));
            }
            if end > volume_bytes {
                return Err(broken("wall", format!("backing I/O {offset}+{len} lies outside the volume")));
            }
        }
        Role::Journal => {
            if offset % BLOCK_BYTES != 0 || end % BLOCK_BYTES != 0 {
                return Err(broken("wall", format!("journal I/O {offset}+{len} is not made of blocks")));
            }
            // On the backing it lies behind the label.
            let begins = match device.role {
                Role::Journal => 0,
                _ => volume_bytes.next_multiple_of(BLOCK_BYTES) + LABEL_BYTES as u64,
            };
            if begins + end > device.media.end() {
                return Err(broken("wall", format!("journal I/O {offset}+{len} lies outside the journal")));
            }
            let op = op.clone().moved(begins);
            if let DeviceOp::Commit(commit) = &op {
                check_commit(commit, begins, device.media.end(), volume_bytes)?;
            }
            return check_hazards(device, &op);
        }
    }
    check_hazards(device, op)
}

/// What is moved lies in the journal, and goes to the volume.
fn check_commit(commit: &Commit, begins: u64, ends: u64, volume_bytes: u64) -> Result<(), Interrupt> {
    let places = commit.in_place().all(|(offset, len)| len > 0 && offset + len <= volume_bytes);
    let journal = commit.moves.iter().all(|moved| moved.from >= begins && moved.from + moved.len <= ends);
    if places && journal {
        return Ok(());
    }
    Err(broken("wall", format!("a commit reaches beyond the journal or the volume: {commit:?}")))
}

/// No two changes of one place in flight (hazard 4; of a block at the backing: `docs/design/promises.md`, Admission),
/// and no change of a cache range under a read of it (hazard 6).
fn check_hazards(device: &Device, op: &DeviceOp) -> Result<(), Interrupt> {
    let mine = ranges_of(op);
    for other in &device.in_flight {
        let theirs = ranges_of(&other.op);
        let meet = |(start, len): &(u64, u64)| {
            mine.iter().find(|(offset, bytes)| start < &(offset + bytes) && offset < &(start + len))
        };
        let Some((offset, len)) = theirs.iter().find_map(meet) else { continue };
        let end = offset + len;
        if op.changes() && other.op.changes() {
            let message = format!("{:?}: two changes of {offset}..{end} in flight at once", device.role);
            return Err(broken("wall", message));
        }
        if device.role == Role::Cache && op.changes() != other.op.changes() {
            let message = format!("cache: {offset}..{end} is read and overwritten at once");
            return Err(broken("wall", message));
        }
    }
    Ok(())
}
