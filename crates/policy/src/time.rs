//! Times as people write them: `250ms`, `5s`, `2m`, `1h`.

const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];

/// Reads a time in milliseconds: a whole number and one of ms, s, m, h.
///
/// # Errors
/// One sentence that says what is understood.
pub fn parse_ms(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = UNITS.iter().find(|(unit, _)| *unit == &text[digits.len()..]);
    let whole = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let Some((_, factor)) = unit.filter(|_| whole) else {
        return Err(format!("'{text}' is not a time; write a whole number with ms, s, m or h"));
    };
    let number: Option<u64> = digits.parse().ok();
    number
        .and_then(|n| n.checked_mul(*factor))
        .ok_or_else(|| format!("'{text}' is more than 64 bits can count"))
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
        for (text, ms) in
            [("250ms", 250), ("5s", 5000), ("90s", 90_000), ("2m", 120_000), ("1h", 3_600_000), ("0ms", 0)]
        {
            assert_eq!(parse_ms(text), Ok(ms));
            assert_eq!(parse_ms(&show_ms(ms)), Ok(ms));
        }
        for text in [
            "",
            "5",
            "s",
            "1.5s",
            "-1s",
            "5 s",
            "5sec",
            "99999999999999999999s",
            "5µs",
            "18446744073709551615h",
        ] {
            assert!(parse_ms(text).is_err(), "{text}");
        }
    }
}
