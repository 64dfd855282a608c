//! Where control sockets lie when nobody says otherwise.

use std::path::{Path, PathBuf};

use forebay_control::FailureKind;

use crate::failure::Failure;

/// The directory of the default control sockets: `/run/forebay` for root, `$XDG_RUNTIME_DIR/forebay` else.
pub fn runtime_directory() -> Result<PathBuf, Failure> {
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from(forebay_guard::ROOT_DIRECTORY));
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

/// Where files beside a control socket lie: in the directory of `control`, or of the default ones.
pub fn directory_of(control: Option<&Path>) -> Result<PathBuf, Failure> {
    match control.and_then(Path::parent) {
        // Of a bare name.
        Some(directory) if directory.as_os_str().is_empty() => Ok(PathBuf::from(".")),
        Some(directory) => Ok(directory.to_owned()),
        None => runtime_directory(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_lie_beside_the_control_socket() {
        for (control, directory) in
            [("db.sock", "."), ("./db.sock", "."), ("run/db.sock", "run"), ("/run/db.sock", "/run")]
        {
            let found = directory_of(Some(Path::new(control))).map_err(|e| e.to_string());
            assert_eq!(found, Ok(PathBuf::from(directory)), "{control}");
        }
    }
}
