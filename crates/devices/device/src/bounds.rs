//! What devices refuse without trying it.

use forebay_block::{DeviceOp, ErrorKind, IoError};

/// Why a device that is not [`crate::DeviceInfo::atomic`] commits nothing.
pub(crate) const NO_COMMIT: IoError = IoError::new(
    ErrorKind::Unsupported,
    "committing a group on a device that does nothing wholly or not at all",
);

/// Refuses operations that reach past the device's end, and commits: for devices that are not [`crate::DeviceInfo::atomic`].
pub(crate) fn check_range(op: &DeviceOp, size_bytes: u64) -> Result<(), IoError> {
    if matches!(op, DeviceOp::Commit(_)) { Err(NO_COMMIT) } else { check_ranges(op, size_bytes) }
}

/// Refuses operations that reach past the device's end.
pub(crate) fn check_ranges(op: &DeviceOp, size_bytes: u64) -> Result<(), IoError> {
    let ends = |(offset, len): (u64, u64)| offset.checked_add(len).is_some_and(|end| end <= size_bytes);
    let within = match op {
        DeviceOp::Flush => true,
        DeviceOp::Commit(commit) => {
            let from = commit.moves.iter().map(|moved| (moved.from, moved.len));
            let head = (commit.head_offset, commit.head.len() as u64);
            from.chain(commit.in_place()).chain([head]).all(ends)
        }
        op => op.offset().is_none_or(|offset| ends((offset, op.bytes()))),
    };
    let error = IoError::new(ErrorKind::Invalid, "reaching past the end of a device");
    within.then_some(()).ok_or(error)
}
