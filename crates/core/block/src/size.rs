//! Sizes as people write and read them: K, M, G and T are powers of 1024, and so are KiB, MiB, GiB and TiB; KB, MB, GB and TB are powers of
//! 1000.

use crate::decimal::{NoNumber, scaled, split};

const UNITS: [(char, u64); 4] = [('T', 1 << 40), ('G', 1 << 30), ('M', 1 << 20), ('K', 1 << 10)];

/// A size in a configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl std::str::FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text).map(Self)
    }
}

/// Reads a size in bytes: a number, with a point or without, and then nothing, K, M, G or T (powers of 1024; also as KiB and so on), or KB,
/// MB, GB or TB (powers of 1000), of either case.
///
/// # Errors
/// One sentence that says what is understood.
pub fn parse(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let factor = factor(unit).ok_or_else(|| complaint(text))?;
    scaled(number, factor).map_err(|e| match e {
        NoNumber::Form => complaint(text),
        NoNumber::TooLarge => format!("'{text}' is more than 64 bits can count"),
    })
}

/// The same for what must have a size.
///
/// # Errors
/// One sentence, also for nothing.
pub fn parse_some(text: &str) -> Result<u64, String> {
    match parse(text)? {
        0 => Err(format!("'{text}' is no size for anything; write one of more than 0 bytes")),
        bytes => Ok(bytes),
    }
}

/// Bytes of a unit.
fn factor(unit: &str) -> Option<u64> {
    let unit = unit.to_ascii_lowercase();
    let mut letters = unit.chars();
    let Some((power, (_, binary))) = letters
        .next()
        .and_then(|first| UNITS.iter().rev().enumerate().find(|(_, (c, _))| first.eq_ignore_ascii_case(c)))
    else {
        return matches!(unit.as_str(), "" | "b").then_some(1);
    };
    match letters.as_str() {
        "" | "ib" => Some(*binary),
        "b" => Some(1000u64.pow(power as u32 + 1)),
        _ => None,
    }
}

fn complaint(text: &str) -> String {
    format!(
        "'{text}' is not a size; write a number of bytes, or one with K, M, G or T (powers of 1024, such as 4G, 4GiB or 1.5G) or with KB, MB, GB \
         or TB (powers of 1000)"
    )
}

/// A size for a person, such as `1.5 GiB`.
pub fn show(bytes: u64) -> String {
    for (c, unit) in UNITS {
        if bytes >= unit {
            let tenths = (u128::from(bytes) * 10 + u128::from(unit) / 2) / u128::from(unit);
            return match tenths % 10 {
                0 => format!("{} {c}iB", tenths / 10),
                tenth => format!("{}.{tenth} {c}iB", tenths / 10),
            };
        }
    }
    format!("{bytes} B")
}

/// A size for a person beside another one from which it must be told apart: in bytes where both look alike else.
pub fn show_beside(bytes: u64, other: u64) -> String {
    match bytes != other && show(bytes) == show(other) {
        true => format!("{bytes} bytes"),
        false => show(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("512 B", 512),
            ("4K", 4096),
            ("1m", 1 << 20),
            ("8G", 8 << 30),
            ("2T", 2 << 40),
            ("4GiB", 4 << 30),
            ("4 GiB", 4 << 30),
            ("4gib", 4 << 30),
            ("10GB", 10_000_000_000),
            ("1kb", 1000),
            ("1.5G", 3 << 29),
            ("0.5 KiB", 512),
            ("1.5MB", 1_500_000),
            ("1.1K", 1126),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        assert!(parse_some("0").is_err() && parse_some("0G").is_err());
        assert_eq!(parse_some("1K"), Ok(1024));
    }

    /// What a person is shown can be typed.
    #[test]
    fn what_is_shown_is_read() {
        for bytes in [0, 1, 1023, 1024, 1536, 5 << 20, (3 << 30) + (1 << 29), 7 << 40] {
            assert_eq!(parse(&show(bytes)), Ok(bytes), "{}", show(bytes));
        }
        for bytes in [1_234_567, 98_765_432_109, u64::MAX / 3] {
            let read = parse(&show(bytes)).unwrap();
            assert!(read.abs_diff(bytes) <= bytes / 15, "{bytes}: {}", show(bytes));
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "",
            "K",
            "1.5",
            ".5G",
            "1.G",
            "1.5.5G",
            "1.0000000001G",
            "-1",
            "+1",
            "1KK",
            "1GiBi",
            "1GBB",
            "1  G",
            "1 ",
            " 1G",
            "G1",
            "1bib",
            "99999999999T",
            "18446744073709551616",
            "é",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_that_differ_look_different() {
        assert_eq!(show_beside(1 << 20, 2 << 20), "1 MiB");
        assert_eq!(show_beside(1 << 30, (1 << 30) + 512), "1073741824 bytes");
        assert_eq!(show_beside((1 << 30) + 512, 1 << 30), "1073742336 bytes");
    }

    #[test]
    fn sizes_are_shown_with_one_decimal_at_most() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (4096, "4 KiB"),
            (1536, "1.5 KiB"),
            (8 << 30, "8 GiB"),
            (u64::MAX, "16777216 TiB"),
        ] {
            assert_eq!(show(bytes), text);
        }
    }
}
