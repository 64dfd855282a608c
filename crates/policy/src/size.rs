//! Sizes as people write and read them: K, M, G and T are powers of 1024.

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

/// Reads a size in bytes: a whole number, then nothing or one of K, M, G, T (of either case).
///
/// # Errors
/// One sentence that says what is understood.
pub fn parse(text: &str) -> Result<u64, String> {
    let unit = text.chars().last().and_then(|last| UNITS.iter().find(|(c, _)| last.eq_ignore_ascii_case(c)));
    let (digits, factor) = match unit {
        Some((c, factor)) => (text.trim_end_matches(|l: char| l.eq_ignore_ascii_case(c)), *factor),
        None => (text, 1),
    };
    if unit.is_some() && digits.len() + 1 != text.len() {
        return Err(complaint(text));
    }
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(complaint(text));
    }
    let number: Option<u64> = digits.parse().ok();
    number
        .and_then(|n| n.checked_mul(factor))
        .ok_or_else(|| format!("'{text}' is more than 64 bits can count"))
}

fn complaint(text: &str) -> String {
    format!(
        "'{text}' is not a size; write a whole number of bytes, or one with K, M, G or T (powers of 1024)"
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, bytes) in
            [("0", 0), ("512", 512), ("4K", 4096), ("1m", 1 << 20), ("8G", 8 << 30), ("2T", 2 << 40)]
        {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "",
            "K",
            "1.5G",
            "-1",
            "+1",
            "1KK",
            "1GB",
            "1 G",
            "G1",
            "99999999999T",
            "18446744073709551616",
            "é",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
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
