//! Names of volumes.

/// Longest name of a volume, in bytes; it becomes part of paths and of NBD export names.
const NAME_BYTES_MAX: usize = 64;

/// Reads the name of a volume: letters, digits, `.`, `_` and `-`, not beginning with `.` or `-`.
pub fn parse(text: &str) -> Result<String, String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_inside_their_directory() {
        for good in ["db", "pg-15.main", "_x", "0"] {
            assert_eq!(parse(good), Ok(good.to_owned()));
        }
        for bad in ["", ".", "..", "a/b", "-v", "a b", "ä", &"x".repeat(65)] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
