//! Where control sockets lie when nobody says otherwise.

use std::path::{Path, PathBuf};

use forebay_control::FailureKind;

use crate::cli::Failure;

/// Longest name of a volume, in bytes; it becomes part of paths and of NBD export names.
const NAME_BYTES_MAX: usize = 64;

/// Reads the name of a volume: letters, digits, `.`, `_` and `-`, not beginning with `.` or `-`.
pub fn volume_name(text: &str) -> Result<String, String> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    if text.is_empty()
        || text.len() > NAME_BYTES_MAX
        || !text.bytes().all(allowed)
        || text.starts_with(['.', '-'])
    {
        return Err(format!(
            "'{text}' cannot be the name of a volume; use up to {NAME_BYTES_MAX} letters, digits, '.', '_', '-', \
             beginning with a letter, digit or '_'"
        ));
    }
    Ok(text.to_owned())
}

/// The directory of the default control sockets: `/run/forebay` for root, `$XDG_RUNTIME_DIR/forebay` else.
pub fn runtime_directory() -> Result<PathBuf, Failure> {
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/run/forebay"));
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) if Path::new(&dir).is_absolute() => Ok(Path::new(&dir).join("forebay")),
        _ => Err(Failure::new(
            FailureKind::Usage,
            "XDG_RUNTIME_DIR does not name a directory, so there is no default control socket; name one with --control",
        )),
    }
}

/// The default control socket of the volume `name`.
pub fn control_path(name: &str) -> Result<PathBuf, Failure> {
    Ok(runtime_directory()?.join(format!("{name}.sock")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_inside_their_directory() {
        for good in ["db", "pg-15.main", "_x", "0"] {
            assert_eq!(volume_name(good), Ok(good.to_owned()));
        }
        for bad in ["", ".", "..", "a/b", "-v", "a b", "ä", &"x".repeat(65)] {
            assert!(volume_name(bad).is_err(), "{bad}");
        }
    }
}
