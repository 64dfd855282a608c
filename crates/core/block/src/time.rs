//! Times as people write them: `250ms`, `5s`, `1.5s`, `2m`, `1h`.

use crate::decimal::{NoNumber, scaled, split};

const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];
/// Units of what takes a moment.
const SHORT_UNITS: [(&str, u64); 4] = [("ns", 1), ("us", 1000), ("ms", 1_000_000), ("s", 1_000_000_000)];

/// Reads a time in milliseconds: a number, with a point or without, and one of ms, s, m, h.
///
/// # Errors
/// One sentence that says what is understood.
pub fn parse_ms(text: &str) -> Result<u64, String> {
    read(text, &UNITS, "ms, s, m or h, such as 5s")
}

/// Reads a time in nanoseconds, for what takes a moment: a number and one of ns, us, ms, s.
///
/// # Errors
/// One sentence that says what is understood.
pub fn parse_ns(text: &str) -> Result<u64, String> {
    read(text, &SHORT_UNITS, "ns, us, ms or s, such as 4ms")
}

fn read(text: &str, units: &[(&str, u64)], known: &str) -> Result<u64, String> {
    let complaint = || format!("'{text}' is not a time; write a number with {known}");
    let (number, unit) = split(text);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit).ok_or_else(complaint)?;
    scaled(number, *factor).map_err(|e| match e {
        NoNumber::Form => complaint(),
        NoNumber::TooLarge => format!("'{text}' is more than 64 bits can count"),
    })
}

/// A time for a person and for [`parse_ms`]: whole in the largest unit in which it is whole.
pub fn show_ms(ms: u64) -> String {
    let whole = |(_, factor): &&(&str, u64)| ms.is_multiple_of(*factor) && ms > 0;
    let (unit, factor) = UNITS.iter().rev().find(whole).unwrap_or(&UNITS[0]);
    format!("{}{unit}", ms / factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_and_shown() {
        for (text, ms) in [
            ("250ms", 250),
            ("5s", 5000),
            ("90s", 90_000),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("0ms", 0),
            ("1.5s", 1500),
            ("3.2 s", 3200),
        ] {
            assert_eq!(parse_ms(text), Ok(ms));
            assert_eq!(parse_ms(&show_ms(ms)), Ok(ms));
        }
        for text in [
            "",
            "5",
            "s",
            "1.5ms",
            "-1s",
            "5  s",
            "5sec",
            "99999999999999999999s",
            "5µs",
            "18446744073709551615h",
        ] {
            assert!(parse_ms(text).is_err(), "{text}");
        }
    }

    #[test]
    fn moments_are_read() {
        for (text, ns) in [("4ms", 4_000_000), ("1.5us", 1500), ("20 ns", 20), ("1s", 1_000_000_000)] {
            assert_eq!(parse_ns(text), Ok(ns));
        }
        assert!(parse_ns("2m").is_err() && parse_ns("2").is_err());
    }
}
